//! Backbone, hub and gateway as real processes on loopback, and a client that trusts their gateway.

use std::path::Path;

use super::process::Process;

/// A client that trusts the gateway's trial authority.
pub fn client(ca: &Path) -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ca = reqwest::Certificate::from_pem(&std::fs::read(ca).expect("the authority's file")).expect("PEM");
    reqwest::Client::builder().tls_certs_merge([ca]).build().expect("a client")
}

/// The server roles as processes.
pub struct Fleet {
    /// Runs the model.
    pub backbone: Process,
    /// Owns the sessions.
    pub hub: Process,
    /// The public end.
    pub gateway: Process,
    /// Completions, `http://…`.
    pub api: String,
    /// Host and port of the gateway.
    pub public: String,
    /// The hub's listener.
    pub hub_address: String,
    /// The operator's key.
    pub operator: String,
}

impl Fleet {
    /// The hub's count of open sessions.
    pub async fn sessions(&self) -> u64 {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let answer = client.get(format!("http://{}/status", self.hub_address)).send().await.expect("an answer");
        let status: serde_json::Value =
            serde_json::from_str(&answer.text().await.expect("a body")).expect("one JSON document");
        status["sessions"].as_u64().expect("a number")
    }
}

/// The servers behind a gateway, as processes.
pub struct Inner {
    /// Runs the model.
    pub backbone: Process,
    /// Owns the sessions.
    pub hub: Process,
    /// Completions, `http://…`.
    pub api: String,
    /// The hub's listener.
    pub hub_address: String,
    /// The operator's key.
    pub operator: String,
}

/// Backbone, hub and gateway, configured by `kvasir.toml` or by flags.
pub fn fleet(dir: &Path) -> Fleet {
    fleet_with(dir, "", &[])
}

/// The same with more lines in the hub's table, or tables behind it, and more flags for the backbone.
pub fn fleet_with(dir: &Path, hub_lines: &str, flags: &[&str]) -> Fleet {
    behind_gateway(dir, inner(dir, hub_lines, flags), &[])
}

/// Backbone and hub behind a gateway with more flags.
pub fn behind_gateway(dir: &Path, inner: Inner, flags: &[&str]) -> Fleet {
    let Inner { backbone, hub, api, hub_address, operator } = inner;
    let role = ["--headless", "gateway", "--config", "kvasir.toml"];
    let args = ["--listen", "127.0.0.1:0", "--hub", &hub_address, "--tls-trial"];
    let mut gateway = Process::start(dir, &[&role[..], &args, flags].concat());
    let public = gateway.after("listening on https://").rsplit_once(':').expect("a port").1.to_owned();
    Fleet { backbone, hub, gateway, api, public: format!("localhost:{public}"), hub_address, operator }
}

/// Backbone and hub, with more lines in the hub's table and more flags for the backbone.
pub fn inner(dir: &Path, hub_lines: &str, flags: &[&str]) -> Inner {
    let args = ["--headless", "backbone", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let mut backbone = Process::start(dir, &[&args[..], flags].concat());
    let dispatch = backbone.after("listening for hubs on ");
    let api = backbone.after("completions on ");
    let toml = format!("[hub]\nlisten = \"127.0.0.1:0\"\nbackbone = \"{dispatch}\"\n{hub_lines}");
    std::fs::write(dir.join("kvasir.toml"), toml).expect("the file is written");
    let mut hub = Process::start(dir, &["--headless", "hub", "--config", "kvasir.toml"]);
    let operator = hub.after("operator key ");
    let hub_address = hub.after("listening for gateways on ");
    Inner { backbone, hub, api, hub_address, operator }
}
