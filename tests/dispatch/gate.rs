//! A kernel that can be held back.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use kvasir::kernel::{ExpertCompute, ExpertSource, KernelError};
use kvasir::wire::work::{Dispatch, Partials};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::world::kernel;

/// Once closed it tells when it is asked and answers only when it may.
pub struct Gate {
    kernel: Arc<dyn ExpertCompute>,
    is_closed: AtomicBool,
    asked: UnboundedSender<()>,
    open: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Gate {
    /// The kernel, the sign that it was asked, and what opens it: one message per answer, or its end for all.
    pub fn new() -> (Arc<Self>, UnboundedReceiver<()>, std::sync::mpsc::Sender<()>) {
        let (asked, was_asked) = unbounded_channel();
        let (opener, open) = std::sync::mpsc::channel();
        let gate = Self { kernel: kernel(), is_closed: AtomicBool::new(false), asked, open: Mutex::new(open) };
        (Arc::new(gate), was_asked, opener)
    }

    /// From now on nobody gets an answer unless it is opened.
    pub fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }
}

impl ExpertCompute for Gate {
    fn compute(&self, from: &dyn ExpertSource, layer: u16, parts: &[Dispatch]) -> Result<Vec<Partials>, KernelError> {
        if self.is_closed.load(SeqCst) {
            let _ = self.asked.send(());
            let _ = self.open.lock().expect("no panic").recv();
        }
        self.kernel.compute(from, layer, parts)
    }

    fn device(&self) -> String {
        "gate".into()
    }
}
