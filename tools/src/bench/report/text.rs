//! Lines of text of a bounded width.

use std::io::{self, Write};

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
