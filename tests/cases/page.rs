//! The page of `kaeru-bench` in a real browser: narrow and wide, light and dark; its numbers are those of the JSON.

use std::path::Path;

use serde_json::Value;

use crate::harness::bench::run_bench;
use crate::harness::process::{run, scratch, tool};
use crate::harness::server::Server;
use crate::requires;

/// Shows pages in frames of a phone's and a desk's width, and tells in its title what became of them.
const FRAMES: &str = r#"<!doctype html><meta charset="utf-8"><title>nothing yet</title>
<script>
addEventListener('error', event => { window.failed = String(event.message); });
addEventListener('load', () => setTimeout(() => {
    const frames = [...document.querySelectorAll('iframe')].map(frame => {
        const page = frame.contentDocument;
        const cut = [...page.querySelectorAll('.scroll')].filter(part => part.scrollWidth > part.clientWidth);
        const hint = part => getComputedStyle(part.querySelector('caption'), '::before').content;
        return {
            room: frame.clientWidth, wide: page.documentElement.scrollWidth,
            ground: getComputedStyle(page.body).backgroundColor,
            plots: page.querySelectorAll('figure > svg').length,
            flat: [...page.querySelectorAll('figure > svg')].filter(plot => plot.getBoundingClientRect().height < 100).length,
            scripts: page.scripts.length,
            cut: cut.length, silent: cut.filter(part => !hint(part).includes('scroll')).length,
            data: [...page.querySelectorAll('data')].map(data => [data.dataset.at, Number(data.value), data.textContent]),
        };
    });
    document.title = encodeURIComponent(JSON.stringify({ frames, failed: window.failed || null }));
}, 100));
</script>
<iframe style="width:360px;height:800px" src="page.html"></iframe>
<iframe style="width:1280px;height:900px" src="page.html"></iframe>"#;

/// A browser without a window, or why there is none.
fn browser() -> Result<std::process::Command, String> {
    let names = ["chromium-headless-shell", "chromium", "google-chrome", "chrome-headless-shell"];
    let found = names.iter().find_map(|name| tool(name, "").ok());
    found.ok_or_else(|| "no Chromium here; install the package chromium-headless-shell".to_owned())
}

/// What the frames tell; `dark` as the user prefers.
fn shown(folder: &Path, dark: bool) -> Value {
    let frames = folder.join("frames.html");
    std::fs::write(&frames, FRAMES).unwrap();
    let (net, home) = (folder.join("net.json"), folder.join("home"));
    let mut command = browser().unwrap();
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
        ])
        .arg(format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 }))
        .arg(format!("--user-data-dir={}", home.display()))
        .arg(format!("--log-net-log={}", net.display()))
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}", frames.display()));
    let outcome = run(&mut command);
    let console: Vec<&str> = outcome.err.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "the browser complains: {console:?}");
    let log = std::fs::read_to_string(&net).unwrap_or_default();
    let asked: Vec<&str> = log.split("\"url\":\"").skip(1).filter(|rest| rest.starts_with("http")).collect();
    assert!(asked.is_empty(), "the page asks somebody: {:?}", asked[0].split('"').next());
    let title = outcome.out.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next()).unwrap();
    serde_json::from_str(&decoded(title)).unwrap_or_else(|error| panic!("{error}: {}", outcome.out))
}

/// Without the `%xx` of `encodeURIComponent`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next().unwrap()).to_digit(16).unwrap() as u8;
        bytes.push(if byte == b'%' { digit() * 16 + digit() } else { byte });
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_page_fits_phones_and_desks_in_light_and_dark_and_its_numbers_are_those_of_the_json() {
    requires!(browser());
    let server = Server::start(&["--ram", "scratch=1M"]);
    let folder = scratch();
    let page = folder.path().join("page.html");
    let target = server.export("scratch");
    for flags in [
        &["latency", &target, "--count", "300", "--write", "--yes", "--stages"][..],
        &["sweep", &target, "--count", "200", "--sizes", "8,4K,64K", "--depths", "1,4"],
    ] {
        let more = ["--warm-up", "0", "--json", "--html", page.to_str().unwrap()];
        let json: Value = serde_json::from_str(&run_bench(&[flags, &more].concat()).success()).unwrap();
        let mut grounds = Vec::new();
        for dark in [false, true] {
            let shown = shown(folder.path(), dark);
            assert_eq!(shown["failed"], Value::Null);
            for frame in shown["frames"].as_array().unwrap() {
                assert!(
                    frame["wide"].as_u64() <= frame["room"].as_u64(),
                    "the page is too wide: {}",
                    frame["wide"]
                );
                assert_eq!(
                    (&frame["plots"], &frame["flat"], &frame["scripts"]),
                    (&4.into(), &0.into(), &0.into())
                );
                let is_desk = frame["room"].as_u64() > Some(1000);
                assert!(!is_desk || frame["cut"] == 0, "{} tables are cut off on a desk", frame["cut"]);
                assert_eq!(frame["silent"], 0, "tables are cut off and do not say so");
                let data = frame["data"].as_array().unwrap();
                assert!(data.len() > 50, "{}", data.len());
                for number in data {
                    let pointer = number[0].as_str().unwrap();
                    assert_eq!(
                        json.pointer(pointer).and_then(Value::as_f64),
                        number[1].as_f64(),
                        "{pointer}"
                    );
                }
                grounds.push(frame["ground"].as_str().unwrap().to_owned());
            }
        }
        assert!(
            grounds[0] == grounds[1] && grounds[2] == grounds[3] && grounds[0] != grounds[2],
            "{grounds:?}"
        );
    }
}

/// What is for paper, shown on a screen: the browser without a window prints only into files.
#[test]
fn on_paper_the_page_is_black_on_white_and_nothing_is_cut_off() {
    requires!(browser());
    let server = Server::start(&["--ram", "scratch=1M"]);
    let folder = scratch();
    let page = folder.path().join("page.html");
    let flags =
        ["latency", &server.export("scratch"), "--count", "300", "--write", "--yes", "--warm-up", "0"];
    run_bench(&[&flags[..], &["--html", page.to_str().unwrap()]].concat()).success();
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("@media print"), "there is something for paper");
    std::fs::write(&page, text.replace("@media print", "@media all")).unwrap();
    let shown = shown(folder.path(), true);
    // Paper is about half as wide as the wider frame, and twice as wide as the narrower one.
    let frame = &shown["frames"][1];
    assert_eq!(frame["ground"], "rgb(255, 255, 255)", "whatever the screen is like");
    assert!(frame["wide"].as_u64() <= frame["room"].as_u64(), "{}", frame["wide"]);
    assert_eq!((&frame["plots"], &frame["flat"]), (&4.into(), &0.into()));
}
