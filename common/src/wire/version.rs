//! The versions of the control protocol: the enum is the changelog.

use crate::codec::DecodeError;

/// A version of the control protocol, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Version {
    /// The first: list, direct and null grants, lanes, keep-alives, detach.
    V1 = 1,
}

impl Version {
    /// The newest that we speak.
    pub const NEWEST: Self = Self::V1;

    /// The oldest that we speak.
    pub const OLDEST: Self = Self::V1;
}

record! {
    /// The versions that one side speaks, both ends included.
    #[derive(Copy)]
    pub struct VersionRange {
        /// The oldest, at least 1.
        pub oldest: u16,
        /// The newest, not below the oldest.
        pub newest: u16,
    }
    check check
}

impl VersionRange {
    /// What this program speaks.
    pub const OURS: Self = Self { oldest: Version::OLDEST as u16, newest: Version::NEWEST as u16 };

    fn check(&self) -> Result<(), DecodeError> {
        if self.oldest == 0 || self.oldest > self.newest {
            return Err(DecodeError::BadValue { what: "the range of versions" });
        }
        Ok(())
    }

    /// The newest version that both sides speak.
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether it holds `version`.
    pub const fn contains(self, version: u16) -> bool {
        self.oldest <= version && version <= self.newest
    }
}

impl std::fmt::Display for VersionRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self { oldest, newest } if oldest == newest => write!(f, "version {oldest}"),
            Self { oldest, newest } => write!(f, "versions {oldest} to {newest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn range(oldest: u16, newest: u16) -> VersionRange {
        VersionRange { oldest, newest }
    }

    #[test]
    fn the_newest_common_version_wins() {
        for (ours, theirs, common) in [
            (range(1, 1), range(1, 1), Some(1)),
            (range(1, 4), range(2, 9), Some(4)),
            (range(2, 9), range(1, 4), Some(4)),
            (range(1, 9), range(3, 5), Some(5)),
            (range(1, 2), range(3, 4), None),
            (range(3, 4), range(1, 2), None),
        ] {
            assert_eq!(ours.common(theirs), common, "{ours} and {theirs}");
        }
    }
}
