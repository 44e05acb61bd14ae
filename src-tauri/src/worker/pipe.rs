//! Experts and the manifest piece by piece over one session: asked for in order, a measured number of bytes in flight.
//!
//! Pieces of a lease that was replaced may still arrive; they are older than anything asked for later, and let go.
//! What came of an expert stays in its part, where the next attempt goes on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::cache::{Cache, Opened, Part};
use super::fetch::FetchError;
use super::outgoing::{Link, LinkError};
use super::window::Window;
use crate::model::Manifest;
use crate::model::manifest::MANIFEST_BYTES_MAX;
use crate::types::{Digest, ExpertId, Hex};
use crate::wire::Frame;
use crate::wire::chunk::{CHUNK_BYTES_MAX, ExpertChunk, MANIFEST_EXPERT};
use crate::wire::control::{Control, ExpertGet};

/// Pieces asked for and not yet here: half of what a hub allows, so that a lease that replaces another has room.
pub(super) const PIECES_IN_FLIGHT: usize = 8;

/// Something to fetch whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub id: ExpertId,
    pub digest: Digest,
    pub bytes: u64,
    /// Whether its part on disk is left alone, because another worker that fetches it does not get on.
    pub apart: bool,
}

/// What became of an expert.
pub(super) enum Came {
    /// All of its bytes, to be checked.
    Whole(Wanted, Part),
    /// Another worker fetches it, or has just done so.
    Elsewhere(Wanted),
}

/// A piece that was asked for.
struct Asked {
    request: u64,
    get: ExpertGet,
}

/// A piece and when it came: whoever takes it may look much later.
pub(super) type Piece = (Instant, Frame);

struct Incoming {
    pieces: mpsc::Receiver<Piece>,
    window: Window,
}

/// Asks for pieces and gets them in order, over one session.
pub(super) struct Pipe {
    link: Arc<Link>,
    incoming: Mutex<Incoming>,
    next: AtomicU64,
    patience: Duration,
}

impl Pipe {
    /// A pipe, and where the session puts every `ExpertChunk`.
    pub fn new(link: Arc<Link>, patience: Duration) -> (Self, mpsc::Sender<Piece>) {
        let (tx, pieces) = mpsc::channel(2 * PIECES_IN_FLIGHT);
        let incoming = Mutex::new(Incoming { pieces, window: Window::new(PIECES_IN_FLIGHT) });
        (Self { link, incoming, next: AtomicU64::new(1), patience }, tx)
    }

    /// Starts to fetch everything `wanted`; what comes goes to its part in `cache`, if there is one.
    pub async fn start(&self, wanted: Vec<Wanted>, cache: Option<Arc<Cache>>) -> Fetching<'_> {
        let incoming = self.incoming.lock().await;
        let (asked, under_way) = (VecDeque::new(), VecDeque::new());
        Fetching { pipe: self, incoming, cache, wanted: wanted.into(), asked, under_way }
    }

    /// Fetches the manifest, whose length only its last piece tells.
    pub async fn manifest(&self, expected: Digest) -> Result<Manifest, FetchError> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut incoming = self.incoming.lock().await;
        loop {
            let length = CHUNK_BYTES_MAX as u32;
            let get = ExpertGet { layer: 0, expert: MANIFEST_EXPERT, offset: bytes.len() as u64, length };
            let request = self.ask(&mut incoming, get).await?;
            let chunk = loop {
                let frame = self.piece(&mut incoming).await?;
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

    async fn ask(&self, incoming: &mut Incoming, get: ExpertGet) -> Result<u64, FetchError> {
        let request = self.next.fetch_add(1, Relaxed);
        self.link.send(&get.reply(request)?).await?;
        incoming.window.asked(request, get.length, Instant::now());
        Ok(request)
    }

    /// The next piece, whoever asked for it.
    async fn piece(&self, incoming: &mut Incoming) -> Result<Frame, FetchError> {
        let piece = timeout(self.patience, incoming.pieces.recv()).await;
        let (at, frame) = piece.map_err(|_| FetchError::Stalled(self.patience))?.ok_or(LinkError::Over)?;
        incoming.window.came(frame.header.request, frame.body.len() as u64, at);
        Ok(frame)
    }
}

/// An expert whose pieces are asked for or come in.
struct UnderWay {
    wanted: Wanted,
    part: Part,
    /// Where the next piece to ask for begins.
    next: u64,
}

/// Experts on their way.
pub(super) struct Fetching<'a> {
    pipe: &'a Pipe,
    incoming: MutexGuard<'a, Incoming>,
    cache: Option<Arc<Cache>>,
    wanted: VecDeque<Wanted>,
    asked: VecDeque<Asked>,
    /// In the order in which their pieces come.
    under_way: VecDeque<UnderWay>,
}

impl Fetching<'_> {
    /// Opens the next expert's part; what became of it when nothing is to be asked for.
    async fn open(&mut self, wanted: Wanted) -> Result<Option<Came>, FetchError> {
        let cache = self.cache.clone().filter(|_| !wanted.apart);
        let opened = match cache {
            Some(cache) => spawn_blocking(move || cache.part(wanted.digest, wanted.bytes)).await?,
            None => Opened::Part(Part::unkept(wanted.bytes)),
        };
        let Opened::Part(part) = opened else { return Ok(Some(Came::Elsewhere(wanted))) };
        let next = part.bytes().len() as u64;
        if next == wanted.bytes && self.under_way.is_empty() {
            return Ok(Some(Came::Whole(wanted, part)));
        }
        self.under_way.push_back(UnderWay { wanted, part, next });
        Ok(None)
    }

    /// Asks for as much as may be in flight; ends early with an expert that needs nothing more.
    async fn ask(&mut self) -> Result<Option<Came>, FetchError> {
        while let Some(length) = self.incoming.window.next() {
            if self.under_way.back().is_none_or(|last| last.next == last.wanted.bytes) {
                let Some(wanted) = self.wanted.pop_front() else { return Ok(None) };
                match self.open(wanted).await? {
                    Some(came) => return Ok(Some(came)),
                    None => continue,
                }
            }
            let Some(last) = self.under_way.back_mut() else { return Ok(None) };
            let Wanted { id, bytes, .. } = last.wanted;
            let length = u64::from(length).min(bytes - last.next) as u32;
            let get = ExpertGet { layer: id.layer, expert: id.expert, offset: last.next, length };
            let request = self.pipe.ask(&mut self.incoming, get.clone()).await?;
            last.next += u64::from(length);
            self.asked.push_back(Asked { request, get });
        }
        Ok(None)
    }

    /// The next expert that is complete, or that another worker sees to; `None` after the last.
    pub async fn expert(&mut self) -> Result<Option<Came>, FetchError> {
        loop {
            // Complete when it was opened, behind others that were not.
            let is_whole = |u: &mut UnderWay| u.part.bytes().len() as u64 == u.wanted.bytes;
            if let Some(UnderWay { wanted, part, .. }) = self.under_way.pop_front_if(is_whole) {
                return Ok(Some(Came::Whole(wanted, part)));
            }
            if let Some(came) = self.ask().await? {
                return Ok(Some(came));
            }
            if self.asked.is_empty() && self.under_way.is_empty() && self.wanted.is_empty() {
                return Ok(None);
            }
            let frame = self.pipe.piece(&mut self.incoming).await?;
            // Pieces of a lease that was replaced still arrive; they are older than anything asked for now.
            if self.asked.front().is_none_or(|first| frame.header.request < first.request) {
                continue;
            }
            let Some(first) = self.asked.pop_front() else { continue };
            let chunk = ExpertChunk::read(&frame)?;
            check_piece(&first, &frame, &chunk)?;
            let Some(UnderWay { wanted, mut part, next }) = self.under_way.pop_front() else { continue };
            let part = spawn_blocking(move || {
                part.append(&chunk.bytes);
                part
            });
            self.under_way.push_front(UnderWay { wanted, part: part.await?, next });
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
