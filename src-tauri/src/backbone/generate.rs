//! Continues a prompt, token by token.

use super::rows::Rows;
use super::sampler::{Sampler, Sampling};
use super::sequence::Sequence;
use super::speculate::{Drafter, Load, Pace, Room, Speculation, Tally};
use super::step::{Reach, Share, Want};
use super::{Backbone, ForwardError, PREFILL_TOKENS};
use crate::model::{TokenStream, TokenizerError};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use tokio::task::yield_now;

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
    /// The drafts of its steps.
    pub tally: Tally,
}

/// Where the time of a generation went.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// From the start to the first token's logits.
    pub prefill: Duration,
    /// Steps after it.
    pub decode_steps: usize,
    /// Tokens that they gave: one each, and the drafts that were right.
    pub decode_tokens: usize,
    /// All of them together.
    pub decode: Duration,
}

impl Timing {
    /// Tokens after the first per second; 0 without any.
    #[must_use]
    pub fn decode_tokens_per_s(&self) -> f64 {
        per_second(self.decode_tokens, self.decode)
    }

    /// Tokens of a step after the prompt; 0 without any.
    #[must_use]
    pub fn tokens_per_step(&self) -> f64 {
        if self.decode_steps == 0 { 0.0 } else { self.decode_tokens as f64 / self.decode_steps as f64 }
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

/// A text as it grows, and what ends it.
struct Text<'a, F> {
    options: &'a GenerateOptions,
    context: usize,
    sampler: Sampler,
    stream: Option<TokenStream>,
    tokens: Vec<u32>,
    text: String,
    receive: F,
}

impl<F: FnMut(Piece<'_>) -> ControlFlow<()>> Text<'_, F> {
    /// Chooses the token after `seen` tokens and gives it out.
    fn go_on(&mut self, logits: &[f32], seen: usize) -> Result<ControlFlow<Finish, u32>, TokenizerError> {
        if self.tokens.len() >= self.options.max_tokens {
            return Ok(ControlFlow::Break(Finish::Length));
        }
        let token = self.sampler.choose(logits);
        if self.options.stop_ids.contains(&token) {
            return Ok(ControlFlow::Break(Finish::Stop));
        }
        self.tokens.push(token);
        let piece = match &mut self.stream {
            Some(stream) => stream.push(token)?,
            None => String::new(),
        };
        self.text.push_str(&piece);
        Ok(if (self.receive)(Piece { token, text: &piece }).is_break() {
            ControlFlow::Break(Finish::Cancelled)
        } else if self.tokens.len() >= self.options.max_tokens {
            ControlFlow::Break(Finish::Length)
        } else if seen >= self.context {
            ControlFlow::Break(Finish::Context)
        } else {
            ControlFlow::Continue(token)
        })
    }
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
        receive: impl FnMut(Piece<'_>) -> ControlFlow<()> + Send,
    ) -> Result<Generation, GenerateError> {
        self.generate_with(Speculation::OFF, prompt, options, receive).await
    }

    /// The same text, several tokens of a step where drafts are right.
    ///
    /// # Errors
    /// As [`Backbone::generate`].
    pub async fn generate_with(
        &self,
        speculation: Speculation,
        prompt: &[u32],
        options: &GenerateOptions,
        receive: impl FnMut(Piece<'_>) -> ControlFlow<()> + Send,
    ) -> Result<Generation, GenerateError> {
        let context = self.model().hyper.context_length;
        let mut text = Text {
            options,
            context,
            sampler: Sampler::new(options.sampling),
            stream: self.model().tokenizer.as_ref().map(|tokenizer| tokenizer.stream()),
            tokens: Vec::new(),
            text: String::new(),
            receive,
        };
        let mut sequence = self.sequence();
        let room = prompt.len().saturating_add(options.max_tokens).min(context);
        let mut drafter = Drafter::new(self, speculation, prompt, room);
        let mut pace = Pace::default();

        let start = Instant::now();
        let mut logits = self.prefill_for(Some(&mut drafter), &mut sequence, prompt).await?;
        let prefilled = Instant::now();
        let (mut decode_steps, mut decode_tokens, mut tally) = (0, 0, Tally::default());
        let mut hidden = Rows::default();
        let finish = loop {
            let seen = sequence.position;
            let (mut newest, mut end) = (0, None);
            for row in 0..logits.len() {
                decode_tokens += usize::from(decode_steps > 0);
                match text.go_on(logits.row(row), seen + row)? {
                    ControlFlow::Continue(token) => newest = token,
                    ControlFlow::Break(finish) => {
                        end = Some(finish);
                        break;
                    }
                }
                if !drafter.take(newest) {
                    break;
                }
            }
            let verdict = drafter.judge(end.is_none());
            tally.add(verdict);
            if let Some(finish) = end {
                break finish;
            }
            let accepted = verdict.accepted as usize;
            self.accept(&mut sequence, accepted);
            if decode_steps > 0 {
                drafter.read(seen - 1, hidden.width(), hidden.part(0, accepted + 1));
            }

            let left = (options.max_tokens - text.tokens.len()).min(context - sequence.position);
            pace.begin(Load::default());
            drafter.plan(left - 1, &mut Room::default(), &pace);
            pace.made(self.make_drafts(&mut [(&mut drafter, &text.sampler)]).await);
            let tokens: Vec<u32> = [newest].iter().chain(drafter.drafts()).copied().collect();
            let share = Share { sequence: &mut sequence, tokens: &tokens, want: Want::Drafts, reach: Reach::Any };
            let began = Instant::now();
            let mut output = self.step_with_hidden(&mut [share], &mut hidden).await?;
            pace.stepped(Load::default(), tokens.len(), began.elapsed());
            logits = output.logits.pop().unwrap_or_default();
            decode_steps += 1;
        };
        let decode = prefilled.elapsed();
        let Text { stream, tokens, text: mut said, .. } = text;
        said.push_str(&stream.map_or_else(String::new, TokenStream::finish));
        let timing =
            Timing { prompt_tokens: prompt.len(), prefill: prefilled - start, decode_steps, decode_tokens, decode };
        Ok(Generation { tokens, text: said, finish, timing, tally })
    }

    /// Runs `prompt` and returns the logits of its last row, `[1, vocab]`.
    ///
    /// # Errors
    /// As [`Backbone::step`]; a prompt longer than the context fails before any work.
    pub async fn prefill(&self, sequence: &mut Sequence, prompt: &[u32]) -> Result<Rows, ForwardError> {
        self.prefill_for(None, sequence, prompt).await
    }

    /// The same, and lets a drafter read along.
    async fn prefill_for(
        &self,
        drafter: Option<&mut Drafter>,
        sequence: &mut Sequence,
        prompt: &[u32],
    ) -> Result<Rows, ForwardError> {
        self.check_tokens(sequence, prompt)?;
        let mut reader = drafter.filter(|drafter| drafter.reads_hidden());
        let (mut logits, mut hidden) = (Rows::default(), Rows::default());
        for tokens in prompt.chunks(PREFILL_TOKENS) {
            let first = sequence.position;
            match &mut reader {
                None => logits = self.forward(sequence, tokens, Want::Last).await?,
                Some(drafter) => {
                    let share = Share { sequence: &mut *sequence, tokens, want: Want::Last, reach: Reach::Any };
                    let mut output = self.step_with_hidden(&mut [share], &mut hidden).await?;
                    logits = output.logits.pop().unwrap_or_default();
                    drafter.read(first, hidden.width(), hidden.values());
                }
            }
            // Local experts never wait: without this, whoever races the prefill against a stop would never be asked.
            yield_now().await;
        }
        Ok(logits)
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
