//! What `kvasir doctor` is told: a worker's configuration, of which nothing is required.

use std::path::PathBuf;

use super::{CACHE_DIR, ConfigError, File, STATE_DIR, list};
use crate::cli::{DoctorArgs, GpuFlags};
use crate::net::proxy::ProxyChoice;
use crate::types::PublicKey;

/// `kvasir doctor`.
#[derive(Debug, Clone, PartialEq)]
pub struct Doctor {
    /// Gateways to reach; none = those of the join code or of the joined network.
    pub gateways: Vec<String>,
    /// Operators whose hubs are trusted.
    pub operators: Vec<PublicKey>,
    /// Join code, or the file with it.
    pub join: Option<String>,
    /// Additional certificate authority.
    pub ca: Option<PathBuf>,
    /// Proxy towards gateways.
    pub proxy: ProxyChoice,
    /// The worker's directory.
    pub state: PathBuf,
    /// Where fetched experts are kept.
    pub cache: PathBuf,
    /// Which GPU.
    pub gpu: GpuFlags,
}

impl Doctor {
    /// What to examine.
    ///
    /// # Errors
    /// A file that cannot be read or has keys that do not belong there.
    pub fn new(args: &DoctorArgs) -> Result<Self, ConfigError> {
        let file = File::read(args.config.as_deref())?.worker;
        let state = args.state.clone().or(file.state);
        let state = state.unwrap_or_else(|| PathBuf::from(STATE_DIR).join("worker"));
        Ok(Self {
            gateways: list(&args.gateways, file.gateways),
            operators: list(&args.operators, file.operators),
            join: args.join.clone().or(file.join),
            ca: args.ca.clone().or(file.ca),
            proxy: args.proxy.clone().or(file.proxy).unwrap_or_default(),
            cache: file.cache.unwrap_or_else(|| state.join(CACHE_DIR)),
            state,
            gpu: GpuFlags {
                name: args.gpu.name.clone().or(file.gpu),
                allow_software: args.gpu.allow_software || file.allow_software.unwrap_or(false),
            },
        })
    }
}
