//! Stop, on a graphics card: in time from any state, and then nothing is computed and nothing held.
//!
//! Without an adapter this says so and passes, unless `KVASIR_REQUIRE_GPU=1`.

use std::time::Instant;

use kvasir::engine::Settings;
use kvasir::kernel::gpu::{GpuKernel, GpuOptions};

use super::guest::holds_slice;
use super::*;
use crate::support::fault_proxy::FaultProxy;

/// Stop means stop.
const STOP_MAX: Duration = Duration::from_secs(1);

/// The GPU, or a word that there is none.
fn gpu() -> Option<Arc<GpuKernel>> {
    match GpuKernel::open(&GpuOptions { allow_software: true, ..GpuOptions::default() }) {
        Ok(kernel) => Some(Arc::new(kernel)),
        Err(error) => {
            assert!(std::env::var_os("KVASIR_REQUIRE_GPU").is_none_or(|v| v != "1"), "a GPU is required: {error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn on_gpu(kernel: &Arc<GpuKernel>) -> FindHardware {
    let kernel = Arc::clone(kernel);
    Box::new(move |_| {
        let hardware = Hardware { kernel: Arc::clone(&kernel) as Arc<dyn ExpertCompute>, why: String::new() };
        Box::pin(async move { Search { found: Vec::new(), best: Ok(hardware.fixed()) } })
    })
}

/// Stops in time, and then nothing is done and nothing held on the GPU.
async fn stops(desk: &Desk, gpu: &GpuKernel, state: &str) {
    let before = Instant::now();
    desk.engine.contribute(false).await.unwrap();
    assert!(before.elapsed() < STOP_MAX, "{state}: {:?}", before.elapsed());
    assert_eq!(desk.engine.status().link, Link::Off, "{state}");
    // Whoever was just placing an expert lets go of it a moment later.
    while gpu.activity().expert_bytes != 0 {
        assert!(before.elapsed() < STOP_MAX, "{state}: memory is given back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let after = gpu.activity();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(gpu.activity().submissions, after.submissions, "{state}: nothing more is computed");
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_takes_less_than_a_second_from_any_state_and_frees_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let proxy = FaultProxy::before(network.gateway()).await;
    let desk = Desk::with(dir.path(), |config| config.hardware = on_gpu(&gpu));
    desk.ready().await;
    desk.join(&network.join_code().unwrap()).await;
    let gateways = vec![format!("wss://localhost:{}", proxy.addr.port())];
    desk.engine.save_settings(Settings { gateways, ..Settings::default() }).await.unwrap();
    for round in 0..2 {
        desk.engine.contribute(true).await.unwrap();
        stops(&desk, &gpu, "just begun").await;
        desk.engine.contribute(true).await.unwrap();
        desk.until("a download or a slice", |s| s.download.is_some() || holds_slice(s)).await;
        stops(&desk, &gpu, "downloading").await;
        desk.engine.contribute(true).await.unwrap();
        desk.until("a slice", holds_slice).await;
        let computing = generate(&network, 200);
        tokio::pin!(computing);
        tokio::select! {
            () = &mut computing => panic!("round {round}: the generation is too short for this test"),
            status = desk.until("answers", |s| s.assignments > 0) => drop(status),
        }
        assert!(gpu.activity().submissions > 0 && gpu.activity().expert_bytes > 0);
        stops(&desk, &gpu, "computing").await;
    }
    // A line that carries nothing and ends nothing.
    desk.engine.contribute(true).await.unwrap();
    desk.until("a slice", holds_slice).await;
    proxy.go_black();
    stops(&desk, &gpu, "on a dead line").await;
    desk.engine.contribute(true).await.unwrap();
    desk.until("dialling", |s| matches!(s.link, Link::Connecting { .. })).await;
    stops(&desk, &gpu, "connecting").await;
    desk.stop().await;
}
