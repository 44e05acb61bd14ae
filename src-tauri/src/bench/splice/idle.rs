//! What thousands of spliced connections cost while nobody says anything but a ping now and then. Linux only: it reads
//! the gateway's memory and processor time from `/proc`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at, sleep};

use super::SpliceBenchError;
use super::ends::{Client, Hub};
use super::proxies::{Program, Proxy};
use crate::net::tls::TrialCertificates;

/// Handshakes at once.
const JOINING: usize = 16;
/// Between two pings of a connection, as a worker sends them.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Clock ticks of a second in `/proc`.
const TICKS: f64 = 100.0;

/// What idle connections cost the gateway.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdleBench {
    /// Connections.
    pub connections: usize,
    /// How long they took to come, one address and a few at a time.
    pub joined_s: f64,
    /// Resident memory of the gateway for each.
    pub bytes_each: u64,
    /// How long they were watched.
    pub watched_s: f64,
    /// Share of one core without a byte.
    pub silent_core: f64,
    /// Share of one core with a ping of each every 20 s.
    pub pinging_core: f64,
}

/// Opens `count` connections through our gateway and watches it for `time`, silent and pinging.
///
/// # Errors
/// A connection that fails, or a machine that does not tell what a process uses.
pub async fn idle(
    count: usize,
    time: Duration,
    dir: &Path,
    certificates: &TrialCertificates,
    (hub, trust): (&Hub, Arc<ClientConfig>),
) -> Result<IdleBench, SpliceBenchError> {
    let proxy = Program::Ours.start(dir, certificates, hub.plain, count + 1)?;
    // Pages that the first connection touches are nobody's in particular.
    let mut clients = vec![Client::connect(proxy.addr, Arc::clone(&trust)).await?];
    let (before, start) = (used(&proxy)?, Instant::now());
    let (room, mut joining) = (Arc::new(Semaphore::new(JOINING)), JoinSet::new());
    for _ in 0..count {
        let (room, trust, addr) = (Arc::clone(&room), Arc::clone(&trust), proxy.addr);
        joining.spawn(async move {
            let _place = room.acquire_owned().await;
            Client::connect(addr, trust).await
        });
    }
    while let Some(joined) = joining.join_next().await {
        clients.push(joined.map_err(|_| SpliceBenchError::Late("a connection"))??);
    }
    let joined_s = start.elapsed().as_secs_f64();
    sleep(Duration::from_secs(1)).await;
    let (settled, start) = (used(&proxy)?, Instant::now());
    sleep(time).await;
    let silent_core = (used(&proxy)?.1 - settled.1) / start.elapsed().as_secs_f64();
    let bytes_each = settled.0.saturating_sub(before.0) / count.max(1) as u64;

    let mut pinging = JoinSet::new();
    let all = clients.len() as u32;
    for (n, mut client) in clients.into_iter().enumerate() {
        let first = tokio::time::Instant::now() + PING_EVERY / all.max(1) * n as u32;
        pinging.spawn(async move {
            let mut ticks = interval_at(first, PING_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = client.ping().await {
                    return error;
                }
            }
        });
    }
    let (settled, start) = (used(&proxy)?, Instant::now());
    tokio::select! {
        () = sleep(time) => {}
        Some(Ok(error)) = pinging.join_next() => return Err(error),
    }
    let pinging_core = (used(&proxy)?.1 - settled.1) / start.elapsed().as_secs_f64();
    let watched_s = time.as_secs_f64();
    Ok(IdleBench { connections: count, joined_s, bytes_each, watched_s, silent_core, pinging_core })
}

/// Resident bytes and seconds of processor time of a proxy.
fn used(proxy: &Proxy) -> Result<(u64, f64), SpliceBenchError> {
    let dir = Path::new("/proc").join(proxy.id().to_string());
    let (status, stat) = (std::fs::read_to_string(dir.join("status"))?, std::fs::read_to_string(dir.join("stat"))?);
    let kib = |line: &str| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    let resident = status.lines().find_map(kib);
    let times = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2));
    let ticks: Option<f64> = times.and_then(|times| times.map(|t| t.parse::<f64>().ok()).sum());
    match (resident, ticks) {
        (Some(kib), Some(ticks)) => Ok((1024 * kib, ticks / TICKS)),
        _ => Err(SpliceBenchError::Usage),
    }
}
