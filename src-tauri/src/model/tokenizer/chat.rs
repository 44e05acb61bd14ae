//! The model's chat template: messages → prompt, in Jinja as transformers renders it.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use serde::Serialize as _;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// JSON whose objects keep the order of their keys, since templates print them.
pub use minijinja::Value as Ordered;

/// One message of a conversation.
#[derive(Clone, Debug)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text.
    pub content: String,
    /// What an assistant thought before it.
    pub reasoning_content: Option<String>,
    /// The tools that an assistant called, in OpenAI's shape, their arguments as objects.
    pub tool_calls: Vec<Ordered>,
}

impl ChatMessage {
    /// A text without thoughts or calls.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Self {
        let (role, content) = (role.to_owned(), content.to_owned());
        Self { role, content, reasoning_content: None, tool_calls: Vec::new() }
    }

    /// The message as a template sees it: what is not there is not defined.
    fn value(&self) -> Value {
        let mut fields = vec![("role", Value::from(&*self.role)), ("content", Value::from(&*self.content))];
        fields.extend(self.reasoning_content.as_deref().map(|text| ("reasoning_content", Value::from(text))));
        if !self.tool_calls.is_empty() {
            fields.push(("tool_calls", Value::from(self.tool_calls.clone())));
        }
        Value::from_pairs(fields)
    }
}

/// A conversation as its template sees it.
#[derive(Clone, Debug, Default)]
pub struct Chat<'a> {
    /// What was said.
    pub messages: &'a [ChatMessage],
    /// Tools that the answer may call, in OpenAI's shape.
    pub tools: &'a [Ordered],
    /// Whether the assistant's turn is opened.
    pub add_generation_prompt: bool,
    /// Whether the model is to think first; the template decides when nobody says.
    pub enable_thinking: Option<bool>,
}

/// A compiled template.
pub(super) struct Template(Environment<'static>);

const NAME: &str = "chat";
/// Instructions a rendering may take, so that a template from a stranger's file ends. A thousand messages of Qwen's
/// take below a million.
const FUEL: u64 = 50_000_000;

impl Template {
    pub fn new(source: &str) -> Result<Self, Error> {
        let mut env = Environment::new();
        env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        env.set_fuel(Some(FUEL));
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        env.add_filter("tojson", to_json);
        env.add_template_owned(NAME, source.to_owned())?;
        Ok(Self(env))
    }

    /// As it was written.
    pub fn source(&self) -> Result<String, Error> {
        Ok(self.0.get_template(NAME)?.source().to_owned())
    }

    pub fn render(&self, chat: &Chat<'_>) -> Result<String, Error> {
        let Chat { messages, tools, add_generation_prompt, enable_thinking } = chat;
        let messages: Vec<Value> = messages.iter().map(ChatMessage::value).collect();
        let given = context! { messages, add_generation_prompt };
        let tools = if tools.is_empty() {
            context! {}
        } else {
            context! { tools => tools.to_vec() }
        };
        let thinking = enable_thinking.map_or_else(|| context! {}, |enable_thinking| context! { enable_thinking });
        self.0.get_template(NAME)?.render(context! { ..given, ..context! { ..tools, ..thinking } })
    }
}

/// JSON as Python's `json.dumps(…, ensure_ascii=False)` writes it, which the models were trained on.
fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut out = Vec::new();
    let written = match indent {
        Some(spaces) => {
            let spaces = " ".repeat(spaces.min(16));
            value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(spaces.as_bytes())))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
    };
    let fail = |e: String| Error::new(ErrorKind::BadSerialization, e);
    written.map_err(|e| fail(e.to_string()))?;
    String::from_utf8(out).map_err(|e| fail(e.to_string()))
}

/// One line, with a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &Template, messages: &[ChatMessage], enable_thinking: bool) -> Result<String, Error> {
        let enable_thinking = Some(enable_thinking);
        template.render(&Chat { messages, add_generation_prompt: true, enable_thinking, ..Chat::default() })
    }

    #[test]
    fn python_spelling_of_json_and_strings_is_kept() {
        let source =
            "{{ {'a': [1, 2], 'b': '<é>'}|tojson }}|{{ ' x '.strip() }}|{{ 'a</think>b'.split('</think>')[-1] }}";
        let text = render(&Template::new(source).unwrap(), &[], false).unwrap();
        assert_eq!(text, "{\"a\": [1, 2], \"b\": \"<é>\"}|x|b");
    }

    #[test]
    fn a_template_can_refuse_messages_with_its_own_words() {
        let source = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}ok";
        let template = Template::new(source).unwrap();
        let refusal = render(&template, &[ChatMessage::new("system", "")], false).unwrap_err();
        assert!(refusal.to_string().contains("user first"), "{refusal}");
        assert_eq!(render(&template, &[ChatMessage::new("user", "")], false).unwrap(), "ok");
    }

    #[test]
    fn the_features_that_the_families_templates_use_work() {
        let source = r#"
{%- macro turn(m) %}{{ '<' + m.role + '>' + m.content|trim }}{% endmacro %}
{%- set ns = namespace(found=false, last=0) %}
{%- for m in messages[::-1] %}
    {%- if m.role == 'user' and not ns.found %}
        {%- set ns.found = true %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m is mapping and m.role == 'assistant' and loop.index0 < ns.last and '</think>' in m.content %}
        {{- '<assistant>' + m.content.split('</think>')[-1].lstrip('\n') }}
    {%- else %}
        {{- turn(m) }}
    {%- endif %}
    {%- if loop.nextitem is defined and loop.previtem is not defined %}{{ ';' }}{% endif %}
{%- endfor %}
{%- for k, v in {'x': 1}|items %}{{ k }}={{ v }}{% endfor %}
{%- if add_generation_prompt %}{{ '<think>' if enable_thinking is not defined or enable_thinking else '<no>' }}{% endif %}
"#;
        let template = Template::new(source).unwrap();
        let said = [("user", " a "), ("assistant", "<think>t</think>\n\nb"), ("user", "c")];
        let messages = said.map(|(role, content)| ChatMessage::new(role, content));
        assert_eq!(render(&template, &messages, false).unwrap(), "<user>a;<assistant>b<user>cx=1<no>");
        assert_eq!(render(&template, &messages, true).unwrap(), "<user>a;<assistant>b<user>cx=1<think>");
    }

    #[test]
    fn tools_and_earlier_calls_reach_the_template_in_their_order() {
        let source = r"
{%- if tools %}{% for tool in tools %}{{ tool | tojson }};{% endfor %}{% endif %}
{%- for m in messages %}
    {%- if m.reasoning_content is string %}<think>{{ m.reasoning_content }}</think>{% endif %}
    {%- if m.tool_calls and m.tool_calls is iterable and m.tool_calls is not mapping %}
        {%- for call in m.tool_calls %}
            {%- if call.function is defined %}{% set call = call.function %}{% endif %}
            {{- '<function=' + call.name + '>' }}
            {%- for name, value in call.arguments|items %}
                {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                {{- '<parameter=' + name + '>' + value }}
            {%- endfor %}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{{- enable_thinking is defined }}";
        let ordered = |json: &str| serde_json::from_str::<Ordered>(json).unwrap();
        let call = ordered(r#"{"type":"function","function":{"name":"f","arguments":{"z":"1","a":{"y":2,"b":[3]}}}}"#);
        let thought = Some("hm".to_owned());
        let message =
            ChatMessage { tool_calls: vec![call], reasoning_content: thought, ..ChatMessage::new("assistant", "") };
        let tools = [ordered(r#"{"type": "function", "function": {"name": "f", "description": "<é>"}}"#)];
        let template = Template::new(source).unwrap();
        let chat = Chat { messages: &[message], tools: &tools, ..Chat::default() };
        let expected = concat!(
            r#"{"type": "function", "function": {"name": "f", "description": "<é>"}};<think>hm</think>"#,
            r#"<function=f><parameter=z>1<parameter=a>{"y": 2, "b": [3]}False"#,
        );
        assert_eq!(template.render(&chat).unwrap(), expected);
    }
}
