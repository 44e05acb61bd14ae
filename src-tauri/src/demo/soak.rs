//! Decodes for as long as it is told while workers are killed every two seconds: `kvasir demo --chaos --soak 20m`.
//!
//! Every decode is compared with the one that was made without workers before, and memory and open files are looked at
//! three times. **Promise:** it fails when a token differs or when either of them grows.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::chaos::Chaos;
use super::decode::Decode;
use super::footprint::Footprint;
use super::network::{Network, NetworkOptions};
use super::{DemoError, DemoOptions, READY};
use crate::backbone::Backbone;
use crate::dispatch::{LocalDispatch, Mode, TrustConfig};

/// Between two kills.
const KILL_EVERY: Duration = Duration::from_secs(2);
/// Share of the time after which the first look is taken: caches and pools are full by then.
const WARM: f64 = 0.2;
/// What the memory may grow by between the first look and the last.
const RSS_GROWTH_MAX: u64 = 48 << 20;
/// The same for open files: sockets of sessions that are just ending.
const OPEN_FILES_GROWTH_MAX: u64 = 32;

/// What a soak found out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SoakReport {
    /// Model name.
    pub model: String,
    /// What decided who died when.
    pub seed: u64,
    /// How long it ran.
    pub seconds: f64,
    /// Decodes that were completed and compared.
    pub decodes: u64,
    /// Tokens of all of them.
    pub tokens: u64,
    /// The first token that differed, counted over all decodes.
    pub differs_at: Option<u64>,
    /// Workers killed.
    pub kills: u32,
    /// Workers started again.
    pub restarts: u32,
    /// Assignments that workers served.
    pub assignments_remote: u64,
    /// Assignments that had been sent out and were computed again on the backbone.
    pub recomputed: u64,
    /// Assignments that went to a replica after somebody else had not brought them.
    pub hedged: u64,
    /// Requests that missed their deadline.
    pub late: u64,
    /// Memory and open files: once warm, half-way and at the end.
    pub footprints: [Footprint; 3],
}

impl SoakReport {
    /// Why the run does not hold what Kvasir promises; `None` = it does.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if let Some(token) = self.differs_at {
            return Some(format!("expected the tokens of the local run, got another one at token {token}"));
        }
        if self.assignments_remote == 0 {
            return Some("expected remote work, got none: no assignment was served by a worker".to_owned());
        }
        let [first, _, last] = self.footprints;
        for (what, first, last, max) in [
            ("bytes of memory", first.rss_bytes, last.rss_bytes, RSS_GROWTH_MAX),
            ("open files", first.open_files, last.open_files, OPEN_FILES_GROWTH_MAX),
        ] {
            if let (Some(first), Some(last)) = (first, last)
                && last > first + max
            {
                return Some(format!("expected at most {max} more {what} than {first} at the end, got {last}"));
            }
        }
        None
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} · seed {} · {:.0} s", self.model, self.seed, self.seconds)?;
        let same = if self.differs_at.is_none() { "all identical" } else { "NOT identical" };
        writeln!(f, "  tokens   {} in {} decodes, {same}", self.tokens, self.decodes)?;
        writeln!(f, "  chaos    {} workers killed, {} started again", self.kills, self.restarts)?;
        writeln!(
            f,
            "  experts  {} assignments by workers, {} went to a replica, {} computed again here, {} requests late",
            self.assignments_remote, self.hedged, self.recomputed, self.late
        )?;
        let text = |value: Option<u64>| value.map_or("?".to_owned(), |value| value.to_string());
        let row = |of: fn(&Footprint) -> Option<u64>| self.footprints.each_ref().map(|f| text(of(f))).join(" → ");
        writeln!(f, "  memory   {} MiB", row(|f| f.rss_bytes.map(|bytes| bytes >> 20)))?;
        writeln!(f, "  files    {} open", row(|f| f.open_files))
    }
}

/// Decodes for `lasts`; `progress` is told the seconds that are over.
///
/// # Errors
/// Anything that keeps a decode from its end: with workers dying all the time, nothing may.
pub async fn run(
    options: DemoOptions,
    seed: u64,
    lasts: Duration,
    mut progress: impl FnMut(u64),
) -> Result<SoakReport, DemoError> {
    let model = Arc::clone(&options.model);
    let prompt = model.tokenizer.as_ref().ok_or(DemoError::NoTokenizer)?.encode(&options.prompt)?;
    let local = LocalDispatch::new(Arc::clone(&model), Arc::clone(&options.compute), Mode::Exact);
    let mut local = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(local))?);
    local.run(&prompt, options.tokens).await?;

    let workers = options.workers.len();
    let mut network = Network::start(NetworkOptions {
        model: Arc::clone(&model),
        compute: options.compute,
        workers: options.workers,
        remote_layers: options.remote_layers,
        one_way: options.one_way,
        bits_per_s: None,
        gateway: None,
        cuttable: true,
        trust: TrustConfig::default(),
    })
    .await?;
    network.dispatch.wait_ready(workers, READY).await?;

    let mut chaos = Chaos::new(seed, workers, options.tokens);
    let (start, mut next_kill) = (Instant::now(), Instant::now());
    let (mut decodes, mut tokens, mut differs_at) = (0, 0, None);
    let mut looks = Vec::new();
    while start.elapsed() < lasts && differs_at.is_none() {
        let mut remote = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(network.dispatch.clone()))?);
        let mut input = prompt.clone();
        for expected in &local.tokens {
            if Instant::now() >= next_kill {
                next_kill += KILL_EVERY;
                chaos.mend(&mut network).await?;
                let (logits, ()) = tokio::join!(remote.step(&input), chaos.strike(&mut network));
                logits?;
            } else {
                remote.step(&input).await?;
            }
            let got = remote.tokens[remote.tokens.len() - 1];
            if got != *expected {
                differs_at = Some(tokens);
                break;
            }
            tokens += 1;
            input = vec![got];
        }
        decodes += 1;
        let over = start.elapsed();
        let is_due = [WARM, 0.5].get(looks.len()).is_some_and(|share| over >= lasts.mul_f64(*share));
        if is_due {
            looks.push(Footprint::now());
        }
        progress(over.as_secs());
    }
    let last = Footprint::now();
    let footprints = [looks.first().copied().unwrap_or(last), looks.get(1).copied().unwrap_or(last), last];
    let (seconds, counts) = (start.elapsed().as_secs_f64(), network.dispatch.counts());
    network.stop().await?;
    Ok(SoakReport {
        model: model.name.clone(),
        seed,
        seconds,
        decodes,
        tokens,
        differs_at,
        kills: chaos.kills,
        restarts: chaos.restarts,
        assignments_remote: counts.assignments_remote,
        recomputed: counts.recomputed,
        hedged: counts.hedged,
        late: counts.late,
        footprints,
    })
}
