//! One stream through far workers with and without drafts, text after text in turn, so that both meet the same machine.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::far::Far;
use crate::backbone::generate::GenerateError;
use crate::backbone::{Backbone, GenerateOptions, Sampling, Speculation, Tally};
use crate::demo::DemoError;

/// What to measure.
pub struct SpeculateOptions {
    /// The model and its network.
    pub far: Far,
    /// Who drafts.
    pub speculation: Speculation,
    /// What is continued.
    pub prompts: Vec<Vec<u32>>,
    /// New tokens of each.
    pub tokens: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeculateBench {
    /// Model name.
    pub model: String,
    /// Round trip that was added.
    pub rtt_ms: f64,
    /// Remote layers.
    pub remote_layers: usize,
    /// Workers.
    pub workers: usize,
    /// Texts.
    pub texts: usize,
    /// New tokens of each.
    pub tokens: usize,
    /// Greedy decode without drafts.
    pub plain_tok_per_s: f64,
    /// The same with them.
    pub speculative_tok_per_s: f64,
    /// By how much faster it is.
    pub speedup: f64,
    /// Drafts that were judged.
    pub drafted: u64,
    /// Those of them that were right.
    pub accepted: u64,
    /// Their share.
    pub acceptance: Option<f64>,
    /// Tokens of a step, and so of a lap.
    pub tokens_per_step: f64,
    /// Texts whose tokens are those of the run without drafts.
    pub texts_identical: usize,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum SpeculateBenchError {
    /// A network that does not come up.
    #[error(transparent)]
    Network(#[from] DemoError),
    /// A text that failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

/// Tokens after the first of several texts, their steps and their time.
#[derive(Default)]
struct Sum {
    tokens: usize,
    steps: usize,
    time: Duration,
    tally: Tally,
}

impl Sum {
    /// Continues `prompt`; gives its tokens.
    async fn add(
        &mut self,
        backbone: &Backbone,
        speculation: Speculation,
        prompt: &[u32],
        tokens: usize,
    ) -> Result<Vec<u32>, GenerateError> {
        let options = GenerateOptions { max_tokens: tokens, sampling: Sampling::GREEDY, stop_ids: Vec::new() };
        let go_on = |_: crate::backbone::Piece<'_>| ControlFlow::Continue(());
        let found = backbone.generate_with(speculation, prompt, &options, go_on).await?;
        self.tokens += found.timing.decode_tokens;
        self.steps += found.timing.decode_steps;
        self.time += found.timing.decode;
        self.tally.add(found.tally);
        Ok(found.tokens)
    }

    fn tok_per_s(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.tokens as f64 / self.time.as_secs_f64() }
    }
}

/// Measures.
///
/// # Errors
/// A network that does not come up, or a step that fails.
pub async fn speculate(options: SpeculateOptions) -> Result<SpeculateBench, SpeculateBenchError> {
    let SpeculateOptions { far, speculation, prompts, tokens } = options;
    let (network, model) = (far.start().await?, Arc::clone(&far.model));
    let backbone = Backbone::new(Arc::clone(&model), Arc::new(network.dispatch.clone())).map_err(DemoError::from)?;
    let (mut plain, mut drafted, mut texts_identical) = (Sum::default(), Sum::default(), 0);
    for prompt in &prompts {
        let without = plain.add(&backbone, Speculation::OFF, prompt, tokens).await?;
        let with = drafted.add(&backbone, speculation, prompt, tokens).await?;
        texts_identical += usize::from(without == with);
    }
    network.stop().await?;
    let (plain_tok_per_s, speculative_tok_per_s) = (plain.tok_per_s(), drafted.tok_per_s());
    Ok(SpeculateBench {
        model: model.name.clone(),
        rtt_ms: far.rtt_ms(),
        remote_layers: far.remote_layers.len(),
        workers: far.count(),
        texts: prompts.len(),
        tokens,
        plain_tok_per_s,
        speculative_tok_per_s,
        speedup: if plain_tok_per_s > 0.0 { speculative_tok_per_s / plain_tok_per_s } else { 0.0 },
        drafted: drafted.tally.drafted,
        accepted: drafted.tally.accepted,
        acceptance: drafted.tally.acceptance(),
        tokens_per_step: drafted.tokens as f64 / drafted.steps.max(1) as f64,
        texts_identical,
    })
}

impl fmt::Display for SpeculateBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, {} texts of {} tokens, greedy, {} remote layers on {} workers at {} ms",
            self.model, self.texts, self.tokens, self.remote_layers, self.workers, self.rtt_ms
        )?;
        writeln!(f, "  without drafts {:8.2} tok/s", self.plain_tok_per_s)?;
        write!(
            f,
            "  with drafts    {:8.2} tok/s, {:.2} times as fast: {:.2} tokens a step, {} of {} drafts right, {} of {} texts \
             identical",
            self.speculative_tok_per_s,
            self.speedup,
            self.tokens_per_step,
            self.accepted,
            self.drafted,
            self.texts_identical,
            self.texts
        )
    }
}
