//! The wishes of the machine's owner, held against what it is doing now.

use super::Options;
use super::report::Check;
use crate::types::Rules;
use crate::worker::courtesy::{Facts, decide};

pub(super) const COURTESY: (&str, &str) = ("courtesy", "Courtesy");

/// Whether a worker would stand by; asks services of the desktop, so it blocks.
pub(super) fn courtesy(options: &Options) -> Check {
    judge(&options.rules, &Facts::now(&options.sources, &options.rules, &*options.clock))
}

fn judge(rules: &Rules, facts: &Facts) -> Check {
    let (id, title) = COURTESY;
    if let Some(hold) = decide(rules, facts) {
        let remedy = format!("nothing, if that is as wished ({rules}): it works again by itself afterwards");
        return Check::warn(id, title, format!("stands by: {hold}"), remedy);
    }
    let untold = [
        (rules.only_when_idle && facts.idle.is_none(), "whether somebody is at it"),
        (rules.pause_for_fullscreen && facts.fullscreen.is_none(), "what fills its screen"),
        (!rules.pause_for_apps.is_empty() && facts.programs.is_empty(), "which programs run"),
    ];
    let untold: Vec<&str> = untold.into_iter().filter(|(is_untold, _)| *is_untold).map(|(_, what)| what).collect();
    let found = format!("welcome now; wishes: {rules}");
    if untold.is_empty() {
        return Check::ok(id, title, found);
    }
    let found = format!("{found}; this machine does not tell {}", untold.join(" and "));
    Check::warn(id, title, found, "such a wish holds nothing back here: choose hours with --schedule")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::doctor::Verdict;
    use crate::worker::courtesy::Sources;

    #[test]
    fn a_wish_that_nobody_can_meet_is_told_and_one_that_holds_too() {
        let nothing = Sources { sys: "/nowhere".into(), proc: "/nowhere".into(), services: false };
        let check = |rules: Rules| judge(&rules, &Facts::now(&nothing, &rules, &SystemClock::default()));
        assert_eq!(check(Rules::default()).verdict, Verdict::Ok);
        let idle = check(Rules { only_when_idle: true, pause_for_apps: vec!["game".into()], ..Rules::default() });
        assert!(idle.verdict == Verdict::Warn && idle.found.contains("at it and which programs run"), "{idle:?}");
        let never = check(Rules { duty_percent: 0, ..Rules::default() });
        assert!(never.verdict == Verdict::Warn && never.found == "stands by: its duty cycle is 0 %", "{never:?}");
    }
}
