//! The server roles as processes: bind, say what was bound, serve until SIGTERM, drain.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::device;
use super::loading::{load_model, read_ahead};
use super::{AnyError, all_threads, say};
use crate::backbone::{Backbone, api};
use crate::cli::{AdmissionMode, Role, RoleFlags};
use crate::clock::{Clock, SystemClock};
use crate::config::{self, File, Peers, Tls};
use crate::dispatch::{RemoteConfig, RemoteDispatch};
use crate::gateway::{self, GatewayConfig, HubEndpoint, Limits, Listeners};
use crate::hub::{self, AdmissionPolicy, HubConfig};
use crate::ledger::{ClaimTerms, Ledger};
use crate::model::{Manifest, Reach};
use crate::net::bind;
use crate::net::certificate::CertificateFiles;
use crate::net::descriptors;
use crate::net::dial::{Outbound, Way};
use crate::net::peer::PeerSecurity;
use crate::net::tls::TrialCertificates;
use crate::shutdown::{self, Shutdown};
use crate::wallet::keyfile;
use crate::wire::handshake::HubIdentity;

/// Flag that lets hub and backbone listen where strangers reach them.
const ALLOW_PUBLIC: &str = "--allow-public";
/// A hub certificate outlives every run of its hub: it is issued anew at each start, by the operator key beside it, so
/// an early end would only stop a hub that runs for long.
const HUB_CERTIFICATE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long threads may finish what they do after their role has ended, such as the last write of a file.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Runs `role` until SIGTERM, then lets it drain; a second SIGTERM ends it as it is.
///
/// # Errors
/// What keeps the role from starting, or from ending well.
pub fn run(role: Role, flags: &RoleFlags) -> Result<(), AnyError> {
    if let Some(files) = descriptors::raise() {
        tracing::debug!(files.soft, files.hard, "open files");
    }
    let runtime = super::runtime()?;
    let ended = runtime.block_on(serve(role, flags));
    // What still computes on a thread of its own has nobody left to compute for.
    runtime.shutdown_timeout(LAST_WORK);
    ended
}

async fn serve(role: Role, flags: &RoleFlags) -> Result<(), AnyError> {
    let file = File::read(flags.config.as_deref())?;
    let (trigger, shutdown) = shutdown::channel();
    let told_twice = tokio::spawn(async move {
        terminated().await;
        trigger.fire();
        terminated().await;
    });
    // A task of its own, so that a role that computes does not keep the signals waiting.
    let mut serving = match role {
        Role::Backbone => tokio::spawn(backbone(config::Backbone::new(flags, file)?, shutdown)),
        Role::Hub => tokio::spawn(hub(config::Hub::new(flags, file)?, shutdown)),
        Role::Gateway => tokio::spawn(gateway(config::Gateway::new(flags, file)?, shutdown)),
        Role::Worker => tokio::spawn(super::worker::run(config::Worker::new(flags, file)?, shutdown)),
    };
    tokio::select! {
        served = &mut serving => served?,
        _ = told_twice => Err("told to stop twice: ended before the drain was over".into()),
    }
}

/// Completes on the next SIGTERM or SIGINT.
async fn terminated() {
    // Without signals the process can still be killed; the roles are built for that too.
    if let Err(error) = shutdown::termination().await {
        tracing::warn!(%error, "cannot listen for SIGTERM");
        std::future::pending::<()>().await;
    }
}

/// The trust between our own servers, and our own key for their configuration.
fn peer_security(peers: &Peers) -> Result<PeerSecurity, AnyError> {
    let Some(path) = &peers.key_file else { return Ok(PeerSecurity::Loopback) };
    let own = keyfile::load_or_create(path)?;
    say(format_args!("peer key {}", own.public()))?;
    Ok(PeerSecurity::pinned(&own, &peers.trusted)?)
}

async fn backbone(config: config::Backbone, shutdown: Shutdown) -> Result<(), AnyError> {
    let model = load_model(config.model.as_deref(), config.experts)?;
    let lent = super::lent::lent(&config, &model)?;
    // What workers hold is read when it is needed, and not kept.
    let _reading = read_ahead(&model, Reach::Without(&lent.layers));
    let compute = device::cpu(all_threads())?;
    make_state(&config.state)?;
    let trust = super::trust::demands(&config.trust, &model, &config.state)?;
    let beside = |path: &PathBuf| Manifest::beside(&model, path, &config.state);
    // Experts that are made in memory are not those of the file.
    let file = config.model.as_ref().filter(|_| config.experts.is_none());
    let remote = RemoteConfig {
        peers: peer_security(&config.peers)?,
        expert_cache_bytes: config.expert_cache_bytes.unwrap_or(RemoteConfig::EXPERT_CACHE_BYTES),
        local_experts: config.experts_local,
        manifest: file.map(beside).transpose()?,
        trust,
        ..RemoteConfig::new(lent.layers)
    };
    let dispatch = RemoteDispatch::new(Arc::clone(&model), compute, remote)?;
    let backbone = Arc::new(Backbone::new(Arc::clone(&model), Arc::new(dispatch.clone()))?);

    let hubs = bind::listen_private(config.listen, config.allow_public, ALLOW_PUBLIC).await?;
    let (clients, api) = super::serving::api(&config, &dispatch, lent.why).await?;
    let scheme = if api.tls.is_some() { "https" } else { "http" };
    say(format_args!("model {}", model.name))?;
    say(format_args!("listening for hubs on {}", hubs.local_addr()?))?;
    say(format_args!("completions on {scheme}://{}", clients.local_addr()?))?;
    let (served, ()) =
        tokio::join!(api::serve(clients, backbone, api, shutdown.clone()), dispatch.serve(hubs, shutdown));
    Ok(served?)
}

async fn hub(config: config::Hub, shutdown: Shutdown) -> Result<(), AnyError> {
    make_state(&config.state)?;
    let operator = keyfile::load_or_create(&config.state.join("operator.key"))?;
    let key = keyfile::load_or_create(&config.state.join("hub.key"))?;
    let not_after = Duration::from_millis(SystemClock::default().unix_ms()) + HUB_CERTIFICATE;
    let identity = HubIdentity::issued_by(&operator, key, not_after.as_secs());
    let peers = peer_security(&config.peers)?;
    let ledger = Ledger::open(&config.ledger).await?;
    let quarantine_list = config.state.join("quarantine");
    let admission = match config.admission {
        AdmissionMode::Open => AdmissionPolicy::Open,
        AdmissionMode::Invite => AdmissionPolicy::Invite { operator: operator.public() },
        AdmissionMode::List => AdmissionPolicy::List,
    };
    let hub = HubConfig {
        backbone_peer: peers.clone(),
        gateway_peer: peers,
        rendezvous: config.rendezvous,
        way: Arc::new(Way::new(&Outbound { proxy: config.proxy, ..Outbound::default() })),
        admission,
        allowed: config.allowed,
        oldest_worker: config.oldest_worker,
        kept_in: Some(ledger_dir(&config.ledger, &config.state)),
        admin: Some(config.state),
        ..HubConfig::new(config.backbone.to_string(), config.public_hosts, quarantine_list)
    };
    let listener = bind::listen_private(config.listen, config.allow_public, ALLOW_PUBLIC).await?;
    say(format_args!("operator key {}", operator.public()))?;
    say(format_args!("listening for gateways on {}", listener.local_addr()?))?;
    let served = hub::serve(listener, hub, identity, ledger.clone(), shutdown).await;
    ledger.close().await;
    Ok(served?)
}

async fn gateway(config: config::Gateway, shutdown: Shutdown) -> Result<(), AnyError> {
    // First, so that a second gateway by mistake changes nothing of the first one's files.
    let listener = bind::listen(config.listen).await?;
    make_state(&config.state)?;
    let admin = match config.admin {
        Some(addr) => Some(bind::listen_loopback(addr, config.allow_public, ALLOW_PUBLIC).await?),
        None => None,
    };
    let certificate = Arc::new(match &config.tls {
        Tls::Files { cert, key } => CertificateFiles::open(cert, key)?,
        Tls::Trial => trial_certificates(&config.state, &config.public_hosts)?,
    });
    let hub_peer = peer_security(&config.peers)?;
    let hubs = config.hubs.iter().map(|addr| HubEndpoint { addr: *addr }).collect();
    let ledger = Ledger::open(&config.ledger).await?;
    say(format_args!("listening on https://{}", listener.local_addr()?))?;
    if let Some(admin) = &admin {
        say(format_args!("operator's listener on http://{}", admin.local_addr()?))?;
    }
    let limits = config.connections_per_address.map_or_else(Limits::default, |most| Limits::of_address(most.get()));
    let kept_in = Some(ledger_dir(&config.ledger, &config.state));
    let public_hosts = config.public_hosts;
    let tls = certificate.server_config()?;
    let certificate = Some(certificate);
    let claims = config.claims.map(|(operator, hold)| ClaimTerms { operator, hold });
    let gateway =
        GatewayConfig { certificate, hub_peer, public_hosts, kept_in, limits, claims, ..GatewayConfig::new(tls, hubs) };
    gateway::serve(Listeners { public: listener, admin }, gateway, ledger.clone(), shutdown).await;
    ledger.close().await;
    Ok(())
}

/// The trial authority and certificate of the state directory, made when missing and kept, so that workers that were
/// given the authority's file as `--ca` come back after a restart.
fn trial_certificates(state: &Path, hosts: &[String]) -> Result<CertificateFiles, AnyError> {
    let [ca, cert, key] = ["trial-ca.pem", "trial-cert.pem", "trial-key.pem"].map(|name| state.join(name));
    if !(ca.exists() && cert.exists() && key.exists()) {
        let names =
            if hosts.is_empty() { vec![config::PUBLIC_HOST] } else { hosts.iter().map(String::as_str).collect() };
        let made = TrialCertificates::generate(&names)?;
        owner_only(&key, &made.key_pem)?;
        std::fs::write(&cert, &made.cert_pem)?;
        std::fs::write(&ca, &made.ca_pem)?;
    }
    say(format_args!("trial certificate authority in {}", ca.display()))?;
    Ok(CertificateFiles::open(&cert, &key)?)
}

/// Writes a file that only its owner may read, in place of an older one.
fn owner_only(path: &Path, text: &str) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    std::io::Write::write_all(&mut options.open(path)?, text.as_bytes())
}

/// Where a ledger is kept on this machine; one of a server elsewhere leaves only the state directory to watch.
fn ledger_dir(ledger: &str, state: &Path) -> PathBuf {
    let file = ledger.strip_prefix("sqlite:").map(Path::new);
    let dir = file.and_then(Path::parent).filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(state).to_owned()
}

/// Makes a role's state directory.
fn make_state(path: &Path) -> Result<(), AnyError> {
    std::fs::create_dir_all(path).map_err(|e| format!("cannot make the state directory {}: {e}", path.display()).into())
}
