//! Keeps connections ready at a gateway for a hub that nobody can dial: all are outbound, each is used once.
//!
//! A gateway that is there gets as many as it may need at once, and another for each that it uses. One that is not there
//! is asked by one connection at a time, after pauses that are drawn anew and grow. **Promises:** a connection that the
//! gateway has left without a word is noticed by its missing pings; there are never more than the configured number.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Hub;
use crate::net::Io;
use crate::net::backoff::Backoff;
use crate::net::head::{HeadError, Rewind, read_response};
use crate::net::peer::PeerError;
use crate::wire::rendezvous::{HUB_PATH, PROTOCOL, WORD_BYTES, Word, WordError};

/// Upper end of the first pause after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(250);
/// Longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// A connection that waited this long was a good one.
const HEALTHY: Duration = Duration::from_secs(10);

/// Why a connection is not, or no longer, ready.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Dial(#[from] PeerError),
    #[error("the gateway's answer: {0}")]
    Answer(#[from] HeadError),
    #[error("expected status 101 of the gateway, got {got}: it drains, or it is of another version")]
    Status { got: u16 },
    #[error("expected a ping or a use from the gateway, got nothing for {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Word(#[from] WordError),
    #[error("expected P, S or M from the gateway, got {0:?}")]
    Strange(Word),
    #[error("the gateway's connection: {0}")]
    Io(#[from] io::Error),
    #[error("expected the gateway's answer within {0:?}")]
    Late(Duration),
    #[error("the task failed: {0}")]
    Task(#[from] JoinError),
}

/// A connection's end: it is used, or it is of no use.
struct Outcome {
    result: Result<Io, KeepError>,
    waited: Duration,
}

/// What one gateway is given.
struct Keeper {
    gateway: String,
    backoff: Backoff,
    not_before: Instant,
    is_there: bool,
}

/// Keeps connections at `gateway` (`host:port`) and gives those that are used to `claims`, until it is dropped.
pub(super) async fn keep(hub: Arc<Hub>, gateway: String, claims: mpsc::Sender<Io>) {
    let most = hub.config.limits.parked.max(1);
    let backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
    let mut keeper = Keeper { gateway, backoff, not_before: Instant::now(), is_there: false };
    let (mut dialling, mut waiting) = (JoinSet::new(), JoinSet::new());
    loop {
        let at_once = if keeper.is_there { most } else { 1 };
        let is_due = keeper.not_before <= Instant::now();
        while is_due && dialling.len() < at_once && dialling.len() + waiting.len() < most {
            dialling.spawn(dial(Arc::clone(&hub), keeper.gateway.clone()));
        }
        tokio::select! {
            Some(dialled) = dialling.join_next() => match dialled.map_err(KeepError::from).and_then(|dialled| dialled) {
                Ok(io) => {
                    keeper.arrived();
                    waiting.spawn(wait(io, hub.config.timing.parked_silence, hub.config.timing.stall));
                }
                Err(error) => keeper.lost(&error),
            },
            Some(outcome) = waiting.join_next() => match outcome {
                Ok(Outcome { result: Ok(io), .. }) => {
                    keeper.backoff.reset();
                    if claims.send(io).await.is_err() {
                        return;
                    }
                }
                Ok(Outcome { result: Err(error), waited }) => {
                    if waited >= HEALTHY {
                        keeper.backoff.reset();
                    }
                    keeper.lost(&error);
                }
                Err(error) => keeper.lost(&error.into()),
            },
            () = sleep_until(keeper.not_before), if !is_due => {}
        }
    }
}

impl Keeper {
    fn arrived(&mut self) {
        if !self.is_there {
            tracing::info!(gateway = self.gateway, "ready at the gateway");
        }
        self.is_there = true;
    }

    /// One pause for all connections that are lost together.
    fn lost(&mut self, error: &KeepError) {
        let now = Instant::now();
        if self.not_before > now {
            return tracing::debug!(gateway = self.gateway, %error, "another connection lost");
        }
        let pause = self.backoff.pause();
        self.is_there = false;
        self.not_before = now + pause;
        tracing::warn!(gateway = self.gateway, %error, ?pause, "not ready at the gateway");
    }
}

/// Dials a gateway and asks to be kept there.
async fn dial(hub: Arc<Hub>, gateway: String) -> Result<Io, KeepError> {
    let mut io = hub.config.gateway_peer.connect_as_hub(&gateway, &hub.config.way).await?;
    let deadline = hub.config.timing.stall;
    let until = Instant::now() + deadline;
    let request =
        format!("GET {HUB_PATH} HTTP/1.1\r\nHost: {gateway}\r\nUpgrade: {PROTOCOL}\r\nConnection: Upgrade\r\n\r\n");
    let asked = timeout_at(until, async {
        io.write_all(request.as_bytes()).await?;
        io.flush().await
    });
    asked.await.map_err(|_| KeepError::Late(deadline))??;
    let answer = read_response(&mut io, until).await?;
    if answer.head.status != 101 {
        return Err(KeepError::Status { got: answer.head.status });
    }
    // A gateway that was waiting for it uses it in the same breath.
    Ok(if answer.rest().is_empty() { io } else { Box::new(Rewind::new(answer.rest().to_vec(), io)) })
}

/// Answers pings until the gateway uses the connection; `silence` is the longest time without a word.
async fn wait(io: Io, silence: Duration, stall: Duration) -> Outcome {
    let since = Instant::now();
    let result = until_used(io, silence, stall).await;
    Outcome { result, waited: since.elapsed() }
}

async fn until_used(mut io: Io, silence: Duration, stall: Duration) -> Result<Io, KeepError> {
    loop {
        let mut word = [0; WORD_BYTES];
        timeout(silence, io.read_exact(&mut word)).await.map_err(|_| KeepError::Silent(silence))??;
        match Word::read(word)? {
            Word::Ping => {
                let pong = timeout(stall, async {
                    io.write_all(&Word::Pong.bytes()).await?;
                    io.flush().await
                });
                pong.await.map_err(|_| KeepError::Late(stall))??;
            }
            Word::Splice | Word::Ask => return Ok(io),
            Word::Pong => return Err(KeepError::Strange(Word::Pong)),
        }
    }
}
