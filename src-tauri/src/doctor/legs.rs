//! The road to one gateway: DNS, TCP, proxy, TLS, the upgrade, the hub behind it. The leg that fails is the one that is
//! named; what lies behind it was not reached.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Options;
use super::greet::{HANDSHAKE, greet};
use super::report::{Check, Verdict};
use super::speed::{self, CLOCK, RTT, SPEED};
use crate::net::dial::{Connector, DialError, Leg, Trip};
use crate::net::https::Gateway;
use crate::net::trust::{Seen, Voucher};
use crate::net::ws::{WsConfig, WsStream};
use crate::worker::with_path;

/// A certificate that ends sooner should have been renewed by now: the usual ones are at a third of their time.
const CERTIFICATE_SOON: i64 = 14 * 24 * 3600;
const DAY: i64 = 24 * 3600;

/// What was found on the road to one gateway.
pub(super) struct Road {
    pub host: String,
    pub checks: Vec<Check>,
    pub not_reached: Vec<String>,
}

impl Road {
    /// Whether a worker could be at work there.
    pub fn works(&self) -> bool {
        self.checks.iter().all(|check| check.verdict != Verdict::Fail)
    }
}

/// How long it is until then.
pub(super) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Walks the road to the gateway at `url`.
pub(super) async fn walk(options: &Options, connector: &Arc<Connector>, url: &str, until: Instant) -> Road {
    let mut trip = Trip::default();
    let travelled = WsStream::travel(&with_path(url), connector, WsConfig::worker(), left(until), &mut trip).await;
    let passed = |leg: Leg| trip.steps.iter().any(|step| step.leg == leg);
    let mut checks = passed_legs(options, &trip);
    let failed = travelled.as_ref().err();
    checks.extend(failed.map(judge));
    let Ok(gateway) = Gateway::at(url, Arc::clone(connector)) else {
        return Road { host: url.to_owned(), checks, not_reached: Vec::new() };
    };
    let measured = async { if passed(Leg::Tls) { speed::measure(options, &gateway, until).await } else { Vec::new() } };
    let greeted = async {
        match travelled {
            Ok(socket) => Some(greet(options, gateway.host(), socket, until).await),
            Err(_) => None,
        }
    };
    let (measured, greeted) = tokio::join!(measured, greeted);
    checks.extend(greeted);
    checks.extend(measured);
    let there = |id: &str| checks.iter().any(|check| check.id == id);
    let all = [titled(Leg::Tls), titled(Leg::Upgrade), HANDSHAKE, CLOCK, RTT, SPEED];
    let not_reached = all.into_iter().filter(|(id, _)| !there(id)).map(|(_, title)| title.to_owned()).collect();
    Road { host: gateway.host().to_owned(), checks, not_reached }
}

fn titled(leg: Leg) -> (&'static str, &'static str) {
    match leg {
        Leg::Url => ("gateway", "Gateway"),
        Leg::Dns => ("dns", "DNS"),
        Leg::Tcp => ("tcp", "TCP"),
        Leg::Proxy => ("proxy", "Proxy"),
        Leg::Tls => ("tls", "TLS"),
        Leg::Upgrade => ("upgrade", "Upgrade"),
        Leg::Auth | Leg::Version => HANDSHAKE,
    }
}

/// The legs that were passed, each once: over a proxy, TLS with the proxy is part of its leg.
fn passed_legs(options: &Options, trip: &Trip) -> Vec<Check> {
    let mut checks: Vec<Check> = Vec::new();
    for step in &trip.steps {
        let (id, title) = titled(step.leg);
        let check = match (&trip.certificate, step.leg) {
            (Some(seen), Leg::Tls) => certificate(seen, options.clock.unix_ms() / 1000),
            _ => Check::ok(id, title, format!("{} ({:.0} ms)", step.found, step.took.as_secs_f64() * 1e3)),
        };
        checks.retain(|before| before.id != id);
        checks.push(check);
    }
    checks
}

fn certificate(seen: &Seen, now_unix_s: u64) -> Check {
    let (id, title) = titled(Leg::Tls);
    let left_s = seen.ends_unix_s.saturating_sub(i64::try_from(now_unix_s).unwrap_or(i64::MAX));
    let whose = match seen.voucher {
        Voucher::Public => "",
        Voucher::Network => ", of this network",
        Voucher::Named => ", trusted by --ca",
        Voucher::Machine => ", trusted by this machine only: a proxy that inspects traffic?",
    };
    let left = if left_s < 1000 * DAY { format!("{} more days", left_s / DAY) } else { "for years".to_owned() };
    let found = format!("{}, issued by {}{whose}, {left}", seen.version, seen.issuer);
    if left_s < CERTIFICATE_SOON {
        let remedy = "the gateway's operator should renew its certificate; this machine's clock may also be wrong";
        return Check::warn(id, title, found, remedy);
    }
    Check::ok(id, title, found)
}

fn judge(error: &DialError) -> Check {
    let (id, title) = titled(error.leg());
    let remedy = match error {
        DialError::Status { status: 502..=504, .. } => {
            "the gateway is there and no hub behind it takes workers now: try again, or ask its operator"
        }
        other => other.remedy(),
    };
    Check::fail(id, title, error.to_string(), remedy)
}
