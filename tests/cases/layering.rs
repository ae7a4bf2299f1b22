//! Who may use whom: every path of every `use` line against the table of what each layer must not know.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Files under `who` must not use what begins with one of `what`, except for what begins with one of `but`.
struct Rule {
    who: &'static [&'static str],
    what: &'static [&'static str],
    but: &'static [&'static str],
    why: &'static str,
}

/// What waits, looks at clocks or talks to the system.
const EFFECTS: &[&str] = &[
    "std::thread",
    "std::fs",
    "std::process",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os::unix::net",
    "rustix",
    "libc",
    "tokio",
];

const RULES: &[Rule] = &[
    Rule {
        who: &["common/"],
        what: &["kaeru_server", "kaeru_client", "kaeru_tools"],
        but: &[],
        why: "common is below both sides",
    },
    Rule {
        who: &["server/"],
        what: &["kaeru_client", "kaeru_tools"],
        but: &[],
        why: "the server knows no client",
    },
    Rule {
        who: &["client/"],
        what: &["kaeru_server", "kaeru_tools"],
        but: &[],
        why: "the client knows no server",
    },
    Rule { who: &["tools/"], what: &["kaeru_server"], but: &[], why: "tools stand on the client" },
    Rule {
        who: &["common/src/fabric/"],
        what: &["common::wire", "common::session", "tokio", "bytes::Bytes"],
        but: &[],
        why: "a fabric moves bytes and knows no exports, sessions or messages",
    },
    Rule {
        who: &["common/src/fabric/tcp/"],
        what: &["common::fabric::verbs", "common::fabric::sim"],
        but: &[],
        why: "fabrics do not know one another",
    },
    Rule {
        who: &["common/src/fabric/verbs/"],
        what: &["common::fabric::tcp", "common::fabric::sim"],
        but: &[],
        why: "fabrics do not know one another",
    },
    Rule {
        who: &["common/src/fabric/sim/"],
        what: &["common::fabric::tcp", "common::fabric::verbs"],
        but: &[],
        why: "fabrics do not know one another",
    },
    Rule {
        who: &["common/src/fabric/sim/"],
        what: EFFECTS,
        but: &["rustix::event", "rustix::io"],
        why: "the simulation has a virtual clock and one thread",
    },
    Rule {
        who: &["common/src/fabric/buffer.rs", "common/src/fabric/mod.rs"],
        what: &["common::fabric::tcp", "common::fabric::verbs", "common::fabric::sim"],
        but: &[],
        why: "the contract does not know who keeps it",
    },
    Rule {
        who: &["common/src/units.rs", "common/src/codec.rs", "common/src/error.rs"],
        what: &["common::fabric", "common::wire", "common::session"],
        but: &[],
        why: "the ground floor stands on nothing",
    },
    Rule {
        who: &["common/src/wire/", "common/src/session/"],
        what: &["common::fabric"],
        but: &[
            "common::fabric::FabricKind",
            "common::fabric::RegionInfo",
            "common::fabric::RejectReason",
            "common::fabric::Access",
            "common::fabric::RemoteRange",
        ],
        why: "the protocol names regions and fabrics, and moves no bytes",
    },
    Rule {
        who: &["common/src/host/"],
        what: &["common::fabric", "common::session", "tokio", "std::net::Tcp", "std::process"],
        but: &[],
        why: "it reads files, and knows nobody but the words that tell of them",
    },
    Rule {
        who: &["common/src/wire/"],
        what: &["common::session", "common::host"],
        but: &[],
        why: "the words do not know who says them",
    },
    Rule {
        who: &[
            "common/src/wire/",
            "common/src/session/",
            "common/src/codec.rs",
            "client/src/nbd/transmission.rs",
            "client/src/nbd/handshake.rs",
            "client/src/nbd/proto.rs",
            "client/src/mapped/blocks.rs",
        ],
        what: EFFECTS,
        but: &[],
        why: "it is pure: bytes and time are arguments, effects are return values",
    },
    Rule {
        who: &[
            "client/src/nbd/transmission.rs",
            "client/src/nbd/handshake.rs",
            "client/src/nbd/proto.rs",
            "client/src/mapped/blocks.rs",
        ],
        what: &["common::fabric", "common::wire", "common::session", "client::remote", "client::session"],
        but: &["common::fabric::buffer"],
        why: "a pure front end knows only its own protocol",
    },
    Rule {
        who: &["client/src/nbd/", "client/src/mapped/"],
        what: &["common::fabric::tcp", "common::fabric::verbs", "common::fabric::sim", "common::wire"],
        but: &[],
        why: "front ends sit on remote",
    },
    Rule {
        who: &["client/src/nbd/"],
        what: &["client::mapped"],
        but: &[],
        why: "front ends do not know one another",
    },
    Rule {
        who: &["client/src/mapped/"],
        what: &["client::nbd"],
        but: &[],
        why: "front ends do not know one another",
    },
    Rule {
        who: &["server/src/store/"],
        what: &[
            "common::fabric",
            "common::wire",
            "common::session",
            "server::session",
            "server::lane",
            "server::listener",
            "std::net",
            "tokio",
        ],
        but: &["common::fabric::buffer"],
        why: "a store knows no network",
    },
];

/// Where words on a lane and the memory that they speak of meet.
const JOINTS: &[&str] =
    &["server/src/lane.rs", "client/src/remote.rs", "server/src/lane/", "client/src/remote/"];

/// Where unsafe code may live.
const UNSAFE_HOMES: &[&str] = &[
    "common/src/fabric/buffer.rs",
    "common/src/fabric/verbs/",
    "server/src/store/uring",
    "client/src/mapped/os/",
    "client/src/nbd/kernel",
    "tools/src/bench/rungs/ring.rs",
];

/// A source file without comments and test modules.
struct Source {
    path: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for member in ["common", "server", "client", "tools"] {
        collect(root, &root.join(member).join("src"), &mut found);
    }
    assert!(
        found.iter().any(|source| source.path == "common/src/fabric/mod.rs"),
        "the sources are where they were"
    );
    found
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<Source>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            collect(root, &path, found);
        } else if name.ends_with(".rs") && !is_test(&name) {
            found.push(Source { text: without_tests(&std::fs::read_to_string(&path).unwrap()), path: name });
        }
    }
}

fn is_test(name: &str) -> bool {
    name.ends_with("/tests.rs") || name.contains("/tests/")
}

/// The text without line comments, up to the inline test module, which is the last thing of a file.
fn without_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

impl Source {
    /// Everything that its `use` items name, as paths from the name of a crate.
    fn uses(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        let mut lines = self.text.lines();
        while let Some(line) = lines.next() {
            let Some((head, rest)) = line.split_once("use ") else { continue };
            let head = head.trim();
            if !head.is_empty() && !head.starts_with("pub") {
                continue;
            }
            let mut item = rest.to_owned();
            while !item.contains(';') {
                item.push_str(lines.next().expect("a use item ends").trim());
            }
            expand("", item.trim_end().trim_end_matches(';'), &mut paths);
        }
        paths.into_iter().map(|path| self.absolute(&path)).collect()
    }

    /// `crate`, `self` and `super` resolved; the crates of the workspace by their folders.
    fn absolute(&self, path: &str) -> String {
        let (member, inside) = self.path.split_once("/src/").unwrap();
        let mut module: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
        if matches!(module.last(), Some(&("mod" | "lib" | "main"))) {
            module.pop();
        }
        let mut parts: Vec<&str> = path.split("::").collect();
        let base: Vec<&str> = match parts[0] {
            "crate" => Vec::new(),
            "self" => module,
            "super" => {
                while parts.get(1) == Some(&"super") {
                    parts.remove(1);
                    module.pop();
                }
                module.pop();
                module
            }
            "kaeru_common" => return format!("common::{}", parts[1..].join("::")),
            _ => return path.to_owned(),
        };
        [&[member], &base[..], &parts[1..]].concat().join("::")
    }
}

/// Adds the paths of a use tree, such as `a::{b, c::{d, e as f}}`.
fn expand(prefix: &str, tree: &str, paths: &mut BTreeSet<String>) {
    let tree = tree.trim();
    match tree.split_once('{') {
        Some((stem, branches)) => {
            let stem = format!("{prefix}{}", stem.trim());
            let branches = branches.strip_suffix('}').unwrap_or(branches);
            let (mut depth, mut start) = (0, 0);
            for (at, character) in branches.char_indices() {
                match character {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        expand(&stem, &branches[start..at], paths);
                        start = at + 1;
                    }
                    _ => {}
                }
            }
            expand(&stem, &branches[start..], paths);
        }
        None if tree.is_empty() => {}
        None => {
            let leaf = tree.split(" as ").next().unwrap_or(tree).trim();
            paths.insert(format!("{prefix}{leaf}").trim_end_matches("::self").to_owned());
        }
    }
}

fn begins(text: &str, with: &[&str]) -> bool {
    with.iter().any(|prefix| text.starts_with(prefix))
}

/// What a file does that the table forbids.
fn trespasses(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let uses = source.uses();
    for rule in RULES.iter().filter(|rule| begins(&source.path, rule.who)) {
        for path in uses.iter().filter(|path| begins(path, rule.what) && !begins(path, rule.but)) {
            found.push(format!("{} uses {path}, but {}", source.path, rule.why));
        }
    }
    let fabric = uses
        .iter()
        .any(|path| path.starts_with("common::fabric") && !path.starts_with("common::fabric::buffer"));
    if fabric && uses.iter().any(|path| path.starts_with("common::wire::io")) && !begins(&source.path, JOINTS)
    {
        found.push(format!("{} joins fabric and wire::io, which only {JOINTS:?} may", source.path));
    }
    found
}

#[test]
fn no_layer_uses_what_it_must_not_know() {
    let found: Vec<String> = sources().iter().flat_map(trespasses).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn pure_modules_ask_no_clock() {
    let pure = [
        "common/src/wire/",
        "common/src/session/",
        "common/src/fabric/sim/",
        "client/src/nbd/transmission.rs",
        "client/src/nbd/handshake.rs",
        "client/src/mapped/blocks.rs",
    ];
    for source in sources().iter().filter(|source| begins(&source.path, &pure)) {
        for call in ["Instant::now", "SystemTime::now", "thread::sleep", "thread::spawn"] {
            assert!(!source.text.contains(call), "{} calls {call}: time is an argument there", source.path);
        }
    }
}

#[test]
fn unsafe_code_stays_at_home() {
    for source in sources().iter().filter(|source| !begins(&source.path, UNSAFE_HOMES)) {
        for line in source.text.lines() {
            let words =
                line.contains("unsafe {") || line.contains("unsafe impl") || line.contains("unsafe fn");
            assert!(!words, "{} has unsafe code; its homes are {UNSAFE_HOMES:?}", source.path);
        }
    }
}

#[test]
fn the_table_catches_what_it_forbids() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: without_tests(text) };
    for (path, text) in [
        ("common/src/fabric/tcp/link.rs", "use crate::{units, wire::control::Hello};"),
        ("common/src/fabric/tcp/link.rs", "use super::super::\n    sim::Sim;"),
        ("common/src/fabric/sim/net.rs", "use std::{fmt, thread};"),
        ("common/src/units.rs", "pub use crate::fabric::Access;"),
        ("common/src/wire/io.rs", "pub(crate) use crate::fabric::{RegionInfo, Link};"),
        ("common/src/session/client.rs", "use std::net::{SocketAddr, TcpStream};"),
        ("server/src/store/ram.rs", "use kaeru_common::fabric::{buffer::Memory, Domain as D};"),
        ("server/src/store/ram.rs", "use super::super::lane;"),
        ("server/src/session.rs", "use kaeru_common::{fabric::Link, wire::io::Request};"),
        ("client/src/nbd/lane.rs", "use crate::mapped::blocks;"),
        ("client/src/nbd/listen.rs", "    use kaeru_common::wire;"),
        ("client/src/lib.rs", "use kaeru_server::Server;"),
    ] {
        assert!(!trespasses(&source(path, text)).is_empty(), "{path}: {text}");
    }
    for (path, text) in [
        ("common/src/fabric/tcp/link.rs", "use crate::codec::Reader; // not crate::wire"),
        ("common/src/wire/grant.rs", "use crate::fabric::{FabricKind, RegionInfo};"),
        ("server/src/store/ram.rs", "use kaeru_common::fabric::buffer::{self, Memory};"),
        ("server/src/lane.rs", "use kaeru_common::{fabric::Link, wire::io::Request};"),
        ("server/src/session.rs", "#[cfg(test)]\nmod tests {\n use kaeru_client::x;\n}"),
    ] {
        assert_eq!(trespasses(&source(path, text)), Vec::<String>::new());
    }
}
