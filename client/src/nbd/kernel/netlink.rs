//! The `nbd` family of generic netlink: three messages out, one number back.
//!
//! The messages are built apart from the socket that sends them, so that a test can look at their bytes. Numbers are
//! those of `linux/nbd-netlink.h`.
//!
//! An attribute that is not set must not be sent: to the kernel, a timeout of zero is a timeout.

use std::io;
use std::os::fd::RawFd;

use neli::ToBytes;
use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use neli::err::SocketError;
use neli::genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder};
use neli::nl::{NlPayload, Nlmsghdr, NlmsghdrBuilder};
use neli::socket::synchronous::NlSocketHandle;
use neli::types::{Buffer, GenlBuffer};
use neli::utils::Groups;

const FAMILY: &str = "nbd";
const FAMILY_VERSION: u8 = 1;

const CMD_CONNECT: u8 = 1;
const CMD_DISCONNECT: u8 = 2;

const ATTR_INDEX: u16 = 1;
const ATTR_SIZE_BYTES: u16 = 2;
const ATTR_BLOCK_SIZE_BYTES: u16 = 3;
const ATTR_TIMEOUT: u16 = 4;
const ATTR_SERVER_FLAGS: u16 = 5;
const ATTR_SOCKETS: u16 = 7;
const ATTR_DEAD_CONN_TIMEOUT: u16 = 8;
const ATTR_BACKEND_IDENTIFIER: u16 = 10;

const SOCK_ITEM: u16 = 1;
const SOCK_FD: u16 = 1;

/// The controller that knows the families' numbers (`linux/genetlink.h`).
const CONTROLLER: u16 = 0x10;
const CONTROLLER_VERSION: u8 = 2;
const CONTROLLER_GET_FAMILY: u8 = 3;
const CONTROLLER_ATTR_FAMILY_ID: u16 = 1;
const CONTROLLER_ATTR_FAMILY_NAME: u16 = 2;

type Body = Genlmsghdr<u8, u16>;
type Message = Nlmsghdr<u16, Body>;
type Attr = Nlattr<u16, Buffer>;

/// Why a request was not answered with yes.
#[derive(Debug)]
pub(super) enum Failure {
    /// The kernel answered with an error.
    Kernel(io::Error),
    /// The message could not be built, sent or understood.
    Talk(String),
}

impl Failure {
    fn talk(reason: impl ToString) -> Self {
        Self::Talk(reason.to_string())
    }
}

impl From<SocketError> for Failure {
    fn from(error: SocketError) -> Self {
        Self::talk(error)
    }
}

/// What CONNECT says; `None` is not sent. Times are in seconds.
#[derive(Debug)]
pub(super) struct Connect<'a> {
    pub(super) index: Option<u32>,
    pub(super) size: u64,
    pub(super) block_size: u64,
    pub(super) flags: u64,
    pub(super) timeout: Option<u64>,
    pub(super) dead_conn_timeout: Option<u64>,
    pub(super) backend: &'a str,
    pub(super) sockets: &'a [RawFd],
}

impl Connect<'_> {
    fn message(&self, family: u16) -> Result<Message, Failure> {
        let optional = [
            self.index.map(|index| attr(ATTR_INDEX, index)),
            self.timeout.map(|seconds| attr(ATTR_TIMEOUT, seconds)),
            self.dead_conn_timeout.map(|seconds| attr(ATTR_DEAD_CONN_TIMEOUT, seconds)),
            (!self.backend.is_empty()).then(|| attr(ATTR_BACKEND_IDENTIFIER, self.backend)),
        ];
        let always = [
            attr(ATTR_SIZE_BYTES, self.size),
            attr(ATTR_BLOCK_SIZE_BYTES, self.block_size),
            attr(ATTR_SERVER_FLAGS, self.flags),
            sockets(self.sockets),
        ];
        let attrs = always.into_iter().chain(optional.into_iter().flatten());
        message(family, FAMILY_VERSION, CMD_CONNECT, attrs.collect::<Result<_, _>>()?)
    }
}

/// Binds a device; the answer is its number.
///
/// The file descriptors in the message are looked up in the calling process while it sends.
pub(super) fn connect(family: u16, connect: &Connect<'_>) -> Result<u32, Failure> {
    let answer = Channel::open()?.request(&connect.message(family)?)?;
    value(answer.as_ref(), ATTR_INDEX).ok_or_else(|| Failure::talk("the answer to CONNECT names no device"))
}

/// Lets a device go. Returns when its sockets are shut down and its queue is empty; can block for as long as the
/// serving process does not read.
pub(super) fn disconnect(family: u16, index: u32) -> Result<(), Failure> {
    Channel::open()?.request(&disconnect_message(family, index)?)?;
    Ok(())
}

fn disconnect_message(family: u16, index: u32) -> Result<Message, Failure> {
    message(family, FAMILY_VERSION, CMD_DISCONNECT, [attr(ATTR_INDEX, index)?].into_iter().collect())
}

/// The number of the `nbd` family; `None` while the kernel has no NBD driver (it tries to load it when asked).
pub(super) fn family() -> Result<Option<u16>, Failure> {
    let name = [attr(CONTROLLER_ATTR_FAMILY_NAME, FAMILY)?].into_iter().collect();
    let question = message(CONTROLLER, CONTROLLER_VERSION, CONTROLLER_GET_FAMILY, name)?;
    match Channel::open()?.request(&question) {
        Ok(answer) => Ok(value(answer.as_ref(), CONTROLLER_ATTR_FAMILY_ID)),
        Err(Failure::Kernel(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn attr(kind: u16, payload: impl neli::Size + ToBytes) -> Result<Attr, Failure> {
    let kind = AttrTypeBuilder::default().nla_type(kind).build().map_err(Failure::talk)?;
    NlattrBuilder::default().nla_type(kind).nla_payload(payload).build().map_err(Failure::talk)
}

fn sockets(fds: &[RawFd]) -> Result<Attr, Failure> {
    fds.iter().try_fold(attr(ATTR_SOCKETS, Vec::<u8>::new())?, |list, fd| {
        let item = attr(SOCK_ITEM, Vec::<u8>::new())?.nest(&attr(SOCK_FD, *fd)?).map_err(Failure::talk)?;
        list.nest(&item).map_err(Failure::talk)
    })
}

fn message(kind: u16, version: u8, cmd: u8, attrs: GenlBuffer<u16, Buffer>) -> Result<Message, Failure> {
    let body =
        GenlmsghdrBuilder::default().cmd(cmd).version(version).attrs(attrs).build().map_err(Failure::talk)?;
    NlmsghdrBuilder::default()
        .nl_type(kind)
        .nl_flags(NlmF::REQUEST | NlmF::ACK)
        .nl_seq(1)
        .nl_payload(NlPayload::Payload(body))
        .build()
        .map_err(Failure::talk)
}

fn value<V: neli::FromBytes>(answer: Option<&Body>, kind: u16) -> Option<V> {
    answer?.attrs().get_attr_handle().get_attr_payload_as(kind).ok()
}

/// One request's socket. A fresh one each time, so every message on it is an answer to that request.
struct Channel {
    socket: NlSocketHandle,
}

impl Channel {
    fn open() -> Result<Self, Failure> {
        Ok(Self { socket: NlSocketHandle::connect(NlFamily::Generic, None, Groups::empty())? })
    }

    /// Sends, and reads until the acknowledgement. The kernel does the work inside the send.
    fn request(&self, message: &Message) -> Result<Option<Body>, Failure> {
        self.socket.send(message)?;
        let mut body = None;
        loop {
            let (answers, _) = self.socket.recv::<u16, Body>()?;
            for answer in answers {
                match answer?.nl_payload() {
                    NlPayload::Payload(payload) => body = Some(payload.clone()),
                    NlPayload::Err(error) => {
                        return Err(Failure::Kernel(io::Error::from_raw_os_error(-error.error())));
                    }
                    NlPayload::Ack(_) => return Ok(body),
                    NlPayload::DumpExtAck(_) | NlPayload::Empty => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn bytes(message: &Message) -> Vec<u8> {
        let mut out = Cursor::new(Vec::new());
        message.to_bytes(&mut out).unwrap();
        out.into_inner()
    }

    fn plain<'a>(sockets: &'a [RawFd]) -> Connect<'a> {
        Connect {
            index: None,
            size: 0x0102_0304_0000,
            block_size: 4096,
            flags: 0x010d,
            timeout: None,
            dead_conn_timeout: None,
            backend: "",
            sockets,
        }
    }

    /// Written by hand from nbd-netlink.h, netlink.h and genetlink.h. All numbers are little-endian here.
    #[cfg(target_endian = "little")]
    #[test]
    fn connect_says_only_what_is_set() {
        #[rustfmt::skip]
        let golden = [
            // nlmsghdr: length 72, type, REQUEST|ACK, sequence, port
            72, 0, 0, 0,  0x1c, 0,  5, 0,  1, 0, 0, 0,  0, 0, 0, 0,
            // genlmsghdr: CONNECT, version 1
            1, 1, 0, 0,
            // SIZE_BYTES, BLOCK_SIZE_BYTES, SERVER_FLAGS
            12, 0, 2, 0,  0, 0, 4, 3, 2, 1, 0, 0,
            12, 0, 3, 0,  0, 0x10, 0, 0, 0, 0, 0, 0,
            12, 0, 5, 0,  0x0d, 1, 0, 0, 0, 0, 0, 0,
            // SOCKETS, nested: [SOCK_ITEM, nested: [SOCK_FD 7]]
            16, 0, 7, 0x80,  12, 0, 1, 0x80,  8, 0, 1, 0,  7, 0, 0, 0,
        ];
        assert_eq!(bytes(&plain(&[7]).message(0x1c).unwrap()), golden);
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn connect_says_everything_that_is_set() {
        let full = Connect {
            index: Some(3),
            timeout: Some(60),
            dead_conn_timeout: Some(10),
            backend: "kaeru",
            ..plain(&[7, 9])
        };
        #[rustfmt::skip]
        let golden = [
            128, 0, 0, 0,  0x1c, 0,  5, 0,  1, 0, 0, 0,  0, 0, 0, 0,
            1, 1, 0, 0,
            12, 0, 2, 0,  0, 0, 4, 3, 2, 1, 0, 0,
            12, 0, 3, 0,  0, 0x10, 0, 0, 0, 0, 0, 0,
            12, 0, 5, 0,  0x0d, 1, 0, 0, 0, 0, 0, 0,
            28, 0, 7, 0x80,  12, 0, 1, 0x80,  8, 0, 1, 0,  7, 0, 0, 0,
                             12, 0, 1, 0x80,  8, 0, 1, 0,  9, 0, 0, 0,
            // INDEX, TIMEOUT, DEAD_CONN_TIMEOUT, BACKEND_IDENTIFIER (its NUL, then two bytes of padding)
            8, 0, 1, 0,  3, 0, 0, 0,
            12, 0, 4, 0,  60, 0, 0, 0, 0, 0, 0, 0,
            12, 0, 8, 0,  10, 0, 0, 0, 0, 0, 0, 0,
            10, 0, 10, 0,  b'k', b'a', b'e', b'r', b'u', 0, 0, 0,
        ];
        assert_eq!(bytes(&full.message(0x1c).unwrap()), golden);
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn disconnect_names_the_device_only() {
        #[rustfmt::skip]
        let golden = [
            28, 0, 0, 0,  0x1c, 0,  5, 0,  1, 0, 0, 0,  0, 0, 0, 0,
            2, 1, 0, 0,
            8, 0, 1, 0,  3, 0, 0, 0,
        ];
        assert_eq!(bytes(&disconnect_message(0x1c, 3).unwrap()), golden);
    }
}
