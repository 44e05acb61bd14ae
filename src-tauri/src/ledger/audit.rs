//! Recomputes every balance from the transfers and names what does not agree.
//!
//! Balances, cursors and sequences are caches; the immutable transfers are the truth. The caller feeds all rows of
//! **one** snapshot: between two snapshots a commit may land, and a right ledger would look wrong.

use std::collections::HashMap;

use serde::Serialize;

use super::entry::{Transfer, TransferKind};
use super::settle::Cursor;
use crate::types::{PublicKey, SessionId};

/// Findings kept in a report; the rest are only counted.
const FINDINGS_MAX: usize = 100;

/// One thing that does not agree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// A transfer that contradicts itself.
    #[error("transfer {id}: expected {what} {expected}, got {got}")]
    Transfer {
        /// Its id.
        id: String,
        /// The field.
        what: &'static str,
        /// By the rules.
        expected: String,
        /// As stored.
        got: String,
    },
    /// A cached value that differs from the transfers.
    #[error("{whose}: expected {what} {expected}, got {got}")]
    Cache {
        /// Account, session or wallet.
        whose: String,
        /// The value.
        what: &'static str,
        /// From the transfers.
        expected: i128,
        /// As stored.
        got: i128,
    },
    /// A cursor beyond what the hub metered.
    #[error("session {session}: expected {what} of at most {metered}, got a cursor at {cursor}")]
    OverMeter {
        /// The session.
        session: SessionId,
        /// `work_bytes` or `voided_bytes`.
        what: &'static str,
        /// The meter's value.
        metered: u64,
        /// The cursor's.
        cursor: u64,
    },
    /// A wallet that owes money.
    #[error("{account}: expected a balance of at least 0, got {balance}")]
    Negative {
        /// The account.
        account: String,
        /// Credits − debits.
        balance: i128,
    },
}

/// The outcome of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Transfers read.
    pub transfers: u64,
    /// Wallets read.
    pub wallets: u64,
    /// Sessions read.
    pub sessions: u64,
    /// Σ credits − Σ voids, in nano-KVR.
    pub issued_nano: i128,
    /// How many findings there were; 0 = every invariant holds.
    pub findings_total: u64,
    /// The first of them, as sentences.
    pub findings: Vec<String>,
}

impl Report {
    /// Whether every invariant holds.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings_total == 0
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Sides {
    debits: i128,
    credits: i128,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    work_to: u64,
    void_to: u64,
    credited: i128,
    voided: i128,
}

#[derive(Debug, Default, Clone, Copy)]
struct WalletSums {
    sequence: u64,
    work_bytes: i128,
}

/// A check in progress: feed transfers first (by wallet and sequence), then the caches, then [`Audit::finish`].
#[derive(Debug, Default)]
pub struct Audit {
    report: Report,
    accounts: HashMap<String, Sides>,
    sessions: HashMap<SessionId, Sums>,
    wallets: HashMap<PublicKey, WalletSums>,
}

impl Audit {
    fn find(&mut self, finding: &Finding) {
        self.report.findings_total += 1;
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding.to_string());
        }
    }

    fn cache(&mut self, whose: impl Into<String>, what: &'static str, expected: i128, got: i128) {
        if expected != got {
            self.find(&Finding::Cache { whose: whose.into(), what, expected, got });
        }
    }

    /// Takes in a transfer and checks it against the rules and its session's earlier ones.
    pub fn transfer(&mut self, t: &Transfer) {
        self.report.transfers += 1;
        let session = self.sessions.get(&t.session).copied().unwrap_or_default();
        let wallet = self.wallets.get(&t.wallet).copied().unwrap_or_default();
        let amount = i128::from(t.amount_nano_kvr.0);
        let bytes = i128::from(t.bytes_to) - i128::from(t.bytes_from);
        let worth = bytes * i128::from(t.rate.0);
        let (debit, credit) = t.kind.accounts(&t.wallet);
        let fits = |what, ok: bool, expected: String, got: String| {
            (!ok).then(|| Finding::Transfer { id: t.id.clone(), what, expected, got })
        };
        let from = match t.kind {
            TransferKind::Credit => session.work_to,
            TransferKind::Void => session.void_to,
        };
        let id = t.kind.transfer_id(&t.session, t.bytes_from);
        let next = wallet.sequence + 1;
        // A void takes at most what its bytes were worth, and voids that found nothing to take leave a gap.
        let (worth_fits, from_fits) = match t.kind {
            TransferKind::Credit => (amount == worth, t.bytes_from == from),
            TransferKind::Void => (amount <= worth, t.bytes_from >= from),
        };
        let findings = [
            fits("id", t.id == id, id, t.id.clone()),
            fits("debit", t.debit == debit, debit, t.debit.clone()),
            fits("credit", t.credit == credit, credit, t.credit.clone()),
            fits("sequence", t.sequence == next, next.to_string(), t.sequence.to_string()),
            fits("start", from_fits, from.to_string(), t.bytes_from.to_string()),
            fits("amount", worth_fits && amount > 0, worth.to_string(), amount.to_string()),
        ];
        for finding in findings.iter().flatten() {
            self.find(finding);
        }
        self.accounts.entry(t.debit.clone()).or_default().debits += amount;
        self.accounts.entry(t.credit.clone()).or_default().credits += amount;
        let sums = self.sessions.entry(t.session).or_default();
        let wallet = self.wallets.entry(t.wallet).or_default();
        wallet.sequence = t.sequence;
        match t.kind {
            TransferKind::Credit => {
                (sums.work_to, sums.credited) = (t.bytes_to, sums.credited + amount);
                wallet.work_bytes += bytes;
                self.report.issued_nano += amount;
            }
            TransferKind::Void => {
                (sums.void_to, sums.voided) = (t.bytes_to, sums.voided + amount);
                self.report.issued_nano -= amount;
            }
        }
    }

    /// Checks an account's cached sides.
    pub fn account(&mut self, id: &str, debits: i128, credits: i128) {
        let expected = self.accounts.remove(id).unwrap_or_default();
        self.cache(id, "debits", expected.debits, debits);
        self.cache(id, "credits", expected.credits, credits);
        if id.starts_with("wallet:") && credits < debits {
            self.find(&Finding::Negative { account: id.to_owned(), balance: credits - debits });
        }
    }

    /// Checks a session's cursor, against its meter too when the hub shares this ledger.
    pub fn cursor(&mut self, session: SessionId, cursor: &Cursor, metered: Option<(u64, u64)>) {
        self.report.sessions += 1;
        let sums = self.sessions.remove(&session).unwrap_or_default();
        let whose = format!("session {session}");
        self.cache(whose.clone(), "credited bytes", sums.work_to.into(), cursor.work_bytes.into());
        self.cache(whose.clone(), "credited nano-KVR", sums.credited, cursor.credited_nano.into());
        self.cache(whose.clone(), "voided nano-KVR", sums.voided, cursor.voided_nano.into());
        if sums.void_to > cursor.voided_bytes {
            self.cache(whose, "voided bytes", sums.void_to.into(), cursor.voided_bytes.into());
        }
        let (work, voided) = metered.unwrap_or((cursor.work_bytes, cursor.voided_bytes));
        for (what, metered, cursor) in
            [("work_bytes", work, cursor.work_bytes), ("voided_bytes", voided, cursor.voided_bytes)]
        {
            if cursor > metered {
                self.find(&Finding::OverMeter { session, what, metered, cursor });
            }
        }
    }

    /// Checks a wallet's cached counters.
    pub fn wallet(&mut self, address: PublicKey, sequence: u64, work_bytes: u64) {
        self.report.wallets += 1;
        let sums = self.wallets.remove(&address).unwrap_or_default();
        let whose = format!("wallet {address}");
        self.cache(whose.clone(), "sequence", sums.sequence.into(), sequence.into());
        self.cache(whose, "work bytes", sums.work_bytes, work_bytes.into());
    }

    /// Names everything that has transfers and no cache row, and gives the report.
    #[must_use]
    pub fn finish(mut self) -> Report {
        for (id, sides) in std::mem::take(&mut self.accounts) {
            self.cache(id.clone(), "debits", sides.debits, 0);
            self.cache(id, "credits", sides.credits, 0);
        }
        for (session, sums) in std::mem::take(&mut self.sessions) {
            self.cache(format!("session {session}"), "credited nano-KVR", sums.credited, 0);
            self.cache(format!("session {session}"), "voided nano-KVR", sums.voided, 0);
        }
        for (address, sums) in std::mem::take(&mut self.wallets) {
            self.cache(format!("wallet {address}"), "sequence", sums.sequence.into(), 0);
        }
        self.report
    }
}
