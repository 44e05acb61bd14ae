//! Local and remote decode of one model, interleaved in one run, so that both meet the same machine.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::far::Far;
use crate::backbone::Backbone;
use crate::demo::DemoError;
use crate::demo::decode::Decode;
use crate::dispatch::{LocalDispatch, Mode};
use crate::kernel::{Expert, ExpertCompute, ExpertSource, KernelError};
use crate::wire::work::{Dispatch, Partials};

/// What to measure.
pub struct DecodeOptions {
    /// The model and the network of the remote run; the local one uses the same kernel.
    pub far: Far,
    /// Tokens per run.
    pub tokens: usize,
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

/// Measures.
///
/// # Errors
/// A network that does not come up, or a step that fails.
pub async fn decode(options: DecodeOptions) -> Result<DecodeBench, DemoError> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let DecodeOptions { mut far, tokens } = options;
    let timed = |inner| Arc::new(Timed { inner, calls: Arc::clone(&calls) }) as Arc<dyn ExpertCompute>;
    far.workers = std::mem::take(&mut far.workers).into_iter().map(timed).collect();
    let (network, model) = (far.start().await?, Arc::clone(&far.model));
    let local = LocalDispatch::new(Arc::clone(&model), Arc::clone(&far.compute), Mode::Exact);
    let mut local = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(local))?);
    let mut remote = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(network.dispatch.clone()))?);

    let first = model.hyper.vocab_size as u32 / 2;
    for _ in 0..tokens {
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
        tokens,
        local_tok_per_s: local.tok_per_s(),
        remote_tok_per_s: remote.tok_per_s(),
        remote_layers: far.remote_layers.len(),
        workers: far.workers.len(),
        rtt_ms: far.rtt_ms(),
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
