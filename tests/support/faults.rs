//! Kernels that misbehave on purpose, to prove that a worker's values are used and its silence is survived.

use std::sync::{Arc, Condvar, Mutex};

use kvasir::kernel::{ExpertCompute, ExpertSource, KernelError};
use kvasir::wire::work::{Dispatch, PartialValues, Partials};

/// What is wrong with a worker. Only work of the served model is touched, never the worker's own self-test.
pub enum Fault {
    /// The first time, adds 1 to one i32 of one partial.
    OneOff(Mutex<bool>),
    /// Takes work and never answers, until it is let go.
    Silent(Arc<Gate>),
}

/// Holds back whoever waits until it is opened.
#[derive(Default)]
pub struct Gate(Mutex<bool>, Condvar);

impl Gate {
    /// Lets everybody go.
    pub fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let open = self.0.lock().unwrap();
        drop(self.1.wait_while(open, |open| !*open).unwrap());
    }
}

/// A kernel with a fault.
pub struct Faulty {
    pub inner: Arc<dyn ExpertCompute>,
    /// Hidden size of the served model.
    pub hidden: usize,
    pub fault: Fault,
}

impl ExpertCompute for Faulty {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        let served = parts.iter().any(|p| p.hidden == self.hidden);
        if let (true, Fault::Silent(gate)) = (served, &self.fault) {
            gate.wait();
        }
        let mut partials = self.inner.compute(experts, layer, parts)?;
        if let (true, Fault::OneOff(done)) = (served, &self.fault) {
            let mut done = done.lock().unwrap();
            if !std::mem::replace(&mut *done, true) {
                let PartialValues::Exact(values) = &mut partials[0].values else { panic!("an exact model") };
                values[0] += 1;
            }
        }
        Ok(partials)
    }

    fn device(&self) -> String {
        self.inner.device()
    }
}
