//! Columns ↔ types: everything is TEXT or a BIGINT that is never negative.

use std::str::FromStr;

use sqlx::Row;
use sqlx::any::AnyRow;

use super::LedgerError;
use crate::ledger::entry::{Meter, Rate, Transfer, TransferKind};
use crate::ledger::settle::Cursor;
use crate::types::NanoKvr;

/// A counter as the store holds it.
pub(super) fn signed(value: u64) -> Result<i64, LedgerError> {
    i64::try_from(value).map_err(|_| LedgerError::TooLarge(value))
}

/// A BIGINT column that is never negative.
pub(super) fn counter(row: &AnyRow, column: &'static str) -> Result<u64, LedgerError> {
    let value: i64 = row.try_get(column)?;
    u64::try_from(value).map_err(|_| LedgerError::Stored { column, what: "a counter", got: value.to_string() })
}

/// A TEXT column of a type with a text form.
pub(super) fn text<T: FromStr>(row: &AnyRow, column: &'static str) -> Result<T, LedgerError> {
    let value: String = row.try_get(column)?;
    value.parse().map_err(|_| LedgerError::Stored { column, what: "a key or an id", got: value })
}

pub(super) fn meter(row: &AnyRow) -> Result<Meter, LedgerError> {
    Ok(Meter {
        hub: text(row, "hub")?,
        session: text(row, "session")?,
        wallet: text(row, "wallet")?,
        epoch: counter(row, "epoch")?,
        assignments: counter(row, "assignments")?,
        work_bytes: counter(row, "work_bytes")?,
        voided_bytes: counter(row, "voided_bytes")?,
        raw_bytes: counter(row, "raw_bytes")?,
        change_seq: counter(row, "change_seq")?,
        r#final: counter(row, "closed")? != 0,
    })
}

pub(super) fn cursor(row: &AnyRow) -> Result<Cursor, LedgerError> {
    Ok(Cursor {
        hub: text(row, "hub")?,
        wallet: text(row, "wallet")?,
        change_seq: counter(row, "change_seq")?,
        work_bytes: counter(row, "work_bytes")?,
        voided_bytes: counter(row, "voided_bytes")?,
        credited_nano: counter(row, "credited_nano")?,
        voided_nano: counter(row, "voided_nano")?,
    })
}

pub(super) fn transfer(row: &AnyRow) -> Result<Transfer, LedgerError> {
    let kind: String = row.try_get("kind")?;
    let kind = match kind.as_str() {
        "credit" => TransferKind::Credit,
        "void" => TransferKind::Void,
        _ => return Err(LedgerError::Stored { column: "kind", what: "credit or void", got: kind }),
    };
    Ok(Transfer {
        id: row.try_get("id")?,
        wallet: text(row, "wallet")?,
        sequence: counter(row, "sequence")?,
        kind,
        session: text(row, "session")?,
        bytes_from: counter(row, "bytes_from")?,
        bytes_to: counter(row, "bytes_to")?,
        rate: Rate(counter(row, "rate")?),
        amount_nano_kvr: NanoKvr(counter(row, "amount")?),
        debit: row.try_get("debit")?,
        credit: row.try_get("credit")?,
        created_unix_ms: counter(row, "created_unix_ms")?,
    })
}
