//! The public side: terminates TLS, splices workers to a hub, and turns the hubs' meters into credit.
//!
//! A worker's connection passes `server` (permits, one deadline over TLS and head), `upgrade` (the hub must answer
//! 101 before one more byte is forwarded) and `splice` (bytes both ways, untouched). Everything else is the public
//! HTTP of `api`. `legs` knows the hubs and chooses among them; a hub that nobody can dial dials in (`rendezvous`) and
//! keeps connections here (`lot`). At the end `drain` has the workers sent elsewhere. `accounts` polls the hubs and credits wallets through the ledger.
//!
//! **Promises:** a work frame is never decoded here; a client's bytes reach the hub only as the rebuilt head and, after
//! 101, as they are; byte counts are metrics, never money; every wait has a deadline and every peer a limit.

mod accounts;
mod api;
mod config;
mod drain;
mod hub_leg;
mod legs;
mod lot;
mod metrics;
mod permits;
mod rendezvous;
mod reply;
mod server;
mod splice;
mod upgrade;

pub use config::{Deadlines, GatewayConfig, HubEndpoint, Limits};
pub use metrics::{HubLeg, Status};
pub use server::serve;
