//! Text ↔ token ids, from `tokenizer.json` or from GGUF metadata, with the model's chat template.
//!
//! Both sources end in the same byte-level BPE: special tokens are split out first, text is normalised to NFC (GGUF
//! does not say so, but the models were trained so), then split by the family's pattern. Decoding is byte-exact:
//! [`Tokenizer::decode`] is [`TokenStream`] run to its end, so a streamed answer equals the whole one.

mod byte_level;
mod chat;
mod listing;
mod stream;
mod vocabulary;

use std::collections::HashMap;
use std::sync::Arc;

use tokenizers::DecoderWrapper;

pub use chat::{Chat, ChatMessage, Ordered};
pub use stream::TokenStream;
pub(super) use vocabulary::{Split, Vocabulary};

/// Why a tokenizer cannot be built, or cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The vocabulary or its file is not one of a byte-level BPE.
    #[error("tokenizer: expected {expected}, got {got}")]
    Vocabulary {
        /// What would do.
        expected: String,
        /// What is there, cut to 80 characters.
        got: String,
    },
    /// The library refused the file or the text.
    #[error("tokenizer: {0}")]
    Library(tokenizers::Error),
    /// An id that no embedding row belongs to.
    #[error("expected token ids below {vocab_size}, got {id}")]
    UnknownId {
        /// Rows of the embedding.
        vocab_size: usize,
        /// The id.
        id: u32,
    },
    /// The chat template does not compile, or refuses these messages.
    #[error("chat template: {0:#}")]
    Template(#[from] minijinja::Error),
    /// A chat was asked of a model that has no template for it.
    #[error("expected a model with a chat template, got one without")]
    NoTemplate,
}

impl TokenizerError {
    fn vocabulary(expected: impl Into<String>, got: impl ToString) -> Self {
        Self::Vocabulary { expected: expected.into(), got: got.to_string().chars().take(80).collect() }
    }
}

/// A model's tokenizer; clones share everything.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    library: tokenizers::Tokenizer,
    /// Tokens that are text rather than byte-level pieces; the flag says that readers never see them.
    added: HashMap<u32, (String, bool)>,
    vocab_size: usize,
    token_bytes_max: usize,
    chat: Option<chat::Template>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer of {} ids", self.0.vocab_size)
    }
}

impl Tokenizer {
    /// From the bytes of `tokenizer.json`, for a model with `vocab_size` embedding rows.
    ///
    /// # Errors
    /// The file does not parse, is not a byte-level BPE, or has ids that the embedding does not.
    pub fn from_json(json: &[u8], vocab_size: usize, template: Option<&str>) -> Result<Self, TokenizerError> {
        let mut library = tokenizers::Tokenizer::from_bytes(json).map_err(TokenizerError::Library)?;
        if !matches!(library.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err(TokenizerError::vocabulary("a byte-level decoder", "another"));
        }
        library.with_truncation(None).map_err(TokenizerError::Library)?;
        library.with_padding(None);
        Self::new(library, vocab_size, template)
    }

    /// From a vocabulary as GGUF metadata lists it.
    pub(super) fn from_vocabulary(
        vocabulary: Vocabulary,
        vocab_size: usize,
        template: Option<&str>,
    ) -> Result<Self, TokenizerError> {
        Self::new(vocabulary.build()?, vocab_size, template)
    }

    fn new(library: tokenizers::Tokenizer, vocab_size: usize, template: Option<&str>) -> Result<Self, TokenizerError> {
        let decoder = library.get_added_tokens_decoder();
        let added: HashMap<u32, (String, bool)> =
            decoder.into_iter().map(|(id, token)| (id, (token.content, token.special))).collect();
        let vocabulary = library.get_vocab(true);
        // A byte-level token has a character for each byte.
        let bytes = |(token, id): (&String, &u32)| added.get(id).map_or(token.chars().count(), |(text, _)| text.len());
        let token_bytes_max = vocabulary.iter().map(bytes).max().unwrap_or(0);
        let highest = vocabulary.into_iter().max_by_key(|(_, id)| *id);
        if let Some((token, id)) = highest.filter(|(_, id)| *id as usize >= vocab_size) {
            let got = format!("{id} for {token:?}");
            return Err(TokenizerError::vocabulary(format!("ids below the embedding's {vocab_size}"), got));
        }
        let chat = template.map(chat::Template::new).transpose()?;
        Ok(Self(Arc::new(Inner { library, added, vocab_size, token_bytes_max, chat })))
    }

    /// The ids of `text`. Special tokens written in it become their ids; none are added.
    ///
    /// # Errors
    /// The library refuses the text; no text is known that it does refuse.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.0.library.encode_fast(text, false).map_err(TokenizerError::Library)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`. Control tokens (such as `<|im_end|>`) and unused ids are no text; bytes that are not UTF-8
    /// become U+FFFD.
    ///
    /// # Errors
    /// An id that the model's vocabulary does not have.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let mut stream = self.stream();
        let mut text = String::new();
        for id in ids {
            text.push_str(&stream.push(*id)?);
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// Starts decoding ids one by one.
    #[must_use]
    pub fn stream(&self) -> TokenStream {
        TokenStream::new(self.clone())
    }

    /// Whether [`render_chat`](Self::render_chat) can work.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.0.chat.is_some()
    }

    /// The prompt for a conversation. The template may know nothing of tools or thoughts.
    ///
    /// # Errors
    /// The model has no template, or the template refuses the messages (as Qwen's does for a late system message).
    pub fn render_chat(&self, chat: &Chat<'_>) -> Result<String, TokenizerError> {
        let template = self.0.chat.as_ref().ok_or(TokenizerError::NoTemplate)?;
        Ok(template.render(chat)?)
    }

    /// Bytes of the longest token, control tokens included.
    #[must_use]
    pub fn token_bytes_max(&self) -> usize {
        self.0.token_bytes_max
    }

    /// The bytes of one token, control tokens as they are written in a prompt; none for an id without a token.
    ///
    /// # Errors
    /// An id that the model's vocabulary does not have.
    pub fn token_bytes(&self, id: u32) -> Result<Vec<u8>, TokenizerError> {
        if let Some((text, _)) = self.0.added.get(&id) {
            return Ok(text.clone().into_bytes());
        }
        let mut bytes = Vec::new();
        self.append(id, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the bytes of one token; none for control tokens and ids without a token.
    fn append(&self, id: u32, bytes: &mut Vec<u8>) -> Result<(), TokenizerError> {
        let inner = &*self.0;
        if id as usize >= inner.vocab_size {
            return Err(TokenizerError::UnknownId { vocab_size: inner.vocab_size, id });
        }
        match inner.added.get(&id) {
            Some((_, true)) => {}
            Some((text, false)) => bytes.extend_from_slice(text.as_bytes()),
            None => byte_level::decode(&inner.library.id_to_token(id).unwrap_or_default(), bytes),
        }
        Ok(())
    }
}
