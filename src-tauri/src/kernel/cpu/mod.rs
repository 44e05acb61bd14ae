//! The exact expert function on this machine's CPU, on the widest instructions that it has.
//!
//! Every path returns the bytes of `kernel::numerics`; they differ in speed only. The path is found once, at start,
//! and a value of an engine's type is the proof that its instructions are there.

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod elementwise;
pub(super) mod engine;
pub(super) mod formats;
mod kernel;
#[cfg(target_arch = "x86_64")]
pub(super) mod lanes;
mod pieces;
mod portable;
pub(super) mod sixteen;

pub use kernel::CpuKernel;
#[cfg(test)]
pub(super) use kernel::on_path;
pub(super) use kernel::on_the_best_engine;

/// Names the path to use instead of the fastest one: `portable`, `avx2` or `avx512`.
pub const PATH_VARIABLE: &str = "KVASIR_CPU";

/// Which instructions the kernels use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum CpuPath {
    /// Plain Rust, for every CPU.
    Portable,
    /// AVX2.
    Avx2,
    /// AVX-512 with VNNI and VBMI.
    Avx512,
}

/// Why a path cannot be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CpuPathError {
    /// [`PATH_VARIABLE`] names no path.
    #[error("{PATH_VARIABLE}: expected portable, avx2 or avx512, got {got:?}")]
    Unknown {
        /// What it says.
        got: String,
    },
    /// This CPU lacks the path's instructions.
    #[error("expected a CPU path that this machine supports ({supported}), got {got}")]
    Unsupported {
        /// The path.
        got: CpuPath,
        /// The paths there are.
        supported: String,
    },
    /// The operating system refused the threads.
    #[error("expected {threads} threads: {reason}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What it said.
        reason: String,
    },
}

impl CpuPath {
    /// Every path, slowest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The path's name, as [`PATH_VARIABLE`] spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The paths that this machine can run, slowest first.
    #[must_use]
    pub fn supported() -> Vec<Self> {
        Self::ALL.into_iter().filter(|path| path.is_supported()).collect()
    }

    /// The fastest path, or the one that [`PATH_VARIABLE`] names.
    ///
    /// # Errors
    /// The variable names no path, or one that this machine does not support.
    pub fn detect() -> Result<Self, CpuPathError> {
        match std::env::var_os(PATH_VARIABLE) {
            None => Ok(Self::supported().last().copied().unwrap_or(Self::Portable)),
            Some(name) => Self::named(&name.to_string_lossy()),
        }
    }

    fn named(name: &str) -> Result<Self, CpuPathError> {
        match Self::ALL.into_iter().find(|path| path.name() == name) {
            None => Err(CpuPathError::Unknown { got: name.chars().take(64).collect() }),
            Some(path) if path.is_supported() => Ok(path),
            Some(path) => Err(path.unsupported()),
        }
    }

    fn is_supported(self) -> bool {
        kernel::AnyEngine::new(self).is_some()
    }

    fn unsupported(self) -> CpuPathError {
        let names: Vec<_> = Self::supported().into_iter().map(Self::name).collect();
        CpuPathError::Unsupported { got: self, supported: names.join(", ") }
    }
}

impl std::fmt::Display for CpuPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
pub(crate) mod tests;
