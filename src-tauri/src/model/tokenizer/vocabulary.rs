//! Tokens, kinds and merges as GGUF metadata lists them → the library's byte-level BPE.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as SplitBy, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::{TokenizerError, byte_level};

/// How text is cut before the merges (`tokenizer.ggml.pre`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// `qwen35`: marks belong to the letters before them.
    Qwen35,
    /// `qwen2`.
    Qwen2,
}

impl Split {
    /// All that are known.
    pub(super) const ALL: [Self; 2] = [Self::Qwen35, Self::Qwen2];

    /// What GGUF calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen35 => "qwen35",
            Self::Qwen2 => "qwen2",
        }
    }

    /// The split that GGUF calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|split| split.name() == name)
    }

    /// The pattern of the families' own `tokenizer.json`.
    pub(super) fn pattern(self) -> String {
        let (letters, marks) = match self {
            Self::Qwen35 => (r"[\p{L}\p{M}]", r"\p{M}"),
            Self::Qwen2 => (r"\p{L}", ""),
        };
        format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|\p{{N}}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    }
}

/// What a token is (`tokenizer.ggml.token_type`).
pub(super) const NORMAL: i64 = 1;
pub(super) const CONTROL: i64 = 3;
pub(super) const USER_DEFINED: i64 = 4;
pub(super) const UNUSED: i64 = 5;

/// A vocabulary before it is built; index = id.
pub struct Vocabulary<'a> {
    pub tokens: Vec<&'a str>,
    /// One per token, or empty when all are normal.
    pub kinds: Vec<i64>,
    /// `left right`, best first.
    pub merges: Vec<&'a str>,
    pub split: Split,
}

impl Vocabulary<'_> {
    /// Builds the library's tokenizer.
    pub(super) fn build(self) -> Result<tokenizers::Tokenizer, TokenizerError> {
        let mut vocab = Vocab::default();
        let mut added = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            let kind = self.kinds.get(id).copied().unwrap_or(NORMAL);
            if kind == UNUSED {
                continue;
            }
            if vocab.insert((*token).to_owned(), id as u32).is_some() {
                return Err(TokenizerError::vocabulary("every token once", format!("{token:?} again at id {id}")));
            }
            if matches!(kind, CONTROL | USER_DEFINED) {
                added.push(AddedToken::from((*token).to_owned(), kind == CONTROL).normalized(false));
            }
        }
        if let Some(byte) =
            (0..=255).find(|byte| !vocab.contains_key(byte_level::character(*byte).to_string().as_str()))
        {
            return Err(TokenizerError::vocabulary("a token for every byte", format!("none for {byte:#04x}")));
        }
        let mut merges = Vec::new();
        for merge in &self.merges {
            let Some((left, right)) = merge.split_once(' ') else {
                return Err(TokenizerError::vocabulary("merges of two tokens", format!("{merge:?}")));
            };
            merges.push((left.to_owned(), right.to_owned()));
        }
        let bpe = BPE::builder().vocab_and_merges(vocab, merges).build().map_err(TokenizerError::Library)?;
        let pattern = SplitPattern::Regex(self.split.pattern());
        let split = SplitBy::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(TokenizerError::Library)?;
        let bytes = ByteLevel::new(false, true, false);
        let mut library = tokenizers::Tokenizer::new(bpe);
        library.with_normalizer(Some(NFC));
        let steps = vec![PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(bytes)];
        library.with_pre_tokenizer(Some(Sequence::new(steps)));
        library.with_decoder(Some(bytes));
        library.add_tokens(&added);
        Ok(library)
    }
}
