//! Lines of text of a bounded width, without anything that a terminal would obey.

use std::io::{self, Write};

use kaeru_common::plain::is_plain;

/// A terminal that nobody has widened.
pub const WIDTH: usize = 80;

/// A word in the margin and a text beside it, wrapped.
///
/// # Errors
/// Where it cannot be printed.
pub fn paragraph(out: &mut dyn Write, margin: &str, width: usize, text: &str) -> io::Result<()> {
    let mut line = format!("{margin:width$}");
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(out, "{}", line.trim_end())?;
            (line, is_empty) = (" ".repeat(width), true);
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    writeln!(out, "{}", line.trim_end())
}

/// A table whose columns are as wide as their widest cell: the first `left` ones flush left, the others flush right.
///
/// # Errors
/// Where it cannot be printed.
pub fn columns(out: &mut dyn Write, left: usize, rows: &[Vec<String>]) -> io::Result<()> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column > 0 {
                line.push(' ');
            }
            let cell = if column < left { format!("{cell:width$}") } else { format!("{cell:>width$}") };
            line.push_str(&cell);
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Whether a terminal would do something else than show this character. The ends of our own lines are meant.
pub fn is_obeyed(character: char) -> bool {
    character != '\n' && !is_plain(character)
}

/// Passes text on to a terminal, a pipe or a sheet. Labels, and the names that servers and the files of others bear, may
/// hold escapes; what would be obeyed becomes `\u{fffd}`, whoever prints it.
#[derive(Debug)]
pub struct Plain<W>(pub W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Printing writes whole characters.
        let text = String::from_utf8_lossy(bytes);
        match text.contains(is_obeyed) {
            true => self.0.write_all(text.replace(is_obeyed, "\u{fffd}").as_bytes())?,
            false => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_not_printed() {
        let mut out = Plain(Vec::new());
        let evil = "a\u{1b}[2Jb\rc\u{9b}31md\u{7f}\u{8}\u{202e}e\n";
        writeln!(out, "{evil}µs → 4 KiB").unwrap();
        columns(&mut out, 1, &[vec![evil.to_owned(), "1".to_owned()]]).unwrap();
        let text = String::from_utf8(out.0).unwrap();
        assert!(!text.contains(is_obeyed), "{text:?}");
        assert!(
            text.starts_with("a\u{fffd}[2Jb\u{fffd}c\u{fffd}31md") && text.contains("\nµs → 4 KiB\n"),
            "{text:?}"
        );
    }
}
