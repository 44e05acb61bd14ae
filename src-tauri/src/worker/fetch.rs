//! Brings a lease's experts here: cut from a local model, or piece by piece over the link; never used unverified.
//!
//! The manifest comes first and must have the id that the lease names; each expert must have the digest that the
//! manifest names. A bad expert is fetched again, alone. A verified expert goes to where the kernel computes, and its
//! bytes on the host are let go; it survives a broken link. Hardware with less room than was offered is no error: the
//! session offers what it took.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::Source;
use super::load::Load;
use super::outgoing::{Link, LinkError};
use super::pipe::{Pipe, Wanted};
use super::slices::{Held, Holdings, Library};
use super::status::{Board, Phase};
use crate::kernel::{Expert, ExpertCompute, KernelError};
use crate::model::manifest::MANIFEST_BYTES_MAX;
use crate::model::{Data, ExpertWeights, Manifest, ManifestError, Model};
use crate::types::{Digest, ExpertId, Hex};
use crate::wire::control::{Control, Lease, Release};
use crate::wire::{FrameError, Slice};

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

/// Everything that taking a lease needs.
pub(super) struct Taking {
    pub library: Arc<Library>,
    pub holdings: Arc<Holdings>,
    pub board: Arc<Board>,
    pub link: Arc<Link>,
    pub pipe: Arc<Pipe>,
    pub load: Arc<Load>,
    pub compute: Arc<dyn ExpertCompute>,
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
    /// Gets every expert of a lease, verified and placed.
    pub async fn take(self, lease: Lease) -> Result<Taken, FetchError> {
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
        if total > self.room.most {
            return Err(FetchError::TooLarge { bytes: total, memory: self.room.most });
        }
        if total > self.room.now {
            debug!(lease = lease.lease, total, room = self.room.now, "waiting for a lease that fits");
            return Ok(Taken::Outdated(lease));
        }
        self.make_room(&slice, &manifest, &wanted).await?;
        self.board.phase(Phase::Fetching { done, total });
        match self.gather(&manifest, wanted, done, total).await {
            Ok(()) => {}
            Err(FetchError::Unusable { source: why @ KernelError::Full { .. }, .. }) => {
                let placed = self.resident_bytes(&manifest);
                return Ok(Taken::Full { lease, bytes: total, placed, why });
            }
            Err(error) => return Err(error),
        }

        let experts: HashMap<ExpertId, Arc<Expert>> =
            slice.iter().filter_map(|id| Some((id, self.library.get(id)?))).collect();
        self.library.keep_only(&slice);
        let held = Held { lease: lease.lease, slice, hidden: manifest.hidden_size(), experts };
        Ok(Taken::Held { held: Arc::new(held), bytes: total })
    }

    /// Bytes of every expert that is here.
    fn resident_bytes(&self, manifest: &Manifest) -> u64 {
        let mut resident = self.holdings.ids();
        resident.extend(self.library.ids());
        resident.iter().filter_map(|id| expert_bytes(manifest, id.layer)).sum()
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

    /// Checks an expert and brings it to where the kernel computes.
    async fn prepare(&self, id: ExpertId, weights: ExpertWeights) -> Result<(), FetchError> {
        let compute = Arc::clone(&self.compute);
        let prepared = spawn_blocking(move || compute.place(Expert::new(&weights)?)).await?;
        self.library.put(id, Arc::new(prepared.map_err(|source| FetchError::Unusable { id, source })?));
        Ok(())
    }
}

/// Stored bytes of each expert of a layer.
pub(super) fn expert_bytes(manifest: &Manifest, layer: u16) -> Option<u64> {
    Some(manifest.expert_shape(layer)?.bytes() as u64)
}

/// An expert of a model; layers as in [`ExpertId`], the MTP layer last.
fn expert_of(model: &Model, id: ExpertId) -> Option<&ExpertWeights> {
    model.weights.moe_layers().nth(id.layer.into())?.experts.get(usize::from(id.expert))
}
