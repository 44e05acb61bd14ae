//! Brings the missing experts of a lease here: from local weights, from disk, else over the link; never used unverified.
//!
//! Each expert must have the digest that the manifest names; a bad one is fetched again, alone. A verified expert goes
//! to where the kernel computes, and serves from then on: the backbone hears of it at once, of many in one breath.
//! **Promise:** progress counts verified bytes, so it never falls within a lease and never passes its total.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::cache::Part;
use super::fetch::{FetchError, Taking};
use super::pipe::{Came, Wanted};
use super::status::Phase;
use crate::kernel::{Expert, KernelError};
use crate::model::{Data, ExpertWeights, Manifest};
use crate::types::{ExpertId, Hex};
use crate::wire::Slice;
use crate::wire::control::{Control, Lease, SliceReady};

/// How often a damaged expert is fetched before the link is given up.
pub(super) const TRIES: usize = 3;
/// Least time between two words to the backbone about what serves by now.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// Experts that are checked and placed at once: one on its way while another is hashed.
const AT_ONCE: usize = 2;
/// Between two looks at what another worker fetches.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Ranges that fit a control body however long their numbers are.
const RANGES_MAX: usize = 3000;

/// A lease that is being gathered.
pub(super) struct Gathering<'a> {
    taking: &'a Taking,
    lease: &'a Lease,
    slice: &'a Slice,
    manifest: &'a Arc<Manifest>,
    /// Verified bytes.
    done: u64,
    total: u64,
    told: Option<Instant>,
}

impl<'a> Gathering<'a> {
    /// A lease of which `done` of `total` bytes are here.
    pub fn new(
        taking: &'a Taking,
        lease: &'a Lease,
        slice: &'a Slice,
        manifest: &'a Arc<Manifest>,
        done: u64,
        total: u64,
    ) -> Self {
        Self { taking, lease, slice, manifest, done, total, told: None }
    }

    /// Gets all of `wanted`.
    pub async fn gather(mut self, wanted: Vec<Wanted>) -> Result<(), FetchError> {
        self.taking.board.phase(Phase::Fetching { done: self.done, total: self.total });
        if self.done > 0 && !wanted.is_empty() {
            self.tell().await?;
        }
        let mut missing = self.take_from_here(wanted).await?;
        self.ask_for(missing.iter().map(|wanted| wanted.bytes).sum()).await;
        let mut tries = 0;
        while !missing.is_empty() {
            let Fetched { damaged, mut elsewhere } = self.take_from_link(missing).await?;
            if let Some(first) = damaged.first() {
                tries += 1;
                warn!(experts = damaged.len(), "experts came damaged and are fetched again");
                if tries == TRIES {
                    return Err(FetchError::Damaged(first.id));
                }
            }
            missing = damaged;
            missing.append(&mut self.take_from_others(&mut elsewhere).await?);
        }
        Ok(())
    }

    /// Waits until `bytes` may be fetched.
    async fn ask_for(&self, bytes: u64) {
        let Taking { consent, board, .. } = self.taking;
        if !consent.is_given(bytes) {
            board.asks(Some(bytes));
            consent.given(bytes).await;
        }
        board.asks(None);
    }

    /// Takes what is on this machine; gives what is not.
    async fn take_from_here(&mut self, wanted: Vec<Wanted>) -> Result<Vec<Wanted>, FetchError> {
        let library = &self.taking.library;
        if library.weights().is_none() && library.cache().is_none() {
            return Ok(wanted);
        }
        let (taking, manifest) = (self.taking, self.manifest);
        let mut found = stream::iter(wanted)
            .map(|wanted| async move { Ok::<_, FetchError>((wanted, find(taking, manifest, wanted).await?)) })
            .buffered(AT_ONCE);
        let mut missing = Vec::new();
        while let Some((wanted, expert)) = found.try_next().await? {
            match expert {
                Some(expert) => self.put(wanted, expert).await?,
                None => missing.push(wanted),
            }
        }
        Ok(missing)
    }

    /// Waits for what other workers fetch into the same directory; gives what they left. One that does not get on
    /// for as long as a link may is not waited for.
    async fn take_from_others(&mut self, elsewhere: &mut Vec<Wanted>) -> Result<Vec<Wanted>, FetchError> {
        let Some(first) = elsewhere.first().copied() else { return Ok(Vec::new()) };
        debug!(experts = elsewhere.len(), "another worker fetches them");
        let since = Instant::now();
        loop {
            let before = elsewhere.len();
            *elsewhere = self.take_from_here(std::mem::take(elsewhere)).await?;
            let Some(still) = elsewhere.first() else { return Ok(Vec::new()) };
            let is_busy = before == elsewhere.len() && still.id == first.id && self.is_busy(*still).await?;
            if !is_busy || since.elapsed() > self.taking.patience {
                let apart = is_busy;
                return Ok(std::mem::take(elsewhere).into_iter().map(|w| Wanted { apart, ..w }).collect());
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn is_busy(&self, wanted: Wanted) -> Result<bool, FetchError> {
        let Some(cache) = self.taking.library.cache().cloned() else { return Ok(false) };
        Ok(spawn_blocking(move || cache.is_busy(wanted.digest)).await?)
    }

    /// Fetches over the link; what came is checked and placed while the next is on its way.
    async fn take_from_link(&mut self, wanted: Vec<Wanted>) -> Result<Fetched, FetchError> {
        let (taking, manifest) = (self.taking, self.manifest);
        let (tx, rx) = mpsc::channel(1);
        let fetch = async {
            let mut fetching = taking.pipe.start(wanted, taking.library.cache().cloned()).await;
            while let Some(came) = fetching.expert().await? {
                if tx.send(came).await.is_err() {
                    break;
                }
            }
            drop(tx);
            Ok::<_, FetchError>(())
        };
        let check = async {
            let mut fetched = Fetched::default();
            let came = stream::unfold(rx, |mut rx| async move { Some((rx.recv().await?, rx)) });
            let mut checked = came
                .map(|came| async move {
                    match came {
                        Came::Elsewhere(wanted) => Ok(Checked::Elsewhere(wanted)),
                        Came::Whole(wanted, part) => verify(taking, manifest, wanted, part).await,
                    }
                })
                .buffered(AT_ONCE)
                .boxed();
            while let Some(checked) = checked.try_next().await? {
                match checked {
                    Checked::Placed(wanted, expert) => self.put(wanted, *expert).await?,
                    Checked::Damaged(wanted) => fetched.damaged.push(wanted),
                    Checked::Elsewhere(wanted) => fetched.elsewhere.push(wanted),
                }
            }
            Ok(fetched)
        };
        let ((), fetched) = tokio::try_join!(fetch, check)?;
        Ok(fetched)
    }

    /// A verified expert serves from now on.
    async fn put(&mut self, wanted: Wanted, expert: Expert) -> Result<(), FetchError> {
        self.taking.library.put(wanted.id, Arc::new(expert));
        self.done += wanted.bytes;
        self.taking.board.phase(Phase::Fetching { done: self.done, total: self.total });
        if self.done < self.total && self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.tell().await?;
        }
        Ok(())
    }

    /// Holds what is here of the lease, and tells the backbone.
    async fn tell(&mut self) -> Result<(), FetchError> {
        let held = self.taking.library.held(self.lease.lease, self.slice, self.manifest.hidden_size(), false);
        let experts = held.slice.to_ranges();
        if held.slice.is_empty() || experts.values().map(Vec::len).sum::<usize>() > RANGES_MAX {
            return Ok(());
        }
        self.taking.board.partly(held.slice.to_string());
        self.taking.holdings.take_over(Arc::new(held));
        let ready = SliceReady { lease: self.lease.lease, bytes: self.done, experts };
        self.taking.link.send(&ready.frame()?).await?;
        self.told = Some(Instant::now());
        Ok(())
    }
}

/// What a fetch left to do.
#[derive(Default)]
struct Fetched {
    damaged: Vec<Wanted>,
    /// Another worker is fetching them, or has done so.
    elsewhere: Vec<Wanted>,
}

enum Checked {
    Placed(Wanted, Box<Expert>),
    Damaged(Wanted),
    Elsewhere(Wanted),
}

/// Looks for an expert in local weights and on disk, and places it.
async fn find(taking: &Taking, manifest: &Arc<Manifest>, wanted: Wanted) -> Result<Option<Expert>, FetchError> {
    let (library, manifest) = (Arc::clone(&taking.library), Arc::clone(manifest));
    let Wanted { id, digest, .. } = wanted;
    let found = spawn_blocking(move || {
        let shape = manifest.expert_shape(id.layer)?;
        if let Some(weights) = library.weights().and_then(|weights| weights.find(id, digest, &shape)) {
            return Some(weights);
        }
        ExpertWeights::from_bytes(&shape, &Data::from(library.cache()?.read(digest)?)).ok()
    });
    match found.await? {
        Some(weights) => place(taking, id, weights).await.map(Some),
        None => Ok(None),
    }
}

/// Checks an expert that came over the link, keeps it on disk, and places it.
async fn verify(taking: &Taking, manifest: &Arc<Manifest>, wanted: Wanted, part: Part) -> Result<Checked, FetchError> {
    let shape = manifest.expert_shape(wanted.id.layer);
    let verified = spawn_blocking(move || {
        let (bytes, part) = part.take();
        if Hex(*blake3::hash(&bytes).as_bytes()) != wanted.digest {
            part.discard();
            return None;
        }
        part.keep();
        ExpertWeights::from_bytes(&shape?, &Data::from(bytes)).ok()
    });
    match verified.await? {
        Some(weights) => Ok(Checked::Placed(wanted, Box::new(place(taking, wanted.id, weights).await?))),
        None => Ok(Checked::Damaged(wanted)),
    }
}

/// Brings an expert to where the kernel computes; where that is not here, its bytes on the host are let go.
async fn place(taking: &Taking, id: ExpertId, weights: ExpertWeights) -> Result<Expert, FetchError> {
    let compute = Arc::clone(&taking.compute);
    let placed = spawn_blocking(move || {
        let placed = compute.place(Expert::new(&weights)?)?;
        if placed.weights().is_none() {
            weights.release();
        }
        Ok::<_, KernelError>(placed)
    });
    placed.await?.map_err(|source| FetchError::Unusable { id, source })
}
