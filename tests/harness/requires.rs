//! Skipping, so that nobody takes it for passing.

use std::io::Write;

/// The value of a `Result`, or the end of the test with `SKIP <test>: <reason>` on a line of its own.
///
/// The line goes around the capture of the test runner: `grep -c '^SKIP '` counts what was not tested.
#[macro_export]
macro_rules! requires {
    ($what:expr) => {
        match $what {
            Ok(value) => value,
            Err(reason) => {
                let test = std::any::type_name_of_val(&|| ());
                return $crate::harness::requires::skip(test.trim_end_matches("::{{closure}}"), &reason);
            }
        }
    };
}

/// Prints that `test` is skipped, and adds the line to the file that `KAERU_SKIPPED` names: a test runner may swallow what
/// a test prints.
pub(crate) fn skip(test: &str, reason: &str) {
    let line = format!("SKIP {test}: {reason}\n");
    // One write, so that lines of parallel tests do not mix; a closed stderr is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("KAERU_SKIPPED") {
        let mut file =
            std::fs::OpenOptions::new().append(true).create(true).open(path).expect("the list of skips");
        file.write_all(line.as_bytes()).expect("the list of skips");
    }
}

/// The value of an environment variable, or why the test cannot run.
pub(crate) fn variable(name: &str, what: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set: {what}"))
}
