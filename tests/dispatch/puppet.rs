//! A puppet in place of hub and worker: it answers requests well or badly, as it is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvasir::dispatch::ModelExperts;
use kvasir::kernel::ExpertCompute;
use kvasir::net::Io;
use kvasir::net::framed::{self, FramedReader, FramedWriter};
use kvasir::types::{Hex, PublicKey};
use kvasir::wire::control::{
    BackboneHello, Control, Decline, Lease, Offer, Quarantine, SessionOpen, SliceReady, Verdict,
};
use kvasir::wire::work::Dispatch;
use kvasir::wire::{Frame, Header, Kind};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::world::{Backbone, kernel, soon};

/// How a puppet treats requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Conduct {
    Honest,
    Silent,
    Declines,
    Vanishes,
    CutsShort,
    Lies,
    /// Answers a request that nobody made.
    NamesAnother,
    /// Answers with a value that is no number; float experts only.
    NotANumber,
    /// Says of every row that it does not fit its grid.
    ClaimsRange,
    /// Says of every row that it needs the float path.
    ClaimsPoison,
    /// Answers the first request twice and no other.
    RepeatsTheFirst,
    AnswersTwice,
    AnswersLate(Duration),
    /// Honest in its work, wrong by one in the last value of a challenge of more than so many rows.
    FailsChallenges(u32),
    /// Honest in its work, leaves challenges unanswered.
    MutesChallenges,
}

/// Stands for a hub and its worker at the end of a plain connection.
pub struct Puppet {
    pub verdicts: watch::Receiver<Vec<Verdict>>,
    /// Of every request the time that it allows.
    pub deadlines_ms: watch::Receiver<Vec<u32>>,
    /// Rows of the challenges that came.
    pub challenges: watch::Receiver<Vec<u32>>,
    pub quarantines: watch::Receiver<Vec<Quarantine>>,
    /// What it offers next.
    pub offers: UnboundedSender<Offer>,
    task: JoinHandle<()>,
}

struct Strings {
    reader: FramedReader<ReadHalf<Io>>,
    writer: FramedWriter<WriteHalf<Io>>,
    experts: ModelExperts,
    kernel: Arc<dyn ExpertCompute>,
    conduct: Conduct,
    verdicts: watch::Sender<Vec<Verdict>>,
    deadlines_ms: watch::Sender<Vec<u32>>,
    challenges: watch::Sender<Vec<u32>>,
    quarantines: watch::Sender<Vec<Quarantine>>,
    offers: UnboundedReceiver<Offer>,
    first: Option<Frame>,
}

impl Puppet {
    /// Opens a session and says nothing more.
    pub async fn open(backbone: &Backbone, n: u8) -> (FramedReader<ReadHalf<Io>>, FramedWriter<WriteHalf<Io>>) {
        let stream = TcpStream::connect(backbone.addr).await.expect("a connection");
        let (mut reader, mut writer) = framed::split(Box::new(stream));
        let hello = reader.recv().await.expect("a frame").expect("a frame");
        assert_eq!(
            BackboneHello::read(&hello).expect("a hello").hidden_size as usize,
            backbone.model.hyper.hidden_size
        );
        let open = SessionOpen {
            session_id: Hex([n; 16]),
            wallet: PublicKey([n; 32]),
            worker_id: Hex([n; 16]),
            peer_ip_hash: Hex([0; 16]),
            round_trip_us: 1_000,
        };
        writer.send(&open.frame().expect("a frame")).await.expect("sent");
        (reader, writer)
    }

    /// Connects, offers and from then on does as it is told.
    pub async fn join(backbone: &Backbone, n: u8, conduct: Conduct) -> Self {
        Self::join_with(backbone, n, conduct, 1 << 30).await
    }

    /// With room for so many bytes of experts.
    pub async fn join_with(backbone: &Backbone, n: u8, conduct: Conduct, memory_bytes: u64) -> Self {
        let (reader, writer) = Self::open(backbone, n).await;
        let (verdicts, seen) = watch::channel(Vec::new());
        let (deadlines_ms, allowed) = watch::channel(Vec::new());
        let experts = ModelExperts::new(Arc::clone(&backbone.model));
        let (challenges, asked) = watch::channel(Vec::new());
        let (quarantines, caught) = watch::channel(Vec::new());
        let (orders, offers) = unbounded_channel();
        orders.send(Offer { memory_bytes, ..offer("puppet") }).expect("its other end is here");
        let strings = Strings {
            reader,
            writer,
            experts,
            kernel: kernel(),
            conduct,
            verdicts,
            deadlines_ms,
            challenges,
            quarantines,
            offers,
            first: None,
        };
        let task = tokio::spawn(strings.dance());
        Self { verdicts: seen, deadlines_ms: allowed, challenges: asked, quarantines: caught, offers: orders, task }
    }

    /// The first `n` verdicts, in the order of requests and parts.
    pub async fn verdicts(&mut self, n: usize) -> Vec<Verdict> {
        let mut seen = soon(self.verdicts.wait_for(|v| v.len() >= n)).await.expect("a puppet").clone();
        seen.sort_by_key(|v| (v.request, v.part));
        seen
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a puppet offers on a device of this name.
pub fn offer(device: &str) -> Offer {
    Offer { device: device.into(), memory_bytes: 1 << 30, assignments_per_s: 1e4, wants: vec![] }
}

impl Strings {
    async fn dance(mut self) {
        loop {
            let frame = tokio::select! {
                Some(offer) = self.offers.recv() => {
                    self.send(&offer.frame().expect("a frame")).await;
                    continue;
                }
                frame = self.reader.recv() => frame,
            };
            let Ok(Some(frame)) = frame else { return };
            match frame.header.kind {
                Kind::Lease => {
                    let ready = SliceReady {
                        lease: Lease::read(&frame).expect("a lease").lease,
                        bytes: 1,
                        experts: BTreeMap::new(),
                    };
                    self.send(&ready.frame().expect("a frame")).await;
                }
                Kind::Verdict => {
                    let verdict = Verdict::read(&frame).expect("a verdict");
                    self.verdicts.send_modify(|seen| seen.push(verdict));
                }
                Kind::Quarantine => {
                    let caught = Quarantine::read(&frame).expect("a quarantine");
                    self.quarantines.send_modify(|seen| seen.push(caught));
                }
                Kind::Challenge => self.take_challenge(&frame).await,
                Kind::Dispatch if self.conduct == Conduct::Vanishes => return,
                Kind::Dispatch => self.respond(&frame).await,
                other => panic!("a worker never gets {other:?}"),
            }
        }
    }

    async fn take_challenge(&mut self, frame: &Frame) {
        let rows = frame.header.rows;
        self.challenges.send_modify(|seen| seen.push(rows));
        let answer = self.compute(frame);
        let header = Header { kind: Kind::ChallengeReply, ..answer.header };
        let mut body = answer.body.to_vec();
        match self.conduct {
            Conduct::MutesChallenges => return,
            Conduct::FailsChallenges(honest) if rows > honest => *body.last_mut().expect("a value") ^= 1,
            _ => {}
        }
        self.send(&Frame::new(header, body).expect("a frame")).await;
    }

    async fn respond(&mut self, frame: &Frame) {
        let allowed = frame.body[4..8].first_chunk().map(|b| u32::from_le_bytes(*b)).expect("a deadline");
        self.deadlines_ms.send_modify(|seen| seen.push(allowed));
        let answer = self.compute(frame);
        match self.conduct {
            Conduct::NamesAnother => {
                let header = Header { request: answer.header.request + 1000, ..answer.header };
                self.send(&Frame::new(header, answer.body).expect("a frame")).await;
            }
            Conduct::NotANumber => {
                let mut body = answer.body.to_vec();
                let end = body.len();
                body[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
                self.send(&Frame::new(answer.header, body).expect("a frame")).await;
            }
            Conduct::ClaimsRange | Conduct::ClaimsPoison => {
                let status = if self.conduct == Conduct::ClaimsRange { 1 } else { 2 };
                let mut body = vec![0; answer.body.len()];
                let row_bytes = body.len() / frame.header.rows as usize;
                body.iter_mut().step_by(row_bytes).for_each(|byte| *byte = status);
                self.send(&Frame::new(answer.header, body).expect("a frame")).await;
            }
            Conduct::RepeatsTheFirst => {
                let first = self.first.get_or_insert(answer).clone();
                self.send(&first).await;
            }
            Conduct::Silent | Conduct::Vanishes => {}
            Conduct::Honest | Conduct::FailsChallenges(_) | Conduct::MutesChallenges => self.send(&answer).await,
            Conduct::Declines => {
                let decline = Decline { reason: "paused".into() };
                self.send(&decline.reply(frame.header.request).expect("a frame")).await;
            }
            Conduct::CutsShort => {
                let short = answer.body.slice(..answer.body.len() - 1);
                self.send(&Frame::new(answer.header, short).expect("a frame")).await;
            }
            Conduct::Lies => {
                // A value that no sum of legal outputs reaches.
                let mut body = answer.body.to_vec();
                body[1..5].copy_from_slice(&i32::MAX.to_le_bytes());
                self.send(&Frame::new(answer.header, body).expect("a frame")).await;
            }
            Conduct::AnswersTwice => {
                self.send(&answer).await;
                self.send(&answer).await;
            }
            Conduct::AnswersLate(pause) => {
                tokio::time::sleep(pause).await;
                self.send(&answer).await;
            }
        }
    }

    fn compute(&self, frame: &Frame) -> Frame {
        let hidden = self.experts.model().hyper.hidden_size;
        let request = Dispatch::decode(&frame.header, &frame.body, hidden).expect("a request");
        let partials = self.kernel.compute(&self.experts, frame.header.layer, &[request]).expect("partials");
        Frame::new(Header { kind: Kind::Partials, ..frame.header }, partials[0].encode(hidden)).expect("a frame")
    }

    async fn send(&mut self, frame: &Frame) {
        // The listener may have ended the session meanwhile; the test sees that elsewhere.
        let _ = self.writer.send(frame).await;
    }
}
