//! What a client may ask for: bodies in OpenAI's shape, read field by field.
//!
//! **Promise:** what is not understood is refused by name, never left out in silence.

mod chat;
mod common;
mod completion;
mod fields;

pub use chat::ChatRequest;
pub use common::Common;
pub use completion::{CompletionRequest, Prompt};

#[cfg(test)]
mod tests;
