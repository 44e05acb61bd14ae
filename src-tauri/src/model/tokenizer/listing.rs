//! A tokenizer → its vocabulary as GGUF metadata lists it: what [`Vocabulary`](super::Vocabulary) was built from.

use super::vocabulary::{CONTROL, NORMAL, Split, UNUSED, USER_DEFINED};
use super::{Tokenizer, TokenizerError};

/// Tokens, kinds and merges; index = id.
pub struct Listing {
    /// One per row of the embedding; a row without a token has a made-up one of kind "unused".
    pub tokens: Vec<String>,
    /// GGUF's numbers of kinds.
    pub kinds: Vec<i32>,
    /// `left right`, best first.
    pub merges: Vec<String>,
    /// How text is cut before the merges.
    pub split: Split,
    /// The chat template's source.
    pub template: Option<String>,
}

impl Tokenizer {
    /// Lists the vocabulary. That text is normalised to NFC first is not in it: GGUF has no word for it, and readers of
    /// these families know.
    ///
    /// # Errors
    /// A pattern that GGUF has no name for, or a library that does not tell its merges.
    pub(in crate::model) fn listing(&self) -> Result<Listing, TokenizerError> {
        let inner = &*self.0;
        let mut tokens: Vec<String> = (0..inner.vocab_size).map(|id| format!("[PAD{id}]")).collect();
        let mut kinds = vec![UNUSED as i32; inner.vocab_size];
        for (token, id) in inner.library.get_vocab(true) {
            let kind = match inner.added.get(&id) {
                None => NORMAL,
                Some((_, true)) => CONTROL,
                Some((_, false)) => USER_DEFINED,
            };
            if let (Some(listed), Some(listed_kind)) = (tokens.get_mut(id as usize), kinds.get_mut(id as usize)) {
                (*listed, *listed_kind) = (token, kind as i32);
            }
        }
        Ok(Listing {
            tokens,
            kinds,
            merges: self.merges()?,
            split: self.split()?,
            template: inner.chat.as_ref().map(super::chat::Template::source).transpose()?,
        })
    }

    /// The library keeps its merges to itself, but writes them.
    fn merges(&self) -> Result<Vec<String>, TokenizerError> {
        let model = written(self.0.library.get_model())?;
        let missing = || TokenizerError::vocabulary("a list of merges", "none");
        let merges = model.get("merges").and_then(|merges| merges.as_array()).ok_or_else(missing)?;
        let pair = |merge: &serde_json::Value| match merge {
            serde_json::Value::String(text) => Some(text.clone()),
            pair => Some(format!("{} {}", pair.get(0)?.as_str()?, pair.get(1)?.as_str()?)),
        };
        merges
            .iter()
            .map(|merge| pair(merge).ok_or_else(|| TokenizerError::vocabulary("merges of two tokens", merge)))
            .collect()
    }

    fn split(&self) -> Result<Split, TokenizerError> {
        let steps = written(&self.0.library.get_pre_tokenizer())?;
        let nested = steps.get("pretokenizers").and_then(|steps| steps.as_array());
        let mut steps = nested.map_or(std::slice::from_ref(&steps), Vec::as_slice).iter();
        let pattern = steps.find_map(|step| step.get("pattern")?.get("Regex")?.as_str());
        let known = Split::ALL.into_iter().find(|split| pattern == Some(&*split.pattern()));
        let got = || pattern.unwrap_or("none").to_owned();
        known.ok_or_else(|| TokenizerError::vocabulary("the pattern of Qwen3.5 or Qwen2", got()))
    }
}

fn written(part: &impl serde::Serialize) -> Result<serde_json::Value, TokenizerError> {
    serde_json::to_value(part).map_err(|e| TokenizerError::vocabulary("a part that can be written", e))
}

#[cfg(test)]
mod tests {
    use super::super::Vocabulary;
    use super::*;

    #[test]
    fn a_vocabulary_comes_back_from_its_listing() {
        let json =
            std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/kvasir-tiny/tokenizer.json")).unwrap();
        let theirs = Tokenizer::from_json(&json, 4100, Some("{{ messages }}")).unwrap();
        let listing = theirs.listing().unwrap();
        assert_eq!((listing.split, listing.template.as_deref()), (Split::Qwen35, Some("{{ messages }}")));
        assert_eq!((&*listing.tokens[4099], listing.kinds[4099], listing.kinds[4093]), ("[PAD4099]", 5, 3));
        let again = Vocabulary {
            tokens: listing.tokens.iter().map(String::as_str).collect(),
            kinds: listing.kinds.iter().copied().map(i64::from).collect(),
            merges: listing.merges.iter().map(String::as_str).collect(),
            split: listing.split,
        };
        let again = Tokenizer::from_vocabulary(again, 4100, None).unwrap();
        for text in ["Once upon a time, there's 3.14.\n\n", "naïve café <|im_end|>x", "  two\tand  three \r\n"] {
            assert_eq!(again.encode(text).unwrap(), theirs.encode(text).unwrap(), "{text:?}");
        }
    }
}
