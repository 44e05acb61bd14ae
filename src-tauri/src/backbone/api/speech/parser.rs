//! Tells thoughts, answer and tool calls apart.
//!
//! Thoughts stand between `<think>` and `</think>`; the first may be part of the prompt already. Calls are written as
//! `<tool_call>` `<function=NAME>` `<parameter=P>` value `</parameter>` … `</function>` `</tool_call>` (Qwen3.5), or as
//! one JSON object between the outer two (Qwen3).

use serde_json::Value;

use super::begun;
use super::call::Call;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Something that a client can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// More of the thoughts.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A call begins, the `index`-th.
    Call {
        /// Counted from 0.
        index: usize,
        /// Of which tool.
        name: String,
    },
    /// More of the newest call's arguments, a JSON object in the end.
    Arguments {
        /// The call.
        index: usize,
        /// JSON.
        json: String,
    },
}

#[derive(Debug)]
enum State {
    /// Nothing but blanks so far: thoughts may begin.
    Start,
    Thinking,
    Answer,
    /// After `<tool_call>`: a function or an object follows.
    Called,
    /// Within a function, between its parameters.
    Function(Call),
    Parameter(Call, String),
    /// After a call, before its `</tool_call>`.
    CallEnd,
}

/// See the module.
#[derive(Debug)]
pub struct Parser {
    /// What calls are read with; none = calls are text like any other.
    tools: Vec<Value>,
    state: State,
    held: String,
    calls: usize,
    /// Whether the newest call lacks some of its arguments.
    open: bool,
    /// Blanks before `<tool_call>`: part of the answer only if no call follows.
    gap: String,
    /// Whether the answer has begun; blanks before it are not part of it.
    begun: bool,
}

impl Parser {
    /// For an answer that may call `tools`; `thinking` when the prompt ends within the thoughts.
    #[must_use]
    pub fn new(tools: Vec<Value>, thinking: bool) -> Self {
        let state = if thinking { State::Thinking } else { State::Start };
        Self { tools, state, held: String::new(), calls: 0, open: false, gap: String::new(), begun: false }
    }

    /// Whether there are calls and the last one is complete: none that was cut off may be acted on.
    #[must_use]
    pub fn has_called(&self) -> bool {
        self.calls > 0 && !self.open
    }

    /// What `text` adds; what may still become a marker waits.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.advance(&mut pieces) {}
        pieces
    }

    /// What waited, once nothing follows. A parameter that was cut off stays cut off: its call is not complete.
    pub fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        let mut pieces = Vec::new();
        match &self.state {
            State::Start if held.trim().is_empty() => {}
            State::Start | State::Answer => say(&mut pieces, Piece::Content, held),
            State::Thinking => say(&mut pieces, Piece::Reasoning, held.trim_end().to_owned()),
            State::Called => say(&mut pieces, Piece::Content, format!("{}{CALL}{held}", self.gap)),
            State::Function(call) => {
                pieces.push(Piece::Arguments { index: self.calls - 1, json: call.end().to_owned() });
            }
            State::Parameter(..) | State::CallEnd => {}
        }
        self.state = State::Answer;
        pieces
    }

    /// Takes one more thing from what is held; `false` when more text is needed.
    fn advance(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match std::mem::replace(&mut self.state, State::Answer) {
            State::Start => self.start(),
            State::Thinking => self.thinking(pieces),
            State::Answer => self.answer(pieces),
            State::Called => self.called(pieces),
            State::Function(call) => self.function(call, pieces),
            State::Parameter(call, name) => self.parameter(call, name, pieces),
            State::CallEnd => self.call_end(),
        }
    }

    /// Needs more text.
    fn wait(&mut self, state: State) -> bool {
        self.state = state;
        false
    }

    /// Goes on in another state, behind the first `taken` bytes.
    fn go(&mut self, state: State, taken: usize) -> bool {
        self.held.drain(..taken);
        self.state = state;
        true
    }

    fn start(&mut self) -> bool {
        let text = self.held.trim_start();
        let blanks = self.held.len() - text.len();
        if text.starts_with(THINK) {
            return self.go(State::Thinking, blanks + THINK.len());
        }
        if THINK.starts_with(text) { self.wait(State::Start) } else { self.go(State::Answer, 0) }
    }

    fn thinking(&mut self, pieces: &mut Vec<Piece>) -> bool {
        if !self.begun {
            let blanks = self.held.len() - self.held.trim_start().len();
            self.held.drain(..blanks);
            self.begun = !self.held.is_empty();
        }
        if let Some(end) = self.held.find(THINK_END) {
            say(pieces, Piece::Reasoning, self.held[..end].trim_end().to_owned());
            self.begun = false;
            return self.go(State::Answer, end + THINK_END.len());
        }
        // Blanks before the end of the thoughts are not part of them.
        let sure = self.held.len() - begun(&self.held, THINK_END);
        let sure = self.held[..sure].trim_end().len();
        say(pieces, Piece::Reasoning, self.held.drain(..sure).collect());
        self.wait(State::Thinking)
    }

    fn answer(&mut self, pieces: &mut Vec<Piece>) -> bool {
        if !self.begun {
            let blanks = self.held.len() - self.held.trim_start_matches('\n').len();
            self.held.drain(..blanks);
            self.begun = !self.held.is_empty();
        }
        if self.tools.is_empty() {
            say(pieces, Piece::Content, std::mem::take(&mut self.held));
            return self.wait(State::Answer);
        }
        if let Some(at) = self.held.find(CALL) {
            let answer = self.held[..at].trim_end();
            self.gap = self.held[answer.len()..at].to_owned();
            say(pieces, Piece::Content, answer.to_owned());
            return self.go(State::Called, at + CALL.len());
        }
        // Blanks before a call are not part of the answer.
        let sure = self.held.len() - begun(&self.held, CALL);
        let sure = self.held[..sure].trim_end().len();
        say(pieces, Piece::Content, self.held.drain(..sure).collect());
        self.wait(State::Answer)
    }

    fn called(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let text = self.held.trim_start();
        let blanks = self.held.len() - text.len();
        if let Some(name) = text.strip_prefix(FUNCTION) {
            let Some(end) = name.find('>') else { return self.wait(State::Called) };
            let (name, taken) = (name[..end].to_owned(), blanks + FUNCTION.len() + end + 1);
            let call = Call::new(&name, &self.tools);
            self.call(name, pieces);
            return self.go(State::Function(call), taken);
        }
        if text.starts_with('{') {
            let Some(end) = text.find(CALL_END) else { return self.wait(State::Called) };
            if let Ok(Value::Object(call)) = serde_json::from_str(text[..end].trim())
                && let Some(name) = call.get("name").and_then(Value::as_str)
            {
                let json = call.get("arguments").map_or_else(|| "{}".to_owned(), Value::to_string);
                self.call(name.to_owned(), pieces);
                pieces.push(Piece::Arguments { index: self.calls - 1, json });
                self.open = false;
                return self.go(State::CallEnd, blanks + end);
            }
        } else if FUNCTION.starts_with(text) {
            return self.wait(State::Called);
        }
        say(pieces, Piece::Content, std::mem::take(&mut self.gap) + CALL);
        self.go(State::Answer, 0)
    }

    fn call(&mut self, name: String, pieces: &mut Vec<Piece>) {
        pieces.push(Piece::Call { index: self.calls, name });
        self.calls += 1;
        self.open = true;
    }

    fn function(&mut self, call: Call, pieces: &mut Vec<Piece>) -> bool {
        let first = [PARAMETER, FUNCTION_END, CALL_END].into_iter().filter_map(|m| Some((self.held.find(m)?, m))).min();
        let Some((at, marker)) = first else { return self.wait(State::Function(call)) };
        if marker == PARAMETER {
            let name = &self.held[at + PARAMETER.len()..];
            let Some(end) = name.find('>') else { return self.wait(State::Function(call)) };
            let (name, taken) = (name[..end].to_owned(), at + PARAMETER.len() + end + 1);
            return self.go(State::Parameter(call, name), taken);
        }
        pieces.push(Piece::Arguments { index: self.calls - 1, json: call.end().to_owned() });
        self.open = false;
        self.go(State::CallEnd, at + if marker == FUNCTION_END { FUNCTION_END.len() } else { 0 })
    }

    fn parameter(&mut self, mut call: Call, name: String, pieces: &mut Vec<Piece>) -> bool {
        let Some(end) = self.held.find(PARAMETER_END) else { return self.wait(State::Parameter(call, name)) };
        let json = call.parameter(&name, &self.held[..end]);
        pieces.push(Piece::Arguments { index: self.calls - 1, json });
        self.go(State::Function(call), end + PARAMETER_END.len())
    }

    fn call_end(&mut self) -> bool {
        let text = self.held.trim_start();
        let blanks = self.held.len() - text.len();
        if text.starts_with(CALL_END) {
            self.begun = false;
            return self.go(State::Answer, blanks + CALL_END.len());
        }
        if CALL_END.starts_with(text) { self.wait(State::CallEnd) } else { self.go(State::Answer, 0) }
    }
}

fn say(pieces: &mut Vec<Piece>, kind: fn(String) -> Piece, text: String) {
    if !text.is_empty() {
        pieces.push(kind(text));
    }
}
