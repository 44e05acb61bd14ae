//! Ten thousand handshakes from one address against the real program: what it holds, and whom it goes on serving.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use kvasir::net::tls::{client_config_from_pem, wrap_client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::raw::tcp_from;
use crate::support::process::Process;

const CONNECTIONS: usize = 10_000;
/// Connections under way at once; beyond the limit of an address, so that the limit is met all the time.
const AT_ONCE: usize = 400;
/// A neighbour is served within this, however busy the machine.
const SERVED: Duration = Duration::from_secs(5);

/// What one of the flood does.
async fn one_of_many(n: usize, to: std::net::SocketAddr, trust: std::sync::Arc<rustls::ClientConfig>) -> bool {
    let Ok(Ok(mut tcp)) = timeout(SERVED, TcpStream::connect(to)).await else { return false };
    match n % 4 {
        // A whole handshake, if it is let.
        0 => timeout(SERVED, wrap_client(trust, "localhost", tcp)).await.is_ok_and(|shaken| shaken.is_ok()),
        // A hello that is cut short, then silence for a while.
        1 => {
            let _ = tcp.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).await;
            let _ = timeout(Duration::from_millis(200), tcp.read(&mut [0; 1])).await;
            false
        }
        // Nonsense.
        2 => {
            let _ = tcp.write_all(&[0x47; 600]).await;
            let _ = timeout(SERVED, tcp.read(&mut [0; 64])).await;
            false
        }
        // Gone at once.
        _ => false,
    }
}

fn resident(process: &Process) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(process.id().to_string()).join("status")).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_handshakes_from_one_address_cost_little_and_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--headless", "gateway", "--listen", "127.0.0.1:0", "--hub", "127.0.0.1:1", "--tls-trial"];
    let mut gateway = Process::start(dir.path(), &[&args[..], &["--admin", "127.0.0.1:0"]].concat());
    let to = gateway.after("listening on https://").parse().unwrap();
    let admin = gateway.after("operator's listener on http://");
    let ca = std::fs::read_to_string(dir.path().join("kvasir-state/gateway/trial-ca.pem")).unwrap();
    let trust = client_config_from_pem(&ca).unwrap();

    // A neighbour asks again and again; the flood comes from another address of this machine.
    let neighbour = {
        let trust = trust.clone();
        async move {
            loop {
                let asked = async {
                    let tcp = tcp_from(Ipv4Addr::new(127, 0, 2, 1), to).await;
                    let mut tls = wrap_client(trust.clone(), "localhost", tcp).await.unwrap();
                    tls.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
                    let mut answer = String::new();
                    tls.read_to_string(&mut answer).await.unwrap();
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                };
                timeout(SERVED, asked).await.expect("a neighbour is served");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    // Pages that any first crowd touches are nobody's in particular.
    flood(AT_ONCE, to, &trust).await;
    let before = resident(&gateway);
    let start = Instant::now();
    let flooding = async { flood(CONNECTIONS, to, &trust).await };
    let shaken = tokio::select! {
        shaken = flooding => shaken,
        () = neighbour => unreachable!("it asks for ever"),
    };
    let after = resident(&gateway);
    let mut tcp = TcpStream::connect(admin.trim_end_matches('/')).await.unwrap();
    tcp.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut page = String::new();
    tcp.read_to_string(&mut page).await.unwrap();
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {page}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let refused: f64 = ["connections_of_address", "without_request_of_address", "handshakes_of_address"]
        .iter()
        .map(|why| value(&format!("kvasir_gateway_refused_total{{why=\"{why}\"}}")))
        .sum();
    println!("{CONNECTIONS} in {:?}: {shaken} shaken, {refused} refused, {before} -> {after} bytes", start.elapsed());
    assert!(shaken < 2_000, "an address has a limit on handshakes in a minute, {shaken} were let through");
    assert!(refused > 5_000.0, "{refused} of {CONNECTIONS} were refused");
    assert!(after < before + (8 << 20), "{before} bytes before, {after} after");
    assert_eq!(gateway.terminate().code(), Some(0));
}

/// So many connections, some at a time; how many handshakes came to their end.
async fn flood(count: usize, to: std::net::SocketAddr, trust: &std::sync::Arc<rustls::ClientConfig>) -> usize {
    let (mut under_way, mut shaken) = (JoinSet::new(), 0);
    for n in 0..count {
        if under_way.len() >= AT_ONCE {
            shaken += usize::from(under_way.join_next().await.unwrap().unwrap());
        }
        under_way.spawn(one_of_many(n, to, trust.clone()));
    }
    while let Some(done) = under_way.join_next().await {
        shaken += usize::from(done.unwrap());
    }
    shaken
}
