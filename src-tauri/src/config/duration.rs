//! Times as people write them.

use std::time::Duration;

use super::ConfigError;

/// Longest time that makes sense here: ten years.
const DURATION_MAX: Duration = Duration::from_secs(3_650 * 86_400);

/// A time from `30d`, `12h`, `45m` or `20s`; more than nothing and at most ten years.
///
/// # Errors
/// A text that is no such time.
pub fn parse_duration(what: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let wrong = || ConfigError::Value { what, expected: "a time such as 30d, 12h, 45m or 20s", got: text.to_owned() };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit_s = match &text[digits..] {
        "d" => 86_400,
        "h" => 3_600,
        "m" => 60,
        "s" => 1,
        _ => return Err(wrong()),
    };
    let time = number.checked_mul(unit_s).map(Duration::from_secs).filter(|t| !t.is_zero() && *t <= DURATION_MAX);
    time.ok_or_else(wrong)
}
