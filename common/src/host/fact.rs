//! What one file said, or why it said nothing.

use std::fmt;
use std::io::ErrorKind;
use std::str::FromStr;

use crate::plain::is_plain;

/// One file of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Where it was looked for, below the root.
    pub path: String,
    /// What it said: one short line of text, which may be printed as it came.
    pub value: Result<String, Unread>,
}

/// `text`, if it is one line that may be printed as it came.
pub(super) fn line(text: &str) -> Result<String, Unread> {
    if text.chars().all(is_plain) { Ok(text.to_owned()) } else { Err(Unread::NotText) }
}

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// There is no such file.
    Missing,
    /// There is nothing in it.
    Empty,
    /// This user may not read it.
    Denied,
    /// It is a folder, a device, or something else that is not opened.
    NotAFile,
    /// It is no text, more than one line of it, or text that would move a terminal's cursor.
    NotText,
    /// It is longer than any value is.
    TooLong,
    /// The system's own words.
    Failed(String),
}

impl From<std::io::Error> for Unread {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Self::Missing,
            ErrorKind::PermissionDenied => Self::Denied,
            ErrorKind::IsADirectory => Self::NotAFile,
            // Without the number that std adds.
            _ => Self::Failed(error.to_string().split(" (os error").next().unwrap_or_default().to_owned()),
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "not there",
            Self::Empty => "empty",
            Self::Denied => "not readable without root",
            Self::NotAFile => "not a file",
            Self::NotText => "not one line of text",
            Self::TooLong => "too long",
            Self::Failed(reason) => reason,
        })
    }
}

impl Default for Fact {
    /// A fact that nobody asked for.
    fn default() -> Self {
        Self::missing("")
    }
}

impl Fact {
    /// A value that was not read from a file here.
    pub fn told(path: &str, value: &str) -> Self {
        let value = if value.is_empty() { Err(Unread::Missing) } else { line(value) };
        Self { path: path.to_owned(), value }
    }

    /// A fact that nobody has.
    pub fn missing(path: &str) -> Self {
        Self { path: path.to_owned(), value: Err(Unread::Missing) }
    }

    /// What it said.
    pub fn get(&self) -> Option<&str> {
        self.value.as_deref().ok()
    }

    /// What it said, or a text that says that it said nothing.
    pub fn or_reason(&self) -> String {
        match &self.value {
            Ok(value) => value.clone(),
            Err(reason) => format!("({reason})"),
        }
    }

    /// What it said, as a number or another thing that can be parsed.
    pub fn parse<T: FromStr>(&self) -> Option<T> {
        self.get()?.parse().ok()
    }

    /// What it said, as a number in hexadecimal with `0x` before it, or in decimal.
    pub fn number(&self) -> Option<u64> {
        let text = self.get()?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The number before the colon of `4: ACTIVE`.
    pub fn code(&self) -> Option<u8> {
        self.get()?.split(':').next()?.trim().parse().ok()
    }

    /// Whether it is what the kernel prints for "nothing": all zeroes, with colons or without.
    pub fn is_zero(&self) -> bool {
        self.get().is_some_and(|text| {
            text.contains('0') && text.trim_start_matches("0x").chars().all(|c| c == '0' || c == ':')
        })
    }
}
