//! Continues a prompt, token by token.

use super::sampler::{Sampler, Sampling};
use super::{Backbone, ForwardError, Want};
use crate::model::{TokenStream, TokenizerError};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What ends a generation, and how it chooses.
#[derive(Clone, PartialEq, Debug)]
pub struct GenerateOptions {
    /// Most new tokens.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the text and do not belong to it.
    pub stop_ids: Vec<u32>,
}

/// Why a generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model said a stop token.
    Stop,
    /// As many tokens as asked for.
    Length,
    /// The model's context is full.
    Context,
    /// The receiver of the tokens wanted no more.
    Cancelled,
}

/// A new token, given out as soon as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// The token.
    pub token: u32,
    /// The text that it completes; may be empty inside a character, and is empty without a tokenizer.
    pub text: &'a str,
}

/// A finished generation.
#[derive(Clone, PartialEq, Debug)]
pub struct Generation {
    /// The new tokens, without a stop token.
    pub tokens: Vec<u32>,
    /// Their text; empty without a tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// How long it took.
    pub timing: Timing,
}

/// Where the time of a generation went.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// From the start to the first token's logits.
    pub prefill: Duration,
    /// One-token steps.
    pub decode_steps: usize,
    /// All of them together.
    pub decode: Duration,
}

impl Timing {
    /// One-token steps per second; 0 without any.
    #[must_use]
    pub fn decode_tokens_per_s(&self) -> f64 {
        per_second(self.decode_steps, self.decode)
    }

    /// Prompt tokens per second.
    #[must_use]
    pub fn prefill_tokens_per_s(&self) -> f64 {
        per_second(self.prompt_tokens, self.prefill)
    }
}

fn per_second(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Why a generation failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A step failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The tokens have no text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl Backbone {
    /// Continues `prompt` and gives every new token to `receive`, which may end the generation. Dropping the future
    /// cancels it, and with it what it had asked of others; a long prompt can be left between two of its passes.
    ///
    /// # Errors
    /// An empty or illegal prompt, one that leaves no room in the context, or a step that failed.
    pub async fn generate(
        &self,
        prompt: &[u32],
        options: &GenerateOptions,
        mut receive: impl FnMut(Piece<'_>) -> ControlFlow<()> + Send,
    ) -> Result<Generation, GenerateError> {
        let mut sequence = self.sequence();
        let mut sampler = Sampler::new(options.sampling);
        let mut stream = self.model().tokenizer.as_ref().map(|tokenizer| tokenizer.stream());
        let (mut tokens, mut text) = (Vec::new(), String::new());

        let start = Instant::now();
        let mut logits = self.prefill(&mut sequence, prompt).await?;
        let prefilled = Instant::now();
        let mut decode_steps = 0;
        let finish = loop {
            if tokens.len() >= options.max_tokens {
                break Finish::Length;
            }
            let token = sampler.choose(logits.row(0));
            if options.stop_ids.contains(&token) {
                break Finish::Stop;
            }
            tokens.push(token);
            let piece = match &mut stream {
                Some(stream) => stream.push(token)?,
                None => String::new(),
            };
            text.push_str(&piece);
            if receive(Piece { token, text: &piece }).is_break() {
                break Finish::Cancelled;
            }
            if tokens.len() >= options.max_tokens {
                break Finish::Length;
            }
            if sequence.position >= self.model().hyper.context_length {
                break Finish::Context;
            }
            logits = self.forward(&mut sequence, &[token], Want::Last).await?;
            decode_steps += 1;
        };
        let decode = prefilled.elapsed();
        text.push_str(&stream.map_or_else(String::new, TokenStream::finish));
        let timing = Timing { prompt_tokens: prompt.len(), prefill: prefilled - start, decode_steps, decode };
        Ok(Generation { tokens, text, finish, timing })
    }

    /// How fast this backbone is: a prompt of `prompt_tokens` arbitrary tokens and `steps` greedy one-token steps.
    ///
    /// # Errors
    /// As [`Backbone::generate`].
    pub async fn time(&self, prompt_tokens: usize, steps: usize) -> Result<Timing, GenerateError> {
        let vocab = self.model().weights.embedding.rows;
        let prompt: Vec<u32> = (0..prompt_tokens).map(|i| (i * 7919 % vocab) as u32).collect();
        let options = GenerateOptions { max_tokens: steps + 1, sampling: Sampling::GREEDY, stop_ids: Vec::new() };
        Ok(self.generate(&prompt, &options, |_| ControlFlow::Continue(())).await?.timing)
    }
}
