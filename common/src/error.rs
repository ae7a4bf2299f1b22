//! What can go wrong between two peers: [`Status`] is what one tells the other, [`PeerFault`] is what one did wrong,
//! [`DecodeError`] is why bytes are no message.
//!
//! Errno numbers are Linux's on every system, as NBD wants them.

/// Why bytes are no value of the type that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end within the value.
    #[error("it ends too early")]
    Truncated,
    /// A text or list is longer than its limit.
    #[error("a text or list of {length} is longer than the limit of {limit}")]
    TooLong {
        /// Bytes or items that were announced.
        length: usize,
        /// Bytes or items that are allowed.
        limit: usize,
    },
    /// A field has a value that means nothing.
    #[error("{what} has a value that means nothing")]
    BadValue {
        /// The field.
        what: &'static str,
    },
    /// Bytes are left over behind the value.
    #[error("{count} bytes are left over behind it")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
}

/// A peer broke the protocol. Always the end of the session, and never of anything else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// The stream does not begin with the control preamble.
    #[error("it does not speak Kaeru's control protocol (the stream does not begin with KAERUCTL)")]
    NotKaeru,
    /// A frame is announced longer than a message of its direction can be.
    #[error("it announced a message of {length} bytes, the limit is {limit}")]
    FrameTooLong {
        /// Bytes of the body that were announced.
        length: usize,
        /// Bytes of the body that are allowed.
        limit: usize,
    },
    /// A message number that this version does not know.
    #[error("it sent a message of the unknown type {0}")]
    UnknownMessage(u16),
    /// A known message with a body that is none.
    #[error("its {message} message is malformed: {source}")]
    BadMessage {
        /// The message's name.
        message: &'static str,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A message that has no place in this state, or does not fit what was said before.
    #[error("it sent {message} while the session was {state}")]
    Unexpected {
        /// The message's name.
        message: &'static str,
        /// The state's name.
        state: &'static str,
    },
    /// More unanswered requests than a session may have.
    #[error("it sent more than {limit} requests without waiting for their answers")]
    TooManyRequests {
        /// The limit.
        limit: usize,
    },
    /// The stream ended within a message.
    #[error("its stream ended within a message")]
    Cut,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, errno $errno:literal, $text:literal;)*) => {
        /// What one peer tells the other about a request that failed; a `u16` on the wire, where 0 means success.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum Status {
            $($(#[$doc])* #[error($text)] $name,)*
            /// A code of a newer version.
            #[error("the peer gave reason {0}, which this version does not know")]
            Unknown(u16),
        }

        impl Status {
            /// All that this version knows.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its number on the wire.
            pub const fn code(self) -> u16 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown(code) => code,
                }
            }

            /// The status with this number; 0 is success and therefore none.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    0 => None,
                    $($code => Some(Self::$name),)*
                    other => Some(Self::Unknown(other)),
                }
            }

            /// The errno that comes closest; `EIO` for an unknown code.
            pub const fn errno(self) -> i32 {
                match self {
                    $(Self::$name => $errno,)*
                    Self::Unknown(_) => 5,
                }
            }
        }
    };
}

statuses! {
    /// No export has this name.
    UnknownExport = 1, errno 2, "there is no such export";
    /// The export may only be read.
    ReadOnly = 2, errno 30, "the export is read-only";
    /// Another client holds the right to write.
    Busy = 3, errno 16, "another client writes to the export";
    /// The server has no room, memory or lanes left.
    NoResources = 4, errno 12, "the server has no resources left for it";
    /// No common version.
    BadVersion = 5, errno 93, "the versions of the two sides have nothing in common";
    /// This client may not do this.
    NotAllowed = 6, errno 13, "this client is not allowed to do it";
    /// The request makes no sense here.
    BadRequest = 7, errno 22, "the request makes no sense";
    /// The server is going down.
    ShuttingDown = 8, errno 108, "the server is shutting down";
    /// The server failed at something that is not the client's fault.
    Internal = 9, errno 5, "the server failed";
    /// The store failed to read or write.
    Io = 64, errno 5, "the store reported an input/output error";
    /// The store is full.
    NoSpace = 65, errno 28, "the store is full";
    /// The request reaches beyond the export or its limits.
    OutOfRange = 66, errno 75, "the request reaches beyond the export";
    /// The store cannot do this at all.
    NotSupported = 67, errno 95, "the store cannot do it";
}

impl Status {
    /// The status for an errno of a store; what has no status of its own is [`Self::Io`].
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            1 | 13 => Self::NotAllowed,
            2 => Self::UnknownExport,
            12 => Self::NoResources,
            16 => Self::Busy,
            22 => Self::BadRequest,
            28 | 122 => Self::NoSpace,
            27 | 75 => Self::OutOfRange,
            30 => Self::ReadOnly,
            93 => Self::BadVersion,
            95 => Self::NotSupported,
            108 => Self::ShuttingDown,
            _ => Self::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_survives_the_wire_and_its_errno() {
        for &status in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(status));
            let back = Status::from_errno(status.errno());
            assert!(
                back == status || (status, back) == (Status::Internal, Status::Io),
                "{status:?} became {back:?}"
            );
        }
        assert_eq!(Status::from_code(0), None);
        assert_eq!(Status::from_code(999), Some(Status::Unknown(999)));
        assert_eq!(Status::Unknown(999).errno(), 5);
        assert_eq!(Status::from_errno(1234), Status::Io);
    }
}
