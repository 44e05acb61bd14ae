//! What both kinds of request may say about how their text is made.

use serde_json::Value;

use super::fields::{Fields, quote, wrong};
use crate::backbone::api::ApiError;
use crate::backbone::{Adjustments, Reach, Sampling};

/// Texts that may end an answer, and their longest: four in OpenAI's own API, some clients send more.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 512;
/// Tokens that may be biased.
const BIASES_MAX: usize = 1024;
/// Rivals of a token that can be asked for.
pub const TOP_LOGPROBS_MAX: i64 = 20;

/// How a text is made and sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Common {
    /// Most new tokens, if the client says.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// What is added to the logits.
    pub adjustments: Adjustments,
    /// Texts that end the answer and do not belong to it.
    pub stop: Vec<String>,
    /// Whether the answer comes as server-sent events.
    pub stream: bool,
    /// Whether these end with the usage.
    pub include_usage: bool,
    /// Where the hidden states may go.
    pub reach: Reach,
}

impl Common {
    /// Takes its fields.
    ///
    /// # Errors
    /// 400 with the field that is wrong.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        // Any name is served by the one model that is loaded.
        if let Some(other) = fields.take("model").filter(|model| !model.is_string()) {
            return Err(wrong("model", "a name", &other));
        }
        for ignored in ["user", "metadata", "parallel_tool_calls"] {
            fields.take(ignored);
        }
        fields.only("store", false)?;
        fields.only("n", 1)?;
        response_format(fields.take("response_format"))?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        Ok(Self {
            max_tokens: max_tokens(fields)?,
            sampling: sampling(fields)?,
            adjustments: Adjustments {
                presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
                frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
                bias: logit_bias(fields.take("logit_bias"))?,
            },
            stop: stop(fields.take("stop"))?,
            include_usage: stream_options(fields.take("stream_options"), stream)?,
            stream,
            reach: route(fields.take("route"))?,
        })
    }
}

/// `max_completion_tokens` is the younger name of `max_tokens`.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.integer("max_tokens", 1..=i64::MAX)?;
    let new = fields.integer("max_completion_tokens", 1..=i64::MAX)?;
    Ok(new.or(old).map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
}

fn sampling(fields: &mut Fields) -> Result<Sampling, ApiError> {
    let people = Sampling::PEOPLE;
    let top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(people.top_p);
    if top_p == 0.0 {
        return Err(wrong("top_p", "more than 0", &0));
    }
    let top_k = fields.integer("top_k", -1..=i64::MAX)?;
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(people.temperature),
        top_p,
        // −1 is how some clients write "all".
        top_k: top_k.map_or(people.top_k, |k| usize::try_from(k).unwrap_or(0)),
        // Without randomness the same text twice is a better answer than none.
        seed: seed.map_or_else(|| getrandom::u64().unwrap_or(0), |seed| seed as u64),
    })
}

fn response_format(value: Option<Value>) -> Result<(), ApiError> {
    let Some(value) = value else { return Ok(()) };
    let mut fields = Fields::within("response_format", value)?;
    match fields.take("type") {
        Some(Value::String(kind)) if kind == "text" => fields.finish(Some("response_format")),
        other => Err(wrong("response_format.type", "\"text\"", &other.unwrap_or(Value::Null))),
    }
}

fn stream_options(value: Option<Value>, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = value else { return Ok(false) };
    if !stream {
        return Err(ApiError::field("stream_options", "stream_options: expected stream = true beside it"));
    }
    let mut fields = Fields::within("stream_options", value)?;
    let include = fields.take("include_usage");
    // Padding against eavesdroppers, which newer clients may ask to leave out; none is sent.
    fields.take("include_obfuscation");
    fields.finish(Some("stream_options"))?;
    match include {
        None => Ok(false),
        Some(Value::Bool(include)) => Ok(include),
        Some(other) => Err(wrong("stream_options.include_usage", "true or false", &other)),
    }
}

fn stop(value: Option<Value>) -> Result<Vec<String>, ApiError> {
    let texts = match value {
        None => return Ok(Vec::new()),
        Some(Value::Array(texts)) => texts,
        Some(text) => vec![text],
    };
    if texts.len() > STOPS_MAX {
        return Err(wrong("stop", &format!("at most {STOPS_MAX} texts"), &texts.len()));
    }
    let read = |text: Value| match text {
        Value::String(text) if !text.is_empty() && text.len() <= STOP_BYTES_MAX => Ok(text),
        other => Err(wrong("stop", &format!("texts of 1 to {STOP_BYTES_MAX} bytes"), &other)),
    };
    texts.into_iter().map(read).collect()
}

fn logit_bias(value: Option<Value>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let Value::Object(biases) = value else {
        return Err(wrong("logit_bias", "an object from token ids to −100..100", &value));
    };
    if biases.len() > BIASES_MAX {
        return Err(wrong("logit_bias", &format!("at most {BIASES_MAX} tokens"), &biases.len()));
    }
    let read = |(token, bias): (String, Value)| {
        let id = token.parse().map_err(|_| wrong("logit_bias", "token ids as keys", &token))?;
        match bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)) {
            Some(bias) => Ok((id, bias as f32)),
            None => Err(wrong("logit_bias", "−100..100 for each token", &format!("{bias} for {}", quote(&token)))),
        }
    };
    biases.into_iter().map(read).collect()
}

fn route(value: Option<Value>) -> Result<Reach, ApiError> {
    match value.as_ref().map(Value::as_str) {
        None => Ok(Reach::Any),
        Some(Some("any")) => Ok(Reach::Any),
        Some(Some("local")) => Ok(Reach::Local),
        Some(Some("trusted")) => Ok(Reach::Trusted),
        _ => Err(wrong("route", "\"any\", \"trusted\" or \"local\"", &value.unwrap_or_default())),
    }
}
