//! The worker as a process: one wallet, one network, what computes, and its owner's wishes.

use std::sync::Arc;

use tokio::sync::watch;

use super::device::{self, Wanted};
use super::loading::load_model;
use super::{AnyError, all_threads, say};
use crate::clock::{Clock, SystemClock};
use crate::config::{self, ConfigError, Site};
use crate::net::dial::Outbound;
use crate::shutdown::Shutdown;
use crate::worker::courtesy::{self, Duty, Sources};
use crate::worker::{self, CacheConfig, Phase, Source, WorkerConfig, WorkerStatus, network};

/// Works until `shutdown`.
///
/// # Errors
/// What keeps it from even trying.
pub(super) async fn run(config: config::Worker, shutdown: Shutdown) -> Result<(), AnyError> {
    let config::Worker { site, memory_bytes, .. } = config;
    let _alone = worker::occupy(&site.state)?;
    let network = network_of(&site, memory_bytes)?;
    let wallet = super::wallet::open_wallet(&site.state)?;
    say(format_args!("wallet {}", wallet.address()))?;
    let wanted = Wanted { gpu: site.gpu, memory_bytes, cache: Some(site.state.join("gpu")), ..Wanted::default() };
    let Some(hardware) = device::for_worker(config.device, wanted, all_threads(), &shutdown).await? else {
        return Ok(());
    };
    say(format_args!("device {}", *hardware.borrow()))?;
    let source = match &config.weights {
        Some(path) => Source::LocalModel(load_model(Some(path), config.experts)?),
        None => Source::Fetch,
    };
    let cache = (config.cache_bytes != Some(0)).then(|| CacheConfig::new(site.cache, config.cache_bytes));
    let outbound = Outbound { proxy: site.proxy, extra_ca: site.ca.into_iter().collect(), ..network.outbound };
    let duty = Duty::default();
    duty.set(site.rules.duty_percent);
    // Nobody changes them while the worker runs.
    let (_rules, wished) = watch::channel(site.rules);
    let (welcome, _) = courtesy::watch(wished, Sources::default(), Arc::clone(&network.clock), courtesy::LOOK_EVERY);
    let worker = WorkerConfig { outbound, source, cache, duty, ..network };
    let (sender, status) = watch::channel(WorkerStatus::default());
    let narrator = tokio::spawn(narrate(status));
    worker::run_while_welcome(worker, Arc::new(wallet), hardware, sender, welcome, shutdown).await?;
    Ok(narrator.await??)
}

/// Whom the worker works for: what was typed, or the network of a join code, typed or kept from before.
fn network_of(site: &Site, memory_bytes: Option<u64>) -> Result<WorkerConfig, AnyError> {
    let Site { gateways, operators, join, state, .. } = site;
    if join.is_none() && !gateways.is_empty() {
        let typed = WorkerConfig::new(gateways.clone(), operators.clone(), state.clone(), 0);
        return Ok(WorkerConfig { budget: memory_bytes.into(), ..typed });
    }
    let now_unix_s = SystemClock::default().unix_ms() / 1000;
    let Some(invite) = network::join(state, join.as_deref(), operators, now_unix_s)? else {
        let why = "the code that `kvasir hub invite` prints; or --gateway and --operator";
        return Err(ConfigError::Missing { role: "worker", flag: "--join", why }.into());
    };
    let invited = WorkerConfig::invited(invite, state.clone(), memory_bytes);
    Ok(if gateways.is_empty() { invited } else { WorkerConfig { gateways: gateways.clone(), ..invited } })
}

/// Prints each change of what the worker is doing.
async fn narrate(mut status: watch::Receiver<WorkerStatus>) -> std::io::Result<()> {
    let mut last = String::new();
    loop {
        let line = {
            let status = status.borrow_and_update();
            match &status.phase {
                Phase::Starting => "starting".to_owned(),
                Phase::Connecting { gateway } => format!("connecting to {gateway}"),
                Phase::Offered => "connected, waiting for a slice".to_owned(),
                // In steps of a tenth: a line for every expert would be hundreds.
                Phase::Fetching { done, total } => {
                    format!("fetching experts, {} % of {total} bytes", done * 10 / total.max(&1) * 10)
                }
                Phase::Serving => format!("serving {}", status.slice),
                Phase::Recovering { reason } => format!("not computing: {reason}; looking for it"),
                Phase::Waiting { reason, retry_ms } => format!("not connected: {reason}; next try in {retry_ms} ms"),
                Phase::StandingBy { hold } => format!("standing by: {hold}"),
                Phase::Stopped => "stopped".to_owned(),
            }
        };
        if line != last {
            say(&line)?;
            last = line;
        }
        if status.changed().await.is_err() {
            return Ok(());
        }
    }
}
