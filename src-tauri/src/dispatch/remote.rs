//! Sends the experts that workers hold to those workers, computes the rest here, and brings all sums home.
//!
//! **Promise:** a step's sums have the bits that [`LocalDispatch`](super::LocalDispatch) gives, whoever answers, fails
//! or lies about shapes: what does not come back in time and in form is computed here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};

use super::batch::{Failure, Round};
use super::counters::{Counters, Counts};
use super::exact::{Form, OpenStep, Part};
use super::fleet::{Fleet, Goods, NotReady, WorkerView};
use super::inflight::DeadlineRule;
use super::placement::LayerSize;
use super::stock::Stock;
use super::trust::{Trust, TrustConfig};
use super::{Dispatch, DispatchError, ModelExperts, MoeStep, Pending, RowSum, StepSums};
use crate::kernel::{ExpertCompute, KernelError};
use crate::model::{Manifest, ManifestError, Model};
use crate::net::peer::PeerSecurity;
use crate::wire::work::{Dispatch as Dispatched, Partials, RowStatus};

/// What a backbone decides about its workers.
#[derive(Clone)]
pub struct RemoteConfig {
    /// Layers whose experts workers may hold.
    pub remote_layers: Vec<u16>,
    /// How long a worker may take.
    pub deadlines: DeadlineRule,
    /// Most sessions at once; the next is told to come back later.
    pub sessions_max: usize,
    /// How hubs are recognised.
    pub peers: PeerSecurity,
    /// What is demanded of workers.
    pub trust: TrustConfig,
}

impl RemoteConfig {
    /// Sessions unless told otherwise: the tested number.
    const SESSIONS_MAX: usize = 1000;

    /// The defaults for these layers; hubs on this machine only.
    #[must_use]
    pub fn new(remote_layers: Vec<u16>) -> Self {
        let (deadlines, peers) = (DeadlineRule::default(), PeerSecurity::Loopback);
        let trust = TrustConfig::default();
        Self { remote_layers, deadlines, sessions_max: Self::SESSIONS_MAX, peers, trust }
    }
}

/// See the module. Cheap to clone; [`RemoteDispatch::serve`] lets workers in.
#[derive(Clone)]
pub struct RemoteDispatch {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub config: RemoteConfig,
    pub experts: Arc<ModelExperts>,
    pub stock: Arc<Stock>,
    pub fleet: Fleet,
    pub counters: Counters,
    pub trust: Trust,
    compute: Arc<dyn ExpertCompute>,
    hidden_size: usize,
    requests: AtomicU64,
}

/// Parts being computed on this machine.
pub(super) type Computing = JoinHandle<Result<(Vec<Part>, Vec<Partials>), DispatchError>>;

impl RemoteDispatch {
    /// Dispatch for `model`; `compute` does what no worker does. Reads every expert once, for the manifest.
    ///
    /// # Errors
    /// A model that no manifest can describe.
    pub fn new(
        model: Arc<Model>,
        compute: Arc<dyn ExpertCompute>,
        config: RemoteConfig,
    ) -> Result<Self, ManifestError> {
        let manifest = Manifest::of(&model)?;
        let experts = Arc::new(ModelExperts::new(Arc::clone(&model)));
        let hidden_size = model.hyper.hidden_size;
        let stock = Arc::new(Stock::new(model, manifest));
        let travels = |layer: &u16| match experts.form(*layer) {
            Form::Exact | Form::Float => true,
            Form::Here => {
                tracing::warn!(layer, "this layer's expert types have no exact form; its experts stay on the backbone");
                false
            }
        };
        let layers: BTreeSet<u16> = config.remote_layers.iter().copied().filter(travels).collect();
        let layers: Vec<LayerSize> = layers.into_iter().filter_map(|layer| stock.layer_size(layer)).collect();
        let fleet = Fleet::new(Goods {
            layers,
            model_layers: stock.layers(),
            manifest: stock.manifest_id(),
            manifest_bytes: stock.manifest_bytes(),
        });
        let (counters, requests) = (Counters::default(), AtomicU64::new(1));
        let trust = Trust::new(config.trust.clone());
        let shared = Shared { config, experts, stock, fleet, counters, trust, compute, hidden_size, requests };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits until at least `workers` serve their slices, no lease is on its way, and every expert of the remote layers
    /// is held.
    ///
    /// # Errors
    /// [`NotReady`] when they do not within `deadline`.
    pub async fn wait_ready(&self, workers: usize, deadline: Duration) -> Result<(), NotReady> {
        self.shared.fleet.wait_ready(workers, deadline).await
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.counts()
    }

    /// The workers of open sessions.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        self.shared.fleet.views(self.shared.work_bytes())
    }

    /// The model's experts on this machine.
    #[must_use]
    pub fn experts(&self) -> &Arc<ModelExperts> {
        &self.shared.experts
    }
}

impl Dispatch for RemoteDispatch {
    fn begin(&self, step: MoeStep) -> Pending {
        let shared = Arc::clone(&self.shared);
        let form = shared.experts.form(step.layer);
        match OpenStep::prepare(step, form, &shared.experts) {
            Err(error) => Box::pin(std::future::ready(Err(error))),
            Ok(open) => {
                let round = shared.send(&open);
                Box::pin(async move { shared.sums(open, round).await })
            }
        }
    }

    fn begin_here(&self, step: MoeStep) -> Pending {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.sums_here(step).await })
    }
}

impl Shared {
    /// Bytes of work in one accepted assignment.
    fn work_bytes(&self) -> u64 {
        4 * self.hidden_size as u64
    }

    fn send(&self, open: &OpenStep) -> Round {
        if !self.fleet.is_remote(open.layer()) {
            return Round::here(open);
        }
        let next_id = || self.requests.fetch_add(1, Relaxed);
        let round = Round::send(open, &self.fleet.routes(), &self.config.deadlines, next_id);
        Counters::add(&self.counters.requests, round.requests.len());
        round
    }

    async fn sums(self: Arc<Self>, mut open: OpenStep, mut round: Round) -> Result<StepSums, DispatchError> {
        let mut remote = vec![0; open.rows()];
        while open.is_open() {
            self.settle(&mut open, round, &mut remote).await?;
            open.close_round();
            round = self.send(&open);
        }
        Ok(StepSums { rows: self.finish(open).await?, remote })
    }

    /// The sums of a step whose rounds all stay on this machine.
    async fn sums_here(self: Arc<Self>, step: MoeStep) -> Result<StepSums, DispatchError> {
        let form = self.experts.form(step.layer);
        let mut open = OpenStep::prepare(step, form, &self.experts)?;
        let mut remote = vec![0; open.rows()];
        while open.is_open() {
            let round = Round::here(&open);
            self.settle(&mut open, round, &mut remote).await?;
            open.close_round();
        }
        Ok(StepSums { rows: self.finish(open).await?, remote })
    }

    async fn finish(self: Arc<Self>, open: OpenStep) -> Result<Vec<RowSum>, DispatchError> {
        if self.experts.form(open.layer()) == Form::Here {
            return joined(spawn_blocking(move || open.finish(&self.experts))).await?;
        }
        open.finish(&self.experts)
    }

    /// Brings a round home: everything that was asked for is added, from wherever it had to come. `remote` counts the
    /// used assignments of every row that came from workers.
    async fn settle(
        self: &Arc<Self>,
        open: &mut OpenStep,
        mut round: Round,
        remote: &mut [u32],
    ) -> Result<(), DispatchError> {
        let local = self.compute(open.layer(), std::mem::take(&mut round.local));
        let unreadable = round.wait().await;
        Counters::add(&self.counters.refused, unreadable);
        Counters::add(&self.counters.raw_bytes, round.raw_bytes());
        if !round.requests.is_empty() {
            self.counters.layer_step.record(round.started().elapsed());
        }

        self.audit_before_use(open.layer(), &mut round.requests).await?;
        let mut failed_rows = BTreeSet::new();
        let mut missing = Vec::new();
        for request in &mut round.requests {
            self.count_failure(request.failure);
            for index in 0..request.asked.len() {
                let asked = &request.asked[index];
                match &asked.partials {
                    Some(partials) if open.add(&asked.part, partials).is_ok() => {
                        note_failures(&mut failed_rows, &asked.part, partials);
                    }
                    Some(_) => {
                        missing.push(asked.part.clone());
                        Counters::add(&self.counters.refused, 1);
                        request.refuse(index, "shape");
                    }
                    None => missing.push(asked.part.clone()),
                }
            }
            request.close();
        }
        let recomputed: usize = missing.iter().map(|part| part.dispatch.assignments.len()).sum();
        Counters::add(&self.counters.recomputed, recomputed);
        for work in [local, self.compute(open.layer(), missing)].into_iter().flatten() {
            let (parts, partials) = joined(work).await??;
            open.add_all(&parts, &partials)?;
            for (part, partials) in parts.iter().zip(&partials) {
                note_failures(&mut failed_rows, part, partials);
                if self.fleet.is_remote(open.layer()) {
                    Counters::add(&self.counters.assignments_local, part.dispatch.assignments.len());
                }
            }
        }

        for request in &mut round.requests {
            for index in 0..request.asked.len() {
                if request.asked[index].partials.is_some() {
                    let accepted = used_assignments(&request.asked[index].part, &failed_rows, remote);
                    Counters::add(&self.counters.assignments_remote, accepted as usize);
                    Counters::add(&self.counters.work_bytes, accepted as usize * self.work_bytes() as usize);
                    request.accept(index, accepted);
                }
            }
        }
        self.audit_used(open, &mut round.requests);
        Ok(())
    }

    fn count_failure(&self, failure: Option<Failure>) {
        let counter = match failure {
            Some(Failure::Late) => &self.counters.late,
            Some(Failure::Declined) => &self.counters.declined,
            Some(Failure::Lost) => &self.counters.lost,
            None => return,
        };
        Counters::add(counter, 1);
    }

    /// Computes parts on this machine, off the tasks that move bytes; `None` when there are none.
    pub fn compute(self: &Arc<Self>, layer: u16, parts: Vec<Part>) -> Option<Computing> {
        if parts.is_empty() {
            return None;
        }
        let shared = Arc::clone(self);
        Some(spawn_blocking(move || {
            let requests: Vec<_> = parts.iter().map(|part| part.dispatch.clone()).collect();
            let partials = shared.compute.compute(&*shared.experts, layer, &requests)?;
            Ok((parts, partials))
        }))
    }
}

impl Shared {
    /// Computes one request on this machine, at once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn compute_one(&self, layer: u16, request: Dispatched) -> Result<Vec<Partials>, KernelError> {
        self.compute.compute(&*self.experts, layer, &[request])
    }
}

/// Notes the rows of a part whose sums do not hold.
fn note_failures(failed: &mut BTreeSet<usize>, part: &Part, partials: &Partials) {
    let rows = part.rows.iter().zip(&partials.status);
    failed.extend(rows.filter(|(_, status)| **status != RowStatus::Ok).map(|(row, _)| *row));
}

/// Assignments of the rows whose sums hold, also added to each row's entry of `by_row`.
fn used_assignments(part: &Part, failed: &BTreeSet<usize>, by_row: &mut [u32]) -> u32 {
    let rows = part.rows.iter().zip(&part.dispatch.rows);
    let used = rows.filter(|(row, _)| !failed.contains(row));
    used.fold(0, |sum, (row, head)| {
        by_row[*row] += u32::from(head.count);
        sum + u32::from(head.count)
    })
}

/// The result of blocking work; a panic there goes on here, and work that was dropped means that the process stops.
pub(super) async fn joined<T>(work: JoinHandle<T>) -> Result<T, DispatchError> {
    work.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => DispatchError::Stopping,
    })
}
