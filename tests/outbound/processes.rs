//! A real worker and a real wallet behind a proxy and a private authority, told of both by the environment alone.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use super::site::HOST;
use crate::support::fleet::inner;
use crate::support::forward_proxy::{ForwardProxy, Rules};
use crate::support::process::{Process, kvasir};

/// The environment of a company's laptop.
fn laptop(mut command: Command, proxy: &str, ca: &str, except: &str) -> Command {
    command.env("HTTPS_PROXY", proxy).env("SSL_CERT_FILE", ca).env("no_proxy", except);
    for name in ["https_proxy", "all_proxy", "ALL_PROXY", "NO_PROXY", "SSL_CERT_DIR"] {
        command.env_remove(name);
    }
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_and_its_wallet_get_out_as_the_environment_says() {
    let dir = tempfile::tempdir().unwrap();
    let servers = inner(dir.path(), &format!("public_hosts = [\"{HOST}\"]\n"), &[]);
    let args = ["--headless", "gateway", "--listen", "127.0.0.1:0", "--hub", &servers.hub_address];
    let shown = ["--tls-trial", "--public-host", HOST];
    let mut gateway = Process::start(dir.path(), &[&args[..], &shown].concat());
    let addr: SocketAddr = gateway.after("listening on https://").parse().unwrap();
    let rules = Rules { target: Some(addr), password: Some("jo:p:ss"), ..Rules::default() };
    let proxy = ForwardProxy::start(rules).await;

    let url = format!("wss://{HOST}:{}", addr.port());
    let ca = "kvasir-state/gateway/trial-ca.pem";
    let at = ["--state", "worker", "--gateway", &url, "--operator", &servers.operator];
    let good = format!("http://jo:p%3Ass@{}", proxy.addr);
    let role = ["--headless", "worker", "--device", "cpu"];
    let command = kvasir(dir.path(), &[&role[..], &at].concat());
    let mut worker = tokio::task::block_in_place(|| Process::of(laptop(command, &good, ca, "other.test")));
    tokio::task::block_in_place(|| worker.after("serving "));

    // The wallet asks the same gateway the same way, over HTTPS.
    let wallet = async |proxy: &str, except: &str, more: &[&str]| {
        let command = kvasir(dir.path(), &[&["wallet", "claim"], &at[..], more].concat());
        let mut command = laptop(command, proxy, ca, except);
        let run = move || command.stdin(Stdio::null()).output().unwrap();
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    // The gateway's own word: its operator was not named.
    let answered = "this gateway takes no claims";
    let (code, said) = wallet(&good, "", &[]).await;
    assert!(code == Some(1) && said.contains(answered), "{said}");
    let (code, said) = wallet(&format!("http://{}", proxy.addr), "", &[]).await;
    assert!(code == Some(1) && said.contains("wants a password"), "{said}");
    let (code, said) = wallet(&good, HOST, &[]).await;
    assert!(code == Some(1) && said.contains("cannot resolve"), "excepted hosts are dialled directly: {said}");
    let (code, said) = wallet("socks5://127.0.0.1:1", "", &[]).await;
    assert!(code == Some(1) && said.contains("HTTPS_PROXY: expected http://"), "{said}");
    let (_, said) = wallet("socks5://127.0.0.1:1", "", &["--proxy", &good]).await;
    assert!(said.contains(answered) && !said.contains("p:ss") && !said.contains("p%3Ass"), "{said}");

    let tls = proxy.seen().iter().filter(|what| *what == "a TLS handshake").count();
    assert!(tls >= 3 && proxy.seen().iter().all(|what| !what.contains("clear")), "{:?}", proxy.seen());
    assert_eq!(tokio::task::block_in_place(|| worker.terminate()).code(), Some(0));
}
