//! The end of a gateway's run: workers are told where they stand instead of being cut.
//!
//! The gateway splices bytes under tags that it cannot make, so a hub has to say it: each hub is asked to send away
//! (`GoAway`, with a pause drawn for each) the workers that came through this run, and asked again while there are some,
//! because a worker may be in the middle of its handshake. What is in flight is answered, and the splices end by themselves.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::config::GatewayConfig;
use super::hub_leg;
use super::server::report;
use super::upgrade::Shared;
use crate::types::{GatewayRun, Hex};

/// Between two times that hubs are asked.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A name for this run that no other has.
pub fn run_id() -> GatewayRun {
    let mut id = [0; 16];
    // Without randomness two gateways could share a name, and their workers leave together: a pity and no loss.
    let _ = getrandom::fill(&mut id);
    Hex(id)
}

/// Lets connections end for `deadlines.drain`, then cuts them.
pub async fn drain(connections: &mut JoinSet<()>, shared: &Shared, config: &GatewayConfig) {
    tracing::info!(connections = connections.len(), "the gateway drains");
    let until = Instant::now() + config.deadlines.drain;
    let ended = async {
        while let Some(done) = connections.join_next().await {
            report(done);
        }
    };
    tokio::select! {
        _ = timeout_at(until, ended) => {}
        () = send_away(shared, config) => {}
    }
    if !connections.is_empty() {
        tracing::warn!(connections = connections.len(), "the drain is over, connections are cut");
        connections.shutdown().await;
    }
}

/// Asks every hub that has workers through here, again and again.
async fn send_away(shared: &Shared, config: &GatewayConfig) {
    loop {
        let legs = shared.legs.all();
        let asked = legs.iter().filter(|leg| leg.open() > 0).map(async |leg| {
            if let Err(error) = hub_leg::send_away(leg, shared.run, config).await {
                tracing::warn!(leg = leg.name, %error, "a hub was not told that its workers should leave");
            }
        });
        futures_util::future::join_all(asked).await;
        sleep(ASK_AGAIN).await;
    }
}
