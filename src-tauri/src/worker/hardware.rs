//! What a worker computes on, and why that: the choice of whoever starts it, which may change while it runs.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::kernel::ExpertCompute;

/// A kernel and the reason for it.
#[derive(Clone)]
pub struct Hardware {
    /// Computes.
    pub kernel: Arc<dyn ExpertCompute>,
    /// Completes "because …" for people; empty when there was nothing to choose.
    pub why: String,
}

impl Hardware {
    /// Hardware that stays what it is.
    #[must_use]
    pub fn fixed(self) -> watch::Receiver<Self> {
        watch::channel(self).1
    }

    /// Gives it back, memory included; whoever uses it next opens it anew.
    pub async fn give_back(self) {
        // A driver that panics has given back what it had.
        let _ = spawn_blocking(move || self.kernel.release()).await;
    }
}

impl From<Arc<dyn ExpertCompute>> for Hardware {
    fn from(kernel: Arc<dyn ExpertCompute>) -> Self {
        Self { kernel, why: String::new() }
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kernel.device())?;
        if self.why.is_empty() { Ok(()) } else { write!(f, " because {}", self.why) }
    }
}
