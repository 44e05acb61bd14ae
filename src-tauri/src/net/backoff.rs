//! Pauses between attempts: drawn anew from zero to a bound that doubles, so that many clients do not come back in step.

use std::time::Duration;

/// Pauses of one client, with full jitter.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    losses: u32,
}

impl Backoff {
    /// Bounds that begin at `first` and double with every loss up to `max`.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, losses: 0 }
    }

    /// Upper end of the next pause.
    pub fn bound(&mut self) -> Duration {
        let bound = self.first.saturating_mul(1 << self.losses.min(20)).min(self.max);
        self.losses += 1;
        bound
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        jitter(self.bound())
    }

    /// Starts over.
    pub fn reset(&mut self) {
        self.losses = 0;
    }
}

/// A duration between zero and `bound`.
#[must_use]
pub fn jitter(bound: Duration) -> Duration {
    let mut random = [0u8; 4];
    // Without randomness the pause is the longest, which is safe.
    let share =
        getrandom::fill(&mut random).map_or(1.0, |()| f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX));
    bound.mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
        let bounds: Vec<u128> = (0..9).map(|_| backoff.bound().as_millis()).collect();
        assert_eq!(bounds, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        backoff.reset();
        assert_eq!(backoff.bound(), Duration::from_millis(250));
        assert!((0..100).all(|_| jitter(Duration::from_secs(1)) <= Duration::from_secs(1)));
    }
}
