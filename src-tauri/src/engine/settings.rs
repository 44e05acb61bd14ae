//! What the owner of the machine has chosen, as windows show and change it.

use serde::{Deserialize, Serialize};

use crate::worker::courtesy::Hours;

/// Disk that slices may take unless told otherwise.
pub const DISK_CAP_BYTES: u64 = 50 << 30;

/// The languages of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// The desktop's.
    #[default]
    Auto,
    /// English.
    En,
    /// Spanish.
    Es,
    /// French.
    Fr,
    /// Japanese.
    Ja,
    /// Korean.
    Ko,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Gateways to dial in place of those of the join code; none = those.
    pub gateways: Vec<String>,
    /// Most bytes of the device's memory; `null` = what it has room for.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub vram_cap_bytes: Option<u64>,
    /// Most bytes of the disk that slices may take.
    #[cfg_attr(test, ts(type = "number"))]
    pub disk_cap_bytes: u64,
    /// Part of the time that may be computed, 0–100.
    pub duty_percent: u8,
    /// Hours in which work is welcome; none = always.
    pub schedule: Vec<Hours>,
    /// Whether to work on battery.
    pub on_battery: bool,
    /// Whether to work on a metered connection.
    pub on_metered: bool,
    /// Whether to work only while nobody is at the machine.
    pub only_when_idle: bool,
    /// Names of programs that want the machine for themselves.
    pub pause_for_apps: Vec<String>,
    /// Whether a program that fills the screen is one of them.
    pub pause_for_fullscreen: bool,
    /// Whether the desktop may be told of things.
    pub notifications: bool,
    /// The window's language.
    pub language: Language,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gateways: Vec::new(),
            vram_cap_bytes: None,
            disk_cap_bytes: DISK_CAP_BYTES,
            duty_percent: 100,
            schedule: Vec::new(),
            on_battery: false,
            on_metered: false,
            only_when_idle: false,
            pause_for_apps: Vec::new(),
            pause_for_fullscreen: false,
            notifications: true,
            language: Language::Auto,
        }
    }
}
