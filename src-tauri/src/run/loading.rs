//! Brings a model to where it is used: opens it, quantises its experts if asked to, reads it ahead.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::AnyError;
use super::progress::{Progress, Unit, bytes_bar};
use crate::model::{self, BlockType, Model, Prefetch, Reach};

/// Models below this are read when they are met: nobody would notice the difference.
const READ_AHEAD_BYTES_MIN: u64 = 256 << 20;

/// The model at `path`, or the embedded one; its routed experts as `experts`, where a type is given.
pub(super) fn load_model(path: Option<&Path>, experts: Option<BlockType>) -> Result<Arc<Model>, AnyError> {
    let mut model = path.map_or_else(model::embedded, model::open)?;
    if let Some(ty) = experts {
        let layers = model.weights.moe_layers().count() as u64;
        let mut progress = Progress::new("quantising experts", Unit::Layers);
        model.quantise_experts(ty, |done| progress.set(done as u64, layers))?;
    }
    Ok(Arc::new(model))
}

/// Reading ahead that goes on beside whatever uses the model; ends with this.
pub(super) struct ReadAhead {
    stop: Arc<AtomicBool>,
}

/// Starts to read `model` ahead, with a bar where a person looks on.
pub(super) fn read_ahead(model: &Model, reach: Reach) -> ReadAhead {
    let stop = Arc::new(AtomicBool::new(false));
    let prefetch = Prefetch::of(model, reach);
    if prefetch.bytes() >= READ_AHEAD_BYTES_MIN {
        let stopped = Arc::clone(&stop);
        let read = move || {
            let bar = bytes_bar(prefetch.bytes(), "reading the model ahead");
            prefetch.run(&stopped, |done| bar.set_position(done));
            bar.finish_and_clear();
        };
        // Without the thread every byte is read when it is met.
        if let Err(error) = std::thread::Builder::new().name("read ahead".into()).spawn(read) {
            tracing::warn!(%error, "the model is not read ahead");
        }
    }
    ReadAhead { stop }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
