//! What a splice costs: a gateway between a client over TLS and a hub, beside nginx and haproxy as WebSocket proxies.
//!
//! Every way is measured in every round, in changing order, and the median of the rounds counts: what a machine does
//! besides then falls on all of them. The way without a proxy is the floor that the others add to.

mod ends;
mod idle;
mod proxies;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use serde::Serialize;
use tempfile::TempDir;

use super::decode::p50_ms;
use crate::net::head::HeadError;
use crate::net::tls::{TlsError, TrialCertificates, client_config_from_pem, server_config_from_pem};
use ends::{Client, HOST, Hub, Order};
pub use idle::IdleBench;
use proxies::Program;

/// Message of the round trips: a row of 3,072 sums.
const PING_BYTES: u32 = 12 * 1024;
/// Message of the transfers: the largest there is.
const TRANSFER_BYTES: u32 = 1 << 20;
/// Round trips before those that count.
const WARM_UP: u32 = 200;
/// The way without a proxy.
const DIRECT: &str = "no proxy";

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct SpliceOptions {
    /// Rounds, of which the median counts.
    pub rounds: usize,
    /// Round trips of a round.
    pub pings: u32,
    /// Messages of a transfer, each way.
    pub messages: u32,
    /// Idle connections, after the rest; none at 0.
    pub idle: usize,
    /// How long they are watched, silent and pinging.
    pub idle_time: Duration,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpliceBench {
    /// The program's version.
    pub version: &'static str,
    /// Bytes of a message that goes back and forth.
    pub ping_bytes: u32,
    /// Bytes of a message of a transfer.
    pub transfer_bytes: u32,
    /// Rounds.
    pub rounds: usize,
    /// One per proxy, the first without any.
    pub ways: Vec<Way>,
    /// Programs that are not installed.
    pub missing: Vec<&'static str>,
    /// Idle connections through our gateway.
    pub idle: Option<IdleBench>,
}

/// One way from client to hub.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Way {
    /// The proxy.
    pub name: &'static str,
    /// Its version, as it tells it.
    pub program: String,
    /// Median round trip.
    pub p50_us: f64,
    /// Beyond the way without a proxy, in the same rounds.
    pub added_us: f64,
    /// 10⁶ bytes a second to the hub.
    pub up_mb_per_s: f64,
    /// The same from the hub.
    pub down_mb_per_s: f64,
    /// The medians of the rounds: round trip in µs, up and down in 10⁶ bytes a second.
    pub samples: Vec<[f64; 3]>,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum SpliceBenchError {
    /// A socket, a file or a process; thousands of connections need as many files twice.
    #[error("{0} (with many idle connections: raise the limit of open files with ulimit -n)")]
    Io(#[from] std::io::Error),
    /// Certificates or a handshake.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No proper answer to the upgrade.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// Another answer to the upgrade.
    #[error("expected 101 in answer to an upgrade, got {got}")]
    Status {
        /// The status.
        got: u16,
    },
    /// Nothing for long.
    #[error("expected {0} soon, got nothing for long")]
    Late(&'static str),
    /// A program that is not installed.
    #[error("expected the program {name}, found none")]
    Missing {
        /// Its name.
        name: &'static str,
    },
    /// A program that does not listen.
    #[error("expected {name} to listen, it ended: {ended}")]
    NotUp {
        /// Its name.
        name: &'static str,
        /// Its exit status.
        ended: String,
    },
    /// A machine without `/proc`.
    #[error("expected a process's memory and time in /proc, found none: idle connections are measured on Linux only")]
    Usage,
}

/// Measures. Starts threads and processes of its own: not for an async task.
///
/// # Errors
/// A proxy that does not come up, or a connection that fails.
pub fn splice(options: &SpliceOptions) -> Result<SpliceBench, SpliceBenchError> {
    let certificates = TrialCertificates::generate(&[HOST])?;
    let trust = client_config_from_pem(&certificates.ca_pem)?;
    let hub = Hub::start(server_config_from_pem(&certificates.cert_pem, &certificates.key_pem)?)?;
    // One thread, so that what is measured wakes no other.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut places, mut missing) = (vec![(DIRECT, hub.secure)], Vec::new());
    let (mut running, mut dirs) = (Vec::new(), Vec::new());
    for program in [Program::Ours, Program::Nginx, Program::Haproxy] {
        if program.executable().is_none() {
            missing.push(program.name());
            continue;
        }
        let dir = TempDir::with_prefix("kvasir-bench-")?;
        let proxy = program.start(dir.path(), &certificates, hub.plain, 64)?;
        places.push((program.name(), proxy.addr));
        running.push((program, proxy));
        dirs.push(dir);
    }
    let mut samples = vec![Vec::new(); places.len()];
    for round in 0..options.rounds {
        for step in 0..places.len() {
            let at = (round + step) % places.len();
            let (_, addr) = places[at];
            samples[at].push(runtime.block_on(measure(addr, Arc::clone(&trust), options))?);
        }
    }
    let versions = std::iter::once(String::new()).chain(running.iter().map(|(program, _)| program.version()));
    let ways = ways(places.iter().map(|(name, _)| *name).zip(versions).zip(samples));
    drop(running);
    let idle = match options.idle {
        0 => None,
        count => {
            let dir = TempDir::with_prefix("kvasir-bench-")?;
            let ends = (&hub, Arc::clone(&trust));
            Some(runtime.block_on(idle::idle(count, options.idle_time, dir.path(), &certificates, ends))?)
        }
    };
    let (version, rounds) = (env!("CARGO_PKG_VERSION"), options.rounds);
    let (ping_bytes, transfer_bytes) = (PING_BYTES, TRANSFER_BYTES);
    Ok(SpliceBench { version, ping_bytes, transfer_bytes, rounds, ways, missing, idle })
}

/// One way, once: median round trip in µs, then up and down in 10⁶ bytes a second.
async fn measure(
    addr: SocketAddr,
    trust: Arc<ClientConfig>,
    options: &SpliceOptions,
) -> Result<[f64; 3], SpliceBenchError> {
    let mut client = Client::connect(addr, trust).await?;
    client.pings(PING_BYTES, WARM_UP).await?;
    let mut times = client.pings(PING_BYTES, options.pings).await?;
    let up = client.bytes_per_s(Order::Take, TRANSFER_BYTES, options.messages).await?;
    let down = client.bytes_per_s(Order::Give, TRANSFER_BYTES, options.messages).await?;
    Ok([p50_ms(&mut times) * 1e3, up / 1e6, down / 1e6])
}

/// The ways with their medians; the first is what the others are compared with, round by round.
fn ways(measured: impl Iterator<Item = ((&'static str, String), Vec<[f64; 3]>)>) -> Vec<Way> {
    let mut floor: Option<Vec<[f64; 3]>> = None;
    let way = |((name, program), samples): ((&'static str, String), Vec<[f64; 3]>)| {
        let below = floor.get_or_insert_with(|| samples.clone());
        let added = samples.iter().zip(below.iter()).map(|(way, direct)| way[0] - direct[0]).collect();
        let of = |which: usize| median(samples.iter().map(|sample| sample[which]).collect());
        let (p50_us, up_mb_per_s, down_mb_per_s) = (of(0), of(1), of(2));
        Way { name, program, p50_us, added_us: median(added), up_mb_per_s, down_mb_per_s, samples }
    };
    measured.map(way).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl fmt::Display for SpliceBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ping_bytes, transfer_bytes, rounds, .. } = self;
        writeln!(f, "{ping_bytes} bytes back and forth, {transfer_bytes} bytes each way, {rounds} rounds")?;
        write!(f, "  way              p50 µs  added µs   up MB/s  down MB/s")?;
        for Way { name, p50_us, added_us, up_mb_per_s, down_mb_per_s, .. } in &self.ways {
            write!(f, "\n  {name:14}  {p50_us:7.1}  {added_us:8.1}  {up_mb_per_s:8.0}  {down_mb_per_s:9.0}")?;
        }
        for name in &self.missing {
            write!(f, "\n  {name}: not installed")?;
        }
        if let Some(IdleBench { connections, joined_s, bytes_each, watched_s, silent_core, pinging_core }) = &self.idle
        {
            let (silent, pinging) = (silent_core * 100.0, pinging_core * 100.0);
            write!(
                f,
                "\n  {connections} idle connections, there in {joined_s:.1} s: {bytes_each} bytes each, in {watched_s} s "
            )?;
            write!(f, "{silent:.2} % of a core silent, {pinging:.2} % with a ping of each every 20 s")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_compared_within_a_round() {
        let measured = [
            (("no proxy", String::new()), vec![[10.0, 1.0, 1.0], [50.0, 2.0, 1.0], [20.0, 3.0, 1.0]]),
            (("proxy", String::new()), vec![[30.0, 1.0, 5.0], [60.0, 1.0, 7.0], [45.0, 1.0, 6.0]]),
        ];
        let ways = ways(measured.into_iter());
        assert_eq!((ways[0].p50_us, ways[0].added_us, ways[0].up_mb_per_s), (20.0, 0.0, 2.0));
        assert_eq!((ways[1].p50_us, ways[1].added_us, ways[1].down_mb_per_s), (45.0, 20.0, 6.0));
    }
}
