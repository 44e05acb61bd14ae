//! Asks the gateway what it owes the wallet, again and again.
//!
//! What has not changed is not sent again: a question names what is known by its ETag.
//!
//! **Promises:** the gateway's account is the only source of money that is shown; what it last said stays, with its
//! age, while nobody answers; an answer is at most [`ANSWER_BYTES_MAX`] long and comes within [`DEADLINE`].

use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;

use super::status::Account;
use crate::clock::Clock;
use crate::net::https;
use crate::net::tls::TlsError;
use crate::types::{NanoKvr, PublicKey};
use crate::wire::invite::Invite;

const DEADLINE: Duration = Duration::from_secs(10);
/// Several times an account.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

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
    client: reqwest::Client,
    /// `https://…` of each gateway.
    gateways: Vec<String>,
    address: PublicKey,
    clock: Arc<dyn Clock>,
    /// Gateway and sequence of the last answer.
    last: Option<(usize, u64)>,
    /// What a gateway last said in full, and under which ETag.
    told: Option<Told>,
}

/// An answer and what stands for it.
struct Told {
    gateway: usize,
    etag: HeaderValue,
    statement: Statement,
}

/// An answer's body and ETag.
struct Body {
    bytes: Vec<u8>,
    etag: Option<HeaderValue>,
}

impl Asking {
    /// Nothing is asked before [`Asking::run`].
    pub fn new(invite: &Invite, address: PublicKey, clock: Arc<dyn Clock>) -> Result<Self, TlsError> {
        let client = https::client(invite.ca_pem.as_deref())?;
        let gateways = invite.gateways.iter().filter_map(|url| https::public_of(url)).collect();
        Ok(Self { client, gateways, address, clock, last: None, told: None })
    }

    /// Asks until nobody wants to know any more.
    pub async fn run(mut self, known: watch::Sender<Known>, mut working: watch::Receiver<bool>, every: Intervals) {
        loop {
            match self.ask().await {
                Ok(Some(account)) => drop(known.send_replace(Known { account: Some(account), error: None })),
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

    /// Asks the gateways in turn; `None` for an answer that is older than the one before.
    async fn ask(&mut self) -> Result<Option<Account>, AccountError> {
        let mut failure = AccountError::NoGateway;
        for index in 0..self.gateways.len() {
            match self.statement(index).await {
                Ok(statement) => return Ok(self.take(index, &statement)),
                Err(error) => failure = error,
            }
        }
        Err(failure)
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
        let gateway = self.gateways[index].clone();
        let told = self.told.as_ref().filter(|told| told.gateway == index);
        let body = match timeout(DEADLINE, self.body(&gateway, told.map(|told| &told.etag))).await {
            Ok(body) => body?,
            Err(_) => return Err(AccountError::Unreachable { gateway, reason: format!("nothing in {DEADLINE:?}") }),
        };
        let Some(body) = body else {
            let got = || AccountError::Answer { gateway, got: "nothing new, before anything".to_owned() };
            return told.map(|told| told.statement.clone()).ok_or_else(got);
        };
        match serde_json::from_slice::<Statement>(&body.bytes) {
            Ok(statement) if statement.address == self.address => {
                let told = |etag| Told { gateway: index, etag, statement: statement.clone() };
                self.told = body.etag.map(told);
                Ok(statement)
            }
            Ok(statement) => Err(AccountError::Answer { gateway, got: format!("one of {}", statement.address) }),
            Err(error) => Err(AccountError::Answer { gateway, got: error.to_string() }),
        }
    }

    /// The account as the gateway tells it; `None` when it is still what `known` stands for.
    async fn body(&self, gateway: &str, known: Option<&HeaderValue>) -> Result<Option<Body>, AccountError> {
        let unreachable = |error: reqwest::Error| AccountError::Unreachable {
            gateway: gateway.to_owned(),
            reason: https::root_of(&error),
        };
        let url = format!("{gateway}/v1/wallets/{}", self.address);
        let mut request = self.client.get(url);
        if let Some(etag) = known {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let response = request.send().await.map_err(unreachable)?;
        if known.is_some() && response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        if !response.status().is_success() {
            return Err(AccountError::Answer { gateway: gateway.to_owned(), got: response.status().to_string() });
        }
        let etag = response.headers().get(ETAG).cloned();
        let too_long = || AccountError::Answer { gateway: gateway.to_owned(), got: "a very long one".to_owned() };
        let bytes = https::body(response, ANSWER_BYTES_MAX).await.map_err(unreachable)?.ok_or_else(too_long)?;
        Ok(Some(Body { bytes, etag }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn a_gateway_that_lags_behind_another_does_not_turn_the_account_back() {
        let gateways = vec!["wss://a".into(), "wss://b".into()];
        let address = PublicKey([1; 32]);
        let invite = Invite { operator: address, gateways, ca_pem: None, expires_unix_s: 0 };
        let mut asking = Asking::new(&invite, address, Arc::new(SystemClock::default())).unwrap();
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
