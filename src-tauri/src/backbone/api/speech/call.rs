//! One tool call: its parameters as the model writes them, and the JSON that a client expects.

use serde_json::Value;

/// The call in progress: how many parameters were given out, and what their types are.
#[derive(Debug)]
pub struct Call {
    schema: Value,
    parameters: usize,
}

impl Call {
    /// A call of `name`, one of `tools`.
    pub fn new(name: &str, tools: &[Value]) -> Self {
        let tool = tools.iter().map(|tool| &tool["function"]).find(|function| function["name"] == name);
        Self { schema: tool.map_or(Value::Null, |tool| tool["parameters"]["properties"].clone()), parameters: 0 }
    }

    /// The JSON of one more parameter, with what joins it to the earlier ones.
    pub fn parameter(&mut self, name: &str, text: &str) -> String {
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        let start = if self.parameters == 0 { "{" } else { ", " };
        self.parameters += 1;
        format!("{start}{}: {}", Value::from(name), value(&self.schema[name], text))
    }

    /// The JSON that ends the arguments.
    pub fn end(&self) -> &'static str {
        if self.parameters == 0 { "{}" } else { "}" }
    }
}

/// The value that `text` stands for under `schema`; a text unless the schema says otherwise and the text agrees.
fn value(schema: &Value, text: &str) -> Value {
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if types.contains(&"null") && matches!(text, "null" | "None") {
        return Value::Null;
    }
    if schema.is_null() || types.contains(&"string") {
        return text.into();
    }
    // Python's spelling of truth is what the template prints for earlier calls.
    match text {
        "True" => true.into(),
        "False" => false.into(),
        _ => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}
