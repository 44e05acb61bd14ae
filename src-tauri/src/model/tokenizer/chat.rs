//! The model's chat template: messages → prompt, in Jinja as transformers renders it.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use serde::Serialize as _;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// One message of a conversation.
#[derive(Clone, Debug)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text.
    pub content: String,
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

    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        enable_thinking: bool,
    ) -> Result<String, Error> {
        let message = |m: &ChatMessage| context! { role => m.role.as_str(), content => m.content.as_str() };
        let messages = Value::from(messages.iter().map(message).collect::<Vec<_>>());
        self.0.get_template(NAME)?.render(context! { messages, add_generation_prompt, enable_thinking })
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

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into() }
    }

    #[test]
    fn python_spelling_of_json_and_strings_is_kept() {
        let source =
            "{{ {'a': [1, 2], 'b': '<é>'}|tojson }}|{{ ' x '.strip() }}|{{ 'a</think>b'.split('</think>')[-1] }}";
        let text = Template::new(source).unwrap().render(&[], false, false).unwrap();
        assert_eq!(text, "{\"a\": [1, 2], \"b\": \"<é>\"}|x|b");
    }

    #[test]
    fn a_template_can_refuse_messages_with_its_own_words() {
        let source = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}ok";
        let template = Template::new(source).unwrap();
        let refusal = template.render(&[message("system", "")], false, false).unwrap_err();
        assert!(refusal.to_string().contains("user first"), "{refusal}");
        assert_eq!(template.render(&[message("user", "")], false, false).unwrap(), "ok");
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
        let messages = [message("user", " a "), message("assistant", "<think>t</think>\n\nb"), message("user", "c")];
        assert_eq!(template.render(&messages, true, false).unwrap(), "<user>a;<assistant>b<user>cx=1<no>");
        assert_eq!(template.render(&messages, true, true).unwrap(), "<user>a;<assistant>b<user>cx=1<think>");
    }
}
