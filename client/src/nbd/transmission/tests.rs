use super::super::proto::{MAX_REQUEST, STATE_HOLE, STATE_ZERO};
use super::*;
use proptest::prelude::*;

const KIB: u64 = 1024;
const GIB: u64 = 1 << 30;

/// Every flag of a writable export that offers everything.
fn all_flags() -> TransmissionFlags {
    TransmissionFlags::from_bits(0xffff).without(TransmissionFlags::READ_ONLY)
}

fn limits(size: u64) -> ExportLimits {
    ExportLimits { size, flags: all_flags(), base_allocation: true, min_block: 1, max_request: MAX_REQUEST }
}

fn request(command: Command, offset: u64, length: u32) -> Request {
    Request { cookie: 7, command, flags: CommandFlags::NONE, offset, length }
}

fn check(command: Command, offset: u64, length: u32, size: u64) -> Result<(), NbdError> {
    validate(&request(command, offset, length), &limits(size))
}

const RANGED: [Command; 6] = [
    Command::Read,
    Command::Write,
    Command::Trim,
    Command::Cache,
    Command::WriteZeroes,
    Command::BlockStatus,
];

/// A header from its fields, written down independently of the parser.
fn header(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> [u8; 28] {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.try_into().unwrap()
}

#[test]
fn a_write_request_parses_from_golden_bytes() {
    let bytes = [
        0x25, 0x60, 0x95, 0x13, // magic
        0x00, 0x01, // FUA
        0x00, 0x01, // write
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, // cookie
        0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x10, 0x00, // offset: 2 TiB + 4 KiB
        0x00, 0x00, 0x20, 0x00, // length: 8 KiB
    ];
    let expected = Request {
        cookie: 0x0102_0304_0506_0708,
        command: Command::Write,
        flags: CommandFlags::FUA,
        offset: (2 << 40) + 4 * KIB,
        length: 8192,
    };
    assert_eq!(parse_request(&bytes), Ok(expected));
    assert_eq!(expected.payload(), 8192);
}

#[test]
fn only_a_write_has_a_payload() {
    for command in RANGED.into_iter().chain([Command::Disconnect, Command::Flush]) {
        let expected = if command == Command::Write { 512 } else { 0 };
        assert_eq!(request(command, 0, 512).payload(), expected, "{command:?}");
    }
}

#[test]
fn a_wrong_magic_ends_the_connection() {
    let mut bytes = header(0, 0, 1, 0, 512);
    bytes[0] = 0x26;
    let error = parse_request(&bytes).unwrap_err();
    assert_eq!(error, Malformed::BadMagic { magic: 0x2660_9513 });
    assert_eq!(error.reply(), None);
}

#[test]
fn an_unknown_command_is_answered_with_its_cookie() {
    let error = parse_request(&header(0, 8, 99, 0, 512)).unwrap_err();
    assert_eq!(error, Malformed::UnknownCommand { cookie: 99, command: 8 });
    assert_eq!(error.reply(), Some((99, NbdError::Inval)));
}

#[test]
fn every_command_number_is_that_of_the_specification() {
    use Command::*;
    let numbered = [Read, Write, Disconnect, Flush, Trim, Cache, WriteZeroes, BlockStatus];
    for (number, command) in numbered.into_iter().enumerate() {
        assert_eq!(Command::from_wire(number as u16), Some(command));
        assert_eq!(command as usize, number);
    }
    assert_eq!(Command::from_wire(8), None);
}

#[test]
fn the_last_byte_is_reachable_and_the_next_one_is_not() {
    for size in [1, 511, 513, 4095, 241_059, (1 << 40) + 1, (2 << 40) - 1, (2 << 40) + 1, u64::MAX] {
        for command in RANGED {
            assert_eq!(check(command, size - 1, 1, size), Ok(()), "{command:?} at {size}");
            let beyond = match command {
                Command::Write | Command::WriteZeroes => NbdError::NoSpc,
                _ => NbdError::Inval,
            };
            assert_eq!(check(command, size - 1, 2, size), Err(beyond), "{command:?} at {size}");
            assert_eq!(check(command, size, 1, size), Err(beyond), "{command:?} at {size}");
            assert!(check(command, u64::MAX, u32::MAX - 1, size).is_err());
        }
    }
}

#[test]
fn payloads_end_at_the_maximum_and_other_lengths_do_not() {
    let size = 10 * GIB;
    for command in [Command::Read, Command::Write] {
        assert_eq!(check(command, 0, MAX_REQUEST, size), Ok(()));
        assert_eq!(check(command, 0, MAX_REQUEST + 1, size), Err(NbdError::Inval));
        assert_eq!(check(command, 0, u32::MAX, size), Err(NbdError::Inval));
    }
    for command in [Command::Trim, Command::Cache, Command::WriteZeroes, Command::BlockStatus] {
        assert_eq!(check(command, 0, u32::MAX, size), Ok(()), "{command:?}");
        assert_eq!(check(command, 512, u32::MAX - 511, size), Ok(()), "{command:?}");
    }
}

#[test]
fn an_empty_range_is_refused() {
    for command in RANGED {
        assert_eq!(check(command, 0, 0, GIB), Err(NbdError::Inval), "{command:?}");
    }
}

#[test]
fn an_unaligned_range_is_refused() {
    let limits = ExportLimits { min_block: 4096, ..limits(GIB) };
    for command in RANGED {
        assert_eq!(validate(&request(command, 4096, 8192), &limits), Ok(()));
        assert_eq!(validate(&request(command, 512, 4096), &limits), Err(NbdError::Inval));
        assert_eq!(validate(&request(command, 4096, 512), &limits), Err(NbdError::Inval));
    }
    let unset = ExportLimits { min_block: 0, ..limits };
    assert_eq!(validate(&request(Command::Read, 3, 5), &unset), Ok(()));
}

#[test]
fn a_read_only_export_refuses_every_change_with_eperm() {
    let read_only = ExportLimits {
        flags: TransmissionFlags::HAS_FLAGS.union(TransmissionFlags::READ_ONLY),
        ..limits(GIB)
    };
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        assert_eq!(validate(&request(command, 0, 512), &read_only), Err(NbdError::Perm), "{command:?}");
    }
    for command in [Command::Read, Command::BlockStatus] {
        assert_eq!(validate(&request(command, 0, 512), &read_only), Ok(()), "{command:?}");
    }
}

#[test]
fn a_command_that_was_not_offered_is_refused() {
    for (command, flag) in [
        (Command::Flush, TransmissionFlags::SEND_FLUSH),
        (Command::Trim, TransmissionFlags::SEND_TRIM),
        (Command::Cache, TransmissionFlags::SEND_CACHE),
        (Command::WriteZeroes, TransmissionFlags::SEND_WRITE_ZEROES),
    ] {
        let length = if command == Command::Flush { 0 } else { 512 };
        let request = request(command, 0, length);
        assert_eq!(validate(&request, &limits(GIB)), Ok(()), "{command:?}");
        let without = ExportLimits { flags: all_flags().without(flag), ..limits(GIB) };
        assert_eq!(validate(&request, &without), Err(NbdError::Inval), "{command:?}");
    }
    let no_context = ExportLimits { base_allocation: false, ..limits(GIB) };
    assert_eq!(validate(&request(Command::BlockStatus, 0, 512), &no_context), Err(NbdError::Inval));
}

#[test]
fn each_flag_is_good_only_where_it_is_documented() {
    use Command::*;
    let homes: [(CommandFlags, &[Command]); 7] = [
        (CommandFlags::FUA, &[Read, Write, Trim, Cache, WriteZeroes, BlockStatus]),
        (CommandFlags::NO_HOLE, &[WriteZeroes]),
        (CommandFlags::DF, &[Read]),
        (CommandFlags::REQ_ONE, &[BlockStatus]),
        (CommandFlags::FAST_ZERO, &[WriteZeroes]),
        (CommandFlags::PAYLOAD_LEN, &[]),
        (CommandFlags::from_bits(1 << 15), &[]),
    ];
    for (flag, homes) in homes {
        for command in RANGED {
            let request = Request { flags: flag, ..request(command, 0, 512) };
            let expected = if homes.contains(&command) { Ok(()) } else { Err(NbdError::Inval) };
            assert_eq!(validate(&request, &limits(GIB)), expected, "{flag:?} on {command:?}");
        }
    }
}

#[test]
fn a_flag_that_was_not_offered_is_refused() {
    for (command, flag, offer) in [
        (Command::Write, CommandFlags::FUA, TransmissionFlags::SEND_FUA),
        (Command::Read, CommandFlags::DF, TransmissionFlags::SEND_DF),
        (Command::WriteZeroes, CommandFlags::FAST_ZERO, TransmissionFlags::SEND_FAST_ZERO),
    ] {
        let without = ExportLimits { flags: all_flags().without(offer), ..limits(GIB) };
        let request = Request { flags: flag, ..request(command, 0, 512) };
        assert_eq!(validate(&request, &without), Err(NbdError::Inval), "{flag:?}");
    }
}

#[test]
fn flush_has_no_range_and_a_disconnect_always_passes() {
    let fua = Request { flags: CommandFlags::FUA, ..request(Command::Flush, 0, 0) };
    assert_eq!(validate(&fua, &limits(GIB)), Ok(()));
    assert_eq!(check(Command::Flush, 512, 0, GIB), Err(NbdError::Inval));
    assert_eq!(check(Command::Flush, 0, 512, GIB), Err(NbdError::Inval));
    let odd = Request { flags: CommandFlags::from_bits(!0), ..request(Command::Disconnect, 1, 1) };
    assert_eq!(validate(&odd, &limits(0)), Ok(()));
}

#[test]
fn simple_replies_are_golden() {
    let good = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34];
    assert_eq!(simple_reply(0x1234, Ok(())), good);
    assert_eq!(ReplyHeader::simple(0x1234, Ok(())).as_bytes(), good);
    let bad = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 108, 0, 0, 0, 0, 0, 0, 0x12, 0x34];
    assert_eq!(simple_reply(0x1234, Err(NbdError::Shutdown)), bad);
}

/// The 20 bytes before the payload of a chunk with cookie 0x1234.
fn golden_chunk(flags: u8, kind: [u8; 2], payload: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef, 0, flags];
    bytes.extend(kind);
    bytes.extend([0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    bytes.extend(((payload.len() + data) as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn data_and_hole_chunks_are_golden() {
    let offset = [0, 0, 1, 0, 0, 0, 2, 0];
    let at = (1 << 40) + 512;
    let data = ReplyHeader::offset_data(0x1234, at, 4096, true);
    assert_eq!(data.as_bytes(), golden_chunk(1, [0, 1], &offset, 4096));
    let more = ReplyHeader::offset_data(0x1234, at, 4096, false);
    assert_eq!(more.as_bytes(), golden_chunk(0, [0, 1], &offset, 4096));
    let hole = ReplyHeader::offset_hole(0x1234, at, 4096, false);
    let payload = [&offset[..], &[0, 0, 0x10, 0]].concat();
    assert_eq!(hole.as_bytes(), golden_chunk(0, [0, 2], &payload, 0));
    assert_eq!(ReplyHeader::done(0x1234).as_bytes(), golden_chunk(1, [0, 0], &[], 0));
}

#[test]
fn error_chunks_are_golden() {
    let plain = ReplyHeader::error(0x1234, NbdError::Io, "");
    assert_eq!(plain.as_bytes(), golden_chunk(1, [0x80, 1], &[0, 0, 0, 5, 0, 0], 0));
    let text = ReplyHeader::error(0x1234, NbdError::Inval, "odd");
    assert_eq!(text.as_bytes(), golden_chunk(1, [0x80, 1], b"\0\0\0\x16\0\x03odd", 0));
    let at = ReplyHeader::error_offset(0x1234, NbdError::NoSpc, "full", 0x200, false);
    let payload = b"\0\0\0\x1c\0\x04full\0\0\0\0\0\0\x02\0";
    assert_eq!(at.as_bytes(), golden_chunk(0, [0x80, 2], payload, 0));
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let long = "蛙".repeat(100);
    let error = ReplyHeader::error(0x1234, NbdError::Io, &long);
    let payload = [&[0, 0, 0, 5, 0, 36], "蛙".repeat(12).as_bytes()].concat();
    assert_eq!(error.as_bytes(), golden_chunk(1, [0x80, 1], &payload, 0));
    let at = ReplyHeader::error_offset(0x1234, NbdError::Io, &long, 1, true);
    let payload = [&[0, 0, 0, 5, 0, 30], "蛙".repeat(10).as_bytes(), &[0, 0, 0, 0, 0, 0, 0, 1]].concat();
    assert_eq!(at.as_bytes(), golden_chunk(1, [0x80, 2], &payload, 0));
    assert_eq!(at.as_bytes().len(), REPLY_HEADER_MAX);
}

#[test]
fn block_status_chunks_are_golden_and_cut_to_what_fits() {
    let hole = Extent { length: 4096, status: STATE_HOLE | STATE_ZERO };
    let data = Extent { length: 512, status: 0 };
    let one = ReplyHeader::block_status(0x1234, 1, hole, &[]);
    let payload = [0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0, 0, 3];
    assert_eq!(one.as_bytes(), golden_chunk(1, [0, 5], &payload, 0));

    let many = ReplyHeader::block_status(0x1234, 1, hole, &[data; 9]);
    let mut payload = payload.to_vec();
    for _ in 1..REPLY_EXTENTS_MAX {
        payload.extend([0, 0, 2, 0, 0, 0, 0, 0]);
    }
    assert_eq!(many.as_bytes(), golden_chunk(1, [0, 5], &payload, 0));
    assert_eq!(many.as_bytes().len(), REPLY_HEADER_MAX);
}

/// The rules of the specification once more, slowly: 128-bit arithmetic, no shared helpers.
fn oracle(request: &Request, limits: &ExportLimits) -> Result<(), u32> {
    let (command, flags) = (request.command as u16, request.flags.bits());
    let offers = |bit: u16| limits.flags.bits() >> bit & 1 == 1;
    if command == 2 {
        return Ok(());
    }
    if offers(1) && [1, 4, 6].contains(&command) {
        return Err(1);
    }
    let offered = match command {
        3 => offers(2),
        4 => offers(5),
        5 => offers(10),
        6 => offers(6),
        7 => limits.base_allocation,
        _ => true,
    };
    let flag_ok = |bit: u16| match bit {
        0 => offers(3),
        1 => command == 6,
        2 => command == 0 && offers(7),
        3 => command == 7,
        4 => command == 6 && offers(11),
        _ => false,
    };
    if !offered || (0..16).any(|bit| flags >> bit & 1 == 1 && !flag_ok(bit)) {
        return Err(22);
    }
    let (offset, length) = (u128::from(request.offset), u128::from(request.length));
    if command == 3 {
        return if offset + length == 0 { Ok(()) } else { Err(22) };
    }
    let block = u128::from(limits.min_block).max(1);
    let oversize = command < 2 && length > u128::from(limits.max_request);
    if length == 0 || length % block != 0 || offset % block != 0 || oversize {
        return Err(22);
    }
    if offset + length > u128::from(limits.size) {
        return Err(if command == 1 || command == 6 { 28 } else { 22 });
    }
    Ok(())
}

/// Numbers near the edges where arithmetic goes wrong.
fn edgy() -> impl Strategy<Value = u64> {
    let edge = prop_oneof![
        Just(0),
        Just(512),
        Just(4096),
        Just(u64::from(MAX_REQUEST)),
        Just(1 << 32),
        Just(2 << 40),
        Just(u64::MAX)
    ];
    prop_oneof![3 => (edge, -2i64..=2).prop_map(|(e, d)| e.wrapping_add_signed(d)), 1 => any::<u64>()]
}

/// Transmission flags with most things offered, or anything at all.
fn some_flags() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0xfffd), any::<u16>().prop_map(|bits| bits & !2), any::<u16>()]
}

/// No command flag, one, or anything.
fn some_command_flags() -> impl Strategy<Value = u16> {
    prop_oneof![3 => Just(0), 1 => (0u16..16).prop_map(|bit| 1 << bit), 1 => any::<u16>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn validate_agrees_with_the_oracle(
        command in 0u16..8,
        flags in some_command_flags(),
        offset in edgy(),
        length in edgy(),
        size in edgy(),
        export in some_flags(),
        base_allocation in any::<bool>(),
        shift in 0u32..=16,
        max_request in prop_oneof![Just(MAX_REQUEST), any::<u32>()],
        align in any::<bool>(),
    ) {
        let mask = if align { !((1u64 << shift) - 1) } else { !0 };
        let request = Request {
            cookie: 1,
            command: Command::from_wire(command).unwrap(),
            flags: CommandFlags::from_bits(flags),
            offset: offset & mask,
            length: (length & mask) as u32,
        };
        let limits = ExportLimits {
            size,
            flags: TransmissionFlags::from_bits(export),
            base_allocation,
            min_block: 1 << shift,
            max_request,
        };
        prop_assert_eq!(validate(&request, &limits).map_err(NbdError::wire), oracle(&request, &limits));
    }

    #[test]
    fn any_header_parses_to_what_it_says_or_is_malformed(
        mut bytes in any::<[u8; 28]>(), right_magic in any::<bool>(),
    ) {
        if right_magic {
            bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            bytes[6] = 0;
            bytes[7] &= 15;
        }
        match parse_request(&bytes) {
            Ok(r) => {
                let again = header(r.flags.bits(), r.command as u16, r.cookie, r.offset, r.length);
                prop_assert_eq!(again, bytes);
            }
            Err(Malformed::BadMagic { magic }) => prop_assert_ne!(magic, REQUEST_MAGIC),
            Err(Malformed::UnknownCommand { cookie, command }) => {
                prop_assert!(command > 7);
                prop_assert_eq!(cookie.to_be_bytes(), &bytes[8..16]);
            }
        }
    }

    #[test]
    fn a_reply_header_says_its_own_length(
        message in ".{0,80}", offset in any::<u64>(), rest in 0usize..20,
    ) {
        let extent = Extent { length: 1, status: 0 };
        for reply in [
            ReplyHeader::error(1, NbdError::Io, &message),
            ReplyHeader::error_offset(1, NbdError::Io, &message, offset, true),
            ReplyHeader::block_status(1, 1, extent, &vec![extent; rest]),
            ReplyHeader::offset_hole(1, offset, 1, true),
            ReplyHeader::done(1),
        ] {
            let bytes = reply.as_bytes();
            let payload = u32::from_be_bytes(bytes[16..20].try_into().unwrap());
            prop_assert_eq!(bytes.len(), CHUNK_HEADER_BYTES + payload as usize);
        }
    }
}
