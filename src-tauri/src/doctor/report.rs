//! What an examination found, in one shape for people, for programs and for the app's window.

use std::fmt;

use serde::Serialize;

/// How a check ended; the worst one is the report's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, and may cost speed or trouble later.
    Warn,
    /// Does not work.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Stable: `dns`, `tcp`, …; with several gateways, `dns@host` and so on.
    pub id: String,
    /// For people.
    pub title: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What was seen.
    pub found: String,
    /// What to do about it; empty when all is well.
    pub remedy: String,
}

/// The whole examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// This program's version.
    pub version: &'static str,
    /// In the order of the road: the network first, then the machine.
    pub checks: Vec<Check>,
    /// Titles of what lies behind a failed leg and so was not looked at.
    pub not_reached: Vec<String>,
    /// The worst of all.
    pub verdict: Verdict,
    /// How long it took.
    pub took_ms: u64,
}

impl Check {
    /// All is well.
    pub fn ok(id: &str, title: &str, found: impl Into<String>) -> Self {
        Self { id: id.into(), title: title.into(), verdict: Verdict::Ok, found: found.into(), remedy: String::new() }
    }

    /// Works, but.
    pub fn warn(id: &str, title: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, remedy: remedy.into(), ..Self::ok(id, title, found) }
    }

    /// Does not work.
    pub fn fail(id: &str, title: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, remedy: remedy.into(), ..Self::ok(id, title, found) }
    }
}

impl Report {
    /// Puts checks together.
    #[must_use]
    pub fn of(checks: Vec<Check>, not_reached: Vec<String>, took_ms: u64) -> Self {
        let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
        Self { version: env!("CARGO_PKG_VERSION"), checks, not_reached, verdict, took_ms }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.checks.iter().map(|check| check.title.chars().count()).max().unwrap_or(0);
        for Check { title, verdict, found, remedy, .. } in &self.checks {
            writeln!(f, "{verdict:<4}  {title:<width$}  {found}")?;
            if !remedy.is_empty() {
                writeln!(f, "{:<6}{:<width$}  → {remedy}", "", "")?;
            }
        }
        if !self.not_reached.is_empty() {
            writeln!(f, "not reached: {}", self.not_reached.join(", "))?;
        }
        write!(f, "{}", self.summary())
    }
}

impl Report {
    fn summary(&self) -> String {
        let count = |verdict| self.checks.iter().filter(|check| check.verdict == verdict).count();
        let seconds = self.took_ms as f64 / 1e3;
        match (count(Verdict::Fail), count(Verdict::Warn)) {
            (0, 0) => format!("all is well ({seconds:.1} s)"),
            (0, warns) => format!("works, with {warns} to look at ({seconds:.1} s)"),
            (fails, _) => format!("{fails} to mend ({seconds:.1} s)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_check_is_the_reports_verdict() {
        let checks = vec![Check::ok("dns", "DNS", "1 address"), Check::warn("gpu", "GPU", "none", "plug one in")];
        let report = Report::of(checks.clone(), Vec::new(), 1500);
        assert_eq!(report.verdict, Verdict::Warn);
        let text = report.to_string();
        assert!(text.starts_with("ok    DNS  1 address\nwarn  GPU  none\n           → plug one in\n"), "{text}");
        assert!(text.ends_with("works, with 1 to look at (1.5 s)"), "{text}");
        let failed = [checks, vec![Check::fail("tcp", "TCP", "refused", "start it")]].concat();
        let report = Report::of(failed, vec!["TLS".into()], 0);
        assert!(report.to_string().contains("not reached: TLS\n1 to mend"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((json["verdict"].as_str(), json["checks"][0]["verdict"].as_str()), (Some("fail"), Some("ok")));
    }

    #[test]
    fn nothing_to_look_at_is_well() {
        assert_eq!(Report::of(Vec::new(), Vec::new(), 0).verdict, Verdict::Ok);
    }
}
