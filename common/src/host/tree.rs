//! Bounded reads below a root: nothing outside of it, nothing but ordinary files, and never more than a limit.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use super::fact::{Fact, Unread, line};
use crate::plain::is_plain;

/// Bytes of a file with one value, at most. The kernel's own limit is one page.
const VALUE_BYTES: u64 = 4096;
/// Bytes of a file with many lines, of which more are not looked at.
const TABLE_BYTES: u64 = 256 << 10;
/// Bytes of a list of all modules that a kernel has.
const LIST_BYTES: u64 = 4 << 20;
/// Entries of a folder that are looked at.
const ENTRIES: usize = 1024;
/// Links on one way, as in the kernel.
const LINKS: usize = 40;
/// Parts of one way, links included.
const PARTS: usize = 512;

/// The files below a root.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    denied: RefCell<Vec<String>>,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), denied: RefCell::new(Vec::new()) }
    }

    /// What this user may not read.
    pub(super) fn denied(&self) -> Vec<String> {
        let mut denied = self.denied.borrow().clone();
        denied.sort();
        denied.dedup();
        denied
    }

    /// The value in a file, without white space around it.
    pub(super) fn fact(&self, path: &str) -> Fact {
        let value = self.bytes(path, VALUE_BYTES + 1).and_then(|bytes| {
            if bytes.len() as u64 > VALUE_BYTES {
                return Err(Unread::TooLong);
            }
            let text = String::from_utf8(bytes).map_err(|_| Unread::NotText)?;
            let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            match text {
                "" => Err(Unread::Empty),
                text => line(text),
            }
        });
        Fact { path: path.to_owned(), value }
    }

    /// The first lines of a long file. What may not be printed as it came, but for tabs, is replaced.
    pub(super) fn lines(&self, path: &str) -> Result<Vec<String>, Unread> {
        self.lines_within(path, TABLE_BYTES)
    }

    /// As [`Self::lines`], of a list of all modules that a kernel has.
    pub(super) fn list(&self, path: &str) -> Result<Vec<String>, Unread> {
        self.lines_within(path, LIST_BYTES)
    }

    fn lines_within(&self, path: &str, limit: u64) -> Result<Vec<String>, Unread> {
        let bytes = self.bytes(path, limit)?;
        let plain = |c: char| if c == '\t' || is_plain(c) { c } else { char::REPLACEMENT_CHARACTER };
        Ok(String::from_utf8_lossy(&bytes).lines().map(|line| line.chars().map(plain).collect()).collect())
    }

    /// The names in a folder, sorted; those with numbers by their numbers. Empty where there is no such folder.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Some(resolved) = self.resolve(path) else { return Vec::new() };
        let entries = match std::fs::read_dir(self.root.join(resolved)) {
            Ok(entries) => entries,
            Err(error) => {
                self.note(path, error.kind());
                return Vec::new();
            }
        };
        let names = entries.take(ENTRIES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter(|name| name.len() <= 255 && name.chars().all(is_plain)).collect();
        names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        names
    }

    /// Whether there is something at the end of a path.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_some_and(|path| std::fs::symlink_metadata(self.root.join(path)).is_ok())
    }

    /// Whether this user may read and write what is there.
    pub(super) fn may_use(&self, path: &str) -> bool {
        use rustix::fs::{Access, access};
        self.resolve(path)
            .is_some_and(|path| access(self.root.join(path), Access::READ_OK | Access::WRITE_OK).is_ok())
    }

    /// Where a path leads to once all links are followed, as a path below the root without a slash before it. `None`
    /// also for a path that may not be printed as it came.
    pub(super) fn real(&self, path: &str) -> Option<String> {
        let resolved = self.resolve(path)?;
        std::fs::symlink_metadata(self.root.join(&resolved)).ok()?;
        resolved.into_os_string().into_string().ok().filter(|path| path.chars().all(is_plain))
    }

    /// The last part of where a link points to.
    pub(super) fn link_name(&self, path: &str) -> Option<String> {
        let real = self.real(path)?;
        real.rsplit('/').next().map(str::to_owned)
    }

    fn bytes(&self, path: &str, limit: u64) -> Result<Vec<u8>, Unread> {
        let resolved = self.resolve(path).ok_or(Unread::Missing)?;
        let full = self.root.join(resolved);
        let failed = |error: std::io::Error| {
            self.note(path, error.kind());
            Unread::from(error)
        };
        // Looked at first: to open a device may do something, and to open a pipe may wait for ever.
        let found = std::fs::symlink_metadata(&full).map_err(failed)?;
        if !found.is_file() {
            return Err(Unread::NotAFile);
        }
        let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW).bits();
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(flags).unwrap_or(0))
            .open(&full)
            .map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    fn note(&self, path: &str, kind: ErrorKind) {
        if kind == ErrorKind::PermissionDenied {
            self.denied.borrow_mut().push(path.to_owned());
        }
    }

    /// Follows every link of a path as if the root were `/`. `None` where that leads nowhere or round in circles.
    fn resolve(&self, path: &str) -> Option<PathBuf> {
        let mut rest: Vec<OsString> = parts(Path::new(path));
        let mut done = PathBuf::new();
        let (mut links, mut steps) = (0, 0);
        while let Some(part) = rest.pop() {
            steps += 1;
            if steps > PARTS {
                return None;
            }
            if part == ".." {
                done.pop();
                continue;
            }
            let next = done.join(&part);
            match std::fs::read_link(self.root.join(&next)) {
                Ok(target) => {
                    links += 1;
                    if links > LINKS {
                        return None;
                    }
                    if target.is_absolute() {
                        done = PathBuf::new();
                    }
                    rest.extend(parts(&target));
                }
                Err(_) => done = next,
            }
        }
        Some(done)
    }
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let mut parts: Vec<OsString> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::new(folder.path());
        (folder, tree)
    }

    #[test]
    fn a_value_comes_without_its_white_space() {
        let (folder, tree) = tree();
        for (content, value) in [
            (&b"4: ACTIVE\n"[..], Ok("4: ACTIVE")),
            (b"", Err(Unread::Empty)),
            (b" \n\0", Err(Unread::Empty)),
            (b"\xff\xfe", Err(Unread::NotText)),
            (b"a\x1b[2Jb", Err(Unread::NotText)),
            // A second line would look like one of the report's own.
            (b"2.42.5000\n\nnothing is wrong: 0 failures\n", Err(Unread::NotText)),
            (b"a\rb", Err(Unread::NotText)),
            ("a\u{2028}b".as_bytes(), Err(Unread::NotText)),
            ("a\u{202e}b".as_bytes(), Err(Unread::NotText)),
            (&[b'x'; 4097], Err(Unread::TooLong)),
        ] {
            std::fs::write(folder.path().join("x"), content).unwrap();
            assert_eq!(tree.fact("x").value, value.map(str::to_owned));
        }
        assert_eq!(tree.fact("y").value, Err(Unread::Missing));
        assert_eq!(tree.fact("").value, Err(Unread::NotAFile));
    }

    #[test]
    fn nothing_that_moves_a_cursor_comes_out_of_a_line() {
        let (folder, tree) = tree();
        std::fs::write(folder.path().join("x"), "a\x1b[2Jb\tc\rd\r\n\u{202e}e\n").unwrap();
        assert_eq!(tree.lines("x").unwrap(), ["a\u{fffd}[2Jb\tc\u{fffd}d", "\u{fffd}e"]);
        let odd = folder.path().join("mlx4\n_core");
        std::fs::create_dir(&odd).unwrap();
        symlink(odd.file_name().unwrap(), folder.path().join("driver")).unwrap();
        assert_eq!(tree.link_name("driver"), None);
        assert_eq!(tree.names("/"), ["x", "driver"]);
    }

    #[test]
    fn links_stay_below_the_root_and_end() {
        let (folder, tree) = tree();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("etc")).unwrap();
        std::fs::write(at("etc/passwd"), "ours").unwrap();
        symlink("/etc/passwd", at("absolute")).unwrap();
        symlink("../../../../../../../etc/passwd", at("relative")).unwrap();
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        symlink("deep/deep", at("deep")).unwrap();
        for name in ["absolute", "relative", "a/../absolute/../relative"] {
            let value = tree.fact(name).value;
            assert!(value == Ok("ours".into()) || name.starts_with('a'), "{name}: {value:?}");
        }
        assert_eq!(tree.fact("absolute").get(), Some("ours"));
        for name in ["a", "b/c", "deep/x"] {
            assert_eq!(tree.fact(name).value, Err(Unread::Missing), "{name}");
            assert!(!tree.exists(name) && tree.names(name).is_empty());
        }
        assert_eq!(tree.real("relative").as_deref(), Some("etc/passwd"));
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let (folder, tree) = tree();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert_eq!(tree.fact("pipe").value, Err(Unread::NotAFile));
        assert!(tree.lines("pipe").is_err());
    }

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let (folder, tree) = tree();
        for name in ["10", "9", "1"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(tree.names("/"), ["1", "9", "10"]);
    }
}
