//! Sizes as people write them.

use super::ConfigError;

/// Bytes from `1234`, `500MB`, `4GiB`, `4G` (decimal with B, binary with iB or a bare letter).
///
/// # Errors
/// A text that is no size, or one that does not fit.
pub fn parse_bytes(what: &'static str, text: &str) -> Result<u64, ConfigError> {
    let wrong = || ConfigError::Value { what, expected: "a size such as 4GiB or 500MB", got: text.to_owned() };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let factor: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}
