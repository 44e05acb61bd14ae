//! One generation on its way to a client: tokens become text, text becomes thoughts, answer and calls.
//!
//! Dropping it ends the generation within a step: that is how a client that goes away, and a stop text, end it.

use axum::http::StatusCode;
use tokio::sync::mpsc;

use super::ApiError;
use super::keys::Metered;
use super::speech::{Parser, Piece, StopTexts};
use crate::backbone::scheduler::{Choice, Event, Report};
use crate::backbone::{Finish, Logprob, Logprobs};
use crate::model::{TokenStream, Tokenizer, TokenizerError};

/// What comes next of an answer.
#[derive(Debug)]
pub enum Part {
    /// The prompt was read.
    Started,
    /// More of it; without pieces when a token completes no text.
    Said {
        /// What a client is told.
        pieces: Vec<Piece>,
        /// Of the token, if asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// Nothing follows; why, in the API's words.
    Ended(&'static str),
}

/// A token as bytes, and how likely it and its rivals were.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The chosen one.
    pub chosen: (Vec<u8>, f32),
    /// The likeliest ones.
    pub top: Vec<(Vec<u8>, f32)>,
}

/// See the module.
pub struct Answer {
    events: mpsc::Receiver<Event>,
    tokenizer: Tokenizer,
    text: TokenStream,
    stop: StopTexts,
    parser: Option<Parser>,
    /// Said, but for its end.
    ended: Option<&'static str>,
    metered: Metered,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// What was spent so far.
    pub report: Report,
}

impl Answer {
    /// Reads `events`; without a parser, all text is answer.
    pub fn new(
        events: mpsc::Receiver<Event>,
        tokenizer: &Tokenizer,
        stop: Vec<String>,
        parser: Option<Parser>,
        (metered, prompt_tokens): (Metered, usize),
    ) -> Self {
        Self {
            events,
            tokenizer: tokenizer.clone(),
            text: tokenizer.stream(),
            stop: StopTexts::new(stop),
            parser,
            ended: None,
            metered,
            prompt_tokens,
            report: Report::default(),
        }
    }

    /// The next part. Nothing may be asked for after [`Part::Ended`] or an error.
    ///
    /// # Errors
    /// What ended the generation before its text was complete.
    pub async fn next(&mut self) -> Result<Part, ApiError> {
        if let Some(why) = self.ended {
            return Ok(Part::Ended(why));
        }
        match self.events.recv().await {
            Some(Event::Prefilled(report)) => {
                self.note(report);
                self.metered.usage.prompt_tokens = self.prompt_tokens as u64;
                Ok(Part::Started)
            }
            Some(Event::Token(choice, report)) => {
                self.note(report);
                self.token(&choice)
            }
            Some(Event::End(Ok((finish, report)))) => {
                self.note(report);
                Ok(self.end(finish))
            }
            Some(Event::End(Err(error))) => Err(error.into()),
            None => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "cancelled", "the server stops: try again")),
        }
    }

    fn note(&mut self, report: Report) {
        self.report = report;
        self.metered.usage.new_tokens = report.tokens as u64;
        self.metered.usage.assignments_remote = report.served.remote;
    }

    fn token(&mut self, choice: &Choice) -> Result<Part, ApiError> {
        let text = self.text.push(choice.token).map_err(ApiError::internal)?;
        let (sure, stopped) = self.stop.push(&text);
        let mut pieces = self.parse(&sure);
        if stopped {
            pieces.extend(self.parser.as_mut().map(Parser::finish).unwrap_or_default());
            self.ended = Some(self.reason("stop"));
            self.events.close();
        }
        let logprobs = choice.logprobs.as_ref().map(|l| self.logprobs(l)).transpose().map_err(ApiError::internal)?;
        Ok(Part::Said { pieces, logprobs })
    }

    fn logprobs(&self, of: &Logprobs) -> Result<TokenLogprobs, TokenizerError> {
        let bytes = |l: &Logprob| self.tokenizer.token_bytes(l.token).map(|bytes| (bytes, l.logprob));
        let top = of.top.iter().map(bytes).collect::<Result<_, _>>()?;
        Ok(TokenLogprobs { chosen: bytes(&of.chosen)?, top })
    }

    /// The last pieces: what waited for more text.
    fn end(&mut self, finish: Finish) -> Part {
        let left = std::mem::replace(&mut self.text, self.tokenizer.stream()).finish();
        let (mut sure, stopped) = self.stop.push(&left);
        if !stopped {
            sure.push_str(&self.stop.finish());
        }
        let mut pieces = self.parse(&sure);
        pieces.extend(self.parser.as_mut().map(Parser::finish).unwrap_or_default());
        self.ended = Some(match finish {
            Finish::Length | Finish::Context if !stopped => "length",
            _ => self.reason("stop"),
        });
        Part::Said { pieces, logprobs: None }
    }

    fn reason(&self, otherwise: &'static str) -> &'static str {
        if self.parser.as_ref().is_some_and(Parser::has_called) { "tool_calls" } else { otherwise }
    }

    fn parse(&mut self, text: &str) -> Vec<Piece> {
        match &mut self.parser {
            _ if text.is_empty() => Vec::new(),
            Some(parser) => parser.push(text),
            None => vec![Piece::Content(text.to_owned())],
        }
    }
}
