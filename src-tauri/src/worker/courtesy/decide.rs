//! Whether a worker stands by: a pure function of its owner's rules and what the machine is doing.
//!
//! What the machine does not tell is taken for the common case: mains, no meter, nobody at it, nothing on the whole
//! screen. The first reason in a fixed order is named, the one that lasts longest first.

use jiff::civil::{DateTime, Time};
use jiff::{ToSpan, ZonedDateTime};

use super::{Hold, Hours, Reason, Rules};

/// What the machine is doing; `None` where it does not say.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Local time.
    pub now: ZonedDateTime,
    /// Whether it runs on a battery.
    pub on_battery: Option<bool>,
    /// Whether its connection is metered.
    pub metered: Option<bool>,
    /// Whether nobody is at it.
    pub idle: Option<bool>,
    /// Names of its programs.
    pub programs: Vec<String>,
    /// Whether a program fills the screen.
    pub fullscreen: Option<bool>,
}

#[cfg(test)]
impl Facts {
    /// A machine that says nothing but the time.
    fn silent(now: ZonedDateTime) -> Self {
        Self { now, on_battery: None, metered: None, idle: None, programs: Vec::new(), fullscreen: None }
    }
}

/// Why to stand by, if so.
#[must_use]
pub fn decide(rules: &Rules, facts: &Facts) -> Option<Hold> {
    let hold = |reason, detail: &str| Some(Hold { reason, detail: detail.to_owned(), until_unix_s: None });
    if rules.duty_percent == 0 {
        return hold(Reason::Duty, "");
    }
    if !rules.schedule.is_empty() && !rules.schedule.iter().any(|hours| is_within(hours, &facts.now)) {
        let opens = rules.schedule.iter().filter_map(|hours| opens(hours, &facts.now)).min();
        return Some(Hold { reason: Reason::Schedule, detail: String::new(), until_unix_s: opens });
    }
    if !rules.on_battery && facts.on_battery == Some(true) {
        return hold(Reason::Battery, "");
    }
    if !rules.on_metered && facts.metered == Some(true) {
        return hold(Reason::Metered, "");
    }
    let wanted = |program: &&String| rules.pause_for_apps.iter().any(|app| is_named(program, app));
    if let Some(program) = facts.programs.iter().find(wanted) {
        return hold(Reason::ExclusiveApp, program);
    }
    if rules.pause_for_fullscreen && facts.fullscreen == Some(true) {
        return hold(Reason::ExclusiveApp, FULLSCREEN);
    }
    if rules.only_when_idle && facts.idle == Some(false) {
        return hold(Reason::UserActive, "");
    }
    None
}

/// The detail of a program that fills the screen, whose name nobody asked for.
pub const FULLSCREEN: &str = "fullscreen";

/// Names are as their owner types them: any case, with or without `.exe`.
fn is_named(program: &str, app: &str) -> bool {
    let bare = |name: &str| {
        let name = name.trim().to_lowercase();
        name.strip_suffix(".exe").map_or(name.clone(), str::to_owned)
    };
    let app = bare(app);
    !app.is_empty() && bare(program) == app
}

/// The bit of a day of the week.
fn bit(day: jiff::civil::Weekday) -> u8 {
    1 << day.to_monday_zero_offset()
}

fn minute_of(now: &ZonedDateTime) -> u16 {
    now.hour().unsigned_abs() as u16 * 60 + now.minute().unsigned_abs() as u16
}

/// Whether `now` is in these hours, by the clock on the wall: what a change of the clock skips is not there, what it
/// repeats counts twice.
fn is_within(hours: &Hours, now: &ZonedDateTime) -> bool {
    let (minute, today) = (minute_of(now), bit(now.weekday()));
    let yesterday = bit(now.weekday().previous());
    if hours.from_min < hours.to_min {
        return hours.days & today != 0 && (hours.from_min..hours.to_min).contains(&minute);
    }
    (hours.days & today != 0 && minute >= hours.from_min) || (hours.days & yesterday != 0 && minute < hours.to_min)
}

/// When these hours begin next after `now`, in seconds since 1970; within eight days, or never.
fn opens(hours: &Hours, now: &ZonedDateTime) -> Option<u64> {
    let time = Time::new((hours.from_min / 60) as i8, (hours.from_min % 60) as i8, 0, 0).ok()?;
    let starts = (0..=8).filter_map(|day| {
        let date = now.date().checked_add(day.days()).ok()?;
        let starts_then = hours.days & bit(date.weekday()) != 0;
        // Where the clock skips the minute, the one after the gap.
        let start = DateTime::from_parts(date, time).to_zoned_datetime(now.time_zone().clone()).ok()?;
        (starts_then && start > *now).then_some(start)
    });
    starts.min().and_then(|start| u64::try_from(start.timestamp().as_second()).ok())
}

#[cfg(test)]
mod tests;
