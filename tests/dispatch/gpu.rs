//! Workers whose experts are in a GPU's memory, on whatever adapter there is: the bits stay the local ones.
//!
//! Without an adapter these tests say so and pass, unless `KVASIR_REQUIRE_GPU=1`.

use std::sync::Arc;
use std::time::Duration;

use kvasir::kernel::gpu::{GpuKernel, GpuOptions};
use kvasir::kernel::{Expert, ExpertCompute, ExpertSource, KernelError};
use kvasir::wire::work::{Dispatch, Partials};
use kvasir::worker::{Hardware, Phase, Source};

use super::hardware::check_layers;
use super::world::{Backbone, Hub, Worker, exact_model, float_model, kernel, local_sums, soon, step};

/// The GPU, with at most so many bytes for experts.
fn gpu(memory_bytes: Option<u64>) -> Option<Arc<GpuKernel>> {
    match GpuKernel::open(&GpuOptions { allow_software: true, memory_bytes, ..GpuOptions::default() }) {
        Ok(kernel) => Some(Arc::new(kernel)),
        Err(error) => {
            assert!(std::env::var_os("KVASIR_REQUIRE_GPU").is_none_or(|v| v != "1"), "a GPU is required: {error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Stored bytes of the experts of the layers that `check_layers` asks for.
fn remote_bytes(backbone: &Backbone) -> u64 {
    let layers = backbone.model.weights.moe_layers().enumerate().filter(|(layer, _)| [0, 1, 3].contains(layer));
    let experts = layers.flat_map(|(_, layer)| &layer.experts);
    experts.flat_map(|e| [&e.gate, &e.up, &e.down]).map(|matrix| matrix.data.len() as u64).sum()
}

/// Runs steps until a worker has answered some, and then some more.
async fn check_until_remote(backbone: &Backbone) {
    let before = backbone.remote.counts().assignments_remote;
    soon(async {
        while backbone.remote.counts().assignments_remote == before {
            check_layers(backbone, before).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    check_layers(backbone, before + 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_and_a_cpu_share_the_work_and_no_bit_differs() {
    let Some(gpu) = gpu(None) else { return };
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let hub = Hub::start(&backbone).await;
    let on_gpu = hub.worker("gpu", Source::Fetch, gpu.clone());
    let on_cpu = hub.worker("cpu", Source::LocalModel(Arc::clone(&backbone.model)), kernel());
    backbone.ready(2).await;
    for seed in 0..2 {
        check_layers(&backbone, seed).await;
    }
    // More rows than the kernels for single rows take at once.
    backbone.check(step(&backbone.model, 0, 40, 7)).await;
    let counts = backbone.remote.counts();
    assert_eq!((counts.assignments_local, counts.recomputed), (0, 0));
    let answered = |worker: &Worker| worker.status.borrow().assignments;
    assert!(answered(&on_gpu) > 0 && answered(&on_cpu) > 0);
    assert_eq!(on_gpu.status.borrow().device, gpu.device());
    on_gpu.stop().await;
    on_cpu.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_lost_in_the_middle_comes_back_and_serves_again() {
    let Some(gpu) = gpu(None) else { return };
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let hub = Hub::start(&backbone).await;
    let worker = hub.worker("gpu", Source::Fetch, gpu.clone());
    backbone.ready(1).await;
    check_layers(&backbone, 1).await;
    assert_eq!(backbone.remote.counts().assignments_local, 0);
    let lost = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        gpu.release();
    };
    let steps = async {
        for seed in 2..12 {
            check_layers(&backbone, seed).await;
        }
    };
    tokio::join!(lost, steps);
    check_until_remote(&backbone).await;
    assert!(backbone.remote.counts().assignments_local > 0, "the loss was felt");
    backbone.ready(1).await;
    assert_eq!(worker.status.borrow().phase, Phase::Serving);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_with_room_for_a_part_serves_that_part() {
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let Some(gpu) = gpu(Some(remote_bytes(&backbone) / 2)) else { return };
    let hub = Hub::start(&backbone).await;
    let worker = hub.worker("gpu", Source::Fetch, gpu);
    check_until_remote(&backbone).await;
    let counts = backbone.remote.counts();
    assert!(counts.assignments_local > 0 && counts.recomputed == 0, "{counts:?}");
    worker.stop().await;
}

/// A GPU that does not know how little room it has.
struct Boastful(Arc<GpuKernel>);

impl ExpertCompute for Boastful {
    fn compute(&self, from: &dyn ExpertSource, layer: u16, parts: &[Dispatch]) -> Result<Vec<Partials>, KernelError> {
        self.0.compute(from, layer, parts)
    }

    fn device(&self) -> String {
        self.0.device()
    }

    fn place(&self, expert: Expert) -> Result<Expert, KernelError> {
        self.0.place(expert)
    }

    fn depth(&self) -> usize {
        self.0.depth()
    }

    fn recover(&self, patience: Duration) -> Result<(), KernelError> {
        self.0.recover(patience)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_takes_less_than_it_promised_serves_what_it_took_and_others_the_rest() {
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let Some(gpu) = gpu(Some(remote_bytes(&backbone) / 2)) else { return };
    let hub = Hub::start(&backbone).await;
    let small =
        hub.worker_on("gpu", Source::Fetch, Hardware { kernel: Arc::new(Boastful(gpu)), why: String::new() }.fixed());
    check_until_remote(&backbone).await;
    let large = hub.worker("cpu", Source::Fetch, kernel());
    backbone.ready(2).await;
    let before = backbone.remote.counts().assignments_local;
    assert!(before > 0);
    check_layers(&backbone, 50).await;
    assert_eq!(backbone.remote.counts().assignments_local, before, "everything is held");
    small.stop().await;
    large.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn float_weights_on_a_gpu_come_close() {
    let Some(gpu) = gpu(None) else { return };
    let backbone = Backbone::start(float_model(), vec![0, 1]).await;
    let hub = Hub::start(&backbone).await;
    let worker = hub.worker("gpu", Source::Fetch, gpu);
    backbone.ready(1).await;
    let step = step(&backbone.model, 1, 3, 3);
    let expected = local_sums(&backbone.model, &step).await;
    let got = soon(kvasir::dispatch::Dispatch::begin(&backbone.remote, step)).await.expect("sums");
    for (expected, got) in expected.iter().zip(&got.rows) {
        let (kvasir::dispatch::RowSum::Float(expected), kvasir::dispatch::RowSum::Float(got)) = (expected, got) else {
            panic!("a float model")
        };
        let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
        let error = expected.iter().zip(got).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(error <= 1e-4 * largest, "{error} of {largest}");
    }
    assert_eq!(backbone.remote.counts().assignments_local, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_its_owner_wants_is_given_back_first_and_taken_again_later() {
    let Some(gpu) = gpu(None) else { return };
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let hub = Hub::start(&backbone).await;
    let worker = hub.worker("gpu", Source::Fetch, gpu.clone());
    backbone.ready(1).await;
    check_layers(&backbone, 1).await;
    assert!(gpu.activity().expert_bytes > 0);
    worker.room.send(Some(0)).expect("a worker");
    soon(async {
        while gpu.activity().expert_bytes > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    check_layers(&backbone, 2).await;
    worker.room.send(Some(1 << 30)).expect("a worker");
    check_until_remote(&backbone).await;
    worker.stop().await;
}
