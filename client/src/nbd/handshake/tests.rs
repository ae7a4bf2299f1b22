use super::super::proto::{
    OPT_EXTENDED_HEADERS, OPT_PEEK_EXPORT, OPTION_REPLY_HEADER_BYTES, REP_ERR_POLICY, REP_FLAG_ERROR,
};
use super::*;
use proptest::prelude::*;

const FIXED: u32 = 1;
const NO_ZEROES: u32 = 2;
const BLOCK: BlockSizes = BlockSizes { min: 1, preferred: 4096, max: 32 << 20 };

fn export(name: &str) -> ExportInfo {
    ExportInfo {
        name: name.into(),
        description: String::new(),
        size: 0x1_0000_0200,
        flags: TransmissionFlags::SEND_FLUSH.union(TransmissionFlags::SEND_DF),
        block: BLOCK,
    }
}

/// Two exports; the first, "ram", has a description.
fn exports() -> Exports {
    let ram = ExportInfo { description: "8 GiB".into(), ..export("ram") };
    Exports::new(vec![ram, export("蛙")]).unwrap()
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn counted(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

fn info_data(name: &str, requests: &[u16]) -> Vec<u8> {
    let mut data = counted(name.as_bytes());
    data.extend((requests.len() as u16).to_be_bytes());
    requests.iter().for_each(|request| data.extend(request.to_be_bytes()));
    data
}

fn go(name: &str) -> Vec<u8> {
    option(OPT_GO, &info_data(name, &[]))
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = counted(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(counted(query.as_bytes())));
    data
}

/// Feeds the input in pieces of the given sizes (the last repeats) and gives what was sent after the
/// greeting, how it ended, and how much was taken. Checks on the way that the buffers stay bounded.
fn run_pieces(
    exports: Exports,
    input: &[u8],
    mut pieces: impl Iterator<Item = usize>,
) -> (Vec<u8>, Next, usize) {
    let mut handshake = Handshake::new(exports);
    let (mut sent, mut at) = (Vec::new(), 0);
    let outcome = loop {
        match handshake.poll() {
            Next::Send(bytes) => {
                assert!(bytes.len() < 64 << 10, "an answer of {} bytes", bytes.len());
                sent.extend(bytes);
            }
            Next::Receive if at == input.len() => break Next::Receive,
            Next::Receive => {
                let end = input.len().min(at + pieces.next().unwrap_or(1).max(1));
                let taken = handshake.receive(&input[at..end]);
                assert!(taken > 0 || handshake.poll() != Next::Receive, "stuck at {at}");
                at += taken;
                assert!(handshake.input.len() <= MAX_OPTION_DATA as usize);
                assert!(handshake.input.capacity() <= 4 * MAX_OPTION_DATA as usize);
            }
            ended => break ended,
        }
    };
    assert_eq!(&sent[..GREETING.len()], GREETING);
    (sent.split_off(GREETING.len()), outcome, at)
}

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";

fn run(input: &[u8]) -> (Vec<u8>, Next) {
    let (sent, outcome, _) = run_pieces(exports(), input, std::iter::repeat(input.len()));
    (sent, outcome)
}

/// What a fixed newstyle client gets for these options.
fn haggle(options: &[Vec<u8>]) -> (Vec<(u32, u32, Vec<u8>)>, Next) {
    let input = [&FIXED.to_be_bytes()[..], &options.concat()].concat();
    let (sent, outcome) = run(&input);
    (replies(&sent), outcome)
}

/// Takes option replies apart: option, reply type, data.
fn replies(mut sent: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !sent.is_empty() {
        assert!(sent.len() >= OPTION_REPLY_HEADER_BYTES);
        assert_eq!(sent.get_u64(), 0x3e889045565a9);
        let (option, reply, length) = (sent.get_u32(), sent.get_u32(), sent.get_u32() as usize);
        replies.push((option, reply, sent.copy_to_bytes(length).to_vec()));
    }
    replies
}

fn negotiated(outcome: Next) -> Negotiated {
    match outcome {
        Next::Go(negotiated) => negotiated,
        other => panic!("no transmission, but {other:?}"),
    }
}

/// Runs one option and a good `GO` after it; gives the replies to the option.
fn then_go_works(bytes: Vec<u8>) -> Vec<(u32, u32, Vec<u8>)> {
    let (mut replies, outcome) = haggle(&[bytes, go("ram")]);
    assert_eq!(negotiated(outcome).export, "ram");
    replies.truncate(replies.len() - 3);
    replies
}

/// The one reply to an option, which must be an error with a text, after which a `GO` must work.
fn refused(bytes: Vec<u8>) -> u32 {
    let replies = then_go_works(bytes);
    assert_eq!(replies.len(), 1, "{replies:?}");
    assert!(!replies[0].2.is_empty() && std::str::from_utf8(&replies[0].2).is_ok(), "a text for the human");
    replies[0].1
}

// ---- Golden bytes ----

#[test]
fn the_greeting_is_golden_and_comes_first() {
    let mut handshake = Handshake::new(exports());
    assert_eq!(handshake.receive(&[0; 4]), 0, "nothing is taken before the greeting went out");
    assert_eq!(handshake.poll(), Next::Send(GREETING.into()));
    assert_eq!(handshake.poll(), Next::Receive);
    assert_eq!(handshake.receive(&[0; 4]), 4);
}

#[test]
fn export_name_is_golden_with_and_without_zeroes() {
    let answer = b"\0\0\0\x01\0\0\x02\0\0\x05";
    for fixed in [0, FIXED] {
        let bytes = option(OPT_EXPORT_NAME, "蛙".as_bytes());
        let (sent, outcome) = run(&[&fixed.to_be_bytes(), &bytes[..]].concat());
        assert_eq!(sent, [&answer[..], &[0; 124]].concat());
        let expected = Negotiated {
            export: "蛙".into(),
            flags: TransmissionFlags::HAS_FLAGS.union(TransmissionFlags::SEND_FLUSH),
            structured: false,
            base_allocation: false,
        };
        assert_eq!(negotiated(outcome), expected);
        let (sent, _) = run(&[&(fixed | NO_ZEROES).to_be_bytes(), &bytes[..]].concat());
        assert_eq!(sent, answer);
    }
}

#[test]
fn a_whole_go_is_golden() {
    let input = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x0d\0\0\0\x03ram\0\x02\0\x01\0\x02";
    let (sent, outcome) = run(input);
    let expected = [
        &b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\x01\0\0\x02\0\0\x05"[..],
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x05\0\x01ram",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x07\0\x028 GiB",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0e\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0",
    ];
    assert_eq!(sent, expected.concat());
    assert_eq!(negotiated(outcome).export, "ram");
}

#[test]
fn a_list_is_golden() {
    let (sent, outcome) = run(b"\0\0\0\x01IHAVEOPT\0\0\0\x03\0\0\0\0");
    let expected = [
        &b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x03\0\0\0\x02\0\0\0\x0c\0\0\0\x03ram8 GiB"[..],
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x03\0\0\0\x02\0\0\0\x07\0\0\0\x03\xe8\x9b\x99",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x03\0\0\0\x01\0\0\0\0",
    ];
    assert_eq!(sent, expected.concat());
    assert_eq!(outcome, Next::Receive);
}

#[test]
fn setting_a_meta_context_is_golden() {
    let mut input = b"\0\0\0\x01IHAVEOPT\0\0\0\x08\0\0\0\0IHAVEOPT\0\0\0\x0a\0\0\0\x1e".to_vec();
    input.extend(b"\0\0\0\x03ram\0\0\0\x01\0\0\0\x0fbase:allocation");
    let (sent, _) = run(&input);
    let expected = [
        &b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x08\0\0\0\x01\0\0\0\0"[..],
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x0a\0\0\0\x04\0\0\0\x13\0\0\0\x01base:allocation",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x0a\0\0\0\x01\0\0\0\0",
    ];
    assert_eq!(sent, expected.concat());
}

// ---- Each option ----

#[test]
fn an_abort_is_acknowledged_and_ends_the_session_whatever_its_data() {
    for data in [&[][..], b"bye", &[0; 70_000]] {
        let (replies, outcome) = haggle(&[option(OPT_ABORT, data), go("ram")]);
        assert_eq!(replies, [(OPT_ABORT, REP_ACK, vec![])]);
        assert_eq!(outcome, Next::Aborted);
    }
}

#[test]
fn info_describes_and_the_session_goes_on() {
    let all = [INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE, 77];
    let kinds = |name, requests: &[u16]| -> Vec<u16> {
        let replies = then_go_works(option(OPT_INFO, &info_data(name, requests)));
        let (last, infos) = replies.split_last().unwrap();
        assert_eq!(*last, (OPT_INFO, REP_ACK, vec![]));
        infos.iter().map(|(_, reply, data)| (assert_eq!(*reply, REP_INFO), (&data[..]).get_u16()).1).collect()
    };
    assert_eq!(kinds("ram", &all), [0, 1, 2, 3]);
    assert_eq!(kinds("ram", &[]), [0, 3]);
    assert_eq!(kinds("蛙", &all), [0, 1, 3], "an empty description is not sent");
}

#[test]
fn the_empty_name_is_the_first_export_or_the_one_of_that_name() {
    let (replies, outcome) = haggle(&[option(OPT_GO, &info_data("", &[INFO_NAME]))]);
    assert_eq!(replies[1].2, b"\0\x01ram");
    assert_eq!(negotiated(outcome).export, "ram");
    let named = Exports::new(vec![export("a"), export("")]).unwrap();
    assert_eq!(named.find("").unwrap().name, "");
    assert!(Exports::new(vec![]).unwrap().find("").is_none());
}

#[test]
fn an_unknown_export_is_refused_with_the_names_that_exist() {
    for number in [OPT_INFO, OPT_GO] {
        let replies = then_go_works(option(number, &info_data("rma", &[INFO_BLOCK_SIZE])));
        assert_eq!((replies.len(), replies[0].1), (1, REP_ERR_UNKNOWN));
        let text = String::from_utf8(replies[0].2.clone()).unwrap();
        assert_eq!(text, r#"no export "rma"; there is: "ram", "蛙""#);
    }
}

#[test]
fn an_unknown_or_impossible_export_name_drops_the_connection() {
    for name in [&b"rma"[..], b"ra\0", b"\xff", &[b'x'; 4097]] {
        let (sent, outcome) = run(&[&FIXED.to_be_bytes(), &option(OPT_EXPORT_NAME, name)[..]].concat());
        assert!(sent.is_empty());
        assert!(matches!(outcome, Next::Failed(HandshakeError::ExportName { .. })), "{outcome:?}");
    }
    // A name that is too long is dropped for its header; nobody waits for the rest of it.
    let header = &option(OPT_EXPORT_NAME, &[b'x'; 4097])[..16];
    let (_, outcome) = haggle(&[header.to_vec()]);
    assert!(matches!(outcome, Next::Failed(HandshakeError::ExportName { .. })), "{outcome:?}");
}

#[test]
fn names_up_to_4096_bytes_work_and_longer_ones_are_refused() {
    for name in ["", "a", &"b".repeat(255), &"蛙".repeat(85), &"c".repeat(4096)] {
        let exports = Exports::new(vec![export("other"), export(name)]).unwrap();
        for bytes in [go(name), option(OPT_EXPORT_NAME, name.as_bytes())] {
            let input = [&FIXED.to_be_bytes()[..], &bytes].concat();
            let (_, outcome, _) = run_pieces(exports.clone(), &input, std::iter::repeat(usize::MAX / 2));
            assert_eq!(negotiated(outcome).export, name);
        }
    }
    assert_eq!(refused(go(&"d".repeat(4097))), REP_ERR_INVALID);
    assert_eq!(refused(option(OPT_INFO, &info_data(&"d".repeat(65_530), &[]))), REP_ERR_INVALID);
    assert_eq!(refused(option(OPT_INFO, &info_data(&"d".repeat(65_531), &[]))), REP_ERR_TOO_BIG);
    let (replies, _) = haggle(&[go(&"d".repeat(4096))]);
    assert_eq!(replies[0].1, REP_ERR_UNKNOWN);
    assert!(replies[0].2.len() <= 4096);
}

#[test]
fn malformed_data_at_every_length_is_refused_and_the_session_goes_on() {
    let good = info_data("ram", &[INFO_NAME, INFO_BLOCK_SIZE]);
    for length in 0..good.len() {
        assert_eq!(refused(option(OPT_GO, &good[..length])), REP_ERR_INVALID, "{length} bytes");
    }
    for extra in [1, 2, 3, 100] {
        assert_eq!(refused(option(OPT_INFO, &[&good[..], &vec![0; extra]].concat())), REP_ERR_INVALID);
    }
    for not_a_string in [b"\0\0\0\x01\xff\0\0", b"\0\0\0\x01\0\0\0"] {
        assert_eq!(refused(option(OPT_GO, not_a_string)), REP_ERR_INVALID);
    }
    assert_eq!(refused(option(OPT_GO, b"\xff\xff\xff\xffram\0\0")), REP_ERR_INVALID);
}

#[test]
fn options_without_data_refuse_data() {
    for data in [&[0][..], &[0; 70_000]] {
        assert_eq!(refused(option(OPT_LIST, data)), REP_ERR_INVALID);
        assert_eq!(refused(option(OPT_STRUCTURED_REPLY, data)), REP_ERR_INVALID);
    }
    let (_, outcome) = haggle(&[option(OPT_STRUCTURED_REPLY, &[0]), go("ram")]);
    assert!(!negotiated(outcome).structured);
}

#[test]
fn unknown_options_are_unsupported_and_the_session_goes_on() {
    for number in [0, OPT_PEEK_EXPORT, OPT_STARTTLS, OPT_EXTENDED_HEADERS, 12, 0x7fff_ffff, u32::MAX] {
        for length in [0, 1, 64 << 10, (64 << 10) + 1, 1 << 20] {
            assert_eq!(refused(option(number, &vec![1; length])), REP_ERR_UNSUP, "{number} with {length}");
        }
    }
}

#[test]
fn long_data_is_read_past_up_to_a_limit() {
    for number in [OPT_INFO, OPT_GO, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT] {
        assert_eq!(refused(option(number, &[0; (64 << 10) + 1])), REP_ERR_TOO_BIG);
    }
    assert_eq!(refused(option(OPT_GO, &vec![0; 16 << 20])), REP_ERR_TOO_BIG);
    let header = [b"IHAVEOPT\0\0\0\x07", &((16u32 << 20) + 1).to_be_bytes()[..]].concat();
    let (replies, outcome) = haggle(&[header]);
    assert!(replies.is_empty());
    let expected = HandshakeError::OptionTooLong { option: OPT_GO, length: (16 << 20) + 1 };
    assert_eq!(outcome, Next::Failed(expected));
}

#[test]
fn structured_replies_unlock_df_and_show_in_the_outcome() {
    let (replies, outcome) = haggle(&[option(OPT_STRUCTURED_REPLY, &[]), go("ram")]);
    assert_eq!(replies[0], (OPT_STRUCTURED_REPLY, REP_ACK, vec![]));
    assert_eq!(replies[1].2[10..], [0, 0x85], "the flags that the client is told");
    let with = negotiated(outcome);
    assert!(with.structured && with.flags.contains(TransmissionFlags::SEND_DF));
    let (_, outcome) = haggle(&[go("ram")]);
    assert!(!negotiated(outcome).flags.contains(TransmissionFlags::SEND_DF));
}

#[test]
fn fast_zero_is_not_offered_without_write_zeroes() {
    let fast = TransmissionFlags::SEND_FAST_ZERO;
    let export = ExportInfo { flags: fast, ..export("x") };
    assert!(!export.flags_for(true).contains(fast));
    let zeroes = TransmissionFlags::SEND_WRITE_ZEROES;
    assert!(ExportInfo { flags: fast.union(zeroes), ..export }.flags_for(false).contains(fast));
}

// ---- Metadata contexts ----

fn structured(option_after: Vec<u8>) -> Vec<(u32, u32, Vec<u8>)> {
    let (mut replies, outcome) = haggle(&[option(OPT_STRUCTURED_REPLY, &[]), option_after, go("ram")]);
    negotiated(outcome);
    replies.remove(0);
    replies.truncate(replies.len() - 3);
    replies
}

#[test]
fn meta_contexts_need_structured_replies_first() {
    for number in [OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT] {
        assert_eq!(refused(option(number, &meta_data("ram", &[BASE_ALLOCATION]))), REP_ERR_INVALID);
    }
}

#[test]
fn listing_and_setting_select_by_query() {
    let base = [&[0; 4], BASE_ALLOCATION.as_bytes()].concat();
    let set = [&[0, 0, 0, 1], BASE_ALLOCATION.as_bytes()].concat();
    let cases: [(&[&str], bool, bool); 7] = [
        (&[], true, false),
        (&["base:"], true, false),
        (&["base:allocation"], true, true),
        (&["qemu:dirty-bitmap:x", "base:allocation", "base:allocation"], true, true),
        (&["base:allocations"], false, false),
        (&["qemu:"], false, false),
        (&["", "nonsense"], false, false),
    ];
    for (queries, listed, selected) in cases {
        for (number, found, data) in
            [(OPT_LIST_META_CONTEXT, listed, &base), (OPT_SET_META_CONTEXT, selected, &set)]
        {
            let mut expected = vec![(number, REP_META_CONTEXT, data.clone()); usize::from(found)];
            expected.push((number, REP_ACK, vec![]));
            assert_eq!(structured(option(number, &meta_data("ram", queries))), expected, "{queries:?}");
        }
    }
}

#[test]
fn a_malformed_meta_context_request_is_refused_at_every_length() {
    let good = meta_data("ram", &["base:allocation", "x-y:z"]);
    for length in (0..good.len()).chain([good.len() + 1]) {
        let data = [&good[..], &[0]].concat();
        let replies = structured(option(OPT_SET_META_CONTEXT, &data[..length]));
        assert_eq!((replies.len(), replies[0].1), (1, REP_ERR_INVALID), "{length} bytes");
    }
    let many = [&meta_data("ram", &[])[..7], &[0xff; 4], &[0; 400]].concat();
    assert_eq!(structured(option(OPT_LIST_META_CONTEXT, &many))[0].1, REP_ERR_INVALID);
    let unknown = option(OPT_SET_META_CONTEXT, &meta_data("rma", &[BASE_ALLOCATION]));
    assert_eq!(structured(unknown)[0].1, REP_ERR_UNKNOWN);
}

#[test]
fn a_context_counts_only_for_the_export_and_the_last_request_that_set_it() {
    let set = |name: &str, queries: &[&str]| option(OPT_SET_META_CONTEXT, &meta_data(name, queries));
    let good = || set("ram", &[BASE_ALLOCATION]);
    let list = option(OPT_LIST_META_CONTEXT, &meta_data("ram", &[BASE_ALLOCATION]));
    let info = option(OPT_INFO, &info_data("ram", &[]));
    let cases = [
        (vec![good()], go("ram"), true),
        (vec![good()], option(OPT_EXPORT_NAME, b"ram"), true),
        (vec![good(), info, list.clone()], go("ram"), true),
        (vec![set("", &[BASE_ALLOCATION])], go(""), true),
        (vec![list], go("ram"), false),
        (vec![good()], go("蛙"), false),
        (vec![good()], go(""), false),
        (vec![good(), set("ram", &[])], go("ram"), false),
        (vec![good(), set("rma", &[BASE_ALLOCATION])], go("ram"), false),
        (vec![good(), option(OPT_SET_META_CONTEXT, &[1])], go("ram"), false),
        (vec![good(), option(OPT_SET_META_CONTEXT, &[0; 70_000])], go("ram"), false),
        (vec![set("蛙", &[BASE_ALLOCATION]), good()], go("ram"), true),
    ];
    for (at, (options, last, expected)) in cases.into_iter().enumerate() {
        let structured = option(OPT_STRUCTURED_REPLY, &[]);
        let input = [FIXED.to_be_bytes().to_vec(), structured, options.concat(), last].concat();
        // Zeroes wanted or not, the outcome is what counts here.
        let (_, outcome) = run(&input);
        assert_eq!(negotiated(outcome).base_allocation, expected, "case {at}");
    }
}

// ---- What ends a session ----

#[test]
fn unknown_client_flags_drop_the_connection() {
    for flags in [4, 1 << 31, 7] {
        let (_, outcome) = run(&u32::to_be_bytes(flags));
        assert_eq!(outcome, Next::Failed(HandshakeError::UnknownClientFlags { flags }));
    }
}

#[test]
fn a_wrong_option_magic_drops_the_connection() {
    let (_, outcome) = haggle(&[b"GET / HTTP/1.1\r\n".to_vec()]);
    let magic = u64::from_be_bytes(*b"GET / HT");
    assert_eq!(outcome, Next::Failed(HandshakeError::BadOptionMagic { magic }));
}

#[test]
fn a_client_without_fixed_newstyle_has_only_export_name() {
    let (sent, outcome) = run(&[&[0; 4], &go("ram")[..]].concat());
    assert!(sent.is_empty());
    assert_eq!(outcome, Next::Failed(HandshakeError::NotFixedNewstyle { option: OPT_GO }));
}

#[test]
fn options_are_counted() {
    let mut options = vec![option(12, &[]); MAX_OPTIONS as usize - 1];
    options.push(go("ram"));
    assert!(matches!(haggle(&options).1, Next::Go(_)));
    options.insert(0, option(12, &[]));
    assert_eq!(haggle(&options).1, Next::Failed(HandshakeError::TooManyOptions));
}

#[test]
fn nothing_is_taken_after_the_end_or_while_an_answer_waits() {
    let input = [&FIXED.to_be_bytes()[..], &go("ram"), b"requests"].concat();
    let (_, outcome, taken) = run_pieces(exports(), &input, std::iter::repeat(input.len()));
    negotiated(outcome);
    assert_eq!(taken, input.len() - "requests".len());

    let mut handshake = Handshake::new(exports());
    handshake.poll();
    let list = option(OPT_LIST, &[]);
    let lists = [&FIXED.to_be_bytes()[..], &list, &list].concat();
    assert_eq!(handshake.receive(&lists), 4 + list.len());
    assert_eq!(handshake.receive(&list), 0);
    assert!(matches!(handshake.poll(), Next::Send(_)));
    assert_eq!(handshake.receive(&list), list.len());
}

#[test]
fn the_outcome_stays() {
    let mut handshake = Handshake::new(exports());
    handshake.poll();
    handshake.receive(&[0xff; 4]);
    let first = handshake.poll();
    assert!(matches!(first, Next::Failed(_)));
    assert_eq!(handshake.receive(&[1; 4]), 0);
    assert_eq!(handshake.poll(), first);
}

// ---- Exports ----

#[test]
fn exports_that_cannot_be_told_correctly_are_refused() {
    let refused = |export: ExportInfo| Exports::new(vec![export]).unwrap_err();
    let odd = ExportInfo { size: 241_059, block: BlockSizes { min: 512, ..BLOCK }, ..export("odd") };
    let error = refused(odd);
    assert_eq!(error, ExportError::Size { name: "\"odd\"".into(), size: 241_059, min: 512 });
    assert!(error.to_string().contains("last 419 bytes"), "{error}");
    for name in ["a\0", &"x".repeat(4097)] {
        assert!(matches!(refused(export(name)), ExportError::Text { .. }));
    }
    let described = ExportInfo { description: "x".repeat(4097), ..export("x") };
    assert!(matches!(refused(described), ExportError::Text { .. }));
    let twice = Exports::new(vec![export("x"), export("x")]).unwrap_err();
    assert_eq!(twice, ExportError::Duplicate { name: "\"x\"".into() });
}

#[test]
fn block_sizes_follow_the_specification() {
    let allowed = |min, preferred, max, size| {
        let block = BlockSizes { min, preferred, max };
        Exports::new(vec![ExportInfo { block, size, ..export("x") }]).is_ok()
    };
    for (min, preferred, max, size, expected) in [
        (1, 512, 1 << 20, 1, true),
        (512, 4096, 32 << 20, 512, true),
        (65_536, 65_536, u32::MAX, 65_536, true),
        (1, 4096, 100, 100, true),
        (0, 512, 512, 512, false),
        (3, 512, 513, 513, false),
        (131_072, 131_072, 131_072, 131_072, false),
        (1, 256, 512, 512, false),
        (4096, 512, 4096, 4096, false),
        (512, 768, 1536, 512, false),
        (512, 512, 1000, 512, false),
        (1, 4096, 100, 101, false),
    ] {
        assert_eq!(allowed(min, preferred, max, size), expected, "{min}/{preferred}/{max} at {size}");
    }
}

// ---- Streams ----

/// A client that tries everything before it goes.
fn transcript() -> Vec<u8> {
    [
        (FIXED | NO_ZEROES).to_be_bytes().to_vec(),
        option(OPT_EXTENDED_HEADERS, &[]),
        option(OPT_STARTTLS, &[]),
        option(OPT_STRUCTURED_REPLY, &[]),
        option(OPT_LIST, &[]),
        option(OPT_LIST, b"data"),
        option(OPT_LIST_META_CONTEXT, &meta_data("ram", &[])),
        option(OPT_SET_META_CONTEXT, &meta_data("ram", &["qemu:", BASE_ALLOCATION])),
        option(0x7fff_ffff, &[9; 300]),
        option(OPT_INFO, &info_data("rma", &[INFO_NAME])),
        option(OPT_INFO, &info_data("ram", &[INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE])),
        go("ram"),
    ]
    .concat()
}

#[test]
fn every_truncation_of_a_transcript_just_waits_for_more() {
    let whole = transcript();
    let (all, outcome) = run(&whole);
    let expected = negotiated(outcome);
    assert!(expected.structured && expected.base_allocation);
    for length in 0..whole.len() {
        let (sent, outcome) = run(&whole[..length]);
        assert_eq!(outcome, Next::Receive, "after {length} bytes");
        assert!(all.starts_with(&sent));
    }
}

#[test]
fn every_wrong_byte_of_a_transcript_is_survived() {
    let whole = transcript();
    for at in 0..whole.len() {
        for value in [0, 1, whole[at] ^ 0x80, whole[at].wrapping_add(1), 0xff] {
            let mut broken = whole.clone();
            broken[at] = value;
            run(&broken);
        }
    }
}

#[test]
fn a_byte_at_a_time_is_as_good_as_all_at_once() {
    let whole = [transcript(), b"more".to_vec()].concat();
    let at_once = run_pieces(exports(), &whole, std::iter::repeat(whole.len()));
    assert_eq!(at_once.2, whole.len() - 4);
    assert_eq!(run_pieces(exports(), &whole, std::iter::repeat(1)), at_once);
}

/// Options with plausible and implausible numbers, lengths and contents.
fn some_option() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![4 => 0u32..13, 1 => any::<u32>()];
    let name = prop_oneof![Just("ram"), Just("蛙"), Just(""), Just("rma")];
    let data = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        (name.clone(), proptest::collection::vec(0u16..6, 0..6))
            .prop_map(|(name, asks)| info_data(name, &asks)),
        (
            name,
            proptest::collection::vec(prop_oneof![Just("base:"), Just(BASE_ALLOCATION), Just("q:")], 0..4)
        )
            .prop_map(|(name, queries)| meta_data(name, &queries)),
        (0usize..80_000).prop_map(|length| vec![0; length]),
    ];
    let cut_off = prop_oneof![8 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    (number, data, cut_off).prop_map(|(number, data, cut_off)| {
        let mut bytes = option(number, &data);
        if let Some(at) = cut_off {
            bytes.truncate(at.index(bytes.len()));
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        run(&bytes);
    }

    #[test]
    fn any_options_in_any_pieces_end_alike(
        flags in 0u32..4, options in proptest::collection::vec(some_option(), 0..12),
        pieces in proptest::collection::vec(1usize..5000, 1..50),
    ) {
        let input = [&flags.to_be_bytes()[..], &options.concat()].concat();
        let at_once = run_pieces(exports(), &input, std::iter::repeat(input.len()));
        prop_assert_eq!(&run_pieces(exports(), &input, pieces.into_iter().cycle()), &at_once);
        if !matches!(&at_once.1, Next::Go(_)) {
            // Every option has one final reply, and errors are of the kinds that we mean to send.
            for (_, reply, data) in replies(&at_once.0) {
                prop_assert!(reply & REP_FLAG_ERROR == 0 || !data.is_empty());
                prop_assert!(reply != REP_ERR_POLICY);
            }
        }
    }
}
