//! The report as a file for somebody who helps: what was found and the newest lines of the log, redacted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::redact::redact;
use super::report::Report;

/// Most bytes of the log's end that go into a report.
const LOG_BYTES_MAX: u64 = 32 * 1024;
/// Most lines of them.
const LOG_LINES_MAX: usize = 200;

/// Writes `report` to `path`, in place of an older one, with the end of the log if there is one.
///
/// # Errors
/// When the file cannot be written or the log not read.
pub fn save_report(report: &Report, path: &Path, log: Option<&Path>, home: Option<&Path>) -> io::Result<()> {
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let mut text = format!("kvasir {} on {system}\n\n{report}\n", report.version);
    if let Some(log) = log {
        text.push_str("\nnewest lines of the log:\n");
        text.push_str(&newest(log)?);
    }
    File::create(path)?.write_all(redact(&text, home).as_bytes())
}

/// The last lines of a file; of a long one only its end is read.
fn newest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(LOG_BYTES_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = if start == 0 { &*text } else { text.split_once('\n').map_or("", |(_, whole)| whole) };
    let lines: Vec<&str> = whole.lines().collect();
    let newest = &lines[lines.len().saturating_sub(LOG_LINES_MAX)..];
    Ok(newest.iter().map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Check;

    #[test]
    fn a_report_carries_the_end_of_the_log_and_nothing_secret() {
        let dir = tempfile::tempdir().unwrap();
        let [log, file] = ["log", "report.txt"].map(|name| dir.path().join(name));
        let lines: String = (0..5000).map(|n| format!("line {n} of 10.1.2.3\n")).collect();
        std::fs::write(&log, lines).unwrap();
        let found = format!("{} is full", dir.path().display());
        let report = Report::of(vec![Check::fail("disk", "Disk", found, "make room")], Vec::new(), 5);
        save_report(&report, &file, Some(&log), Some(dir.path())).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("~ is full") && text.ends_with("line 4999 of [private IPv4 address]\n"), "{text}");
        assert!(!text.contains("10.1.2.3") && text.matches("line ").count() <= LOG_LINES_MAX + 1);
        assert!(text.starts_with(concat!("kvasir ", env!("CARGO_PKG_VERSION"))), "{text}");
        save_report(&report, &file, Some(&dir.path().join("absent")), None).unwrap_err();
    }
}
