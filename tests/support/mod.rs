//! What several integration tests share.

pub mod faults;
pub mod gguf;
pub mod one_layer;
pub mod process;
