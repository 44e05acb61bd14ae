//! What the owner of the machine has chosen, as windows show and change it.

use std::collections::BTreeMap;

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};

use super::kept::Kept;
use crate::net::https;
pub use crate::types::SettingsError;
use crate::types::{ENTRIES_MAX, ENTRY_CHARS_MAX, Rules};

/// The file.
pub(super) const SETTINGS: Kept = Kept { name: "settings.json", what: "settings" };
/// Least disk for slices, and least memory: a few experts.
const CAP_BYTES_MIN: u64 = 64 << 20;

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
#[serde(default)]
pub struct Settings {
    /// Gateways to dial in place of those of the join code; none = those.
    pub gateways: Vec<String>,
    /// Most bytes of the device's memory; `null` = what it has room for.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub vram_cap_bytes: Option<u64>,
    /// Most bytes of the disk that slices may take.
    #[cfg_attr(test, ts(type = "number"))]
    pub disk_cap_bytes: u64,
    /// When to work, and how gently.
    #[serde(flatten)]
    #[cfg_attr(test, ts(flatten))]
    pub rules: Rules,
    /// Whether the desktop may be told of things.
    pub notifications: bool,
    /// The window's language.
    pub language: Language,
    /// Nothing: a name that nobody knows was typed for another.
    #[serde(flatten, skip_serializing, deserialize_with = "nothing_else")]
    #[cfg_attr(test, ts(skip))]
    pub rest: (),
}

/// Refuses every name that is left.
fn nothing_else<'de, D: Deserializer<'de>>(rest: D) -> Result<(), D::Error> {
    let rest = BTreeMap::<String, IgnoredAny>::deserialize(rest)?;
    rest.into_keys().next().map_or(Ok(()), |name| Err(D::Error::custom(format_args!("unknown setting {name:?}"))))
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gateways: Vec::new(),
            vram_cap_bytes: None,
            disk_cap_bytes: DISK_CAP_BYTES,
            rules: Rules::default(),
            notifications: true,
            language: Language::Auto,
            rest: (),
        }
    }
}

impl Settings {
    /// Whether they make sense.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.rules.check()?;
        let count = self.gateways.len();
        SettingsError::unless(count <= ENTRIES_MAX, "lists", "at most 64 entries", &count)?;
        for url in &self.gateways {
            let chars = url.chars().count();
            SettingsError::unless(chars <= ENTRY_CHARS_MAX, "an entry", "at most 256 characters", &chars)?;
            SettingsError::unless(https::public_of(url).is_some(), "gateways", "wss://host[:port]", url)?;
        }
        for cap in [Some(self.disk_cap_bytes), self.vram_cap_bytes].into_iter().flatten() {
            SettingsError::unless(cap >= CAP_BYTES_MIN, "caps", "at least 64 MiB", &cap)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Hours;

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().err().map(|error| error.what)
        };
        assert_eq!(refused(|_| {}), None);
        assert_eq!(refused(|s| s.rules.duty_percent = 0), None);
        assert_eq!(refused(|s| s.rules.duty_percent = 4), Some("duty cycle"));
        assert_eq!(refused(|s| s.rules.duty_percent = 101), Some("duty cycle"));
        assert_eq!(refused(|s| s.gateways = vec!["http://x".into()]), Some("gateways"));
        assert_eq!(refused(|s| s.gateways = vec!["wss://x".into()]), None);
        assert_eq!(refused(|s| s.vram_cap_bytes = Some(1)), Some("caps"));
        assert_eq!(refused(|s| s.disk_cap_bytes = 0), Some("caps"));
        let hours = |days, from_min, to_min| Hours { days, from_min, to_min };
        assert!(hours(127, 0, 1440).is_sound() && !hours(128, 0, 1).is_sound() && !hours(1, 1440, 0).is_sound());
        assert_eq!(
            refused(|s| s.rules.schedule = vec![Hours { days: 1, from_min: 0, to_min: 1441 }]),
            Some("schedule")
        );
        assert_eq!(refused(|s| s.rules.pause_for_apps = vec![String::new(); 65]), Some("lists"));
        assert_eq!(refused(|s| s.rules.pause_for_apps = vec!["é".repeat(257)]), Some("an entry"));
    }
}
