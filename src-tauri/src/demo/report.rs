//! What `kvasir demo` found out: one document for machines, a short page for people.

use std::fmt;

use serde::Serialize;

use crate::types::PublicKey;

/// One decode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LocalRun {
    /// Generated token ids.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Generated tokens per second, prompt excluded.
    pub tok_per_s: f64,
}

/// The decode whose chosen layers were computed by workers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RemoteRun {
    /// Generated token ids.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Generated tokens per second, prompt excluded.
    pub tok_per_s: f64,
    /// Assignments in the remote layers whose partial came from a worker.
    pub assignments_remote: u64,
    /// Assignments in the remote layers that were computed here.
    pub assignments_local: u64,
    /// The remote layers.
    pub layers: Vec<u16>,
    /// Round-trip time that was added on the workers' links.
    pub rtt_ms: f64,
}

/// One worker's part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerPart {
    /// Its wallet.
    pub wallet: PublicKey,
    /// What computed, and why that.
    pub device: String,
    /// `layer:first-last`, separated by commas.
    pub slice: String,
    /// Work bytes credited to the wallet.
    pub work_bytes: u64,
}

/// What killed workers did to the decode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChaosPart {
    /// What decided who died when; the same seed kills the same again.
    pub seed: u64,
    /// Workers killed in the middle of a step.
    pub kills: u32,
    /// Workers started again.
    pub restarts: u32,
    /// Assignments that had been sent out and were computed again here.
    pub recomputed: u64,
    /// Assignments that went to a replica after somebody else had not brought them.
    pub hedged: u64,
    /// Requests that missed their deadline.
    pub late: u64,
    /// Slowest step's time beyond the median step.
    pub added_latency_ms: f64,
}

/// The whole finding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Model name.
    pub model: String,
    /// The prompt.
    pub prompt: String,
    /// Its tokens.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub new_tokens: usize,
    /// Without workers.
    pub local: LocalRun,
    /// With workers.
    pub remote: RemoteRun,
    /// Leading generated tokens that are the same.
    pub tokens_identical: usize,
    /// Tokens compared.
    pub tokens_compared: usize,
    /// Whether both runs chose the same token everywhere.
    pub argmax_match: bool,
    /// Smallest cosine between the two runs' logits, over all positions.
    pub logit_cosine_min: f64,
    /// Whether the logits have the same bits everywhere.
    pub logits_bit_identical: bool,
    /// Work bytes that were credited.
    pub work_bytes: u64,
    /// Bytes of work frames that travelled.
    pub raw_bytes: u64,
    /// `work_bytes` in units of 10⁶.
    pub units: String,
    /// Nano-KVR credited over all workers.
    pub credited_nano_kvr: u64,
    /// The same, for people.
    pub pending_kvr: String,
    /// The first worker's wallet.
    pub wallet: PublicKey,
    /// The workers.
    pub workers: Vec<WorkerPart>,
    /// With `--chaos`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub chaos: Option<ChaosPart>,
    /// Nano-KVR per work byte.
    #[serde(skip)]
    pub rate: u64,
    /// Work bytes of the assignments that the backbone used.
    #[serde(skip)]
    pub work_bytes_used: u64,
}

impl Report {
    /// Why the run does not hold what Kvasir promises; `None` = it does.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if self.tokens_identical != self.tokens_compared || self.tokens_compared != self.new_tokens {
            return Some(format!(
                "expected {} identical tokens, got {}: the remote run differs from the local one",
                self.new_tokens, self.tokens_identical
            ));
        }
        if self.remote.assignments_remote == 0 {
            return Some("expected remote work, got none: no assignment was served by a worker".to_owned());
        }
        if !self.logits_bit_identical {
            return Some(format!(
                "expected logits with the same bits, got cosine {}: a partial was not what the local kernel computes",
                self.logit_cosine_min
            ));
        }
        if self.work_bytes != self.work_bytes_used {
            return Some(format!(
                "expected {} work bytes in the accounts, got {}",
                self.work_bytes_used, self.work_bytes
            ));
        }
        let expected = self.work_bytes.checked_mul(self.rate);
        if expected != Some(self.credited_nano_kvr) {
            return Some(format!(
                "expected {} work bytes × {} = {expected:?} nano-KVR, got {}",
                self.work_bytes, self.rate, self.credited_nano_kvr
            ));
        }
        None
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<String> = self.remote.layers.iter().map(u16::to_string).collect();
        writeln!(f, "{} · {} prompt tokens, {} new", self.model, self.prompt_tokens, self.new_tokens)?;
        writeln!(f)?;
        writeln!(f, "  {}{}", self.prompt, self.remote.text)?;
        writeln!(f)?;
        writeln!(f, "  local    {:7.1} tok/s", self.local.tok_per_s)?;
        write!(f, "  remote   {:7.1} tok/s   layers {}", self.remote.tok_per_s, layers.join(","))?;
        writeln!(f, " on {} workers, RTT + {} ms", self.workers.len(), self.remote.rtt_ms)?;
        writeln!(
            f,
            "  tokens   {} of {} identical, logits {}",
            self.tokens_identical,
            self.tokens_compared,
            if self.logits_bit_identical {
                "bit-identical".to_owned()
            } else {
                format!("differ (cosine ≥ {:.6})", self.logit_cosine_min)
            }
        )?;
        let (remote, local) = (self.remote.assignments_remote, self.remote.assignments_local);
        writeln!(f, "  experts  {remote} assignments by workers, {local} here")?;
        if let Some(chaos) = &self.chaos {
            writeln!(
                f,
                "  chaos    seed {}: {} workers killed, {} started again, slowest step + {:.1} ms",
                chaos.seed, chaos.kills, chaos.restarts, chaos.added_latency_ms
            )?;
            writeln!(
                f,
                "           {} assignments went to a replica, {} were computed again here, {} requests were late",
                chaos.hedged, chaos.recomputed, chaos.late
            )?;
        }
        writeln!(
            f,
            "  paid     {} units of work = {} nano-KVR = {} KVR",
            self.units, self.credited_nano_kvr, self.pending_kvr
        )?;
        for worker in &self.workers {
            writeln!(
                f,
                "           {}  {} bytes  {}  {}",
                worker.wallet, worker.work_bytes, worker.device, worker.slice
            )?;
        }
        Ok(())
    }
}
