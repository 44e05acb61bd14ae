//! Finds where the last tokens of a stream stood before, and what followed.
//!
//! As in LZ77: every pair of tokens is filed under its hash in the order of its places, so that the newest places of the
//! last pair are met first, without a search through the text.

/// Tokens that must agree: after a single one, what followed says little.
const SHORTEST: usize = 2;
/// Tokens that are compared; a longer agreement makes no better draft.
const LONGEST: usize = 8;
/// Places that are compared, the newest first.
const PLACES_MAX: usize = 32;
/// How well the last tokens agreed, in classes: by two, three, four, or more.
pub(super) const CLASSES: usize = 4;
/// Bytes per token of a stream: its place in the chain, and at most two hash entries.
pub(super) const TOKEN_BYTES: usize = 3 * size_of::<u32>();

/// The places of all pairs of a stream's tokens.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    /// By hash of a pair: one more than the newest place where one of this hash ends; 0 = none.
    newest: Vec<u32>,
    /// Per token: one more than the next older place of its hash.
    older: Vec<u32>,
}

/// Where the last tokens stood before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// The place that followed.
    pub next: usize,
    /// How well they agreed, `0..CLASSES`.
    pub class: usize,
}

impl Lookup {
    /// For a stream of `tokens` tokens at most.
    pub fn new(tokens: usize) -> Self {
        Self { newest: vec![0; tokens.next_power_of_two().max(2)], older: Vec::with_capacity(tokens) }
    }

    /// Files the pairs of `tokens` that it has not seen; they only grow.
    pub fn see(&mut self, tokens: &[u32]) {
        for end in self.older.len()..tokens.len() {
            let bucket = match end {
                0 => None,
                _ => Some(self.bucket(&tokens[end - 1..=end])),
            };
            let older = bucket.map_or(0, |bucket| std::mem::replace(&mut self.newest[bucket], end as u32 + 1));
            self.older.push(older);
        }
    }

    /// Multiplicative hashing with the golden ratio; the table has a power of two of entries.
    fn bucket(&self, pair: &[u32]) -> usize {
        let key = pair.iter().fold(0u64, |key, token| key << 32 | u64::from(*token));
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - self.newest.len().trailing_zeros())) as usize
    }

    /// The place whose preceding tokens agree with the last of `tokens` longest, the newest of equals.
    pub fn find(&self, tokens: &[u32]) -> Option<Found> {
        let (mut best, mut found) = (SHORTEST - 1, None);
        let mut place = *self.older.last()?;
        for _ in 0..PLACES_MAX {
            let Some(end) = (place as usize).checked_sub(1) else { break };
            let pairs = tokens[..=end].iter().rev().zip(tokens.iter().rev());
            let agree = pairs.take(LONGEST).take_while(|(then, now)| then == now).count();
            if agree > best {
                best = agree;
                found = Some(Found { next: end + 1, class: (agree - SHORTEST).min(CLASSES - 1) });
            }
            if best == LONGEST {
                break;
            }
            place = self.older[end];
        }
        found
    }
}

/// The tokens from place `next` on, as many as asked for; behind the last one they go on as the text would if it
/// repeated itself.
pub(super) fn copy(tokens: &[u32], next: usize, count: usize, into: &mut Vec<u32>) {
    into.clear();
    for place in next..next + count {
        into.push(match place.checked_sub(tokens.len()) {
            None => tokens[place],
            Some(ahead) => into[ahead],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tokens: &[u32]) -> Option<Found> {
        let mut lookup = Lookup::new(tokens.len());
        // In two parts, as a prompt and its continuation.
        lookup.see(&tokens[..tokens.len() / 2]);
        lookup.see(tokens);
        lookup.find(tokens)
    }

    #[test]
    fn the_longest_agreement_wins_and_the_newest_of_equals() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[7, 7]), None);
        assert_eq!(found(&[1, 2, 3, 4, 9, 2]), None, "one token is too little");
        assert_eq!(found(&[5, 1, 2, 8, 4, 1, 2, 9, 1, 2]), Some(Found { next: 7, class: 0 }));
        assert_eq!(found(&[5, 1, 2, 8, 4, 1, 2, 9, 5, 1, 2]), Some(Found { next: 3, class: 1 }));
        assert_eq!(found(&[5, 5, 5, 5]), Some(Found { next: 3, class: 1 }));
    }

    #[test]
    fn every_agreement_is_found_that_a_search_finds() {
        // Few different tokens in an order without a short period.
        let tokens: Vec<u32> = (0..300u32).map(|i| i.wrapping_mul(2_654_435_761) >> 29).collect();
        for end in 2..tokens.len() {
            let tokens = &tokens[..end];
            let agree =
                |next: usize| (1..=LONGEST.min(next)).take_while(|n| tokens[next - n] == tokens[end - n]).count();
            let places = (1..end).rev().filter(|next| agree(*next) >= SHORTEST).take(PLACES_MAX);
            let best = places.map(agree).max().map(|agree| (agree - SHORTEST).min(CLASSES - 1));
            assert_eq!(found(tokens).map(|found| found.class), best, "after {end} tokens");
        }
    }

    #[test]
    fn a_copy_goes_on_behind_the_end() {
        let mut out = Vec::new();
        copy(&[1, 2, 3, 4, 5], 3, 5, &mut out);
        assert_eq!(out, [4, 5, 4, 5, 4]);
        copy(&[1, 2], 1, 3, &mut out);
        assert_eq!(out, [2, 2, 2]);
        copy(&[1, 2], 0, 1, &mut out);
        assert_eq!(out, [1]);
    }
}
