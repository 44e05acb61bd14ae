//! What a backbone is told.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::{BACKBONE_API, BACKBONE_LISTEN, ConfigError, File, Peers, Trust, bytes, experts, peers, state};
use crate::cli::{ExpertsLocal, RemoteLayers, RoleFlags, Speculate};
use crate::model::BlockType;

/// How the backbone's API serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// For clients.
    pub listen: SocketAddr,
    /// PEM files of the certificate chain and its private key; plain HTTP without.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether other machines may be served without TLS or keys.
    pub allow_insecure: bool,
    /// Bytes for the states of running generations, if said.
    pub state_bytes: Option<u64>,
    /// Who drafts tokens ahead.
    pub speculate: Speculate,
    /// Most new tokens of one request, if said.
    pub new_tokens_max: Option<NonZeroUsize>,
}

/// `--headless backbone`.
#[derive(Debug, Clone, PartialEq)]
pub struct Backbone {
    /// Model; the embedded one when absent.
    pub model: Option<PathBuf>,
    /// Type that its routed experts are quantised to in memory.
    pub experts: Option<BlockType>,
    /// For hubs.
    pub listen: SocketAddr,
    /// For clients.
    pub api: Api,
    /// Keys of the API and their usage.
    pub state: PathBuf,
    /// Layers that workers may hold.
    pub remote_layers: RemoteLayers,
    /// Bytes for the experts that stay, if said.
    pub experts_memory: Option<u64>,
    /// Bytes for experts of these layers, if said.
    pub expert_cache_bytes: Option<u64>,
    /// Whether those that no worker brings are computed here.
    pub experts_local: bool,
    /// Whom it trusts, and how far.
    pub trust: Trust,
    /// Whether a public address is meant.
    pub allow_public: bool,
    /// Keys.
    pub peers: Peers,
}

impl Backbone {
    /// The backbone's configuration.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    pub fn new(flags: &RoleFlags, file: File) -> Result<Self, ConfigError> {
        let (file, audit) = (file.backbone, file.audit);
        Ok(Self {
            model: flags.model.clone().or(file.model),
            experts: experts(flags, file.experts)?,
            listen: flags.listen.or(file.listen).unwrap_or(BACKBONE_LISTEN),
            api: Api {
                listen: flags.api.listen.or(file.api).unwrap_or(BACKBONE_API),
                tls: flags.api.cert.clone().zip(flags.api.key.clone()).or(file.api_tls_cert.zip(file.api_tls_key)),
                allow_insecure: flags.api.allow_insecure || file.allow_insecure_api.unwrap_or(false),
                state_bytes: bytes("--state-memory", flags.api.state_memory.as_ref(), file.state_memory)?,
                speculate: flags.api.speculate.or(file.speculate).unwrap_or_default(),
                new_tokens_max: flags.api.new_tokens_max.or(file.new_tokens_max),
            },
            state: state(flags, file.state, "backbone"),
            remote_layers: flags.holding.remote_layers.clone().or(file.remote_layers).unwrap_or_default(),
            experts_memory: bytes("--experts-memory", flags.holding.experts_memory.as_ref(), file.experts_memory)?,
            expert_cache_bytes: bytes("--expert-cache", flags.holding.expert_cache.as_ref(), file.expert_cache)?,
            experts_local: flags.holding.experts_local.or(file.experts_local) != Some(ExpertsLocal::None),
            trust: Trust::new(&flags.trust, audit, file.trusted_layers, file.trusted_wallets),
            allow_public: flags.allow_public || file.allow_public.unwrap_or(false),
            peers: peers(flags, file.peer_key, file.peers)?,
        })
    }
}
