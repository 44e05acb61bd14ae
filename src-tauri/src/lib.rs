//! Kvasir: anybody's hardware takes part in the live decode of a Mixture-of-Experts model.
//!
//! # Life of one token
//! [`backbone`] embeds it and runs a layer's mixer and router → [`dispatch`] sends the layer's assignments out →
//! [`hub`] owns the workers' sessions and meters them → [`gateway`] splices bytes to the public side →
//! [`worker`] computes them with [`kernel`] → back the same way, where the backbone combines the partials →
//! [`ledger`] records the work and credits it to a [`wallet`]. On a contributor's desk, [`engine`] holds worker and
//! wallet together for a window to show; [`doctor`] says what is wrong when it does not work. [`threats`] tells who might mean harm, and what stands in the way.

pub mod cli;
pub mod config;
pub mod run;

pub mod backbone;
#[cfg(feature = "desktop")]
pub mod desktop;
pub mod dispatch;
pub mod doctor;
pub mod engine;
pub mod gateway;
pub mod hub;
pub mod kernel;
pub mod ledger;
pub mod wallet;
pub mod worker;

pub mod bench;
pub mod demo;

pub mod model;
pub mod net;
pub mod wire;

pub mod clock;
pub mod shutdown;
pub mod telemetry;
pub mod threats;
pub mod types;
