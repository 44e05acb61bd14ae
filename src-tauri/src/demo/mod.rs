//! All roles in one process: decode locally and through workers, compare every bit, and get paid.
//!
//! The newcomer's first command, and the road's own end-to-end test. Both decodes advance in lockstep, so that the
//! logits of every position are compared without keeping them.

mod chaos;
pub mod decode;
mod delay;
mod footprint;
pub mod network;
mod place;
mod report;
pub mod soak;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use footprint::Footprint;
pub use place::Death;
pub use report::{ChaosPart, LocalRun, RemoteRun, Report, WorkerPart};

use crate::backbone::{self, Backbone};
use crate::dispatch::{LocalDispatch, Mode, NotReady, TrustConfig};
use crate::hub::HubError;
use crate::kernel::ExpertCompute;
use crate::ledger::{LedgerError, Rate};
use crate::model::{ManifestError, Model, TokenizerError};
use crate::net::peer::PeerError;
use crate::net::tls::TlsError;
use crate::types::{NanoKvr, units};
use crate::wire::invite::InviteError;
use crate::worker::Hardware;
use chaos::Chaos;
use decode::{Comparison, Decode};
use network::{Network, NetworkOptions};

/// Longest wait for the workers to hold their slices.
const READY: Duration = Duration::from_secs(60);
/// Longest wait for the credit, once the decode is over.
const CREDIT: Duration = Duration::from_secs(5);
/// Between two looks at the accounts.
const CREDIT_LOOK: Duration = Duration::from_millis(50);

/// What to show.
pub struct DemoOptions {
    /// The model; it needs a tokenizer.
    pub model: Arc<Model>,
    /// Text to continue.
    pub prompt: String,
    /// Tokens to generate.
    pub tokens: usize,
    /// The backbone's kernel; the local run uses it too, so that the comparison is one of hardware as well.
    pub compute: Arc<dyn ExpertCompute>,
    /// One worker each.
    pub workers: Vec<Hardware>,
    /// Layers that workers may hold.
    pub remote_layers: Vec<u16>,
    /// Delay between the workers and the gateway, each way.
    pub one_way: Duration,
    /// Kill workers on the way and start them again, as this seed decides.
    pub chaos: Option<u64>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant passes on the error of the part that it names")]
pub enum DemoError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("no randomness from the operating system: {0}")]
    Random(getrandom::Error),
    #[error("expected at least one worker, got none")]
    NoWorkers,
    #[error("the model has no tokenizer: expected tokenizer data in the file or a tokenizer.json beside it")]
    NoTokenizer,
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Backbone(#[from] backbone::BackboneError),
    #[error(transparent)]
    Forward(#[from] backbone::ForwardError),
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("asking the gateway for an account: {0}")]
    Account(#[from] reqwest::Error),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Invite(#[from] InviteError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("a role did not stop when it was told to")]
    Stuck,
}

/// Runs the demo; `progress` is told the number of tokens that are done.
///
/// # Errors
/// Anything that keeps the demo from reaching its end. A run that ends badly is a [`Report`] with a failure.
pub async fn run(options: DemoOptions, mut progress: impl FnMut(usize)) -> Result<Report, DemoError> {
    let model = Arc::clone(&options.model);
    let tokenizer = model.tokenizer.as_ref().ok_or(DemoError::NoTokenizer)?;
    let prompt = tokenizer.encode(&options.prompt)?;
    let worker_count = options.workers.len();

    let local = LocalDispatch::new(Arc::clone(&model), Arc::clone(&options.compute), Mode::Exact);
    let mut local = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(local))?);
    let mut network = Network::start(NetworkOptions {
        model: Arc::clone(&model),
        compute: options.compute,
        workers: options.workers,
        remote_layers: options.remote_layers.clone(),
        one_way: options.one_way,
        bits_per_s: None,
        gateway: None,
        cuttable: options.chaos.is_some(),
        trust: TrustConfig::default(),
    })
    .await?;
    network.dispatch.wait_ready(worker_count, READY).await?;
    let slices: Vec<_> = (0..worker_count).map(|i| network.status(i)).collect();
    let mut remote = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(network.dispatch.clone()))?);

    let mut comparison = Comparison::default();
    let (mut local_input, mut remote_input) = (prompt.clone(), prompt.clone());
    let mut chaos = options.chaos.map(|seed| Chaos::new(seed, worker_count, options.tokens));
    for done in 0..options.tokens {
        let logits = local.step(&local_input).await?;
        let is_due = chaos.as_mut().is_some_and(|chaos| chaos.is_due(done));
        let remote_logits = match chaos.as_mut().filter(|_| is_due) {
            Some(chaos) => {
                chaos.mend(&mut network).await?;
                tokio::join!(remote.step(&remote_input), chaos.strike(&mut network)).0?
            }
            None => remote.step(&remote_input).await?,
        };
        comparison.add(&logits, &remote_logits);
        local_input = local.tokens[done..].to_vec();
        remote_input = remote.tokens[done..].to_vec();
        progress(done + 1);
    }

    let used = network.dispatch.counts();
    let statements = credited(&network, used.work_bytes).await?;
    let workers = network.wallets().into_iter().zip(&statements).zip(slices);
    let workers: Vec<WorkerPart> = workers
        .map(|((wallet, statement), status)| WorkerPart {
            wallet,
            device: status.device,
            slice: status.slice,
            work_bytes: statement.work_bytes,
        })
        .collect();
    network.stop().await?;
    let first = workers.first().ok_or(DemoError::NoWorkers)?;

    let work_bytes = statements.iter().map(|s| s.work_bytes).sum();
    let credited_nano: u64 = statements.iter().map(|s| s.pending_nano_kvr.0 + s.settled_nano_kvr.0).sum();
    let identical = local.tokens.iter().zip(&remote.tokens).take_while(|(a, b)| a == b).count();
    Ok(Report {
        model: model.name.clone(),
        prompt: options.prompt,
        prompt_tokens: prompt.len(),
        new_tokens: options.tokens,
        tokens_identical: identical,
        tokens_compared: local.tokens.len(),
        argmax_match: local.tokens == remote.tokens,
        logit_cosine_min: comparison.cosine_min,
        logits_bit_identical: comparison.bit_identical,
        work_bytes,
        work_bytes_used: used.work_bytes,
        raw_bytes: used.raw_bytes,
        units: units(work_bytes),
        credited_nano_kvr: credited_nano,
        pending_kvr: NanoKvr(credited_nano).to_string(),
        rate: Rate::default().0,
        wallet: first.wallet,
        workers,
        chaos: options.chaos.zip(chaos).map(|(seed, chaos)| ChaosPart {
            seed,
            kills: chaos.kills,
            restarts: chaos.restarts,
            recomputed: used.recomputed,
            hedged: used.hedged,
            late: used.late,
            added_latency_ms: remote.added_latency_ms(),
        }),
        local: LocalRun { text: tokenizer.decode(&local.tokens)?, tok_per_s: local.tok_per_s(), tokens: local.tokens },
        remote: RemoteRun {
            text: tokenizer.decode(&remote.tokens)?,
            tok_per_s: remote.tok_per_s(),
            assignments_remote: used.assignments_remote,
            assignments_local: used.assignments_local,
            layers: options.remote_layers,
            rtt_ms: options.one_way.as_secs_f64() * 2e3,
            tokens: remote.tokens,
        },
    })
}

/// The wallets' accounts, once they hold `work_bytes` or the wait is over.
async fn credited(network: &Network, work_bytes: u64) -> Result<Vec<crate::ledger::WalletStatement>, DemoError> {
    let start = Instant::now();
    loop {
        let mut statements = Vec::new();
        for wallet in network.wallets() {
            statements.push(network.statement(wallet).await?);
        }
        let credited_bytes: u64 = statements.iter().map(|s| s.work_bytes).sum();
        if credited_bytes >= work_bytes || start.elapsed() > CREDIT {
            return Ok(statements);
        }
        tokio::time::sleep(CREDIT_LOOK).await;
    }
}
