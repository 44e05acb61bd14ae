//! A clock that jumps when it is told to.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use kvasir::clock::{Clock, SystemClock};

/// The machine's clocks, each moved by so many milliseconds.
#[derive(Default)]
pub struct JumpingClock {
    real: SystemClock,
    mono_ms: AtomicI64,
    wall_ms: AtomicI64,
}

impl JumpingClock {
    /// Moves both from now on.
    pub fn jump(&self, mono_ms: i64, wall_ms: i64) {
        self.mono_ms.fetch_add(mono_ms, SeqCst);
        self.wall_ms.fetch_add(wall_ms, SeqCst);
    }
}

impl Clock for JumpingClock {
    fn mono(&self) -> Duration {
        self.real.mono() + Duration::from_millis(self.mono_ms.load(SeqCst).unsigned_abs())
    }

    fn unix_ms(&self) -> u64 {
        self.real.unix_ms().saturating_add_signed(self.wall_ms.load(SeqCst))
    }
}
