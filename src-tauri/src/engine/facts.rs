//! Smaller parts of the status, beside those that every window shows: pauses, devices, downloads, legs, and one reason.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::status::WalletState;
use crate::worker::courtesy;

/// How long a pause lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum PauseKind {
    /// One hour, restarts included.
    Hour,
    /// Until its owner resumes.
    UntilResumed,
}

/// A pause that its owner asked for; it outlives restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Pause {
    /// Which kind.
    pub kind: PauseKind,
    /// When it ends by itself, in seconds since 1970.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub until_unix_s: Option<u64>,
}

/// Courtesy holds work back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct StandingBy {
    /// Why.
    pub reason: courtesy::Reason,
    /// Whose fault it is, such as a program's name; may be empty.
    pub detail: String,
    /// When it ends, where that is known.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub until_unix_s: Option<u64>,
}

/// Why nothing is earned right now, or that something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum WhyCode {
    /// Work is done and paid.
    Earning,
    /// The wallet cannot be used.
    NoWallet,
    /// No network was joined.
    NoNetwork,
    /// Nothing here computes, or everything that does is switched off.
    NoDevice,
    /// Contribute was not pressed, or a pause was.
    #[default]
    Paused,
    /// Courtesy holds work back.
    StandingBy,
    /// The link is on its way, and nothing keeps it so far.
    Connecting,
    /// There is no link.
    Offline,
    /// The network has not given a slice yet.
    NoLease,
    /// Experts are on their way.
    Downloading,
    /// What was answered waits to be checked and credited.
    BeingChecked,
    /// A slice is held, and nobody asks for it.
    NoWork,
    /// The network serves newer programs only.
    UpdateRequired,
    /// Something else is wrong.
    Problem,
}

/// One reason, always.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Why {
    /// Which.
    pub code: WhyCode,
    /// Values for its words.
    pub args: BTreeMap<String, String>,
}

/// What kind of hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A graphics card.
    Gpu,
    /// The processor.
    Cpu,
}

/// Something that could compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Device {
    /// The same for the same hardware, whatever is plugged in beside it.
    pub id: String,
    /// For people.
    pub name: String,
    /// GPU or CPU.
    pub kind: DeviceKind,
    /// Whether its owner lets it compute.
    pub on: bool,
    /// Whether it computes, or would.
    pub used: bool,
    /// Why it is used or not; `null` when there is nothing to say.
    pub why: Option<String>,
    /// Its memory; 0 when nobody tells.
    #[cfg_attr(test, ts(type = "number"))]
    pub memory_bytes: u64,
}

/// Experts on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Download {
    /// Bytes of the slice.
    #[cfg_attr(test, ts(type = "number"))]
    pub needed_bytes: u64,
    /// Bytes of it that are here and verified.
    #[cfg_attr(test, ts(type = "number"))]
    pub done_bytes: u64,
    /// Free bytes of the disk.
    #[cfg_attr(test, ts(type = "number"))]
    pub free_disk_bytes: u64,
    /// Most bytes that slices may take of the disk.
    #[cfg_attr(test, ts(type = "number"))]
    pub cap_bytes: u64,
    /// Measured of late; 0 before anything came.
    #[cfg_attr(test, ts(type = "number"))]
    pub bytes_per_s: u64,
    /// Seconds that the rest takes at this speed; `null` before it is known.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub eta_s: Option<u64>,
}

/// A large download that waits for a yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ConfirmDownload {
    /// Bytes that would be fetched.
    #[cfg_attr(test, ts(type = "number"))]
    pub needed_bytes: u64,
    /// Free bytes of the disk.
    #[cfg_attr(test, ts(type = "number"))]
    pub free_disk_bytes: u64,
    /// Most bytes that slices may take of the disk.
    #[cfg_attr(test, ts(type = "number"))]
    pub cap_bytes: u64,
    /// Seconds that it would take, where an earlier download tells.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub eta_s: Option<u64>,
}

/// One leg of the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Leg {
    /// Not wanted now.
    #[default]
    Off,
    /// It carries.
    Up,
    /// It does not.
    Down,
    /// Being tried.
    Connecting,
}

/// The way to the network, leg by leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Legs {
    /// Round trip to the gateway; `null` when it was not measured.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub gateway_rtt_ms: Option<u64>,
    /// Round trip to the hub beside the backbone; `null` when it was not measured.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub backbone_rtt_ms: Option<u64>,
    /// From here to the gateway.
    pub gateway: Leg,
    /// From the gateway to the hub.
    pub hub: Leg,
    /// From the hub to the backbone.
    pub backbone: Leg,
}

/// Where the wallet's key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Stored {
    /// The system's keyring, or an owner-only file where a server has none.
    Keyring,
    /// A file that a password opens.
    PasswordFile,
    /// Nowhere.
    #[default]
    None,
}

/// What the wallet needs from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Needs {
    /// The backup phrase, or the backup of the key: the wallet is known, its key is gone.
    Restore,
    /// The password of its file, or one to make such a file where there is no keyring.
    Password,
}

/// The wallet as windows show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct WalletStatus {
    /// Whether it can be used.
    #[serde(flatten)]
    pub state: WalletState,
    /// Whether its owner has shown to have the backup phrase.
    pub backed_up: bool,
    /// Whether it has a phrase; wallets of before phrases have only their key to back up.
    pub has_phrase: bool,
    /// Where its key is.
    pub stored: Stored,
    /// What it waits for.
    pub needs: Option<Needs>,
}

/// What one day brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct DayEarned {
    /// `2026-12-01`, UTC.
    pub day: String,
    /// Nano-KVR credited on it.
    pub nano: String,
}

/// A session's newest receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ReceiptLine {
    /// The hub's epoch.
    #[cfg_attr(test, ts(type = "number"))]
    pub epoch: u64,
    /// The session, in hex.
    pub session: String,
    /// Nano-KVR that it is worth at the newest rate; `null` before any credit has told the rate.
    pub nano: Option<String>,
    /// Work bytes that the hub signed for.
    #[cfg_attr(test, ts(type = "number"))]
    pub work_bytes: u64,
    /// Of those, voided.
    #[cfg_attr(test, ts(type = "number"))]
    pub voided_bytes: u64,
    /// When it was written, in seconds since 1970.
    #[cfg_attr(test, ts(type = "number"))]
    pub unix_s: u64,
    /// Whether it is its session's last.
    pub is_final: bool,
}
