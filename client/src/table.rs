//! Rows of cells in columns, for people.

use std::io::{self, Write};

/// Prints rows in columns as wide as their widest cell. The first `left` columns are aligned to the left, the others,
/// which are figures, to the right. A row may end early; what it then ends with takes part in no column.
///
/// # Errors
/// Where the output cannot be written.
pub(crate) fn print(rows: &[Vec<String>], left: usize, out: &mut impl Write) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let counts = |row: &&Vec<String>, column| row.len() == columns || column + 1 < row.len();
    let width = |column: usize| {
        let cells = rows.iter().filter(|row| counts(row, column)).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            let last = row.len() < columns && column + 1 == row.len();
            if column < left || last { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_figures_end_together() {
        let rows = [
            vec!["NAME", "READS", "MAX"],
            vec!["蛙の池", "7", "1.0 ms"],
            vec!["x", "12345678", "9 ns"],
            vec!["a long one", "nothing is known of this"],
        ];
        let rows: Vec<Vec<String>> =
            rows.map(|row| row.into_iter().map(str::to_owned).collect()).into_iter().collect();
        let mut out = Vec::new();
        print(&rows, 1, &mut out).unwrap();
        let expected = "NAME           READS     MAX\n\
                        蛙の池                7  1.0 ms\n\
                        x           12345678    9 ns\n\
                        a long one  nothing is known of this\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
