//! What the owner wants, restarts included: contribute or not, a pause, which devices, how large a download may be.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::facts::{Pause, PauseKind};
use super::kept::Kept;
use crate::types::PublicKey;

/// The file.
pub(super) const INTENT: Kept = Kept { name: "intent.json", what: "what Contribute and Pause were set to" };
/// How long the short pause is.
pub(super) const HOUR_S: u64 = 3600;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Intent {
    /// Contribute was pressed and not taken back.
    pub contributing: bool,
    /// A pause that was asked for.
    pub pause: Option<Pause>,
    /// Devices that are switched off.
    pub off: BTreeSet<String>,
    /// The large download that was agreed to.
    pub agreed: Option<Agreed>,
}

/// A yes to a large download, which is none to another operator's, nor to a clearly larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Agreed {
    /// Whose experts.
    pub operator: PublicKey,
    /// Most bytes of one download.
    pub bytes: u64,
}

impl Agreed {
    /// The yes to `bytes` of an operator's experts; a slice that is a little larger later is no other question.
    pub fn to(operator: PublicKey, bytes: u64) -> Self {
        Self { operator, bytes: bytes.saturating_add(bytes / 4) }
    }
}

impl Intent {
    /// Most bytes of a download of this operator's experts that need no question.
    pub fn agreed_bytes(&self, operator: &PublicKey) -> u64 {
        self.agreed.filter(|agreed| agreed.operator == *operator).map_or(0, |agreed| agreed.bytes)
    }
}

/// A pause that begins now.
pub(super) fn pause_from(kind: PauseKind, now_unix_s: u64) -> Pause {
    let until_unix_s = (kind == PauseKind::Hour).then_some(now_unix_s.saturating_add(HOUR_S));
    Pause { kind, until_unix_s }
}

/// What is left of a pause now, `passed_s` after it began or the program did: wall clocks jump, and no jump makes an
/// hour longer.
pub(super) fn left_of(pause: Pause, now_unix_s: u64, passed_s: u64) -> Option<Pause> {
    let most = now_unix_s.saturating_add(HOUR_S.saturating_sub(passed_s));
    match (pause.kind, pause.until_unix_s) {
        (PauseKind::UntilResumed, _) => Some(pause),
        (PauseKind::Hour, Some(until)) => {
            Some(Pause { until_unix_s: Some(until.min(most)), ..pause }).filter(|_| until.min(most) > now_unix_s)
        }
        (PauseKind::Hour, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yes_is_for_one_operator_and_for_little_more_than_was_asked() {
        let (ours, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let intent = Intent { agreed: Some(Agreed::to(ours, 2000)), ..Intent::default() };
        assert_eq!((intent.agreed_bytes(&ours), intent.agreed_bytes(&other)), (2500, 0));
        assert_eq!(Intent::default().agreed_bytes(&ours), 0);
        // A yes without a number, of before, is asked for once more.
        let before: Intent = serde_json::from_str(r#"{"contributing":true,"download_agreed":true}"#).unwrap();
        assert_eq!((before.contributing, before.agreed), (true, None));
    }

    #[test]
    fn an_hour_is_an_hour_whatever_clocks_do() {
        let now = 1_800_000_000;
        let hour = pause_from(PauseKind::Hour, now);
        let left_after = |passed, at| left_of(hour, at, passed).map(|pause| pause.until_unix_s.unwrap() - at);
        let left = |at| left_after(0, at);
        assert_eq!(left(now), Some(HOUR_S));
        assert_eq!(left(now + 3599), Some(1));
        assert_eq!(left(now + HOUR_S), None);
        assert_eq!(left(now + 1_000_000), None, "set forward");
        assert_eq!(left(now - 1_000_000), Some(HOUR_S), "set back");
        assert_eq!(left_after(3000, now - 1_000_000), Some(600), "set back meanwhile");
        assert_eq!(left_after(HOUR_S, now - 1_000_000), None);
        let always = pause_from(PauseKind::UntilResumed, now);
        assert_eq!(left_of(always, now + 1_000_000_000, 2 * HOUR_S), Some(always));
    }
}
