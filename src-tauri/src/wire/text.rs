//! Words of a peer that people will read: made short and plain before anybody else sees them.
//!
//! **Promise:** what passed here cannot move a terminal's cursor, colour or reorder a log line, or fill one.

use serde::{Deserialize, Deserializer};

/// Longest reason or name that a peer may give; the rest is cut.
pub const PLAIN_CHARS_MAX: usize = 128;

/// `text` without control characters and marks that turn the reading direction, cut to [`PLAIN_CHARS_MAX`].
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && !turns(*c)).take(PLAIN_CHARS_MAX).collect()
}

/// Unicode's line separators and bidirectional marks.
fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A JSON text, made [`plain`].
pub(super) fn plain_text<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    Ok(plain(&String::deserialize(d)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_peer_are_short_and_move_no_cursor() {
        assert_eq!(plain("busy"), "busy");
        assert_eq!(plain("\u{1b}[2Jgone\r\n\u{202e}kcab\u{9b}é"), "[2Jgonekcabé");
        assert_eq!(plain(&"é".repeat(500)), "é".repeat(PLAIN_CHARS_MAX));
    }
}
