//! How closely a wallet's work is looked at, and the draw that decides which of it.
//!
//! A newcomer's work is recomputed before it is used; later a share of it is, after use. **Promise:** whoever does not
//! know the key cannot tell a frame that will be audited from one that will not, and one key always draws the same.

/// Smallest share that is audited, whatever is configured: no wallet is ever trusted blindly.
pub const RATE_MIN: f64 = 0.0005;

/// Which accepted work is recomputed, by the age of its wallet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AuditPolicy {
    /// Everything of everybody, before it is used.
    pub before_use: bool,
    /// A wallet's first accepted assignments, all recomputed before they are used.
    pub first_assignments: u64,
    /// Until so many accepted assignments a wallet is young.
    pub young_assignments: u64,
    /// Share of a young wallet's frames that is recomputed after use.
    pub young_rate: f64,
    /// The same of every other wallet's.
    pub rate: f64,
}

impl Default for AuditPolicy {
    fn default() -> Self {
        Self { before_use: false, first_assignments: 1_000, young_assignments: 100_000, young_rate: 0.05, rate: 0.01 }
    }
}

/// When a wallet's work is recomputed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Look {
    /// All of it, before it is used.
    BeforeUse,
    /// This share of it, after it was used.
    AfterUse(f64),
}

impl AuditPolicy {
    /// How the work of a wallet with so many accepted assignments is looked at.
    #[must_use]
    pub fn look(&self, accepted: u64) -> Look {
        if self.before_use || accepted < self.first_assignments {
            return Look::BeforeUse;
        }
        let rate = if accepted < self.young_assignments { self.young_rate } else { self.rate };
        Look::AfterUse(rate.clamp(RATE_MIN, 1.0))
    }

    /// The age from which nothing changes any more.
    #[must_use]
    pub fn grown_up(&self) -> u64 {
        self.first_assignments.max(self.young_assignments)
    }
}

/// Draws that only the holder of the key can foretell.
#[derive(Clone)]
pub struct Draws(Option<[u8; 32]>);

impl Draws {
    /// From a fixed key: the same draws every time. Or from the system's randomness.
    #[must_use]
    pub fn new(seed: Option<[u8; 32]>) -> Self {
        let system = || {
            let mut key = [0; 32];
            match getrandom::fill(&mut key) {
                Ok(()) => Some(key),
                Err(error) => {
                    tracing::error!(%error, "no randomness: everything is audited");
                    None
                }
            }
        };
        Self(seed.or_else(system))
    }

    /// A number in 0..1 for the `n`-th accepted frame, counted from 1; 0 without a key, so that every share includes it.
    #[must_use]
    pub fn draw(&self, n: u64) -> f64 {
        let Some(key) = &self.0 else { return 0.0 };
        let digest = blake3::keyed_hash(key, &n.to_le_bytes());
        let first = digest.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // 53 bits are what a double holds.
        (first >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Values for the `n`-th challenge. Only their start has to be secret: whoever sees some may know the rest.
    pub fn values(&self, n: u64) -> impl FnMut() -> u32 + use<> {
        let mut hasher = blake3::Hasher::new_keyed(&self.0.unwrap_or_default());
        hasher.update(b"challenge").update(&n.to_le_bytes());
        let start = hasher.finalize().as_bytes().first_chunk::<8>().map_or(1, |bytes| u64::from_le_bytes(*bytes));
        let mut state = start.max(1);
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u32
        }
    }
}

impl std::fmt::Debug for Draws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Draws(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wallet_is_looked_at_less_closely_as_it_ages_and_never_not_at_all() {
        let policy = AuditPolicy { rate: 0.0, ..AuditPolicy::default() };
        assert_eq!(policy.look(0), Look::BeforeUse);
        assert_eq!(policy.look(999), Look::BeforeUse);
        assert_eq!(policy.look(1_000), Look::AfterUse(0.05));
        assert_eq!(policy.look(100_000), Look::AfterUse(RATE_MIN));
        assert_eq!(AuditPolicy { before_use: true, ..policy }.look(u64::MAX), Look::BeforeUse);
        assert_eq!(AuditPolicy { rate: 7.0, ..policy }.look(u64::MAX), Look::AfterUse(1.0));
    }

    #[test]
    fn draws_are_even_repeat_for_a_key_and_differ_between_keys() {
        let (one, other) = (Draws::new(Some([1; 32])), Draws::new(Some([2; 32])));
        let drawn = |draws: &Draws| (0..10_000).filter(|n| draws.draw(*n) < 0.01).count();
        assert!((60..140).contains(&drawn(&one)), "{}", drawn(&one));
        assert_eq!(one.draw(7), one.clone().draw(7));
        assert_ne!(one.draw(7), other.draw(7));
        assert_ne!(one.draw(7), one.draw(8));
        assert_ne!(Draws::new(None).draw(7), Draws::new(None).draw(7));
    }
}
