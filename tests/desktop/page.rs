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

    /// What a script returns: a text, or whether.
    async fn value(&self, script: &str, args: Value) -> Option<String> {
        let answer = self.post("/execute/sync", json!({"script": script, "args": args})).await?;
        answer.as_str().map(str::to_owned).or_else(|| answer.as_bool().map(|b| b.to_string()))
    }

    async fn ask(&self, id: &str, what: &str) -> Option<String> {
        self.value(&format!("return document.getElementById(arguments[0]).{what}"), json!([id])).await
    }

    /// An element's text.
    pub async fn text(&self, id: &str) -> Option<String> {
        self.ask(id, "textContent").await
    }

    /// One of its data attributes, or of the page's body for the id `body`.
    pub async fn data(&self, id: &str, name: &str) -> Option<String> {
        if id == "body" {
            return self.value("return document.body.dataset[arguments[0]]", json!([name])).await;
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

    /// What stands in a field.
    pub async fn field(&self, id: &str) -> Option<String> {
        self.ask(id, "value").await
    }

    /// Whether a switch is on.
    pub async fn is_on(&self, id: &str) -> bool {
        self.ask(id, "checked").await.as_deref() == Some("true")
    }

    async fn element(&self, id: &str) -> Option<String> {
        let found = self.post("/element", json!({"using": "css selector", "value": format!("[id='{id}']")})).await?;
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

    /// Clicks what ends the page, and with it perhaps the answer.
    pub async fn press(&self, id: &str) {
        let script = "document.getElementById(arguments[0]).click()";
        let _ = self.post("/execute/sync", json!({"script": script, "args": [id]})).await;
    }

    /// Puts a text into a field, as pasting does.
    pub async fn paste(&self, id: &str, text: &str) {
        let script = "document.getElementById(arguments[0]).value = arguments[1]";
        self.post("/execute/sync", json!({"script": script, "args": [id, text]})).await.unwrap();
    }

    /// Chooses from a list, as a person does.
    pub async fn choose(&self, id: &str, value: &str) {
        let script = "const [id, value, done] = arguments, list = document.getElementById(id);
            list.value = value; list.dispatchEvent(new Event('input', { bubbles: true })); done(list.value)";
        assert_eq!(self.run(script, json!([id, value])).await, value);
    }

    /// Unfolds what is folded away.
    pub async fn open_details(&self, id: &str) {
        self.run("const [id, done] = arguments; document.getElementById(id).open = true; done(true)", json!([id]))
            .await;
    }

    /// Waits until an element's text satisfies.
    pub async fn until_text(&self, id: &str, wish: impl Fn(&str) -> bool) -> String {
        until(&format!("the text of {id}"), async || self.text(id).await.filter(|text| wish(text))).await
    }

    /// Waits until an element's data attribute, or the body's, is this.
    pub async fn until_data(&self, id: &str, name: &str, value: &str) {
        until(&format!("{name} {value} of {id}"), async || {
            self.data(id, name).await.filter(|seen| seen == value).map(drop)
        })
        .await;
    }

    /// Waits for the page's state.
    pub async fn until_state(&self, state: &str) {
        self.until_data("body", "state", state).await;
    }

    /// Goes to a page by the links at the top.
    pub async fn go(&self, route: &str) {
        self.run("scrollTo(0, 0); arguments[0](true)", json!([])).await;
        self.click(&format!("to-{route}")).await;
        let is_there = "return location.hash === '#' + arguments[0]";
        until("the page", async || self.value(is_there, json!([route])).await.filter(|is| is == "true")).await;
    }

    /// The open wallet's address, read on its page.
    pub async fn wallet(&self) -> String {
        self.until_data("body", "wallet", "ready").await;
        self.go("wallet").await;
        let address = self.until_text("wallet", |text| text.len() > 31).await;
        self.go("home").await;
        address
    }

    /// Accepts the invitation of a pasted code.
    pub async fn join(&self, code: &str) {
        self.paste("code", code).await;
        self.click("read").await;
        until("the invitation", async || self.sees("offer").await.then_some(())).await;
        self.click("accept").await;
        until("the network", async || self.sees("leave").await.then_some(())).await;
    }

    /// Shows `view` on the page `route` in place of what the engine says, from now on.
    pub async fn feed(&self, route: &str, view: &Value) {
        // The page takes its channel's messages in their order and ignores what comes late: these are ahead of all that
        // the engine sends meanwhile. The page's frame is there when it has painted.
        let script = "const [route, view, done] = arguments, inner = window.__TAURI_INTERNALS__;
            document.querySelector('dialog')?.close();
            const first = window.fed ?? 0, last = first + (window.fed === undefined ? 100 : 1);
            for (let index = first; index < last; index++)
                for (const id of [...inner.callbacks.keys()]) inner.runCallback(id, { index, message: view });
            window.fed = last;
            const shown = () => requestAnimationFrame(() => requestAnimationFrame(() => done(true)));
            if (location.hash === '#' + route) return shown();
            addEventListener('hashchange', shown, { once: true });
            location.hash = route;";
        assert_eq!(self.run(script, json!([route, view])).await, Value::Bool(true));
    }

    /// Gives the page so much room.
    pub async fn resize(&self, width: i64, height: i64) {
        let mut wish = width;
        until("the window's width", async || {
            let place = format!("0,-1,-1,{wish},{height}");
            assert!(Command::new("wmctrl").args(["-r", "Kvasir", "-e", &place]).status().unwrap().success());
            let script = "const done = arguments[0]; setTimeout(() => done(innerWidth), 100)";
            let got = self.run(script, json!([])).await.as_i64()?;
            // Some window managers count the frame.
            wish += width - got;
            (got == width).then_some(())
        })
        .await;
    }

    /// Keeps a picture of the window where `KVASIR_SHOTS` says, if it does. The driver's own pictures are none of the
    /// real window, and the third one of a session never comes.
    pub async fn shot(&self, name: &str) {
        let Some(dir) = std::env::var_os("KVASIR_SHOTS").map(PathBuf::from) else { return };
        std::fs::create_dir_all(&dir).unwrap();
        // What the page has changed is painted a moment later.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let picture = dir.join(format!("{name}.png"));
        assert!(Command::new("import").args(["-window", "Kvasir"]).arg(picture).status().unwrap().success());
    }
}
