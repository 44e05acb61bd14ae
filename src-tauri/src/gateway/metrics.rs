//! Counters of a running gateway, what `/status` tells, and the page of `/metrics`. Never money: that is the ledger's.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use super::legs::Legs;
use super::permits::Limit;
use crate::clock::{Clock, SystemClock};
use crate::net::certificate::CertificateFiles;
use crate::telemetry::{MetricsPage, Vitals};
use crate::types::PublicKey;

/// A monotone counter, or a gauge when its owner also takes away.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Takes away, for gauges.
    pub fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// Reads.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The road behind this gateway: its leg to one hub, as the last poll saw it, and the hub's leg to the backbone, as the
/// hub last told it. Addresses and reasons are for the operator alone: see [`HubLeg::for_the_public`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HubLeg {
    /// The hub's key, once it was heard of.
    pub hub: Option<PublicKey>,
    /// Its program version.
    pub version: Option<String>,
    /// Connections that it keeps here for workers, if it dials in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<u64>,
    /// Workers that are spliced to it.
    pub splices_open: u64,
    /// Whether workers are led there as long as another hub is not better.
    pub takes_workers: bool,
    /// Where it is asked, or which pinned key dials in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether the last poll succeeded.
    pub reachable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether it says that it sends its workers away.
    pub draining: bool,
    /// Its open sessions, as far as it said.
    pub sessions: Option<u64>,
    /// Its sessions that were cut since it started, as far as it said: by a proxy on the way, a network, a machine asleep.
    pub cuts: Option<u64>,
    /// Whether the hub reached its backbone, as far as it said.
    pub backbone_reachable: Option<bool>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backbone_error: Option<String>,
    /// How far its clock is ahead of ours, as far as it said: exact to the time of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_ahead_ms: Option<i64>,
    /// When a poll last succeeded; 0 = never.
    pub last_poll_unix_ms: u64,
    /// Meter rows refused since the start: each is an alarm.
    pub meters_refused: u64,
}

impl HubLeg {
    /// Without what only the operator should read.
    fn for_the_public(self) -> Self {
        Self { address: None, error: None, backbone_error: None, clock_ahead_ms: None, ..self }
    }
}

/// What `/status` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// This program's version.
    pub version: &'static str,
    /// Whether a shutdown was asked for.
    pub draining: bool,
    /// The legs to the hubs and behind them.
    pub hubs: Vec<HubLeg>,
    /// Workers being spliced.
    pub splices_open: u64,
    /// Splices since the start.
    pub splices: u64,
    /// Bytes from workers to hubs.
    pub bytes_up: u64,
    /// Bytes from hubs to workers.
    pub bytes_down: u64,
    /// Connections closed at once because a limit was reached.
    pub refused_by_limit: u64,
    /// Connections that ended before a request: TLS, a bad head, a late head.
    pub refused_heads: u64,
    /// Upgrades that no hub took.
    pub refused_by_hub: u64,
    /// Subscriptions to wallets that are open.
    pub subscriptions_open: u64,
    /// Who issued the certificate that is shown now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_issuer: Option<String>,
    /// When it ends, seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_ends_unix_s: Option<i64>,
    /// What this process runs out of, for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vitals: Option<Vitals>,
}

/// Shared by the tasks of one gateway.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Set once at shutdown.
    pub draining: AtomicBool,
    /// The hubs.
    pub legs: Arc<Legs>,
    /// Connections open, of any kind.
    pub connections_open: Counter,
    /// See [`Status`].
    pub splices_open: Counter,
    /// See [`Status`].
    pub splices: Counter,
    /// See [`Status`].
    pub bytes_up: Counter,
    /// See [`Status`].
    pub bytes_down: Counter,
    /// In the order of [`Limit::EACH`].
    pub refused_by_limit: [Counter; Limit::EACH.len()],
    /// See [`Status`].
    pub refused_heads: Counter,
    /// See [`Status`].
    pub refused_by_hub: Counter,
    /// Requests of the public HTTP.
    pub requests: Counter,
    /// See [`Status`].
    pub subscriptions_open: Counter,
    /// Certificates taken from changed files.
    pub certificates_taken: Counter,
    /// Changed certificate files that could not be used.
    pub certificates_kept: Counter,
    /// What is shown, if it came from files.
    pub certificate: Option<Arc<CertificateFiles>>,
    /// Where the accounts are kept, if on this machine.
    pub kept_in: Option<PathBuf>,
    /// The time.
    pub clock: SystemClock,
}

impl Metrics {
    /// For a gateway of these hubs.
    #[must_use]
    pub fn new(legs: Arc<Legs>) -> Self {
        Self { legs, ..Self::default() }
    }

    /// Counts a connection that a limit kept out.
    pub fn refused(&self, limit: Limit) {
        for (each, counter) in Limit::EACH.iter().zip(&self.refused_by_limit) {
            counter.add(u64::from(*each == limit));
        }
    }

    /// A picture of now, for the operator.
    #[must_use]
    pub fn status(&self) -> Status {
        let certificate = self.certificate.as_ref().and_then(|files| files.about());
        Status {
            version: env!("CARGO_PKG_VERSION"),
            draining: self.draining.load(Ordering::Relaxed),
            hubs: self.legs.all().iter().map(|leg| leg.view()).collect(),
            splices_open: self.splices_open.get(),
            splices: self.splices.get(),
            bytes_up: self.bytes_up.get(),
            bytes_down: self.bytes_down.get(),
            refused_by_limit: self.refused_by_limit.iter().map(Counter::get).sum(),
            refused_heads: self.refused_heads.get(),
            refused_by_hub: self.refused_by_hub.get(),
            subscriptions_open: self.subscriptions_open.get(),
            certificate_ends_unix_s: certificate.as_ref().map(|about| about.ends_unix_s),
            certificate_issuer: certificate.map(|about| about.issuer),
            vitals: Some(Vitals::now(self.clock.unix_ms(), self.kept_in.as_deref())),
        }
    }

    /// The same for everybody.
    #[must_use]
    pub fn public_status(&self) -> Status {
        let status = self.status();
        Status { hubs: status.hubs.into_iter().map(HubLeg::for_the_public).collect(), vitals: None, ..status }
    }

    /// The page of `/metrics`. README documents every name.
    #[must_use]
    pub fn page(&self) -> String {
        let status = self.status();
        let mut page = MetricsPage::default();
        let draining = u8::from(status.draining);
        page.one("kvasir_gateway_draining", "gauge", "1 once a stop was asked for.", draining);
        let open = self.connections_open.get();
        page.one("kvasir_gateway_connections_open", "gauge", "Public connections of any kind.", open);
        page.one("kvasir_gateway_splices_open", "gauge", "Workers being spliced.", status.splices_open);
        page.one("kvasir_gateway_splices_total", "counter", "Workers spliced since the start.", status.splices);
        page.head("kvasir_gateway_bytes_total", "counter", "Bytes spliced, by direction.");
        page.line("kvasir_gateway_bytes_total{to=\"hub\"}", status.bytes_up);
        page.line("kvasir_gateway_bytes_total{to=\"worker\"}", status.bytes_down);
        page.head("kvasir_gateway_refused_total", "counter", "Connections that were not served, by why.");
        for (limit, counter) in Limit::EACH.iter().zip(&self.refused_by_limit) {
            page.line(&format!("kvasir_gateway_refused_total{{why=\"{}\"}}", limit.name()), counter.get());
        }
        page.line("kvasir_gateway_refused_total{why=\"head\"}", status.refused_heads);
        page.line("kvasir_gateway_refused_total{why=\"hub\"}", status.refused_by_hub);
        page.one("kvasir_gateway_requests_total", "counter", "Requests of the public HTTP.", self.requests.get());
        let subscriptions = status.subscriptions_open;
        page.one("kvasir_gateway_subscriptions_open", "gauge", "Subscriptions to wallets.", subscriptions);
        page.head("kvasir_gateway_certificates_total", "counter", "Changed certificate files, by what became of them.");
        page.line("kvasir_gateway_certificates_total{end=\"taken\"}", self.certificates_taken.get());
        page.line("kvasir_gateway_certificates_total{end=\"kept_old\"}", self.certificates_kept.get());
        if let Some(ends) = status.certificate_ends_unix_s {
            let help = "When the certificate that is shown ends.";
            page.one("kvasir_gateway_certificate_ends_unix_s", "gauge", help, ends);
        }
        legs(&mut page, &status.hubs);
        if let Some(vitals) = &status.vitals {
            vitals.tell(&mut page);
        }
        page.into_text()
    }
}

/// A leg that nobody can tell about has no value.
fn legs(page: &mut MetricsPage, hubs: &[HubLeg]) {
    type Value = fn(&HubLeg) -> Option<u64>;
    let metrics: [(&str, &str, &str, Value); 9] = [
        ("kvasir_gateway_hub_up", "gauge", "Whether the last poll of a hub succeeded.", |leg| {
            Some(leg.reachable.into())
        }),
        ("kvasir_gateway_hub_takes_workers", "gauge", "Whether workers are led to a hub.", |leg| {
            Some(leg.takes_workers.into())
        }),
        ("kvasir_gateway_hub_splices_open", "gauge", "Workers spliced to a hub.", |leg| Some(leg.splices_open)),
        ("kvasir_gateway_hub_parked", "gauge", "Connections that a hub keeps here.", |leg| leg.parked),
        ("kvasir_gateway_hub_sessions", "gauge", "Open sessions of a hub.", |leg| leg.sessions),
        ("kvasir_gateway_hub_cuts_total", "counter", "Sessions of a hub that were cut on their way.", |leg| leg.cuts),
        ("kvasir_gateway_backbone_up", "gauge", "Whether a hub reaches its backbone.", |leg| {
            leg.backbone_reachable.map(u64::from)
        }),
        ("kvasir_gateway_hub_polled_unix_ms", "gauge", "When a poll of a hub last succeeded.", |leg| {
            Some(leg.last_poll_unix_ms)
        }),
        ("kvasir_gateway_meters_refused_total", "counter", "Meter rows of a hub that were refused: alarms.", |leg| {
            Some(leg.meters_refused)
        }),
    ];
    for (name, kind, help, value) in metrics {
        page.head(name, kind, help);
        for leg in hubs {
            let Some(value) = value(leg) else { continue };
            let address = leg.address.as_deref().unwrap_or_default();
            let key = leg.hub.map(|key| key.to_string()).unwrap_or_default();
            page.line(&format!("{name}{{hub=\"{key}\",address=\"{address}\"}}"), value);
        }
    }
}
