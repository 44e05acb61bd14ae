//! Where hidden states go: a local request puts nothing on the network, also in a step with others that do.

use std::sync::Arc;
use std::time::Duration;

use kvasir::backbone::Backbone;
use kvasir::backbone::api::ApiConfig;
use kvasir::demo::network::{Network, NetworkOptions};
use kvasir::dispatch::TrustConfig;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::{PATIENCE, serve};
use crate::support::compute;

/// Assignments that workers computed, as the answer says.
fn remote(headers: &HeaderMap) -> u64 {
    let route = headers["x-kvasir-route"].to_str().unwrap();
    let (_, rest) = route.split_once("remote=").unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_local_request_is_served_by_no_worker_also_beside_others() {
    let model = Arc::new(kvasir::model::embedded().unwrap());
    let options = NetworkOptions {
        model: Arc::clone(&model),
        compute: compute(),
        workers: vec![compute().into()],
        remote_layers: (0..model.hyper.layers as u16).collect(),
        one_way: Duration::ZERO,
        bits_per_s: None,
        gateway: None,
        trust: TrustConfig::default(),
        cuttable: false,
    };
    let network = Network::start(options).await.unwrap();
    network.dispatch.wait_ready(1, PATIENCE).await.unwrap();
    let backbone = Arc::new(Backbone::new(model, Arc::new(network.dispatch.clone())).unwrap());
    let config = ApiConfig { dispatch: Some(network.dispatch.clone()), ..ApiConfig::default() };
    let server = serve(backbone, config).await;

    let ask = async |route: &str| {
        let body = json!({"prompt": "The king", "max_tokens": 40, "temperature": 0, "route": route});
        let (status, headers, answer) = server.post("/v1/completions", &body).await;
        assert_eq!(status, 200, "{answer}");
        let text = serde_json::from_str::<Value>(&answer).unwrap()["choices"][0]["text"].clone();
        (remote(&headers), text)
    };
    let (none, text) = ask("local").await;
    assert_eq!((none, network.dispatch.counts().requests), (0, 0));

    let (local, any) = tokio::join!(ask("local"), ask("any"));
    assert_eq!(local, (0, text.clone()));
    assert_eq!(any.1, text);
    let counted = network.dispatch.counts();
    assert!(any.0 > 0 && any.0 == counted.assignments_remote, "{} of {counted:?}", any.0);
    assert_eq!(server.metric("kvasir_assignments_total{by=\"worker\"}").await, any.0 as f64);
    assert!(server.metric("kvasir_dispatch_requests_total").await > 0.0);
    network.stop().await.unwrap();
}
