//! A worker of the demo's network, with its line to the gateway: it can be killed and started again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{DemoError, delay};
use crate::net::dial::Outbound;
use crate::net::proxy::ProxyChoice;
use crate::shutdown::{self, ShutdownTrigger};
use crate::types::PublicKey;
use crate::wallet::Wallet;
use crate::wire::WORKER_PATH;
use crate::worker::{self, Hardware, WorkerConfig, WorkerStatus};

/// Memory that each worker offers, if its hardware has as much; the placement decides what it holds.
const WORKER_MEMORY: u64 = 64 << 30;

/// How a worker's link breaks when it is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// Its connections are closed by the system, as when a process is killed.
    Closed,
    /// Its connections stay open and carry nothing any more, as when a machine sleeps or loses its network.
    Dark,
}

/// What workers need to know of their network.
#[derive(Clone)]
pub(super) struct Ways {
    /// Where the gateway listens.
    pub gateway: SocketAddr,
    /// The name in its certificate.
    pub host: String,
    /// Who signed it.
    pub ca: PathBuf,
    /// Whose hubs are trusted.
    pub operator: PublicKey,
    /// Delay on the line, each way.
    pub one_way: Duration,
    /// What the line carries each way, if that is limited.
    pub bits_per_s: Option<u64>,
    /// Whether there is a line between worker and gateway that can be cut.
    pub has_line: bool,
}

/// A worker's place in the network, whether it runs or not.
pub(super) struct Place {
    pub address: PublicKey,
    wallet: Arc<Wallet>,
    home: PathBuf,
    hardware: Hardware,
    ways: Ways,
    /// The newest one that ran here.
    pub status: watch::Receiver<WorkerStatus>,
    running: Option<Running>,
    /// A line that went dark, held open until another worker runs here.
    dark: Option<delay::Line>,
}

struct Running {
    stop: ShutdownTrigger,
    task: JoinHandle<Result<(), worker::WorkerError>>,
    line: Option<delay::Line>,
}

impl Place {
    /// A place with a new wallet, where nobody runs yet.
    pub fn new(home: PathBuf, hardware: Hardware, ways: Ways) -> Result<Self, DemoError> {
        let wallet = Arc::new(Wallet::generate().map_err(DemoError::Random)?);
        let status = watch::channel(WorkerStatus::default()).1;
        Ok(Self { address: wallet.address(), wallet, home, hardware, ways, status, running: None, dark: None })
    }

    /// Starts the worker, which must not run; a line that went dark closes once the new one is there.
    pub async fn start(&mut self) -> Result<(), DemoError> {
        let Ways { gateway, host, ca, operator, one_way, bits_per_s, has_line } = self.ways.clone();
        let (port, line) = if has_line {
            let near = TcpListener::bind("127.0.0.1:0").await?;
            (near.local_addr()?.port(), Some(delay::Line::start(near, gateway, one_way, bits_per_s)))
        } else {
            (gateway.port(), None)
        };
        let gateways = vec![format!("wss://{host}:{port}{WORKER_PATH}")];
        let config = WorkerConfig {
            outbound: Outbound { proxy: ProxyChoice::Direct, extra_ca: vec![ca], ..Outbound::default() },
            ..WorkerConfig::new(gateways, vec![operator], self.home.clone(), WORKER_MEMORY)
        };
        let (sender, status) = watch::channel(WorkerStatus::default());
        let (stop, shutdown) = shutdown::channel();
        let (wallet, hardware) = (Arc::clone(&self.wallet), self.hardware.clone().fixed());
        let task = tokio::spawn(worker::run(config, wallet, hardware, sender, shutdown));
        self.status = status;
        self.running = Some(Running { stop, task, line });
        self.dark = None;
        Ok(())
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Ends the worker at once, without a word of the protocol.
    pub fn kill(&mut self, death: Death) {
        let Some(Running { task, line, .. }) = self.running.take() else { return };
        match (death, line) {
            (Death::Dark, Some(line)) => {
                line.darken();
                self.dark = Some(line);
            }
            (_, line) => drop(line),
        }
        task.abort();
    }

    /// Tells the worker to stop.
    pub fn stop(&self) {
        if let Some(running) = &self.running {
            running.stop.fire();
        }
    }

    /// Waits until it has stopped, for `patience` at most.
    pub async fn stopped(self, patience: Duration) {
        if let Some(running) = self.running {
            let _ = tokio::time::timeout(patience, running.task).await;
        }
    }
}
