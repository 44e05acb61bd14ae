//! The operator's listener: `/metrics` for Prometheus, `/status` with addresses and reasons, `/healthz`. Plain HTTP.
//!
//! It stays up while the gateway drains, so that the drain can be watched.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::api::{health, no_such_method, no_such_path, serve as serve_request};
use super::metrics::{Metrics, Status};

/// Connections at once; whoever comes beyond is closed. A scraper and a few people need no more.
const CONNECTIONS: usize = 32;
/// One request and its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is dropped.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    let router = Router::new()
        .route("/metrics", get(page))
        .route("/status", get(status))
        .route("/healthz", get(healthz))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(metrics);
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                while connections.try_join_next().is_some() {}
                if connections.len() < CONNECTIONS {
                    connections.spawn(serve_request(stream, router.clone(), peer.ip(), DEADLINE));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "accepting an operator failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn page(State(metrics): State<Arc<Metrics>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.page()).into_response()
}

async fn status(State(metrics): State<Arc<Metrics>>) -> Json<Status> {
    Json(metrics.status())
}

async fn healthz(State(metrics): State<Arc<Metrics>>) -> Response {
    health(&metrics)
}
