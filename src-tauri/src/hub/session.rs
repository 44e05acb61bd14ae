//! One worker's connection from its first frame to its last: handshake, bridge, goodbye.
//!
//! Before: a gateway's request was upgraded. After: the session's meter is final in the ledger.
//! The backbone is dialled before the hello, because only it knows the model; a hub without a backbone says `busy` at
//! once. **Invariants:** the whole handshake has one deadline; what ends a session ends only that session; the meter
//! is closed last, when the backbone has no verdict left to give or had its time.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

use super::Hub;
use super::admission::{PeerHash, Refusal};
use super::backbone_leg::{self, Backbone};
use super::config::AdmissionPolicy;
use super::ending::{Ending, Fault};
use super::live::{Bounds, Live};
use super::outstanding::Outstanding;
use super::quarantine::By;
use super::receipts::Receipts;
use super::registry::{Arrival, Notice, Seat};
use super::worker_leg::{self, SealedSender};
use crate::net::ws::{WsError, WsStream};
use crate::types::GatewayRun;
use crate::wire::Frame;
use crate::wire::agent::Version;
use crate::wire::control::{Control, GoAway, Pause, SessionClosed, SessionOpen};
use crate::wire::handshake::{HandshakeError, HubHandshake, HubRandom, HubSession, HubTerms, Limits};

/// A proven worker, its place and its backbone connection.
struct Admitted {
    session: HubSession,
    seat: Seat,
    backbone: Backbone,
    room: OwnedSemaphorePermit,
}

/// Where a worker comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Its address, hidden.
    pub peer: PeerHash,
    /// The run of the gateway that it came through, if that said so.
    pub gateway: Option<GatewayRun>,
}

/// Why a connection becomes no session.
#[derive(Debug, thiserror::Error)]
enum NotAdmitted {
    /// The worker is told.
    #[error("{why}")]
    Refused { refusal: Refusal, why: String },
    /// Nobody is there to be told.
    #[error("gone during the handshake: {0}")]
    Gone(#[from] WsError),
}

/// Serves an upgraded connection until it is over.
pub async fn run(hub: &Arc<Hub>, mut ws: WsStream, origin: Origin, deadline: Instant) {
    let peer = origin.peer;
    let late = || refused(Refusal::Unauthorised, "no answer in time");
    let share = hub.admission.approach(peer);
    let admitted = match &share {
        Ok(_) => timeout_at(deadline, admit(hub, &mut ws, origin)).await.unwrap_or_else(|_| Err(late())),
        Err(refusal) => Err(refused(*refusal, "the address has enough unproven connections")),
    };
    match admitted {
        Ok(admitted) => {
            drop(share);
            serve(hub, ws, admitted, peer).await;
        }
        Err(NotAdmitted::Gone(error)) => tracing::debug!(peer = %short(&peer), %error, "connection ended early"),
        Err(NotAdmitted::Refused { refusal, why }) => {
            tracing::info!(peer = %short(&peer), code = refusal.code(), why, "worker refused");
            hub.outcomes.count("refused", refusal.code());
            if refusal == Refusal::Unauthorised {
                sleep(hub.admission.failed(peer)).await;
            }
            if let Ok(frame) = refusal.frame() {
                let _ = ws.send(frame.encode()).await;
            }
            ws.close(refusal.close_code(), refusal.code()).await;
        }
    }
}

async fn admit(hub: &Arc<Hub>, ws: &mut WsStream, origin: Origin) -> Result<Admitted, NotAdmitted> {
    let draining = || refused(Refusal::Draining, "the hub drains");
    if hub.is_draining() {
        return Err(draining());
    }
    let (room, _handshake_room) = hub.admission.enter().map_err(|refusal| refused(refusal, "the hub is full"))?;
    let backbone = backbone_leg::dial(&hub.config).await.map_err(|e| refused(Refusal::Busy, e))?;
    let invite_only = matches!(hub.config.admission, AdmissionPolicy::Invite { .. });
    let terms = HubTerms { hub_epoch: hub.epoch, manifest: backbone.manifest, limits: Limits::default(), invite_only };
    let random = HubRandom::draw().map_err(|e| refused(Refusal::Busy, e))?;
    let (handshake, hello) = HubHandshake::hello(&hub.identity, &terms, random, hub.config.clock.mono())
        .map_err(|e| refused(Refusal::Busy, e))?;
    ws.send(hello.encode()).await?;
    let Some(message) = ws.recv().await? else {
        return Err(WsError::Lost { reason: "closed by the worker".into() }.into());
    };
    let (welcome, session) = Frame::decode(message)
        .map_err(HandshakeError::from)
        .and_then(|auth| handshake.accept(&auth, &hub.config.public_hosts, hub.config.clock.mono()))
        .map_err(|error| match error {
            HandshakeError::Version { .. } => refused(Refusal::Version, error),
            _ => refused(Refusal::Unauthorised, error),
        })?;
    hub.admission.succeeded(origin.peer);
    if hub.is_draining() {
        return Err(draining());
    }
    if let (Some(oldest), Some(version)) = (hub.config.oldest_worker, Version::of_agent(&session.agent))
        && version < oldest
    {
        let why = format!("expected version {oldest} or newer, got {version}");
        return Err(refused(Refusal::UpdateRequired, why));
    }
    let seat = hub
        .registry
        .seat(Arrival {
            wallet: session.wallet,
            worker: session.worker_id,
            session: session.session_id,
            agent: session.agent.clone(),
            gateway: origin.gateway,
        })
        .map_err(|full| refused(Refusal::Limit, full))?;
    // Asked once seated: a wallet that is caught from here on has a seat to be found by.
    match hub.quarantined.by(&session.wallet) {
        Some(By::Backbone) => return Err(refused(Refusal::Quarantined, "quarantined wallet")),
        Some(By::Operator) => return Err(refused(Refusal::Banned, "banned wallet")),
        None => {}
    }
    if let Some(left) = hub.registry.away(&session.wallet, Instant::now()) {
        return Err(refused(Refusal::Away(left), "drained wallet"));
    }
    hub.members.admit(&session).await.map_err(|error| refused(Refusal::NotInvited, error))?;
    ws.send(welcome.encode()).await?;
    Ok(Admitted { session, seat, backbone, room })
}

fn refused(refusal: Refusal, why: impl ToString) -> NotAdmitted {
    NotAdmitted::Refused { refusal, why: why.to_string() }
}

/// Bridges an admitted worker and its backbone connection until either ends, then settles.
async fn serve(hub: &Arc<Hub>, ws: WsStream, admitted: Admitted, peer: PeerHash) {
    let Admitted { session, seat, backbone, room: _room } = admitted;
    let HubSession { wallet, worker_id, session_id, session_key, agent, round_trip, seal, mut open, .. } = session;
    let Backbone { reader: mut backbone_reader, writer, hidden_size, .. } = backbone;
    let (timing, limits) = (&hub.config.timing, &hub.config.limits);

    let tally = hub.meters.open(session_id, wallet, hidden_size);
    let receipts = Receipts::new(
        hub.identity.key().clone(),
        hub.epoch,
        (session_id, wallet, session_key),
        timing.receipts,
        hub.config.clock.mono(),
    );
    let bounds = Bounds { queue_frames: limits.queue_frames, gets_max: limits.open_expert_gets, stall: timing.stall };
    let outstanding = Outstanding::new(limits.open_parts, hidden_size);
    let (live, mut queues, mut for_backbone) =
        Live::new(session_id, hub.devices.of(&wallet, &worker_id), bounds, outstanding, tally, receipts);
    let (sender, mut receiver) = ws.split();
    let mut sender = SealedSender::new(sender, seal);
    let mut backbone_writer = writer.with_deadline(timing.stall);
    tracing::info!(session = %live.short(), agent, "session open");

    let round_trip_us = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    let opening = SessionOpen { session_id, wallet, worker_id, peer_ip_hash: peer, round_trip_us };
    let mut from_backbone = pin!(backbone_leg::read(hub, &live, &mut backbone_reader));
    let mut to_backbone = pin!(backbone_leg::write(&mut for_backbone, &mut backbone_writer));
    let mut backbone_over = false;
    let ending = match queue(&live, &opening).await {
        Err(ending) => ending,
        Ok(()) => tokio::select! {
            ending = &mut from_backbone => { backbone_over = true; ending }
            ending = &mut to_backbone => { backbone_over = true; ending }
            ending = worker_leg::read(&live, &mut receiver, &mut open) => ending,
            ending = sender.write(&live, &mut queues) => ending,
            ending = write_receipts(hub, &live) => ending,
            ending = departure(hub, &live, &seat) => ending,
        },
    };
    // A worker that had nothing outstanding may not have been told yet to come back later.
    let unsaid = if matches!(ending, Ending::Drained) { queues.rest() } else { Vec::new() };
    // From here on frames of the backbone for the worker go nowhere, and the installation may come again.
    drop((queues, seat));
    hub.outcomes.count("ended", ending.code());
    log_end(&live, &ending);

    let mut settlement = pin!(async {
        let closed = SessionClosed { reason: ending.code().into() };
        let rest = async { tokio::join!(queue(&live, &closed), to_backbone, from_backbone) };
        if !backbone_over && timeout(timing.afterwards, rest).await.is_err() {
            tracing::debug!(session = %live.short(), "the backbone did not close in time");
        }
    });
    // The last receipt waits for the last verdicts, but no longer than there is anybody to give them.
    let judged = async {
        if gets_receipt(&ending) {
            live.until_judged().await;
        }
    };
    let is_settled = tokio::select! {
        biased;
        () = &mut settlement => true,
        () = judged => false,
    };
    let farewell = say_goodbye(hub, &live, sender, &ending, unsaid);
    if is_settled {
        farewell.await;
    } else {
        tokio::join!(farewell, settlement);
    }
    hub.meters.close(&session_id);
    if let Err(error) = hub.meters.flush().await {
        tracing::error!(session = %live.short(), %error, "the session's last meter waits for the next flush");
    }
}

async fn queue(live: &Live, body: &impl Control) -> Result<(), Ending> {
    let frame = body.frame().map_err(|e| Ending::Internal(e.to_string()))?;
    live.to_backbone(frame).await
}

/// Puts the counters in writing when they are due, always after the ledger has them.
async fn write_receipts(hub: &Hub, live: &Live) -> Ending {
    let timing = hub.config.timing.receipts;
    let mut looks = interval((timing.interval / 5).max(std::time::Duration::from_millis(1)));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let totals = live.tally().totals();
        if live.receipts().is_at_rest(totals) {
            // A session that earns nothing costs nothing: hubs hold many.
            live.until_credited().await;
        }
        looks.tick().await;
        let now = hub.config.clock.mono();
        if let Some(sequence) = live.receipts().overdue(now) {
            return Ending::Unacknowledged { sequence, deadline: timing.acknowledge };
        }
        let totals = live.tally().totals();
        if !live.receipts().is_due(totals, now) {
            continue;
        }
        if let Err(error) = hub.meters.flush().await {
            tracing::warn!(session = %live.short(), %error, "no receipt before the ledger has its meter");
            continue;
        }
        let sent = match live.receipts().write(totals, false, now).frame() {
            Ok(frame) => live.to_worker(frame),
            Err(error) => return Ending::Internal(error.to_string()),
        };
        if let Err(ending) = sent.await {
            return ending;
        }
    }
}

/// Ends when another session or the hub's stop says so; a stop first lets outstanding work finish.
async fn departure(hub: &Hub, live: &Live, seat: &Seat) -> Ending {
    let noticed = async {
        match seat.noticed().await {
            Notice::Replaced => Ending::Replaced,
            Notice::Quarantined => Ending::Quarantined,
            Notice::Kicked => Ending::Kicked,
            Notice::Banned => Ending::Banned,
            Notice::Drained => match leave(hub, live).await {
                Ok(()) => Ending::Drained,
                Err(ending) => ending,
            },
        }
    };
    let drained = async {
        hub.shutdown.wait().await;
        match leave(hub, live).await {
            Ok(()) => Ending::Drained,
            Err(ending) => ending,
        }
    };
    tokio::select! {
        ending = noticed => ending,
        ending = drained => ending,
    }
}

async fn leave(hub: &Hub, live: &Live) -> Result<(), Ending> {
    let internal = |e: crate::wire::FrameError| Ending::Internal(e.to_string());
    // The backbone hears it as the worker's pause: it sends nothing new and nothing is lost.
    queue(live, &Pause { reason: "draining".into() }).await?;
    live.to_worker(hub.go_away().frame().map_err(internal)?).await?;
    if timeout(hub.config.timing.drain, live.until_settled()).await.is_err() {
        tracing::warn!(session = %live.short(), "drained with work outstanding");
    }
    Ok(())
}

/// Whether what the session earned is put in writing once more.
fn gets_receipt(ending: &Ending) -> bool {
    ending.fault() != Fault::Worker && ending.leaves_worker_listening()
}

/// What was still to be said, the last receipt and the close, for a worker that still listens.
async fn say_goodbye(hub: &Hub, live: &Live, mut sender: SealedSender, ending: &Ending, unsaid: Vec<Frame>) {
    if !ending.leaves_worker_listening() {
        return;
    }
    for frame in unsaid {
        let _ = sender.send(&frame).await;
    }
    if ending.fault() == Fault::Backbone
        && let Ok(frame) = GoAway::frame(&hub.go_away())
    {
        let _ = sender.send(&frame).await;
    }
    let totals = live.tally().totals();
    if gets_receipt(ending) && totals.assignments > 0 && hub.meters.flush().await.is_ok() {
        let receipt = live.receipts().write(totals, true, hub.config.clock.mono());
        if let Ok(frame) = receipt.frame() {
            let _ = sender.send(&frame).await;
        }
    }
    sender.close(ending.close_code(), ending.code()).await;
}

fn log_end(live: &Live, ending: &Ending) {
    let (session, code, fault) = (live.short(), ending.code(), ending.fault());
    match fault {
        Fault::None | Fault::Link => tracing::info!(%session, code, why = %ending, "session over"),
        Fault::Worker => tracing::warn!(%session, code, why = %ending, "session over: the worker broke a rule"),
        Fault::Backbone | Fault::Hub => tracing::error!(%session, code, ?fault, why = %ending, "session over"),
    }
}

fn short(peer: &PeerHash) -> String {
    peer.to_string().chars().take(8).collect()
}
