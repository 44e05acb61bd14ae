//! The network that benches measure through: every role on loopback, the workers at the end of a long line.

use std::sync::Arc;
use std::time::Duration;

use crate::demo::DemoError;
use crate::demo::network::{Network, NetworkOptions};
use crate::dispatch::{AuditPolicy, TrustConfig};
use crate::kernel::ExpertCompute;
use crate::model::Model;

/// Longest wait for the workers' slices.
const READY: Duration = Duration::from_secs(600);

/// Workers are audited as those that have been there for long: the figures are of the usual state.
const AS_OF_OLD: AuditPolicy =
    AuditPolicy { before_use: false, first_assignments: 0, young_assignments: 0, young_rate: 0.01, rate: 0.01 };

/// A model whose experts are far away.
#[derive(Clone)]
pub struct Far {
    /// The model.
    pub model: Arc<Model>,
    /// The backbone's kernel.
    pub compute: Arc<dyn ExpertCompute>,
    /// One worker each.
    pub workers: Vec<Arc<dyn ExpertCompute>>,
    /// Layers that workers hold.
    pub remote_layers: Vec<u16>,
    /// Delay between the workers and the gateway, each way.
    pub one_way: Duration,
}

impl Far {
    /// Starts every role, and waits until the workers hold their slices.
    pub(super) async fn start(&self) -> Result<Network, DemoError> {
        let network = Network::start(NetworkOptions {
            model: Arc::clone(&self.model),
            compute: Arc::clone(&self.compute),
            workers: self.workers.iter().cloned().map(Into::into).collect(),
            remote_layers: self.remote_layers.clone(),
            one_way: self.one_way,
            trust: TrustConfig { audit: AS_OF_OLD, ..TrustConfig::default() },
            cuttable: false,
        })
        .await?;
        network.dispatch.wait_ready(self.workers.len(), READY).await?;
        Ok(network)
    }

    /// The round trip that the line adds.
    pub(super) fn rtt_ms(&self) -> f64 {
        self.one_way.as_secs_f64() * 2e3
    }
}
