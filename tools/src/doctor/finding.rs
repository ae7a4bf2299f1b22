//! What a check comes to.

use kaeru_common::host::{Fact, Software};
use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// It works, but not as it could.
    Warn,
    /// It does not work.
    Fail,
}

impl Level {
    /// All of them, the worst first.
    pub const WORST_FIRST: [Self; 4] = [Self::Fail, Self::Warn, Self::Note, Self::Ok];

    /// What stands above the findings of this level.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Ok => "As it should be",
            Self::Note => "Worth knowing",
            Self::Warn => "What could be better",
            Self::Fail => "What does not work",
        }
    }

    /// Its word in a report.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }

    /// The exit status of a report whose worst finding this is.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Ok | Self::Note => 0,
            Self::Warn => 1,
            Self::Fail => 2,
        }
    }
}

/// What a finding belongs to, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// Cards, drivers, firmware.
    Cards,
    /// The way from the processor to the card.
    Slot,
    /// Ports and their links.
    Link,
    /// Error counters.
    Cable,
    /// Addresses, packet sizes, firewalls.
    Network,
    /// Limits and settings of the machine.
    System,
    /// How fast it can be.
    Ceilings,
    /// The other machine.
    Peer,
}

/// One file, and what it said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The file, or whatever else was asked.
    pub from: String,
    /// Its words.
    pub value: String,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// In words.
    pub text: String,
    /// Commands to paste, one a line.
    pub commands: Vec<String>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it belongs to.
    pub section: Section,
    /// The check, for programs.
    pub check: &'static str,
    /// What it is about; empty for the whole machine.
    pub subject: String,
    /// What is the case, in one line.
    pub title: String,
    /// What was read.
    pub read: Vec<Reading>,
    /// What that means.
    pub means: String,
    /// What to do.
    pub todo: Vec<Step>,
    /// Whether data goes over TCP because of this.
    pub stops_rdma: bool,
}

impl Finding {
    /// A finding without details.
    pub fn new(level: Level, check: &'static str, subject: &str, title: impl Into<String>) -> Self {
        Self {
            level,
            section: Section::System,
            check,
            subject: subject.to_owned(),
            title: title.into(),
            read: Vec::new(),
            means: String::new(),
            todo: Vec::new(),
            stops_rdma: false,
        }
    }

    /// As it should be.
    pub fn ok(check: &'static str, subject: &str, title: impl Into<String>) -> Self {
        Self::new(Level::Ok, check, subject, title)
    }

    /// Worth knowing.
    pub fn note(check: &'static str, subject: &str, title: impl Into<String>) -> Self {
        Self::new(Level::Note, check, subject, title)
    }

    /// Not as it could be.
    pub fn warn(check: &'static str, subject: &str, title: impl Into<String>) -> Self {
        Self::new(Level::Warn, check, subject, title)
    }

    /// Broken.
    pub fn fail(check: &'static str, subject: &str, title: impl Into<String>) -> Self {
        Self::new(Level::Fail, check, subject, title)
    }

    /// Adds a file that was read.
    pub fn read(self, fact: &Fact) -> Self {
        self.saw(&fact.path, fact.or_reason())
    }

    /// Adds something else that was read.
    pub fn saw(mut self, from: impl Into<String>, value: impl Into<String>) -> Self {
        self.read.push(Reading { from: from.into(), value: value.into() });
        self
    }

    /// Says what it means.
    pub fn means(mut self, text: impl Into<String>) -> Self {
        self.means = text.into();
        self
    }

    /// Adds something to do.
    pub fn todo(mut self, text: impl Into<String>, commands: &[&str]) -> Self {
        let commands = commands.iter().map(|&command| command.to_owned()).collect();
        self.todo.push(Step { text: text.into(), commands });
        self
    }

    /// Says that data goes over TCP because of this.
    pub(super) const fn stops_rdma(mut self) -> Self {
        self.stops_rdma = true;
        self
    }

    /// Puts before the commands what installs those programs that the machine does not have.
    pub(super) fn with_packages(mut self, software: &Software) -> Self {
        let mut known: Vec<&str> = Vec::new();
        for step in &mut self.todo {
            let mut wanted: Vec<&str> =
                step.commands.iter().filter_map(|command| software.package_for(command)).collect();
            wanted.dedup();
            wanted.retain(|package| !known.contains(package));
            if !wanted.is_empty() {
                step.commands.insert(0, format!("sudo apt install {}", wanted.join(" ")));
            }
            known.extend(wanted);
        }
        self
    }

    /// What it is about, and what is the case.
    pub(super) fn headline(&self) -> String {
        match self.subject.as_str() {
            "" => self.title.clone(),
            subject => format!("{subject}: {}", self.title),
        }
    }

    pub(super) fn in_section(mut self, section: Section) -> Self {
        self.section = section;
        self
    }
}
