//! How far a long piece of work is, on stderr: a bar where a person looks on, else a line now and then.

use std::io::IsTerminal;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, MultiProgress, ProgressBar, ProgressStyle};

use super::tell;

/// Between two lines where nobody looks on.
const LINE_EVERY: Duration = Duration::from_secs(10);
const COUNTED: &str = "{msg} [{bar:40}] {pos}/{len}";
const BYTES: &str = "{msg} [{bar:40}] {decimal_bytes}/{decimal_total_bytes}, {eta} left";

/// All bars of the process, so that two at once stand below each other.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

fn styled(length: u64, what: &'static str, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    BARS.add(ProgressBar::new(length).with_message(what).with_style(style))
}

/// A bar of things that are counted; nothing where nobody looks on.
pub(super) fn bar(length: u64, what: &'static str) -> ProgressBar {
    styled(length, what, COUNTED)
}

/// The same of bytes.
pub(super) fn bytes_bar(length: u64, what: &'static str) -> ProgressBar {
    styled(length, what, BYTES)
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Layers,
}

/// Minutes of work; the bar is gone when this is.
pub(super) struct Progress {
    what: &'static str,
    unit: Unit,
    bar: ProgressBar,
    told: Option<Instant>,
}

impl Progress {
    pub fn new(what: &'static str, unit: Unit) -> Self {
        let bar = if unit == Unit::Bytes { bytes_bar(0, what) } else { bar(0, what) };
        let told = (!std::io::stderr().is_terminal()).then(Instant::now);
        Self { what, unit, bar, told }
    }

    /// `done` of `total` are done.
    pub fn set(&mut self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        if self.told.is_none_or(|told| told.elapsed() < LINE_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let what = self.what;
        // Nobody looks on, and perhaps nobody listens either: the work itself goes on.
        let _ = match self.unit {
            Unit::Bytes => tell(format_args!("{what}: {} of {}", DecimalBytes(done), DecimalBytes(total))),
            Unit::Layers => tell(format_args!("{what}: {done} of {total} layers")),
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
