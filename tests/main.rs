//! All integration tests in one binary, so that they link once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

mod allocation;
mod api;
mod convert;
#[cfg(target_os = "linux")]
mod crowd;
mod demo;
mod dispatch;
#[cfg(target_os = "linux")]
mod doctor;
mod elastic;
mod engine;
mod exact;
mod figures;
mod fleet;
mod fuzz;
mod gateway;
mod generation;
mod geometry;
mod goldens;
mod handshake;
#[cfg(target_os = "linux")]
mod hops;
#[cfg(target_os = "linux")]
mod hostile;
mod hub;
mod ledger;
#[cfg(target_os = "linux")]
mod logs;
mod model_files;
mod mtp;
mod net;
mod operating;
#[cfg(unix)]
mod operators;
#[cfg(target_os = "linux")]
mod outbound;
mod packages;
mod peer;
mod processes;
#[cfg(target_os = "linux")]
mod readme;
mod reference;
mod refused_models;
#[cfg(unix)]
mod restarts;
mod serving;
#[cfg(feature = "gpu")]
mod shaders;
mod slices;
mod speculate;
mod supply_chain;
mod support;
mod tidy;
mod tiny_model;
mod trust;
#[cfg(target_os = "linux")]
mod units;
mod wallet;
mod wire;
mod wire_roundtrip;
mod wire_v1;
mod worker;
