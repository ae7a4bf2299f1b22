//! Text and numbers in a page.

use std::fmt::Write;

use crate::bench::report::text::is_obeyed;

/// Text in which nothing is markup.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // A page may be looked at in a terminal too.
            other if is_obeyed(other) => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// A number that is not known.
pub const NONE: &str = "<span class=\"none\">–</span>";

/// A number as it is shown, which says by a JSON pointer which number of the report it is, and what that is exactly.
pub fn figure(pointer: &str, value: Option<f64>, shown: &str) -> String {
    match value {
        None => NONE.to_owned(),
        Some(value) => format!("<data value=\"{value}\" data-at=\"{pointer}\">{}</data>", escape(shown)),
    }
}

/// More columns than this have to be scrolled on a phone.
const FEW: usize = 5;

/// A table: a caption, a head, and rows whose first `names` cells are heads of their rows. Cells are markup. A column in
/// which nothing is known is left out.
pub fn table(caption: &str, head: &[&str], names: usize, rows: &[Vec<String>]) -> String {
    let is_shown = |at: usize| {
        at < names || rows.is_empty() || rows.iter().any(|row| row.get(at).is_some_and(|cell| cell != NONE))
    };
    let class =
        if (0..head.len()).filter(|at| is_shown(*at)).count() > FEW { "scroll wide" } else { "scroll" };
    let mut out = format!(
        "<div class=\"{class}\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table><caption>{0}</caption><thead><tr>",
        escape(caption)
    );
    for (at, title) in head.iter().enumerate().filter(|(at, _)| is_shown(*at)) {
        let class = if at < names { " class=\"name\"" } else { "" };
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escape(title));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate().filter(|(at, _)| is_shown(*at)) {
            let _ = match at < names {
                true => write!(out, "<th scope=\"row\" class=\"name\">{cell}</th>"),
                false => write!(out, "<td>{cell}</td>"),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}
