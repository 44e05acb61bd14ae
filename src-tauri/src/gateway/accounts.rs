//! Polls the hubs' meters and credits wallets.
//!
//! A page may come twice, late, or from another gateway at the same time: the ledger credits what is new, once. The
//! position in a hub's changes is kept in the ledger too, but only to ask for less; losing it costs nothing but a poll.
//! It is kept under the hub's key: gateways of one ledger may reach different hubs at the same address of each machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::config::GatewayConfig;
use super::hub_leg::{self, HubError};
use super::legs::{Leg, Legs};
use super::subscriptions::Subscriptions;
use crate::clock::{Clock, SystemClock};
use crate::ledger::{Applied, Ledger, LedgerError, METERS_PER_PAGE_MAX, MeterPage, Position};
use crate::shutdown::Shutdown;
use crate::types::PublicKey;

/// Longest pause between polls of a hub that does not answer.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// Pages of one poll; a hub with more is asked again after the interval, so that a shutdown waits for no endless one.
const PAGES_PER_POLL_MAX: usize = 64;
/// Refused rows that are logged one by one per page.
const REFUSALS_LOGGED_MAX: usize = 10;
/// Between two looks at what the hub says of its backbone.
const HUB_STATUS_EVERY: Duration = Duration::from_secs(10);

/// Why a poll ended early. What was applied before stays.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("expected changes in order between {after} and {last}, got {got}")]
    Order { after: u64, last: u64, got: u64 },
    #[error("expected meters of hub {expected}, got one of {got}")]
    OtherHub { expected: PublicKey, got: PublicKey },
}

/// Codes of a hub for sessions whose link failed.
const CUTS: [&str; 3] = ["link", "silent", "slow"];

/// The part of a hub's `/status` that a gateway shows on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HubStatus {
    sessions: Option<u64>,
    draining: bool,
    backbone_reachable: Option<bool>,
    backbone_error: Option<String>,
    outcomes: Outcomes,
    vitals: Option<HubVitals>,
}

/// Of a hub's vitals, what its gateways compare with their own.
#[derive(Debug, Deserialize)]
struct HubVitals {
    unix_ms: u64,
}

/// What became of a hub's sessions: how often they ended by each code.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Outcomes {
    ended: BTreeMap<String, u64>,
}

impl Outcomes {
    /// Sessions that ended because the way between worker and hub failed.
    fn cuts(&self) -> u64 {
        CUTS.iter().filter_map(|code| self.ended.get(*code)).sum()
    }
}

/// The accounts of one gateway.
#[derive(Debug, Clone)]
pub struct Accounts {
    config: Arc<GatewayConfig>,
    ledger: Ledger,
    legs: Arc<Legs>,
    subscriptions: Arc<Subscriptions>,
    clock: SystemClock,
}

impl Accounts {
    /// Nothing is polled before [`Accounts::run`].
    #[must_use]
    pub fn new(config: Arc<GatewayConfig>, ledger: Ledger, legs: Arc<Legs>, subscriptions: Arc<Subscriptions>) -> Self {
        Self { config, ledger, legs, subscriptions, clock: SystemClock::default() }
    }

    /// Polls every hub until the shutdown, those that come later too.
    pub async fn run(self, shutdown: Shutdown) {
        let (mut polls, mut known) = (JoinSet::new(), 0);
        while !shutdown.is_requested() {
            let legs = self.legs.all();
            for leg in legs.iter().skip(known) {
                polls.spawn(self.clone().follow(Arc::clone(leg), shutdown.clone()));
            }
            known = legs.len();
            tokio::select! {
                () = shutdown.wait() => {}
                () = self.legs.more_than(known) => {}
            }
        }
        while polls.join_next().await.is_some() {}
    }

    /// Polls every hub that is there once more.
    pub async fn last(&self) {
        let legs = self.legs.all();
        let polls = legs.iter().filter(|leg| !leg.is_away()).map(|leg| self.poll(leg));
        futures_util::future::join_all(polls).await;
    }

    /// Polls one hub until the shutdown, less often while it fails.
    async fn follow(self, leg: Arc<Leg>, shutdown: Shutdown) {
        let interval = self.config.poll_interval;
        let mut pause = interval;
        let mut look_again = Instant::now();
        while !shutdown.is_requested() {
            if self.poll(&leg).await {
                pause = interval;
                if look_again <= Instant::now() {
                    self.look(&leg).await;
                    look_again = Instant::now() + HUB_STATUS_EVERY;
                }
            } else {
                pause = pause.saturating_mul(2).min(BACK_OFF_MAX.max(interval));
            }
            tokio::select! {
                () = shutdown.wait() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Polls one hub once; whether it succeeded.
    async fn poll(&self, leg: &Leg) -> bool {
        let polled = self.poll_pages(leg).await;
        if !matches!(polled, Err(PollError::Ledger(_))) {
            leg.polled(polled.is_ok());
        }
        match polled {
            Ok(()) => {
                let now = self.clock.unix_ms();
                leg.tell(|leg| {
                    (leg.reachable, leg.last_poll_unix_ms) = (true, now);
                    leg.error = None;
                });
                true
            }
            // Our own trouble: it says nothing of the hub, and is no reason to lead workers elsewhere.
            Err(PollError::Ledger(error)) => {
                tracing::error!(leg = leg.name, %error, "nothing is credited");
                leg.tell(|leg| leg.error = Some(format!("the gateway's accounts: {error}")));
                false
            }
            Err(error) => {
                tracing::warn!(leg = leg.name, %error, "a poll failed");
                leg.tell(|leg| {
                    (leg.reachable, leg.error) = (false, Some(error.to_string()));
                    // Nobody tells what lies behind it.
                    (leg.sessions, leg.backbone_reachable, leg.backbone_error) = (None, None, None);
                });
                false
            }
        }
    }

    async fn poll_pages(&self, leg: &Leg) -> Result<(), PollError> {
        let mut known = leg.hub();
        let mut position = match known {
            Some(hub) => self.ledger.poll_position(&hub.to_string()).await?,
            None => Position::default(),
        };
        for _ in 0..PAGES_PER_POLL_MAX {
            let mut after = position.change_seq;
            // A hub of an earlier version names no run, and would not take one.
            let run = position.run.map(|run| format!("&run={run}")).unwrap_or_default();
            let limit = if known.is_some() { METERS_PER_PAGE_MAX } else { 1 };
            let target = format!("/v1/meters?after={after}&limit={limit}{run}");
            let page: MeterPage = hub_leg::get(leg, &target, &self.config).await?;
            leg.tell(|leg| (leg.hub, leg.version) = (Some(page.hub), Some(page.version.clone())));
            let name = page.hub.to_string();
            if known.replace(page.hub) != Some(page.hub) {
                // Asked before it was known who answers: the position was another's.
                position = self.ledger.poll_position(&name).await?;
                continue;
            }
            if let Some(from) = page.from.filter(|from| *from < after) {
                tracing::warn!(hub = %page.hub, after, from, "a hub's ledger was restored from a backup");
                after = from;
            }
            if page.last_change_seq < after {
                tracing::warn!(hub = %page.hub, after, last = page.last_change_seq, "a hub's ledger was replaced");
                position = Position::default();
                self.ledger.set_poll_position(&name, position).await?;
                continue;
            }
            let Some(last) = last_change(&page, after)? else { return Ok(()) };
            let applied = self.ledger.apply(&page.meters, self.config.rate).await?;
            report(leg, &applied);
            if applied.transfers > 0 {
                self.subscriptions.refresh(page.meters.iter().map(|meter| meter.wallet)).await;
            }
            position = Position { change_seq: last, run: page.run };
            self.ledger.set_poll_position(&name, position).await?;
            if last == page.last_change_seq {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Asks a hub for the next leg of the road, and whether it drains.
    async fn look(&self, leg: &Leg) {
        let said = hub_leg::get::<HubStatus>(leg, "/status", &self.config).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "a hub does not tell its status");
            HubStatus::default()
        });
        let now = self.clock.unix_ms();
        let ahead = said.vitals.and_then(|theirs| theirs.unix_ms.checked_signed_diff(now));
        leg.tell(|leg| {
            leg.clock_ahead_ms = ahead;
            (leg.sessions, leg.draining) = (said.sessions, said.draining);
            leg.cuts = said.sessions.map(|_| said.outcomes.cuts());
            (leg.backbone_reachable, leg.backbone_error) = (said.backbone_reachable, said.backbone_error);
        });
    }
}

fn report(leg: &Leg, applied: &Applied) {
    if applied.transfers > 0 {
        let (credited, voided) = (applied.credited.0, applied.voided.0);
        tracing::info!(transfers = applied.transfers, credited, voided, "nano-KVR credited");
    }
    for refused in applied.refused.iter().take(REFUSALS_LOGGED_MAX) {
        tracing::error!(session = %refused.session, refusal = %refused.refusal, "a meter was refused");
    }
    let count = applied.refused.len() as u64;
    leg.tell(|leg| leg.meters_refused += count);
}

/// The page's newest change; `None` when it is empty. Changes out of order would let a poll skip or repeat for ever, and
/// a hub speaks for no other.
fn last_change(page: &MeterPage, after: u64) -> Result<Option<u64>, PollError> {
    let mut before = after;
    for meter in &page.meters {
        if meter.hub != page.hub {
            return Err(PollError::OtherHub { expected: page.hub, got: meter.hub });
        }
        if meter.change_seq <= before || meter.change_seq > page.last_change_seq {
            return Err(PollError::Order { after: before, last: page.last_change_seq, got: meter.change_seq });
        }
        before = meter.change_seq;
    }
    Ok((!page.meters.is_empty()).then_some(before))
}
