//! Which of several gateways to try next: remembers which failed, so that one that stays down holds nobody up.
//!
//! Those that never failed come first, in the order in which they were named, then those that failed once, then those that
//! are down; among these the one that was tried longest ago. What failed long ago is forgotten.

use std::time::Duration;

use tokio::time::Instant;

/// From so many failures in a row on a gateway counts as down; more make it no worse.
const DOWN: u32 = 2;
/// How long a failure is remembered.
const MEMORY: Duration = Duration::from_secs(10 * 60);

/// What is known of each gateway, by its place in the list.
#[derive(Debug, Clone)]
pub struct Health {
    places: Vec<Place>,
    /// Failures in a row, whichever failed.
    row: usize,
    tries: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    failures: u32,
    failed_at: Option<Instant>,
    /// Number of the last try; 0 = never.
    tried: u64,
}

impl Health {
    /// Nothing is known of `gateways` gateways.
    #[must_use]
    pub fn new(gateways: usize) -> Self {
        Self { places: vec![Place::default(); gateways], row: 0, tries: 0 }
    }

    /// The gateway to try now; 0 without any.
    pub fn choose(&mut self) -> usize {
        let now = Instant::now();
        for place in &mut self.places {
            if place.failed_at.is_some_and(|at| now - at > MEMORY) {
                (place.failures, place.failed_at) = (0, None);
            }
        }
        let rank = |(index, place): &(usize, &Place)| {
            // Those that never failed stand in the order in which they were named.
            let tried = if place.failures == 0 { 0 } else { place.tried };
            (place.failures, tried, *index)
        };
        let best = self.places.iter().enumerate().min_by_key(rank).map_or(0, |(index, _)| index);
        self.tries += 1;
        if let Some(place) = self.places.get_mut(best) {
            place.tried = self.tries;
        }
        best
    }

    /// That one works.
    pub fn works(&mut self, index: usize) {
        self.row = 0;
        if let Some(place) = self.places.get_mut(index) {
            (place.failures, place.failed_at) = (0, None);
        }
    }

    /// That one failed.
    pub fn failed(&mut self, index: usize) {
        self.row += 1;
        if let Some(place) = self.places.get_mut(index) {
            place.failures = (place.failures + 1).min(DOWN);
            place.failed_at = Some(Instant::now());
        }
    }

    /// Whether another one may do better: not all of them failed in a row.
    #[must_use]
    pub fn has_another(&self) -> bool {
        self.row < self.places.len()
    }

    /// Nothing is known any more, as in another network.
    pub fn forget(&mut self) {
        *self = Self::new(self.places.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next choices when each of `down` fails and the others work.
    fn choices(health: &mut Health, down: &[usize], times: usize) -> Vec<usize> {
        let mut chosen = Vec::new();
        for _ in 0..times {
            let index = health.choose();
            if down.contains(&index) {
                health.failed(index)
            } else {
                health.works(index)
            }
            chosen.push(index);
        }
        chosen
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stays_down_is_left_alone_and_one_that_works_is_kept() {
        let mut health = Health::new(3);
        assert_eq!(choices(&mut health, &[], 2), [0, 0], "the first named comes first");
        assert_eq!(choices(&mut health, &[0], 3), [0, 1, 1]);
        assert_eq!(choices(&mut health, &[1], 2), [1, 2]);
        assert_eq!(choices(&mut health, &[0, 1, 2], 7), [2, 0, 1, 2, 0, 1, 2]);
        tokio::time::advance(MEMORY * 2).await;
        assert_eq!(choices(&mut health, &[], 1), [0], "what failed long ago is forgotten");
    }

    #[test]
    fn another_may_do_better_until_all_have_failed_in_a_row() {
        let mut health = Health::new(2);
        let mut fail = || {
            let index = health.choose();
            health.failed(index);
            health.has_another()
        };
        assert_eq!([fail(), fail(), fail()], [true, false, false]);
        let index = health.choose();
        health.works(index);
        assert!(health.has_another());
    }
}
