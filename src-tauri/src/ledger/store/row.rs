//! Columns ↔ types: everything is TEXT or a BIGINT that is never negative; and statements of many rows.

use std::fmt::Write;
use std::str::FromStr;

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Row};

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

/// The values of a statement of many rows, in the order of their places.
#[derive(Default)]
pub(super) struct Values(Vec<Value>);

enum Value {
    Text(String),
    Number(i64),
}

impl Values {
    pub fn texts(texts: impl IntoIterator<Item = impl ToString>) -> Self {
        Self(texts.into_iter().map(|text| Value::Text(text.to_string())).collect())
    }

    pub fn text(&mut self, text: impl ToString) -> &mut Self {
        self.0.push(Value::Text(text.to_string()));
        self
    }

    pub fn number(&mut self, number: u64) -> Result<&mut Self, LedgerError> {
        self.0.push(Value::Number(signed(number)?));
        Ok(self)
    }

    /// The query of a text whose places these values fill. The text is ours, values never are part of it.
    pub fn into_query(self, text: String) -> Query<'static, Any, AnyArguments> {
        self.0.into_iter().fold(sqlx::query(AssertSqlSafe(text)), |query, value| match value {
            Value::Text(text) => query.bind(text),
            Value::Number(number) => query.bind(number),
        })
    }
}

/// Places of `rows` rows of `columns` values: `($1, $2), ($3, $4)`.
pub(super) fn places(rows: usize, columns: usize) -> String {
    let mut out = String::with_capacity(rows * columns * 6);
    for row in 0..rows {
        out.push_str(if row == 0 { "(" } else { ", (" });
        for column in 1..=columns {
            let comma = if column == 1 { "" } else { ", " };
            // Writing to a String does not fail.
            let _ = write!(out, "{comma}${}", row * columns + column);
        }
        out.push(')');
    }
    out
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

pub(super) fn kind(row: &AnyRow) -> Result<TransferKind, LedgerError> {
    let kind: String = row.try_get("kind")?;
    match kind.as_str() {
        "credit" => Ok(TransferKind::Credit),
        "void" => Ok(TransferKind::Void),
        _ => Err(LedgerError::Stored { column: "kind", what: "credit or void", got: kind }),
    }
}

pub(super) fn transfer(row: &AnyRow) -> Result<Transfer, LedgerError> {
    Ok(Transfer {
        id: row.try_get("id")?,
        wallet: text(row, "wallet")?,
        sequence: counter(row, "sequence")?,
        kind: kind(row)?,
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
