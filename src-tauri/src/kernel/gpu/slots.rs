//! The GPU thread's slots: buffers of one job each, kept from job to job, so that one is filled while another computes.

use std::sync::PoisonError;

use super::device::Device;
use super::pipelines::Layouts;
use super::plan::{Plan, WINDOW_BYTES};
use super::store::Chunk;
use crate::kernel::numerics::swiglu::SIGMOID;

/// Jobs on the GPU at once.
pub(super) const SLOTS: usize = 2;
/// Waves of a job whose begin and end can be timed.
pub(super) const WAVES_TIMED_MAX: u32 = 64;

/// The GPU's clock, read at the begin and the end of each wave.
struct Clock {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
}

impl Clock {
    fn new(device: &Device) -> Option<Self> {
        let bytes = u64::from(2 * WAVES_TIMED_MAX) * 8;
        let queries = device.raw.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("waves"),
            ty: wgpu::QueryType::Timestamp,
            count: 2 * WAVES_TIMED_MAX,
        });
        let resolve = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let read = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let (resolved, staging) = (device.buffer("times", bytes, resolve)?, device.buffer("times", bytes, read)?);
        Some(Self { queries, resolved, staging })
    }
}

/// What a job left behind.
pub(super) struct Read {
    pub words: Vec<u32>,
    /// Ticks of all its waves, if they were timed.
    pub ticks: Option<u64>,
}

/// The bind groups of a chunk in one slot.
#[derive(Clone)]
pub(super) struct Bound {
    generation: u64,
    pub gate_up: wgpu::BindGroup,
    pub down: wgpu::BindGroup,
}

/// A buffer that grows.
struct Growing {
    label: &'static str,
    usage: wgpu::BufferUsages,
    buffer: Option<wgpu::Buffer>,
}

impl Growing {
    fn new(label: &'static str, usage: wgpu::BufferUsages) -> Self {
        Self { label, usage, buffer: None }
    }

    /// Makes it at least `bytes` long; whether it is another buffer now.
    fn hold(&mut self, device: &Device, bytes: u64) -> Option<bool> {
        if self.buffer.as_ref().is_some_and(|buffer| buffer.size() >= bytes) {
            return Some(false);
        }
        self.buffer = None;
        self.buffer = Some(device.buffer(self.label, bytes.max(256).next_power_of_two(), self.usage)?);
        Some(true)
    }
}

/// Sizes of a job's buffers, in bytes.
struct Sizes {
    rows: u64,
    slots: u64,
    tiles: u64,
    inner: u64,
    prepared: u64,
    sums: u64,
}

impl Sizes {
    fn of(plan: &Plan) -> Self {
        let (key, slots) = (plan.key, plan.slots.len() as u64);
        Self {
            rows: u64::from(plan.rows) * key.row_bytes() as u64,
            slots: slots * 8,
            tiles: plan.tiles.len() as u64 + WINDOW_BYTES,
            inner: slots * key.inner_bytes() as u64,
            prepared: slots * key.prepared_bytes() as u64,
            sums: sums_bytes(plan),
        }
    }
}

/// Bytes of a job's results: sums and a status per row; for floats the outputs of every slot.
pub(super) fn sums_bytes(plan: &Plan) -> u64 {
    let hidden = plan.key.hidden as u64;
    if plan.key.is_exact() { 4 * u64::from(plan.rows) * (hidden + 1) } else { 4 * plan.slots.len() as u64 * hidden }
}

/// See the module.
pub(super) struct JobSlot {
    number: usize,
    generation: u64,
    shape: wgpu::Buffer,
    sigmoid: wgpu::Buffer,
    rows: Growing,
    slots: Growing,
    tiles: Growing,
    inner: Growing,
    prepared: Growing,
    sums: Growing,
    staging: Growing,
    quantise: Option<wgpu::BindGroup>,
    clock: Option<Clock>,
}

impl JobSlot {
    /// Slot `number`; `None` when there is no memory.
    pub fn new(device: &Device, number: usize) -> Option<Self> {
        use wgpu::BufferUsages as U;
        let shape = device.buffer("shape", 256, U::UNIFORM | U::COPY_DST)?;
        let sigmoid = device.buffer("sigmoid", size_of_val(&SIGMOID) as u64, U::STORAGE | U::COPY_DST)?;
        device.queue.write_buffer(&sigmoid, 0, bytemuck::cast_slice(&SIGMOID));
        Some(Self {
            number,
            generation: 0,
            shape,
            sigmoid,
            rows: Growing::new("rows", U::STORAGE | U::COPY_DST),
            slots: Growing::new("slots", U::STORAGE | U::COPY_DST),
            tiles: Growing::new("tiles", U::STORAGE | U::COPY_DST),
            inner: Growing::new("inner rows", U::STORAGE | U::COPY_DST),
            prepared: Growing::new("prepared inner rows", U::STORAGE),
            sums: Growing::new("sums", U::STORAGE | U::COPY_DST | U::COPY_SRC),
            staging: Growing::new("results", U::MAP_READ | U::COPY_DST),
            quantise: None,
            clock: None,
        })
    }

    /// Makes room for `plan` and uploads it with its `rows`; `None` when there is no memory.
    pub fn load(&mut self, device: &Device, layouts: &Layouts, plan: &Plan, rows: &[u8]) -> Option<()> {
        let sizes = Sizes::of(plan);
        let mut moved = false;
        // Should one of them not grow, those before it are other buffers already: nothing bound before holds.
        let before = self.generation;
        self.generation += 1;
        for (buffer, bytes) in [
            (&mut self.rows, sizes.rows),
            (&mut self.slots, sizes.slots),
            (&mut self.tiles, sizes.tiles),
            (&mut self.inner, sizes.inner),
            (&mut self.prepared, sizes.prepared),
            (&mut self.sums, sizes.sums),
            (&mut self.staging, sizes.sums),
        ] {
            moved |= buffer.hold(device, bytes)?;
        }
        if !moved {
            self.generation = before;
        } else {
            self.quantise = Some(self.bind(
                device,
                &layouts.quantise.0,
                &[
                    &self.shape,
                    self.slots.buffer.as_ref()?,
                    self.inner.buffer.as_ref()?,
                    self.prepared.buffer.as_ref()?,
                    self.sums.buffer.as_ref()?,
                    self.tiles.buffer.as_ref()?,
                ],
            ));
        }
        let write = |buffer: &Growing, bytes: &[u8]| {
            if let Some(buffer) = &buffer.buffer {
                device.queue.write_buffer(buffer, 0, bytes);
            }
        };
        if plan.key.is_exact() {
            let shape = plan.key.exact_shape(plan.rows as usize * plan.key.hidden);
            device.queue.write_buffer(&self.shape, 0, bytemuck::bytes_of(&shape));
        } else {
            device.queue.write_buffer(&self.shape, 0, bytemuck::bytes_of(&plan.key.float_shape()));
        }
        write(&self.rows, rows);
        write(&self.slots, bytemuck::cast_slice(&plan.slots));
        write(&self.tiles, &plan.tiles);
        Some(())
    }

    fn bind(&self, device: &Device, layout: &wgpu::BindGroupLayout, buffers: &[&wgpu::Buffer]) -> wgpu::BindGroup {
        // What takes a dynamic offset is bound by its largest window; the buffer is longer by as much.
        let window = wgpu::BufferSize::new(WINDOW_BYTES);
        let resource = |buffer| match self.tiles.buffer.as_ref() == Some(buffer) {
            true => wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: 0, size: window }),
            false => buffer.as_entire_binding(),
        };
        let numbered = (0..).zip(buffers.iter().copied());
        let entries: Vec<_> =
            numbered.map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: resource(buffer) }).collect();
        device.raw.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }

    /// The bind groups of `chunk` in this slot, made anew when a buffer moved.
    pub fn bound(&self, device: &Device, layouts: &Layouts, chunk: &Chunk) -> Option<Bound> {
        let mut all = chunk.bound.lock().unwrap_or_else(PoisonError::into_inner);
        all.resize(SLOTS, None);
        if let Some(bound) = all[self.number].as_ref().filter(|bound| bound.generation == self.generation) {
            return Some(bound.clone());
        }
        let [rows, slots, tiles, inner, prepared, sums] =
            [&self.rows, &self.slots, &self.tiles, &self.inner, &self.prepared, &self.sums].map(|b| b.buffer.as_ref());
        let (rows, slots, tiles, inner, sums) = (rows?, slots?, tiles?, inner?, sums?);
        let weights = &chunk.buffer;
        let (gate_up, down) = if chunk.key.is_exact() {
            let prepared = prepared?;
            (
                self.bind(
                    device,
                    &layouts.exact_gate_up.0,
                    &[&self.shape, weights, rows, rows, tiles, slots, inner, &self.sigmoid],
                ),
                self.bind(
                    device,
                    &layouts.exact_down.0,
                    &[&self.shape, weights, prepared, prepared, tiles, slots, sums],
                ),
            )
        } else {
            (
                self.bind(device, &layouts.float_gate_up.0, &[&self.shape, weights, rows, tiles, slots, inner]),
                self.bind(device, &layouts.float_down.0, &[&self.shape, weights, inner, tiles, sums]),
            )
        };
        let bound = Bound { generation: self.generation, gate_up, down };
        all[self.number] = Some(bound.clone());
        Some(bound)
    }

    /// The quantiser's bind group.
    pub fn quantise(&self) -> Option<&wgpu::BindGroup> {
        self.quantise.as_ref()
    }

    /// Whether waves can be timed; the clock is made when it is first asked for.
    pub fn has_clock(&mut self, device: &Device) -> bool {
        if self.clock.is_none() && device.has_timestamps() {
            self.clock = Clock::new(device);
        }
        self.clock.is_some()
    }

    /// Where wave `i` leaves its begin and end.
    pub fn timestamps(&self, i: u32) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        self.clock.as_ref().map(|clock| wgpu::ComputePassTimestampWrites {
            query_set: &clock.queries,
            beginning_of_pass_write_index: Some(2 * i),
            end_of_pass_write_index: Some(2 * i + 1),
        })
    }

    /// Clears what a job adds to, and what it reads without having written it.
    pub fn clear(&self, encoder: &mut wgpu::CommandEncoder, plan: &Plan) {
        if let Some(sums) = &self.sums.buffer {
            encoder.clear_buffer(sums, 0, Some(sums_bytes(plan)));
        }
        // Inner rows of floats are read to the end of their last vector.
        let padded = !plan.key.is_exact() && plan.key.inner_bytes() != 4 * plan.key.intermediate;
        if let Some(inner) = self.inner.buffer.as_ref().filter(|_| padded) {
            encoder.clear_buffer(inner, 0, Some(Sizes::of(plan).inner));
        }
    }

    /// Copies `bytes` of results and the first `timestamps` to where they can be read, and maps them once they are there.
    pub fn read_back(&self, encoder: &mut wgpu::CommandEncoder, bytes: u64, timestamps: u32) {
        if let (Some(sums), Some(staging)) = (&self.sums.buffer, &self.staging.buffer) {
            encoder.copy_buffer_to_buffer(sums, 0, staging, 0, bytes);
            encoder.map_buffer_on_submit(staging, wgpu::MapMode::Read, 0..bytes, |_| ());
        }
        if let Some(clock) = self.clock.as_ref().filter(|_| timestamps > 0) {
            let bytes = 8 * u64::from(timestamps);
            encoder.resolve_query_set(&clock.queries, 0..timestamps, &clock.resolved, 0);
            encoder.copy_buffer_to_buffer(&clock.resolved, 0, &clock.staging, 0, bytes);
            encoder.map_buffer_on_submit(&clock.staging, wgpu::MapMode::Read, 0..bytes, |_| ());
        }
    }

    /// Reads what [`read_back`](Self::read_back) copied, after its submission is done.
    pub fn read(&self, bytes: u64, timestamps: u32) -> Result<Read, String> {
        let staging = self.staging.buffer.as_ref().ok_or("no results")?;
        let words = read_mapped(staging, bytes, |four| u32::from_le_bytes(*four))?;
        let Some(clock) = self.clock.as_ref().filter(|_| timestamps > 0) else {
            return Ok(Read { words, ticks: None });
        };
        let times = read_mapped(&clock.staging, 8 * u64::from(timestamps), |eight| u64::from_le_bytes(*eight))?;
        let ticks = times.chunks_exact(2).map(|wave| wave[1].saturating_sub(wave[0])).sum();
        Ok(Read { words, ticks: Some(ticks) })
    }
}

/// The numbers of a mapped buffer, `N` bytes each; it is unmapped.
fn read_mapped<T, const N: usize>(
    buffer: &wgpu::Buffer,
    bytes: u64,
    number: impl Fn(&[u8; N]) -> T,
) -> Result<Vec<T>, String> {
    let mapped = buffer.slice(0..bytes).get_mapped_range().map_err(|error| error.to_string())?;
    let numbers = mapped.as_chunks::<N>().0.iter().map(number).collect();
    drop(mapped);
    buffer.unmap();
    Ok(numbers)
}
