//! Machines that sleep and clocks that are set.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kvasir::kernel::{ExpertCompute, ExpertSource, KernelError};
use kvasir::wire::work::{Dispatch, Partials};
use kvasir::worker::{Hardware, Source};

use super::world::{kernel, until};
use crate::dispatch::world::{Backbone, Hub, exact_model, step};
use crate::support::clock::JumpingClock;

const HOUR_MS: i64 = 3_600_000;

/// Hardware that counts how often somebody looked whether it is there.
struct Probed {
    kernel: Arc<dyn ExpertCompute>,
    probes: AtomicUsize,
}

impl ExpertCompute for Probed {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        self.kernel.compute(experts, layer, parts)
    }

    fn device(&self) -> String {
        "probed".into()
    }

    fn recover(&self, patience: Duration) -> Result<(), KernelError> {
        self.probes.fetch_add(1, SeqCst);
        self.kernel.recover(patience)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_machine_slept_looks_at_its_hardware_once_and_connects_anew() {
    let backbone = Backbone::start(exact_model(), vec![1]).await;
    let hub = Hub::start(&backbone).await;
    // Some systems' monotonic clock goes on in sleep, others' does not.
    for mono_ms in [3 * HOUR_MS, 0] {
        let probed = Arc::new(Probed { kernel: kernel(), probes: AtomicUsize::new(0) });
        let clock = Arc::new(JumpingClock::default());
        let hardware = Hardware::from(Arc::clone(&probed) as Arc<dyn ExpertCompute>).fixed();
        let name = format!("sleeps-{mono_ms}");
        let worker = hub.worker_as(&name, Source::Fetch, hardware, |config| {
            config.clock = Arc::clone(&clock) as _;
            config.timers.look = Duration::from_millis(50);
            // Looking for who else wants memory is not looking for other hardware.
            config.timers.memory = Duration::from_secs(3600);
        });
        backbone.ready(1).await;
        let session = backbone.remote.workers()[0].session_id;
        let probes = probed.probes.load(SeqCst);

        // A clock that is set back a little is no sleep.
        clock.jump(0, -HOUR_MS);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(backbone.remote.workers()[0].session_id, session);

        clock.jump(mono_ms, 3 * HOUR_MS);
        until(|| backbone.remote.workers().first().is_some_and(|worker| worker.session_id != session)).await;
        backbone.ready(1).await;
        assert_eq!(probed.probes.load(SeqCst), probes + 1);
        backbone.check(step(&backbone.model, 1, 2, 3)).await;
        worker.stop().await;
        until(|| backbone.remote.workers().is_empty()).await;
    }
}
