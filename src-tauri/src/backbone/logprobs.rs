//! How likely the model itself held a chosen token and its rivals.
//!
//! The numbers are the model's: before temperature, penalties and biases, so that they compare across requests.

use crate::kernel::float::exp;

/// A token and the logarithm of its probability.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Logprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability, ≤ 0.
    pub logprob: f32,
}

/// A chosen token among its rivals.
#[derive(Clone, PartialEq, Debug)]
pub struct Logprobs {
    /// The chosen one.
    pub chosen: Logprob,
    /// The likeliest ones, the largest first, the lower id first when equal.
    pub top: Vec<Logprob>,
}

impl Logprobs {
    /// Of `token`, with the `top` likeliest tokens, from all logits of a row.
    #[must_use]
    pub fn of(logits: &[f32], token: u32, top: usize) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(exp(logit - max))).sum();
        let logprob = |token: u32| {
            let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
            Logprob { token, logprob: (f64::from(logit - max) - sum.ln()) as f32 }
        };
        let larger = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let mut tokens: Vec<u32> = (0..logits.len() as u32).filter(|t| !logits[*t as usize].is_nan()).collect();
        if top > 0 && top < tokens.len() {
            tokens.select_nth_unstable_by(top - 1, larger);
        }
        tokens.truncate(top);
        tokens.sort_unstable_by(larger);
        Self { chosen: logprob(token), top: tokens.into_iter().map(logprob).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_logarithms_of_the_softmax() {
        let logits = [0.1f32.ln() + 3.0, 0.6f32.ln() + 3.0, 0.3f32.ln() + 3.0];
        let found = Logprobs::of(&logits, 0, 2);
        assert!((found.chosen.logprob - 0.1f32.ln()).abs() < 1e-6);
        assert_eq!(found.top.iter().map(|l| l.token).collect::<Vec<_>>(), [1, 2]);
        assert!((found.top[0].logprob - 0.6f32.ln()).abs() < 1e-6);
        assert!(Logprobs::of(&logits, 2, 0).top.is_empty());
    }
}
