//! Requests that need many frames, and messages that are larger than any frame.

use std::sync::Arc;
use std::time::Duration;

use kvasir::backbone::Backbone;
use kvasir::demo::decode::Decode;
use kvasir::demo::network::{Network, NetworkOptions};
use kvasir::dispatch::TrustConfig;
use kvasir::model::{self, BlockType, Data, Model};
use kvasir::net::dial::Connector;
use kvasir::net::trust::Trust;
use kvasir::net::ws::{WsConfig, WsError, WsStream};
use kvasir::wire::frame::MESSAGE_BYTES_MAX;

use super::world::{PATIENCE, hardware, kernel, soon};
use crate::support::fleet::fleet;
use crate::support::one_layer::OneLayer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_of_2048_rows_at_width_3072_goes_through_gateway_and_hub_in_chunks() {
    let layer =
        OneLayer { hidden: 3072, intermediate: 256, experts: 4, experts_per_token: 1, experts_type: BlockType::Q4_K };
    let model: Arc<Model> = Arc::new(model::from_gguf("one layer", Data::from(layer.gguf())).expect("a model"));
    let network = Network::start(NetworkOptions {
        model: Arc::clone(&model),
        compute: kernel(),
        workers: vec![hardware()],
        remote_layers: vec![0],
        one_way: Duration::ZERO,
        bits_per_s: None,
        gateway: None,
        cuttable: false,
        trust: TrustConfig::default(),
    })
    .await
    .expect("a network");
    network.dispatch.wait_ready(1, PATIENCE).await.expect("a worker");
    let dispatch = Arc::new(network.dispatch.clone());
    let mut decode = Decode::new(Backbone::new(model, dispatch).expect("a backbone"));
    let prompt: Vec<u32> = (0..2048).map(|i| i % 259).collect();
    soon(decode.step(&prompt)).await.expect("a step");
    let counts = network.dispatch.counts();
    assert_eq!((counts.requests, counts.assignments_remote, counts.assignments_local), (1, 2048, 0), "{counts:?}");
    assert!(counts.raw_bytes > 24 * MESSAGE_BYTES_MAX as u64, "{counts:?}");
    network.stop().await.expect("a clean stop");
}

/// Resident bytes of a process.
#[cfg(target_os = "linux")]
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    1024 * kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_message_of_17_mib_is_closed_with_1009_and_costs_no_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let servers = fleet(dir.path());
    let ca =
        std::fs::read_to_string(dir.path().join("kvasir-state/gateway/trial-ca.pem")).expect("the authority's file");
    let connector = Connector::direct(Trust::only(&ca).expect("an authority"));
    let url = format!("wss://{}/v1/worker", servers.public);
    let processes = [servers.gateway.id(), servers.hub.id()];
    let hostile = async || {
        let roomy = WsConfig { message_bytes_max: 32 << 20, ..WsConfig::worker() };
        let mut link = soon(WsStream::connect(&url, &connector, roomy)).await.expect("an upgrade");
        soon(link.recv()).await.expect("a hello").expect("a hello");
        // The close may come before all of it has left.
        let _ = link.send(vec![0; 17 << 20]).await;
        match soon(link.recv()).await {
            Err(WsError::Closed { code: 1009, reason }) => reason,
            other => panic!("expected a close with 1009, got {other:?}"),
        }
    };
    hostile().await;
    let before = processes.map(resident);
    let reason = hostile().await;
    for size in [17 << 20, MESSAGE_BYTES_MAX] {
        assert!(reason.contains(&size.to_string()), "{reason}");
    }
    for (process, before) in processes.iter().zip(before) {
        let after = resident(*process);
        assert!(after < before + (4 << 20), "{before} bytes before, {after} after");
    }
}
