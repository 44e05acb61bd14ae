//! What a session gives back: memory that its user wants, and everything at its end.
//!
//! Memory goes first and is told of afterwards, because whoever wants it waits for it and the backbone does not.
//! **Promise:** giving back takes no longer than it says, also over a link that carries nothing any more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tracing::{debug, info};

use super::{Next, Session, receive};
use crate::shutdown::Shutdown;
use crate::wire::Kind;
use crate::wire::control::{Control, Release};
use crate::worker::Timers;
use crate::worker::ended::{Ended, SessionError};
use crate::worker::fetch::{QUIET_LOOK, Room};
use crate::worker::slices::within;

/// How long experts that have no room stay for those who asked before they heard.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// Longest wait for the hub's answer to our close.
const CLOSE_MAX: Duration = Duration::from_millis(200);

/// What the hub is told at the end, and how long requests under way are still answered.
pub(super) fn farewell(ended: &Ended, timers: &Timers) -> (&'static str, Duration) {
    match ended {
        Ended::Stopped => ("stopping", timers.drain),
        Ended::GoAway(_) => ("moving", timers.moving),
        Ended::Changed => ("changing hardware", timers.moving),
        Ended::Lost(_) => ("hardware lost", timers.moving),
        Ended::Slept | Ended::Moved => ("moved", timers.drain),
    }
}

impl Session<'_> {
    /// Offers what the user allows now: the lease that answers it says what is to be given back, or what is new.
    pub(super) async fn resize(&mut self) -> Result<Next, SessionError> {
        let now = self.equipment.room(self.worker).await;
        self.room = Room { most: self.room.most.max(now), now };
        let next = self.give_back().await?;
        if matches!(next, Next::End(_)) {
            return Ok(next);
        }
        self.offer().await?;
        if let Next::Take(lease) = next {
            return Ok(Next::Take(lease));
        }
        // Where the room is back before the backbone has heard that it was gone, no other lease follows.
        Ok(self.outdated.take().map_or(Next::Go, Next::Take))
    }

    /// Makes room for whoever else wants the hardware's memory, and offers it again once they are gone.
    pub(super) async fn look_at_memory(&mut self) -> Result<Next, SessionError> {
        let now = self.equipment.room(self.worker).await;
        let is_crowded = now < self.worker.library.bytes();
        // As much as there ever was, or nearly: others take and give a little all the time.
        let is_eased = self.crowded && now >= self.room.most / 8 * 7;
        if !is_crowded && !is_eased {
            return Ok(Next::Go);
        }
        self.crowded = is_crowded;
        self.resize().await
    }

    /// Lets go of what has no room any more, by name and before less is offered: whoever wants the memory waits for
    /// it, the backbone does not. What was asked before that was heard is answered; what else came is done next.
    async fn give_back(&mut self) -> Result<Next, SessionError> {
        let library = &self.worker.library;
        let (Some(held), Some(manifest)) = (self.holdings.newest(), library.manifest()) else { return Ok(Next::Go) };
        let stays = within(held.slice.iter().collect(), &manifest, self.room.now);
        let leaving = held.slice.without(&stays);
        if leaving.is_empty() {
            return Ok(Next::Go);
        }
        info!(experts = leaving.len(), "giving memory back");
        self.link.send(&Release { lease: held.lease, experts: leaving.to_ranges() }.frame()?).await?;
        let (start, mut next) = (Instant::now(), Next::Go);
        while !self.desk.load().is_quiet(start, self.quiet) && start.elapsed() < LAST_ANSWERS {
            let came = tokio::select! {
                () = sleep(QUIET_LOOK) => continue,
                frame = receive(&mut self.receiver, &mut self.open) => self.act(frame?).await?,
            };
            match came {
                Next::Go => {}
                Next::Take(_) => next = came,
                Next::End(_) => return Ok(came),
            }
        }
        self.holdings.keep_only(&stays);
        library.keep_only(&stays);
        self.worker.status.partly(stays.to_string());
        Ok(next)
    }

    /// Gives everything back, answers what is still under way within `patience`, less when the worker stops, and
    /// closes.
    pub(super) async fn drain(
        mut self,
        why: &str,
        patience: Duration,
        shutdown: &Shutdown,
    ) -> Result<(), SessionError> {
        let stopping = self.worker.config.timers.drain;
        let mut until = Instant::now() + patience;
        if let Some(held) = self.holdings.newest() {
            let release = Release { lease: held.lease, experts: BTreeMap::new() }.frame()?;
            // A link that carries nothing any more is closed unheard.
            let _ = timeout(stopping, self.link.send(&release)).await;
        }
        loop {
            let now = Instant::now();
            if shutdown.is_requested() {
                until = until.min(now + stopping);
            }
            if now >= until {
                break;
            }
            match timeout(self.quiet.min(until - now), receive(&mut self.receiver, &mut self.open)).await {
                Ok(Ok(frame)) if frame.header.kind == Kind::ExpertChunk => {}
                Ok(Ok(frame)) => drop(self.act(frame).await?),
                Ok(Err(error)) => {
                    debug!(%error, "link ended while draining");
                    break;
                }
                // Requests whose parts are still coming in count as under way.
                Err(_) if self.desk.load().is_clear() => break,
                Err(_) => {}
            }
        }
        // The hub may be slow to answer the close; nobody waits for it.
        let _ = timeout(CLOSE_MAX, self.link.close(1000, why)).await;
        Ok(())
    }
}
