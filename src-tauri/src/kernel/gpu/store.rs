//! The experts in GPU memory: chunks of whole experts of one class, each below the adapter's binding limit.
//!
//! A slot belongs to whoever holds its [`Resident`]; when the last one lets go it is free, and an empty chunk gives its
//! memory back. **Invariant:** a resident's bytes lie inside its chunk.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::device::Device;
use super::layout::{ClassKey, VEC4};
use super::slots::Bound;
use crate::kernel::KernelError;

/// Size of a class's first chunk; each further one is as large as all before, so that a small slice takes little
/// memory and a large one has few chunks.
const CHUNK_BYTES_FIRST: u64 = 64 << 20;
/// Largest chunk: a layer of 256 experts of 5 MB fits one.
const CHUNK_BYTES_MAX: u64 = (2 << 30) - (1 << 20);

/// Memory of some experts.
pub(super) struct Chunk {
    pub buffer: wgpu::Buffer,
    /// Chunks of a store are numbered as they come.
    pub number: u64,
    pub key: ClassKey,
    free: Mutex<Vec<u32>>,
    /// What binds the chunk to each of the thread's slots.
    pub bound: Mutex<Vec<Option<Bound>>>,
    taken: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, SeqCst);
    }
}

/// An expert's place in GPU memory.
pub(super) struct Resident {
    pub chunk: Arc<Chunk>,
    index: u32,
    /// The device that it was placed on; another one does not know it.
    pub device: Arc<Device>,
}

impl Resident {
    /// Byte offset in the chunk.
    pub fn offset(&self) -> u64 {
        u64::from(self.index) * self.chunk.key.expert_bytes() as u64
    }

    /// Its start as the kernels count: in vec4.
    pub fn start(&self) -> u32 {
        self.index * (self.chunk.key.expert_bytes() / VEC4) as u32
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        lock(&self.chunk.free).push(self.index);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
pub(super) struct Store {
    device: Arc<Device>,
    chunks: Mutex<Vec<Weak<Chunk>>>,
    numbers: AtomicU64,
    taken: Arc<AtomicU64>,
    /// Bytes that chunks may take together, beside those taken: asked before each new one.
    room: Box<dyn Fn(u64) -> u64 + Send + Sync>,
}

impl Store {
    /// A store on `device`; `room` gives the bytes that may still be taken when so many are.
    pub fn new(device: Arc<Device>, room: Box<dyn Fn(u64) -> u64 + Send + Sync>) -> Self {
        Self { device, chunks: Mutex::default(), numbers: AtomicU64::new(0), taken: Arc::default(), room }
    }

    /// Bytes that may still be taken by new chunks.
    pub fn room(&self) -> u64 {
        (self.room)(self.taken.load(SeqCst))
    }

    /// Bytes of the chunks there are that no expert takes.
    pub fn free(&self) -> u64 {
        let chunks = lock(&self.chunks);
        let free = |chunk: Arc<Chunk>| lock(&chunk.free).len() as u64 * chunk.key.expert_bytes() as u64;
        chunks.iter().filter_map(Weak::upgrade).map(free).sum()
    }

    /// Bytes of all chunks.
    pub fn taken(&self) -> u64 {
        self.taken.load(SeqCst)
    }

    /// A place for an expert of class `key`.
    ///
    /// # Errors
    /// [`KernelError::Full`], [`KernelError::TooLarge`].
    pub fn take(&self, key: ClassKey) -> Result<Resident, KernelError> {
        let mut chunks = lock(&self.chunks);
        chunks.retain(|chunk| chunk.strong_count() > 0);
        let own: Vec<Arc<Chunk>> = chunks.iter().filter_map(Weak::upgrade).filter(|chunk| chunk.key == key).collect();
        let resident = |chunk: Arc<Chunk>, index| Resident { chunk, index, device: Arc::clone(&self.device) };
        for chunk in &own {
            let free = lock(&chunk.free).pop();
            if let Some(index) = free {
                return Ok(resident(Arc::clone(chunk), index));
            }
        }
        let chunk = Arc::new(self.grow(key, own.iter().map(|chunk| chunk.bytes).sum())?);
        chunks.push(Arc::downgrade(&chunk));
        let first = lock(&chunk.free).pop();
        first.map(|index| resident(chunk, index)).ok_or_else(|| self.full(key))
    }

    fn full(&self, key: ClassKey) -> KernelError {
        KernelError::Full { device: self.device.name.clone(), bytes: key.expert_bytes() as u64 }
    }

    /// A new chunk for class `key`, which has `before` bytes already; a smaller one when memory is short.
    fn grow(&self, key: ClassKey, before: u64) -> Result<Chunk, KernelError> {
        let expert = key.expert_bytes() as u64;
        let limits = &self.device.limits;
        let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size).min(CHUNK_BYTES_MAX);
        if expert > most {
            return Err(KernelError::TooLarge { device: self.device.name.clone(), bytes: expert, most });
        }
        let room = self.room();
        if expert > room {
            return Err(self.full(key));
        }
        let mut bytes = before.max(CHUNK_BYTES_FIRST).clamp(expert, most).min(room) / expert * expert;
        loop {
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
            if let Some(buffer) = self.device.buffer("experts", bytes, usage) {
                // Left to itself, wgpu clears what was not written yet before the first launch that reads the chunk. It
                // looks up what that is before it takes the lock on uploads: an expert that is placed meanwhile would be
                // cleared behind its upload.
                self.device.clear(&buffer);
                self.taken.fetch_add(bytes, SeqCst);
                return Ok(Chunk {
                    buffer,
                    number: self.numbers.fetch_add(1, SeqCst),
                    key,
                    // The lowest index is taken first.
                    free: Mutex::new((0..(bytes / expert) as u32).rev().collect()),
                    bound: Mutex::default(),
                    taken: Arc::clone(&self.taken),
                    bytes,
                });
            }
            bytes = bytes / 2 / expert * expert;
            if bytes == 0 {
                return Err(self.full(key));
            }
        }
    }
}
