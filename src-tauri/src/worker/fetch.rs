//! Brings a lease's experts here: cut from a local model, or piece by piece over the link; never used unverified.
//!
//! The manifest comes first and must have the id that the lease names; each expert must have the digest that the
//! manifest names. A bad expert is fetched again, alone. Experts that were verified survive a broken link.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::warn;

use super::session::{Link, LinkError};
use super::slices::{Held, Holdings, Library};
use super::status::{Board, Phase};
use super::Source;
use crate::kernel::{Expert, KernelError};
use crate::model::{Data, ExpertWeights, Manifest, ManifestError};
use crate::types::{Digest, ExpertId};
use crate::wire::chunk::{CHUNK_BYTES_MAX, ExpertChunk, MANIFEST_EXPERT};
use crate::wire::control::{Control, ExpertGet, Lease, Release};
use crate::wire::{Frame, FrameError, Slice};

/// Pieces asked for and not yet here: half of what a hub allows, so that a lease that replaces another has room.
pub(super) const PIECES_IN_FLIGHT: usize = 8;
/// Largest manifest: a hundred thousand experts.
const MANIFEST_BYTES_MAX: usize = 64 << 20;
/// How often a damaged expert is fetched before the link is given up.
const TRIES: usize = 3;

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

    /// Fetches everything `wanted`; `finished` gets each as soon as it is complete.
    async fn fetch(
        &self,
        wanted: &[Wanted],
        mut finished: impl AsyncFnMut(ExpertId, Vec<u8>) -> Result<(), FetchError>,
    ) -> Result<(), FetchError> {
        let mut pieces = self.pieces.lock().await;
        let mut gets = wanted.iter().enumerate().flat_map(|(index, w)| gets(w).map(move |get| (index, get))).peekable();
        let mut asked: VecDeque<Asked> = VecDeque::new();
        let mut buffer = Vec::new();
        loop {
            while gets.peek().is_some() {
                let Ok(place) = self.room.try_acquire() else { break };
                let Some((wanted, get)) = gets.next() else { break };
                let request = self.next.fetch_add(1, Relaxed);
                self.link.send(&get.reply(request)?).await?;
                place.forget();
                asked.push_back(Asked { request, wanted, get });
            }
            if asked.is_empty() && gets.peek().is_none() {
                return Ok(());
            }
            let piece = timeout(self.patience, pieces.recv()).await.map_err(|_| FetchError::Stalled(self.patience))?;
            let Some(frame) = piece else { return Err(LinkError::Over.into()) };
            self.room.add_permits(1);
            // Pieces of a lease that was replaced still arrive; they are older than anything asked for now.
            if asked.front().is_none_or(|first| frame.header.request < first.request) {
                continue;
            }
            let Some(first) = asked.pop_front() else { continue };
            let chunk = ExpertChunk::read(&frame)?;
            check_piece(&first, &frame, &chunk)?;
            buffer.extend_from_slice(&chunk.bytes);
            let Wanted { id, bytes } = wanted[first.wanted];
            if buffer.len() as u64 == bytes {
                finished(id, std::mem::take(&mut buffer)).await?;
            }
        }
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
        let got = Digest::from(blake3::hash(&bytes));
        if got != expected {
            return Err(FetchError::ManifestId { expected, got });
        }
        Ok(Manifest::from_bytes(&bytes)?)
    }
}
