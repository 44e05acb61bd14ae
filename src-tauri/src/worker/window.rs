//! How many bytes of weights may be on their way, so that the link is busy and work still passes at once.
//!
//! Whatever is asked for beyond what the way itself holds waits in some queue in front of the slowest leg, and there no
//! work frame can overtake it. So the window follows what is measured: the best rate at which pieces came lately, times
//! the delay of a lone piece and a quarter more. It grows on its own until the rate grows no more, on any link. Why the
//! best rate: our own answers hold up the questions for pieces, which says nothing about the way back.
//! **Promise:** weights keep a work frame waiting no longer than about half of a round trip, or for one small piece.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::wire::chunk::CHUNK_BYTES_MAX;

/// Smallest piece: its frames and its question are some hundredths of it.
const PIECE_BYTES_MIN: u64 = 8 * 1024;
/// A piece is this part of the window, so that the last byte of one need not come before the next is asked for.
const PIECES: u64 = 6;
/// Share of the delay of a lone piece that weights may wait in queues.
const QUEUE_SHARE: f64 = 0.25;
/// The least wait that counts: below it, threads cost more than queues.
const QUEUE_MIN: Duration = Duration::from_millis(3);
/// How long a rate counts, at least; at most twice as long.
const LATELY: Duration = Duration::from_secs(2);
/// How long a delay is believed; then one piece travels alone and measures it anew.
const BELIEVED: Duration = Duration::from_secs(10);

/// A piece on its way.
struct Owed {
    request: u64,
    bytes: u64,
    asked: Instant,
    /// What had come when it was asked for.
    came_before: u64,
    alone: bool,
}

/// See the module.
pub(super) struct Window {
    owed: VecDeque<Owed>,
    in_flight: u64,
    came: u64,
    /// Best bytes per second since then, and of the time before; 0 before the first piece.
    rates: [f64; 2],
    since: Option<Instant>,
    /// The delay of a lone piece, and when it was measured; none while it is to be measured.
    alone: Option<(Duration, Instant)>,
    /// Most pieces on their way.
    pieces_max: usize,
}

impl Window {
    /// At most `pieces_max` pieces on their way.
    pub fn new(pieces_max: usize) -> Self {
        let (owed, rates) = (VecDeque::new(), [0.0; 2]);
        Self { owed, in_flight: 0, came: 0, rates, since: None, alone: None, pieces_max }
    }

    /// Bytes that may be on their way.
    fn bytes(&self) -> u64 {
        let Some((delay, _)) = self.alone else { return PIECE_BYTES_MIN };
        let queue = delay.mul_f64(QUEUE_SHARE).max(QUEUE_MIN);
        let rate = self.rates[0].max(self.rates[1]);
        ((rate * (delay + queue).as_secs_f64()) as u64).max(2 * PIECE_BYTES_MIN)
    }

    /// Bytes of the next piece; `None` when enough is on its way.
    pub fn next(&self) -> Option<u32> {
        let window = self.bytes();
        let piece = (window / PIECES).clamp(PIECE_BYTES_MIN, CHUNK_BYTES_MAX as u64);
        // The last piece may stand out a little: a window that grows by less than a piece must grow all the same.
        let fits = self.owed.is_empty() || self.alone.is_some() && self.in_flight < window;
        (fits && self.owed.len() < self.pieces_max).then_some(piece as u32)
    }

    /// A piece was asked for.
    pub fn asked(&mut self, request: u64, bytes: u32, now: Instant) {
        if self.alone.is_some_and(|(_, measured)| now - measured > BELIEVED) {
            self.alone = None;
        }
        let (bytes, alone) = (u64::from(bytes), self.owed.is_empty());
        self.in_flight += bytes;
        self.owed.push_back(Owed { request, bytes, asked: now, came_before: self.came, alone });
    }

    fn observe(&mut self, rate: f64, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) > LATELY {
            (self.rates, self.since) = ([0.0, self.rates[0]], Some(now));
        }
        self.rates[0] = self.rates[0].max(rate);
    }

    /// A piece of `bytes` came, which may be fewer than were asked for. Pieces come in the order in which they were asked
    /// for; one that is skipped never comes.
    pub fn came(&mut self, request: u64, bytes: u64, at: Instant) {
        while let Some(owed) = self.owed.pop_front_if(|owed| owed.request <= request) {
            self.in_flight -= owed.bytes;
            if owed.request < request {
                continue;
            }
            self.came += bytes;
            let took = at.saturating_duration_since(owed.asked).max(Duration::from_micros(1));
            // Sooner than a lone piece comes only what had come before and was looked at late.
            let least = self.alone.map_or(took, |(delay, _)| delay.max(took));
            self.observe((self.came - owed.came_before) as f64 / least.as_secs_f64(), at);
            match self.alone {
                None if owed.alone => self.alone = Some((took, at)),
                Some((delay, measured)) if took < delay => self.alone = Some((took, measured)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of `rate` bytes per second behind a delay: how long its queue is once the window has settled, and how
    /// much of the link is used.
    fn settled(rate: f64, round_trip: Duration) -> (Duration, f64) {
        let (mut window, mut now) = (Window::new(8), Instant::now());
        let (mut free_at, mut queue) = (now, Duration::ZERO);
        let mut coming: VecDeque<(u64, u64, Instant)> = VecDeque::new();
        let (mut request, mut came) = (0, 0u64);
        let start = now;
        let mut measured = (now, 0);
        while now < start + Duration::from_secs(8) {
            while let Some(bytes) = window.next() {
                request += 1;
                window.asked(request, bytes, now);
                came += u64::from(bytes);
                let at_queue = now + round_trip;
                if now > start + Duration::from_secs(6) {
                    queue = queue.max(free_at.saturating_duration_since(at_queue));
                }
                free_at = free_at.max(at_queue) + Duration::from_secs_f64(f64::from(bytes) / rate);
                coming.push_back((request, u64::from(bytes), free_at));
            }
            let (request, bytes, at) = coming.pop_front().expect("something is on its way");
            now = at;
            window.came(request, bytes, now);
            if now < start + Duration::from_secs(6) {
                measured = (now, came);
            }
        }
        (queue, (came - measured.1) as f64 / (now - measured.0).as_secs_f64() / rate)
    }

    #[test]
    fn the_link_is_busy_and_its_queue_short_at_any_rate_and_distance() {
        for mbit in [2.0, 20.0, 200.0] {
            for round_trip_ms in [1, 20, 60] {
                let round_trip = Duration::from_millis(round_trip_ms);
                let rate = mbit * 1e6 / 8.0;
                let (queue, used) = settled(rate, round_trip);
                let piece = Duration::from_secs_f64(PIECE_BYTES_MIN as f64 / rate);
                let lone = round_trip + piece;
                let allowed = lone.mul_f64(QUEUE_SHARE) + piece.max(lone.mul_f64(0.25)) + QUEUE_MIN;
                assert!(queue <= allowed, "{mbit} Mbit/s, {round_trip:?}: a queue of {queue:?} over {allowed:?}");
                assert!(used > 0.6, "{mbit} Mbit/s, {round_trip:?}: {used:.2} of the link");
            }
        }
    }

    #[test]
    fn pieces_that_never_come_hold_no_room() {
        let (mut window, now) = (Window::new(8), Instant::now());
        window.asked(1, 8_192, now);
        window.asked(2, 8_192, now);
        window.came(2, 8_192, now + Duration::from_millis(9));
        assert_eq!((window.in_flight, window.owed.len()), (0, 0));
        assert!(window.next().is_some());
    }

    #[test]
    fn a_piece_that_ends_early_says_nothing_of_a_fast_link() {
        let (mut window, start) = (Window::new(8), Instant::now());
        // As a manifest is asked for: by far more than it has.
        window.asked(1, CHUNK_BYTES_MAX as u32, start);
        window.came(1, 2_000, start + Duration::from_millis(20));
        assert_eq!(window.bytes(), 2 * PIECE_BYTES_MIN);
    }
}
