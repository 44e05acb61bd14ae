//! From credit to payment: what may be claimed when, what is paid once, and what can be proven of it.

use std::sync::Arc;
use std::time::Duration;

use kvasir::clock::Clock;
use kvasir::ledger::merkle::{self, Leaf};
use kvasir::ledger::{CLAIM_EVERY, ClaimRefusal, ClaimTerms, ExportError, Ledger, Meter};
use kvasir::types::{NanoKvr, PublicKey};
use kvasir::wallet::{Claim, SignedClaim, Wallet};
use kvasir::wire::signature::KeyPair;

use super::{Place, RATE, assert_sound, meter, on_both_stores};
use crate::support::clock::JumpingClock;

on_both_stores!(
    credit_is_claimed_after_a_day_and_paid_once,
    a_claim_is_refused_with_what_is_expected,
    credit_that_is_void_by_the_time_of_settlement_is_not_paid,
    claims_that_cannot_be_paid_keep_back_no_other,
    claims_on_another_operator_are_not_paid_with_this_ones_key,
    a_wallet_that_is_not_paid_claims_now_and_then,
    batches_prove_what_every_wallet_was_ever_paid,
    claims_batches_and_settlements_are_immutable,
);

const DAY: Duration = Duration::from_secs(24 * 3600);
struct World {
    ledger: Ledger,
    clock: Arc<JumpingClock>,
    operator: KeyPair,
    wallets: [Wallet; 3],
}

impl World {
    async fn new(place: &Place) -> Self {
        let clock = Arc::new(JumpingClock::default());
        let ledger = Ledger::open_with_clock(&place.url, clock.clone()).await.unwrap();
        let wallets = [1, 2, 3].map(|n| Wallet::from_seed(&[n; 32]));
        Self { ledger, clock, operator: KeyPair::from_seed(&[9; 32]), wallets }
    }

    fn terms(&self) -> ClaimTerms {
        ClaimTerms { operator: self.operator.public(), hold: DAY }
    }

    fn now_s(&self) -> u64 {
        self.clock.unix_ms() / 1000
    }

    fn advance(&self, time: Duration) {
        let ms = i64::try_from(time.as_millis()).unwrap();
        self.clock.jump(ms, ms);
    }

    /// A session of the wallet comes to this much.
    async fn work(&self, wallet: usize, work_bytes: u64, voided_bytes: u64, change_seq: u64) {
        let (n, wallet) = (u8::try_from(wallet).unwrap(), self.wallets[wallet].address());
        let row = Meter { wallet, ..meter(n, work_bytes, voided_bytes, change_seq) };
        assert_eq!(self.ledger.apply(&[row], RATE).await.unwrap().refused, []);
    }

    fn claim(&self, wallet: usize, lifetime: u64, sequence: u64) -> SignedClaim {
        self.claim_until(wallet, lifetime, sequence, self.now_s() + 30 * DAY.as_secs())
    }

    fn claim_until(&self, wallet: usize, lifetime: u64, sequence: u64, expires_unix_s: u64) -> SignedClaim {
        self.wallets[wallet].claim(self.operator.public(), NanoKvr(lifetime), sequence, expires_unix_s)
    }

    async fn take(&self, claim: &SignedClaim) -> Result<(), ClaimRefusal> {
        self.ledger.take_claim(claim, self.terms()).await.unwrap().map(drop)
    }

    async fn balances(&self, wallet: usize) -> (u64, u64) {
        let statement = self.ledger.wallet(self.wallets[wallet].address()).await.unwrap();
        (statement.pending_nano_kvr.0, statement.settled_nano_kvr.0)
    }
}

async fn credit_is_claimed_after_a_day_and_paid_once(place: Place) {
    let world = World::new(&place).await;
    world.work(0, 1_277_952, 0, 1).await;
    let claim = world.claim(0, 8_945_664, 1);
    assert_eq!(world.take(&claim).await, Err(ClaimRefusal::TooMuch { claimable: 0, got: 8_945_664 }));
    world.advance(DAY);
    world.work(0, 1_277_953, 0, 2).await;
    let claimable = world.ledger.claimable(world.wallets[0].address(), world.terms()).await.unwrap();
    assert_eq!((claimable.lifetime_nano_kvr.0, claimable.sequence, claimable.open_nano_kvr), (8_945_664, 1, None));
    // An answer may be lost: the same claim is taken again.
    assert_eq!((world.take(&claim).await, world.take(&claim).await), (Ok(()), Ok(())));
    let open = world.ledger.claimable(world.wallets[0].address(), world.terms()).await.unwrap();
    assert_eq!((open.sequence, open.open_nano_kvr), (2, Some(NanoKvr(8_945_664))));
    assert_eq!(world.balances(0).await, (8_945_671, 0), "a claim alone moves nothing");

    let settled = world.ledger.settle(&world.operator).await.unwrap();
    assert_eq!((settled.paid, settled.paid_nano_kvr.0, settled.short.len()), (1, 8_945_664, 0));
    assert_eq!(world.balances(0).await, (7, 8_945_664));
    assert_eq!(world.ledger.settle(&world.operator).await.unwrap().batch, None, "paid once");
    assert_eq!(world.take(&claim).await, Ok(()), "and known for ever");
    assert_sound(&world.ledger).await;
    let report = world.ledger.check().await.unwrap();
    assert_eq!((report.settled_nano, report.transfers), (8_945_664, 3));
}

async fn a_claim_is_refused_with_what_is_expected(place: Place) {
    let world = World::new(&place).await;
    world.work(0, 1000, 0, 1).await;
    world.advance(DAY);
    let (operator, stranger) = (world.operator.public(), PublicKey([5; 32]));
    for expires in [world.now_s(), world.now_s() + 400 * DAY.as_secs()] {
        let refused = world.take(&world.claim_until(0, 7000, 1, expires)).await;
        assert!(matches!(refused, Err(ClaimRefusal::Expires { got, .. }) if got == expires), "{refused:?}");
    }
    let cases = [
        (
            world.wallets[0].claim(stranger, NanoKvr(7000), 1, world.now_s() + 9),
            ClaimRefusal::Operator { expected: operator, got: stranger },
        ),
        (world.claim(0, 7000, 2), ClaimRefusal::Sequence { expected: 1, got: 2 }),
        (world.claim(0, 7001, 1), ClaimRefusal::TooMuch { claimable: 7000, got: 7001 }),
        (world.claim(1, 1, 1), ClaimRefusal::TooMuch { claimable: 0, got: 1 }),
        (world.claim(0, 0, 1), ClaimRefusal::Paid { settled: 0, got: 0 }),
    ];
    for (claim, refusal) in cases {
        assert_eq!(world.take(&claim).await, Err(refusal), "{}", claim.text);
    }
    let forged = SignedClaim { signature: world.claim(1, 7000, 1).signature, ..world.claim(0, 7000, 1) };
    assert!(matches!(world.take(&forged).await, Err(ClaimRefusal::Words(_))));
    assert_eq!(world.ledger.settle(&world.operator).await.unwrap().batch, None);

    assert_eq!(world.take(&world.claim(0, 700, 1)).await, Ok(()));
    assert_eq!(world.take(&world.claim(0, 701, 1)).await, Err(ClaimRefusal::Sequence { expected: 2, got: 1 }));
    // A claim that nobody paid in time is over, and its number is used.
    world.advance(31 * DAY);
    assert_eq!(world.ledger.settle(&world.operator).await.unwrap().batch, None);
    assert_eq!(world.take(&world.claim(0, 7000, 2)).await, Ok(()));
    assert_eq!(world.ledger.settle(&world.operator).await.unwrap().paid_nano_kvr.0, 7000);
    assert_sound(&world.ledger).await;
}

async fn credit_that_is_void_by_the_time_of_settlement_is_not_paid(place: Place) {
    let world = World::new(&place).await;
    for (wallet, change_seq) in [(0, 1), (1, 2)] {
        world.work(wallet, 1000, 0, change_seq).await;
    }
    world.advance(DAY);
    for wallet in [0, 1] {
        assert_eq!(world.take(&world.claim(wallet, 7000, 1)).await, Ok(()));
    }
    world.work(0, 1000, 1000, 3).await;
    let settled = world.ledger.settle(&world.operator).await.unwrap();
    assert_eq!((settled.paid, settled.short), (1, vec![world.wallets[0].address()]));
    assert_eq!((world.balances(0).await, world.balances(1).await), ((0, 0), (0, 7000)));
    // What was paid is not taken back.
    world.work(1, 2000, 2000, 4).await;
    assert_eq!(world.balances(1).await, (0, 7000));
    assert_sound(&world.ledger).await;
}

async fn claims_that_cannot_be_paid_keep_back_no_other(place: Place) {
    let world = World::new(&place).await;
    world.work(0, 1000, 0, 1).await;
    world.advance(DAY);
    world.take(&world.claim(0, 7000, 1)).await.unwrap();
    // As many as a batch takes, of wallets that were caught since, and whose addresses come first.
    let (expires, beginning) = (world.now_s() + 9, Claim::beginning(&world.operator.public()));
    let rows = (0..1000u16).map(|n| {
        let mut caught = [0; 32];
        caught[30..].copy_from_slice(&n.to_be_bytes());
        format!("('{}', 1, 7000, {expires}, '{beginning}…', '', 0)", PublicKey(caught))
    });
    let insert = format!(
        "INSERT INTO claim (wallet, sequence, lifetime_nano, expires_unix_s, words, signature, created_unix_ms) VALUES {}",
        rows.collect::<Vec<_>>().join(", ")
    );
    sqlx::any::install_default_drivers();
    let pool = sqlx::AnyPool::connect(&place.url).await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&pool).await.unwrap();
    pool.close().await;
    let settled = world.ledger.settle(&world.operator).await.unwrap();
    assert_eq!((settled.paid, settled.paid_nano_kvr.0, settled.short.len()), (1, 7000, 999));
    let settled = world.ledger.settle(&world.operator).await.unwrap();
    assert_eq!((settled.batch, settled.short.len()), (None, 1000));
    assert_sound(&world.ledger).await;
}

async fn claims_on_another_operator_are_not_paid_with_this_ones_key(place: Place) {
    let world = World::new(&place).await;
    world.work(0, 1000, 0, 1).await;
    world.advance(DAY);
    world.take(&world.claim(0, 7000, 1)).await.unwrap();
    let settled = world.ledger.settle(&KeyPair::from_seed(&[8; 32])).await.unwrap();
    assert_eq!((settled.batch, settled.others), (None, vec![world.wallets[0].address()]));
    let settled = world.ledger.settle(&world.operator).await.unwrap();
    assert_eq!((settled.paid_nano_kvr.0, settled.others), (7000, vec![]));
}

async fn a_wallet_that_is_not_paid_claims_now_and_then(place: Place) {
    let world = World::new(&place).await;
    world.work(0, 1000, 0, 1).await;
    world.advance(DAY);
    let first = world.claim(0, 700, 1);
    assert_eq!(world.take(&first).await, Ok(()));
    world.advance(Duration::from_secs(60));
    let refused = world.take(&world.claim(0, 701, 2)).await;
    // The clock is the machine's, moved: a busy one takes some seconds from here to there.
    assert!(matches!(refused, Err(ClaimRefusal::Often { wait_s: 500..=541 })), "{refused:?}");
    assert_eq!(world.take(&first).await, Ok(()), "the same one is no other");
    world.advance(CLAIM_EVERY);
    assert_eq!(world.take(&world.claim(0, 702, 2)).await, Ok(()));
    assert_eq!(world.ledger.settle(&world.operator).await.unwrap().paid_nano_kvr.0, 702);
    assert_eq!(world.take(&world.claim(0, 703, 3)).await, Ok(()), "who was paid does not wait");
}

async fn batches_prove_what_every_wallet_was_ever_paid(place: Place) {
    let world = World::new(&place).await;
    assert!(matches!(world.ledger.export(None).await, Err(ExportError::Absent(None))));
    for wallet in 0..3 {
        world.work(wallet, 1000 + wallet as u64, 0, 1 + wallet as u64).await;
    }
    world.advance(DAY);
    for (wallet, lifetime) in [(0, 7000), (2, 14)] {
        assert_eq!(world.take(&world.claim(wallet, lifetime, 1)).await, Ok(()));
    }
    let first = world.ledger.settle(&world.operator).await.unwrap().batch.unwrap();
    assert_eq!((first.batch, first.wallets, first.total_nano_kvr.0), (1, 2, 7014));
    for (wallet, lifetime, sequence) in [(1, 70, 1), (2, 7014, 2)] {
        assert_eq!(world.take(&world.claim(wallet, lifetime, sequence)).await, Ok(()));
    }
    let second = world.ledger.settle(&world.operator).await.unwrap();
    assert_eq!((second.paid, second.paid_nano_kvr.0), (2, 70 + 7000));
    let (batch, leaves) = world.ledger.export(None).await.unwrap();
    assert_eq!(Some(&batch), second.batch.as_ref());
    batch.verify().unwrap();
    assert_eq!((batch.batch, batch.operator, batch.total_nano_kvr.0), (2, world.operator.public(), 14_084));
    let mut expected: Vec<Leaf> = [7000, 70, 7014].into_iter().zip(&world.wallets).map(leaf).collect();
    expected.sort();
    assert_eq!(leaves, expected);
    for (index, leaf) in leaves.iter().enumerate() {
        assert!(leaf.is_proven(&merkle::proof(&leaves, index), &batch.root));
    }
    // An older batch is exported as it was signed.
    let (again, leaves) = world.ledger.export(Some(1)).await.unwrap();
    assert_eq!((again, leaves.len()), (first, 2));
    assert!(matches!(world.ledger.export(Some(3)).await, Err(ExportError::Absent(Some(3)))));
    let mut forged = batch;
    forged.total_nano_kvr.0 += 1;
    assert!(forged.verify().is_err());
    assert_sound(&world.ledger).await;
}

fn leaf((lifetime, wallet): (u64, &Wallet)) -> Leaf {
    Leaf { address: wallet.address(), lifetime_nano_kvr: NanoKvr(lifetime) }
}

async fn claims_batches_and_settlements_are_immutable(place: Place) {
    let world = World::new(&place).await;
    world.work(0, 1000, 0, 1).await;
    world.advance(DAY);
    world.take(&world.claim(0, 7000, 1)).await.unwrap();
    world.ledger.settle(&world.operator).await.unwrap();
    sqlx::any::install_default_drivers();
    let pool = sqlx::AnyPool::connect(&place.url).await.unwrap();
    for statement in [
        "UPDATE transfer SET amount = amount + 1",
        "DELETE FROM transfer",
        "UPDATE settlement SET lifetime_to = lifetime_to + 1",
        "DELETE FROM settlement",
        "UPDATE batch SET total_nano = 0",
        "DELETE FROM batch",
        "UPDATE claim SET lifetime_nano = 1",
        "DELETE FROM claim",
    ] {
        let error = sqlx::query(statement).execute(&pool).await.unwrap_err().to_string();
        assert!(error.contains("is immutable"), "{statement}: {error}");
    }
    pool.close().await;
    assert_sound(&world.ledger).await;
}
