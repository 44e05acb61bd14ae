//! What needs SQL to see: triggers, broken rows, a transfer that outlived its cursor, schemas of other programs.

use super::*;
use crate::ledger::entry::{Meter, Rate};
use crate::ledger::settle::Refusal;
use crate::types::{Hex, PublicKey};

const HUB: PublicKey = PublicKey([1; 32]);
const WALLET: PublicKey = PublicKey([2; 32]);

fn meter(work_bytes: u64, voided_bytes: u64, change_seq: u64) -> Meter {
    Meter {
        hub: HUB,
        session: Hex([3; 16]),
        wallet: WALLET,
        epoch: 1,
        assignments: work_bytes / 12_288,
        work_bytes,
        voided_bytes,
        raw_bytes: work_bytes / 4,
        change_seq,
        r#final: false,
    }
}

/// A ledger with two credits and a void.
async fn books() -> Ledger {
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let rows = [meter(12_288, 0, 1), meter(122_880, 12_288, 2)];
    assert_eq!(ledger.apply(&rows, Rate(7)).await.unwrap().transfers, 3);
    assert!(ledger.check().await.unwrap().is_sound());
    ledger
}

async fn run(ledger: &Ledger, statement: &'static str) -> Result<u64, sqlx::Error> {
    sqlx::query(statement).execute(&ledger.pool).await.map(|done| done.rows_affected())
}

#[tokio::test]
async fn a_transfer_is_never_updated_deleted_or_replaced() {
    let ledger = books().await;
    let before = ledger.credits(WALLET, 0).await.unwrap();
    for statement in [
        "UPDATE transfer SET amount = amount + 1",
        "UPDATE transfer SET created_unix_ms = 0 WHERE sequence = 1",
        "DELETE FROM transfer",
        "DELETE FROM transfer WHERE sequence = 2",
        "INSERT OR REPLACE INTO transfer SELECT id, wallet, sequence, kind, session, bytes_from, bytes_to, rate, 1, debit, \
         credit, created_unix_ms FROM transfer WHERE sequence = 1",
    ] {
        let error = run(&ledger, statement).await.unwrap_err().to_string();
        assert!(error.contains("a transfer is immutable"), "{statement}: {error}");
    }
    assert_eq!(ledger.credits(WALLET, 0).await.unwrap(), before);
}

#[tokio::test]
async fn the_check_finds_every_kind_of_broken_row() {
    let transfer = "INSERT INTO transfer SELECT 'x', wallet, 4, kind, session, bytes_from, bytes_to, rate, amount, debit, \
                    credit, created_unix_ms FROM transfer WHERE sequence = 1";
    // The session's transfers end at 122880; this one begins a byte later.
    let gap = "INSERT INTO transfer SELECT session || ':122881', wallet, 4, kind, session, 122881, 122882, 7, 7, debit, \
               credit, created_unix_ms FROM transfer WHERE sequence = 1";
    let other = "INSERT INTO transfer SELECT session || ':122880', 'HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk', 1, \
                 kind, session, 122880, 122881, 7, 7, debit, credit, created_unix_ms FROM transfer WHERE sequence = 1";
    for (statement, finding) in [
        ("UPDATE account SET credits = credits + 1 WHERE id LIKE '%pending'", "credits"),
        ("UPDATE account SET debits = debits - 1 WHERE id = 'issuance'", "debits"),
        ("DELETE FROM account WHERE id = 'void'", "void"),
        ("INSERT INTO account (id, debits, credits) VALUES ('wallet:x:pending', 0, 5)", "wallet:x:pending"),
        ("UPDATE credit_cursor SET work_bytes = work_bytes + 1", "credited bytes"),
        ("UPDATE credit_cursor SET credited_nano = credited_nano + 1", "credited nano-KVR"),
        ("UPDATE credit_cursor SET voided_nano = 0", "voided nano-KVR"),
        ("DELETE FROM credit_cursor", "session"),
        ("UPDATE wallet SET sequence = 7", "sequence"),
        ("UPDATE wallet SET work_bytes = 0", "work bytes"),
        ("DELETE FROM wallet", "wallet"),
        (transfer, "transfer x: expected id"),
        (gap, "a gap or an overlap"),
        (other, "expected transfers of one wallet"),
    ] {
        let ledger = books().await;
        assert_eq!(run(&ledger, statement).await.unwrap(), 1, "{statement}");
        let report = ledger.check().await.unwrap();
        assert!(!report.is_sound(), "{statement}");
        assert!(report.findings.iter().any(|f| f.contains(finding)), "{statement}: {:?}", report.findings);
    }
}

/// Every length agrees in sum: what is left out is as long as what is covered twice.
#[tokio::test]
async fn the_check_finds_a_gap_that_an_overlap_makes_up_for() {
    let ledger = books().await;
    for (sequence, from, to) in [(4, 122_880, 122_980), (5, 122_930, 123_030), (6, 123_080, 123_130)] {
        let statement = format!(
            "INSERT INTO transfer SELECT session || ':{from}', wallet, {sequence}, kind, session, {from}, {to}, 7, \
             7 * ({to} - {from}), debit, credit, created_unix_ms FROM transfer WHERE sequence = 1"
        );
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&ledger.pool).await.unwrap();
    }
    let report = ledger.check().await.unwrap();
    assert!(report.findings.iter().any(|f| f.contains("from 0 to 123130 once each")), "{:?}", report.findings);
}

#[tokio::test]
async fn the_check_finds_a_cursor_beyond_its_meter() {
    let ledger = books().await;
    ledger.put_meters(&[meter(12_288, 0, 0)]).await.unwrap();
    let report = ledger.check().await.unwrap();
    assert_eq!(report.findings_total, 2, "{:?}", report.findings);
    assert!(report.findings[0].contains("expected work_bytes of at most 12288, got a cursor at 122880"));
}

#[tokio::test]
async fn a_lost_cursor_cannot_credit_the_same_bytes_again_and_spares_the_rows_beside_it() {
    let ledger = books().await;
    run(&ledger, "DELETE FROM credit_cursor").await.unwrap();
    let beside = Meter { session: Hex([4; 16]), ..meter(24_576, 0, 3) };
    let applied = ledger.apply(&[meter(200_000, 0, 4), beside], Rate(7)).await.unwrap();
    assert_eq!((applied.transfers, applied.credited.0), (1, 24_576 * 7));
    let [refused] = applied.refused.as_slice() else { panic!("{:?}", applied.refused) };
    assert!(matches!(&refused.refusal, Refusal::Conflict(why) if why.contains("immutable")), "{refused:?}");
    assert_eq!(ledger.wallet(WALLET).await.unwrap().pending_nano_kvr.0, (122_880 - 12_288 + 24_576) * 7);
}

#[tokio::test]
async fn an_accounts_sum_that_would_not_fit_refuses_the_row() {
    let ledger = books().await;
    run(&ledger, "UPDATE account SET debits = 9223372036854775000 WHERE id = 'issuance'").await.unwrap();
    let applied = ledger.apply(&[meter(200_000, 12_288, 3)], Rate(7)).await.unwrap();
    assert_eq!(applied.refused[0].refusal, Refusal::Overflow { what: "an account's sum" });
    assert_eq!(ledger.credits(WALLET, 0).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_ledger_of_a_later_program_is_refused_and_another_url_keeps_its_password() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("a ledger.db").display());
    let ledger = Ledger::open(&url).await.unwrap();
    run(&ledger, "INSERT INTO schema_version (version) VALUES (4)").await.unwrap();
    let error = Ledger::open(&url).await.unwrap_err();
    assert!(matches!(error, LedgerError::NewerSchema { known: 3, got: 4 }), "{error}");
    let far = Ledger::open("postgres://user:secret@db.example/kvasir?sslmode=require").await.unwrap_err().to_string();
    assert!(far.contains("verify-full") && far.contains("db.example") && !far.contains("secret"), "{far}");
    let error = Ledger::open("mysql://user:secret@host/kvasir").await.unwrap_err().to_string();
    assert_eq!(error, "expected a ledger URL that starts with sqlite: or postgres:, got \"mysql\"");
}
