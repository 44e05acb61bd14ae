//! Every proxy with every authority: HTTPS and WebSockets fare alike, and nothing goes past a proxy that is demanded.

use std::path::PathBuf;
use std::sync::Arc;

use kvasir::net::dial::{Connector, DialError, Leg, Outbound};
use kvasir::net::tls::TrialCertificates;
use kvasir::net::trust::Voucher;

use super::site::{HOST, Site, by_both, travelled};
use crate::support::forward_proxy::{ForwardProxy, Rules};
use crate::support::names::Names;

/// How a client is told whom to trust.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Told {
    ByJoinCode,
    ByFile,
    Nothing,
}

struct Cell {
    site: Site,
    dir: tempfile::TempDir,
}

impl Cell {
    async fn new() -> Self {
        Self { site: Site::start().await, dir: tempfile::tempdir().unwrap() }
    }

    fn ca_file(&self) -> PathBuf {
        let path = self.dir.path().join("ca.pem");
        std::fs::write(&path, &self.site.certificates.ca_pem).unwrap();
        path
    }

    /// A client in a network where the name leads straight to the site, so that whatever goes past a proxy arrives.
    fn outbound(&self, proxy: &str, told: Told) -> Outbound {
        let pem = self.site.certificates.ca_pem.clone();
        Outbound {
            proxy: proxy.parse().unwrap(),
            extra_ca: (told == Told::ByFile).then(|| self.ca_file()).into_iter().collect(),
            network_ca_pem: (told == Told::ByJoinCode).then_some(pem),
            resolver: Arc::new(Names::at(&["127.0.0.1"])),
        }
    }
}

#[tokio::test]
async fn every_proxy_leads_to_every_authority_and_says_what_is_wrong() {
    let cell = Cell::new().await;
    let target = Some(cell.site.addr);
    let open = ForwardProxy::start(Rules { target, ..Rules::default() }).await;
    let password = Some("jo@corp:p:ss/1");
    let guarded = ForwardProxy::start(Rules { target, password, ..Rules::default() }).await;
    let url = cell.site.url();
    let place = format!("{HOST}:{}", cell.site.addr.port());

    let (open_at, guarded_at) = (format!("http://{}", open.addr), guarded.addr);
    let ways: [(&str, Option<&str>); 5] = [
        ("none", None),
        (&open_at, None),
        (&format!("http://jo%40corp:p%3Ass%2F1@{guarded_at}"), None),
        (&format!("http://{guarded_at}"), Some("wants a password: write it into its URL")),
        (&format!("http://jo:s3cret@{guarded_at}"), Some("wants a password, and did not take the one in its URL")),
    ];
    for (proxy, refusal) in ways {
        for told in [Told::ByJoinCode, Told::ByFile, Told::Nothing] {
            let accepted = cell.site.accepted();
            let result = by_both(&url, &cell.outbound(proxy, told)).await;
            let reached = cell.site.accepted() > accepted;
            match (refusal, told, result) {
                (None, Told::ByJoinCode | Told::ByFile, Ok(())) => assert!(reached),
                (Some(words), _, Err(error)) => {
                    assert_eq!((error.leg(), error.code(), reached), (Leg::Proxy, "proxy_password", false));
                    let text = error.to_string();
                    assert!(text.contains(words) && !text.contains("s3cret") && !text.contains("jo"), "{text}");
                }
                (None, Told::Nothing, Err(error)) => {
                    assert_eq!((error.leg(), error.code()), (Leg::Tls, "untrusted_issuer"));
                    let text = error.to_string();
                    assert!(text.contains("issued by Kvasir trial authority, which is not trusted here"), "{text}");
                    assert!(text.contains("--ca"), "{text}");
                }
                (_, told, result) => panic!("{proxy} {told:?}: {result:?}"),
            }
        }
    }
    // The proxy was asked for the name, and all that passed was TLS.
    for proxy in [&open, &guarded] {
        let seen = proxy.seen();
        assert!(seen.iter().all(|what| what == "a TLS handshake" || *what == format!("CONNECT {place}")), "{seen:?}");
        assert!(seen.contains(&"a TLS handshake".to_owned()));
    }
}

#[tokio::test]
async fn a_proxy_that_is_demanded_is_never_bypassed() {
    let cell = Cell::new().await;
    let target = Some(cell.site.addr);
    let refusing = ForwardProxy::start(Rules { target, refuses: Some("403 Forbidden"), ..Rules::default() }).await;
    let (password, schemes) = (Some("jo:p"), Some("Negotiate"));
    let closed = ForwardProxy::start(Rules { target, password, schemes, ..Rules::default() }).await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (proxy, code, words) in [
        (nobody, "proxy_down", "is out of reach"),
        (refusing.addr, "proxy_refuses", "it answered HTTP 403"),
        (closed.addr, "proxy_password", "in a way that Kvasir does not speak (Negotiate)"),
        // A server that is no proxy.
        (cell.site.addr, "proxy_down", "expected an answer to CONNECT"),
    ] {
        let before = cell.site.accepted();
        let error = by_both(&cell.site.url(), &cell.outbound(&format!("http://{proxy}"), Told::ByJoinCode)).await;
        let error = error.expect_err("no way");
        assert_eq!((error.leg(), error.code()), (Leg::Proxy, code), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        let reached = cell.site.accepted() - before;
        assert_eq!(
            reached,
            if proxy == cell.site.addr { 2 } else { 0 },
            "only what was taken for the proxy is dialled"
        );
    }
}

#[tokio::test]
async fn a_proxy_may_speak_tls_itself() {
    let cell = Cell::new().await;
    let own = TrialCertificates::generate(&["127.0.0.1"]).unwrap();
    let own_ca = cell.dir.path().join("proxy-ca.pem");
    std::fs::write(&own_ca, &own.ca_pem).unwrap();
    let rules = Rules { target: Some(cell.site.addr), certificate: Some(own), ..Rules::default() };
    let proxy = ForwardProxy::start(rules).await;
    let at = format!("https://{}", proxy.addr);
    let stranger = by_both(&cell.site.url(), &cell.outbound(&at, Told::ByJoinCode)).await.unwrap_err();
    assert_eq!((stranger.leg(), cell.site.accepted()), (Leg::Proxy, 0), "{stranger}");
    let mut outbound = cell.outbound(&at, Told::ByJoinCode);
    outbound.extra_ca.push(own_ca);
    by_both(&cell.site.url(), &outbound).await.unwrap();
}

#[tokio::test]
async fn a_trip_tells_each_leg_and_who_vouches() {
    let cell = Cell::new().await;
    let proxy = ForwardProxy::start(Rules { target: Some(cell.site.addr), ..Rules::default() }).await;
    let legs = async |outbound: Outbound| {
        let connector = Connector::new(&outbound).unwrap();
        let (trip, failed) = travelled(&cell.site.url(), &connector).await;
        let legs: Vec<Leg> = trip.steps.iter().map(|step| step.leg).collect();
        let voucher = trip.certificate.as_ref().map(|seen| (seen.issuer.clone(), seen.voucher, seen.version));
        let failed = failed.as_ref().map(DialError::leg);
        (legs, voucher, failed, connector.trust().inspector().map(str::to_owned))
    };
    let issuer = "Kvasir trial authority".to_owned();
    let direct = vec![Leg::Dns, Leg::Tcp, Leg::Tls, Leg::Upgrade];
    let seen = |voucher| Some((issuer.clone(), voucher, "TLS 1.3"));
    let by_code = legs(cell.outbound("none", Told::ByJoinCode)).await;
    assert_eq!(by_code, (direct.clone(), seen(Voucher::Network), None, None));
    let by_file = legs(cell.outbound("none", Told::ByFile)).await;
    assert_eq!(by_file, (direct, seen(Voucher::Named), None, Some(issuer.clone())), "perhaps somebody reads along");
    let through = vec![Leg::Dns, Leg::Tcp, Leg::Proxy, Leg::Tls, Leg::Upgrade];
    let by_proxy = legs(cell.outbound(&format!("http://{}", proxy.addr), Told::ByJoinCode)).await;
    assert_eq!(by_proxy, (through, seen(Voucher::Network), None, None));
    let untrusted = legs(cell.outbound("none", Told::Nothing)).await;
    assert_eq!(untrusted, (vec![Leg::Dns, Leg::Tcp], None, Some(Leg::Tls), None));
}
