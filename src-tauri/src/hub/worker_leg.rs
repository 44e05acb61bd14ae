//! The worker's side of a session: opens and checks what comes, seals and sends what goes.
//!
//! Only headers are looked at; bodies pass unchanged. **Promise:** nothing from a worker reaches the backbone that a
//! worker may not say, and a breach names itself and ends this session alone.

use crate::net::ws::{WsError, WsReceiver, WsSender};
use crate::wire::control::{CONTROL_BYTES_MAX, Control, Offer, ReceiptAck};
use crate::wire::handshake::{Open, OpenError, Seal};
use crate::wire::{Frame, FrameError, Kind};

use super::ending::Ending;
use super::live::{Live, WorkerQueues};

/// Reads the worker until the session ends; silence is the receiver's to notice.
pub async fn read(live: &Live, receiver: &mut WsReceiver, open: &mut Open) -> Ending {
    loop {
        let message = match receiver.recv().await {
            Ok(Some(message)) => message,
            Ok(None) => return Ending::Left,
            Err(error) => return error.into(),
        };
        live.tally().passed(message.len() as u64);
        let taken = match open.open(message) {
            Ok(frame) => take(live, frame).await,
            Err(OpenError::BadTag { counter }) => Err(Ending::Tag { counter }),
            Err(OpenError::Frame(error)) => Err(Ending::Frame(error)),
        };
        if let Err(ending) = taken {
            return ending;
        }
    }
}

/// What a frame of the worker changes, and whether it goes on to the backbone.
async fn take(live: &Live, frame: Frame) -> Result<(), Ending> {
    let header = &frame.header;
    let is_work = matches!(header.kind, Kind::Partials | Kind::ChallengeReply);
    if !is_work && frame.body.len() > CONTROL_BYTES_MAX {
        let (got, max) = (frame.body.len() as u64, CONTROL_BYTES_MAX as u64);
        return Err(Ending::Frame(FrameError::Over { what: "control body", got, max }));
    }
    match header.kind {
        Kind::Partials | Kind::ChallengeReply => {
            live.with_outstanding(|table| table.answered(header)).map_err(Ending::Answer)?;
        }
        Kind::Decline => {
            live.with_outstanding(|table| table.declined(header.request)).map_err(Ending::Answer)?;
        }
        Kind::ExpertGet => live.get_opened()?,
        Kind::Offer if !live.banned_devices.is_empty() => {
            let Offer { device, .. } = Offer::read(&frame).map_err(Ending::Frame)?;
            if live.banned_devices.contains(&device) {
                return Err(Ending::Quarantined);
            }
        }
        Kind::Offer | Kind::Release | Kind::SliceReady | Kind::Pause | Kind::Resume => {}
        Kind::ReceiptAck => {
            let ack = ReceiptAck::read(&frame).map_err(Ending::Frame)?;
            return live.receipts().acknowledge(&ack).map_err(Ending::Acknowledgement);
        }
        other => return Err(Ending::ForbiddenKind(other)),
    }
    live.to_backbone(frame).await
}

/// The sending half and the seal that goes with it.
pub struct SealedSender {
    sender: WsSender,
    seal: Seal,
    cut: bool,
}

impl SealedSender {
    /// Nothing is sent yet.
    #[must_use]
    pub fn new(sender: WsSender, seal: Seal) -> Self {
        Self { sender, seal, cut: false }
    }

    /// Seals and sends a frame; its bytes on the wire.
    ///
    /// # Errors
    /// [`Ending::Slow`], [`Ending::Link`].
    pub async fn send(&mut self, frame: &Frame) -> Result<u64, Ending> {
        // A send that was given up half-way left a counter that the worker never saw: nothing may follow it.
        if std::mem::replace(&mut self.cut, true) {
            return Err(Ending::Link("an earlier frame was given up".into()));
        }
        let message = self.seal.seal(frame);
        let bytes = message.len() as u64;
        self.sender.send(message).await?;
        self.cut = false;
        Ok(bytes)
    }

    /// Sends what is queued until the session ends, work and control before expert bytes.
    pub async fn write(&mut self, live: &Live, queues: &mut WorkerQueues) -> Ending {
        loop {
            let frame = tokio::select! {
                biased;
                Some(frame) = queues.urgent.recv() => frame,
                Some(frame) = queues.bulk.recv() => {
                    live.get_closed();
                    frame
                }
                else => return Ending::Internal("the session's queues closed".into()),
            };
            match self.send(&frame).await {
                Ok(bytes) => live.tally().passed(bytes),
                Err(ending) => return ending,
            }
        }
    }

    /// Says goodbye with a code; a worker that does not listen is left after the link's own deadline.
    pub async fn close(self, code: u16, reason: &str) {
        self.sender.close(code, reason).await;
    }
}

impl From<WsError> for Ending {
    fn from(error: WsError) -> Self {
        match error {
            WsError::TooLarge { got, max } => Self::Oversize { got, max },
            WsError::Silent { silent_ms, strikes } => Self::Silent { silent_ms, strikes },
            WsError::Stuck { .. } | WsError::Full { .. } => Self::Slow("its messages were not taken in time"),
            WsError::Closed { .. } => Self::Left,
            WsError::Text | WsError::Lost { .. } => Self::Link(error.to_string()),
        }
    }
}
