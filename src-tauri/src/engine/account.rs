//! Asks the gateway what it owes the wallet, again and again.
//!
//! What has not changed is not sent again: a question names what is known by its ETag.
//!
//! **Promises:** the gateway's account is the only source of money that is shown; what it last said stays, with its
//! age, while nobody answers; an answer comes within [`DEADLINE`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderValue;
use serde::Deserialize;
use tokio::sync::watch;

use super::earned::Earned;
use super::facts::DayEarned;
use super::status::Account;
use crate::clock::Clock;
use crate::net::dial::{Connector, Outbound};
use crate::net::health::Health;
use crate::net::https::{Gateway, HttpsError};
use crate::net::tls::TlsError;
use crate::types::{NanoKvr, PublicKey};
use crate::wire::invite::Invite;

const DEADLINE: Duration = Duration::from_secs(10);

/// Why a gateway's account is not known.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum AccountError {
    #[error("{gateway} does not answer: {reason}")]
    Unreachable { gateway: String, reason: String },
    #[error("{gateway}: expected an account of the wallet, got {got}")]
    Answer { gateway: String, got: String },
    #[error("expected the account as it was last seen or newer, got an older one")]
    Behind,
    #[error("expected a gateway, got none")]
    NoGateway,
}

impl AccountError {
    /// A stable code for the user interface.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } | Self::NoGateway => "gateway_unreachable",
            Self::Answer { .. } => "gateway_answer",
            Self::Behind => "gateway_behind",
        }
    }
}

/// What is known of the account.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// What a gateway last said.
    pub account: Option<Account>,
    /// Nano-KVR per work byte, by the newest transfer.
    pub rate: Option<u64>,
    /// Why that may be old.
    pub error: Option<AccountError>,
}

/// How often to ask: more often while work is done.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// While the worker works.
    pub working: Duration,
    /// While it does not.
    pub resting: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { working: Duration::from_secs(3), resting: Duration::from_secs(15) }
    }
}

/// The part of a gateway's account that is shown.
#[derive(Clone, Deserialize)]
struct Statement {
    address: PublicKey,
    pending_nano_kvr: NanoKvr,
    sequence: u64,
    last_credit_unix_ms: u64,
}

/// One wallet's account at one network.
pub(super) struct Asking {
    gateways: Vec<Gateway>,
    health: Health,
    address: PublicKey,
    clock: Arc<dyn Clock>,
    /// Gateway and sequence of the last answer.
    last: Option<(usize, u64)>,
    /// What a gateway last said in full, and under which ETag.
    told: Option<Told>,
    /// What each day brought.
    earned: Earned,
}

/// An answer and what stands for it.
struct Told {
    gateway: usize,
    etag: HeaderValue,
    statement: Statement,
}

impl Asking {
    /// Nothing is asked before [`Asking::run`].
    pub fn new(
        invite: &Invite,
        address: PublicKey,
        state_dir: PathBuf,
        clock: Arc<dyn Clock>,
        outbound: Outbound,
    ) -> Result<Self, TlsError> {
        let outbound = Outbound { network_ca_pem: invite.ca_pem.clone(), ..outbound };
        let connector = Arc::new(Connector::new(&outbound)?);
        let of = |url: &String| Gateway::at(url, Arc::clone(&connector)).ok();
        let gateways: Vec<Gateway> = invite.gateways.iter().filter_map(of).collect();
        let health = Health::new(gateways.len());
        let earned = Earned::open(state_dir, address, invite.operator);
        Ok(Self { gateways, health, address, clock, last: None, told: None, earned })
    }

    /// Asks until nobody wants to know any more.
    pub async fn run(mut self, known: watch::Sender<Known>, mut working: watch::Receiver<bool>, every: Intervals) {
        loop {
            match self.ask().await {
                Ok(Some(account)) => {
                    let rate = self.earned.rate();
                    drop(known.send_replace(Known { account: Some(account), rate, error: None }));
                }
                Ok(None) => known.send_modify(|known| known.error = Some(AccountError::Behind)),
                Err(error) => known.send_modify(|known| known.error = Some(error)),
            }
            if known.is_closed() {
                return;
            }
            let pause = if *working.borrow_and_update() { every.working } else { every.resting };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = working.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Asks the gateways, the healthiest first; `None` for an answer that is older than the one before.
    async fn ask(&mut self) -> Result<Option<Account>, AccountError> {
        let mut failure = AccountError::NoGateway;
        for _ in 0..self.gateways.len() {
            let index = self.health.choose();
            match self.statement(index).await {
                Ok(statement) => {
                    self.health.works(index);
                    let Some(account) = self.take(index, &statement) else { return Ok(None) };
                    let per_day = self.per_day(index, statement.sequence).await;
                    return Ok(Some(Account { per_day, ..account }));
                }
                Err(error) => {
                    self.health.failed(index);
                    failure = error;
                }
            }
        }
        Err(failure)
    }

    /// What the newest days brought, as far as it is known.
    async fn per_day(&mut self, gateway: usize, sequence: u64) -> Vec<DayEarned> {
        if let Some(gateway) = self.gateways.get(gateway)
            && let Err(error) = self.earned.catch_up(gateway, self.address, sequence).await
        {
            tracing::debug!(%error, "the days are not up to date");
        }
        self.earned.per_day()
    }

    /// Another gateway may lag behind the one that answered before: then its answer waits.
    fn take(&mut self, gateway: usize, statement: &Statement) -> Option<Account> {
        let behind = |(before, sequence)| before != gateway && statement.sequence < sequence;
        if self.last.is_some_and(behind) {
            return None;
        }
        self.last = Some((gateway, statement.sequence));
        let credited = Some(statement.last_credit_unix_ms).filter(|ms| *ms > 0);
        Some(Account {
            pending_nano_kvr: statement.pending_nano_kvr.0.to_string(),
            pending_kvr: statement.pending_nano_kvr.to_string(),
            last_credit_unix_ms: credited,
            last_credit_unix_s: credited.map(|ms| ms / 1000),
            per_day: Vec::new(),
            asked_unix_ms: self.clock.unix_ms(),
        })
    }

    async fn statement(&mut self, index: usize) -> Result<Statement, AccountError> {
        let asked = &self.gateways[index];
        let gateway = asked.base().to_owned();
        let told = self.told.as_ref().filter(|told| told.gateway == index);
        let path = format!("/v1/wallets/{}", self.address);
        let answer = match asked.get_new(&path, told.map(|told| &told.etag), DEADLINE).await {
            Ok(answer) => answer,
            Err(HttpsError::Dial { source, .. }) => {
                return Err(AccountError::Unreachable { gateway, reason: source.to_string() });
            }
            Err(HttpsError::Unreachable { reason, .. }) => return Err(AccountError::Unreachable { gateway, reason }),
            Err(error) => return Err(AccountError::Answer { gateway, got: error.to_string() }),
        };
        if let (StatusCode::NOT_MODIFIED, Some(told)) = (answer.status, told) {
            return Ok(told.statement.clone());
        }
        if !answer.status.is_success() {
            return Err(AccountError::Answer { gateway, got: answer.status.to_string() });
        }
        match serde_json::from_slice::<Statement>(&answer.body) {
            Ok(statement) if statement.address == self.address => {
                let told = |etag| Told { gateway: index, etag, statement: statement.clone() };
                self.told = answer.etag.map(told);
                Ok(statement)
            }
            Ok(statement) => Err(AccountError::Answer { gateway, got: format!("one of {}", statement.address) }),
            Err(error) => Err(AccountError::Answer { gateway, got: error.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn a_gateway_that_lags_behind_another_does_not_turn_the_account_back() {
        let dir = tempfile::tempdir().unwrap();
        let gateways = vec!["wss://a".into(), "wss://b".into()];
        let address = PublicKey([1; 32]);
        let invite = Invite { operator: address, gateways, ca_pem: None, expires_unix_s: 0 };
        let (state, clock) = (dir.path().to_owned(), Arc::new(SystemClock::default()));
        let mut asking = Asking::new(&invite, address, state, clock, Outbound::default()).unwrap();
        let say = |nano, sequence| Statement {
            address,
            pending_nano_kvr: NanoKvr(nano),
            sequence,
            last_credit_unix_ms: sequence,
        };
        let taken = asking.take(0, &say(8_945_664, 3)).unwrap();
        assert_eq!((taken.pending_nano_kvr.as_str(), taken.pending_kvr.as_str()), ("8945664", "0.00895"));
        assert_eq!(asking.take(1, &say(5, 2)), None);
        assert!(asking.take(0, &say(5, 2)).is_some(), "what one gateway says goes, up or down");
        assert_eq!(asking.take(0, &say(0, 0)).unwrap().last_credit_unix_ms, None);
    }
}
