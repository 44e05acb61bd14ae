//! Local and remote decode of one model, interleaved in one run, so that both meet the same machine.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backbone::Backbone;
use crate::demo::DemoError;
use crate::demo::decode::Decode;
use crate::demo::network::{Network, NetworkOptions};
use crate::dispatch::{AuditPolicy, LocalDispatch, Mode, TrustConfig};
use crate::kernel::{Expert, ExpertCompute, ExpertSource, KernelError};
use crate::model::Model;
use crate::wire::work::{Dispatch, Partials};
use crate::worker::Hardware;

/// Longest wait for the workers' slices.
pub(super) const READY: Duration = Duration::from_secs(600);

/// What to measure.
pub struct DecodeOptions {
    /// The model.
    pub model: Arc<Model>,
    /// Tokens per run.
    pub tokens: usize,
    /// The backbone's kernel.
    pub compute: Arc<dyn ExpertCompute>,
    /// One worker each.
    pub workers: Vec<Arc<dyn ExpertCompute>>,
    /// Layers that workers hold.
    pub remote_layers: Vec<u16>,
    /// Delay between the workers and the gateway, each way.
    pub one_way: Duration,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodeBench {
    /// Model name.
    pub model: String,
    /// Tokens per run.
    pub tokens: usize,
    /// Greedy decode without workers.
    pub local_tok_per_s: f64,
    /// The same through gateway, hub and workers on loopback TLS.
    pub remote_tok_per_s: f64,
    /// Remote layers.
    pub remote_layers: usize,
    /// Workers.
    pub workers: usize,
    /// Round trip that was added.
    pub rtt_ms: f64,
    /// Median time of a remote layer and step, from sending to the last partial.
    pub layer_step_p50_ms: f64,
    /// Median time of the workers' kernel in it.
    pub kernel_p50_ms: f64,
    /// The difference: what the road costs per remote layer and step.
    pub road_p50_ms: f64,
}

/// A kernel that notes how long each call takes.
struct Timed {
    inner: Arc<dyn ExpertCompute>,
    calls: Arc<Mutex<Vec<Duration>>>,
}

impl ExpertCompute for Timed {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        let start = Instant::now();
        let partials = self.inner.compute(experts, layer, parts);
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(start.elapsed());
        partials
    }

    fn device(&self) -> String {
        self.inner.device()
    }

    fn place(&self, expert: Expert) -> Result<Expert, KernelError> {
        self.inner.place(expert)
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.inner.memory_bytes()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn recover(&self, patience: Duration) -> Result<(), KernelError> {
        self.inner.recover(patience)
    }
}

/// Median in milliseconds; 0 of nothing.
pub(super) fn p50_ms(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |t| t.as_secs_f64() * 1e3)
}

/// Workers are audited as those that have been there for long: the figures are of the usual state.
pub(super) const AS_OF_OLD: AuditPolicy =
    AuditPolicy { before_use: false, first_assignments: 0, young_assignments: 0, young_rate: 0.01, rate: 0.01 };

/// Measures.
///
/// # Errors
/// A network that does not come up, or a step that fails.
pub async fn decode(options: DecodeOptions) -> Result<DecodeBench, DemoError> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let workers = options
        .workers
        .into_iter()
        .map(|inner| Hardware::from(Arc::new(Timed { inner, calls: Arc::clone(&calls) }) as Arc<dyn ExpertCompute>));
    let model = options.model;
    let network = Network::start(NetworkOptions {
        model: Arc::clone(&model),
        compute: Arc::clone(&options.compute),
        workers: workers.collect(),
        remote_layers: options.remote_layers.clone(),
        one_way: options.one_way,
        trust: TrustConfig { audit: AS_OF_OLD, ..TrustConfig::default() },
        cuttable: false,
    })
    .await?;
    let worker_count = network.wallets().len();
    network.dispatch.wait_ready(worker_count, READY).await?;
    let local = LocalDispatch::new(Arc::clone(&model), options.compute, Mode::Exact);
    let mut local = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(local))?);
    let mut remote = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(network.dispatch.clone()))?);

    let first = model.hyper.vocab_size as u32 / 2;
    for _ in 0..options.tokens {
        for run in [&mut local, &mut remote] {
            let input = run.tokens.last().copied().unwrap_or(first);
            run.step(&[input]).await?;
        }
    }
    let layer_step_p50_ms = network.dispatch.counts().layer_step_p50_us as f64 / 1e3;
    network.stop().await?;
    let kernel_p50_ms = p50_ms(&mut calls.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(DecodeBench {
        model: model.name.clone(),
        tokens: options.tokens,
        local_tok_per_s: local.tok_per_s(),
        remote_tok_per_s: remote.tok_per_s(),
        remote_layers: options.remote_layers.len(),
        workers: worker_count,
        rtt_ms: options.one_way.as_secs_f64() * 2e3,
        layer_step_p50_ms,
        kernel_p50_ms,
        road_p50_ms: layer_step_p50_ms - kernel_p50_ms,
    })
}

impl fmt::Display for DecodeBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} tokens, greedy", self.model, self.tokens)?;
        writeln!(f, "  local    {:8.1} tok/s", self.local_tok_per_s)?;
        writeln!(
            f,
            "  remote   {:8.1} tok/s  ({} layers on {} workers, loopback TLS)",
            self.remote_tok_per_s, self.remote_layers, self.workers
        )?;
        write!(
            f,
            "  per remote layer and step: {:.3} ms = kernel {:.3} ms + road {:.3} ms (medians)",
            self.layer_step_p50_ms, self.kernel_p50_ms, self.road_p50_ms
        )
    }
}
