//! Kills and restarts workers at moments that a seed decides: for `kvasir demo --chaos`.
//!
//! A victim dies in the middle of a step, closed or dark, and comes back as the same installation. **Promise:** the same
//! seed kills the same workers at the same tokens in the same ways; what the machine makes of it is its own.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::DemoError;
use super::network::Network;
use super::place::Death;

/// Kills of a whole decode, about.
const KILLS: usize = 8;
/// A victim dies within this time of the step's start: long enough to be in any layer of it.
const WITHIN: Duration = Duration::from_millis(8);
/// Every how many deaths one is a line that goes dark; such a death costs a deadline.
const DARK_EVERY: u64 = 4;
/// Longest wait until those who were started again serve.
const BACK: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Chaos {
    state: u64,
    /// Workers of the network.
    workers: usize,
    /// Tokens from one kill to the next, at most.
    gap: usize,
    next_kill: usize,
    dead: BTreeSet<usize>,
    pub kills: u32,
    pub restarts: u32,
}

impl Chaos {
    /// For a decode of `tokens` with `workers`, which is not empty.
    pub fn new(seed: u64, workers: usize, tokens: usize) -> Self {
        let gap = (2 * tokens / KILLS).max(1);
        let mut chaos = Self { state: seed, workers, gap, next_kill: 0, dead: BTreeSet::new(), kills: 0, restarts: 0 };
        chaos.next_kill = 1 + chaos.below(chaos.gap as u64) as usize;
        chaos
    }

    /// SplitMix64.
    fn below(&mut self, n: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }

    /// Whether somebody is to die in the step of token `index`.
    pub fn is_due(&mut self, index: usize) -> bool {
        let due = index == self.next_kill;
        if due {
            self.next_kill += 1 + self.below(self.gap as u64) as usize;
        }
        due
    }

    /// Starts the dead again and waits until all workers serve.
    ///
    /// # Errors
    /// Workers that do not come back.
    pub async fn mend(&mut self, network: &mut Network) -> Result<(), DemoError> {
        while let Some(index) = self.dead.pop_first() {
            network.restart(index).await?;
            self.restarts += 1;
        }
        let sessions: BTreeSet<_> = network.wallets().into_iter().collect();
        let start = Instant::now();
        // A dead worker's old session may still be counted, so the wallets are looked at.
        loop {
            let views = network.dispatch.workers();
            let serving: BTreeSet<_> = views.iter().filter(|view| view.ready).map(|view| view.wallet).collect();
            if serving == sessions {
                break;
            }
            if start.elapsed() > BACK {
                network.dispatch.wait_ready(self.workers, Duration::ZERO).await?;
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Kills one of the workers that run, at some moment of the step that has just begun.
    pub async fn strike(&mut self, network: &mut Network) {
        let running: Vec<usize> = (0..self.workers).filter(|index| network.is_running(*index)).collect();
        let victim = self.below(running.len() as u64) as usize;
        let death = if self.below(DARK_EVERY) == 0 { Death::Dark } else { Death::Closed };
        let moment = Duration::from_micros(self.below(WITHIN.as_micros() as u64));
        tokio::time::sleep(moment).await;
        if let Some(index) = running.get(victim) {
            tracing::info!(worker = index, ?death, "killed");
            network.kill(*index, death);
            self.dead.insert(*index);
            self.kills += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_when_somebody_dies() {
        let moments = |seed| {
            let mut chaos = Chaos::new(seed, 5, 256);
            (0..256).filter(|token| chaos.is_due(*token)).collect::<Vec<_>>()
        };
        assert_eq!(moments(7), moments(7));
        assert_ne!(moments(7), moments(8));
        for seed in 0..100 {
            assert!((3..=20).contains(&moments(seed).len()), "{:?}", moments(seed));
        }
    }
}
