//! One opened adapter: its device and queue, its pipelines, and the word that it is lost.
//!
//! **Invariant:** shaders run without bounds checks; whatever they use as an index was checked on the host before it
//! was uploaded, and the shaders themselves are compiled in. A device that is lost stays lost: it is opened anew.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::GpuError;
use crate::kernel::KernelError;

/// A submission that takes longer has hung: drivers give up after two seconds themselves.
const HANG: Duration = Duration::from_secs(20);

/// See the module.
pub(super) struct Device {
    pub raw: wgpu::Device,
    pub queue: wgpu::Queue,
    /// The adapter, for people.
    pub name: String,
    pub limits: wgpu::Limits,
    pub features: wgpu::Features,
    /// Nanoseconds of a timestamp's unit.
    pub timestamp_ns: f32,
    checked: bool,
    lost: Arc<OnceLock<String>>,
    submissions: AtomicU64,
}

impl Device {
    /// Opens `adapter` with all of its limits and the features that the kernels use where they are there; `checked`
    /// shaders test every index.
    ///
    /// # Errors
    /// What the driver said.
    pub fn open(adapter: &wgpu::Adapter, checked: bool) -> Result<Self, GpuError> {
        let info = adapter.get_info();
        let name = info.name.clone();
        let features = adapter.features() & (wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::SUBGROUP);
        let limits = adapter.limits();
        let wanted = wgpu::DeviceDescriptor {
            label: Some("kvasir"),
            required_features: features,
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = pollster::block_on(adapter.request_device(&wanted));
        let (raw, queue) =
            opened.map_err(|error| GpuError::Device { adapter: name.clone(), reason: error.to_string() })?;
        let lost = Arc::new(OnceLock::new());
        let told = Arc::clone(&lost);
        raw.set_device_lost_callback(move |reason, text| _ = told.set(format!("{reason:?}: {text}")));
        let told = Arc::clone(&lost);
        // Nothing that we ask for is invalid; if a driver thinks so, its device cannot be trusted any more.
        raw.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            tracing::error!(%error, "GPU error");
            let _ = told.set(error.to_string());
        }));
        let timestamp_ns = queue.get_timestamp_period();
        Ok(Self { raw, queue, name, limits, features, timestamp_ns, checked, lost, submissions: AtomicU64::new(0) })
    }

    /// Why the device is lost, if it is.
    pub fn lost(&self) -> Option<KernelError> {
        let reason = self.lost.get()?.clone();
        Some(KernelError::Lost { device: self.name.clone(), reason })
    }

    /// Gives the device up, with everything in its memory.
    pub fn give_up(&self, reason: &str) -> KernelError {
        let reason = self.lost.get_or_init(|| reason.to_owned()).clone();
        self.raw.destroy();
        KernelError::Lost { device: self.name.clone(), reason }
    }

    /// Whether passes can be timed.
    pub fn has_timestamps(&self) -> bool {
        self.features.contains(wgpu::Features::TIMESTAMP_QUERY)
    }

    /// A buffer; `None` when there is no room.
    pub fn buffer(&self, label: &str, bytes: u64, usage: wgpu::BufferUsages) -> Option<wgpu::Buffer> {
        let memory = self.raw.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validity = self.raw.push_error_scope(wgpu::ErrorFilter::Validation);
        let size = bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let descriptor = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = self.raw.create_buffer(&descriptor);
        let refused = [pollster::block_on(validity.pop()), pollster::block_on(memory.pop())];
        match refused.into_iter().flatten().next() {
            None => Some(buffer),
            Some(error) => {
                tracing::warn!(label, bytes, %error, "no GPU memory");
                None
            }
        }
    }

    /// Fills a new buffer with zeros, ahead of everything that is submitted or written later.
    pub fn clear(&self, buffer: &wgpu::Buffer) {
        let mut encoder = self.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.clear_buffer(buffer, 0, None);
        self.submit(Some(encoder.finish()));
    }

    /// Compiles the entry point `main` of `source`.
    ///
    /// # Errors
    /// What the compiler said.
    pub fn pipeline(
        &self,
        label: &str,
        source: &str,
        layout: &wgpu::PipelineLayout,
    ) -> Result<wgpu::ComputePipeline, GpuError> {
        let validity = self.raw.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = self.raw.push_error_scope(wgpu::ErrorFilter::Internal);
        let text = wgpu::ShaderModuleDescriptor { label: Some(label), source: wgpu::ShaderSource::Wgsl(source.into()) };
        let module = if self.checked { self.raw.create_shader_module(text) } else { self.trusted(text) };
        let options =
            wgpu::PipelineCompilationOptions { zero_initialize_workgroup_memory: self.checked, ..Default::default() };
        let pipeline = self.raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: options,
            cache: None,
        });
        let refused = [pollster::block_on(internal.pop()), pollster::block_on(validity.pop())];
        match refused.into_iter().flatten().next() {
            None => Ok(pipeline),
            Some(error) => Err(GpuError::Shader { label: label.to_owned(), reason: error.to_string() }),
        }
    }

    #[expect(unsafe_code, reason = "shaders without runtime checks")]
    fn trusted(&self, text: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
        // SAFETY: the shaders are compiled in, their loops end, and every index that they read from memory (starts of
        // experts, rows, slots) is computed or checked by `plan` before it is uploaded.
        unsafe { self.raw.create_shader_module_trusted(text, wgpu::ShaderRuntimeChecks::unchecked()) }
    }

    /// A pipeline layout with one group: `Some(writable)` is a storage buffer, `None` the uniform parameters; the
    /// binding numbered `moving` takes a dynamic offset.
    pub fn layout(
        &self,
        label: &str,
        bindings: &[Option<bool>],
        moving: Option<u32>,
    ) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
        let entry = |(binding, kind): (u32, &Option<bool>)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: kind.map_or(wgpu::BufferBindingType::Uniform, |writable| wgpu::BufferBindingType::Storage {
                    read_only: !writable,
                }),
                has_dynamic_offset: moving == Some(binding),
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = (0..).zip(bindings).map(entry).collect();
        let group = self
            .raw
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(label), entries: &entries });
        let pipeline = self.raw.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(label),
            bind_group_layouts: &[Some(&group)],
            immediate_size: 0,
        });
        (group, pipeline)
    }

    /// Hands commands, or only what was written to buffers, to the GPU.
    pub fn submit(&self, commands: Option<wgpu::CommandBuffer>) -> wgpu::SubmissionIndex {
        self.submissions.fetch_add(1, Relaxed);
        self.queue.submit(commands)
    }

    /// How often it was handed something.
    pub fn submissions(&self) -> u64 {
        self.submissions.load(Relaxed)
    }

    /// Waits for a submission; a device that hangs is given up.
    ///
    /// # Errors
    /// The device is lost.
    pub fn wait(&self, submission: wgpu::SubmissionIndex) -> Result<(), KernelError> {
        let waited = self.raw.poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: Some(HANG) });
        match (self.lost(), waited) {
            (Some(lost), _) => Err(lost),
            (None, Ok(_)) => Ok(()),
            (None, Err(error)) => Err(self.give_up(&error.to_string())),
        }
    }
}
