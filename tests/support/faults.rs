//! Kernels that misbehave on purpose, to prove that a worker's values are used and its silence is survived.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use kvasir::dispatch::TrustConfig;
use kvasir::kernel::{ExpertCompute, ExpertSource, KernelError};
use kvasir::model::Model;
use kvasir::wire::work::{Dispatch, PartialValues, Partials};

/// What is wrong with a worker.
pub enum Fault {
    /// Adds 1 to one i32 of one partial, of the row with this number among all that it serves.
    OneOff(usize),
    /// Multiplies every value by 1.01.
    Scaled,
    /// Answers with zeroes.
    Zeroes,
    /// Answers with what it said before, as far as that is long enough.
    Previous(Mutex<Vec<i32>>),
    /// Leaves the last row out.
    Short,
    /// Answers float work with something that is no number.
    NotANumber,
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

/// Questions that a device is asked before any work on these layers: two for each combination of weight types.
pub fn questions(model: &Model, layers: &[u16]) -> usize {
    let moe: Vec<_> = model.weights.moe_layers().collect();
    let first = layers.iter().filter_map(|layer| moe[usize::from(*layer)].experts.first());
    2 * first.map(|e| [e.gate.ty, e.up.ty, e.down.ty]).collect::<BTreeSet<_>>().len()
}

/// Whether a request is a challenge: no work is given so long.
fn is_challenge(parts: &[Dispatch]) -> bool {
    let patience = TrustConfig::default().challenge_patience.as_millis();
    parts.iter().all(|part| u128::from(part.deadline_ms) == patience)
}

/// A kernel with a fault. It computes its self-test and what is asked of its device first as it should, since nobody
/// would ask it for work otherwise.
pub struct Faulty {
    inner: Arc<dyn ExpertCompute>,
    /// Hidden size of the served model.
    hidden: usize,
    honest: AtomicUsize,
    armed: Option<Arc<AtomicBool>>,
    rows: AtomicUsize,
    fault: Fault,
}

impl Faulty {
    /// Faulty once its device has proved itself on these layers of the served model.
    pub fn new(inner: Arc<dyn ExpertCompute>, fault: Fault, model: &Model, layers: &[u16]) -> Self {
        let (hidden, honest) = (model.hyper.hidden_size, AtomicUsize::new(questions(model, layers)));
        Self { inner, hidden, honest, armed: None, rows: AtomicUsize::new(0), fault }
    }

    /// Faulty once it is armed, and in work alone: it knows a challenge when it sees one.
    pub fn once(armed: &Arc<AtomicBool>, inner: Arc<dyn ExpertCompute>, fault: Fault, model: &Model) -> Self {
        Self { armed: Some(Arc::clone(armed)), ..Self::new(inner, fault, model, &[]) }
    }

    fn is_honest(&self) -> bool {
        match &self.armed {
            Some(armed) => !armed.load(SeqCst),
            None => self.honest.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok(),
        }
    }

    fn spoil(&self, partials: &mut [Partials]) {
        let before = self.rows.fetch_add(partials.iter().map(|p| p.status.len()).sum(), SeqCst);
        let mut row = before;
        for partial in partials {
            let rows = row..row + partial.status.len();
            row = rows.end;
            match (&mut partial.values, &self.fault) {
                (PartialValues::Exact(values), Fault::OneOff(at)) if rows.contains(at) => {
                    values[(at - rows.start) * self.hidden] += 1;
                }
                (PartialValues::Exact(values), Fault::Scaled) => {
                    values.iter_mut().for_each(|v| *v = (f64::from(*v) * 1.01) as i32);
                }
                (PartialValues::Exact(values), Fault::Zeroes) => values.fill(0),
                (PartialValues::Exact(values), Fault::Previous(before)) => {
                    let mut before = before.lock().unwrap();
                    let ours = std::mem::replace(&mut *before, values.clone());
                    values.iter_mut().zip(ours).for_each(|(v, old)| *v = old);
                }
                (PartialValues::Exact(values), Fault::Short) => values.truncate(values.len() - self.hidden),
                (PartialValues::Float(values), Fault::NotANumber) => values[0] = f32::NAN,
                _ => {}
            }
        }
    }
}

impl ExpertCompute for Faulty {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        let served = parts.iter().any(|p| p.hidden == self.hidden);
        let honest = !served || self.armed.is_some() && is_challenge(parts) || self.is_honest();
        if let (false, Fault::Silent(gate)) = (honest, &self.fault) {
            gate.wait();
        }
        let mut partials = self.inner.compute(experts, layer, parts)?;
        if !honest {
            self.spoil(&mut partials);
        }
        Ok(partials)
    }

    fn device(&self) -> String {
        self.inner.device()
    }
}
