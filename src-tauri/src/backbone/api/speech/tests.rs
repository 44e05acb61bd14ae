//! Texts as Qwen3.5 writes them, cut in every way.

use serde_json::{Value, json};

use super::{Parser, Piece, StopTexts};

/// What the pieces add up to: thoughts, answer, and calls with their arguments.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
}

impl Heard {
    fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => self.reasoning.push_str(&text),
                Piece::Content(text) => self.content.push_str(&text),
                Piece::Call { index, name } => {
                    assert_eq!(index, self.calls.len());
                    self.calls.push((name, String::new()));
                }
                Piece::Arguments { index, json } => self.calls[index].1.push_str(&json),
            }
        }
    }
}

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
        "place": {"type": "object"}, "note": {"type": ["string", "null"]}}}}}),
    ]
}

/// All at once, and byte by byte as they complete characters; both must agree.
fn hear(text: &str, tools: &[Value], thinking: bool) -> Heard {
    let mut whole = Heard::default();
    let mut parser = Parser::new(tools.to_vec(), thinking);
    whole.add(parser.push(text));
    whole.add(parser.finish());

    let (mut bytewise, mut parser, mut bytes) = (Heard::default(), Parser::new(tools.to_vec(), thinking), Vec::new());
    for byte in text.bytes() {
        bytes.push(byte);
        if let Ok(complete) = std::str::from_utf8(&bytes) {
            bytewise.add(parser.push(complete));
            bytes.clear();
        }
    }
    bytewise.add(parser.finish());
    assert_eq!(whole, bytewise);
    whole
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

#[test]
fn thoughts_and_answer_are_told_apart() {
    let text = "The user says hi.\nI greet – 友好.\n</think>\n\nHello! 3 < 4, and </b> is a tag.";
    let heard = hear(text, &[], true);
    assert_eq!(heard.reasoning, "The user says hi.\nI greet – 友好.");
    assert_eq!(heard.content, "Hello! 3 < 4, and </b> is a tag.");
    // An older template leaves the opening to the model.
    assert_eq!(hear(&format!("<think>\n{text}"), &[], false), heard);
    // Thinking switched off: the prompt holds the empty thoughts.
    assert_eq!(hear("Hello <thi", &[], false).content, "Hello <thi");
    assert_eq!(hear("", &[], false), Heard::default());
    // Cut off while thinking.
    assert_eq!(hear("I wonder </thin", &[], true).reasoning, "I wonder </thin");
}

#[test]
fn calls_become_names_and_json_arguments() {
    let text = "I look it up.\n</think>\n\nOne moment.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nSão \"Paulo\"\n\
        </parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n</function>\n</tool_call>";
    let heard = hear(text, &tools(), true);
    assert_eq!((heard.reasoning.as_str(), heard.content.as_str()), ("I look it up.", "One moment."));
    assert_eq!(heard.calls, [call("get_weather", r#"{"city": "São \"Paulo\"", "days": 3, "metric": true}"#)]);
}

#[test]
fn several_calls_follow_each_other_and_values_keep_their_lines() {
    let text = "<tool_call>\n<function=get_weather>\n<parameter=note>\nline 1\nline 2\n\n</parameter>\n<parameter=place>\n\
        {\"lat\": 1.5}\n</parameter>\n<parameter=days>\nsoon\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n\
        <function=other>\n</function>\n</tool_call>\n";
    let heard = hear(text, &tools(), false);
    let arguments = r#"{"note": "line 1\nline 2\n", "place": {"lat":1.5}, "days": "soon"}"#;
    assert_eq!(heard.calls, [call("get_weather", arguments), call("other", "{}")]);
    assert_eq!(heard.content, "");
    for (_, arguments) in heard.calls {
        assert!(serde_json::from_str::<Value>(&arguments).is_ok());
    }
}

#[test]
fn the_older_form_of_calls_is_read_too() {
    let text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    assert_eq!(hear(text, &tools(), false).calls, [call("get_weather", r#"{"city":"Oslo"}"#)]);
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    for text in ["a <tool_call> is a tag", "<tool_call>{\"name\": 7}</tool_call> b", "c <tool_call>\n<func", "d <tool_"]
    {
        let heard = hear(text, &tools(), false);
        assert_eq!((heard.content.as_str(), heard.calls.len()), (text, 0));
    }
    // Without tools nothing is a call.
    let text = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
    assert_eq!(hear(text, &[], false).content, text);
}

#[test]
fn a_call_that_is_cut_off_stays_incomplete() {
    let cut = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nOs";
    assert_eq!(hear(cut, &tools(), false).calls, [call("get_weather", "{\"days\": 3")]);
    let mut parser = Parser::new(tools(), false);
    parser.push(cut);
    parser.finish();
    assert!(!parser.has_called());
    let between = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n";
    assert_eq!(hear(between, &tools(), false).calls, [call("get_weather", "{\"days\": 3}")]);
}

#[test]
fn only_a_call_that_is_complete_was_made() {
    let call = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    let older = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>";
    for (text, called) in [
        ("Hello", false),
        (call, true),
        (older, true),
        (&format!("{call} And so on."), true),
        (&call[..call.len() - 12], true),
        (&call[..call.len() - 24], false),
        (&format!("{call}\n{}", &call[..50]), false),
        (&format!("{call}\n{call}"), true),
    ] {
        let mut parser = Parser::new(tools(), false);
        parser.push(text);
        parser.finish();
        assert_eq!(parser.has_called(), called, "{text}");
    }
}

#[test]
fn a_stop_text_ends_the_answer_wherever_it_is_cut() {
    let cut = |text: &str, stops: &[&str], characters: usize| {
        let mut stop = StopTexts::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut all = String::new();
        for part in text.chars().collect::<Vec<_>>().chunks(characters) {
            let (more, ended) = stop.push(&part.iter().collect::<String>());
            all.push_str(&more);
            if ended {
                return (all, true);
            }
        }
        (all + &stop.finish(), false)
    };
    let said = |text: &str, stops: &[&str]| {
        let bytewise = cut(text, stops, 1);
        (2..=text.len().max(2)).for_each(|n| assert_eq!(cut(text, stops, n), bytewise, "in parts of {n}"));
        bytewise
    };
    assert_eq!(said("one two three", &["two"]), ("one ".to_owned(), true));
    assert_eq!(said("abcd", &["bc", "abcd"]), ("a".to_owned(), true));
    assert_eq!(said("xabc", &["bc", "abc", "c"]), ("x".to_owned(), true));
    assert_eq!(said("aab", &["ab"]), ("a".to_owned(), true));
    assert_eq!(said("one tw", &["two", "x"]), ("one tw".to_owned(), false));
    assert_eq!(said("naïve – ok", &["– o"]), ("naïve ".to_owned(), true));
    assert_eq!(said("anything", &[]), ("anything".to_owned(), false));
}
