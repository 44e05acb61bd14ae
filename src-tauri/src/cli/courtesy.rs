//! What was typed about when a worker stands by, and how gently it works.

use clap::Args;

use crate::types::Hours;

/// Wishes of the machine's owner.
#[derive(Debug, Default, Args)]
pub struct CourtesyFlags {
    /// worker: part of the time that it computes, 5 to 100 percent, or 0 to stand by.
    #[arg(long, value_name = "PERCENT")]
    pub duty_percent: Option<u8>,
    /// worker: hours in which it works, by local time, e.g. mon-fri,sun@22:00-07:30 (repeatable); always when absent.
    #[arg(long, value_name = "DAYS@FROM-TO")]
    pub schedule: Vec<Hours>,
    /// worker: work on battery, too.
    #[arg(long)]
    pub on_battery: bool,
    /// worker: work on a metered connection, too.
    #[arg(long)]
    pub on_metered: bool,
    /// worker: work only while nobody is at the machine.
    #[arg(long)]
    pub only_when_idle: bool,
    /// worker: stand by while this program runs (repeatable).
    #[arg(long = "pause-for-app", value_name = "NAME")]
    pub pause_for_apps: Vec<String>,
    /// worker: stand by while a program fills the screen.
    #[arg(long)]
    pub pause_for_fullscreen: bool,
}
