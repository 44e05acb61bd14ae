//! Connections that a hub keeps here until they are needed: each is watched, taken once, and never shared.
//!
//! A task of its own pings each one, so that a connection that only looks alive is gone before a worker gets it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::net::Io;
use crate::net::backoff::jitter;
use crate::wire::rendezvous::{WORD_BYTES, Word};

/// Asks a watcher for its connection.
type Claim = oneshot::Sender<Io>;

/// How parked connections are watched.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// Between two pings.
    pub ping: Duration,
    /// For the answer.
    pub answer: Duration,
}

/// The connections of one hub.
#[derive(Default)]
pub struct Lot {
    parked: Mutex<Parked>,
    arrived: Notify,
}

#[derive(Default)]
struct Parked {
    claims: VecDeque<oneshot::Sender<Claim>>,
    /// They end with the lot.
    watchers: JoinSet<()>,
}

impl fmt::Debug for Lot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lot").field("parked", &self.count()).finish_non_exhaustive()
    }
}

impl Parked {
    fn forget_the_dead(&mut self) {
        self.claims.retain(|claims| !claims.is_closed());
        while self.watchers.try_join_next().is_some() {}
    }
}

impl Lot {
    /// Keeps a connection if there is room for it.
    ///
    /// # Errors
    /// The connection, when `max` are kept already.
    pub fn park(&self, io: Io, watch: Watch, max: usize) -> Result<(), Io> {
        let mut parked = self.lock();
        parked.forget_the_dead();
        if parked.claims.len() >= max {
            return Err(io);
        }
        let (claims, claimed) = oneshot::channel();
        parked.watchers.spawn(keep(io, claimed, watch));
        parked.claims.push_back(claims);
        drop(parked);
        self.arrived.notify_one();
        Ok(())
    }

    /// Connections that wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().claims.iter().filter(|claims| !claims.is_closed()).count()
    }

    /// The newest connection, or the next to arrive; the caller bounds the wait. A call that is dropped may cost a
    /// connection, which its hub replaces.
    pub async fn take(&self) -> Io {
        loop {
            let arrival = self.arrived.notified();
            let newest = self.lock().claims.pop_back();
            let Some(claims) = newest else {
                arrival.await;
                continue;
            };
            let (claim, io) = oneshot::channel();
            if claims.send(claim).is_ok()
                && let Ok(io) = io.await
            {
                return io;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches a connection until it is claimed or over.
async fn keep(mut io: Io, mut claimed: oneshot::Receiver<Claim>, watch: Watch) {
    loop {
        tokio::select! {
            claim = &mut claimed => {
                if let Ok(claim) = claim {
                    // Nobody waits for it any more: it closes, and the hub parks another.
                    drop(claim.send(io));
                }
                return;
            }
            // Nothing is due, so whatever comes is the end or a fault.
            _ = io.read_u8() => return,
            // From three quarters of the interval on, so that connections do not ping in step.
            () = sleep(watch.ping.mul_f64(0.75) + jitter(watch.ping.mul_f64(0.25))) => {
                if !matches!(timeout(watch.answer, ping(&mut io)).await, Ok(Ok(true))) {
                    tracing::debug!("a parked connection of a hub did not answer its ping");
                    return;
                }
            }
        }
    }
}

async fn ping(io: &mut Io) -> std::io::Result<bool> {
    io.write_all(&Word::Ping.bytes()).await?;
    io.flush().await?;
    let mut answer = [0; WORD_BYTES];
    io.read_exact(&mut answer).await?;
    Ok(Word::read(answer) == Ok(Word::Pong))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCH: Watch = Watch { ping: Duration::from_secs(20), answer: Duration::from_secs(10) };

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_taken_once_and_by_whoever_waited_for_it() {
        let lot = Lot::default();
        let (near, mut far) = tokio::io::duplex(64);
        let (mut io, ()) = tokio::join!(lot.take(), async {
            tokio::task::yield_now().await;
            lot.park(Box::new(near), WATCH, 1).map_err(drop).unwrap();
        });
        assert_eq!(lot.count(), 0);
        io.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        assert!(timeout(Duration::from_secs(60), lot.take()).await.is_err(), "there is no second one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_answer_its_ping_is_given_to_nobody() {
        let lot = Lot::default();
        let (near, silent) = tokio::io::duplex(64);
        let (beside, mut answering) = tokio::io::duplex(64);
        for io in [near, beside] {
            lot.park(Box::new(io), WATCH, 2).map_err(drop).unwrap();
        }
        assert!(lot.park(Box::new(tokio::io::duplex(64).0), WATCH, 2).is_err(), "no room for a third");
        let hub = tokio::spawn(async move {
            let mut word = [0; WORD_BYTES];
            for _ in 0..3 {
                answering.read_exact(&mut word).await.unwrap();
                assert_eq!(Word::read(word), Ok(Word::Ping));
                answering.write_all(&Word::Pong.bytes()).await.unwrap();
            }
            answering
        });
        let answering = hub.await.unwrap();
        assert_eq!(lot.count(), 1);
        drop((silent, answering));
        tokio::task::yield_now().await;
        assert_eq!(lot.count(), 0, "an end is noticed at once");
    }
}
