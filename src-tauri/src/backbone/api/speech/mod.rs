//! From the text that a model writes to what a client reads: thoughts, answer and tool calls, while they come.
//!
//! **Promise:** how the text was cut into pieces changes nothing of what the pieces add up to, and nothing that the
//! model wrote disappears: what only looks like a tool call is given out as text.

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
