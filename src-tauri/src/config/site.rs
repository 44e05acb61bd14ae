//! What a worker and the doctor who examines it have in common: which network, where things are kept, what computes, and
//! what the machine's owner wishes.

use std::path::PathBuf;

use super::file::WorkerTable;
use super::{CACHE_DIR, ConfigError, STATE_DIR, list};
use crate::cli::{CourtesyFlags, GpuFlags, NetworkFlags};
use crate::net::proxy::ProxyChoice;
use crate::types::{Hours, PublicKey, Rules};

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Gateways, tried in order; none = those of the join code or of the joined network.
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
    /// Where fetched experts are kept.
    pub cache: PathBuf,
    /// Which GPU.
    pub gpu: GpuFlags,
    /// When to work, and how gently.
    pub rules: Rules,
}

/// What was typed of it.
pub(super) struct Typed<'a> {
    pub network: &'a NetworkFlags,
    pub courtesy: &'a CourtesyFlags,
    pub state: Option<&'a PathBuf>,
    pub cache: Option<&'a PathBuf>,
    pub gpu: &'a GpuFlags,
}

impl Site {
    /// What was typed, and the file's word where nothing was.
    pub(super) fn new(typed: &Typed<'_>, file: &mut WorkerTable) -> Result<Self, ConfigError> {
        let Typed { network, courtesy, state, cache, gpu } = typed;
        let state = state.cloned().or(file.state.take()).unwrap_or_else(|| PathBuf::from(STATE_DIR).join("worker"));
        Ok(Self {
            gateways: list(&network.gateways, file.gateways.take()),
            operators: list(&network.operators, file.operators.take()),
            join: network.join.clone().or(file.join.take()),
            ca: network.ca.clone().or(file.ca.take()),
            proxy: network.proxy.clone().or(file.proxy.take()).unwrap_or_default(),
            cache: cache.cloned().or(file.cache.take()).unwrap_or_else(|| state.join(CACHE_DIR)),
            state,
            gpu: GpuFlags {
                name: gpu.name.clone().or(file.gpu.take()),
                allow_software: gpu.allow_software || file.allow_software.unwrap_or(false),
            },
            rules: rules(courtesy, file)?,
        })
    }
}

fn rules(typed: &CourtesyFlags, file: &mut WorkerTable) -> Result<Rules, ConfigError> {
    let usual = Rules::default();
    let hours = |text: String| {
        let expected = "days and hours such as mon-fri@22:00-07:30";
        text.parse::<Hours>().map_err(|_| ConfigError::Value { what: "schedule", expected, got: text })
    };
    let schedule = file.schedule.take().map(|texts| texts.into_iter().map(hours).collect()).transpose()?;
    let rules = Rules {
        duty_percent: typed.duty_percent.or(file.duty_percent).unwrap_or(usual.duty_percent),
        schedule: list(&typed.schedule, schedule),
        on_battery: typed.on_battery || file.on_battery.unwrap_or(usual.on_battery),
        on_metered: typed.on_metered || file.on_metered.unwrap_or(usual.on_metered),
        only_when_idle: typed.only_when_idle || file.only_when_idle.unwrap_or(usual.only_when_idle),
        pause_for_apps: list(&typed.pause_for_apps, file.pause_for_apps.take()),
        pause_for_fullscreen: typed.pause_for_fullscreen
            || file.pause_for_fullscreen.unwrap_or(usual.pause_for_fullscreen),
    };
    let refused = rules.check().map_err(|error| {
        let crate::types::SettingsError { what, expected, got } = error;
        ConfigError::Value { what, expected, got }
    });
    refused.map(|()| rules)
}
