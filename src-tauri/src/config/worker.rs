//! What a worker is told.

use std::path::PathBuf;

use super::site::Typed;
use super::{ConfigError, File, Site, bytes, experts};
use crate::cli::{Device, RoleFlags};
use crate::model::BlockType;

/// `--headless worker`.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Its network, its files, its owner's wishes.
    pub site: Site,
    /// Bytes for experts; when absent, what the hardware offers.
    pub memory_bytes: Option<u64>,
    /// Local model whose experts need not be fetched.
    pub weights: Option<PathBuf>,
    /// Most bytes of fetched experts that are kept, if said; 0 = nothing is kept.
    pub cache_bytes: Option<u64>,
    /// Type that its routed experts are quantised to in memory.
    pub experts: Option<BlockType>,
    /// What computes.
    pub device: Device,
}

impl Worker {
    /// The worker's configuration.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    pub fn new(flags: &RoleFlags, file: File) -> Result<Self, ConfigError> {
        let mut file = file.worker;
        let typed = Typed {
            network: &flags.network,
            courtesy: &flags.courtesy,
            state: flags.state.as_ref(),
            cache: flags.holding.cache.as_ref(),
            gpu: &flags.gpu,
        };
        let site = Site::new(&typed, &mut file)?;
        if !site.gateways.is_empty() && site.operators.is_empty() && site.join.is_none() {
            let why = "the key that the operator's hub prints at its start; work is taken from no one else";
            return Err(ConfigError::Missing { role: "worker", flag: "--operator", why });
        }
        Ok(Self {
            site,
            cache_bytes: bytes("--cache-size", flags.holding.cache_size.as_ref(), file.cache_size)?,
            memory_bytes: bytes("--memory", flags.memory.as_ref(), file.memory)?,
            weights: flags.holding.weights.clone().or(flags.model.clone()).or(file.weights).or(file.model),
            experts: experts(flags, file.experts)?,
            device: flags.device.or(file.device).unwrap_or(Device::Auto),
        })
    }
}
