//! The body of `POST /v1/chat/completions`: a conversation, and the tools that the answer may call.

use serde::Deserialize;
use serde_json::Value;

use super::common::{Common, TOP_LOGPROBS_MAX};
use super::fields::{Fields, wrong};
use crate::backbone::api::ApiError;
use crate::model::{ChatMessage, Ordered};

/// Tools in one request.
const TOOLS_MAX: usize = 128;

/// A conversation and how to continue it.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// The conversation.
    pub messages: Vec<ChatMessage>,
    /// Tools that the answer may call, as the template prints them; empty when it may call none.
    pub tools: Vec<Ordered>,
    /// The same, to read calls with.
    pub schemas: Vec<Value>,
    /// Whether the model is to think first; the template decides when the client does not.
    pub enable_thinking: Option<bool>,
    /// How.
    pub common: Common,
    /// Whether each token comes with its probability, and with those of so many rivals.
    pub logprobs: Option<usize>,
}

/// The tools once more, in the order of their keys, which the model was trained to see.
#[derive(Deserialize)]
struct Tools {
    tools: Option<Vec<Ordered>>,
}

impl ChatRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// 400 with the field that is wrong.
    pub fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        let messages = messages(fields.take("messages"))?;
        let common = Common::take(&mut fields)?;
        let logprobs = logprobs(&mut fields)?;
        let enable_thinking = template_kwargs(fields.take("chat_template_kwargs"))?;
        let mut schemas = tools(fields.take("tools"))?;
        if !may_call(fields.take("tool_choice"))? {
            schemas.clear();
        }
        fields.finish(None)?;
        let tools = match schemas.is_empty() {
            true => Vec::new(),
            false => serde_json::from_slice::<Tools>(body)
                .map_err(|error| ApiError::field("tools", format!("tools: {error}")))?
                .tools
                .unwrap_or_default(),
        };
        Ok(Self { messages, tools, schemas, enable_thinking, common, logprobs })
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let asked = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    match (asked, top) {
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "top_logprobs: expected logprobs = true beside it")),
        (false, None) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
    }
}

fn template_kwargs(value: Option<Value>) -> Result<Option<bool>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let mut fields = Fields::within("chat_template_kwargs", value)?;
    let thinking = match fields.take("enable_thinking") {
        None => None,
        Some(Value::Bool(thinking)) => Some(thinking),
        Some(other) => return Err(wrong("chat_template_kwargs.enable_thinking", "true or false", &other)),
    };
    fields.finish(Some("chat_template_kwargs"))?;
    Ok(thinking)
}

fn may_call(choice: Option<Value>) -> Result<bool, ApiError> {
    match choice.as_ref().map(Value::as_str) {
        None | Some(Some("auto")) => Ok(true),
        Some(Some("none")) => Ok(false),
        _ => Err(wrong("tool_choice", "\"auto\" or \"none\"", &choice.unwrap_or_default())),
    }
}

fn tools(value: Option<Value>) -> Result<Vec<Value>, ApiError> {
    let tools = match value {
        None => return Ok(Vec::new()),
        Some(Value::Array(tools)) if tools.len() <= TOOLS_MAX => tools,
        Some(other) => return Err(wrong("tools", &format!("a list of at most {TOOLS_MAX} tools"), &other)),
    };
    for (i, tool) in tools.iter().enumerate() {
        if tool["type"] != "function" {
            return Err(wrong(&format!("tools[{i}].type"), "\"function\"", &tool["type"]));
        }
        if !tool["function"]["name"].is_string() {
            return Err(wrong(&format!("tools[{i}].function.name"), "a name", &tool["function"]["name"]));
        }
    }
    Ok(tools)
}

fn messages(value: Option<Value>) -> Result<Vec<ChatMessage>, ApiError> {
    let messages = match value {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => return Err(wrong("messages", "at least one message", &"none")),
        other => return Err(wrong("messages", "a list of messages", &other.unwrap_or_default())),
    };
    messages.into_iter().enumerate().map(|(i, message)| read_message(&format!("messages[{i}]"), message)).collect()
}

fn read_message(at: &str, message: Value) -> Result<ChatMessage, ApiError> {
    let mut fields = Fields::within(at, message)?;
    let role = fields.take("role").unwrap_or_default();
    let role = match role.as_str() {
        // What newer clients call the system's words.
        Some("developer" | "system") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool") => "tool",
        _ => {
            let expected = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
            return Err(wrong(&format!("{at}.role"), expected, &role));
        }
    };
    let calls = tool_calls(at, &fields.take("tool_calls").unwrap_or_default())?;
    let reasoning = match fields.take("reasoning_content") {
        None => None,
        Some(Value::String(reasoning)) => Some(reasoning),
        Some(other) => return Err(wrong(&format!("{at}.reasoning_content"), "a text", &other)),
    };
    let mut read = ChatMessage::new(role, "");
    read.content = match fields.take("content") {
        None if role == "assistant" => String::new(),
        content => text(&format!("{at}.content"), content.unwrap_or_default())?,
    };
    // No template reads them.
    for ignored in ["tool_call_id", "name", "refusal", "annotations"] {
        fields.take(ignored);
    }
    fields.finish(Some(at))?;
    Ok(ChatMessage { reasoning_content: reasoning, tool_calls: calls, ..read })
}

/// A text, or a list of text parts one after the other.
fn text(at: &str, content: Value) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(at, "a text or a list of text parts", &other)),
    };
    let mut all = String::new();
    for (i, part) in parts.iter().enumerate() {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => all.push_str(text),
            (Some("text"), None) => return Err(wrong(&format!("{at}[{i}].text"), "a text", &part["text"])),
            _ => {
                return Err(wrong(
                    &format!("{at}[{i}].type"),
                    "\"text\": this model reads nothing else",
                    &part["type"],
                ));
            }
        }
    }
    Ok(all)
}

/// Earlier calls, their arguments as objects: templates walk through them.
fn tool_calls(at: &str, calls: &Value) -> Result<Vec<Ordered>, ApiError> {
    let at = format!("{at}.tool_calls");
    let calls = match calls {
        Value::Null => return Ok(Vec::new()),
        Value::Array(calls) => calls,
        other => return Err(wrong(&at, "a list", other)),
    };
    let read = |(i, call): (usize, &Value)| {
        let function = &call["function"];
        let name = function["name"].as_str();
        let name = name.ok_or_else(|| wrong(&format!("{at}[{i}].function.name"), "a name", &function["name"]))?;
        let at = format!("{at}[{i}].function.arguments");
        let arguments = match &function["arguments"] {
            Value::String(text) if text.trim().is_empty() => "{}".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if !serde_json::from_str::<Value>(&arguments).is_ok_and(|arguments| arguments.is_object()) {
            return Err(wrong(&at, "a JSON object as text", &arguments));
        }
        let name = Value::from(name);
        let call = format!(r#"{{"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}"#);
        serde_json::from_str(&call).map_err(|error| ApiError::field(at.clone(), format!("{at}: {error}")))
    };
    calls.iter().enumerate().map(read).collect()
}
