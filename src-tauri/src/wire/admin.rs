//! What an operator asks a running hub over its admin socket: one JSON line there, one JSON line back.
//!
//! The socket belongs to the hub's owner, so what comes over it is trusted to be meant, not to be well formed.

use serde::{Deserialize, Serialize};

use super::text::plain_text;
use crate::types::{PublicKey, SessionId, WorkerId};

/// Name of the socket in the hub's state directory.
pub const ADMIN_SOCKET: &str = "admin.sock";
/// Longest question.
pub const QUESTION_BYTES_MAX: usize = 4 * 1024;
/// Longest answer: every session that a hub may have, with room to spare.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminQuestion {
    /// Who is connected, and who is kept out.
    Workers {},
    /// Let the wallet's workers finish what they have, send them away, and keep them away for a while.
    Drain {
        /// The wallet.
        wallet: PublicKey,
        /// How long it is kept away, in seconds.
        seconds: u64,
    },
    /// Let all workers finish what they have, send them away, and take none for a while; other hubs take them.
    Close {
        /// How long, in seconds; 0 opens the hub again.
        seconds: u64,
    },
    /// End the wallet's sessions now; it may come back.
    Kick {
        /// The wallet.
        wallet: PublicKey,
    },
    /// End the wallet's sessions now and keep it out until it is let in again.
    Ban {
        /// The wallet.
        wallet: PublicKey,
        /// Why, for whoever reads the list.
        #[serde(deserialize_with = "plain_text")]
        reason: String,
    },
    /// Let a wallet in again that was banned or quarantined.
    Unban {
        /// The wallet.
        wallet: PublicKey,
    },
}

/// A worker's session at the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Who is paid.
    pub wallet: PublicKey,
    /// The installation.
    pub worker_id: WorkerId,
    /// The session.
    pub session_id: SessionId,
    /// Program and version.
    pub agent: String,
    /// Milliseconds since it was admitted.
    pub age_ms: u64,
    /// Accepted assignments.
    pub assignments: u64,
    /// Their work bytes.
    pub work_bytes: u64,
    /// Work bytes that no longer count.
    pub voided_bytes: u64,
    /// Bytes of frames, both ways.
    pub raw_bytes: u64,
}

/// A wallet that is kept out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BanView {
    /// The wallet.
    pub wallet: PublicKey,
    /// Milliseconds since 1970; 0 when the list does not say.
    pub since_unix_ms: u64,
    /// Who said so: `operator`, or `backbone` for a worker that was caught.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// Who is connected, and who is kept out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersView {
    /// Sessions, by wallet and installation.
    pub sessions: Vec<SessionView>,
    /// Wallets that are kept out until they are let in again.
    pub banned: Vec<BanView>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminAnswer {
    /// To [`AdminQuestion::Workers`].
    Workers(WorkersView),
    /// What was done: how many sessions it met.
    Done {
        /// Sessions.
        sessions: usize,
    },
    /// Nothing was done.
    Refused {
        /// Why.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_say_what_they_do_and_nothing_else_is_read() {
        let wallet = PublicKey([7; 32]);
        let kick = AdminQuestion::Kick { wallet };
        let json = serde_json::to_string(&kick).unwrap();
        assert_eq!(json, format!(r#"{{"do":"kick","wallet":"{wallet}"}}"#));
        assert_eq!(serde_json::from_str::<AdminQuestion>(&json).unwrap(), kick);
        for bad in [r#"{"do":"kick"}"#, r#"{"do":"stop"}"#, r#"{"do":"workers","wallet":"x"}"#, "{}", ""] {
            assert!(serde_json::from_str::<AdminQuestion>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_reason_cannot_move_the_cursor_of_whoever_reads_the_list() {
        let wallet = PublicKey([7; 32]);
        let json = serde_json::json!({ "do": "ban", "wallet": wallet, "reason": "bad\u{1b}[2J\nrows" });
        let Ok(AdminQuestion::Ban { reason, .. }) = serde_json::from_value(json) else { panic!("a ban") };
        assert!(reason.chars().all(|c| !c.is_control()), "{reason:?}");
    }
}
