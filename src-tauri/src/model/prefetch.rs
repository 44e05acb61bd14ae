//! Reads a mapped model ahead in the order of its files, so that the first tokens do not wait for the disk page by page.
//!
//! Opening maps and reads nothing. This runs beside whatever uses the model, and makes nobody wait: bytes that are met
//! before they were read ahead come from the disk as without it. Why touch every page rather than only advise: the
//! advice says nothing of when it is done, and a page that was touched costs no fault in the middle of a token.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Data, ExpertWeights, LayerWeights, Matrix, Mixer, Model, room};

/// Bytes that are advised at once; while one such stretch is read, the system fetches the next.
const STRETCH_BYTES: usize = 32 << 20;
/// Bytes between two tensors that are read with them: alignment, small tensors.
const GAP_BYTES: usize = 1 << 20;
/// The smallest page of any system.
const PAGE_BYTES: usize = 4096;

/// Which part of a model will be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// All of it.
    Everything,
    /// Everything but the routed experts.
    Backbone,
}

/// Stretches of files to be read ahead.
#[derive(Debug)]
pub struct Prefetch {
    pieces: Vec<Data>,
}

impl Prefetch {
    /// What there is to read ahead of `model`: nothing for a model in memory, nor for one that this machine's free
    /// memory cannot hold, since then the last bytes would push out the first.
    #[must_use]
    pub fn of(model: &Model, reach: Reach) -> Self {
        let prefetch = Self { pieces: in_file_order(tensors(model, reach)) };
        let fits = room::memory_free().is_none_or(|free| prefetch.bytes() <= free);
        if fits { prefetch } else { Self { pieces: Vec::new() } }
    }

    /// Bytes to read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Reads; `progress` is told the bytes so far. Ends early when `stop` is set.
    pub fn run(&self, stop: &AtomicBool, mut progress: impl FnMut(u64)) {
        let stretches = self.pieces.iter().flat_map(|piece| {
            let starts = (0..piece.len()).step_by(STRETCH_BYTES);
            starts.filter_map(|start| piece.slice(start..piece.len().min(start + STRETCH_BYTES)))
        });
        let mut stretches = stretches.peekable();
        let mut done = 0;
        while let Some(stretch) = stretches.next() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if done == 0 {
                stretch.will_need();
            }
            if let Some(next) = stretches.peek() {
                next.will_need();
            }
            let sum = stretch.iter().step_by(PAGE_BYTES).fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            std::hint::black_box(sum);
            done += stretch.len() as u64;
            progress(done);
        }
    }
}

/// The model's large tensors, in the order in which a token meets them.
fn tensors(model: &Model, reach: Reach) -> Vec<&Matrix> {
    let weights = &model.weights;
    let mut found = vec![&weights.embedding];
    weights.layers.iter().for_each(|layer| add_layer(layer, reach, &mut found));
    if let Some(mtp) = &weights.mtp {
        found.extend([&mtp.projection, &mtp.embedding, &mtp.head]);
        add_layer(&mtp.layer, reach, &mut found);
    }
    found.push(&weights.head);
    found
}

fn add_layer<'a>(layer: &'a LayerWeights, reach: Reach, found: &mut Vec<&'a Matrix>) {
    let parts = |expert: &'a ExpertWeights| [&expert.gate, &expert.up, &expert.down];
    match &layer.mixer {
        Mixer::Attention(w) => found.extend([&w.q, &w.k, &w.v, &w.output]),
        Mixer::DeltaNet(w) => found.extend([&w.qkv, &w.z, &w.a, &w.b, &w.output]),
    }
    found.push(&layer.router);
    found.extend(layer.shared.iter().flat_map(|shared| parts(&shared.ffn)));
    if reach == Reach::Everything {
        found.extend(layer.experts.iter().flat_map(parts));
    }
}

/// Files by first use, the bytes of each in order; neighbours become one piece.
fn in_file_order(tensors: Vec<&Matrix>) -> Vec<Data> {
    let mut files = Vec::new();
    let mut places = Vec::new();
    for data in tensors.iter().map(|matrix| &matrix.data) {
        let Some((file, range)) = data.place() else { continue };
        let known = files.iter().position(|known| *known == file);
        let file = known.unwrap_or_else(|| {
            files.push(file);
            files.len() - 1
        });
        places.push((file, range.start, range.end, data));
    }
    places.sort_unstable_by_key(|(file, start, ..)| (*file, *start));
    let mut pieces: Vec<(usize, usize, usize, &Data)> = Vec::new();
    for (file, start, end, data) in places {
        match pieces.last_mut() {
            Some(last) if last.0 == file && start <= last.2 + GAP_BYTES => last.2 = last.2.max(end),
            _ => pieces.push((file, start, end, data)),
        }
    }
    pieces.into_iter().filter_map(|(_, start, end, data)| data.of_same_map(start..end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Model {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/q35moe-tiny");
        crate::model::open(std::path::Path::new(path)).unwrap()
    }

    #[test]
    fn every_tensor_of_every_file_is_read_once() {
        let model = tiny();
        let prefetch = Prefetch::of(&model, Reach::Everything);
        let inspection = crate::model::Inspection::of(&model);
        let stored = inspection.expert_bytes + inspection.backbone_bytes;
        let files = [803_848, 595_264].iter().sum::<u64>();
        assert_eq!(prefetch.pieces.len(), 2);
        assert!((stored * 9 / 10..=files).contains(&prefetch.bytes()), "{} of {stored}", prefetch.bytes());
        let mut told = Vec::new();
        prefetch.run(&AtomicBool::new(false), |done| told.push(done));
        assert_eq!(told.last(), Some(&prefetch.bytes()));
        prefetch.run(&AtomicBool::new(true), |_| panic!("expected no reading after the stop"));
    }

    #[test]
    fn a_model_in_memory_needs_no_reading() {
        assert_eq!(Prefetch::of(&crate::model::embedded().unwrap(), Reach::Everything).bytes(), 0);
    }

    #[test]
    fn released_bytes_come_back_the_same() {
        let model = tiny();
        let data = &model.weights.embedding.data;
        let before = data.to_vec();
        data.release();
        assert_eq!(data[..], before[..]);
    }
}
