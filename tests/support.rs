//! What the tests of the forward pass share: reference files, backbones over the repository's models, comparisons.

pub mod clock;
pub mod completion;
pub mod fault_proxy;
pub mod faults;
pub mod fleet;
pub mod forward_proxy;
pub mod joined;
pub mod line;
pub mod names;
pub mod nginx;
pub mod one_layer;
#[cfg(unix)]
pub mod postgres;
pub mod process;
pub mod site;

use kvasir::backbone::Backbone;
use kvasir::dispatch::{Dispatch, LocalDispatch, Mode, MoeStep, Pending};
use kvasir::kernel::{CpuKernel, CpuPath, ExpertCompute};
use kvasir::model::{DeltaNetShape, HeadOrder, Model};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A path below `tests/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(path)
}

/// A file of reference tensors.
pub struct Golden(Vec<u8>);

impl Golden {
    pub fn read(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().as_chunks().0.to_vec()
    }

    pub fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).expect("a safetensors file").tensor(name).is_ok()
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).into_iter().map(u32::from_le_bytes).collect()
    }

    /// Per row: how far the last chosen expert's probability lies above the first that was not.
    pub fn router_margins(&self, layer: usize, experts: usize, k: usize) -> Vec<f32> {
        self.floats(&format!("router_logits.{layer}")).chunks_exact(experts).map(|row| router_margin(row, k)).collect()
    }
}

/// Probability of the k-th largest minus that of the next.
pub fn router_margin(logits: &[f32], k: usize) -> f32 {
    let mut p = logits.to_vec();
    kvasir::kernel::float::softmax(&mut p);
    p.sort_by(|a, b| b.total_cmp(a));
    p.get(k).map_or(f32::INFINITY, |next| p[k - 1] - next)
}

/// A backbone whose experts are computed here in f32.
pub fn float_backbone(model: &Arc<Model>) -> Backbone {
    Backbone::new(model.clone(), Arc::new(local(model, Mode::Float))).expect("a backbone")
}

/// Local experts of `model`.
pub fn local(model: &Arc<Model>, mode: Mode) -> LocalDispatch {
    LocalDispatch::new(model.clone(), compute(), mode)
}

/// Keeps every step that goes through it.
pub struct Recorder {
    inner: LocalDispatch,
    steps: Mutex<Vec<MoeStep>>,
}

impl Recorder {
    pub fn over(model: &Arc<Model>) -> Arc<Self> {
        Arc::new(Self { inner: local(model, Mode::Float), steps: Mutex::new(Vec::new()) })
    }

    pub fn steps(&self) -> Vec<MoeStep> {
        self.steps.lock().expect("no panic").clone()
    }
}

impl Dispatch for Recorder {
    fn begin(&self, step: MoeStep) -> Pending {
        self.steps.lock().expect("no panic").push(step.clone());
        self.inner.begin(step)
    }

    fn begin_here(&self, step: MoeStep) -> Pending {
        self.begin(step)
    }
}

/// The safetensors index of value head `h` as the model stores it.
pub fn hf_head(shape: &DeltaNetShape, h: usize) -> usize {
    match shape.order {
        HeadOrder::Grouped => h,
        HeadOrder::Tiled => h % shape.key_heads * (shape.value_heads / shape.key_heads) + h / shape.key_heads,
    }
}

pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

/// The likeliest token and how far its logit lies above the next.
pub fn top(logits: &[f32]) -> (u32, f32) {
    let token = kvasir::backbone::sampler::argmax(logits);
    let others = logits.iter().enumerate().filter(|(i, _)| *i != token as usize);
    let second = others.map(|(_, v)| *v).fold(f32::NEG_INFINITY, f32::max);
    (token, logits[token as usize] - second)
}

/// The kernel of these tests: two threads of this machine's CPU.
pub fn compute() -> Arc<dyn ExpertCompute> {
    Arc::new(CpuKernel::new(CpuPath::detect().expect("a CPU path"), 2).expect("a kernel"))
}
