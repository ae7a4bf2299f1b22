//! Files that the user names. What lies there may be a FIFO that nobody writes to or reads from: it is waited for within
//! patience, and never in `open`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::rungs::PATIENCE;

/// The longest file that is read.
const MOST: u64 = 64 << 20;

/// Opens without waiting for the other end of a FIFO.
fn at_once() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    options
}

/// All bytes of a file, or of a pipe such as that of `<(ssh SERVER kaeru-bench machine --json)`.
///
/// # Errors
/// Where it cannot be read, is too long to be meant, or nothing comes.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = at_once().read(true).open(path)?.take(MOST);
    let mut bytes = Vec::new();
    loop {
        // Before the first read too: a FIFO that nobody has opened yet looks like one at its end.
        await_bytes(file.get_ref())?;
        match file.read_to_end(&mut bytes) {
            Ok(_) if file.limit() == 0 => {
                let text = format!("it has more than {} MiB", MOST >> 20);
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
            }
            Ok(_) => return Ok(bytes),
            // What came so far is kept.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn await_bytes(file: &File) -> io::Result<()> {
    let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&timeout)) {
        Ok(0) => {
            let text = format!("nothing came from it within {} s", PATIENCE.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A file for a page, opened before anything is measured: what was measured for minutes is not lost for a wrong path.
/// Until it is written, a file that was there stays as it was, and one that was not goes away again.
#[derive(Debug)]
pub struct Page {
    path: PathBuf,
    file: File,
    is_new: bool,
}

impl Page {
    /// A page at `path`.
    ///
    /// # Errors
    /// Says which file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let is_new = !path.exists();
        let open = || -> io::Result<File> {
            let file = at_once().write(true).create(true).truncate(false).open(path)?;
            fcntl_setfl(&file, OFlags::empty())?;
            Ok(file)
        };
        let file = open().map_err(|error| named(path, &error))?;
        Ok(Self { path: path.to_owned(), file, is_new })
    }

    /// Writes it.
    ///
    /// # Errors
    /// Says which file.
    pub fn write(mut self, page: &str) -> io::Result<()> {
        self.is_new = false;
        let mut write = || -> io::Result<()> {
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(page.as_bytes())
        };
        write().map_err(|error| named(&self.path, &error))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.is_new {
            // An empty file would be taken for a page; that it stays is no reason to fail.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    // Whoever does not read a page is not whoever does not read our output, so it is no broken pipe.
    io::Error::other(format!("cannot write the page {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn files_and_pipes_are_read_to_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 100_000]).unwrap();
        assert_eq!(read(&path).unwrap(), [7; 100_000]);
        assert!(read(folder.path()).is_err() && read(Path::new("/no/such")).is_err());
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let there = fifo.clone();
        let writer = std::thread::spawn(move || {
            let mut file = OpenOptions::new().write(true).open(there).unwrap();
            for _ in 0..10 {
                file.write_all(&[9; 50_000]).unwrap();
                std::thread::yield_now();
            }
        });
        assert_eq!(read(&fifo).unwrap(), [9; 500_000]);
        writer.join().unwrap();
    }

    #[test]
    fn a_page_that_is_not_written_leaves_everything_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        std::fs::write(&old, "a page that is longer").unwrap();
        drop((Page::create(&new).unwrap(), Page::create(&old).unwrap()));
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "a page that is longer");
        for path in [&new, &old] {
            Page::create(path).unwrap().write("a page").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), "a page");
        }
        let error = Page::create(&folder.path().join("no/such")).unwrap_err().to_string();
        assert!(error.contains("cannot write the page") && error.contains("no/such"), "{error}");
    }

    #[test]
    fn a_page_into_a_fifo_that_nobody_reads_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(Page::create(&fifo).is_err());
    }
}
