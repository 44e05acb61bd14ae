//! Bytes ↔ types of everything that crosses a cable; no sockets here.
//!
//! The two ends of a leg meet in this module and never in each other. Wire numbers are permanent.
//! **Promise:** every length is checked against a bound before anything is allocated, and every refusal is named.

pub mod admin;
pub mod agent;
pub mod chunk;
pub mod control;
pub mod frame;
pub mod handshake;
pub mod invite;
pub mod receipt;
pub mod rendezvous;
pub mod signature;
pub mod slice;
pub mod speed;
pub mod text;
pub mod work;

pub use frame::{Frame, FrameError, Header, Kind};
pub use slice::Slice;

/// Path of a worker's link, at the gateway and at the hub: the only one that becomes a WebSocket.
pub const WORKER_PATH: &str = "/v1/worker";
/// Path under which a gateway that stops asks a hub to send away the workers that came through it.
pub const LEAVE_PATH: &str = "/v1/leave";

/// Path where receipts are handed in again, at the gateway and at the hub.
pub const RECEIPTS_PATH: &str = "/v1/receipts";
