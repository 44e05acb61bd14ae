//! Sends the experts that workers hold to those workers, computes the rest here, and brings all sums home.
//!
//! **Promise:** a step's sums have the bits that [`LocalDispatch`](super::LocalDispatch) gives, whoever answers, fails
//! or lies about shapes: what does not come back in time and in form is computed here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::batch::{Asking, Round, Wanted};
use super::counters::{Counters, Counts};
use super::estimate::DeadlineRule;
use super::exact::{Form, OpenStep, Part};
use super::fleet::{Fleet, Goods, LayerView, NotReady, WorkerView};
use super::here::{Computed, Computing, Here, joined};
use super::local::Mode;
use super::placement::{LayerSize, Rules};
use super::request::{Asked, Failure, Request};
use super::stock::Stock;
use super::trust::{Trust, TrustConfig};
use super::{Dispatch, DispatchError, ModelExperts, MoeStep, Pending, StepSums, local};
use crate::kernel::ExpertCompute;
use crate::model::{Manifest, ManifestError, Model};
use crate::net::peer::PeerSecurity;
use crate::wire::work::{Partials, RowStatus};

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
    /// Whether this machine computes experts of remote layers that no worker brings; else such a step fails.
    pub local_experts: bool,
    /// Most bytes of experts of these layers that are kept here, of those that are computed here now and then.
    pub expert_cache_bytes: u64,
    /// The model's manifest, when it is known already; else every expert is read once to make it.
    pub manifest: Option<Manifest>,
    /// How experts are given to workers.
    pub placement: Rules,
    /// What is demanded of workers.
    pub trust: TrustConfig,
}

impl RemoteConfig {
    /// Sessions unless told otherwise: the tested number.
    const SESSIONS_MAX: usize = 1000;
    /// Experts kept unless told otherwise: a hundred of a large model's.
    pub const EXPERT_CACHE_BYTES: u64 = 512 << 20;

    /// The defaults for these layers; hubs on this machine only.
    #[must_use]
    pub fn new(remote_layers: Vec<u16>) -> Self {
        Self {
            remote_layers,
            deadlines: DeadlineRule::default(),
            sessions_max: Self::SESSIONS_MAX,
            peers: PeerSecurity::Loopback,
            local_experts: true,
            expert_cache_bytes: Self::EXPERT_CACHE_BYTES,
            manifest: None,
            placement: Rules::default(),
            trust: TrustConfig::default(),
        }
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
    pub here: Arc<Here>,
    hidden_size: usize,
    requests: AtomicU64,
}

/// How many workers a request may outlive before it is no longer offered to others.
const DEATHS_MAX: u8 = 2;
/// How many replicas are asked, one after the other, for what a worker did not bring, before this machine does it: each
/// may cost a deadline.
const HEDGES_MAX: usize = 1;

impl RemoteDispatch {
    /// Dispatch for `model`; `compute` does what no worker does. Reads every expert once, unless the manifest is given.
    ///
    /// # Errors
    /// A model that no manifest can describe.
    pub fn new(
        model: Arc<Model>,
        compute: Arc<dyn ExpertCompute>,
        mut config: RemoteConfig,
    ) -> Result<Self, ManifestError> {
        let manifest = config.manifest.take().map_or_else(|| Manifest::of(&model), Ok)?;
        let experts = ModelExperts::new(Arc::clone(&model));
        let hidden_size = model.hyper.hidden_size;
        let travels = |layer: &u16| match experts.form(*layer) {
            Form::Exact | Form::Float => true,
            Form::Here => {
                tracing::warn!(layer, "this layer's expert types have no exact form; its experts stay on the backbone");
                false
            }
        };
        let layers: BTreeSet<u16> = config.remote_layers.iter().copied().filter(travels).collect();
        let experts = experts.leased(layers.iter().copied(), config.expert_cache_bytes);
        let experts = Arc::new(experts.checked_by(&manifest));
        let stock = Arc::new(Stock::new(model, manifest));
        let layers: Vec<LayerSize> = layers.into_iter().filter_map(|layer| stock.layer_size(layer)).collect();
        let goods = Goods {
            layers,
            model_layers: stock.layers(),
            manifest: stock.manifest_id(),
            manifest_bytes: stock.manifest_bytes(),
        };
        let fleet = Fleet::new(goods, config.placement);
        let (counters, requests) = (Counters::default(), AtomicU64::new(1));
        let here = Here::new(Arc::clone(&experts), compute);
        let trust = Trust::new(config.trust.clone());
        let shared = Shared { config, experts, stock, fleet, counters, trust, here, hidden_size, requests };
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

    /// The layers that workers may hold, as they are asked for now.
    #[must_use]
    pub fn layers(&self) -> Vec<LayerView> {
        self.shared.fleet.layer_views()
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
        if !shared.fleet.is_remote(step.layer) {
            return Box::pin(async move { shared.sums_of_own(step) });
        }
        let form = shared.experts.form(step.layer);
        match OpenStep::prepare(step, form, &shared.experts) {
            Err(error) => Box::pin(std::future::ready(Err(error))),
            Ok(open) => {
                let round = shared.ask(&open, &BTreeSet::new());
                Box::pin(async move { shared.sums(open, round).await })
            }
        }
    }

    fn begin_here(&self, step: MoeStep) -> Pending {
        let shared = Arc::clone(&self.shared);
        if !shared.fleet.is_remote(step.layer) {
            return Box::pin(async move { shared.sums_of_own(step) });
        }
        Box::pin(async move { shared.sums_here(step).await })
    }

    fn computes_here(&self) -> bool {
        self.shared.config.local_experts || !self.shared.fleet.has_layers()
    }
}

impl Shared {
    /// Bytes of work in one accepted assignment.
    fn work_bytes(&self) -> u64 {
        4 * self.hidden_size as u64
    }

    /// The sums of a layer that workers never hold, which is computed like every other part of the model.
    fn sums_of_own(&self, step: MoeStep) -> Result<StepSums, DispatchError> {
        local::sums(&self.experts, self.here.kernel(), Mode::Exact, step)
    }

    /// Asks for the open rows; those of `poison` stay here.
    fn ask(&self, open: &OpenStep, poison: &BTreeSet<usize>) -> Round {
        let (kept, rows): (Vec<usize>, Vec<usize>) = open.open_rows().into_iter().partition(|r| poison.contains(r));
        let mut round = Round::new();
        let everything = |rows: Vec<usize>| {
            let experts = open.by_expert(&rows, |_| true).into_keys().collect();
            Wanted { rows, experts, tried: Vec::new(), deaths: 0 }
        };
        let asked = open.by_expert(&rows, |_| true);
        self.fleet.heat.count(open.layer(), asked.iter().flat_map(|(expert, rows)| rows.iter().map(|_| *expert)));
        round.keep(open, &everything(kept));
        self.ask_for(open, &mut round, everything(rows), None);
        round
    }

    fn ask_for(&self, open: &OpenStep, round: &mut Round, wanted: Wanted, sooner_than: Option<Duration>) {
        let before = round.requests.len();
        let (routes, rule) = (self.fleet.routes(), &self.config.deadlines);
        let next_id = || self.requests.fetch_add(1, Relaxed);
        let must = !self.config.local_experts;
        let trusted_only = open.is_for_trusted();
        round.ask(open, wanted, &Asking { routes: &routes, rule, next_id: &next_id, sooner_than, trusted_only, must });
        Counters::add(&self.counters.requests, round.requests.len() - before);
    }

    /// Computes what is left to this machine of a round.
    fn compute_here(&self, open: &OpenStep, round: &mut Round) -> Result<Option<Computing>, DispatchError> {
        let (layer, parts) = (open.layer(), std::mem::take(&mut round.local));
        match parts.iter().flat_map(|part| &part.dispatch.assignments).next() {
            Some(first) if !self.config.local_experts => Err(DispatchError::NoHolder { layer, expert: first.expert }),
            _ => Ok(self.here.spawn(layer, parts)),
        }
    }

    /// Hands on what a request did not bring: to replicas that answer sooner than this machine, once, else to this
    /// machine; to any replica where this machine may not help. What two workers did not survive goes to no third one.
    fn hand_on(&self, open: &OpenStep, round: &mut Round, missing: Wanted, poison: &mut BTreeSet<usize>) {
        let assignments = open.by_expert(&missing.rows, |e| missing.experts.contains(&e)).values().map(Vec::len).sum();
        let (asked, kept) = (round.requests.len(), assignments_of(&round.local));
        if missing.deaths >= DEATHS_MAX {
            let (layer, rows, sessions) = (open.layer(), missing.rows.len(), &missing.tried);
            tracing::warn!(layer, rows, ?sessions, "a request outlived two workers; it is computed here");
            Counters::add(&self.counters.poisonous, 1);
            poison.extend(&missing.rows);
            round.keep(open, &missing);
        } else if !self.config.local_experts {
            self.ask_for(open, round, missing, None);
        } else if missing.tried.len() <= HEDGES_MAX {
            self.ask_for(open, round, missing, Some(self.here.predict(assignments)));
        } else {
            round.keep(open, &missing);
        }
        let hedged = round.requests[asked..].iter().map(Request::assignments).sum();
        Counters::add(&self.counters.hedged, hedged);
        Counters::add(&self.counters.recomputed, assignments_of(&round.local) - kept);
    }

    async fn sums(self: Arc<Self>, mut open: OpenStep, mut round: Round) -> Result<StepSums, DispatchError> {
        let (mut sums, mut poison) = (StepSums::open(open.rows()), BTreeSet::new());
        while open.is_open() {
            self.settle(&mut open, round, &mut sums, &mut poison).await?;
            open.close_round();
            round = self.ask(&open, &poison);
        }
        Ok(StepSums { rows: open.finish(&self.experts)?, ..sums })
    }

    /// The sums of a step whose rounds all stay on this machine.
    async fn sums_here(self: Arc<Self>, step: MoeStep) -> Result<StepSums, DispatchError> {
        let form = self.experts.form(step.layer);
        let mut open = OpenStep::prepare(step, form, &self.experts)?;
        let mut sums = StepSums::open(open.rows());
        while open.is_open() {
            let round = Round::here(&open);
            self.settle(&mut open, round, &mut sums, &mut BTreeSet::new()).await?;
            open.close_round();
        }
        Ok(StepSums { rows: open.finish(&self.experts)?, ..sums })
    }

    /// Brings a round home: everything that was asked for is added, from wherever it had to come. `sums` counts the
    /// used assignments of every row that came from workers, and the time that was spent.
    async fn settle(
        self: &Arc<Self>,
        open: &mut OpenStep,
        mut round: Round,
        sums: &mut StepSums,
        poison: &mut BTreeSet<usize>,
    ) -> Result<(), DispatchError> {
        let mut computing = Vec::new();
        loop {
            computing.extend(self.compute_here(open, &mut round)?);
            match round.next_missing(open).await {
                Some(missing) => self.hand_on(open, &mut round, missing, poison),
                None => break,
            }
        }
        sums.away += round.away();
        Counters::add(&self.counters.raw_bytes, round.raw_bytes());
        if !round.requests.is_empty() {
            self.counters.layer_step.record(round.started().elapsed());
        }
        let corrected = self.audit_before_use(open.layer(), &mut round).await?;
        self.doubt(open, &mut round).await?;
        // What a worker lied about is computed here also where others must be asked first: they were, and the step
        // must not fail for it.
        computing.extend(self.here.spawn(open.layer(), std::mem::take(&mut round.local)));

        let mut failed_rows = BTreeSet::new();
        for request in &round.requests {
            self.count_failure(request);
            for Asked { part, partials, .. } in &request.asked {
                let Some(partials) = partials else { continue };
                open.add(part, partials)?;
                note_failures(&mut failed_rows, part, partials);
            }
            request.close();
        }
        for work in computing {
            let Computed { parts, partials, took } = joined(work).await??;
            sums.here += took;
            open.add_all(&parts, &partials)?;
            for (part, partials) in parts.iter().zip(&partials) {
                note_failures(&mut failed_rows, part, partials);
            }
            Counters::add(&self.counters.assignments_local, assignments_of(&parts));
        }
        for (part, partials) in &corrected {
            open.add(part, partials)?;
            note_failures(&mut failed_rows, part, partials);
            Counters::add(&self.counters.assignments_local, part.dispatch.assignments.len());
        }
        Counters::add(&self.counters.refused, round.refused);

        for request in &mut round.requests {
            for index in 0..request.asked.len() {
                if request.asked[index].partials.is_some() {
                    let accepted = used_assignments(&request.asked[index].part, &failed_rows, &mut sums.remote);
                    Counters::add(&self.counters.assignments_remote, accepted as usize);
                    Counters::add(&self.counters.work_bytes, accepted as usize * self.work_bytes() as usize);
                    request.accept(index, accepted);
                }
            }
        }
        self.audit_used(open, &mut round.requests);
        Ok(())
    }

    fn count_failure(&self, request: &Request) {
        let counter = match request.failure {
            Some(Failure::Late) => {
                let allowed_us = u64::try_from(request.allowed().as_micros()).unwrap_or(u64::MAX);
                Counters::raise(&self.counters.late_us_max, allowed_us);
                &self.counters.late
            }
            Some(Failure::Declined) => &self.counters.declined,
            Some(Failure::Lost) => &self.counters.lost,
            None => return,
        };
        Counters::add(counter, 1);
    }
}

pub(super) fn assignments_of(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.dispatch.assignments.len()).sum()
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
