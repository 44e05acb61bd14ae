//! The network that benches measure through: every role on loopback, the workers at the end of a long line.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::NamedTempFile;

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

/// Workers of other machines, instead of those that a bench starts itself.
#[derive(Clone, Debug)]
pub struct Outside {
    /// Where the gateway listens for them.
    pub gateway: SocketAddr,
    /// How many are waited for.
    pub workers: usize,
    /// File that the join code for them is written to.
    pub invitation: PathBuf,
}

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
    /// What that way carries, if it is limited.
    pub bits_per_s: Option<u64>,
    /// Where workers are, if they are not started here; their way is as long as it is.
    pub outside: Option<Outside>,
}

impl Far {
    /// Starts every role, and waits until the workers hold their slices.
    pub(super) async fn start(&self) -> Result<Network, DemoError> {
        let (workers, one_way) = match self.outside {
            Some(_) => (Vec::new(), Duration::ZERO),
            None => (self.workers.iter().cloned().map(Into::into).collect(), self.one_way),
        };
        let network = Network::start(NetworkOptions {
            model: Arc::clone(&self.model),
            compute: Arc::clone(&self.compute),
            workers,
            remote_layers: self.remote_layers.clone(),
            one_way,
            bits_per_s: self.bits_per_s,
            gateway: self.outside.as_ref().map(|outside| outside.gateway),
            trust: TrustConfig { audit: AS_OF_OLD, ..TrustConfig::default() },
            cuttable: false,
        })
        .await?;
        if let Some(Outside { invitation, .. }) = &self.outside {
            // All of it at once: somebody may wait for the file.
            let dir = invitation.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let mut file = NamedTempFile::new_in(dir)?;
            file.write_all(network.join_code()?.as_bytes())?;
            file.persist(invitation).map_err(|error| error.error)?;
        }
        network.dispatch.wait_ready(self.count(), READY).await?;
        Ok(network)
    }

    /// Workers.
    pub(super) fn count(&self) -> usize {
        self.outside.as_ref().map_or(self.workers.len(), |outside| outside.workers)
    }

    /// The round trip that the line adds, or that the way to workers outside is said to take.
    pub(super) fn rtt_ms(&self) -> f64 {
        self.one_way.as_secs_f64() * 2e3
    }
}
