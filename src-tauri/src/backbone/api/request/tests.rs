//! Requests as clients send them, and as they should not.

use serde_json::{Value, json};

use super::{ChatRequest, CompletionRequest, Prompt};
use crate::backbone::{Reach, Sampling};

fn refused(body: &Value) -> (String, String) {
    let error = match body.get("messages") {
        Some(_) => ChatRequest::read(body.to_string().as_bytes()).unwrap_err(),
        None => CompletionRequest::read(body.to_string().as_bytes()).unwrap_err(),
    };
    assert_eq!(error.status, 400);
    (error.param.unwrap_or_default().into_owned(), error.message)
}

#[test]
fn a_wrong_field_is_named() {
    for (field, value, expected) in [
        ("max_tokens", json!(0), "at least 1"),
        ("max_tokens", json!("9"), "at least 1"),
        ("max_completion_tokens", json!(-1), "at least 1"),
        ("temperature", json!(2.5), "from 0 to 2"),
        ("temperature", json!("warm"), "from 0 to 2"),
        ("top_p", json!(0), "more than 0"),
        ("top_k", json!(-2), "at least -1"),
        ("presence_penalty", json!(3), "from -2 to 2"),
        ("frequency_penalty", json!(-3), "from -2 to 2"),
        ("logit_bias", json!({"x": 1}), "token ids"),
        ("logit_bias", json!({"1": 101}), "−100..100"),
        ("stop", json!(["", "a"]), "1 to 512 bytes"),
        ("stop", json!(vec!["a"; 17]), "at most 16"),
        ("stop", json!("x".repeat(100_000)), "1 to 512 bytes"),
        ("seed", json!(1.5), "whole number"),
        ("n", json!(2), "expected 1"),
        ("store", json!(true), "expected false"),
        ("stream", json!("yes"), "true or false"),
        ("stream_options", json!({"include_usage": true}), "stream = true"),
        ("response_format.type", json!({"type": "json_object"}), "\"text\""),
        ("route", json!("lan"), "\"any\", \"trusted\" or \"local\""),
        ("model", json!(7), "a name"),
        ("min_p", json!(0.1), "does not support"),
        ("echo", json!(true), "does not support"),
    ] {
        let sent = field.split('.').next().unwrap();
        for mut body in [json!({"prompt": "a"}), json!({"messages": [{"role": "user", "content": "a"}]})] {
            body[sent] = value.clone();
            let (param, message) = refused(&body);
            assert_eq!(param, field, "{message}");
            assert!(message.contains(expected), "{message}");
            assert!(message.chars().count() < 260, "{message}");
        }
    }
}

#[test]
fn a_wrong_part_of_a_conversation_is_named() {
    let user = json!({"role": "user", "content": "a"});
    let call =
        |arguments: &str| json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
    for (field, body) in [
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": "a"})),
        ("messages[0]", json!({"messages": ["a"]})),
        ("messages[1].role", json!({"messages": [user, {"role": "robot", "content": "a"}]})),
        ("messages[0].content", json!({"messages": [{"role": "user"}]})),
        ("messages[1].audio", json!({"messages": [user, {"role": "assistant", "content": "a", "audio": {"id": "1"}}]})),
        (
            "messages[0].content[1].type",
            json!({"messages": [{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}]}),
        ),
        (
            "messages[0].tool_calls[0].function.arguments",
            json!({"messages": [{"role": "assistant", "content": null, "tool_calls": call("[1]")}]}),
        ),
        ("tools[0].type", json!({"messages": [user], "tools": [{"type": "web_search"}]})),
        ("tools[0].function.name", json!({"messages": [user], "tools": [{"type": "function", "function": {}}]})),
        ("tool_choice", json!({"messages": [user], "tool_choice": "required"})),
        ("top_logprobs", json!({"messages": [user], "top_logprobs": 2})),
        ("chat_template_kwargs.x", json!({"messages": [user], "chat_template_kwargs": {"x": 1}})),
        ("functions", json!({"messages": [user], "functions": []})),
        ("prompt", json!({"prompt": ["a", "b"]})),
        ("prompt", json!({})),
    ] {
        assert_eq!(refused(&body).0, field);
    }
    for body in [&b"{"[..], b"[]", b"\xff\xfe", b"", b"{\"messages\": \"\xff\"}"] {
        let error = ChatRequest::read(body).unwrap_err();
        assert_eq!((error.status.as_u16(), error.code), (400, "invalid_json"), "{}", error.message);
    }
}

#[test]
fn what_clients_say_arrives() {
    let body = json!({
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "x"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "refusal": null, "annotations": [],
             "audio": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
            {"role": "tool", "content": "3", "tool_call_id": "1"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto", "chat_template_kwargs": {"enable_thinking": false}, "route": "local",
        "max_tokens": 3, "max_completion_tokens": 18_446_744_073_709_551_615u64, "seed": -1, "top_k": -1,
        "stop": "END", "logit_bias": {"5": -100}, "logprobs": true, "top_logprobs": 4, "user": {"id": 1},
        "metadata": {}, "store": false, "parallel_tool_calls": false, "response_format": {"type": "text"},
        "stream": true, "stream_options": {"include_usage": true}, "n": 1, "presence_penalty": null,
    });
    let request = ChatRequest::read(body.to_string().as_bytes()).unwrap();
    let roles: Vec<&str> = request.messages.iter().map(|m| m.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    assert_eq!((request.messages[1].content.as_str(), request.messages[2].content.as_str()), ("ab", ""));
    assert_eq!(request.messages[2].reasoning_content.as_deref(), Some("hm"));
    assert_eq!((request.messages[2].tool_calls.len(), request.tools.len()), (1, 1));
    assert_eq!((request.enable_thinking, request.logprobs), (Some(false), Some(4)));
    let common = request.common;
    assert_eq!((common.max_tokens, common.reach), (Some(i64::MAX as usize), Reach::Local));
    assert_eq!((common.sampling.seed, common.sampling.top_k), (u64::MAX, 0));
    assert_eq!((common.sampling.temperature, common.sampling.top_p), (Sampling::PEOPLE.temperature, 0.9));
    assert_eq!((common.stop, common.adjustments.bias), (vec!["END".to_owned()], vec![(5, -100.0)]));
    assert!(common.stream && common.include_usage);

    let none = json!({"messages": [{"role": "user", "content": "a"}], "tools": body["tools"], "tool_choice": "none"});
    assert!(ChatRequest::read(none.to_string().as_bytes()).unwrap().tools.is_empty());
    let ids = CompletionRequest::read(br#"{"prompt": [1, 2], "logprobs": 1}"#).unwrap();
    assert_eq!((ids.prompt, ids.logprobs), (Prompt::Tokens(vec![1, 2]), Some(1)));
}
