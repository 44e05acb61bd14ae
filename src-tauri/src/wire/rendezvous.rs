//! The words on a connection that a hub keeps ready at a gateway.
//!
//! A hub that nobody can dial dials out: TLS with both ends' pinned keys under [`PROTOCOL`], an upgrade of [`HUB_PATH`],
//! then it waits. Each word is a letter and a line feed. The gateway pings; with [`Word::Splice`] or [`Word::Ask`] it
//! takes the connection for one use, and from there on it is a connection as one that the gateway has dialled.

use std::time::Duration;

/// Name of the protocol, in TLS (ALPN) and in the upgrade.
pub const PROTOCOL: &str = "kvasir-hub/1";
/// The path that a hub asks for.
pub const HUB_PATH: &str = "/v1/hub";
/// How often a gateway pings a connection that waits: the idle limits of routers start at 60 s.
pub const PING_EVERY: Duration = Duration::from_secs(20);
/// Bytes of a word.
pub const WORD_BYTES: usize = 2;

/// A word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Gateway: are you there?
    Ping,
    /// Hub: I am.
    Pong,
    /// Gateway: a worker's upgrade follows.
    Splice,
    /// Gateway: a question over plain HTTP follows.
    Ask,
}

/// Two bytes that are no word.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected P, p, S or M and a line feed, got the bytes {0:?}")]
pub struct WordError([u8; WORD_BYTES]);

impl Word {
    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; WORD_BYTES] {
        let letter = match self {
            Self::Ping => b'P',
            Self::Pong => b'p',
            Self::Splice => b'S',
            Self::Ask => b'M',
        };
        [letter, b'\n']
    }

    /// The word that two bytes are.
    ///
    /// # Errors
    /// [`WordError`].
    pub fn read(bytes: [u8; WORD_BYTES]) -> Result<Self, WordError> {
        let words = [Self::Ping, Self::Pong, Self::Splice, Self::Ask];
        words.into_iter().find(|word| word.bytes() == bytes).ok_or(WordError(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_as_they_are_written_and_nothing_else_does() {
        for (word, bytes) in [(Word::Ping, b"P\n"), (Word::Pong, b"p\n"), (Word::Splice, b"S\n"), (Word::Ask, b"M\n")] {
            assert_eq!((word.bytes(), Word::read(*bytes)), (*bytes, Ok(word)));
        }
        assert_eq!(Word::read(*b"GE"), Err(WordError(*b"GE")));
    }
}
