//! What a hub is told: whom it serves, where its backbone is, how much it takes on and how long it waits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::receipts::ReceiptTiming;
use crate::clock::{Clock, SystemClock};
use crate::net::dial::{Outbound, Way};
use crate::net::peer::PeerSecurity;
use crate::net::ws::Ping;
use crate::types::PublicKey;
use crate::wire::agent::Version;
use crate::wire::rendezvous::PING_EVERY;

/// Whose workers a hub takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AdmissionPolicy {
    /// Everybody's.
    #[default]
    Open,
    /// Those of wallets that showed a join code of this operator while it held.
    Invite {
        /// Who invites.
        operator: PublicKey,
    },
    /// Those of the wallets on the list.
    List,
}

/// How much a hub takes on.
#[derive(Debug, Clone, Copy)]
pub struct HubLimits {
    /// Sessions, handshakes included.
    pub sessions: usize,
    /// Connections whose wallet is not proven yet; each holds one backbone connection.
    pub handshakes: usize,
    /// Such connections of one address (IPv6: of a /64). Above one, because a home or an office shares an address.
    pub handshakes_per_peer: usize,
    /// Sessions of one wallet.
    pub sessions_per_wallet: usize,
    /// (request, part) pairs of a session that are not both answered and judged.
    pub open_parts: usize,
    /// `ExpertGet`s of a session without their chunk: 16 × 256 KiB fill a 2.5 Gbit/s path of 13 ms.
    pub open_expert_gets: usize,
    /// Frames that wait for a slow worker; beyond, the backbone's connection waits.
    pub queue_frames: usize,
    /// Connections kept ready at each gateway of `rendezvous`. Each that is used is replaced within two round trips, so
    /// that eight let two hundred workers a second come in at 13 ms.
    pub parked: usize,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self {
            sessions: 4096,
            handshakes: 256,
            handshakes_per_peer: 16,
            sessions_per_wallet: 16,
            open_parts: 1024,
            open_expert_gets: 16,
            queue_frames: 8,
            parked: 8,
        }
    }
}

/// How long a hub waits.
#[derive(Debug, Clone, Copy)]
pub struct HubTiming {
    /// From accept to `Welcome`, over TLS, head, backbone and both signatures.
    pub handshake: Duration,
    /// For the backbone's connection and its first frame.
    pub backbone: Duration,
    /// For one write, or for room in a queue, before a peer counts as stalled.
    pub stall: Duration,
    /// How a silent worker is noticed.
    pub ping: Ping,
    /// Receipts.
    pub receipts: ReceiptTiming,
    /// Between two writes of the meters.
    pub flush: Duration,
    /// For outstanding verdicts, before a drained session ends.
    pub drain: Duration,
    /// For the backbone to close after a session, so that late verdicts and audits still count.
    pub afterwards: Duration,
    /// Longest silence of a gateway on a connection that is kept ready there: two of its pings.
    pub parked_silence: Duration,
    /// Upper end of the pause that leaving workers are told, so that they do not return all at once.
    pub reconnect_within: Duration,
}

impl Default for HubTiming {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            handshake: s(10),
            backbone: s(3),
            stall: s(10),
            ping: Ping::hub(),
            receipts: ReceiptTiming { interval: s(5), acknowledge: s(30) },
            flush: s(1),
            drain: s(20),
            afterwards: s(10),
            parked_silence: PING_EVERY * 5 / 2,
            reconnect_within: s(5),
        }
    }
}

/// What a hub is told.
#[derive(Clone)]
pub struct HubConfig {
    /// Names under which workers reach this hub (through the gateway); a worker that dialled another is refused.
    pub public_hosts: Vec<String>,
    /// Where the backbone listens for hubs, `host:port`.
    pub backbone: String,
    /// How the hub and its backbone recognise each other.
    pub backbone_peer: PeerSecurity,
    /// How the hub and its gateways recognise each other.
    pub gateway_peer: PeerSecurity,
    /// Public listeners of gateways, `host:port`, where this hub keeps connections ready; needs pinned keys.
    pub rendezvous: Vec<String>,
    /// How these are reached.
    pub way: Arc<Way>,
    /// File of caught wallets.
    pub quarantine_list: PathBuf,
    /// Whose workers are taken.
    pub admission: AdmissionPolicy,
    /// Wallets that are always taken.
    pub allowed: Vec<PublicKey>,
    /// Workers' programs older than this are told to update; other programs are not asked.
    pub oldest_worker: Option<Version>,
    /// File of the wallets that joined by invitation.
    pub members_list: PathBuf,
    /// File of devices that computed wrongly.
    pub devices_list: PathBuf,
    /// Directory of the admin socket; none without.
    pub admin: Option<PathBuf>,
    /// Where the meters are kept, if on this machine: its disk is watched.
    pub kept_in: Option<PathBuf>,
    /// How much.
    pub limits: HubLimits,
    /// How long.
    pub timing: HubTiming,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl HubConfig {
    /// The defaults: all on this machine, every limit and wait as documented.
    #[must_use]
    pub fn new(backbone: String, public_hosts: Vec<String>, quarantine_list: PathBuf) -> Self {
        let members_list = quarantine_list.with_file_name("members");
        let devices_list = quarantine_list.with_file_name("devices");
        Self {
            public_hosts,
            backbone,
            backbone_peer: PeerSecurity::Loopback,
            gateway_peer: PeerSecurity::Loopback,
            rendezvous: Vec::new(),
            way: Arc::new(Way::new(&Outbound::default())),
            quarantine_list,
            admission: AdmissionPolicy::default(),
            allowed: Vec::new(),
            oldest_worker: None,
            members_list,
            devices_list,
            admin: None,
            kept_in: None,
            limits: HubLimits::default(),
            timing: HubTiming::default(),
            clock: Arc::new(SystemClock::default()),
        }
    }
}
