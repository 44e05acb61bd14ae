//! Whether a large download may begin: asked of the worker's owner, before the first of its bytes.

use tokio::sync::watch;

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Consent {
    free_bytes: u64,
    agreed: watch::Receiver<bool>,
}

impl Consent {
    /// Downloads of up to `free_bytes` begin at once, larger ones once `true` was sent.
    #[must_use]
    pub fn asked_above(free_bytes: u64, agreed: bool) -> (watch::Sender<bool>, Self) {
        let (answer, agreed) = watch::channel(agreed);
        (answer, Self { free_bytes, agreed })
    }

    /// Whether `bytes` may be fetched now.
    pub(super) fn is_given(&self, bytes: u64) -> bool {
        bytes <= self.free_bytes || *self.agreed.borrow()
    }

    /// Completes once its owner agreed; never when nobody can any more.
    pub(super) async fn given(&self) {
        if self.agreed.clone().wait_for(|agreed| *agreed).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Default for Consent {
    /// Everything may be fetched.
    fn default() -> Self {
        Self::asked_above(u64::MAX, true).1
    }
}
