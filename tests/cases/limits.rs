//! Sizes, ranges and requests at their edges, each asked for over NBD.

use crate::harness::client::Nbd;
use crate::harness::nbd::*;
use crate::harness::process::run;
use crate::harness::random::{Random, pattern, with_seeds};
use crate::harness::server::Server;

const MIB: u32 = 1 << 20;

#[test]
fn every_size_is_exact_and_its_last_byte_is_there() {
    let sizes = [1, 511, 513, 4095, 241_059];
    let exports: Vec<String> = sizes.iter().map(|size| format!("s{size}={size}")).collect();
    let flags: Vec<&str> = exports.iter().flat_map(|export| ["--ram", export.as_str()]).collect();
    let server = Server::start(&flags);
    for size in sizes {
        let nbd = Nbd::unix(&server, &format!("s{size}"));
        let mut raw = Raw::attach(&nbd);
        assert_eq!(raw.size, size);
        let bytes = pattern(size, size as usize);
        raw.write(0, &bytes).unwrap();
        raw.write(size - 1, b"!").unwrap();
        assert_eq!(raw.read(size - 1, 1).unwrap(), b"!");
        let whole = raw.read(0, size as u32).unwrap();
        assert_eq!(whole[..size as usize - 1], bytes[..size as usize - 1]);
        refuses_what_is_beyond(&mut raw, size);
        assert_eq!(raw.read(0, size as u32).unwrap(), whole, "refused requests change nothing");
    }
}

#[test]
fn a_size_beyond_32_bits_is_exact() {
    const SIZE: u64 = (1 << 40) + 1;
    let server = Server::start(&["--null", &format!("huge={SIZE}")]);
    let nbd = Nbd::unix(&server, "huge");
    let mut raw = Raw::attach(&nbd);
    assert_eq!(raw.size, SIZE);
    raw.write(SIZE - 1, b"!").unwrap();
    assert_eq!(raw.read(SIZE - 1, 1).unwrap(), [0], "a null export keeps nothing");
    assert_eq!(raw.read(SIZE - 4096, 4096).unwrap(), [0; 4096]);
    refuses_what_is_beyond(&mut raw, SIZE);
    raw.ask(CMD_TRIM, 0, 1, u32::MAX).unwrap();
}

#[track_caller]
fn refuses_what_is_beyond(raw: &mut Raw, size: u64) {
    let mut beyond = vec![(size - 1, 2), (size, 1), (u64::MAX, 1), (u64::MAX - 1, 512)];
    beyond.extend(u32::try_from(size + 1).map(|length| (0, length)));
    for (offset, length) in beyond {
        let payload = vec![0xee; length as usize];
        assert_eq!(raw.read(offset, length), Err(EINVAL), "read {length} at {offset}");
        assert_eq!(raw.write(offset, &payload), Err(ENOSPC), "write {length} at {offset}");
        assert_eq!(raw.ask(CMD_WRITE_ZEROES, 0, offset, length), Err(ENOSPC), "zero {length} at {offset}");
        assert_eq!(raw.ask(CMD_TRIM, 0, offset, length), Err(EINVAL), "trim {length} at {offset}");
    }
}

#[test]
fn the_longest_request_works_and_a_longer_one_is_refused_whole() {
    let server = Server::start(&["--ram", "scratch=64M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    let bytes = pattern(4, 32 << 20);
    raw.write(12_345, &bytes).unwrap();
    assert!(raw.read(12_345, 32 * MIB).unwrap() == bytes, "32 MiB come back as they went");

    assert_eq!(raw.read(0, 32 * MIB + 1), Err(EINVAL));
    assert_eq!(raw.read(0, u32::MAX), Err(EINVAL));
    let long = vec![0xee; 33 << 20];
    assert_eq!(raw.write(12_345, &long), Err(EINVAL));
    assert_eq!(
        raw.read(12_345, 4096).unwrap(),
        bytes[..4096],
        "the connection is in step, the data untouched"
    );
}

#[test]
fn what_means_nothing_is_invalid_and_the_connection_lives() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    for command in [5, 7, 8, 99, 0xffff] {
        assert_eq!(raw.ask(command, 0, 0, 512), Err(EINVAL), "command {command}");
    }
    for flags in [1 << 5, 1 << 15, 1 << 2 | FLAG_FUA] {
        assert_eq!(raw.ask(CMD_READ, flags, 0, 512), Err(EINVAL), "flags {flags:#x}");
        let cookie = raw.request(CMD_WRITE, flags, 0, 512);
        raw.send(&[0xee; 512]);
        assert_eq!(raw.reply(0), (cookie, Err(EINVAL)), "flags {flags:#x}");
    }
    for command in [CMD_READ, CMD_TRIM, CMD_WRITE_ZEROES] {
        assert_eq!(raw.ask(command, 0, 0, 0), Err(EINVAL), "command {command} on nothing");
    }
    assert_eq!(raw.ask(CMD_FLUSH, 0, 0, 1), Err(EINVAL));
    raw.ask(CMD_FLUSH, 0, 0, 0).unwrap();
    assert_eq!(raw.read(0, 512).unwrap(), [0; 512]);
}

#[test]
fn a_wrong_magic_ends_the_connection_and_no_other() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let (mut raw, mut other) = (Raw::attach(&nbd), Raw::attach(&nbd));
    raw.send(&[0x5a; 28]);
    assert!(raw.is_closed());
    other.write(0, b"alive").unwrap();
}

#[test]
fn nothing_changes_a_read_only_export() {
    let server = Server::start(&["--ram", "fixed=1M", "--read-only", "fixed", "--ram", "scratch=1M"]);
    let by_server = Nbd::unix(&server, "fixed");
    let by_client = Nbd::unix_with(&server, "scratch", &["--read-only"]);
    for nbd in [by_server, by_client] {
        let mut raw = Raw::attach(&nbd);
        assert_ne!(raw.flags & 1 << 1, 0, "NBD_FLAG_READ_ONLY");
        assert_eq!(raw.write(0, &[1; 70_000]), Err(EPERM));
        assert_eq!(raw.ask(CMD_TRIM, 0, 0, 512), Err(EPERM));
        assert_eq!(raw.ask(CMD_WRITE_ZEROES, 0, 0, 512), Err(EPERM));
        assert_eq!(raw.read(0, 512).unwrap(), [0; 512]);
        raw.ask(CMD_FLUSH, 0, 0, 0).unwrap();
    }
}

#[test]
fn a_cookie_comes_back_bit_by_bit_and_once() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    let cookies = [0, 1, u64::MAX, 1 << 63, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
    for cookie in cookies {
        raw.send(&request_bytes(CMD_READ, 0, cookie, 0, 512));
    }
    let mut back: Vec<u64> = cookies.iter().map(|_| raw.reply(512).0).collect();
    back.sort_unstable();
    let mut sent = cookies;
    sent.sort_unstable();
    assert_eq!(back, sent);
}

#[test]
fn trim_and_write_zeroes_touch_exactly_their_range() {
    const SIZE: usize = 3 << 20;
    let server = Server::start(&["--ram", &format!("scratch={SIZE}")]);
    let nbd = Nbd::unix(&server, "scratch");
    with_seeds(0..12, |seed| {
        let mut random = Random(seed);
        let mut raw = Raw::attach(&nbd);
        let mut model = vec![0xa5; SIZE];
        raw.write(0, &model).unwrap();
        for _ in 0..12 {
            let longest = [512, 5000, 1 << 20][random.below(3) as usize];
            let length = 1 + random.below(longest);
            let offset = match random.below(4) {
                0 => 0,
                1 => SIZE as u64 - length,
                _ => random.below(SIZE as u64 - length + 1),
            };
            let zeroes = random.one_in(2);
            let command = if zeroes { CMD_WRITE_ZEROES } else { CMD_TRIM };
            raw.ask(command, 0, offset, length as u32).unwrap();
            let range = offset as usize..(offset + length) as usize;
            model[range].fill(0);
        }
        assert!(raw.read(0, SIZE as u32).unwrap() == model, "no byte beside the ranges changed");
    });
}

#[test]
fn a_tail_is_listed_in_bytes() {
    let server = Server::start(&["--ram", "odd=241059"]);
    let nbd = Nbd::unix(&server, "odd");
    let listed =
        run(&mut crate::harness::client::kaeru(nbd.folder(), &["ls", "--json", &server.address.to_string()]));
    let listed: serde_json::Value = serde_json::from_str(&listed.success()).unwrap();
    assert_eq!(listed["exports"][0]["size"], 241_059);
}
