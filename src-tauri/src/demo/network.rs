//! All four roles in one process, on loopback, with throw-away keys: real listeners, real TLS, real accounts.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::DemoError;
use super::place::{Death, Place, Ways};
use crate::clock::{Clock, SystemClock};
use crate::dispatch::{DeadlineRule, RemoteConfig, RemoteDispatch, TrustConfig};
use crate::gateway::{self, GatewayConfig, HubEndpoint};
use crate::hub::{self, HubConfig, HubTiming};
use crate::kernel::ExpertCompute;
use crate::ledger::{ClaimTerms, Ledger, WalletStatement};
use crate::model::Model;
use crate::net::peer::PeerSecurity;
use crate::net::tls::{self, TrialCertificates};
use crate::shutdown::{self, Shutdown, ShutdownTrigger};
use crate::types::PublicKey;
use crate::wire::handshake::HubIdentity;
use crate::wire::invite::{Invite, InviteError};
use crate::wire::signature::KeyPair;
use crate::worker::{Hardware, WorkerStatus};

/// The name in the throw-away certificate.
const HOST: &str = "localhost";
/// How often the gateway asks the hub for new work: the demo's user waits for it.
const POLL: Duration = Duration::from_millis(100);
/// A throw-away hub certificate outlives every demo.
const CERTIFICATE_S: u64 = 24 * 3600;
/// Longest wait for a role that was told to stop.
const STOP: Duration = Duration::from_secs(10);

/// What to build.
pub struct NetworkOptions {
    /// The model that is served.
    pub model: Arc<Model>,
    /// Computes what no worker does.
    pub compute: Arc<dyn ExpertCompute>,
    /// One worker each.
    pub workers: Vec<Hardware>,
    /// Layers that workers may hold.
    pub remote_layers: Vec<u16>,
    /// Delay between the workers and the gateway, each way.
    pub one_way: Duration,
    /// What the line carries each way; as much as it can when absent.
    pub bits_per_s: Option<u64>,
    /// Where the gateway listens; on loopback when absent.
    pub gateway: Option<SocketAddr>,
    /// What the backbone demands of the workers.
    pub trust: TrustConfig,
    /// Whether [`Network::kill`] is going to be used: each worker's link then passes a forwarder that can be cut.
    pub cuttable: bool,
}

/// How a network waits; the defaults are those of the servers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// How long a worker may take.
    pub deadlines: DeadlineRule,
    /// How long the hub waits.
    pub hub: HubTiming,
}

/// A running network.
pub struct Network {
    /// The backbone's dispatch.
    pub dispatch: RemoteDispatch,
    workers: Vec<Place>,
    ways: Ways,
    roles: Vec<(ShutdownTrigger, JoinHandle<Result<(), DemoError>>)>,
    client: reqwest::Client,
    public: String,
    operator: KeyPair,
    ca_pem: String,
    hub: PublicKey,
    meters: Ledger,
    accounts: Ledger,
    /// Ledgers, worker ids, receipts; removed with the network.
    state: TempDir,
}

async fn listen(at: Option<SocketAddr>) -> Result<(TcpListener, SocketAddr), DemoError> {
    let listener = TcpListener::bind(at.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into())).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

impl Network {
    /// Starts backbone listener, hub, gateway and the workers.
    ///
    /// # Errors
    /// A listener, certificate or ledger that cannot be made.
    pub async fn start(options: NetworkOptions) -> Result<Self, DemoError> {
        Self::start_with(options, Waits::default()).await
    }

    /// The same with other waits.
    ///
    /// # Errors
    /// As [`Network::start`].
    pub async fn start_with(options: NetworkOptions, waits: Waits) -> Result<Self, DemoError> {
        let state = TempDir::with_prefix("kvasir-demo-")?;
        let host = options.gateway.map_or_else(|| HOST.to_owned(), |at| at.ip().to_string());
        let certificates = TrialCertificates::generate(&[&host])?;
        let ca = state.path().join("ca.pem");
        std::fs::write(&ca, &certificates.ca_pem)?;
        let mut roles = Vec::new();
        let mut start = |run: Role| {
            let (trigger, shutdown) = shutdown::channel();
            roles.push((trigger, tokio::spawn(run(shutdown))));
        };

        let keys = || KeyPair::generate().map_err(DemoError::Random);
        let (backbone_key, hub_key, gateway_key) = (keys()?, keys()?, keys()?);
        let (backbone_listener, backbone) = listen(None).await?;
        let config = RemoteConfig {
            peers: PeerSecurity::pinned(&backbone_key, &[hub_key.public()])?,
            deadlines: waits.deadlines,
            trust: options.trust,
            ..RemoteConfig::new(options.remote_layers)
        };
        let dispatch = RemoteDispatch::new(options.model, options.compute, config)?;
        let serving = dispatch.clone();
        start(Box::new(move |shutdown| {
            Box::pin(async move {
                serving.serve(backbone_listener, shutdown).await;
                Ok(())
            })
        }));

        let operator = keys()?;
        let (hub_listener, hub) = listen(None).await?;
        let config = HubConfig {
            backbone_peer: PeerSecurity::pinned(&hub_key, &[backbone_key.public()])?,
            gateway_peer: PeerSecurity::pinned(&hub_key, &[gateway_key.public()])?,
            timing: waits.hub,
            ..HubConfig::new(backbone.to_string(), vec![host.clone()], state.path().join("quarantine"))
        };
        let not_after = SystemClock::default().unix_ms() / 1000 + CERTIFICATE_S;
        let hub_signs = keys()?;
        let hub_name = hub_signs.public();
        let identity = HubIdentity::issued_by(&operator, hub_signs, not_after);
        let meters = ledger(&state, "hub.db").await?;
        let hub_meters = meters.clone();
        start(Box::new(move |shutdown| {
            Box::pin(async move { Ok(hub::serve(hub_listener, config, identity, hub_meters, shutdown).await?) })
        }));

        let (gateway_listener, gateway) = listen(options.gateway).await?;
        let endpoint = HubEndpoint { addr: hub };
        let server = tls::server_config_from_pem(&certificates.cert_pem, &certificates.key_pem)?;
        let config = GatewayConfig {
            poll_interval: POLL,
            hub_peer: PeerSecurity::pinned(&gateway_key, &[hub_key.public()])?,
            // Nothing is audited here for long.
            claims: Some(ClaimTerms { operator: operator.public(), hold: Duration::ZERO }),
            ..GatewayConfig::new(server, vec![endpoint])
        };
        let accounts = ledger(&state, "gateway.db").await?;
        let gateway_accounts = accounts.clone();
        start(Box::new(move |shutdown| {
            Box::pin(async move {
                gateway::serve(gateway_listener, config, gateway_accounts, shutdown).await;
                Ok(())
            })
        }));

        let ways = Ways {
            gateway,
            host: host.clone(),
            ca,
            operator: operator.public(),
            one_way: options.one_way,
            bits_per_s: options.bits_per_s,
            has_line: options.cuttable || !options.one_way.is_zero() || options.bits_per_s.is_some(),
        };
        let mut workers = Vec::new();
        for (index, hardware) in options.workers.into_iter().enumerate() {
            let mut place = Place::new(state.path().join(format!("worker-{index}")), hardware, ways.clone())?;
            place.start().await?;
            workers.push(place);
        }
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(rustls::ClientConfig::clone(&*tls::client_config_from_pem(
                &certificates.ca_pem,
            )?))
            .no_proxy()
            .build()?;
        let public = format!("https://{host}:{}", gateway.port());
        let ca_pem = certificates.ca_pem;
        let hub = hub_name;
        Ok(Self { dispatch, workers, ways, roles, client, public, operator, ca_pem, hub, meters, accounts, state })
    }

    /// The operator's invitation to this network.
    #[must_use]
    pub fn invite(&self) -> Invite {
        let gateways = vec![self.public.replacen("https", "wss", 1)];
        let expires_unix_s = SystemClock::default().unix_ms() / 1000 + CERTIFICATE_S;
        Invite { operator: self.operator.public(), gateways, ca_pem: Some(self.ca_pem.clone()), expires_unix_s }
    }

    /// Its text, signed.
    ///
    /// # Errors
    /// An invitation that no reader would take.
    pub fn join_code(&self) -> Result<String, InviteError> {
        self.invite().sign(&self.operator)
    }

    /// The workers' wallets.
    #[must_use]
    pub fn wallets(&self) -> Vec<PublicKey> {
        self.workers.iter().map(|w| w.address).collect()
    }

    /// Where the gateway listens.
    #[must_use]
    pub fn gateway(&self) -> SocketAddr {
        self.ways.gateway
    }

    /// Adds a worker that reaches the gateway through `way`; gives its index.
    ///
    /// # Errors
    /// No wallet for it.
    pub async fn add_worker(&mut self, hardware: Hardware, way: SocketAddr) -> Result<usize, DemoError> {
        let index = self.workers.len();
        let ways = Ways { gateway: way, ..self.ways.clone() };
        let mut place = Place::new(self.state.path().join(format!("worker-{index}")), hardware, ways)?;
        place.start().await?;
        self.workers.push(place);
        Ok(index)
    }

    /// What worker `index` shows of itself.
    #[must_use]
    pub fn status(&self, index: usize) -> WorkerStatus {
        self.workers[index].status.borrow().clone()
    }

    /// Whether worker `index` runs.
    #[must_use]
    pub fn is_running(&self, index: usize) -> bool {
        self.workers[index].is_running()
    }

    /// The key that invites workers and pays claims.
    #[must_use]
    pub fn operator(&self) -> &KeyPair {
        &self.operator
    }

    /// The hub's name: the key that signs its receipts.
    #[must_use]
    pub fn hub(&self) -> PublicKey {
        self.hub
    }

    /// The hub's meters and the gateway's accounts.
    #[must_use]
    pub fn ledgers(&self) -> (&Ledger, &Ledger) {
        (&self.meters, &self.accounts)
    }

    /// Ends worker `index` at once, without a word of the protocol. Needs [`NetworkOptions::cuttable`].
    pub fn kill(&mut self, index: usize, death: Death) {
        self.workers[index].kill(death);
    }

    /// Starts worker `index` again, after it was killed: the same installation with the same wallet.
    ///
    /// # Errors
    /// No port for its line.
    pub async fn restart(&mut self, index: usize) -> Result<(), DemoError> {
        self.workers[index].start().await
    }

    /// What the gateway's public account of a wallet says.
    ///
    /// # Errors
    /// A gateway that does not answer.
    pub async fn statement(&self, wallet: PublicKey) -> Result<WalletStatement, DemoError> {
        let url = format!("{}/v1/wallets/{wallet}", self.public);
        Ok(self.client.get(url).send().await?.error_for_status()?.json().await?)
    }

    /// Stops workers first, then the roles from the public side inwards.
    ///
    /// # Errors
    /// The first role that failed.
    pub async fn stop(self) -> Result<(), DemoError> {
        self.workers.iter().for_each(Place::stop);
        for worker in self.workers {
            worker.stopped(STOP).await;
        }
        let mut result = Ok(());
        for (trigger, task) in self.roles.into_iter().rev() {
            trigger.fire();
            let ended = match tokio::time::timeout(STOP, task).await {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) | Err(_) => Err(DemoError::Stuck),
            };
            result = result.and(ended);
        }
        result
    }
}

/// Starts a role; it ends when its shutdown fires.
type Role = Box<dyn FnOnce(Shutdown) -> std::pin::Pin<Box<dyn Future<Output = Result<(), DemoError>> + Send>>>;

async fn ledger(state: &TempDir, name: &str) -> Result<Ledger, DemoError> {
    Ok(Ledger::open(&format!("sqlite:{}", state.path().join(name).display())).await?)
}
