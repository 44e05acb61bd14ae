//! A worker and a backbone that keep a hub busy, and remember what they were shown; whoever dies, they begin again.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir::net::Io;
use kvasir::net::dial::{Connector, Outbound};
use kvasir::net::framed::{self, FramedReader, FramedWriter};
use kvasir::net::ws::{WsConfig, WsStream};
use kvasir::types::{Hex, PublicKey, SessionId};
use kvasir::wallet::Wallet;
use kvasir::wire::control::{BackboneHello, Control, Receipt, SessionOpen, Verdict};
use kvasir::wire::frame::{Frame, Kind};
use kvasir::wire::handshake::{WorkerHandshake, WorkerRandom, WorkerSession};
use kvasir::wire::receipt;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::hub::world::{HIDDEN, HOST, MANIFEST, dispatch, partials};

/// Requests of a session; then the backbone leaves, and the hub writes the last receipt.
const REQUESTS: u64 = 40;
/// Assignments of a request.
const ASSIGNMENTS: u32 = 8;
/// Longest wait within a session: whoever was asked is dead, or its ledger was.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to reach a hub.
const PAUSE: Duration = Duration::from_millis(20);

type Trouble = Box<dyn Error + Send + Sync>;

/// What a session came to, in work bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    /// Verdicts that left for the hub: the meter is never above this.
    pub accepted: u64,
    /// The newest receipt's: the meter is never below this again.
    pub proven: u64,
}

/// The backbone's end of a session.
struct Behind {
    session: SessionId,
    reader: FramedReader<ReadHalf<Io>>,
    writer: FramedWriter<WriteHalf<Io>>,
}

/// The worker, whose sessions follow each other, and the backbone behind the hub.
pub struct Puppet {
    pub wallet: PublicKey,
    hub: SocketAddr,
    operator: PublicKey,
    backbone: TcpListener,
    shown: Arc<Mutex<HashMap<SessionId, Shown>>>,
}

impl Puppet {
    pub fn new(hub: SocketAddr, operator: PublicKey, backbone: TcpListener) -> Self {
        let wallet = Self::key().address();
        Self { wallet, hub, operator, backbone, shown: Arc::default() }
    }

    fn key() -> Wallet {
        Wallet::from_seed(&[42; 32])
    }

    pub fn shown(&self) -> MutexGuard<'_, HashMap<SessionId, Shown>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until it is dropped.
    pub async fn work(&self) {
        let (opened, mut sessions) = mpsc::channel(16);
        let worker = async {
            loop {
                // A session that ended early ended because somebody was killed.
                let _ = timeout(PATIENCE, self.session(&mut sessions)).await;
                sleep(PAUSE).await;
            }
        };
        tokio::join!(self.accept(opened), worker);
    }

    /// Greets every hub that dials: for a session, for a probe, or just before it was killed.
    async fn accept(&self, opened: mpsc::Sender<Behind>) {
        loop {
            let Ok((stream, _)) = self.backbone.accept().await else { continue };
            let opened = opened.clone();
            tokio::spawn(timeout(PATIENCE, async move {
                let (mut reader, mut writer) = framed::split(Box::new(stream) as Io);
                writer.send(&BackboneHello { manifest: MANIFEST, hidden_size: HIDDEN }.frame()?).await?;
                let session = SessionOpen::read(&reader.recv().await?.ok_or("a probe")?)?.session_id;
                opened.send(Behind { session, reader, writer }).await.map_err(|_| "nobody works")?;
                Ok::<_, Trouble>(())
            }));
        }
    }

    async fn session(&self, sessions: &mut mpsc::Receiver<Behind>) -> Result<(), Trouble> {
        let url = format!("ws://{}/v1/worker", self.hub);
        let mut ws = WsStream::connect(&url, &Connector::new(&Outbound::default())?, WsConfig::worker()).await?;
        let mut shake = WorkerHandshake::new(vec![self.operator], HOST, Hex([1; 16]), "test/1", WorkerRandom::draw()?);
        let hello = Frame::decode(ws.recv().await?.ok_or("no hello")?)?;
        ws.send(shake.answer(&hello, &Self::key(), 0)?.encode()).await?;
        let mut session = shake.welcomed(&Frame::decode(ws.recv().await?.ok_or("no welcome")?)?)?;
        let (mut from_hub, mut to_hub) = loop {
            let behind = sessions.recv().await.ok_or("no backbone")?;
            if behind.session == session.session_id {
                break (behind.reader, behind.writer);
            }
        };
        for request in 1..=REQUESTS {
            to_hub.send(&dispatch(request, 1, ASSIGNMENTS)).await?;
            let asked = self.until(&mut ws, &mut session, Kind::Dispatch).await?;
            ws.send(session.seal.seal(&partials(&asked.header))).await?;
            from_hub.recv().await?.ok_or("no partials")?;
            let each = u64::from(ASSIGNMENTS) * 4 * u64::from(HIDDEN);
            self.shown().entry(session.session_id).or_default().accepted += each;
            let verdict = Verdict { request, part: 0, accepted: ASSIGNMENTS, refused: 0, reason: "ok".into() };
            to_hub.send(&verdict.frame()?).await?;
        }
        drop((from_hub, to_hub));
        loop {
            self.until(&mut ws, &mut session, Kind::GoAway).await?;
        }
    }

    /// The next frame of a kind; receipts on the way are agreed to and remembered.
    async fn until(&self, ws: &mut WsStream, session: &mut WorkerSession, kind: Kind) -> Result<Frame, Trouble> {
        loop {
            let frame = session.open.open(ws.recv().await?.ok_or("closed")?)?;
            if frame.header.kind == kind {
                return Ok(frame);
            }
            if frame.header.kind == Kind::Receipt {
                let receipt = Receipt::read(&frame)?;
                receipt::verify(&receipt, &session.hub_key)?;
                self.shown().entry(receipt.session_id).or_default().proven = receipt.work_bytes;
                let ack = receipt::ack(&session.session_signer, &receipt);
                ws.send(session.seal.seal(&ack.frame()?)).await?;
            }
        }
    }
}
