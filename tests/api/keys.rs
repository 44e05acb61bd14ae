//! Keys and TLS, from the command line to the refusal.

use std::path::Path;

use kvasir::backbone::api::ApiConfig;
use kvasir::backbone::api::keys::{KeyFile, KeyGuard, UsageFile};
use kvasir::net::tls::{self, TrialCertificates};
use serde_json::{Value, json};

use super::{backbone, client, serve};
use crate::support::process::{Process, kvasir};

fn run(dir: &Path, args: &[&str]) -> Result<String, String> {
    let output = kvasir(dir, args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_made_on_the_command_line_opens_the_api_until_it_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path();
    let keys = KeyGuard::open(KeyFile::within(state), UsageFile::within(state)).unwrap();
    let config = ApiConfig { keys: Some(keys), ..ApiConfig::default() };
    let server = serve(backbone(), config).await;
    let ask = async |path: &str, key: Option<&str>, host: Option<&str>| {
        let body = json!({"prompt": "Once", "max_tokens": 2, "temperature": 0});
        let mut request = if path.starts_with("/v1/c") {
            client().post(server.url(path)).body(body.to_string())
        } else {
            client().get(server.url(path))
        };
        request = key.into_iter().fold(request, |request, key| request.bearer_auth(key));
        request = host.into_iter().fold(request, |request, host| request.header("host", host));
        let answer = request.send().await.unwrap();
        let route = answer.headers().get("x-kvasir-route").map(|v| v.to_str().unwrap().to_owned());
        (answer.status().as_u16(), route.unwrap_or_default())
    };
    assert_eq!(ask("/v1/completions", None, None).await.0, 200);
    assert_eq!(ask("/v1/completions", None, Some("rebound.test")).await.0, 403);

    let state = state.to_str().unwrap();
    let made = run(dir.path(), &["keys", "create", "--state", state, "--name", "ada", "--route", "local", "--json"]);
    let made: Value = serde_json::from_str(&made.unwrap()).unwrap();
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    for path in ["/v1/completions", "/v1/models", "/metrics"] {
        assert_eq!(ask(path, None, None).await.0, 401, "{path}");
        assert_eq!(ask(path, Some("kvk-wrong"), None).await.0, 401, "{path}");
        // Who has a key may call the server by any name.
        assert_eq!(ask(path, Some(key), Some("backbone.lan")).await.0, 200, "{path}");
    }
    assert_eq!(ask("/healthz", None, None).await.0, 200);
    let route = ask("/v1/completions", Some(key), None).await.1;
    assert!(route.starts_with("local; remote=0"), "{route}");

    assert!(run(dir.path(), &["keys", "revoke", "--state", state, id]).is_ok());
    assert_eq!(ask("/v1/completions", Some(key), None).await.0, 401);
    assert!(run(dir.path(), &["keys", "revoke", "--state", state, "nobody"]).unwrap_err().contains("kvasir keys list"));

    // The usage is there after a stop, without the key.
    server.stop.fire();
    server.serving.await.unwrap().unwrap();
    let list = run(dir.path(), &["keys", "list", "--state", state, "--json"]).unwrap();
    assert!(!list.contains(key));
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list[0]["name"], &list[0]["revoked"]), (&json!("ada"), &json!(true)));
    assert_eq!((&list[0]["usage"]["requests"], &list[0]["usage"]["new_tokens"]), (&json!(2), &json!(4)));
    assert!(run(dir.path(), &["keys", "list", "--state", state]).unwrap().contains("2 requests"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_speaks_tls() {
    let made = TrialCertificates::generate(&["localhost"]).unwrap();
    let tls = Some(tls::server_config_from_pem(&made.cert_pem, &made.key_pem).unwrap());
    let server = serve(backbone(), ApiConfig { tls, ..ApiConfig::default() }).await;
    let _ = client();
    let ca = reqwest::Certificate::from_pem(made.ca_pem.as_bytes()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
    let body = json!({"prompt": "Once", "max_tokens": 2, "stream": true}).to_string();
    let url = format!("https://localhost:{}/v1/completions", server.port);
    let answer = client.post(url).body(body).send().await.unwrap().text().await.unwrap();
    assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
    // A page of another machine makes the model work over TLS as little.
    let models = format!("https://localhost:{}/v1/models", server.port);
    let from_a_page = client.get(models).header("origin", "https://page.test").send().await.unwrap();
    assert_eq!(from_a_page.status(), 403);
}

#[test]
fn other_machines_are_served_over_tls_with_keys_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let made = TrialCertificates::generate(&["localhost"]).unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert_pem).unwrap();
    std::fs::write(dir.path().join("key.pem"), made.key_pem).unwrap();
    let open = ["--headless", "backbone", "--listen", "127.0.0.1:0", "--api", "0.0.0.0:0"];
    let tls = ["--api-tls-cert", "cert.pem", "--api-tls-key", "key.pem"];
    let refused = |args: &[&str]| {
        let output = kvasir(dir.path(), args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let both = refused(&open);
    assert!(
        both.contains("--api-tls-cert") && both.contains("kvasir keys create") && both.contains("--allow-insecure-api")
    );
    assert!(!refused(&[&open[..], &tls[..]].concat()).contains("needs TLS"));
    run(dir.path(), &["keys", "create"]).unwrap();
    assert!(!refused(&open).contains("needs a key"));

    let served = |more: &[&str], scheme: &str| {
        let mut backbone = Process::start(dir.path(), &[&open[..], more].concat());
        backbone.after(&format!("completions on {scheme}://0.0.0.0:"));
        assert_eq!(backbone.terminate().code(), Some(0));
    };
    served(&tls, "https");
    served(&["--allow-insecure-api"], "http");
}
