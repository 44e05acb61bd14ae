//! How much memory a worker may use: what its user allows, which may change at any time.
//!
//! Why it can change: a game or a renderer wants the memory of the graphics card back, and later lets go of it again.

use tokio::sync::watch;

/// Bytes that the slice may take; `None` = what the hardware's own memory has room for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budget(watch::Receiver<Option<u64>>);

impl Budget {
    /// A budget and what changes it.
    #[must_use]
    pub fn changeable(bytes: Option<u64>) -> (watch::Sender<Option<u64>>, Self) {
        let (sender, receiver) = watch::channel(bytes);
        (sender, Self(receiver))
    }

    /// Bytes at this moment.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        *self.0.borrow()
    }

    /// Completes once it is another; never for one that cannot change any more.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl From<Option<u64>> for Budget {
    /// A budget that stays what it is.
    fn from(bytes: Option<u64>) -> Self {
        Self::changeable(bytes).1
    }
}
