//! Single launches on an opened device, timed by its own clock where it has one: for measurements and probes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wgpu::{
    BindGroup, Buffer, BufferUsages, CommandEncoderDescriptor, ComputePassDescriptor, ComputePassTimestampWrites,
    ComputePipeline, MapMode, QuerySet, QuerySetDescriptor, QueryType,
};

use super::GpuError;
use super::device::Device;
use crate::kernel::KernelError;

/// Two timestamps of 8 bytes.
const STAMPS_BYTES: u64 = 16;

/// See the module.
pub(super) struct Scratch {
    pub device: Arc<Device>,
    stamps: Option<Stamps>,
}

struct Stamps {
    set: QuerySet,
    resolved: Buffer,
    readable: Buffer,
}

/// A compiled shader and the layout of what it binds.
pub(super) struct Shader {
    pipeline: ComputePipeline,
    layout: wgpu::BindGroupLayout,
    label: String,
}

impl Scratch {
    /// Launches on `device`.
    pub fn new(device: Arc<Device>) -> Self {
        let stamps = device.has_timestamps().then(|| Stamps::new(&device)).flatten();
        Self { device, stamps }
    }

    /// Whether times are the device's own.
    pub fn has_clock(&self) -> bool {
        self.stamps.is_some()
    }

    /// Compiles `source`, whose bindings from 0 on are storage buffers that are written or only read.
    ///
    /// # Errors
    /// [`GpuError::Shader`].
    pub fn shader(&self, label: &str, source: &str, written: &[bool]) -> Result<Shader, GpuError> {
        let bindings: Vec<_> = written.iter().map(|w| Some(*w)).collect();
        let (layout, around) = self.device.layout(label, &bindings, None);
        Ok(Shader { pipeline: self.device.pipeline(label, source, &around)?, layout, label: label.to_owned() })
    }

    /// Memory of the device.
    ///
    /// # Errors
    /// [`GpuError::Memory`].
    pub fn buffer(&self, label: &str, bytes: u64, usage: BufferUsages) -> Result<Buffer, GpuError> {
        let adapter = self.device.name.clone();
        self.device.buffer(label, bytes, usage).ok_or(GpuError::Memory { adapter, wanted: bytes, free: 0 })
    }

    /// Binds buffers to a shader's bindings from 0 on.
    pub fn bind(&self, shader: &Shader, buffers: &[&Buffer]) -> BindGroup {
        let entries: Vec<_> = (0..)
            .zip(buffers)
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let (label, layout) = (Some(shader.label.as_str()), &shader.layout);
        self.device.raw.create_bind_group(&wgpu::BindGroupDescriptor { label, layout, entries: &entries })
    }

    /// Runs `groups` workgroups and waits; the time is that of the device where it has a clock.
    ///
    /// # Errors
    /// [`GpuError::Lost`].
    pub fn run(&self, shader: &Shader, bound: &BindGroup, groups: u32) -> Result<Duration, GpuError> {
        let mut encoder = self.device.raw.create_command_encoder(&CommandEncoderDescriptor::default());
        let timestamp_writes = self.stamps.as_ref().map(|stamps| ComputePassTimestampWrites {
            query_set: &stamps.set,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        });
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor { label: None, timestamp_writes });
        pass.set_pipeline(&shader.pipeline);
        pass.set_bind_group(0, bound, &[]);
        pass.dispatch_workgroups(groups, 1, 1);
        drop(pass);
        if let Some(stamps) = &self.stamps {
            encoder.resolve_query_set(&stamps.set, 0..2, &stamps.resolved, 0);
            encoder.copy_buffer_to_buffer(&stamps.resolved, 0, &stamps.readable, 0, STAMPS_BYTES);
        }
        let start = Instant::now();
        self.submit(encoder)?;
        let wall = start.elapsed();
        let Some(stamps) = &self.stamps else { return Ok(wall) };
        let ticks = self.map(&stamps.readable)?;
        let (ticks, _) = ticks.as_chunks::<8>();
        let [begin, end] = [0, 1].map(|i| ticks.get(i).map_or(0, |t| u64::from_le_bytes(*t)));
        let ns = end.saturating_sub(begin) as f64 * f64::from(self.device.timestamp_ns);
        // Some drivers offer timestamps that stand still.
        Ok(if ns > 0.0 { Duration::from_nanos(ns as u64).min(wall) } else { wall })
    }

    /// What a buffer holds, whose usage must include `COPY_SRC`.
    ///
    /// # Errors
    /// [`GpuError::Lost`], or no memory for a copy.
    pub fn read(&self, buffer: &Buffer) -> Result<Vec<u8>, GpuError> {
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let readable = self.buffer("readable", buffer.size(), usage)?;
        let mut encoder = self.device.raw.create_command_encoder(&CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &readable, 0, buffer.size());
        self.submit(encoder)?;
        self.map(&readable)
    }

    fn submit(&self, encoder: wgpu::CommandEncoder) -> Result<(), GpuError> {
        let submission = self.device.submit(Some(encoder.finish()));
        self.device.wait(submission).map_err(|error| self.lost(&error))
    }

    fn map(&self, buffer: &Buffer) -> Result<Vec<u8>, GpuError> {
        buffer.slice(..).map_async(MapMode::Read, |_| ());
        // The callback runs in here; whether it was a success shows when the range is asked for.
        self.device.wait(self.device.submit(None)).map_err(|error| self.lost(&error))?;
        let bytes = buffer.slice(..).get_mapped_range().map(|view| view.to_vec());
        buffer.unmap();
        bytes.map_err(|error| self.lost(&self.device.give_up(&error.to_string())))
    }

    fn lost(&self, error: &KernelError) -> GpuError {
        let reason = match error {
            KernelError::Lost { reason, .. } => reason.clone(),
            other => other.to_string(),
        };
        GpuError::Lost { adapter: self.device.name.clone(), reason }
    }
}

impl Stamps {
    fn new(device: &Device) -> Option<Self> {
        let descriptor = QuerySetDescriptor { label: Some("launch"), ty: QueryType::Timestamp, count: 2 };
        let resolve = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let read = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        Some(Self {
            set: device.raw.create_query_set(&descriptor),
            resolved: device.buffer("times", STAMPS_BYTES, resolve)?,
            readable: device.buffer("times", STAMPS_BYTES, read)?,
        })
    }
}
