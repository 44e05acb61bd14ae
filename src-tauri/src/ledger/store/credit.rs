//! The gateway's side: meters become transfers, exactly once, however often and from wherever they are applied.
//!
//! Up to [`ROWS_PER_TRANSACTION_MAX`] rows are settled together, in a handful of statements: what a session's cursor
//! says is read and locked, moved by compare-and-set, and every transfer's id names its session and first byte; either
//! of the two alone makes a second credit fail. A row that the store refuses is found by trying each row apart: it is
//! reported, and its neighbours are credited.

use std::collections::BTreeMap;

use sqlx::{Any, Row, Transaction};

use super::dialect::Fault;
use super::row::{Values, counter, cursor, places, text};
use super::{Ledger, LedgerError};
use crate::ledger::entry::{Meter, Rate, TransferKind, pending_account};
use crate::ledger::settle::{AMOUNT_MAX, Cursor, Movement, Refusal, settle};
use crate::types::{NanoKvr, PublicKey, SessionId};

/// Rows of one transaction: a commit costs a disk flush, a long transaction keeps other writers out.
const ROWS_PER_TRANSACTION_MAX: usize = 100;

/// A meter row that was not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedMeter {
    /// Its session.
    pub session: SessionId,
    /// Its change.
    pub change_seq: u64,
    /// Why.
    pub refusal: Refusal,
}

impl RefusedMeter {
    pub(super) fn new(meter: &Meter, refusal: Refusal) -> Self {
        Self { session: meter.session, change_seq: meter.change_seq, refusal }
    }
}

/// What [`Ledger::apply`] did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Transfers written.
    pub transfers: u64,
    /// Σ of the credits.
    pub credited: NanoKvr,
    /// Σ of the voids.
    pub voided: NanoKvr,
    /// Rows that were skipped, and why.
    pub refused: Vec<RefusedMeter>,
}

impl Applied {
    fn add(&mut self, more: Self) {
        self.transfers += more.transfers;
        self.credited.0 = self.credited.0.saturating_add(more.credited.0);
        self.voided.0 = self.voided.0.saturating_add(more.voided.0);
        self.refused.extend(more.refused);
    }
}

impl Ledger {
    /// Credits what is new in these meter rows and takes back what was voided.
    ///
    /// Rows may be old, repeated or out of order, and other gateways may apply them at the same time.
    ///
    /// # Errors
    /// A store that fails. Transactions before the failing one stay; applying all rows again is right.
    pub async fn apply(&self, rows: &[Meter], rate: Rate) -> Result<Applied, LedgerError> {
        let mut applied = Applied::default();
        for rows in rows.chunks(ROWS_PER_TRANSACTION_MAX) {
            match (self.again(|| self.apply_together(rows, rate)).await?, rows) {
                (Ok(together), _) => applied.add(together),
                (Err(refusal), [row]) => applied.refused.push(RefusedMeter::new(row, refusal)),
                (Err(_), rows) => {
                    for row in rows {
                        match self.again(|| self.apply_together(std::slice::from_ref(row), rate)).await? {
                            Ok(alone) => applied.add(alone),
                            Err(refusal) => applied.refused.push(RefusedMeter::new(row, refusal)),
                        }
                    }
                }
            }
        }
        Ok(applied)
    }

    /// One transaction; a refusal is the store's, of some row among them, and nothing was written then.
    async fn apply_together(&self, rows: &[Meter], rate: Rate) -> Result<Result<Applied, Refusal>, LedgerError> {
        let mut tx = self.begin_write().await?;
        let mut book = self.read_book(&mut tx, rows).await?;
        let mut refused = Vec::new();
        for row in rows {
            if let Err(refusal) = book.enter(row, rate) {
                refused.push(RefusedMeter::new(row, refusal));
            }
        }
        if book.movements.is_empty() && book.moved().next().is_none() {
            tx.rollback().await?;
            return Ok(Ok(Applied { refused, ..Applied::default() }));
        }
        let written = match self.write_book(&mut tx, &book, rate).await {
            Ok(()) => tx.commit().await.map_err(LedgerError::from),
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => Ok(Ok(book.applied(refused))),
            Err(LedgerError::Overflow | LedgerError::TooLarge(_)) => {
                Ok(Err(Refusal::Overflow { what: "an account's sum" }))
            }
            Err(LedgerError::Store(error)) => self.refusal(error).map(Err),
            Err(error) => Err(error),
        }
    }

    /// The refusal that a store's error is, or the error.
    pub(super) fn refusal(&self, error: sqlx::Error) -> Result<Refusal, LedgerError> {
        match (self.fault(&error), error.as_database_error()) {
            (Fault::Rule, Some(rule)) => Ok(Refusal::Conflict(rule.message().to_owned())),
            _ => Err(error.into()),
        }
    }

    /// Reads and locks what these rows will change, in one order for all gateways: sessions, then accounts.
    async fn read_book(&self, tx: &mut Transaction<'static, Any>, rows: &[Meter]) -> Result<Book, LedgerError> {
        let mut book = Book::default();
        let mut sessions: Vec<SessionId> = rows.iter().map(|row| row.session).collect();
        let mut wallets: Vec<PublicKey> = rows.iter().map(|row| row.wallet).collect();
        sessions.sort_unstable();
        sessions.dedup();
        wallets.sort_unstable();
        wallets.dedup();
        let lock = self.dialect.for_update();

        let values = Values::texts(&sessions);
        let places_of = |count| places(1, count);
        let text_of = format!(
            "SELECT * FROM credit_cursor WHERE session IN {} ORDER BY session{lock}",
            places_of(sessions.len())
        );
        for row in values.into_query(text_of).fetch_all(&mut **tx).await? {
            let stored = cursor(&row)?;
            book.cursors.insert(text(&row, "session")?, (Some(stored.clone()), stored));
        }

        let accounts: BTreeMap<String, PublicKey> = wallets.iter().map(|w| (pending_account(w), *w)).collect();
        let values = Values::texts(accounts.keys());
        let text_of = format!(
            "SELECT id, credits - debits AS balance FROM account WHERE id IN {} ORDER BY id{lock}",
            places_of(accounts.len())
        );
        for row in values.into_query(text_of).fetch_all(&mut **tx).await? {
            if let Some(wallet) = accounts.get(row.try_get::<&str, _>("id")?) {
                book.pending.insert(*wallet, counter(&row, "balance")?);
            }
        }
        Ok(book)
    }

    async fn write_book(&self, tx: &mut Transaction<'static, Any>, book: &Book, rate: Rate) -> Result<(), LedgerError> {
        move_cursors(tx, book).await?;
        if book.movements.is_empty() {
            return Ok(());
        }
        let now_unix_ms = self.clock.unix_ms();
        let mut wallets: BTreeMap<PublicKey, WalletDelta> = BTreeMap::new();
        let mut accounts: BTreeMap<String, Sides> = BTreeMap::new();
        for Entry { wallet, kind, movement, .. } in &book.movements {
            let delta = wallets.entry(*wallet).or_default();
            delta.transfers += 1;
            if *kind == TransferKind::Credit {
                delta.bytes = delta.bytes.saturating_add(movement.to - movement.from);
                delta.credited_at = now_unix_ms;
            }
            let (debit, credit) = kind.accounts(wallet);
            for (account, debits, credits) in [(debit, movement.amount, 0), (credit, 0, movement.amount)] {
                let sides = accounts.entry(account).or_default();
                sides.debits = sides.debits.saturating_add(debits);
                sides.credits = sides.credits.saturating_add(credits);
            }
        }
        let sequences = count_transfers(tx, &wallets).await?;
        write_transfers(tx, book, sequences, rate, now_unix_ms).await?;
        // Last, because all gateways share the account that money comes from: it is locked for the commit alone.
        move_money(tx, &accounts).await
    }
}

/// A movement and whose it is.
struct Entry {
    session: SessionId,
    wallet: PublicKey,
    kind: TransferKind,
    movement: Movement,
}

/// What the rows of one transaction meet, and what they make of it.
#[derive(Default)]
struct Book {
    /// As stored, if it is, and as it will be.
    cursors: BTreeMap<SessionId, (Option<Cursor>, Cursor)>,
    /// Unpaid balances.
    pending: BTreeMap<PublicKey, u64>,
    movements: Vec<Entry>,
}

impl Book {
    fn enter(&mut self, meter: &Meter, rate: Rate) -> Result<(), Refusal> {
        let fresh = || (None, Cursor::start(meter));
        let before = self.cursors.get(&meter.session).map(|(_, now)| now.clone());
        let before = before.unwrap_or_else(|| fresh().1);
        let pending = self.pending.get(&meter.wallet).copied().unwrap_or(0);
        let step = settle(&before, meter, rate, pending)?;
        if (step.cursor.work_bytes, step.cursor.voided_bytes) == (before.work_bytes, before.voided_bytes) {
            return Ok(());
        }
        let amount = |movement: Option<Movement>| movement.map_or(0, |m| m.amount);
        self.pending.insert(meter.wallet, pending + amount(step.credit) - amount(step.void));
        self.cursors.entry(meter.session).or_insert_with(fresh).1 = step.cursor;
        for (kind, movement) in [(TransferKind::Credit, step.credit), (TransferKind::Void, step.void)] {
            let (session, wallet) = (meter.session, meter.wallet);
            self.movements.extend(movement.map(|movement| Entry { session, wallet, kind, movement }));
        }
        Ok(())
    }

    /// The cursors that move: session, as stored, and as it will be.
    fn moved(&self) -> impl Iterator<Item = (&SessionId, Option<&Cursor>, &Cursor)> {
        let all = self.cursors.iter().map(|(session, (before, after))| (session, before.as_ref(), after));
        all.filter(|(_, before, after)| *before != Some(*after))
    }

    fn applied(&self, refused: Vec<RefusedMeter>) -> Applied {
        let mut applied = Applied { transfers: self.movements.len() as u64, refused, ..Applied::default() };
        for Entry { kind, movement, .. } in &self.movements {
            let sum = match kind {
                TransferKind::Credit => &mut applied.credited.0,
                TransferKind::Void => &mut applied.voided.0,
            };
            *sum = sum.saturating_add(movement.amount);
        }
        applied
    }
}

async fn move_cursors(tx: &mut Transaction<'static, Any>, book: &Book) -> Result<(), LedgerError> {
    let (mut known, mut fresh) = (Values::default(), Values::default());
    let (mut known_rows, mut fresh_rows) = (0, 0);
    for (session, before, after) in book.moved() {
        let values = if before.is_some() { &mut known } else { &mut fresh };
        values.text(session).text(after.hub).text(after.wallet);
        values.number(after.work_bytes)?.number(after.voided_bytes)?.number(after.credited_nano)?;
        values.number(after.voided_nano)?.number(after.change_seq)?;
        match before {
            Some(before) => {
                values.number(before.work_bytes)?.number(before.voided_bytes)?;
                known_rows += 1;
            }
            None => fresh_rows += 1,
        }
    }
    if known_rows > 0 {
        let text = format!(
            "WITH moved (session, hub, wallet, work_bytes, voided_bytes, credited_nano, voided_nano, change_seq, \
             work_before, voided_before) AS (VALUES {}) \
             UPDATE credit_cursor SET work_bytes = moved.work_bytes, voided_bytes = moved.voided_bytes, \
             credited_nano = moved.credited_nano, voided_nano = moved.voided_nano, change_seq = moved.change_seq \
             FROM moved WHERE credit_cursor.session = moved.session AND credit_cursor.hub = moved.hub \
             AND credit_cursor.wallet = moved.wallet AND credit_cursor.work_bytes = moved.work_before \
             AND credit_cursor.voided_bytes = moved.voided_before",
            places(known_rows, 10)
        );
        if known.into_query(text).execute(&mut **tx).await?.rows_affected() != known_rows as u64 {
            return Err(LedgerError::Raced);
        }
    }
    if fresh_rows > 0 {
        let text = format!(
            "INSERT INTO credit_cursor (session, hub, wallet, work_bytes, voided_bytes, credited_nano, voided_nano, \
             change_seq) VALUES {} ON CONFLICT (session) DO NOTHING",
            places(fresh_rows, 8)
        );
        if fresh.into_query(text).execute(&mut **tx).await?.rows_affected() != fresh_rows as u64 {
            return Err(LedgerError::Raced);
        }
    }
    Ok(())
}

#[derive(Default)]
struct WalletDelta {
    transfers: u64,
    bytes: u64,
    credited_at: u64,
}

/// Counts the wallets' transfers and work bytes; gives each wallet's sequence before its first new transfer.
async fn count_transfers(
    tx: &mut Transaction<'static, Any>,
    wallets: &BTreeMap<PublicKey, WalletDelta>,
) -> Result<BTreeMap<PublicKey, u64>, LedgerError> {
    let mut values = Values::default();
    for (wallet, delta) in wallets {
        values.text(wallet).number(delta.transfers)?.number(delta.bytes)?.number(delta.credited_at)?;
    }
    let query = format!(
        "INSERT INTO wallet (address, sequence, work_bytes, last_credit_unix_ms) VALUES {} \
         ON CONFLICT (address) DO UPDATE SET sequence = wallet.sequence + excluded.sequence, \
         work_bytes = wallet.work_bytes + excluded.work_bytes, \
         last_credit_unix_ms = CASE WHEN excluded.last_credit_unix_ms > wallet.last_credit_unix_ms \
         THEN excluded.last_credit_unix_ms ELSE wallet.last_credit_unix_ms END RETURNING address, sequence",
        places(wallets.len(), 4)
    );
    let mut sequences = BTreeMap::new();
    for row in values.into_query(query).fetch_all(&mut **tx).await? {
        let wallet: PublicKey = text(&row, "address")?;
        let new = wallets.get(&wallet).map_or(0, |delta| delta.transfers);
        sequences.insert(wallet, counter(&row, "sequence")?.saturating_sub(new));
    }
    Ok(sequences)
}

async fn write_transfers(
    tx: &mut Transaction<'static, Any>,
    book: &Book,
    mut sequences: BTreeMap<PublicKey, u64>,
    rate: Rate,
    now_unix_ms: u64,
) -> Result<(), LedgerError> {
    let mut values = Values::default();
    for Entry { session, wallet, kind, movement } in &book.movements {
        let sequence = sequences.entry(*wallet).or_default();
        *sequence += 1;
        let (debit, credit) = kind.accounts(wallet);
        values.text(kind.transfer_id(session, movement.from)).text(wallet).number(*sequence)?;
        values.text(kind.as_str()).text(session).number(movement.from)?.number(movement.to)?.number(rate.0)?;
        values.number(movement.amount)?.text(debit).text(credit).number(now_unix_ms)?;
    }
    let text = format!(
        "INSERT INTO transfer (id, wallet, sequence, kind, session, bytes_from, bytes_to, rate, amount, debit, credit, \
         created_unix_ms) VALUES {}",
        places(book.movements.len(), 12)
    );
    values.into_query(text).execute(&mut **tx).await?;
    Ok(())
}

/// What is added to an account.
#[derive(Default, Clone, Copy)]
pub(super) struct Sides {
    pub debits: u64,
    pub credits: u64,
}

/// Adds to accounts; a sum that would not fit refuses all. SQLite alone would go on in floating point.
pub(super) async fn move_money(
    tx: &mut Transaction<'static, Any>,
    accounts: &BTreeMap<String, Sides>,
) -> Result<(), LedgerError> {
    // Not one upsert: its insert half alone, a debit without the credits before it, would break the account's CHECK.
    let values = Values::texts(accounts.keys());
    let names: Vec<String> = (1..=accounts.len()).map(|n| format!("(${n}, 0, 0)")).collect();
    let text =
        format!("INSERT INTO account (id, debits, credits) VALUES {} ON CONFLICT (id) DO NOTHING", names.join(", "));
    values.into_query(text).execute(&mut **tx).await?;

    let mut values = Values::default();
    for (account, sides) in accounts {
        values.text(account).number(sides.debits)?.number(sides.credits)?;
        values.number(AMOUNT_MAX.saturating_sub(sides.debits))?.number(AMOUNT_MAX.saturating_sub(sides.credits))?;
    }
    let text = format!(
        "WITH more (id, debits, credits, debits_max, credits_max) AS (VALUES {}) \
         UPDATE account SET debits = account.debits + more.debits, credits = account.credits + more.credits \
         FROM more WHERE account.id = more.id AND account.debits <= more.debits_max \
         AND account.credits <= more.credits_max",
        places(accounts.len(), 5)
    );
    match values.into_query(text).execute(&mut **tx).await?.rows_affected() {
        moved if moved == accounts.len() as u64 => Ok(()),
        _ => Err(LedgerError::Overflow),
    }
}
