//! Greedy decodes that advance step by step, and the comparison of two of them.

use std::time::{Duration, Instant};

use crate::backbone::{Backbone, ForwardError, Rows, Sequence, Want, argmax};

/// A greedy decode that notes its tokens and times.
pub struct Decode {
    backbone: Backbone,
    sequence: Sequence,
    /// The tokens so far.
    pub tokens: Vec<u32>,
    steps: Vec<Duration>,
}

impl Decode {
    /// Before the first step.
    #[must_use]
    pub fn new(backbone: Backbone) -> Self {
        let sequence = backbone.sequence();
        Self { backbone, sequence, tokens: Vec::new(), steps: Vec::new() }
    }

    /// Runs one step and takes the most likely next token; gives the logits of every row.
    ///
    /// # Errors
    /// A step that failed.
    pub async fn step(&mut self, input: &[u32]) -> Result<Rows, ForwardError> {
        let start = Instant::now();
        let logits = self.backbone.forward(&mut self.sequence, input, Want::Every).await?;
        self.steps.push(start.elapsed());
        self.tokens.push(argmax(logits.last().row(0)));
        Ok(logits)
    }

    /// Runs steps until there are `tokens` tokens.
    ///
    /// # Errors
    /// A step that failed.
    pub async fn run(&mut self, prompt: &[u32], tokens: usize) -> Result<(), ForwardError> {
        let mut input = prompt.to_vec();
        while self.tokens.len() < tokens {
            self.step(&input).await?;
            input = self.tokens[self.tokens.len() - 1..].to_vec();
        }
        Ok(())
    }

    /// One-token steps per second; the first step, which may be a prompt's, does not count.
    #[must_use]
    pub fn tok_per_s(&self) -> f64 {
        let decode: Duration = self.steps.iter().skip(1).sum();
        if decode.is_zero() { 0.0 } else { (self.steps.len() - 1) as f64 / decode.as_secs_f64() }
    }

    /// How much longer the slowest one-token step took than the median one.
    #[must_use]
    pub fn added_latency_ms(&self) -> f64 {
        let mut steps: Vec<Duration> = self.steps.iter().skip(1).copied().collect();
        steps.sort_unstable();
        let (Some(slowest), Some(median)) = (steps.last(), steps.get(steps.len() / 2)) else { return 0.0 };
        (*slowest - *median).as_secs_f64() * 1e3
    }
}

/// What comparing two runs' logits found.
pub struct Comparison {
    /// Whether every logit had the same bits.
    pub bit_identical: bool,
    /// Smallest cosine over the rows.
    pub cosine_min: f64,
}

impl Default for Comparison {
    fn default() -> Self {
        Self { bit_identical: true, cosine_min: 1.0 }
    }
}

impl Comparison {
    /// Compares the logits of the same rows.
    pub fn add(&mut self, a: &Rows, b: &Rows) {
        for (a, b) in a.iter().zip(b.iter()) {
            self.bit_identical &= a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits());
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
            let norm = (dot(a, a) * dot(b, b)).sqrt();
            let cosine = if norm == 0.0 { 1.0 } else { dot(a, b) / norm };
            // Rounding may pass 1 by an ulp.
            self.cosine_min = self.cosine_min.min(cosine.min(1.0));
        }
    }
}
