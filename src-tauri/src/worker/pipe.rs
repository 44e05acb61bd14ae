//! Experts and the manifest piece by piece over one session: asked for in order, a bounded number in flight.
//!
//! Pieces of a lease that was replaced may still arrive; they are older than anything asked for later, and let go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Semaphore, mpsc};
use tokio::time::timeout;

use super::fetch::FetchError;
use super::outgoing::{Link, LinkError};
use crate::model::Manifest;
use crate::model::manifest::MANIFEST_BYTES_MAX;
use crate::types::{Digest, ExpertId, Hex};
use crate::wire::Frame;
use crate::wire::chunk::{CHUNK_BYTES_MAX, ExpertChunk, MANIFEST_EXPERT};
use crate::wire::control::{Control, ExpertGet};

/// Pieces asked for and not yet here: half of what a hub allows, so that a lease that replaces another has room.
pub(super) const PIECES_IN_FLIGHT: usize = 8;

/// Something to fetch whole.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub id: ExpertId,
    pub bytes: u64,
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
    pub async fn start(&self, wanted: Vec<Wanted>) -> Fetching<'_> {
        let pieces = self.pieces.lock().await;
        Fetching { pipe: self, pieces, wanted, next: (0, 0), asked: VecDeque::new(), buffer: Vec::new() }
    }

    /// Fetches the manifest, whose length only its last piece tells.
    pub async fn manifest(&self, expected: Digest) -> Result<Manifest, FetchError> {
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
pub(super) struct Fetching<'a> {
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
    pub async fn expert(&mut self) -> Result<Option<(ExpertId, Vec<u8>)>, FetchError> {
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
