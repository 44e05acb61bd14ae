//! Chats and completions with the embedded model, in OpenAI's shapes.

use std::ops::ControlFlow;

use kvasir::backbone::{GenerateOptions, Sampling};
use serde_json::{Value, json};

use super::{backbone, server};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn asked(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24})
}

/// What the model says to `prompt` when nobody else asks, through no server.
async fn oracle(prompt: &str, tokens: usize) -> String {
    let backbone = backbone();
    let model = backbone.model();
    let prompt = model.tokenizer.as_ref().unwrap().encode(prompt).unwrap();
    let stop_ids = model.hyper.eos_token_ids.clone();
    let options = GenerateOptions { max_tokens: tokens, sampling: Sampling::GREEDY, stop_ids };
    backbone.generate(&prompt, &options, |_| ControlFlow::Continue(())).await.unwrap().text
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_the_models_own_words_whole_and_in_events() {
    let server = server().await;
    let prompt = "<|im_start|>user\nTell me of the king.<|im_end|>\n<|im_start|>assistant\n";
    let expected = oracle(prompt, 24).await;
    let (status, headers, answer) = server.post(CHAT, &asked("Tell me of the king.")).await;
    assert_eq!(status, 200, "{answer}");
    let whole: Value = serde_json::from_str(&answer).unwrap();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["role"], message["content"].as_str().unwrap()), (&json!("assistant"), expected.as_str()));
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    assert_eq!(whole["usage"]["total_tokens"].as_u64(), whole["usage"]["prompt_tokens"].as_u64().map(|n| n + 24));
    // Four layers of four experts, for each token that the model saw.
    let rows = whole["usage"]["prompt_tokens"].as_u64().unwrap() + 23;
    assert_eq!(headers["x-kvasir-route"].to_str().unwrap(), format!("any; remote=0; local={}", rows * 16));
    let timing = headers["server-timing"].to_str().unwrap();
    for leg in ["queue;dur=", "prefill;dur=", "decode;dur=", "experts;dur="] {
        assert!(timing.contains(leg), "{timing}");
    }

    let stream = json!({"stream": true, "stream_options": {"include_usage": true}, "route": "local"});
    let events = server.events(CHAT, &with(asked("Tell me of the king."), stream)).await;
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let text = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_owned();
    assert_eq!(events.iter().map(text).collect::<String>(), expected);
    let (usage, rest) = events.split_last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &whole["usage"]));
    assert!(rest.iter().all(|event| event["usage"].is_null() && event["id"] == usage["id"]));
    let end = rest.last().unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], "length");
    assert_eq!((&end["kvasir"]["route"], &end["kvasir"]["assignments_remote"]), (&json!("local"), &json!(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_goes_on_where_the_prompt_ends() {
    let server = server().await;
    let prompt = "The princess opened the door, and";
    let expected = oracle(prompt, 12).await;
    let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0});
    let whole = server.json(COMPLETIONS, &body).await;
    assert_eq!(
        (&whole["object"], whole["choices"][0]["text"].as_str().unwrap()),
        (&json!("text_completion"), &*expected)
    );
    let events = server.events(COMPLETIONS, &with(body.clone(), json!({"stream": true}))).await;
    let text = |event: &Value| event["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(events.iter().map(text).collect::<String>(), expected);
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let tokenizer = backbone().model().tokenizer.clone().unwrap();
    let by_ids = with(body, json!({"prompt": tokenizer.encode(prompt).unwrap()}));
    assert_eq!(server.json(COMPLETIONS, &by_ids).await["choices"], whole["choices"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_with_their_probabilities() {
    let server = server().await;
    let chat = with(asked("Go on."), json!({"logprobs": true, "top_logprobs": 3}));
    let whole = server.json(CHAT, &chat).await;
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 24);
    let mut bytes = Vec::new();
    for token in &content {
        // Greedy: the chosen one is the likeliest.
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        bytes.extend(token["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8));
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), whole["choices"][0]["message"]["content"].as_str().unwrap());
    let events = server.events(CHAT, &with(chat, json!({"stream": true}))).await;
    let streamed = events.iter().flat_map(|e| e["choices"][0]["logprobs"]["content"].as_array().cloned());
    assert_eq!(streamed.flatten().collect::<Vec<_>>(), content);

    let body = json!({"prompt": "Once upon", "max_tokens": 5, "temperature": 0, "logprobs": 2});
    let logprobs = &server.json(COMPLETIONS, &body).await["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 5, "{list}");
    }
    let length = |i: usize| logprobs["tokens"][i].as_str().unwrap().chars().count() as u64;
    assert_eq!(logprobs["text_offset"][2].as_u64().unwrap(), length(0) + length(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_and_bends_an_answer_does() {
    let server = server().await;
    let body = json!({"prompt": "The princess opened the door, and", "max_tokens": 20, "temperature": 0});
    let text = async |more: Value| {
        let choice = server.json(COMPLETIONS, &with(body.clone(), more)).await["choices"][0].clone();
        (choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
    };
    let (all, finish) = text(json!({})).await;
    assert_eq!(finish, "length");
    let word = all.split_whitespace().nth(4).unwrap();
    let stopped = (all[..all.find(word).unwrap()].to_owned(), "stop".to_owned());
    assert_eq!(text(json!({"stop": [word, "never said"]})).await, stopped);
    let events = server.events(COMPLETIONS, &with(body.clone(), json!({"stop": word, "stream": true}))).await;
    let streamed: String = events.iter().map(|e| e["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(streamed, stopped.0);

    let first = backbone().model().tokenizer.clone().unwrap().encode(&all).unwrap()[0];
    let banned = text(json!({"logit_bias": {first.to_string(): -100}})).await.0;
    assert_ne!(banned.split_whitespace().next(), all.split_whitespace().next());
    let (penalised, _) = text(json!({"frequency_penalty": 2, "presence_penalty": 2})).await;
    assert_ne!(penalised, all);
    let seeded = json!({"temperature": 1.2, "top_p": 1, "top_k": 0, "seed": 7});
    assert_eq!(text(seeded.clone()).await, text(seeded).await);
}
