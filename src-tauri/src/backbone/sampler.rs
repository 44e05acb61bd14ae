//! Chooses the next token from its logits.

use crate::kernel::float::exp;
use std::collections::HashMap;

/// How tokens are chosen. Temperature 0 is greedy: the largest logit, the lower id when equal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// Divides the logits; 0 or less means greedy.
    pub temperature: f32,
    /// Keeps the likeliest tokens whose probabilities first add up to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Where the random numbers start; one seed gives one text.
    pub seed: u64,
}

impl Sampling {
    /// Always the likeliest token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 };
    /// For text that people read, who did not say otherwise: a little variety, nothing unlikely. The caller draws the
    /// seed.
    pub const PEOPLE: Self = Self { temperature: 0.7, top_p: 0.9, top_k: 40, seed: 0 };
}

/// What is added to the logits before a choice.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Adjustments {
    /// Taken from every token that was chosen before.
    pub presence_penalty: f32,
    /// Taken from a token once for each time that it was chosen.
    pub frequency_penalty: f32,
    /// Added to single tokens.
    pub bias: Vec<(u32, f32)>,
}

impl Adjustments {
    fn penalises(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// The choices of one generation.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    adjustments: Adjustments,
    chosen: HashMap<u32, u32>,
    random: SplitMix64,
}

impl Sampler {
    /// Starts from the sampling's seed.
    #[must_use]
    pub fn new(sampling: Sampling) -> Self {
        Self::adjusted(sampling, Adjustments::default())
    }

    /// The same with changed logits.
    #[must_use]
    pub fn adjusted(sampling: Sampling, adjustments: Adjustments) -> Self {
        Self { sampling, adjustments, chosen: HashMap::new(), random: SplitMix64(sampling.seed) }
    }

    /// The next token. Without a finite logit, token 0.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        if !self.adjustments.penalises() && self.adjustments.bias.is_empty() {
            return self.draw(logits);
        }
        let Adjustments { presence_penalty, frequency_penalty, bias } = &self.adjustments;
        let mut adjusted = logits.to_vec();
        let mut add = |token: u32, by: f32| {
            if let Some(logit) = adjusted.get_mut(token as usize) {
                *logit += by;
            }
        };
        bias.iter().for_each(|(token, by)| add(*token, *by));
        self.chosen.iter().for_each(|(token, n)| add(*token, -presence_penalty - frequency_penalty * *n as f32));
        let token = self.draw(&adjusted);
        if self.adjustments.penalises() {
            *self.chosen.entry(token).or_default() += 1;
        }
        token
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_p, top_k, .. } = self.sampling;
        if temperature <= 0.0 {
            return argmax(logits);
        }
        let larger = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let mut tokens: Vec<u32> = (0..logits.len() as u32).filter(|t| !logits[*t as usize].is_nan()).collect();
        if top_k > 0 && top_k < tokens.len() {
            tokens.select_nth_unstable_by(top_k - 1, larger);
            tokens.truncate(top_k);
        }
        tokens.sort_unstable_by(larger);
        let Some(first) = tokens.first() else { return 0 };
        let max = logits[*first as usize];
        let weights: Vec<f64> =
            tokens.iter().map(|t| f64::from(exp((logits[*t as usize] - max) / temperature))).collect();
        let enough = f64::from(top_p) * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let kept = 1 + weights.iter().position(|w| (sum += w, sum >= enough).1).unwrap_or(weights.len() - 1);
        let mut left = self.random.unit() * weights[..kept].iter().sum::<f64>();
        let chosen = weights[..kept].iter().position(|w| (left -= w, left < 0.0).1).unwrap_or(kept - 1);
        tokens[chosen]
    }
}

/// The index of the largest value, the first when equal; NaN never wins.
#[must_use]
pub fn argmax(values: &[f32]) -> u32 {
    // Many maxima side by side first: one after the other, a large vocabulary costs as much as a small layer.
    let mut lanes = [f32::NEG_INFINITY; 64];
    for block in values.chunks(lanes.len()) {
        for (max, v) in lanes.iter_mut().zip(block) {
            *max = if *v > *max { *v } else { *max };
        }
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let first = if max > f32::NEG_INFINITY { values.iter().position(|v| *v == max) } else { None };
    first.unwrap_or(0) as u32
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): 64 bits of state, any seed is good.
/// It chooses tokens and nothing else; it is no source of secrets.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0..1, 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling);
        let mut counts = vec![0; logits.len()];
        (0..10_000).for_each(|_| counts[sampler.choose(logits) as usize] += 1);
        counts
    }

    #[test]
    fn greedy_takes_the_lower_id_when_equal() {
        assert_eq!(Sampler::new(Sampling::GREEDY).choose(&[1.0, 3.0, f32::NAN, 3.0]), 1);
        let mut many = vec![-2.0; 1000];
        (many[130], many[777], many[999]) = (0.0, 7.0, 7.0);
        assert_eq!(argmax(&many), 777);
        assert_eq!((argmax(&[-0.0, 0.0]), argmax(&[f32::NAN, f32::NEG_INFINITY]), argmax(&[])), (0, 0, 0));
    }

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = SplitMix64(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn tokens_are_drawn_as_often_as_their_probabilities_say() {
        let logits = [0.1f32.ln(), 0.6f32.ln(), 0.3f32.ln()];
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
        for (count, expected) in counts(sampling, &logits).into_iter().zip([1000, 6000, 3000]) {
            assert!(count.abs_diff(expected) < 200, "expected about {expected}, got {count}");
        }
        assert_eq!(counts(Sampling { top_k: 2, ..sampling }, &logits)[0], 0);
        assert_eq!(counts(Sampling { top_p: 0.5, ..sampling }, &logits), [0, 10_000, 0]);
        assert_eq!(counts(Sampling { top_p: 0.85, ..sampling }, &logits)[0], 0);
    }

    #[test]
    fn penalties_and_biases_change_what_is_chosen() {
        let logits = [1.0, 1.5, 0.0, 1.2];
        let greedy = |adjustments, n: usize| {
            let mut sampler = Sampler::adjusted(Sampling::GREEDY, adjustments);
            (0..n).map(|_| sampler.choose(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(greedy(Adjustments { bias: vec![(2, 5.0), (9, 1.0)], ..Adjustments::default() }, 1), [2]);
        assert_eq!(greedy(Adjustments { bias: vec![(1, -100.0)], ..Adjustments::default() }, 2), [3, 3]);
        // Once chosen, a token is worth 1 less, however often; or 0.2 less each time.
        let presence = Adjustments { presence_penalty: 1.0, ..Adjustments::default() };
        assert_eq!(greedy(presence, 5), [1, 3, 0, 1, 1]);
        let frequency = Adjustments { frequency_penalty: 0.2, ..Adjustments::default() };
        assert_eq!(greedy(frequency, 4), [1, 1, 3, 1]);
    }

    #[test]
    fn one_seed_gives_one_text() {
        let sampling = Sampling { temperature: 2.0, seed: 42, ..Sampling::GREEDY };
        let draw = || {
            let mut sampler = Sampler::new(sampling);
            (0..50).map(|_| sampler.choose(&[0.0, 1.0, 2.0, 0.5])).collect::<Vec<_>>()
        };
        assert_eq!(draw(), draw());
    }
}
