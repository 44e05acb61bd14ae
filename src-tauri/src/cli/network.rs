//! What was typed about the network that a worker works for: the same for the worker and for whoever examines its way.

use std::path::PathBuf;

use clap::Args;

use crate::net::proxy::ProxyChoice;
use crate::types::PublicKey;

/// Which network, and how its gateways are reached.
#[derive(Debug, Default, Args)]
pub struct NetworkFlags {
    /// worker: gateway to dial, e.g. wss://gateway.example (repeatable, tried in order).
    #[arg(long = "gateway", value_name = "URL", env = "KVASIR_GATEWAY")]
    pub gateways: Vec<String>,
    /// worker: public key of an operator whose hubs are trusted (repeatable); gateway: the operator whose claims it takes.
    #[arg(long = "operator", value_name = "KEY", env = "KVASIR_OPERATOR")]
    pub operators: Vec<PublicKey>,
    /// worker: join code, or file with one: gateways, operator and certificate authority of a network in one text. The
    /// doctor reads it and joins nothing.
    #[arg(long, env = "KVASIR_JOIN")]
    pub join: Option<String>,
    /// worker, app: PEM file with an additional certificate authority.
    #[arg(long)]
    pub ca: Option<PathBuf>,
    /// worker, app, hub: proxy towards gateways, http://[user:password@]host:port, or none; without it as HTTPS_PROXY,
    /// ALL_PROXY and NO_PROXY say, else the desktop's settings.
    #[arg(long, value_name = "URL")]
    pub proxy: Option<ProxyChoice>,
}
