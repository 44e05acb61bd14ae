//! Keeps a worker connected: dials the gateways, the healthiest first, and waits longer the longer all of them fail.
//!
//! A cut is routine: the pause before the next attempt is drawn anew from zero to a bound that doubles, so that many
//! workers do not come back in step; a link that lived a while resets it. While another gateway may do better, the pause
//! stays short. A machine that slept, or whose network is another one, does not wait at all.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::ended::{Ended, SessionError};
use super::equipment::Equipment;
use super::fetch::FetchError;
use super::hardware::Hardware;
use super::session;
use super::slept::slept;
use super::status::Phase;
use super::{Worker, join};
use crate::net::backoff::{Backoff, jitter};
use crate::net::health::Health;
use crate::net::route::{self, Outward};
use crate::net::ws::WsError;
use crate::shutdown::Shutdown;
use crate::wire::handshake::HandshakeError;

/// Close code for a session that a newer one of the same installation has replaced.
const REPLACED: u16 = 4001;
/// Close code for a message that is larger than any the hub takes.
const OVERSIZE: u16 = 1009;
/// Close reason for a wallet or a device that gave wrong answers.
const QUARANTINED: &str = "quarantined";
/// Pause after a refusal that will not mend itself, and after being replaced.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// Longest pause that a hub may ask for.
const WISH_MAX: Duration = Duration::from_secs(5 * 60);

/// Holds a session whenever there is a way and hardware, until `shutdown`.
pub(super) async fn keep(worker: &Worker, mut hardware: watch::Receiver<Hardware>, shutdown: &Shutdown) {
    let timers = &worker.config.timers;
    let mut backoff = Backoff::new(timers.backoff_first, timers.backoff_max);
    let mut health = Health::new(worker.config.gateways.len());
    let mut equipment: Option<Equipment> = None;
    loop {
        let chosen = hardware.borrow_and_update().clone();
        let in_use = match equipment.take() {
            Some(in_use) if in_use.is_made_of(&chosen) => in_use,
            _ => Equipment::new(worker, chosen),
        };
        let in_use = equipment.insert(in_use);
        if !in_use.is_there(worker, shutdown).await {
            return;
        }
        let index = health.choose();
        let Some(url) = worker.config.gateways.get(index) else { return };
        worker.status.phase(Phase::Connecting { gateway: url.clone() });
        // Only a session counts: dialling can take long and lead nowhere.
        let mut lived = None;
        let joining = async {
            tokio::select! {
                joined = join::join(worker, url) => joined,
                never = in_use.keep_within_budget(worker) => match never {},
            }
        };
        let ended = tokio::select! {
            joined = joining => match joined {
                Ok(joined) => {
                    worker.status.update_required(false);
                    worker.status.joined(&joined.trip, joined.round_trip);
                    let (since, ends) = (Instant::now(), joined.trip.ends);
                    let ended = tokio::select! {
                        ended = session::serve(worker, in_use, joined, &mut hardware, shutdown) => ended,
                        () = slept(&*worker.config.clock, timers.look) => Ok(Ended::Slept),
                        () = moved(ends, timers.look) => Ok(Ended::Moved),
                    };
                    lived = Some(since.elapsed());
                    ended
                }
                Err(error) => Err(error),
            },
            () = shutdown.wait() => Ok(Ended::Stopped),
        };
        worker.status.unleased();
        if lived.is_some_and(|lived| lived >= timers.healthy) {
            backoff.reset();
            health.works(index);
        }
        let (pause, reason) = match ended {
            Ok(Ended::Stopped) => return,
            Ok(Ended::GoAway(wish)) => {
                let pause = wished(wish, &mut backoff);
                info!(gateway = url, ?pause, "the hub asks to come back later");
                // Perhaps it is the gateway that goes.
                health.failed(index);
                (pause, "the hub is going away".to_owned())
            }
            Ok(Ended::Changed) => continue,
            Ok(end @ (Ended::Slept | Ended::Moved)) => {
                let why = if end == Ended::Slept { "the machine slept" } else { "the network is another one" };
                info!("{why}; connecting anew");
                worker.status.cut();
                health.forget();
                continue;
            }
            Ok(Ended::Lost(reason)) => {
                warn!(reason, "hardware lost");
                worker.library.clear();
                // Hardware that is lost whenever it is used must not become a loop without rest.
                (jitter(backoff.bound()), reason)
            }
            Err(error) => {
                let pause = match error.is_of_the_way() {
                    true => {
                        // A link that lived was cut, which says nothing against its gateway.
                        let was_good = lived.is_some_and(|lived| lived >= timers.healthy);
                        if !was_good {
                            health.failed(index);
                        }
                        match health.has_another() {
                            true => jitter(timers.backoff_first),
                            false => jitter(backoff.bound()),
                        }
                    }
                    false => pause_after(&error, &mut backoff),
                };
                note(worker, url, &error, lived.is_some(), pause)
            }
        };
        worker.status.phase(Phase::Waiting { reason, retry_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX) });
        let outward = Outward::now();
        let changed = async {
            tokio::select! {
                () = route::opened(outward, timers.look) => {}
                () = slept(&*worker.config.clock, timers.look) => {}
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = changed => {
                info!("awake, or in another network: not waiting any longer");
                backoff.reset();
                health.forget();
            }
            never = in_use.keep_within_budget(worker) => match never {},
            () = shutdown.wait() => return,
        }
    }
}

/// Completes once the link between `ends` leads nowhere, because the network is another one.
async fn moved(ends: Option<(SocketAddr, SocketAddr)>, every: Duration) {
    match ends {
        Some((_, peer)) => route::moved(peer, every).await,
        None => std::future::pending().await,
    }
}

/// Says why a link is over or did not come to be: in the log and in the status; gives the pause and the reason.
fn note(worker: &Worker, url: &str, error: &SessionError, had_session: bool, pause: Duration) -> (Duration, String) {
    if had_session && error.is_of_the_way() {
        // Routine, as long as it comes back.
        info!(gateway = url, %error, ?pause, "link cut");
        worker.status.cut();
    } else {
        let leg = error.trouble().map(|trouble| trouble.leg.name());
        warn!(gateway = url, leg, %error, ?pause, "link lost");
    }
    worker.status.trouble(error.trouble());
    let wants_update = matches!(error, SessionError::Handshake(error) if error.wants_update());
    worker.status.update_required(wants_update);
    let agent = &worker.config.agent;
    (pause, if wants_update { format!("update {agent}: {error}") } else { error.to_string() })
}

/// A hub's wish within reason, and a drawn pause on top: a wish for none must not become a loop without rest.
fn wished(wish: Duration, backoff: &mut Backoff) -> Duration {
    wish.min(WISH_MAX) + jitter(backoff.bound())
}

/// The pause that an error asks for: the hub's own wish, a long one where nothing changes by itself, else a drawn one.
fn pause_after(error: &SessionError, backoff: &mut Backoff) -> Duration {
    if let SessionError::Handshake(HandshakeError::Refused { retry_after_ms: Some(ms), .. }) = error {
        return wished(Duration::from_millis(*ms), backoff);
    }
    let bound = backoff.bound();
    match error {
        SessionError::Handshake(error) if !error.is_temporary() => LONG_PAUSE + jitter(bound),
        SessionError::Socket(WsError::Closed { code: REPLACED | OVERSIZE, .. }) => LONG_PAUSE + jitter(bound),
        SessionError::Socket(WsError::Closed { reason, .. }) if reason == QUARANTINED => LONG_PAUSE + jitter(bound),
        // The next lease would name such experts again.
        SessionError::Fetch(FetchError::Unusable { .. }) => LONG_PAUSE + jitter(bound),
        _ => jitter(bound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Timers;

    fn fresh() -> Backoff {
        let timers = Timers::default();
        Backoff::new(timers.backoff_first, timers.backoff_max)
    }

    #[test]
    fn a_wish_for_no_pause_is_no_loop_without_rest() {
        let mut backoff = fresh();
        let pauses: Duration = (0..40).map(|_| wished(Duration::ZERO, &mut backoff)).sum();
        assert!(pauses > Duration::from_secs(60), "{pauses:?}");
    }

    #[test]
    fn a_refusal_is_waited_out_as_the_hub_says() {
        let mut backoff = fresh();
        let refused = |reason: &str, retry_after_ms| {
            SessionError::Handshake(HandshakeError::Refused { reason: reason.into(), retry_after_ms })
        };
        assert!(pause_after(&refused("busy", Some(9_000)), &mut backoff) >= Duration::from_secs(9));
        assert!(pause_after(&refused("unauthorised", None), &mut backoff) >= LONG_PAUSE);
        let forever = pause_after(&refused("busy", Some(u64::MAX)), &mut backoff);
        assert!((WISH_MAX..=WISH_MAX + Timers::default().backoff_max).contains(&forever));
        for code in [REPLACED, OVERSIZE] {
            let closed = SessionError::Socket(WsError::Closed { code, reason: "again is no better".into() });
            assert!(pause_after(&closed, &mut backoff) >= LONG_PAUSE);
        }
        assert!(pause_after(&SessionError::Closed, &mut fresh()) <= Duration::from_millis(250));
    }
}
