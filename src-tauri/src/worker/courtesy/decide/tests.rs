//! Every rule against every fact, as tables.

use super::*;

fn at(text: &str) -> ZonedDateTime {
    text.parse().unwrap()
}

fn monday_noon() -> Facts {
    Facts::silent(at("2026-11-30T12:00:00[Europe/Berlin]"))
}

fn strict() -> Rules {
    Rules {
        only_when_idle: true,
        pause_for_fullscreen: true,
        pause_for_apps: vec!["Blender".into()],
        ..Rules::default()
    }
}

#[test]
fn each_fact_holds_only_where_a_rule_minds_it() {
    use Reason::{Battery, ExclusiveApp, Metered, UserActive};
    let lax = Rules { on_battery: true, on_metered: true, ..Rules::default() };
    type Change = fn(&mut Facts);
    let rows: [(Change, Option<Reason>); 12] = [
        (|_| {}, None),
        (|f| f.on_battery = Some(true), Some(Battery)),
        (|f| f.on_battery = Some(false), None),
        (|f| f.metered = Some(true), Some(Metered)),
        (|f| f.metered = Some(false), None),
        (|f| f.idle = Some(false), Some(UserActive)),
        (|f| f.idle = Some(true), None),
        (|f| f.fullscreen = Some(true), Some(ExclusiveApp)),
        (|f| f.fullscreen = Some(false), None),
        (|f| f.programs = vec!["bash".into(), "blender".into()], Some(ExclusiveApp)),
        (|f| f.programs = vec!["BLENDER.EXE".into()], Some(ExclusiveApp)),
        (|f| f.programs = vec!["blender-launcher".into(), String::new()], None),
    ];
    for (number, (change, expected)) in rows.into_iter().enumerate() {
        let mut facts = monday_noon();
        change(&mut facts);
        assert_eq!(decide(&strict(), &facts).map(|hold| hold.reason), expected, "row {number}");
        assert_eq!(decide(&lax, &facts), None, "row {number}: nobody minds");
    }
}

#[test]
fn the_reason_that_lasts_longest_is_named_and_the_program_with_it() {
    let mut facts = monday_noon();
    (facts.on_battery, facts.metered, facts.idle, facts.fullscreen) = (Some(true), Some(true), Some(false), Some(true));
    facts.programs = vec!["blender".into()];
    let never = Hours { days: 0, from_min: 0, to_min: 60 };
    let mut rules = Rules { duty_percent: 0, schedule: vec![never], ..strict() };
    let mut next = |change: fn(&mut Rules)| {
        let hold = decide(&rules, &facts);
        change(&mut rules);
        hold.map(|hold| (hold.reason, hold.detail))
    };
    let named = |reason, detail: &str| Some((reason, detail.to_owned()));
    assert_eq!(next(|r| r.duty_percent = 1), named(Reason::Duty, ""));
    assert_eq!(next(|r| r.schedule.clear()), named(Reason::Schedule, ""));
    assert_eq!(next(|r| r.on_battery = true), named(Reason::Battery, ""));
    assert_eq!(next(|r| r.on_metered = true), named(Reason::Metered, ""));
    assert_eq!(next(|r| r.pause_for_apps.clear()), named(Reason::ExclusiveApp, "blender"));
    assert_eq!(next(|r| r.pause_for_fullscreen = false), named(Reason::ExclusiveApp, FULLSCREEN));
    assert_eq!(next(|r| r.only_when_idle = false), named(Reason::UserActive, ""));
    assert_eq!(next(|_| {}), None);
}

/// Whether work is welcome at each of these times, and when it is next where it is not.
fn welcome(hours: &[Hours], now: &str) -> Result<(), Option<String>> {
    let now = at(now);
    let rules = Rules { schedule: hours.to_vec(), ..Rules::default() };
    match decide(&rules, &Facts::silent(now.clone())) {
        None => Ok(()),
        Some(hold) => Err(hold.until_unix_s.map(|unix_s| {
            let start = jiff::Timestamp::from_second(unix_s as i64).unwrap().to_zoned_datetime(now.time_zone().clone());
            start.strftime("%a %H:%M").to_string()
        })),
    }
}

fn hours(days: u8, from: (u16, u16), to: (u16, u16)) -> Hours {
    Hours { days, from_min: from.0 * 60 + from.1, to_min: to.0 * 60 + to.1 }
}

#[test]
fn hours_span_midnight_and_belong_to_the_day_on_which_they_begin() {
    const MON: u8 = 1;
    const WEEK: u8 = 31;
    // Monday is 2026-11-30.
    let nights = [hours(WEEK, (22, 0), (7, 30))];
    let berlin = |day: &str| format!("{day}[Europe/Berlin]");
    for (now, expected) in [
        ("2026-11-30T21:59:59", Err(Some("Mon 22:00".into()))),
        ("2026-11-30T22:00:00", Ok(())),
        ("2026-12-01T00:00:00", Ok(())),
        ("2026-12-01T07:29:59", Ok(())),
        ("2026-12-01T07:30:00", Err(Some("Tue 22:00".into()))),
        // Friday's night goes on into Saturday, and Saturday has none of its own.
        ("2026-12-05T07:00:00", Ok(())),
        ("2026-12-05T22:30:00", Err(Some("Mon 22:00".into()))),
        // No night began on Sunday.
        ("2026-11-30T03:00:00", Err(Some("Mon 22:00".into()))),
    ] {
        assert_eq!(welcome(&nights, &berlin(now)), expected, "{now}");
    }
    let all_monday = [hours(MON, (0, 0), (24, 0))];
    assert_eq!(welcome(&all_monday, &berlin("2026-11-30T23:59:59")), Ok(()));
    assert_eq!(welcome(&all_monday, &berlin("2026-12-01T00:00:00")), Err(Some("Mon 00:00".into())));
    // From and to the same minute is a whole day from then on.
    let from_noon = [hours(MON, (12, 0), (12, 0))];
    assert_eq!(welcome(&from_noon, &berlin("2026-12-01T11:59:00")), Ok(()));
    assert_eq!(welcome(&from_noon, &berlin("2026-12-01T12:00:00")), Err(Some("Mon 12:00".into())));
    let two = [hours(MON, (8, 0), (9, 0)), hours(MON, (12, 0), (13, 0))];
    assert_eq!(welcome(&two, &berlin("2026-11-30T10:00:00")), Err(Some("Mon 12:00".into())));
    assert_eq!(welcome(&[hours(0, (8, 0), (9, 0))], &berlin("2026-11-30T10:00:00")), Err(None), "no day at all");
}

#[test]
fn changes_of_the_clock_move_hours_and_lose_none() {
    const EVERY: u8 = 127;
    let early = [hours(EVERY, (2, 30), (3, 30))];
    // In 2026 Berlin's clocks go from 02:00 to 03:00 on 29 March, and from 03:00 back to 02:00 on 25 October.
    let spring = "2026-03-29T01:59:00+01:00[Europe/Berlin]";
    assert_eq!(welcome(&early, spring), Err(Some("Sun 03:30".into())), "the skipped minute becomes that after the gap");
    assert_eq!(welcome(&early, "2026-03-29T03:10:00+02:00[Europe/Berlin]"), Ok(()));
    for twice in ["2026-10-25T02:45:00+02:00[Europe/Berlin]", "2026-10-25T02:45:00+01:00[Europe/Berlin]"] {
        assert_eq!(welcome(&early, twice), Ok(()), "{twice}");
    }
    // The night of the change is not an hour late the day after.
    let evening = [hours(EVERY, (20, 0), (21, 0))];
    assert_eq!(welcome(&evening, "2026-03-28T21:30:00+01:00[Europe/Berlin]"), Err(Some("Sun 20:00".into())));
}
