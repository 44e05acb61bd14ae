//! One address family alone, one that swallows everything, and names that move.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir::net::dial::{Connector, Leg, Outbound};
use kvasir::net::proxy::ProxyChoice;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

use super::site::{Site, by_both, travelled};
use crate::support::names::Names;

fn outbound(site: &Site, names: &Arc<Names>) -> Outbound {
    let network_ca_pem = Some(site.certificates.ca_pem.clone());
    let extra_ca = Vec::new();
    Outbound { proxy: ProxyChoice::Direct, extra_ca, network_ca_pem, resolver: Arc::clone(names) as _ }
}

#[tokio::test]
async fn ipv6_alone_is_enough() {
    let site = Site::on(TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.unwrap());
    by_both(&site.url(), &outbound(&site, &Arc::new(Names::at(&["::1"])))).await.unwrap();
    // Where IPv4 leads nowhere, nobody waits for it.
    let start = Instant::now();
    by_both(&site.url(), &outbound(&site, &Arc::new(Names::at(&["127.0.0.9", "::1"])))).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(1200), "{:?}", start.elapsed());
}

/// A listener that answers nobody: its queue is full, and Linux then drops what comes.
struct BlackHole {
    _socket: Socket,
    _fill: Vec<Socket>,
}

impl BlackHole {
    fn at(addr: SocketAddr) -> Self {
        let new = || Socket::new(Domain::for_address(addr), Type::STREAM, None).expect("a socket");
        let socket = new();
        if addr.is_ipv6() {
            socket.set_only_v6(true).expect("a socket");
        }
        socket.bind(&addr.into()).expect("a free port");
        socket.listen(0).expect("a listener");
        let fill = (0..4).map(|_| {
            let filler = new();
            filler.set_nonblocking(true).expect("a socket");
            // In progress is all that it has to be.
            let _ = filler.connect(&addr.into());
            filler
        });
        Self { _fill: fill.collect(), _socket: socket }
    }
}

#[tokio::test]
async fn a_family_that_swallows_everything_costs_a_quarter_of_a_second() {
    let site = Site::start().await;
    let _hole = BlackHole::at((Ipv6Addr::LOCALHOST, site.addr.port()).into());
    let connector = Connector::new(&outbound(&site, &Arc::new(Names::at(&["::1", "127.0.0.1"])))).unwrap();
    let start = Instant::now();
    let (trip, failed) = travelled(&site.url(), &connector).await;
    let took = start.elapsed();
    assert!(failed.is_none(), "{failed:?}");
    let tcp = trip.steps.iter().find(|step| step.leg == Leg::Tcp).unwrap();
    eprintln!("with IPv6 black-holed: TCP in {:?}, a WebSocket in {took:?}", tcp.took);
    assert!(tcp.took >= Duration::from_millis(250), "the first family has a head start: {:?}", tcp.took);
    assert!(took < Duration::from_millis(600), "{took:?}");
}

#[tokio::test]
async fn a_name_is_looked_up_at_every_attempt_and_a_failure_is_not_remembered() {
    let site = Site::start().await;
    let names = Arc::new(Names::default());
    let outbound = outbound(&site, &names);
    let no_name = by_both(&site.url(), &outbound).await.unwrap_err();
    assert_eq!((no_name.leg(), no_name.code()), (Leg::Dns, "dns"), "{no_name}");
    names.move_to(&["127.0.0.9"]);
    let nobody = by_both(&site.url(), &outbound).await.unwrap_err();
    assert_eq!((nobody.leg(), nobody.code()), (Leg::Tcp, "gateway_down"), "{nobody}");
    names.move_to(&["127.0.0.1"]);
    by_both(&site.url(), &outbound).await.unwrap();
    assert_eq!(names.asked(), 6);
}
