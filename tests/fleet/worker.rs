//! A simulated worker with its share of a hub: real frames, real kernel, real books; everything else by dice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvasir::net::framed::{self, FramedReader};
use kvasir::types::{ExpertId, Hex, PublicKey};
use kvasir::wire::chunk::{CHUNK_BYTES_MAX, ExpertChunk};
use kvasir::wire::control::{
    BackboneHello, Control, ExpertGet, Lease, Offer, Pause, Quarantine, Release, Resume, SessionClosed, SessionOpen,
    SliceReady, Verdict,
};
use kvasir::wire::{Frame, Kind, Slice};
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::books::Book;
use super::dice::Dice;
use super::world::World;

/// Bytes on the way in one direction; less than an answer, so that a cut link may end within a frame.
const PIPE_BYTES: usize = 8 << 10;
/// Frames that wait for the link.
const QUEUE_FRAMES: usize = 4096;
/// Pieces of experts asked for at once.
const GETS: usize = 8;
/// How long a worker keeps what it has given back.
const LAST_QUESTIONS: Duration = Duration::from_secs(3);

/// What kind of worker it is.
#[derive(Clone)]
pub struct Character {
    pub wallet: PublicKey,
    /// Time from a request to its answer beside the computing.
    pub round_trip: Duration,
    /// Of a thousand answers, how many come far too late.
    pub stragglers: usize,
    /// Of a thousand answers, how many are not what was asked for.
    pub lies: usize,
    /// Experts that it has room for.
    pub room: usize,
    /// Whether it has the weights already.
    pub is_stocked: bool,
    /// Mean time between two of its whims: a pause, a cut, more or less room.
    pub whims: Duration,
}

/// How a session ended.
enum Ended {
    /// The link is gone.
    Cut,
    /// The world is over.
    Over,
}

/// Connects, again and again, until the world is over.
pub async fn live(world: Arc<World>, character: Character, mut dice: Dice) {
    let mut stock = BTreeSet::new();
    // Whoever was caught is let in no more.
    while !world.is_over() && !world.is_caught(&character.wallet) {
        if let Ended::Over = session(&world, &character, &mut dice, &mut stock).await {
            return;
        }
        tokio::select! {
            () = sleep(dice.millis(10, 5_000)) => {}
            () = world.over.wait() => return,
        }
    }
}

/// Completes when the first of the frames is due.
async fn next_due(due: &BTreeMap<(Instant, u64), Frame>) {
    match due.first_key_value() {
        Some(((at, _), _)) => sleep_until(*at).await,
        None => std::future::pending().await,
    }
}

/// What goes out, and when it leaves.
pub type Outbox = mpsc::Sender<(Instant, Frame)>;

/// A session under way.
pub struct Session<'a> {
    pub world: &'a World,
    pub character: &'a Character,
    pub dice: &'a mut Dice,
    pub book: Arc<Mutex<Book>>,
    pub out: Outbox,
    /// Experts that are here.
    pub stock: &'a mut BTreeSet<ExpertId>,
    /// What may still be asked for although it was given back, and until when.
    pub leaving: Vec<(Instant, Slice)>,
    pub leases: BTreeMap<u32, Slice>,
    /// A lease for which there was no room.
    pub outdated: Option<Lease>,
    /// The lease that is not ready yet.
    pub coming: Option<(u32, VecDeque<ExpertId>)>,
    pub gets: BTreeMap<u64, (ExpertId, Vec<u8>)>,
    pub next_get: u64,
    pub parts: BTreeMap<u64, Vec<Frame>>,
    pub room: usize,
    pub is_paused: bool,
}

async fn session(world: &World, character: &Character, dice: &mut Dice, stock: &mut BTreeSet<ExpertId>) -> Ended {
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    if world.streams.send(Box::new(theirs)).await.is_err() {
        return Ended::Over;
    }
    let (mut reader, mut writer) = framed::split(Box::new(ours));
    let Ok(Ok(Some(hello))) = timeout(Duration::from_secs(30), reader.recv()).await else { return Ended::Cut };
    if hello.header.kind == Kind::Refuse {
        return Ended::Cut;
    }
    assert_eq!(BackboneHello::read(&hello).unwrap().hidden_size, world.hidden());
    let session_id = Hex(dice.bytes());
    let opening = SessionOpen {
        session_id,
        wallet: character.wallet,
        worker_id: Hex(std::array::from_fn(|at| character.wallet.0[at])),
        peer_ip_hash: Hex([0; 16]),
        round_trip_us: character.round_trip.as_micros() as u64,
    };
    let book = world.books.open(Book::new(session_id, character.wallet, world.hidden()));
    let (out, mut outbox) = mpsc::channel::<(Instant, Frame)>(QUEUE_FRAMES);
    let writing = async move {
        // By due time, and in the order of their sending where that is the same.
        let mut due = BTreeMap::new();
        for sent in 0u64.. {
            tokio::select! {
                frame = outbox.recv() => match frame {
                    Some((at, frame)) => drop(due.insert((at, sent), frame)),
                    None => return,
                },
                () = next_due(&due) => {
                    let Some((_, frame)) = due.pop_first() else { continue };
                    if writer.send(&frame).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    let mut session = Session {
        world,
        character,
        dice,
        book,
        out,
        stock,
        leaving: Vec::new(),
        leases: BTreeMap::new(),
        outdated: None,
        coming: None,
        gets: BTreeMap::new(),
        next_get: 1,
        parts: BTreeMap::new(),
        room: character.room,
        is_paused: false,
    };
    session.say(&opening);
    session.offer();
    // Dropping both ends at once is what a cut looks like, in the middle of a frame where one is on its way.
    tokio::select! {
        () = writing => Ended::Cut,
        ended = session.run(&mut reader) => ended,
    }
}

impl Session<'_> {
    async fn run<R: AsyncRead + Unpin>(&mut self, reader: &mut FramedReader<R>) -> Ended {
        let mut whim = Box::pin(sleep(self.until_whim()));
        loop {
            tokio::select! {
                frame = reader.recv() => match frame {
                    Ok(Some(frame)) => if !self.act(frame) { return self.close(reader).await },
                    _ => return Ended::Cut,
                },
                () = &mut whim => {
                    if !self.whim().await {
                        return Ended::Cut;
                    }
                    whim = Box::pin(sleep(self.until_whim()));
                }
                () = self.world.over.wait() => {
                    self.say(&Release { lease: 1, experts: BTreeMap::new() });
                    self.close(reader).await;
                    return Ended::Over;
                }
            }
        }
    }

    /// Says goodbye as a hub does, and takes the last verdicts.
    async fn close<R: AsyncRead + Unpin>(&mut self, reader: &mut FramedReader<R>) -> Ended {
        self.say(&SessionClosed { reason: "simulated".into() });
        while let Ok(Ok(Some(frame))) = timeout(Duration::from_secs(30), reader.recv()).await {
            match frame.header.kind {
                Kind::Verdict => self.judged(&frame),
                // What comes now goes nowhere, but its verdict is due all the same.
                Kind::Dispatch => self.book.lock().expect("no panic").asked(&frame.header),
                Kind::Quarantine => drop(self.told(&frame)),
                _ => {}
            }
        }
        Ended::Cut
    }

    /// Queues a frame; on a link this far behind it is lost with the link.
    pub fn send(&self, frame: Frame, after: Duration) {
        let _ = self.out.try_send((Instant::now() + after, frame));
    }

    fn say(&self, body: &impl Control) {
        self.send(body.frame().unwrap(), self.character.round_trip / 2);
    }

    fn offer(&self) {
        let memory_bytes = self.room as u64 * self.world.expert_bytes();
        let offer = Offer { device: "simulated".into(), memory_bytes, assignments_per_s: 1e4, wants: vec![] };
        self.say(&offer);
    }

    fn until_whim(&mut self) -> Duration {
        self.character.whims.mul_f64(0.1 + self.dice.below(1900) as f64 / 1000.0)
    }

    /// Does something that nobody asked for; `false` when the link is to be cut.
    async fn whim(&mut self) -> bool {
        if self.world.is_calm() {
            if std::mem::take(&mut self.is_paused) {
                self.say(&Resume {});
            }
            return true;
        }
        match self.dice.below(6) {
            0 => return false,
            1 => sleep(self.dice.millis(10, 40_000)).await,
            2 | 3 => {
                self.room = self.dice.below(self.character.room + 1);
                self.offer();
                if let Some(lease) = self.outdated.take() {
                    self.lease(&lease);
                }
            }
            _ if self.is_paused => {
                self.is_paused = false;
                self.say(&Resume {});
            }
            _ => {
                self.is_paused = true;
                self.say(&Pause { reason: "a whim".into() });
            }
        }
        true
    }

    /// Acts on a frame of the backbone; `false` when a hub would end the session now.
    fn act(&mut self, frame: Frame) -> bool {
        match frame.header.kind {
            Kind::Lease => self.lease(&Lease::read(&frame).unwrap()),
            Kind::ExpertChunk => self.chunk(&frame),
            Kind::Verdict => self.judged(&frame),
            Kind::Dispatch | Kind::Challenge => return self.asked(frame),
            Kind::Quarantine => return self.told(&frame),
            other => panic!("a worker never gets {other:?}"),
        }
        true
    }

    /// The hub hears who was caught, over this session or over the one of somebody else; whether this session goes on.
    fn told(&self, frame: &Frame) -> bool {
        let Quarantine { wallet, .. } = Quarantine::read(frame).unwrap();
        self.world.catch(wallet);
        wallet != self.character.wallet
    }

    fn judged(&self, frame: &Frame) {
        self.book.lock().expect("no panic").judged(&Verdict::read(frame).unwrap());
    }

    fn lease(&mut self, lease: &Lease) {
        let slice = Slice::from_ranges(&lease.experts).unwrap();
        if slice.len() > self.room {
            // Given before the backbone heard of less room; another one follows, or room for it.
            self.outdated = Some(lease.clone());
            return;
        }
        self.outdated = None;
        let here: Slice = self.stock.iter().copied().collect();
        let leaving = here.without(&slice);
        if here.len() + slice.without(&here).len() > self.room && !leaving.is_empty() {
            let newest = self.leases.keys().next_back().copied().unwrap_or(1);
            self.say(&Release { lease: newest, experts: leaving.to_ranges() });
            self.leaving.push((Instant::now() + LAST_QUESTIONS, leaving.clone()));
            self.stock.retain(|id| !leaving.contains(*id));
        }
        let missing: VecDeque<ExpertId> = slice.iter().filter(|id| !self.stock.contains(id)).collect();
        self.leases.insert(lease.lease, slice);
        self.gets.clear();
        self.coming = Some((lease.lease, missing));
        self.fetch();
    }

    /// Goes on with the lease that is not ready yet.
    fn fetch(&mut self) {
        let Some((lease, missing)) = &mut self.coming else { return };
        if self.character.is_stocked {
            self.stock.extend(missing.drain(..));
        }
        while self.gets.len() < GETS
            && let Some(id) = missing.pop_front()
        {
            let length = (self.world.expert_bytes() as usize).min(CHUNK_BYTES_MAX) as u32;
            let get = ExpertGet { layer: id.layer, expert: id.expert, offset: 0, length };
            self.gets.insert(self.next_get, (id, Vec::new()));
            let _ = self.out.try_send((Instant::now(), get.reply(self.next_get).unwrap()));
            self.next_get += 1;
        }
        if self.gets.is_empty() {
            let ready = SliceReady { lease: *lease, bytes: 0, experts: BTreeMap::new() };
            self.coming = None;
            let prepared = self.dice.millis(1, 3_000);
            self.send(ready.frame().unwrap(), prepared);
        }
    }

    fn chunk(&mut self, frame: &Frame) {
        let Some((id, mut bytes)) = self.gets.remove(&frame.header.request) else { return };
        bytes.extend_from_slice(&ExpertChunk::read(frame).unwrap().bytes);
        assert_eq!(self.world.digest(id), blake3::hash(&bytes), "{id:?}");
        self.stock.insert(id);
        self.fetch();
    }
}
