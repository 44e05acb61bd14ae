//! Why a GPU cannot be had or kept, in words that say what to do.

/// Why a GPU cannot compute.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuError {
    /// No adapter fits what was asked for.
    #[error("expected {wanted}, got {seen}: {advice}")]
    NoAdapter {
        /// What was looked for.
        wanted: String,
        /// Every adapter that was seen, and why it was passed over.
        seen: String,
        /// What to do about it.
        advice: String,
    },
    /// A driver that crashes or hangs when it is looked at.
    #[error(
        "expected the graphics drivers to show their GPUs, got {got}: update them, or remove the one that is at fault"
    )]
    Drivers {
        /// How the look ended.
        got: String,
    },
    /// The driver refused a device, or a resource that every device has.
    #[error("{adapter}: expected a device, got {reason}")]
    Device {
        /// The adapter, for people.
        adapter: String,
        /// What the driver said.
        reason: String,
    },
    /// The adapter has no room.
    #[error("{adapter}: expected {wanted} bytes of free memory, got {free}: hold fewer experts")]
    Memory {
        /// The adapter, for people.
        adapter: String,
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes there are.
        free: u64,
    },
    /// The device went away, and with it everything in its memory.
    #[error("{adapter} is lost: {reason}")]
    Lost {
        /// The adapter, for people.
        adapter: String,
        /// What the driver said.
        reason: String,
    },
    /// A shader does not compile on this adapter.
    #[error("shader {label}: {reason}")]
    Shader {
        /// Which shader, with its configuration.
        label: String,
        /// What the compiler said.
        reason: String,
    },
    /// Kernels return other bytes than the numerics define, so that their work would be refused.
    #[error("{adapter}: expected the pinned outputs of {variant}, got others: update the driver ({reason})")]
    SelfTest {
        /// The adapter, for people.
        adapter: String,
        /// Which kernels, with their configuration.
        variant: String,
        /// Where they first differ.
        reason: String,
    },
}
