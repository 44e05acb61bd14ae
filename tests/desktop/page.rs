//! Drives the app's page through WebKit's own WebDriver.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::session::Session;
use crate::{http, until};

/// The page of an app that the driver started.
pub struct Page {
    client: reqwest::Client,
    base: String,
}

impl Page {
    /// Starts the app within `session` and waits for its page.
    pub async fn open(session: &mut Session, args: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut driver = session.command("WebKitWebDriver");
        driver.arg(format!("--port={port}")).env("TAURI_WEBVIEW_AUTOMATION", "true").stderr(Stdio::null());
        session.invite(&mut driver);
        let client = http();
        let driver = format!("http://127.0.0.1:{port}");
        until("the driver", async || client.get(format!("{driver}/status")).send().await.ok()).await;
        let options = json!({"binary": session.app(), "args": args});
        let wish =
            json!({"capabilities": {"alwaysMatch": {"browserName": "wry", "webkitgtk:browserOptions": options}}});
        let answer = client.post(format!("{driver}/session")).body(wish.to_string()).send().await.unwrap();
        let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        let id = answer["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {answer}"));
        let page = Self { client, base: format!("{driver}/session/{id}") };
        until("the page", async || page.text("version").await.filter(|text| text.starts_with("Kvasir"))).await;
        page
    }

    async fn post(&self, path: &str, body: Value) -> Option<Value> {
        let answer = self.client.post(format!("{}{path}", self.base)).body(body.to_string()).send().await.ok()?;
        let answer: Value = serde_json::from_str(&answer.text().await.ok()?).ok()?;
        (answer["value"]["error"].is_null()).then(|| answer["value"].clone())
    }

    /// Runs a script; its last argument is the callback.
    pub async fn run(&self, script: &str, args: Value) -> Value {
        self.post("/execute/async", json!({"script": script, "args": args})).await.unwrap_or(Value::Null)
    }

    async fn ask(&self, id: &str, what: &str) -> Option<String> {
        let script = format!("return document.getElementById(arguments[0]).{what}");
        let answer = self.post("/execute/sync", json!({"script": script, "args": [id]})).await?;
        answer.as_str().map(str::to_owned).or_else(|| answer.as_bool().map(|b| b.to_string()))
    }

    /// An element's text.
    pub async fn text(&self, id: &str) -> Option<String> {
        self.ask(id, "textContent").await
    }

    /// One of its data attributes, or of the page's body for the id `body`.
    pub async fn data(&self, id: &str, name: &str) -> Option<String> {
        if id == "body" {
            let script = "return document.body.dataset[arguments[0]]";
            let answer = self.post("/execute/sync", json!({"script": script, "args": [name]})).await?;
            return answer.as_str().map(str::to_owned);
        }
        self.ask(id, &format!("dataset.{name}")).await
    }

    /// Whether it can be seen.
    pub async fn sees(&self, id: &str) -> bool {
        self.ask(id, "hidden").await.as_deref() == Some("false")
    }

    /// Whether a button can be pressed.
    pub async fn can(&self, id: &str) -> bool {
        self.ask(id, "disabled").await.as_deref() == Some("false")
    }

    async fn element(&self, id: &str) -> Option<String> {
        let found = self.post("/element", json!({"using": "css selector", "value": format!("#{id}")})).await?;
        found.as_object()?.values().next()?.as_str().map(str::to_owned)
    }

    /// Clicks as a person does, once the element can be clicked.
    pub async fn click(&self, id: &str) {
        until(&format!("a click on {id}"), async || {
            let element = self.element(id).await?;
            self.post(&format!("/element/{element}/click"), json!({})).await
        })
        .await;
    }

    /// Puts a text into a field, as pasting does.
    pub async fn paste(&self, id: &str, text: &str) {
        let script = "document.getElementById(arguments[0]).value = arguments[1]";
        self.post("/execute/sync", json!({"script": script, "args": [id, text]})).await.unwrap();
    }

    /// Waits until an element's text satisfies.
    pub async fn until_text(&self, id: &str, wish: impl Fn(&str) -> bool) -> String {
        until(&format!("the text of {id}"), async || self.text(id).await.filter(|text| wish(text))).await
    }

    /// Waits for the page's state.
    pub async fn until_state(&self, state: &str) {
        until(&format!("the state {state}"), async || {
            self.data("body", "state").await.filter(|seen| seen == state).map(drop)
        })
        .await;
    }

    /// Accepts the invitation of a pasted code.
    pub async fn join(&self, code: &str) {
        self.paste("code", code).await;
        self.click("read").await;
        until("the invitation", async || self.sees("offer").await.then_some(())).await;
        self.shot("invitation").await;
        self.click("accept").await;
        until("the network", async || self.sees("leave").await.then_some(())).await;
    }

    /// Keeps a picture of the screen where `KVASIR_SHOTS` says, if it does. The driver's own pictures are none of the
    /// real window, and the third one of a session never comes.
    pub async fn shot(&self, name: &str) {
        let Some(dir) = std::env::var_os("KVASIR_SHOTS").map(PathBuf::from) else { return };
        let theme = std::env::var("KVASIR_SHOTS_THEME").unwrap_or_else(|_| "light".into());
        std::fs::create_dir_all(&dir).unwrap();
        // What the page has changed is painted a moment later.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let picture = dir.join(format!("{name}-{theme}.png"));
        assert!(Command::new("import").args(["-window", "Kvasir"]).arg(picture).status().unwrap().success());
    }
}
