//! Golden bytes, round trips, cuts, garbage and the checks of every message.

use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::activity::{Activity, LatencySummary};
use super::control::*;
use super::grant::{Grant, Granted, Path, Paths};
use super::version::VersionRange;
use super::*;
use crate::codec::{BoundedList, DecodeError, Text};
use crate::error::Status;
use crate::fabric::{FabricKind, RegionInfo};
use crate::units::{BootId, Epoch, ExportName, LaneToken, SessionId};

/// Address, key, length.
type Region = (u64, u32, u64);

const BLOCKS: BlockSizes = BlockSizes { least: 512, preferred: 4096 };

fn frame(message: &Message) -> Vec<u8> {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    out.to_vec()
}

fn decode(frame: &[u8]) -> Result<Message, PeerFault> {
    let kind = u16::from_be_bytes([frame[4], frame[5]]);
    Message::decode(kind, &frame[HEADER_BYTES..])
}

fn list<T: std::fmt::Debug, const N: usize>(items: Vec<T>) -> BoundedList<T, N> {
    BoundedList::new(items).unwrap()
}

fn path(regions: &[(u64, u32, u64)]) -> Path {
    let regions = regions.iter().map(|&(address, key, length)| RegionInfo { address, key, length }).collect();
    Path {
        fabric: FabricKind::Verbs,
        address: "10.10.0.1:17420".parse().unwrap(),
        device: "mlx4_0".into(),
        regions: list(regions),
    }
}

fn granted(size: u64, grant: Grant) -> Granted {
    Granted {
        session: SessionId(0x1122),
        epoch: Epoch(1),
        boot_id: BootId([0xb0; 16]),
        size,
        read_only: false,
        blocks: BLOCKS,
        volatile: true,
        grant,
    }
}

fn direct(size: u64, regions: &[(u64, u32, u64)]) -> Granted {
    granted(size, Grant::Direct { paths: list(vec![path(regions)]) })
}

fn welcome(keep_alive_ms: u32, lease_ms: u32) -> Welcome {
    Welcome {
        version: 1,
        server: "frog".into(),
        boot_id: BootId([7; 16]),
        keep_alive_ms,
        lease_ms,
        fabrics: list(vec![FabricOffer {
            fabric: FabricKind::Tcp,
            address: "[::1]:17420".parse().unwrap(),
            device: "lo".into(),
        }]),
    }
}

fn export() -> ExportInfo {
    ExportInfo {
        name: "scratch".parse().unwrap(),
        kind: ExportKind::Ram,
        size: 1024,
        read_only: false,
        blocks: BLOCKS,
        volatile: true,
        description: "".into(),
        writer: Some("tama".into()),
        activity: None,
        trouble: "".into(),
    }
}

fn busy() -> ExportInfo {
    let latency = LatencySummary { p50_ns: 1, p90_ns: 2, p99_ns: 2, p999_ns: 3, max_ns: 0x1_0000_0000 };
    let activity = Activity {
        lanes: 1,
        reads: 2,
        writes: 3,
        others: 4,
        bytes_read: 5,
        bytes_written: 6,
        errors: 7,
        in_flight: 8,
        last_answer_ms: Some(9),
        latency: Some(latency),
    };
    ExportInfo { activity: Some(activity), trouble: "full".into(), kind: ExportKind::File, ..export() }
}

fn attach(resume: Option<SessionId>) -> Attach {
    Attach { export: "scratch".parse().unwrap(), read_only: true, steal: false, resume }
}

fn facts() -> HostFacts {
    let none = Said::default;
    let node = PciFacts {
        address: "p".into(),
        speed: "8".into(),
        width: "4".into(),
        max_speed: none(),
        max_width: none(),
    };
    let port = PortFacts {
        device: "mlx4_0".into(),
        number: 1,
        parent: none(),
        node_type: none(),
        firmware: none(),
        psid: none(),
        node_guid: none(),
        pci_vendor: "0x15b3".into(),
        pci_device: "0x1003".into(),
        pci: list(vec![node]),
        link_layer: "InfiniBand".into(),
        state: none(),
        phys_state: none(),
        rate: none(),
        lid: "0x1".into(),
        sm_lid: none(),
        mtu: none(),
        mode: none(),
        interface: none(),
        interface_mtu: none(),
        interface_speed: none(),
        roce_v1: false,
        roce_v2: true,
    };
    HostFacts { software: "kaerud".into(), host: "frog".into(), kernel: "6".into(), ports: list(vec![port]) }
}

/// Every message once, with its bytes in hexadecimal: what version 1 is. Spaces part the fields.
fn golden() -> Vec<(Message, &'static str)> {
    let hello = Hello {
        versions: VersionRange { oldest: 1, newest: 2 },
        identity: Identity { bytes: [0x1d; 16] },
        client: "tama".into(),
    };
    let null = granted(1024, Grant::Null { paths: list(vec![path(&[(4096, 1, 512), (8192, 2, 512)])]) });
    let staged = granted(1024, Grant::Staged { paths: list(vec![path(&[])]) });
    vec![
        (Message::Hello(hello), "0000001a 0001  0001 0002 1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d 0004 74616d61"),
        (
            Message::Welcome(welcome(1000, 5000)),
            "0000003a 0002  0001 0004 66726f67 07070707070707070707070707070707 000003e8 00001388 \
             0001  02 06 00000000000000000000000000000001 440c 0002 6c6f",
        ),
        (Message::List(Empty), "00000000 0003"),
        (
            Message::Exports(Exports { exports: list(vec![export()]), cpu_us: 0x1234 }),
            "00000032 0004  0001  0007 73637261746368 01 0000000000000400 00 00000200 00001000 01 0000 \
             01 0004 74616d61 00 0000  0000000000001234",
        ),
        (
            Message::Exports(Exports { exports: list(vec![busy()]), cpu_us: 0 }),
            "000000a2 0004  0001  0007 73637261746368 02 0000000000000400 00 00000200 00001000 01 0000 \
             01 0004 74616d61 \
             01 0001 0000000000000002 0000000000000003 0000000000000004 0000000000000005 0000000000000006 \
             0000000000000007 0000000000000008 01 0000000000000009 \
             01 0000000000000001 0000000000000002 0000000000000002 0000000000000003 0000000100000000 \
             0004 66756c6c  0000000000000000",
        ),
        (Message::Attach(attach(None)), "0000000c 0005  0007 73637261746368 01 00 00"),
        (
            Message::Attach(attach(Some(SessionId(0x1122)))),
            "00000014 0005  0007 73637261746368 01 00 01 0000000000001122",
        ),
        (
            Message::Granted(direct(1024, &[(65536, 0xcafe, 512), (66048, 0xbeef, 512)])),
            "0000006b 0006  0000000000001122 00000001 b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0 0000000000000400 00 \
             00000200 00001000 01  01 0001  01 04 0a0a0001 440c 0006 6d6c78345f30 \
             0002  0000000000010000 0000cafe 0000000000000200  0000000000010200 0000beef 0000000000000200",
        ),
        (
            Message::Granted(null),
            "0000006b 0006  0000000000001122 00000001 b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0 0000000000000400 00 \
             00000200 00001000 01  02 0001  01 04 0a0a0001 440c 0006 6d6c78345f30 \
             0002  0000000000001000 00000001 0000000000000200  0000000000002000 00000002 0000000000000200",
        ),
        (
            Message::Granted(staged),
            "00000043 0006  0000000000001122 00000001 b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0 0000000000000400 00 \
             00000200 00001000 01  03 0001  01 04 0a0a0001 440c 0006 6d6c78345f30 0000",
        ),
        (Message::OpenLane(OpenLane { path: 1, fabric: FabricKind::Sim }), "00000002 0007  01 ff"),
        (
            Message::LaneToken(LaneTicket { lane: 3, token: LaneToken([0x5e; 16]) }),
            "00000012 0008  0003 5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e",
        ),
        (Message::Detach(Empty), "00000000 0009"),
        (Message::Detached(Empty), "00000000 000a"),
        (Message::Refused(Refusal::new(Status::Busy, "no")), "00000006 000c  0003 0002 6e6f"),
        (Message::Goodbye(Refusal::new(Status::ShuttingDown, "")), "00000004 000e  0008 0000"),
        (Message::KeepAlive(Pulse { sequence: 9 }), "00000004 0010  00000009"),
        (Message::KeepAliveAck(Pulse { sequence: 9 }), "00000004 0011  00000009"),
        (Message::Describe(Empty), "00000000 0013"),
        (
            Message::Described(facts()),
            "0000006a 0014  0006 6b6165727564 0004 66726f67 0001 36  0001 \
             0006 6d6c78345f30 01 0000 0000 0000 0000 0000 0006 307831356233 0006 307831303033 \
             0001  0001 70 0001 38 0001 34 0000 0000 \
             000a 496e66696e6942616e64 0000 0000 0000 0003 307831 0000 0000 0000 0000 0000 0000 00 01",
        ),
    ]
}

#[test]
fn the_bytes_of_version_1_are_these() {
    for (message, hex) in golden() {
        let expected: String = hex.split_whitespace().collect();
        let found: String = frame(&message).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, expected, "{}", message.name());
        assert_eq!(decode(&frame(&message)), Ok(message));
    }
}

#[test]
fn every_cut_and_every_surplus_byte_is_noticed() {
    for (message, _) in golden() {
        let whole = frame(&message);
        for end in HEADER_BYTES..whole.len() {
            let cut = decode(&whole[..end]);
            let expected = PeerFault::BadMessage { message: message.name(), source: DecodeError::Truncated };
            assert_eq!(cut, Err(expected), "{end} bytes of {}", message.name());
        }
        let surplus = [&whole[..], &[0]].concat();
        let source = DecodeError::TrailingBytes { count: 1 };
        assert_eq!(decode(&surplus), Err(PeerFault::BadMessage { message: message.name(), source }));
    }
}

#[test]
fn an_unknown_message_is_named_by_its_number() {
    for kind in [0, 11, 13, 15, 18, 256, u16::MAX] {
        assert_eq!(Message::decode(kind, &[]), Err(PeerFault::UnknownMessage(kind)));
    }
}

fn what_is_wrong(message: &Message) -> &'static str {
    match decode(&frame(message)) {
        Err(PeerFault::BadMessage { source: DecodeError::BadValue { what }, .. }) => what,
        other => panic!("{message:?} became {other:?}"),
    }
}

#[test]
fn windows_must_be_even_and_cover_the_export() {
    let good: [(u64, &[Region]); 4] = [
        (1024, &[(0, 1, 1024)]),
        (1024, &[(0, 1, 4096)]),
        (1536, &[(0, 1, 1024), (1024, 2, 512)]),
        (1 << 63, &[(0, 1, 1 << 62), (1 << 62, 2, 1 << 62)]),
    ];
    for (size, regions) in good {
        let message = Message::Granted(direct(size, regions));
        assert_eq!(decode(&frame(&message)), Ok(message));
    }
    let bad: [(u64, &[Region]); 5] = [
        (1024, &[]),
        (1024, &[(0, 1, 512)]),
        (2048, &[(0, 1, 512), (512, 2, 1536)]),
        (2048, &[(0, 1, 1024), (1024, 2, 512), (1536, 3, 1024)]),
        (4096, &[(0, 1, 1024), (1024, 2, 1024), (2048, 3, 1024)]),
    ];
    for (size, regions) in bad {
        assert_eq!(
            what_is_wrong(&Message::Granted(direct(size, regions))),
            "the regions of a path",
            "{regions:?}"
        );
    }
    for region in [(0, 1, 0), (u64::MAX, 1, 2)] {
        assert_eq!(what_is_wrong(&Message::Granted(direct(512, &[region]))), "the extent of a region");
    }
}

#[test]
fn a_grant_without_paths_or_with_odd_null_regions_is_refused() {
    let none = Grant::Direct { paths: Paths::default() };
    assert_eq!(what_is_wrong(&Message::Granted(granted(512, none))), "the number of paths");
    for regions in [&[(0, 1, 512)][..], &[(0, 1, 512), (512, 2, 512), (1024, 3, 512)]] {
        let null = Grant::Null { paths: list(vec![path(regions)]) };
        assert_eq!(what_is_wrong(&Message::Granted(granted(512, null))), "the regions of a path");
    }
    let staged = Grant::Staged { paths: list(vec![path(&[(0, 1, 512)])]) };
    assert_eq!(what_is_wrong(&Message::Granted(granted(512, staged))), "the regions of a path");
    let mut unknown = frame(&Message::Granted(direct(512, &[(0, 1, 512)])));
    let kind = HEADER_BYTES + 8 + 4 + 16 + 8 + 1 + 8 + 1;
    unknown[kind] = 4;
    let source = DecodeError::BadValue { what: "the kind of a grant" };
    assert_eq!(decode(&unknown), Err(PeerFault::BadMessage { message: "Granted", source }));
}

#[test]
fn sizes_and_times_keep_their_limits() {
    for size in [0, 100, 513] {
        let exports = list(vec![ExportInfo { size, ..export() }]);
        assert_eq!(what_is_wrong(&Message::Exports(Exports { exports, cpu_us: 0 })), "the size of an export");
    }
    let latency = LatencySummary { p50_ns: 2, p90_ns: 1, p99_ns: 3, p999_ns: 3, max_ns: 3 };
    let activity = Some(Activity { latency: Some(latency), ..Activity::default() });
    let exports = list(vec![ExportInfo { activity, ..export() }]);
    assert_eq!(
        what_is_wrong(&Message::Exports(Exports { exports, cpu_us: 0 })),
        "the latencies of an export"
    );
    for (least, preferred) in [(0, 4096), (3, 4096), (1 << 17, 1 << 17), (512, 256), (512, 0), (512, 1 << 26)]
    {
        assert!(BlockSizes { least, preferred }.check().is_err(), "{least} {preferred}");
    }
    for (least, preferred) in [(1, 512), (1 << 16, 1 << 16), (512, 32 << 20)] {
        assert_eq!(BlockSizes { least, preferred }.check(), Ok(()), "{least} {preferred}");
    }
    for (keep_alive, lease) in [(9, 1000), (60_001, 200_000), (1000, 1999), (1000, 3_600_001)] {
        assert!(welcome(keep_alive, lease).check().is_err(), "{keep_alive} {lease}");
    }
    for (oldest, newest) in [(0, 1), (2, 1)] {
        let versions = VersionRange { oldest, newest };
        let hello = Hello { versions, identity: Identity { bytes: [0; 16] }, client: "".into() };
        assert_eq!(what_is_wrong(&Message::Hello(hello)), "the range of versions");
    }
}

#[test]
fn a_name_that_could_fool_a_terminal_is_refused() {
    let mut bytes = frame(&Message::Attach(attach(None)));
    bytes[HEADER_BYTES + 2] = 0x1b;
    let source = DecodeError::BadValue { what: "a text" };
    assert_eq!(decode(&bytes), Err(PeerFault::BadMessage { message: "Attach", source }));
    bytes[HEADER_BYTES + 2] = b'/';
    let source = DecodeError::BadValue { what: "the name of an export" };
    assert_eq!(decode(&bytes), Err(PeerFault::BadMessage { message: "Attach", source }));
}

#[test]
fn the_longest_grant_and_list_fit_their_frames() {
    let regions: Vec<_> = (0..MAX_REGIONS as u64).map(|n| (n << 30, 1, 1 << 30)).collect();
    let mut widest = path(&regions);
    widest.address = "[ff::1]:1".parse().unwrap();
    widest.device = Text::clipped(&"d".repeat(999));
    let paths = list(vec![widest; MAX_PATHS]);
    let message = Message::Granted(granted(1 << 40, Grant::Direct { paths }));
    assert_eq!(frame(&message).len() - HEADER_BYTES, Granted::MAX_BYTES);
    const { assert!(Granted::MAX_BYTES <= MAX_ANSWER_BYTES) };
    assert_eq!(decode(&frame(&message)), Ok(message));

    let name: ExportName = "n".repeat(255).parse().unwrap();
    let long = Text::clipped(&"x".repeat(999));
    let (description, writer, trouble) = (long.clone(), Some(long.clone()), long);
    let widest = ExportInfo { name, description, writer, trouble, ..busy() };
    let message = Message::Exports(Exports { exports: list(vec![widest; MAX_EXPORTS]), cpu_us: u64::MAX });
    assert_eq!(frame(&message).len() - HEADER_BYTES, Exports::MAX_BYTES);
    assert_eq!(decode(&frame(&message)), Ok(message));
}

fn text<const N: usize>() -> impl Strategy<Value = Text<N>> {
    any::<String>().prop_map(|text| Text::clipped(&text))
}

fn name() -> impl Strategy<Value = ExportName> {
    "[a-zかえる. -]{1,60}".prop_map(|name| name.parse().unwrap())
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<std::net::IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn fabric() -> impl Strategy<Value = FabricKind> {
    prop_oneof![Just(FabricKind::Verbs), Just(FabricKind::Tcp), Just(FabricKind::Sim)]
}

fn status() -> impl Strategy<Value = Status> {
    (1u16..).prop_map(|code| Status::from_code(code).unwrap())
}

fn blocks() -> impl Strategy<Value = BlockSizes> {
    (0u32..=16, 0u32..=9).prop_map(|(least, more)| BlockSizes {
        least: 1 << least,
        preferred: 1 << (least.max(9) + more).min(25),
    })
}

fn offer() -> impl Strategy<Value = FabricOffer> {
    (fabric(), address(), text()).prop_map(|(fabric, address, device)| FabricOffer {
        fabric,
        address,
        device,
    })
}

fn info() -> impl Strategy<Value = ExportInfo> {
    let kind = prop_oneof![
        Just(ExportKind::Ram),
        Just(ExportKind::File),
        Just(ExportKind::Disk),
        Just(ExportKind::Null)
    ];
    let texts = (text(), option::of(text()), text());
    (name(), kind, 1u64..1 << 40, any::<[bool; 2]>(), blocks(), texts, option::of(activity())).prop_map(
        |(name, kind, units, [read_only, volatile], blocks, texts, activity)| {
            let (description, writer, trouble) = texts;
            ExportInfo {
                name,
                kind,
                size: units * u64::from(blocks.least),
                read_only,
                blocks,
                volatile,
                description,
                writer,
                activity,
                trouble,
            }
        },
    )
}

fn activity() -> impl Strategy<Value = Activity> {
    let latency = any::<[u64; 5]>().prop_map(|mut times| {
        times.sort_unstable();
        let [p50_ns, p90_ns, p99_ns, p999_ns, max_ns] = times;
        LatencySummary { p50_ns, p90_ns, p99_ns, p999_ns, max_ns }
    });
    (any::<u16>(), any::<[u64; 7]>(), any::<Option<u64>>(), option::of(latency)).prop_map(
        |(lanes, counts, last_answer_ms, latency)| {
            let [reads, writes, others, bytes_read, bytes_written, errors, in_flight] = counts;
            Activity {
                lanes,
                reads,
                writes,
                others,
                bytes_read,
                bytes_written,
                errors,
                in_flight,
                last_answer_ms,
                latency,
            }
        },
    )
}

/// Windows over `size` bytes at any address.
fn any_path(size: u64, null: bool) -> impl Strategy<Value = Path> {
    (fabric(), address(), text(), 1u64..20, any::<[u32; 2]>()).prop_map(
        move |(fabric, address, device, count, [start, key])| {
            let window = if null { size.min(512) } else { size.div_ceil(count) };
            let count = if null { 2 } else { size.div_ceil(window) };
            let region = |n| RegionInfo { address: u64::from(start) + n * window, key, length: window };
            Path { fabric, address, device, regions: list((0..count).map(region).collect()) }
        },
    )
}

fn any_granted() -> impl Strategy<Value = Granted> {
    (blocks(), 1u64..1 << 30, any::<bool>())
        .prop_flat_map(|(blocks, units, null)| {
            let size = units * u64::from(blocks.least);
            (
                Just((blocks, size, null)),
                vec(any_path(size, null), 1..=MAX_PATHS),
                any::<(u64, u32, [u8; 16])>(),
            )
        })
        .prop_map(|((blocks, size, null), paths, (session, epoch, boot_id))| Granted {
            session: SessionId(session),
            epoch: Epoch(epoch),
            boot_id: BootId(boot_id),
            size,
            read_only: null,
            blocks,
            volatile: !null,
            grant: if null {
                Grant::Null { paths: list(paths) }
            } else {
                Grant::Direct { paths: list(paths) }
            },
        })
}

fn any_welcome() -> impl Strategy<Value = Welcome> {
    (1u16.., text(), any::<[u8; 16]>(), 10u32..=60_000, 2u32..60, vec(offer(), 0..=MAX_PATHS)).prop_map(
        |(version, server, boot_id, keep_alive_ms, times, fabrics)| Welcome {
            version,
            server,
            boot_id: BootId(boot_id),
            keep_alive_ms,
            lease_ms: keep_alive_ms * times,
            fabrics: list(fabrics),
        },
    )
}

fn any_hello() -> impl Strategy<Value = Hello> {
    (1u16..=u16::MAX, any::<u16>(), any::<[u8; 16]>(), text()).prop_map(|(oldest, newest, bytes, client)| {
        Hello {
            versions: VersionRange { oldest, newest: newest.max(oldest) },
            identity: Identity { bytes },
            client,
        }
    })
}

fn any_facts() -> impl Strategy<Value = HostFacts> {
    let said = || vec(text::<MAX_FACT_BYTES>(), 25);
    let port = (said(), any::<u8>(), 0..=MAX_PCI_NODES, any::<[bool; 2]>()).prop_map(
        |(said, number, nodes, [roce_v1, roce_v2])| {
            let mut said = said.into_iter();
            let mut next = || said.next().unwrap();
            let node = PciFacts {
                address: next(),
                speed: next(),
                width: next(),
                max_speed: next(),
                max_width: next(),
            };
            PortFacts {
                device: next(),
                number,
                parent: next(),
                node_type: next(),
                firmware: next(),
                psid: next(),
                node_guid: next(),
                pci_vendor: next(),
                pci_device: next(),
                pci: list(vec![node; nodes]),
                link_layer: next(),
                state: next(),
                phys_state: next(),
                rate: next(),
                lid: next(),
                sm_lid: next(),
                mtu: next(),
                mode: next(),
                interface: next(),
                interface_mtu: next(),
                interface_speed: next(),
                roce_v1,
                roce_v2,
            }
        },
    );
    (text(), text(), text(), vec(port, 0..4)).prop_map(|(software, host, kernel, ports)| HostFacts {
        software,
        host,
        kernel,
        ports: list(ports),
    })
}

fn any_message() -> impl Strategy<Value = Message> {
    let refusal = || (status(), text()).prop_map(|(status, text)| Refusal { status, text });
    let pulse = || any::<u32>().prop_map(|sequence| Pulse { sequence });
    let attach = (name(), any::<[bool; 2]>(), option::of(any::<u64>())).prop_map(
        |(export, [read_only, steal], resume)| Attach {
            export,
            read_only,
            steal,
            resume: resume.map(SessionId),
        },
    );
    prop_oneof![
        any_hello().prop_map(Message::Hello),
        any_welcome().prop_map(Message::Welcome),
        (vec(info(), 0..20), any::<u64>())
            .prop_map(|(exports, cpu_us)| Message::Exports(Exports { exports: list(exports), cpu_us })),
        attach.prop_map(Message::Attach),
        any_granted().prop_map(Message::Granted),
        (any::<u8>(), fabric()).prop_map(|(path, fabric)| Message::OpenLane(OpenLane { path, fabric })),
        any::<(u16, [u8; 16])>()
            .prop_map(|(lane, token)| Message::LaneToken(LaneTicket { lane, token: LaneToken(token) })),
        refusal().prop_map(Message::Refused),
        refusal().prop_map(Message::Goodbye),
        pulse().prop_map(Message::KeepAlive),
        pulse().prop_map(Message::KeepAliveAck),
        any_facts().prop_map(Message::Described),
        prop_oneof![
            Just(Message::List(Empty)),
            Just(Message::Describe(Empty)),
            Just(Message::Detach(Empty)),
            Just(Message::Detached(Empty))
        ],
    ]
}

proptest! {
    #[test]
    fn every_message_survives_the_wire(message in any_message()) {
        let bytes = frame(&message);
        prop_assert!(bytes.len() - HEADER_BYTES <= message.sender().limit());
        prop_assert_eq!(decode(&bytes), Ok(message));
    }

    #[test]
    fn a_cut_message_is_an_error(message in any_message(), cut in any::<prop::sample::Index>()) {
        let bytes = frame(&message);
        prop_assume!(bytes.len() > HEADER_BYTES);
        let end = HEADER_BYTES + cut.index(bytes.len() - HEADER_BYTES);
        prop_assert!(decode(&bytes[..end]).is_err());
    }

    #[test]
    fn garbage_never_panics_and_what_is_taken_means_itself(kind in 0u16..22, body in vec(any::<u8>(), 0..300)) {
        if let Ok(message) = Message::decode(kind, &body) {
            prop_assert_eq!(&frame(&message)[HEADER_BYTES..], &body[..]);
        }
    }

    #[test]
    fn a_damaged_message_never_panics_and_what_is_taken_means_itself(
        message in any_message(), at in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let mut bytes = frame(&message);
        prop_assume!(bytes.len() > HEADER_BYTES);
        let at = HEADER_BYTES + at.index(bytes.len() - HEADER_BYTES);
        bytes[at] ^= flip;
        if let Ok(other) = decode(&bytes) {
            prop_assert_eq!(frame(&other), bytes);
        }
    }
}
