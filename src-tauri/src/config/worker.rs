//! What a worker is told.

use std::path::PathBuf;

use super::{CACHE_DIR, ConfigError, File, bytes, experts, list, state};
use crate::cli::{Device, GpuFlags, RoleFlags};
use crate::model::BlockType;
use crate::net::proxy::ProxyChoice;
use crate::types::PublicKey;

/// `--headless worker`.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Gateways, tried in order; none = those of the join code.
    pub gateways: Vec<String>,
    /// Operators whose hubs are trusted; none = the one of the join code.
    pub operators: Vec<PublicKey>,
    /// Join code, or the file with it.
    pub join: Option<String>,
    /// Additional certificate authority.
    pub ca: Option<PathBuf>,
    /// Proxy towards the gateways.
    pub proxy: ProxyChoice,
    /// Wallet key, worker id, receipts.
    pub state: PathBuf,
    /// Bytes for experts; when absent, what the hardware offers.
    pub memory_bytes: Option<u64>,
    /// Local model whose experts need not be fetched.
    pub weights: Option<PathBuf>,
    /// Where fetched experts are kept.
    pub cache: PathBuf,
    /// Most bytes of it, if said; 0 = nothing is kept.
    pub cache_bytes: Option<u64>,
    /// Type that its routed experts are quantised to in memory.
    pub experts: Option<BlockType>,
    /// What computes.
    pub device: Device,
    /// Which GPU.
    pub gpu: GpuFlags,
}

impl Worker {
    /// The worker's configuration.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    pub fn new(flags: &RoleFlags, file: File) -> Result<Self, ConfigError> {
        let file = file.worker;
        let gateways = list(&flags.gateways, file.gateways);
        let operators = list(&flags.operators, file.operators);
        let join = flags.join.clone().or(file.join);
        if !gateways.is_empty() && operators.is_empty() && join.is_none() {
            let why = "the key that the operator's hub prints at its start; work is taken from no one else";
            return Err(ConfigError::Missing { role: "worker", flag: "--operator", why });
        }
        let state = state(flags, file.state, "worker");
        Ok(Self {
            gateways,
            operators,
            join,
            ca: flags.ca.clone().or(file.ca),
            proxy: flags.proxy.clone().or(file.proxy).unwrap_or_default(),
            cache: flags.holding.cache.clone().or(file.cache).unwrap_or_else(|| state.join(CACHE_DIR)),
            cache_bytes: bytes("--cache-size", flags.holding.cache_size.as_ref(), file.cache_size)?,
            state,
            memory_bytes: bytes("--memory", flags.memory.as_ref(), file.memory)?,
            weights: flags.holding.weights.clone().or(flags.model.clone()).or(file.weights).or(file.model),
            experts: experts(flags, file.experts)?,
            device: flags.device.or(file.device).unwrap_or(Device::Auto),
            gpu: GpuFlags {
                name: flags.gpu.name.clone().or(file.gpu),
                allow_software: flags.gpu.allow_software || file.allow_software.unwrap_or(false),
            },
        })
    }
}
