//! Recomputes every balance from the transfers and names what does not agree.
//!
//! Balances, cursors and sequences are caches; the immutable transfers are the truth. The store adds transfers up, by
//! session and by wallet, and the caller feeds the sums and all caches of **one** snapshot: between two snapshots a
//! commit may land, and a right ledger would look wrong.

use std::collections::HashMap;

use serde::Serialize;

use super::entry::{Transfer, TransferKind, pending_account, settled_account};
use super::settle::Cursor;
use crate::types::{PublicKey, SessionId};

/// Findings kept in a report; the rest are only counted.
const FINDINGS_MAX: usize = 100;
/// A prime: [`Chain::moment`] is a sum of squares modulo this, small enough that a square fits 64 bits.
pub const MOMENT_PRIME: i64 = 2_147_483_629;

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
    /// Transfers that leave something out or cover it twice.
    #[error("{whose}: expected {what} from 0 to {last} once each, got a gap or an overlap")]
    Chain {
        /// Session or wallet.
        whose: String,
        /// What they cover.
        what: &'static str,
        /// One past the last.
        last: i128,
    },
    /// Transfers of one session for two wallets.
    #[error("session {session}: expected transfers of one wallet, got {one} and {other}")]
    Wallets {
        /// The session.
        session: SessionId,
        /// One.
        one: PublicKey,
        /// Another.
        other: PublicKey,
    },
    /// A cursor beyond what the hub metered.
    #[error(
        "session {session}: expected {what} of at most {metered}, got a cursor at {cursor}: the meters are older than the \
         credits; run kvasir ledger repair"
    )]
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
    /// Σ settlements, in nano-KVR.
    pub settled_nano: i128,
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

/// The sums of transfers that continue each other: of a session, or a wallet's settlements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// How many.
    pub transfers: i64,
    /// The least start.
    pub first: i64,
    /// The greatest end.
    pub last: i64,
    /// Σ (end − start).
    pub covered: i64,
    /// Σ (end² − start²), each square modulo [`MOMENT_PRIME`].
    pub moment: i64,
    /// Σ of the amounts.
    pub amount: i64,
}

impl Chain {
    /// Whether the transfers cover 0..last once each.
    ///
    /// In a chain every end is another's start, so both cancel in any sum but for the 0 and the last. Two such sums are
    /// looked at: a gap changes the first unless an overlap of its very length makes up for it, and then the second.
    fn is_whole(&self) -> bool {
        let square = |n: i64| i128::from(n % MOMENT_PRIME).pow(2) % i128::from(MOMENT_PRIME);
        let moment = i128::from(self.moment).rem_euclid(MOMENT_PRIME.into());
        self.first == 0 && self.covered == self.last && moment == square(self.last)
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Sides {
    debits: i128,
    credits: i128,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    wallet: Option<PublicKey>,
    work_to: i128,
    void_to: i128,
    credited: i128,
    voided: i128,
}

#[derive(Debug, Default, Clone, Copy)]
struct WalletSums {
    sequence: i128,
    work_bytes: i128,
}

/// A check in progress: feed sums first, then the caches, then [`Audit::finish`].
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

    /// Names what is wrong with a transfer that contradicts itself.
    pub fn odd_transfer(&mut self, t: &Transfer) {
        let bytes = i128::from(t.bytes_to) - i128::from(t.bytes_from);
        let (amount, worth) = (i128::from(t.amount_nano_kvr.0), bytes * i128::from(t.rate.0));
        let (debit, credit) = t.kind.accounts(&t.wallet);
        let id = t.kind.transfer_id(&t.session, t.bytes_from);
        // A void takes at most what its bytes were worth.
        let is_worth = amount > 0 && if t.kind == TransferKind::Credit { amount == worth } else { amount <= worth };
        let fields = [
            ("id", t.id == id, id, t.id.clone()),
            ("debit", t.debit == debit, debit, t.debit.clone()),
            ("credit", t.credit == credit, credit, t.credit.clone()),
            ("amount", is_worth, worth.to_string(), amount.to_string()),
        ];
        for (what, fits, expected, got) in fields {
            if !fits {
                self.find(&Finding::Transfer { id: t.id.clone(), what, expected, got });
            }
        }
    }

    /// Takes in a session's transfers of one kind, whose wallets lie between the two given.
    pub fn session(&mut self, session: SessionId, kind: TransferKind, wallets: (PublicKey, PublicKey), chain: &Chain) {
        let (one, other) = wallets;
        self.report.transfers += u64::try_from(chain.transfers).unwrap_or(0);
        let known = self.sessions.get(&session).and_then(|sums| sums.wallet).unwrap_or(one);
        for other in [one, other] {
            if other != known {
                self.find(&Finding::Wallets { session, one: known, other });
            }
        }
        // Voids that found nothing to take leave a gap.
        if kind == TransferKind::Credit && !chain.is_whole() {
            let (whose, last) = (format!("session {session}"), chain.last.into());
            self.find(&Finding::Chain { whose, what: "credited bytes", last });
        }
        let (amount, last) = (i128::from(chain.amount), i128::from(chain.last));
        let sums = self.sessions.entry(session).or_default();
        sums.wallet = Some(known);
        match kind {
            TransferKind::Credit => {
                (sums.work_to, sums.credited) = (last, amount);
                self.wallets.entry(known).or_default().work_bytes += i128::from(chain.covered);
                self.report.issued_nano += amount;
            }
            TransferKind::Void => {
                (sums.void_to, sums.voided) = (last, amount);
                self.report.issued_nano -= amount;
            }
        }
        let (debit, credit) = kind.accounts(&known);
        self.moved(debit, credit, amount);
    }

    /// Takes in a wallet's settlements.
    pub fn settlements(&mut self, wallet: PublicKey, chain: &Chain) {
        if !chain.is_whole() {
            let (whose, last) = (format!("wallet {wallet}"), chain.last.into());
            self.find(&Finding::Chain { whose, what: "settled nano-KVR", last });
        }
        self.report.transfers += u64::try_from(chain.transfers).unwrap_or(0);
        self.report.settled_nano += i128::from(chain.covered);
        self.moved(pending_account(&wallet), settled_account(&wallet), chain.covered.into());
    }

    /// Names rows that a rule of the store forbids and that are there all the same.
    pub fn forbidden(&mut self, what: &'static str, rows: i64) {
        self.cache("the ledger", what, 0, rows.into());
    }

    /// Takes in how many transfers a wallet has, and the least and greatest of their sequences.
    pub fn sequences(&mut self, wallet: PublicKey, transfers: i64, first: i64, last: i64) {
        self.wallets.entry(wallet).or_default().sequence = last.into();
        self.cache(format!("wallet {wallet}"), "first sequence", 1, first.into());
        self.cache(format!("wallet {wallet}"), "transfers up to its last sequence", last.into(), transfers.into());
    }

    fn moved(&mut self, debit: String, credit: String, amount: i128) {
        self.accounts.entry(debit).or_default().debits += amount;
        self.accounts.entry(credit).or_default().credits += amount;
    }

    /// Checks a batch's total against the settlements up to it.
    pub fn batch(&mut self, batch: u64, expected: i128, total: i128) {
        self.cache(format!("batch {batch}"), "total", expected, total);
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
        if let Some(other) = sums.wallet.filter(|wallet| *wallet != cursor.wallet) {
            self.find(&Finding::Wallets { session, one: cursor.wallet, other });
        }
        let whose = format!("session {session}");
        self.cache(whose.clone(), "credited bytes", sums.work_to, cursor.work_bytes.into());
        self.cache(whose.clone(), "credited nano-KVR", sums.credited, cursor.credited_nano.into());
        self.cache(whose.clone(), "voided nano-KVR", sums.voided, cursor.voided_nano.into());
        if sums.void_to > cursor.voided_bytes.into() {
            self.cache(whose, "voided bytes", sums.void_to, cursor.voided_bytes.into());
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
        self.cache(whose.clone(), "sequence", sums.sequence, sequence.into());
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
            self.cache(format!("wallet {address}"), "sequence", sums.sequence, 0);
        }
        self.report
    }
}
