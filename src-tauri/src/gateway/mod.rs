//! The public side: terminates TLS, splices workers to a hub, and turns the hubs' meters into credit.
//!
//! A worker's connection passes `server` (permits, one deadline over TLS and head), `upgrade` (the hub must answer
//! 101 before one more byte is forwarded) and `splice` (bytes both ways, untouched). Everything else is the public
//! HTTP of `api`. `legs` knows the hubs and chooses among them; a hub that nobody can dial dials in (`rendezvous`) and
//! keeps connections here (`lot`). At the end `drain` has the workers sent elsewhere.
//!
//! `accounts` polls the hubs and credits wallets through the ledger; whoever listens to a wallet's `events` hears of it.
//! `/metrics` and addresses are for the operator, behind a listener of their own (`admin`).
//!
//! **Promises:** a work frame is never decoded here; a client's bytes reach the hub only as the rebuilt head and, after
//! 101, as they are; byte counts are metrics, never money; every wait has a deadline and every peer a limit.

mod accounts;
mod admin;
mod api;
mod certificate;
mod claims;
mod config;
mod drain;
mod events;
mod hub_leg;
mod legs;
mod lot;
mod metrics;
mod permits;
mod rates;
mod receipts;
mod rendezvous;
mod reply;
mod server;
mod speed;
mod splice;
mod subscriptions;
mod upgrade;

pub use config::{Deadlines, GatewayConfig, HubEndpoint, Limits, Subscribers};
pub use metrics::{HubLeg, Status};
pub use server::{Listeners, serve};
