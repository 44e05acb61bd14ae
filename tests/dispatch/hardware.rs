//! Workers whose hardware takes less than it offered, goes away and comes back, or is exchanged: no sum changes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kvasir::kernel::{Expert, ExpertCompute, ExpertSource, KernelError};
use kvasir::wire::work::{Dispatch, Partials};
use kvasir::worker::{Hardware, Phase, Source};
use tokio::sync::watch;

use crate::support::faults::questions;

use super::world::{Backbone, Hub, PATIENCE, Worker, exact_model, kernel, soon, step};

/// A card with memory of its own, computed by the CPU kernel: it takes so many experts in all, breaks when it is told
/// to, stays away until it is plugged in, and then holds nothing that was placed before.
struct Card {
    kernel: Arc<dyn ExpertCompute>,
    state: Mutex<State>,
    /// Requests answered.
    answered: AtomicUsize,
    /// Experts refused.
    refused: AtomicUsize,
}

struct State {
    /// Experts that still fit.
    room: usize,
    /// Where the weights of the placed experts are.
    placed: HashSet<usize>,
    /// Places and requests until it breaks; never when absent.
    breaks_after: Option<usize>,
    is_lost: bool,
    is_unplugged: bool,
}

impl Card {
    fn new(room: usize, breaks_after: Option<usize>) -> Arc<Self> {
        let state = State { room, placed: HashSet::new(), breaks_after, is_lost: false, is_unplugged: true };
        let (answered, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { kernel: kernel(), state: Mutex::new(state), answered, refused })
    }

    fn plug_in(&self) {
        self.state.lock().unwrap().is_unplugged = false;
    }

    fn lost(&self) -> KernelError {
        KernelError::Lost { device: self.device(), reason: "pulled out".into() }
    }
}

impl State {
    /// Counts a use; whether the card is lost.
    fn is_lost_now(&mut self) -> bool {
        match &mut self.breaks_after {
            Some(0) => (self.breaks_after, self.is_lost) = (None, true),
            Some(uses) => *uses -= 1,
            None => {}
        }
        self.is_lost
    }
}

fn place_of(expert: &Expert) -> usize {
    expert.weights().expect("host memory").gate.data.as_ptr() as usize
}

impl ExpertCompute for Card {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        {
            let mut state = self.state.lock().unwrap();
            if state.is_lost_now() {
                return Err(self.lost());
            }
            for id in parts.iter().flat_map(|part| &part.assignments).map(|assignment| assignment.expert) {
                let expert = experts.expert(layer, id).ok_or(KernelError::NoExpert { layer, expert: id })?;
                assert!(state.placed.contains(&place_of(&expert)), "expert {id} of layer {layer} was not placed");
            }
        }
        self.answered.fetch_add(1, SeqCst);
        self.kernel.compute(experts, layer, parts)
    }

    fn device(&self) -> String {
        "card".into()
    }

    fn place(&self, expert: Expert) -> Result<Expert, KernelError> {
        let mut state = self.state.lock().unwrap();
        if state.is_lost_now() {
            return Err(self.lost());
        }
        if state.room == 0 {
            self.refused.fetch_add(1, SeqCst);
            let bytes = expert.weights().expect("host memory").gate.data.len() as u64;
            return Err(KernelError::Full { device: self.device(), bytes });
        }
        state.room -= 1;
        state.placed.insert(place_of(&expert));
        Ok(expert)
    }

    fn memory_bytes(&self) -> Option<u64> {
        Some(1 << 30)
    }

    fn recover(&self, _patience: Duration) -> Result<(), KernelError> {
        let mut state = self.state.lock().unwrap();
        if state.is_lost && state.is_unplugged {
            return Err(self.lost());
        }
        if std::mem::take(&mut state.is_lost) {
            state.placed.clear();
        }
        Ok(())
    }
}

async fn phase(worker: &Worker, wanted: impl Fn(&Phase) -> bool) -> Phase {
    let mut status = worker.status.clone();
    soon(status.wait_for(|s| wanted(&s.phase))).await.expect("a worker").phase.clone()
}

/// Steps over all remote layers, checked against the local sums.
pub async fn check_layers(backbone: &Backbone, seed: u64) {
    for layer in [0, 1, 3] {
        backbone.check(step(&backbone.model, layer, 4, seed + u64::from(layer))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hardware_that_takes_less_than_it_offered_serves_what_it_took_and_others_the_rest() {
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let hub = Hub::start(&backbone).await;
    let card = Card::new(20, None);
    let small = hub.worker("small", Source::Fetch, card.clone());
    soon(async {
        while !backbone.remote.workers().first().is_some_and(|w| w.ready) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // The worker tells the backbone first and then shows it.
    let mut status = small.status.clone();
    soon(status.wait_for(|s| s.slice.starts_with("0:0-15,1:0-"))).await.expect("a worker");
    // The worker is ready a moment before it is asked.
    soon(async {
        while backbone.remote.counts().assignments_remote == 0 {
            check_layers(&backbone, 1).await;
        }
    })
    .await;
    let alone = backbone.remote.counts();
    assert!(alone.assignments_local > 0, "{alone:?}");

    let large = hub.worker("large", Source::Fetch, kernel());
    backbone.ready(2).await;
    check_layers(&backbone, 10).await;
    let together = backbone.remote.counts();
    assert_eq!(together.assignments_local, alone.assignments_local, "nothing is left for the backbone");
    assert_eq!((together.declined, together.late, together.lost), (0, 0, 0));
    // One expert too many was tried for the first lease, and once more if other experts were leased when the second
    // worker came: this card gets no room back. From then on every lease fits what was offered.
    assert!((1..=2).contains(&card.refused.load(SeqCst)), "{:?}", card.refused);
    small.stop().await;
    large.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hardware_lost_under_work_declines_it_and_serves_again_when_it_is_back() {
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let hub = Hub::start(&backbone).await;
    let asked_first = questions(&backbone.model, &[0, 1, 3]);
    // All experts placed, the device proven, then four requests.
    let card = Card::new(1000, Some(3 * 16 + asked_first + 4));
    let worker = hub.worker("worker", Source::LocalModel(Arc::clone(&backbone.model)), card.clone());
    backbone.ready(1).await;
    for seed in 0..3 {
        check_layers(&backbone, seed).await;
    }
    assert_eq!(backbone.remote.counts().declined, 1, "the request that met the loss");
    let Phase::Recovering { reason } = phase(&worker, |p| matches!(p, Phase::Recovering { .. })).await else {
        panic!("it looks for the card")
    };
    assert!(reason.contains("pulled out"), "{reason}");
    card.plug_in();
    backbone.ready(1).await;
    assert_eq!(card.answered.load(SeqCst), 2 * asked_first + 4);
    let before = backbone.remote.counts();
    check_layers(&backbone, 20).await;
    let after = backbone.remote.counts();
    assert_eq!(after.assignments_local, before.assignments_local);
    assert_eq!(card.answered.load(SeqCst), 2 * asked_first + 7);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hardware_lost_while_it_is_filled_is_filled_anew() {
    let backbone = Backbone::start(exact_model(), vec![0]).await;
    let hub = Hub::start(&backbone).await;
    let card = Card::new(1000, Some(5));
    card.plug_in();
    let worker = hub.worker("worker", Source::Fetch, card.clone());
    backbone.ready(1).await;
    backbone.check(step(&backbone.model, 0, 3, 5)).await;
    assert_eq!(backbone.remote.counts().assignments_local, 0);
    assert_eq!(card.state.lock().unwrap().placed.len(), 16, "those placed before are gone");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_stops_at_once_while_it_looks_for_its_hardware() {
    let backbone = Backbone::start(exact_model(), vec![0]).await;
    let hub = Hub::start(&backbone).await;
    let card = Card::new(1000, Some(0));
    let worker = hub.worker("worker", Source::Fetch, card);
    phase(&worker, |p| matches!(p, Phase::Recovering { .. })).await;
    assert_eq!(worker.stop().await.phase, Phase::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_moves_to_hardware_that_appears_later() {
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let hub = Hub::start(&backbone).await;
    let (hardware, newest) = watch::channel(Hardware { kernel: kernel(), why: "no card was found".into() });
    let worker = hub.worker_on("worker", Source::Fetch, newest);
    backbone.ready(1).await;
    assert!(worker.status.borrow().device.ends_with(" because no card was found"));
    check_layers(&backbone, 1).await;

    let card = Card::new(1000, None);
    hardware.send_replace(Hardware::from(card.clone() as Arc<dyn ExpertCompute>));
    let mut status = worker.status.clone();
    soon(status.wait_for(|s| s.device == "card" && s.phase == Phase::Serving)).await.expect("a worker");
    backbone.remote.wait_ready(1, PATIENCE).await.expect("the worker");
    check_layers(&backbone, 2).await;
    assert_eq!(card.answered.load(SeqCst), questions(&backbone.model, &[0, 1, 3]) + 3);
    assert_eq!(backbone.remote.counts().assignments_local, 0);
    worker.stop().await;
}
