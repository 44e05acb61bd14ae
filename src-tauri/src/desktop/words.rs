//! The sentences of the tray's menu and of notices, from the same catalogues as the window's.
//!
//! **Promises:** each language has every sentence with the same `{names}` in it, which a test checks; an unknown
//! language is English.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::engine::Language;

type Catalogue = BTreeMap<String, String>;

/// Each language's code and file; the first one is for everybody else.
const FILES: [(&str, &str); 5] = [
    ("en", include_str!("../../../ui/src/messages/en.json")),
    ("es", include_str!("../../../ui/src/messages/es.json")),
    ("fr", include_str!("../../../ui/src/messages/fr.json")),
    ("ja", include_str!("../../../ui/src/messages/ja.json")),
    ("ko", include_str!("../../../ui/src/messages/ko.json")),
];

fn catalogues() -> &'static [Catalogue; FILES.len()] {
    static READ: OnceLock<[Catalogue; FILES.len()]> = OnceLock::new();
    // A file that cannot be read is caught by the test; here it only says nothing.
    READ.get_or_init(|| FILES.map(|(_, file)| serde_json::from_str(file).unwrap_or_default()))
}

/// A language that is spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words(usize);

impl Words {
    /// The language that was chosen, or the desktop's.
    pub fn of(chosen: Language) -> Self {
        Self::named(match chosen {
            Language::Auto => return Self::named(&sys_locale::get_locale().unwrap_or_default()),
            Language::En => "en",
            Language::Es => "es",
            Language::Fr => "fr",
            Language::Ja => "ja",
            Language::Ko => "ko",
        })
    }

    /// The language of a locale such as `fr-CA`.
    fn named(locale: &str) -> Self {
        let code = locale.split(['-', '_', '.']).next().unwrap_or_default();
        Self(FILES.iter().position(|(known, _)| *known == code).unwrap_or(0))
    }

    /// Its code, such as `fr`.
    pub fn code(self) -> &'static str {
        FILES[self.0].0
    }

    /// The sentence under `key`.
    pub fn say(self, key: &str) -> String {
        catalogues()[self.0].get(key).cloned().unwrap_or_else(|| key.to_owned())
    }

    /// What a problem's code means to its reader, if the catalogue has it.
    pub fn advice(self, code: &str) -> Option<String> {
        catalogues()[self.0].get(&format!("problem.{code}")).cloned()
    }

    /// The sentence under `key` with one `{name}` filled in.
    pub fn say_with(self, key: &str, name: &str, value: &str) -> String {
        self.say(key).replace(&format!("{{{name}}}"), value)
    }

    /// A decimal number as it is written in this language.
    pub fn number(self, decimal: &str) -> String {
        decimal.replace('.', &self.say("number.decimal"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that a sentence wants filled in.
    fn names(sentence: &str) -> Vec<&str> {
        let mut names: Vec<&str> =
            sentence.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn every_language_has_every_sentence_with_the_same_names_in_it() {
        let [english, others @ ..] = FILES.map(|(code, file)| {
            let catalogue: Catalogue = serde_json::from_str(file).unwrap();
            (code, catalogue)
        });
        for (code, catalogue) in others {
            assert!(catalogue.keys().eq(english.1.keys()), "{code} has other keys than English");
            for (key, sentence) in &english.1 {
                assert_eq!(names(&catalogue[key]), names(sentence), "{code}: {key}");
                assert!(!catalogue[key].trim().is_empty(), "{code}: {key}");
            }
        }
    }

    #[test]
    fn a_locale_gives_its_language_and_an_unknown_one_english() {
        for (locale, code) in
            [("fr-CA", "fr"), ("ja_JP.UTF-8", "ja"), ("ko", "ko"), ("C", "en"), ("", "en"), ("de", "en")]
        {
            assert_eq!(Words::named(locale).code(), code, "{locale}");
        }
        assert_eq!(Words::of(Language::Es).number("0.00895"), "0,00895");
        assert_eq!(Words::of(Language::Ja).say_with("menu.pending", "kvr", "1"), "未払い：1 KVR");
    }
}
