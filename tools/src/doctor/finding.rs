//! What a check comes to.

use kaeru_common::host::Fact;
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

/// The part of a report that a finding belongs to.
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

impl Section {
    /// Its title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Cards => "Cards, drivers and firmware",
            Self::Slot => "PCI Express slot",
            Self::Link => "Link",
            Self::Cable => "Cable",
            Self::Network => "Addresses and packets",
            Self::System => "This machine",
            Self::Ceilings => "Ceilings",
            Self::Peer => "The other machine",
        }
    }
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
    /// Where in the report it stands.
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

    pub(super) fn in_section(mut self, section: Section) -> Self {
        self.section = section;
        self
    }
}
