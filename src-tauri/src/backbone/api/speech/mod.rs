//! From the text that a model writes to what a client reads: thoughts, answer and tool calls, while they come.
//!
//! **Promises:** how the text was cut into pieces changes nothing of what the pieces add up to; what only looks like a
//! tool call is given out as text. Left out are the markers, blanks beside thoughts and calls, and within a call what
//! belongs to no parameter and the parameter that was cut off; a call that was cut off does not count as made.

mod call;
mod parser;
mod stop;

pub use parser::{Parser, Piece};
pub use stop::StopTexts;

/// How many bytes at the end of `text` may be the beginning of `marker`.
fn begun(text: &str, marker: &str) -> usize {
    let longest = marker.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|n| text.as_bytes().ends_with(&marker.as_bytes()[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
