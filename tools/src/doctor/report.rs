//! A report: text for people, JSON for programs.

use std::cmp::Reverse;
use std::io::{self, Write};

use kaeru_common::host::Host;
use serde::Serialize;

use super::ceilings::{self, Ceiling};
use super::finding::{Finding, Level};

/// A terminal that nobody has widened.
const WIDTH: usize = 80;
/// Where titles begin.
const TITLE: usize = 8;

/// All that is to be said about a machine.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Our version.
    pub kaeru_doctor: &'static str,
    /// The machine.
    pub machine: Machine,
    /// The worst level.
    pub level: Level,
    /// How many findings there are of each level.
    pub counts: Counts,
    /// How fast each port can be.
    pub ceilings: Vec<Ceiling>,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

/// Which machine it is about.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Its name.
    pub host: Option<String>,
    /// Its kernel.
    pub kernel: Option<String>,
    /// Where its files were read.
    pub root: String,
}

/// Findings of each level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// As it should be.
    pub ok: usize,
    /// Worth knowing.
    pub note: usize,
    /// Not as it could be.
    pub warn: usize,
    /// Broken.
    pub fail: usize,
}

impl Report {
    pub(super) fn new(host: &Host, findings: Vec<Finding>, ceilings: Vec<Ceiling>) -> Self {
        let machine = Machine {
            host: host.software.hostname.get().map(str::to_owned),
            kernel: host.software.kernel.get().map(str::to_owned),
            root: host.root.clone(),
        };
        let mut report = Self {
            kaeru_doctor: env!("CARGO_PKG_VERSION"),
            machine,
            level: Level::Ok,
            counts: Counts::default(),
            ceilings,
            findings: Vec::new(),
        };
        report.add(findings);
        report
    }

    /// Adds findings.
    pub(super) fn add(&mut self, findings: Vec<Finding>) {
        self.findings.extend(findings);
        self.findings.sort_by_key(|finding| (Reverse(finding.level), !finding.stops_rdma));
        ceilings::mark(&mut self.findings);
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        self.counts = Counts {
            ok: count(Level::Ok),
            note: count(Level::Note),
            warn: count(Level::Warn),
            fail: count(Level::Fail),
        };
        self.level = self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    }

    /// Prints it for people: the worst first, and in short once more at the end, where a terminal stops. What is as it
    /// should be is only counted, unless `all` is wanted.
    ///
    /// # Errors
    /// Where it cannot be printed.
    pub fn print_text(&self, paint: Paint, all: bool, out: &mut impl Write) -> io::Result<()> {
        let Machine { host, kernel, .. } = &self.machine;
        let (host, kernel) = (host.as_deref().unwrap_or("a machine"), kernel.as_deref().unwrap_or("unknown"));
        writeln!(out, "kaeru-doctor {} on {host}, kernel {kernel}", self.kaeru_doctor)?;
        let plural =
            |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        for level in Level::WORST_FIRST {
            let findings: Vec<&Finding> =
                self.findings.iter().filter(|finding| finding.level == level).collect();
            if findings.is_empty() {
                continue;
            }
            writeln!(out, "\n{}", paint.bold(level.heading()))?;
            let is_shown = |finding: &&&Finding| all || level != Level::Ok || is_answer(finding);
            for finding in findings.iter().filter(is_shown) {
                print_finding(finding, paint, out)?;
            }
            let folded = findings.iter().filter(|finding| !is_shown(finding)).count();
            if folded > 0 {
                let verb = if folded == 1 { "is" } else { "are" };
                writeln!(out, "  {} {verb} ok; -v lists them", plural(folded, "check"))?;
            }
        }
        writeln!(out)?;
        for finding in self.findings.iter().filter(|finding| finding.level >= Level::Warn) {
            writeln!(out, "{}  {}", paint.level(finding.level, finding.level.word()), finding.headline())?;
        }
        let Counts { ok, note, warn, fail } = self.counts;
        writeln!(
            out,
            "{}: {}, {}, {}, {ok} ok",
            verdict(self.level),
            plural(fail, "failure"),
            plural(warn, "warning"),
            plural(note, "note")
        )?;
        out.flush()
    }

    /// Prints it for programs.
    ///
    /// # Errors
    /// Where it cannot be printed.
    pub fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)?;
        out.flush()
    }
}

const fn verdict(level: Level) -> &'static str {
    match level {
        Level::Ok | Level::Note => "nothing is wrong",
        Level::Warn => "it works, but not as it could",
        Level::Fail => "something does not work",
    }
}

/// Whether somebody wants to see it although it is as it should be: how fast it is, and what was asked for by a flag.
fn is_answer(finding: &Finding) -> bool {
    [ceilings::CHECK, "errors-added", "export", super::peer::TABLE].contains(&finding.check)
}

fn print_finding(finding: &Finding, paint: Paint, out: &mut impl Write) -> io::Result<()> {
    let lines = wrap(&finding.headline(), WIDTH - TITLE);
    for (number, line) in lines.iter().enumerate() {
        let word = if number == 0 { finding.level.word() } else { "" };
        writeln!(out, "  {}  {line}", paint.level(finding.level, &format!("{word:4}")))?;
    }
    let margin = " ".repeat(TITLE);
    for reading in &finding.read {
        let line = format!("{margin}{}: {}", reading.from, reading.value);
        writeln!(out, "{}", paint.dim(&line))?;
    }
    for paragraph in finding.means.lines() {
        for line in wrap(paragraph, WIDTH - TITLE) {
            writeln!(out, "{margin}{line}")?;
        }
    }
    for step in &finding.todo {
        for (number, line) in wrap(&step.text, WIDTH - TITLE - 2).iter().enumerate() {
            writeln!(out, "{margin}{} {line}", if number == 0 { ">" } else { " " })?;
        }
        for command in &step.commands {
            writeln!(out, "{margin}    {}", paint.bold(command))?;
        }
    }
    Ok(())
}

/// `text` in lines of `width`, longer only where a word is. A text that fits stays as it is.
fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if !is_empty && last + 1 + word.chars().count() > width {
            lines.push(String::new());
            is_empty = true;
        }
        if let Some(line) = lines.last_mut() {
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
    }
    lines
}

/// Whether to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint(bool);

impl Paint {
    /// No colours.
    pub const PLAIN: Self = Self(false);

    /// Colours if `out` is a terminal and the user does not mind them: see <https://no-color.org>.
    pub fn for_terminal(out: &impl io::IsTerminal) -> Self {
        let minds = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self(out.is_terminal() && !minds && !dumb)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn level(self, level: Level, text: &str) -> String {
        match level {
            Level::Ok => self.with("32", text),
            Level::Note => self.with("36", text),
            Level::Warn => self.with("33", text),
            Level::Fail => self.with("31;1", text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped_between_words() {
        assert_eq!(wrap("a bb ccc", 4), ["a bb", "ccc"]);
        assert_eq!(wrap("a   bb", 6), ["a   bb"]);
        assert_eq!(wrap("aaaaaaaa b", 4), ["aaaaaaaa", "b"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn colours_are_for_terminals_only() {
        assert_eq!(Paint::PLAIN.level(Level::Fail, "FAIL"), "FAIL");
        assert_eq!(Paint(true).level(Level::Fail, "FAIL"), "\x1b[31;1mFAIL\x1b[0m");
    }
}
