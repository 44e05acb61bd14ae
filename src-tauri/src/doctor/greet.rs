//! The handshake with the hub behind a gateway, as far as this machine's keys lead.
//!
//! It shows an installation id of its own, drawn for this once: with the worker's, the hub would take the newer session
//! for the worker's and end the one that earns.

use tokio::time::{Instant, timeout_at};

use super::report::Check;
use super::{Options, WalletFound};
use crate::net::ws::{WsError, WsStream};
use crate::types::Hex;
use crate::wallet::Wallet;
use crate::wire::agent::AGENT;
use crate::wire::frame::{Frame, FrameError};
use crate::wire::handshake::{HandshakeError, WorkerHandshake, WorkerRandom};

pub(super) const HANDSHAKE: (&str, &str) = ("handshake", "Handshake");

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
enum GreetError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Socket(#[from] WsError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the hub closed the link")]
    Closed,
    #[error("no randomness: {0}")]
    Random(#[from] getrandom::Error),
}

/// How far the handshake went.
enum Met {
    /// To the hub's welcome.
    Welcomed,
    /// The hub proved itself; there was no wallet to show.
    HubProved,
}

/// Greets the hub as `host` was dialled.
pub(super) async fn greet(options: &Options, host: &str, mut socket: WsStream, until: Instant) -> Check {
    let (id, title) = HANDSHAKE;
    let greeted = timeout_at(until, exchange(options, host, &mut socket)).await;
    match greeted {
        Ok(Ok(Met::Welcomed)) => Check::ok(id, title, "the hub proved itself and takes this wallet"),
        Ok(Ok(Met::HubProved)) => {
            Check::ok(id, title, "the hub proved itself; whether it takes this machine shows with a wallet")
        }
        Ok(Err(error)) => refused(options, &error),
        Err(_) => {
            let remedy = "the gateway leads on, and the hub behind it does not answer: its operator can tell";
            Check::fail(id, title, "the hub said nothing", remedy)
        }
    }
}

async fn exchange(options: &Options, host: &str, socket: &mut WsStream) -> Result<Met, GreetError> {
    let mut worker_id = Hex([0; 16]);
    getrandom::fill(&mut worker_id.0)?;
    let mut shake = WorkerHandshake::new(options.operators.clone(), host, worker_id, AGENT, WorkerRandom::draw()?)
        .with_invite(options.invite.clone());
    let now_unix_s = options.clock.unix_ms() / 1000;
    let hello = Frame::decode(socket.recv().await?.ok_or(GreetError::Closed)?)?;
    let WalletFound::Here(wallet) = &options.wallet else {
        // What a throw-away key signs is sent to nobody.
        shake.answer(&hello, &Wallet::generate()?, now_unix_s)?;
        return Ok(Met::HubProved);
    };
    socket.send(shake.answer(&hello, &**wallet, now_unix_s)?.encode()).await?;
    let welcome = Frame::decode(socket.recv().await?.ok_or(GreetError::Closed)?)?;
    shake.welcomed(&welcome)?;
    Ok(Met::Welcomed)
}

fn refused(options: &Options, error: &GreetError) -> Check {
    let (id, title) = HANDSHAKE;
    let found = error.to_string();
    let remedy = match error {
        GreetError::Handshake(HandshakeError::OperatorNotPinned { .. }) if options.operators.is_empty() => {
            let found = "a hub answers; whose it is was not judged";
            return Check::warn(id, title, found, "name its operator's key with --operator, or give the join code");
        }
        GreetError::Handshake(HandshakeError::OperatorNotPinned { .. }) => {
            "compare the operator's key with the operator: this hub is another's, or somebody stands in between"
        }
        GreetError::Handshake(HandshakeError::CertificateExpired { .. }) => {
            "set this machine's clock; if it is right, the hub's operator must restart the hub"
        }
        GreetError::Handshake(HandshakeError::HostNotAllowed { .. }) => {
            "dial the name that the operator gave out, or the operator adds this one with --public-host"
        }
        GreetError::Handshake(error) if error.wants_update() => "install the newest version of this program",
        GreetError::Handshake(error) if error.is_temporary() => "try again in some minutes: the hub is busy or closing",
        GreetError::Handshake(HandshakeError::Refused { .. }) => {
            "ask the operator to let this wallet in: the hub wants a join code, or has banned it"
        }
        GreetError::Random(_) => "the operating system gives no randomness: restart it",
        _ => "something in between changes or ends the link: try without a proxy or VPN; else ask the operator",
    };
    Check::fail(id, title, found, remedy)
}
