//! Brings a lease's experts here: cut from a local model, or piece by piece over the link; never used unverified.
//!
//! The manifest comes first and must have the id that the lease names; each expert must have the digest that the
//! manifest names. A bad expert is fetched again, alone. Experts that were verified survive a broken link.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard, Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Source;
use super::load::Load;
use super::outgoing::{Link, LinkError};
use super::slices::{Held, Holdings, Library};
use super::status::{Board, Phase};
use crate::kernel::{Expert, KernelError};
use crate::model::manifest::MANIFEST_BYTES_MAX;
use crate::model::{Data, ExpertWeights, Manifest, ManifestError, Model};
use crate::types::{Digest, ExpertId, Hex};
use crate::wire::chunk::{CHUNK_BYTES_MAX, ExpertChunk, MANIFEST_EXPERT};
use crate::wire::control::{Control, ExpertGet, Lease, Release};
use crate::wire::{Frame, FrameError, Slice};

/// Pieces asked for and not yet here: half of what a hub allows, so that a lease that replaces another has room.
pub(super) const PIECES_IN_FLIGHT: usize = 8;
/// How often a damaged expert is fetched before the link is given up.
const TRIES: usize = 3;
/// How long experts that were given back stay when the questions for others do not pause.
const LAST_QUESTIONS: Duration = Duration::from_secs(3);
/// Time between two looks for quiet.
const QUIET_LOOK: Duration = Duration::from_millis(20);

/// Why a lease cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("manifest has id {got}, expected {expected}")]
    ManifestId { expected: Digest, got: Digest },
    #[error("manifest is over the limit of {MANIFEST_BYTES_MAX} bytes")]
    ManifestSize,
    #[error("the lease names expert {0:?}, which the manifest does not have")]
    NoExpert(ExpertId),
    #[error("the lease takes {bytes} bytes, more than the {memory} offered")]
    TooLarge { bytes: u64, memory: u64 },
    #[error("no piece of an expert within {} s", .0.as_secs())]
    Stalled(Duration),
    #[error("expected {expected} bytes at {offset} of request {request}, got {got} at {got_offset}")]
    Piece { request: u64, offset: u64, expected: u32, got_offset: u64, got: usize },
    #[error("expert {0:?} was damaged {TRIES} times")]
    Damaged(ExpertId),
    #[error("expert {id:?}: {source}")]
    Unusable { id: ExpertId, source: KernelError },
    #[error("verification ended early: {0}")]
    Verification(#[from] tokio::task::JoinError),
}

/// Something to fetch whole.
#[derive(Clone, Copy)]
struct Wanted {
    id: ExpertId,
    bytes: u64,
}

/// A piece that was asked for.
struct Asked {
    request: u64,
    wanted: usize,
    get: ExpertGet,
}

/// Asks for pieces and gets them in order, over one session.
pub(super) struct Pipe {
    link: Arc<Link>,
    room: Semaphore,
    pieces: Mutex<mpsc::Receiver<Frame>>,
    next: AtomicU64,
    patience: Duration,
}

impl Pipe {
    /// A pipe, and where the session puts every `ExpertChunk`.
    pub fn new(link: Arc<Link>, patience: Duration) -> (Self, mpsc::Sender<Frame>) {
        let (tx, rx) = mpsc::channel(PIECES_IN_FLIGHT);
        let room = Semaphore::new(PIECES_IN_FLIGHT);
        (Self { link, room, pieces: Mutex::new(rx), next: AtomicU64::new(1), patience }, tx)
    }

    /// Starts to fetch everything `wanted`.
    async fn start(&self, wanted: Vec<Wanted>) -> Fetching<'_> {
        let pieces = self.pieces.lock().await;
        Fetching { pipe: self, pieces, wanted, next: (0, 0), asked: VecDeque::new(), buffer: Vec::new() }
    }

    /// Fetches the manifest, whose length only its last piece tells.
    async fn manifest(&self, expected: Digest) -> Result<Manifest, FetchError> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut pieces = self.pieces.lock().await;
        loop {
            let (request, length) = (self.next.fetch_add(1, Relaxed), CHUNK_BYTES_MAX as u32);
            let get = ExpertGet { layer: 0, expert: MANIFEST_EXPERT, offset: bytes.len() as u64, length };
            let Ok(place) = timeout(self.patience, self.room.acquire()).await else {
                return Err(FetchError::Stalled(self.patience));
            };
            self.link.send(&get.reply(request)?).await?;
            if let Ok(place) = place {
                place.forget();
            }
            let chunk = loop {
                let piece =
                    timeout(self.patience, pieces.recv()).await.map_err(|_| FetchError::Stalled(self.patience))?;
                let Some(frame) = piece else { return Err(LinkError::Over.into()) };
                self.room.add_permits(1);
                if frame.header.request == request {
                    break ExpertChunk::read(&frame)?;
                }
            };
            let last = chunk.bytes.len() < CHUNK_BYTES_MAX;
            bytes.extend_from_slice(&chunk.bytes);
            if bytes.len() > MANIFEST_BYTES_MAX {
                return Err(FetchError::ManifestSize);
            }
            if last {
                break;
            }
        }
        let got = Hex(*blake3::hash(&bytes).as_bytes());
        if got != expected {
            return Err(FetchError::ManifestId { expected, got });
        }
        Ok(Manifest::from_bytes(&bytes)?)
    }
}

/// Experts on their way.
struct Fetching<'a> {
    pipe: &'a Pipe,
    pieces: MutexGuard<'a, mpsc::Receiver<Frame>>,
    wanted: Vec<Wanted>,
    /// Index into `wanted` and offset of the piece to ask for next.
    next: (usize, u64),
    asked: VecDeque<Asked>,
    /// The expert that is coming in.
    buffer: Vec<u8>,
}

impl Fetching<'_> {
    /// The piece to ask for next.
    fn next_get(&self) -> Option<ExpertGet> {
        let Wanted { id, bytes } = *self.wanted.get(self.next.0)?;
        let offset = self.next.1;
        let length = (bytes - offset).min(CHUNK_BYTES_MAX as u64) as u32;
        Some(ExpertGet { layer: id.layer, expert: id.expert, offset, length })
    }

    /// Asks for as many pieces as may be in flight.
    async fn ask(&mut self) -> Result<(), FetchError> {
        while let Some(get) = self.next_get() {
            let Ok(place) = self.pipe.room.try_acquire() else { break };
            let request = self.pipe.next.fetch_add(1, Relaxed);
            self.pipe.link.send(&get.reply(request)?).await?;
            place.forget();
            let (wanted, end) = (self.next.0, get.offset + u64::from(get.length));
            self.next = if end < self.wanted[wanted].bytes { (wanted, end) } else { (wanted + 1, 0) };
            self.asked.push_back(Asked { request, wanted, get });
        }
        Ok(())
    }

    /// The next complete expert; `None` after the last.
    async fn expert(&mut self) -> Result<Option<(ExpertId, Vec<u8>)>, FetchError> {
        loop {
            self.ask().await?;
            if self.asked.is_empty() && self.next.0 == self.wanted.len() {
                return Ok(None);
            }
            let patience = self.pipe.patience;
            let piece = timeout(patience, self.pieces.recv()).await.map_err(|_| FetchError::Stalled(patience))?;
            let Some(frame) = piece else { return Err(LinkError::Over.into()) };
            self.pipe.room.add_permits(1);
            // Pieces of a lease that was replaced still arrive; they are older than anything asked for now.
            if self.asked.front().is_none_or(|first| frame.header.request < first.request) {
                continue;
            }
            let Some(first) = self.asked.pop_front() else { continue };
            let chunk = ExpertChunk::read(&frame)?;
            check_piece(&first, &frame, &chunk)?;
            self.buffer.extend_from_slice(&chunk.bytes);
            let Wanted { id, bytes } = self.wanted[first.wanted];
            if self.buffer.len() as u64 == bytes {
                return Ok(Some((id, std::mem::take(&mut self.buffer))));
            }
        }
    }
}

fn check_piece(asked: &Asked, frame: &Frame, chunk: &ExpertChunk) -> Result<(), FetchError> {
    let ExpertGet { offset, length, .. } = asked.get;
    let fits = frame.header.request == asked.request && chunk.offset == offset && chunk.bytes.len() == length as usize;
    if fits {
        return Ok(());
    }
    let (request, got_offset, got) = (asked.request, chunk.offset, chunk.bytes.len());
    Err(FetchError::Piece { request, offset, expected: length, got_offset, got })
}

/// Everything that taking a lease needs.
pub(super) struct Taking {
    pub library: Arc<Library>,
    pub holdings: Arc<Holdings>,
    pub board: Arc<Board>,
    pub link: Arc<Link>,
    pub pipe: Arc<Pipe>,
    pub load: Arc<Load>,
    /// Without a request for this long, the backbone has heard what was given back.
    pub quiet: Duration,
    /// Bytes offered.
    pub memory_bytes: u64,
}

impl Taking {
    /// Gets every expert of a lease, verified; returns what is held and its bytes.
    pub async fn take(self, lease: Lease) -> Result<(Arc<Held>, u64), FetchError> {
        let slice = Slice::from_ranges(&lease.experts)?;
        let manifest = self.manifest(lease.manifest).await?;
        let mut wanted = Vec::new();
        let (mut total, mut done) = (0, 0);
        for id in slice.iter() {
            let known = manifest.digest(id).is_some();
            let bytes = expert_bytes(&manifest, id.layer).filter(|_| known).ok_or(FetchError::NoExpert(id))?;
            total += bytes;
            match self.library.get(id) {
                Some(_) => done += bytes,
                None => wanted.push(Wanted { id, bytes }),
            }
        }
        if total > self.memory_bytes {
            return Err(FetchError::TooLarge { bytes: total, memory: self.memory_bytes });
        }
        self.make_room(&slice, &manifest, &wanted).await?;
        self.board.phase(Phase::Fetching { done, total });
        self.gather(&manifest, wanted, done, total).await?;

        let experts: HashMap<ExpertId, Arc<Expert>> =
            slice.iter().filter_map(|id| Some((id, self.library.get(id)?))).collect();
        self.library.keep_only(&slice);
        let held = Held { lease: lease.lease, slice, hidden: manifest.hidden_size(), experts };
        Ok((Arc::new(held), total))
    }

    async fn manifest(&self, expected: Digest) -> Result<Arc<Manifest>, FetchError> {
        if let Some(known) = self.library.manifest().filter(|known| known.id() == expected) {
            return Ok(known);
        }
        if let Source::LocalModel(model) = self.library.source() {
            let ours = self.library.manifest_of(model).await?;
            if ours.id() == expected {
                self.library.set_manifest(Arc::clone(&ours), true);
                return Ok(ours);
            }
            warn!(expected = %expected, ours = %ours.id(), "the local model is not the one that is served; fetching");
        }
        let fetched = Arc::new(self.pipe.manifest(expected).await?);
        self.library.set_manifest(Arc::clone(&fetched), false);
        Ok(fetched)
    }

    /// Drops what the new slice does not need, when old and new would not fit together: first it is given back, by
    /// name, then whoever had asked before that was heard gets an answer.
    async fn make_room(&self, slice: &Slice, manifest: &Manifest, wanted: &[Wanted]) -> Result<(), FetchError> {
        let mut resident = self.holdings.ids();
        resident.extend(self.library.ids());
        let kept: u64 = resident.iter().filter_map(|id| expert_bytes(manifest, id.layer)).sum();
        let coming: u64 = wanted.iter().map(|w| w.bytes).sum();
        if kept + coming <= self.memory_bytes {
            return Ok(());
        }
        if let Some(held) = self.holdings.newest() {
            let leaving = held.slice.without(slice);
            if !leaving.is_empty() {
                let release = Release { lease: held.lease, experts: leaving.to_ranges() };
                self.link.send(&release.frame()?).await?;
            }
            let start = Instant::now();
            while !self.load.is_quiet(start, self.quiet) && start.elapsed() < LAST_QUESTIONS {
                sleep(QUIET_LOOK).await;
            }
        }
        self.holdings.keep_only(slice);
        self.library.keep_only(slice);
        Ok(())
    }

    async fn gather(
        &self,
        manifest: &Arc<Manifest>,
        mut wanted: Vec<Wanted>,
        mut done: u64,
        total: u64,
    ) -> Result<(), FetchError> {
        if let Some(model) = self.local_model() {
            for Wanted { id, bytes } in wanted {
                let weights = expert_of(&model, id).ok_or(FetchError::NoExpert(id))?.clone();
                self.prepare(id, weights).await?;
                done += bytes;
                self.board.phase(Phase::Fetching { done, total });
            }
            return Ok(());
        }
        for _ in 0..TRIES {
            let mut damaged = Vec::new();
            let mut fetching = self.pipe.start(wanted).await;
            while let Some((id, data)) = fetching.expert().await? {
                let bytes = data.len() as u64;
                let Some(weights) = self.verify(manifest, id, data).await? else {
                    damaged.push(Wanted { id, bytes });
                    continue;
                };
                self.prepare(id, weights).await?;
                done += bytes;
                self.board.phase(Phase::Fetching { done, total });
            }
            if damaged.is_empty() {
                return Ok(());
            }
            warn!(experts = damaged.len(), "experts came damaged and are fetched again");
            wanted = damaged;
        }
        wanted.first().map_or(Ok(()), |first| Err(FetchError::Damaged(first.id)))
    }

    /// The local model, if it is the one that is served.
    fn local_model(&self) -> Option<Arc<Model>> {
        match self.library.source() {
            Source::LocalModel(model) if self.library.is_own() => Some(Arc::clone(model)),
            _ => None,
        }
    }

    /// The expert's matrices, if its bytes are the ones that the manifest names.
    async fn verify(
        &self,
        manifest: &Arc<Manifest>,
        id: ExpertId,
        bytes: Vec<u8>,
    ) -> Result<Option<ExpertWeights>, FetchError> {
        let manifest = Arc::clone(manifest);
        let verified = spawn_blocking(move || {
            let digest = Hex(*blake3::hash(&bytes).as_bytes());
            if manifest.digest(id) != Some(digest) {
                return None;
            }
            ExpertWeights::from_bytes(&manifest.expert_shape(id.layer)?, &Data::from(bytes)).ok()
        });
        Ok(verified.await?)
    }

    async fn prepare(&self, id: ExpertId, weights: ExpertWeights) -> Result<(), FetchError> {
        let prepared = spawn_blocking(move || Expert::new(&weights)).await?;
        self.library.put(id, Arc::new(prepared.map_err(|source| FetchError::Unusable { id, source })?));
        Ok(())
    }
}

/// Stored bytes of each expert of a layer.
fn expert_bytes(manifest: &Manifest, layer: u16) -> Option<u64> {
    Some(manifest.expert_shape(layer)?.bytes() as u64)
}

/// An expert of a model; layers as in [`ExpertId`], the MTP layer last.
fn expert_of(model: &Model, id: ExpertId) -> Option<&ExpertWeights> {
    model.weights.moe_layers().nth(id.layer.into())?.experts.get(usize::from(id.expert))
}
