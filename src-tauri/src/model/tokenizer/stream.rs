//! Ids → text while they are being generated: incomplete UTF-8 waits for the token that completes it.

use super::{Tokenizer, TokenizerError};

/// Decodes ids one by one. The pieces, joined, are the text of all ids.
///
/// **Invariant:** between calls at most three bytes are held back.
#[derive(Debug)]
pub struct TokenStream {
    tokenizer: Tokenizer,
    held: Vec<u8>,
}

impl TokenStream {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, held: Vec::new() }
    }

    /// The text that `id` completes; often empty within a character of several tokens.
    ///
    /// # Errors
    /// An id that the model's vocabulary does not have.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.tokenizer.append(id, &mut self.held)?;
        let mut text = String::new();
        let mut left = self.held.as_slice();
        while let Err(wrong) = std::str::from_utf8(left) {
            let (valid, rest) = left.split_at(wrong.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid));
            left = rest;
            let Some(bytes) = wrong.error_len() else { break };
            text.push(char::REPLACEMENT_CHARACTER);
            left = &left[bytes..];
        }
        let done = std::str::from_utf8(left).unwrap_or_default();
        text.push_str(done);
        let kept = self.held.len() - (left.len() - done.len());
        self.held.drain(..kept);
        Ok(text)
    }

    /// What is left when no more ids come: U+FFFD for an incomplete character.
    #[must_use]
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}
