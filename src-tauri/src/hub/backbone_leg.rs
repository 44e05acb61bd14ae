//! The backbone's side of a session: one connection per session, its own frames in between.
//!
//! The backbone speaks first (`BackboneHello`), the hub answers with `SessionOpen`, and `SessionClosed` is the hub's
//! last word; verdicts may still come after it. Verdicts and quarantines stay here; everything else goes to the worker.
//! Why one connection per session: a slow worker then holds up nobody else, and no frame needs a session id.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::{error::Elapsed, timeout};

use super::Hub;
use super::config::HubConfig;
use super::ending::Ending;
use super::live::Live;
use super::outstanding::Judgement;
use tokio::io::{ReadHalf, WriteHalf};

use crate::net::Io;
use crate::net::framed::{self, FramedError, FramedReader, FramedWriter};
use crate::net::peer::PeerError;
use crate::types::Digest;
use crate::wire::control::{BackboneHello, Control, Quarantine, Refuse, Verdict};
use crate::wire::work::HIDDEN_MAX;
use crate::wire::{Frame, FrameError, Kind};

/// Why there is no backbone connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No connection, or the wrong server at its end.
    #[error("backbone: {0}")]
    Connect(#[from] PeerError),
    /// The connection broke before the hello.
    #[error("backbone: {0}")]
    Read(#[from] FramedError),
    /// The backbone closed instead of saying hello.
    #[error("backbone: closed before its hello")]
    Closed,
    /// The backbone takes no session now.
    #[error("backbone refused: {reason}")]
    Refused {
        /// Its code.
        reason: String,
    },
    /// A first frame that is no hello.
    #[error("backbone hello: {0}")]
    Hello(#[from] FrameError),
    /// A hidden size that no model has.
    #[error("backbone hello: expected a hidden size of 1..={HIDDEN_MAX}, got {got}")]
    HiddenSize {
        /// What it says.
        got: u32,
    },
    /// Too slow.
    #[error("backbone: no hello in time")]
    Late(#[from] Elapsed),
}

/// A connection whose backbone has said hello.
pub struct Backbone {
    /// What it sends.
    pub reader: FramedReader<ReadHalf<Io>>,
    /// What it is sent.
    pub writer: FramedWriter<WriteHalf<Io>>,
    /// The model's manifest.
    pub manifest: Digest,
    /// Elements of a hidden row.
    pub hidden_size: u32,
}

/// Connects and waits for the hello, both within the configured time.
///
/// # Errors
/// [`DialError`]; the worker hears `busy`.
pub async fn dial(config: &HubConfig) -> Result<Backbone, DialError> {
    timeout(config.timing.backbone, async {
        let stream = config.backbone_peer.connect(&config.backbone).await?;
        let (mut reader, writer) = framed::split(stream);
        let frame = reader.recv().await?.ok_or(DialError::Closed)?;
        if frame.header.kind == Kind::Refuse {
            return Err(DialError::Refused { reason: Refuse::read(&frame)?.reason });
        }
        let BackboneHello { manifest, hidden_size } = BackboneHello::read(&frame)?;
        if hidden_size == 0 || hidden_size as usize > HIDDEN_MAX {
            return Err(DialError::HiddenSize { got: hidden_size });
        }
        Ok(Backbone { reader, writer, manifest, hidden_size })
    })
    .await?
}

/// Reads the backbone until its connection ends or breaks a rule; goes on after the worker has left.
pub async fn read(hub: &Arc<Hub>, live: &Live, reader: &mut FramedReader<ReadHalf<Io>>) -> Ending {
    loop {
        let taken = match reader.recv().await {
            Ok(Some(frame)) => take(hub, live, frame).await,
            Ok(None) => Err(Ending::BackboneLeft),
            Err(error) => Err(Ending::BackboneFailed(error.to_string())),
        };
        if let Err(ending) = taken {
            return ending;
        }
    }
}

async fn take(hub: &Arc<Hub>, live: &Live, frame: Frame) -> Result<(), Ending> {
    match frame.header.kind {
        Kind::Verdict => {
            let verdict = Verdict::read(&frame).map_err(Ending::BackboneFrame)?;
            judge(live, &verdict);
        }
        Kind::Quarantine => {
            let (hub, caught) = (Arc::clone(hub), Quarantine::read(&frame).map_err(Ending::BackboneFrame)?);
            // In a task of its own: this session may end meanwhile, and the void must not end with it.
            let done = tokio::spawn(async move { hub.quarantine(caught).await }).await;
            if let Err(error) = done {
                tracing::error!(%error, "a quarantine was not carried out");
            }
        }
        Kind::Dispatch | Kind::Challenge | Kind::Lease | Kind::GoAway | Kind::ExpertChunk if live.is_worker_gone() => {}
        Kind::Dispatch => {
            live.with_outstanding(|table| table.sent(&frame.header)).map_err(Ending::untaken)?;
            live.to_worker(frame).await?;
        }
        Kind::Challenge => {
            live.with_outstanding(|table| table.challenged(&frame.header)).map_err(Ending::untaken)?;
            live.to_worker(frame).await?;
        }
        Kind::Lease | Kind::GoAway => live.to_worker(frame).await?,
        Kind::ExpertChunk => live.bulk_to_worker(frame)?,
        other => return Err(Ending::BackboneKind(other)),
    }
    Ok(())
}

fn judge(live: &Live, verdict: &Verdict) {
    let Verdict { request, part, accepted, .. } = *verdict;
    let credited = match live.with_outstanding(|table| table.judged(verdict)) {
        Judgement::Credit(assignments) => assignments,
        Judgement::Capped(assignments) => {
            tracing::error!(session = %live.short(), request, part, accepted, assignments, "verdict over what was served");
            assignments
        }
        // What the backbone sends after the worker has left goes nowhere and is not in the table; its verdict is due
        // all the same.
        Judgement::NotOpen if live.is_worker_gone() => {
            tracing::debug!(session = %live.short(), request, part, accepted, "verdict on a part that never left");
            0
        }
        Judgement::NotOpen => {
            tracing::error!(session = %live.short(), request, part, accepted, "verdict on a part that is not open");
            0
        }
    };
    live.credit(credited);
}

/// Writes what is queued until the last frame, `SessionClosed`, has left.
pub async fn write(queue: &mut mpsc::Receiver<Frame>, writer: &mut FramedWriter<WriteHalf<Io>>) -> Ending {
    while let Some(frame) = queue.recv().await {
        match writer.send(&frame).await {
            Ok(()) if frame.header.kind == Kind::SessionClosed => break,
            Ok(()) => {}
            Err(error) => return Ending::BackboneFailed(error.to_string()),
        }
    }
    Ending::Left
}
