//! Whether a large download may begin: asked of the worker's owner, before the first of its bytes.

use tokio::sync::watch;

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Consent {
    free_bytes: u64,
    agreed: watch::Receiver<u64>,
}

impl Consent {
    /// Downloads of up to `free_bytes` or `agreed_bytes` begin at once, larger ones once as many bytes were sent.
    #[must_use]
    pub fn asked_above(free_bytes: u64, agreed_bytes: u64) -> (watch::Sender<u64>, Self) {
        let (answer, agreed) = watch::channel(agreed_bytes);
        (answer, Self { free_bytes, agreed })
    }

    /// Whether `bytes` may be fetched now.
    pub(super) fn is_given(&self, bytes: u64) -> bool {
        bytes <= self.free_bytes.max(*self.agreed.borrow())
    }

    /// Completes once its owner agreed to `bytes`; never when nobody can any more.
    pub(super) async fn given(&self, bytes: u64) {
        if self.agreed.clone().wait_for(|agreed| bytes <= *agreed).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Default for Consent {
    /// Everything may be fetched.
    fn default() -> Self {
        Self::asked_above(u64::MAX, 0).1
    }
}
