//! Takes a lease: finds out what is missing, makes room for it, has it gathered, and holds the slice.
//!
//! The manifest comes first and must have the id that the lease names. Experts that are here survive a broken link.
//! Hardware with less room than was offered is no error: the session offers what it took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::debug;

use super::consent::Consent;
use super::gather::{Gathering, TRIES};
use super::load::Load;
use super::outgoing::{Link, LinkError};
use super::pipe::{Pipe, Wanted};
use super::slices::{Held, Holdings, Library};
use super::status::Board;
use crate::kernel::{ExpertCompute, KernelError};
use crate::model::manifest::MANIFEST_BYTES_MAX;
use crate::model::{Manifest, ManifestError};
use crate::types::{Digest, ExpertId};
use crate::wire::control::{Control, Lease, Release};
use crate::wire::{FrameError, Slice};

/// How long experts that were given back stay when the questions for others do not pause.
const LAST_QUESTIONS: Duration = Duration::from_secs(3);
/// Time between two looks for quiet.
pub(super) const QUIET_LOOK: Duration = Duration::from_millis(20);

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

/// Everything that taking a lease needs.
pub(super) struct Taking {
    pub library: Arc<Library>,
    pub holdings: Arc<Holdings>,
    pub board: Arc<Board>,
    pub link: Arc<Link>,
    pub pipe: Arc<Pipe>,
    pub load: Arc<Load>,
    pub compute: Arc<dyn ExpertCompute>,
    /// Whether large downloads may begin.
    pub consent: Consent,
    /// How long a piece may take.
    pub patience: Duration,
    /// Without a request for this long, the backbone has heard what was given back.
    pub quiet: Duration,
    /// Bytes offered.
    pub room: Room,
}

/// Bytes that a session offers.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// The most so far.
    pub most: u64,
    /// Now: less, once the hardware took less or the user allows less.
    pub now: u64,
}

/// What became of a lease.
pub(super) enum Taken {
    /// All of it is here.
    Held { held: Arc<Held>, bytes: u64 },
    /// The hardware took no more than `placed` bytes, what it held before included.
    Full { lease: Lease, bytes: u64, placed: u64, why: KernelError },
    /// It was given before the backbone heard that the room is less; another one follows, or room for it.
    Outdated(Lease),
}

impl Taking {
    /// Gets every expert of a lease, verified and placed; those that are serve while the others come.
    pub async fn take(self, lease: Lease) -> Result<Taken, FetchError> {
        let slice = Slice::from_ranges(&lease.experts)?;
        let manifest = self.manifest(lease.manifest).await?;
        let mut wanted = Vec::new();
        let (mut total, mut done) = (0, 0);
        for id in slice.iter() {
            let (Some(digest), Some(bytes)) = (manifest.digest(id), expert_bytes(&manifest, id.layer)) else {
                return Err(FetchError::NoExpert(id));
            };
            total += bytes;
            match self.library.get(id) {
                Some(_) => done += bytes,
                None => wanted.push(Wanted { id, digest, bytes, apart: false }),
            }
        }
        if total > self.room.most {
            return Err(FetchError::TooLarge { bytes: total, memory: self.room.most });
        }
        if total > self.room.now {
            debug!(lease = lease.lease, total, room = self.room.now, "waiting for a lease that fits");
            return Ok(Taken::Outdated(lease));
        }
        self.make_room(&slice, &manifest, &wanted).await?;
        self.name_needs(&slice, &manifest).await?;
        match Gathering::new(&self, &lease, &slice, &manifest, done, total).gather(wanted).await {
            Ok(()) => {}
            Err(FetchError::Unusable { source: why @ KernelError::Full { .. }, .. }) => {
                let placed = self.resident_bytes(&manifest);
                return Ok(Taken::Full { lease, bytes: total, placed, why });
            }
            Err(error) => return Err(error),
        }
        let held = self.library.held(lease.lease, &slice, manifest.hidden_size(), true);
        self.library.keep_only(&slice);
        Ok(Taken::Held { held: Arc::new(held), bytes: total })
    }

    /// Tells the disk what must stay on it: the manifest and the slice.
    async fn name_needs(&self, slice: &Slice, manifest: &Arc<Manifest>) -> Result<(), FetchError> {
        let Some(cache) = self.library.cache().cloned() else { return Ok(()) };
        let (slice, manifest) = (slice.clone(), Arc::clone(manifest));
        let named = spawn_blocking(move || {
            cache.need(slice.iter().filter_map(|id| manifest.digest(id)).chain([manifest.id()]));
        });
        Ok(named.await?)
    }

    /// Bytes of every expert that is here.
    fn resident_bytes(&self, manifest: &Manifest) -> u64 {
        let mut resident = self.holdings.ids();
        resident.extend(self.library.ids());
        resident.iter().filter_map(|id| expert_bytes(manifest, id.layer)).sum()
    }

    /// The manifest: known, on disk, or over the link.
    async fn manifest(&self, expected: Digest) -> Result<Arc<Manifest>, FetchError> {
        if let Some(known) = self.library.manifest().filter(|known| known.id() == expected) {
            return Ok(known);
        }
        let cache = self.library.cache().cloned();
        let kept = match cache.clone() {
            Some(cache) => spawn_blocking(move || Manifest::from_bytes(&cache.read(expected)?).ok()).await?,
            None => None,
        };
        let manifest = match kept {
            Some(manifest) => Arc::new(manifest),
            None => {
                let fetched = Arc::new(self.pipe.manifest(expected).await?);
                if let Some(cache) = cache {
                    let manifest = Arc::clone(&fetched);
                    spawn_blocking(move || cache.put(expected, manifest.bytes())).await?;
                }
                fetched
            }
        };
        self.library.set_manifest(Arc::clone(&manifest));
        Ok(manifest)
    }

    /// Drops what the new slice does not need, when old and new would not fit together: first it is given back, by
    /// name, then whoever had asked before that was heard gets an answer.
    async fn make_room(&self, slice: &Slice, manifest: &Manifest, wanted: &[Wanted]) -> Result<(), FetchError> {
        let coming: u64 = wanted.iter().map(|w| w.bytes).sum();
        if self.resident_bytes(manifest) + coming <= self.room.now {
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
}

/// Stored bytes of each expert of a layer.
pub(super) fn expert_bytes(manifest: &Manifest, layer: u16) -> Option<u64> {
    Some(manifest.expert_shape(layer)?.bytes() as u64)
}
