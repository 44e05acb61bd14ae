//! A device for measurements and probes: one pipeline at a time, timed by the device's own clock where it has one.
//!
//! Every wait has a limit, so that a driver which hangs ends in an error. Not here: the device that serves requests.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wgpu::{
    BindGroup, Buffer, BufferDescriptor, BufferUsages, CommandEncoderDescriptor, ComputePassDescriptor,
    ComputePassTimestampWrites, ComputePipeline, ComputePipelineDescriptor, Device, DeviceDescriptor, ErrorFilter,
    Features, MapMode, PollType, QuerySet, QuerySetDescriptor, QueryType, Queue, ShaderModuleDescriptor,
    ShaderRuntimeChecks, ShaderSource,
};

use super::GpuError;
use super::adapters::Found;

/// Longest that one submission may take: software devices are slow, and beyond this a driver hangs.
const SUBMISSION_MAX: Duration = Duration::from_secs(30);
/// Two timestamps of 8 bytes.
const STAMPS_BYTES: u64 = 16;

/// An open device.
pub(super) struct Scratch {
    pub device: Device,
    pub queue: Queue,
    adapter: String,
    stamps: Option<Stamps>,
    /// What the driver reported outside the calls that ask for errors.
    trouble: Arc<Mutex<Option<String>>>,
}

struct Stamps {
    set: QuerySet,
    resolved: Buffer,
    readable: Buffer,
    period_ns: f64,
}

impl Scratch {
    /// Opens a device with everything that the probes use and the adapter has.
    pub fn open(found: &Found) -> Result<Self, GpuError> {
        let wanted = (Features::SUBGROUP | Features::TIMESTAMP_QUERY) & found.adapter.features();
        let descriptor = DeviceDescriptor {
            label: Some("probe"),
            required_features: wanted,
            required_limits: found.adapter.limits(),
            ..DeviceDescriptor::default()
        };
        let refused = |e: wgpu::RequestDeviceError| GpuError::Device { adapter: found.label(), reason: e.to_string() };
        let (device, queue) = pollster::block_on(found.adapter.request_device(&descriptor)).map_err(refused)?;
        let trouble = Arc::new(Mutex::new(None));
        let note = |trouble: &Arc<Mutex<Option<String>>>, text: String| {
            let mut noted = trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            noted.get_or_insert(text);
        };
        let (errors, loss) = (trouble.clone(), trouble.clone());
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| note(&errors, e.to_string())));
        device.set_device_lost_callback(move |reason, text| note(&loss, format!("{reason:?} {text}")));
        let stamps = wanted.contains(Features::TIMESTAMP_QUERY).then(|| Stamps::new(&device, &queue));
        Ok(Self { device, queue, adapter: found.label(), stamps, trouble })
    }

    /// Whether times are the device's own.
    pub fn has_clock(&self) -> bool {
        self.stamps.is_some()
    }

    /// Compiles one entry point; bounds are not checked, so that its indices must be sound.
    pub fn pipeline(
        &self,
        label: &str,
        source: &str,
        entry: &str,
        constants: &[(&str, f64)],
    ) -> Result<ComputePipeline, GpuError> {
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let descriptor = ShaderModuleDescriptor { label: Some(label), source: ShaderSource::Wgsl(source.into()) };
        // SAFETY: the shaders of this program index only below the lengths of their arrays, and their loops end.
        #[expect(unsafe_code, reason = "checks in the inner loop would be measured too")]
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked()) };
        let pipeline = self.device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(label),
            layout: None,
            module: &module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants,
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        match pollster::block_on(scope.pop()) {
            Some(error) => Err(GpuError::Shader { label: label.into(), reason: error.to_string() }),
            None => Ok(pipeline),
        }
    }

    /// Memory of the device.
    pub fn buffer(&self, label: &str, size: u64, usage: BufferUsages) -> Result<Buffer, GpuError> {
        let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let descriptor = BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        match pollster::block_on(scope.pop()) {
            Some(_) => Err(GpuError::Memory { adapter: self.adapter.clone(), wanted: size, free: 0 }),
            None => Ok(buffer),
        }
    }

    /// Binds buffers to the numbers in the shader.
    pub fn bind(&self, pipeline: &ComputePipeline, buffers: &[(u32, &Buffer)]) -> BindGroup {
        let entries: Vec<_> = buffers
            .iter()
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding: *binding, resource: buffer.as_entire_binding() })
            .collect();
        let layout = pipeline.get_bind_group_layout(0);
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries })
    }

    /// Runs `groups` workgroups and waits; the time is that of the device where it has a clock.
    pub fn run(&self, pipeline: &ComputePipeline, bound: &BindGroup, groups: u32) -> Result<Duration, GpuError> {
        let mut encoder = self.device.create_command_encoder(&CommandEncoderDescriptor::default());
        let writes = self.stamps.as_ref().map(|s| ComputePassTimestampWrites {
            query_set: &s.set,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        });
        {
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor { label: None, timestamp_writes: writes });
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, bound, &[]);
            pass.dispatch_workgroups(groups, 1, 1);
        }
        if let Some(stamps) = &self.stamps {
            encoder.resolve_query_set(&stamps.set, 0..2, &stamps.resolved, 0);
            encoder.copy_buffer_to_buffer(&stamps.resolved, 0, &stamps.readable, 0, STAMPS_BYTES);
        }
        let start = Instant::now();
        self.queue.submit([encoder.finish()]);
        self.wait()?;
        let wall = start.elapsed();
        let Some(stamps) = &self.stamps else { return Ok(wall) };
        let ticks = self.map(&stamps.readable)?;
        let (ticks, _) = ticks.as_chunks::<8>();
        let [begin, end] = [0, 1].map(|i| ticks.get(i).map_or(0, |t| u64::from_le_bytes(*t)));
        let ns = end.saturating_sub(begin) as f64 * stamps.period_ns;
        // Some drivers offer timestamps that stand still.
        Ok(if ns > 0.0 { Duration::from_nanos(ns as u64).min(wall) } else { wall })
    }

    /// What a buffer holds, whose usage must include `COPY_SRC`.
    pub fn read(&self, buffer: &Buffer) -> Result<Vec<u8>, GpuError> {
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let readable = self.buffer("readable", buffer.size(), usage)?;
        let mut encoder = self.device.create_command_encoder(&CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &readable, 0, buffer.size());
        self.queue.submit([encoder.finish()]);
        self.map(&readable)
    }

    fn map(&self, buffer: &Buffer) -> Result<Vec<u8>, GpuError> {
        let (told, tells) = std::sync::mpsc::sync_channel(1);
        buffer.slice(..).map_async(MapMode::Read, move |outcome| {
            let _ = told.send(outcome);
        });
        self.wait()?;
        match tells.try_recv() {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(self.lost(e.to_string())),
            Err(_) => return Err(self.lost("a buffer was never mapped")),
        }
        let bytes = buffer.slice(..).get_mapped_range().map(|view| view.to_vec());
        buffer.unmap();
        bytes.map_err(|e| self.lost(e.to_string()))
    }

    fn wait(&self) -> Result<(), GpuError> {
        let waited = self.device.poll(PollType::Wait { submission_index: None, timeout: Some(SUBMISSION_MAX) });
        let trouble = self.trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        match (waited, trouble) {
            (_, Some(reason)) => Err(self.lost(reason)),
            (Err(e), None) => Err(self.lost(e.to_string())),
            (Ok(_), None) => Ok(()),
        }
    }

    fn lost(&self, reason: impl Into<String>) -> GpuError {
        GpuError::Lost { adapter: self.adapter.clone(), reason: reason.into() }
    }
}

impl Stamps {
    fn new(device: &Device, queue: &Queue) -> Self {
        let set = device.create_query_set(&QuerySetDescriptor { label: None, ty: QueryType::Timestamp, count: 2 });
        let buffer = |usage| {
            let usage = usage | BufferUsages::COPY_DST;
            device.create_buffer(&BufferDescriptor {
                label: None,
                size: STAMPS_BYTES,
                usage,
                mapped_at_creation: false,
            })
        };
        Self {
            set,
            resolved: buffer(BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC),
            readable: buffer(BufferUsages::MAP_READ),
            period_ns: f64::from(queue.get_timestamp_period()),
        }
    }
}
