//! When to ping and when to give up: a decision over counts, without a clock of its own.

use std::time::Duration;

/// How a silent peer is noticed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ping {
    /// Time between two looks.
    pub every: Duration,
    /// Part of `every` by which each look may come early or late, so that many links never ping in step.
    pub spread: f64,
    /// Ping only when nothing came since the last look; else at every look, which keeps proxies from cutting.
    pub only_when_silent: bool,
    /// Pings in a row without any byte after them that end the link.
    pub strikes: u32,
}

impl Ping {
    /// 20 s ± 20 %, always: idle limits of proxies start at 60 s.
    #[must_use]
    pub fn worker() -> Self {
        Self { every: Duration::from_secs(20), spread: 0.2, only_when_silent: false, strikes: 3 }
    }

    /// After 30 s of silence.
    #[must_use]
    pub fn hub() -> Self {
        Self { every: Duration::from_secs(30), spread: 0.0, only_when_silent: true, strikes: 3 }
    }
}

/// What a look at the counters says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    Rest,
    Ping,
    GiveUp { strikes: u32 },
}

/// Strikes of one link.
#[derive(Debug)]
pub(super) struct Liveness {
    ping: Ping,
    seen_bytes: u64,
    pinged: bool,
    strikes: u32,
    noise: u64,
}

impl Liveness {
    /// `seed` spreads this link's looks.
    pub(super) fn new(ping: Ping, seed: u64) -> Self {
        Self { ping, seen_bytes: 0, pinged: false, strikes: 0, noise: seed | 1 }
    }

    /// `inbound_bytes` counts everything received since the start, whatever it was.
    pub(super) fn look(&mut self, inbound_bytes: u64) -> Look {
        let silent = inbound_bytes == self.seen_bytes;
        self.seen_bytes = inbound_bytes;
        match (silent, self.pinged) {
            (false, _) => self.strikes = 0,
            (true, true) => self.strikes += 1,
            (true, false) => {}
        }
        if self.strikes >= self.ping.strikes {
            return Look::GiveUp { strikes: self.strikes };
        }
        self.pinged = silent || !self.ping.only_when_silent;
        if self.pinged { Look::Ping } else { Look::Rest }
    }

    /// Time to the next look: `every · (1 ± spread)`.
    pub(super) fn next_in(&mut self) -> Duration {
        // xorshift64: a spread needs no better randomness.
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        let unit = (self.noise >> 11) as f64 / (1u64 << 53) as f64;
        self.ping.every.mul_f64((1.0 + self.ping.spread * (2.0 * unit - 1.0)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALWAYS: Ping = Ping { every: Duration::from_secs(20), spread: 0.2, only_when_silent: false, strikes: 3 };

    #[test]
    fn three_pings_without_a_byte_end_the_link() {
        let mut link = Liveness::new(ALWAYS, 7);
        let looks: Vec<_> = (0..4).map(|_| link.look(0)).collect();
        assert_eq!(looks, [Look::Ping, Look::Ping, Look::Ping, Look::GiveUp { strikes: 3 }]);
    }

    #[test]
    fn any_byte_forgives_every_strike() {
        let mut link = Liveness::new(ALWAYS, 7);
        for received in [0, 0, 0, 1, 1, 1] {
            assert_eq!(link.look(received), Look::Ping);
        }
        assert_eq!(link.look(1), Look::GiveUp { strikes: 3 });
    }

    #[test]
    fn a_busy_link_is_left_alone_when_only_silence_counts() {
        let mut link = Liveness::new(Ping { only_when_silent: true, ..ALWAYS }, 7);
        assert_eq!(link.look(10), Look::Rest);
        assert_eq!(link.look(20), Look::Rest);
        assert_eq!(link.look(20), Look::Ping);
    }

    #[test]
    fn looks_spread_over_a_fifth_either_way() {
        let mut link = Liveness::new(ALWAYS, 7);
        let waits: Vec<_> = (0..1000).map(|_| link.next_in().as_secs_f64()).collect();
        assert!(waits.iter().all(|w| (16.0..=24.0).contains(w)));
        assert!(waits.iter().any(|w| *w < 17.0) && waits.iter().any(|w| *w > 23.0));
    }
}
