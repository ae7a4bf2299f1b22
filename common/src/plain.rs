//! Text of others that may be printed as it came.

/// Whether a character may be printed as it came: it moves no cursor, ends no line, and turns no text around.
pub fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
