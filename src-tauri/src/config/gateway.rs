//! What a gateway is told.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::{ConfigError, File, GATEWAY_LISTEN, HUB_LISTEN, Peers, ledger_url, list, parse_duration, peers, state};
use crate::cli::RoleFlags;
use crate::types::PublicKey;

/// How the gateway proves its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tls {
    /// From PEM files.
    Files {
        /// Certificate chain.
        cert: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// A throw-away authority kept in the state directory.
    Trial,
}

/// `--headless gateway`.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// For workers and the public.
    pub listen: SocketAddr,
    /// Hubs that are dialled.
    pub hubs: Vec<SocketAddr>,
    /// Host names that workers may have dialled and that a trial certificate is for; empty = any.
    pub public_hosts: Vec<String>,
    /// Most connections of one address, if said.
    pub connections_per_address: Option<NonZeroUsize>,
    /// For the operator.
    pub admin: Option<SocketAddr>,
    /// Whether that may be reached from other machines.
    pub allow_public: bool,
    /// Certificates.
    pub tls: Tls,
    /// Trial certificates and accounts.
    pub state: PathBuf,
    /// The operator whose claims are taken, and how old credit must be by then.
    pub claims: Option<(PublicKey, Duration)>,
    /// Accounts.
    pub ledger: String,
    /// Keys.
    pub peers: Peers,
}

/// Credit is claimed after this long unless told otherwise: as long as audits may still void it.
const CLAIM_AFTER: Duration = Duration::from_secs(24 * 3600);

fn claims(
    flags: &RoleFlags,
    operator: Option<PublicKey>,
    after: Option<String>,
) -> Result<Option<(PublicKey, Duration)>, ConfigError> {
    let operator = match flags.network.operators.as_slice() {
        [] => operator,
        [one] => Some(*one),
        _ => {
            let got = flags.network.operators.len().to_string();
            return Err(ConfigError::Value { what: "--operator", expected: "one operator of a gateway", got });
        }
    };
    let after = flags.claim_after.clone().or(after);
    let after = after.map_or(Ok(CLAIM_AFTER), |text| parse_duration("--claim-after", &text))?;
    Ok(operator.map(|operator| (operator, after)))
}

impl Gateway {
    /// The gateway's configuration.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    pub fn new(flags: &RoleFlags, file: File) -> Result<Self, ConfigError> {
        let file = file.gateway;
        let state = state(flags, file.state, "gateway");
        let files = flags.tls_cert.clone().zip(flags.tls_key.clone()).or(file.tls_cert.zip(file.tls_key));
        let tls = match files {
            Some((cert, key)) => Tls::Files { cert, key },
            None if flags.tls_trial || file.tls_trial.unwrap_or(false) => Tls::Trial,
            None => {
                let why = "workers must be able to check whom they dial; for a trial on one network use --tls-trial";
                return Err(ConfigError::Missing { role: "gateway", flag: "--tls-cert and --tls-key", why });
            }
        };
        let mut hubs = list(&flags.hubs, file.hubs);
        let peers = peers(flags, file.peer_key, file.peers)?;
        // Where keys are pinned, a gateway without hubs of its own waits for those that dial in.
        if hubs.is_empty() && peers.trusted.is_empty() {
            hubs.push(HUB_LISTEN);
        }
        Ok(Self {
            listen: flags.listen.or(file.listen).unwrap_or(GATEWAY_LISTEN),
            hubs,
            public_hosts: list(&flags.public_hosts, file.public_hosts),
            connections_per_address: flags.connections_per_address.or(file.connections_per_address),
            admin: flags.admin.or(file.admin),
            allow_public: flags.allow_public || file.allow_public.unwrap_or(false),
            tls,
            claims: claims(flags, file.operator, file.claim_after)?,
            ledger: ledger_url(flags, file.ledger, &state),
            state,
            peers,
        })
    }
}
