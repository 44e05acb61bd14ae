//! The process's threads: they wait a moment for the next computation before they sleep.
//!
//! One decoded token is hundreds of computations of microseconds, and waking a thread costs more than some of them.
//! A thread that has run out of work therefore watches for more for [`WATCH`], and only then sleeps; nobody watches
//! in an idle process.
//!
//! **Invariant:** a computation's caller returns only when no thread is inside it, so that what it borrows outlives
//! every use.

use std::any::Any;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread watches for the next computation: longer than what the caller does alone between two.
const WATCH: Duration = Duration::from_micros(300);
/// Looks between two looks at the clock.
const LOOKS: usize = 64;
/// Looks for the last thread to leave before the processor is offered to others.
const PATIENCE: usize = 1 << 12;

/// The operating system refused a thread.
#[derive(Debug, thiserror::Error)]
#[error("expected a thread for computing, got none: {reason}")]
pub struct NoThreads {
    /// What it said.
    pub reason: String,
}

/// What the threads look at together.
struct Board {
    open: Vec<Open>,
    /// Threads of the pool.
    threads: usize,
    /// Those that work now.
    busy: usize,
    /// Those that must be woken.
    asleep: usize,
}

/// A computation that can be joined.
struct Open {
    region: Shared,
    seats: usize,
}

/// One computation, in its caller's stack frame.
struct Region<'a> {
    work: &'a (dyn Fn() + Sync),
    /// Threads of the pool that are inside.
    inside: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A region whose lifetime is kept by its caller.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shared(NonNull<Region<'static>>);

#[expect(unsafe_code, reason = "a pointer into a stack frame crosses threads")]
// SAFETY: a region is only read, and its parts are made for being shared.
unsafe impl Send for Shared {}

static BOARD: Mutex<Board> = Mutex::new(Board { open: Vec::new(), threads: 0, busy: 0, asleep: 0 });
static WAKE: Condvar = Condvar::new();
/// Changes whenever there may be a seat to take.
static POSTED: AtomicUsize = AtomicUsize::new(0);

fn board() -> MutexGuard<'static, Board> {
    BOARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes sure that the pool has `threads` threads.
pub(super) fn grow(threads: usize) -> Result<(), NoThreads> {
    let mut board = board();
    while board.threads < threads {
        let name = format!("kvasir-kernel-{}", board.threads);
        let started = std::thread::Builder::new().name(name).spawn(serve);
        started.map_err(|e| NoThreads { reason: e.to_string() })?;
        board.threads += 1;
    }
    Ok(())
}

/// Runs `work` on this thread and on up to `others` of the pool, as soon as they are free; returns when all are done.
pub(super) fn run(others: usize, work: &(dyn Fn() + Sync)) {
    let region = Region { work, inside: AtomicUsize::new(0), panic: Mutex::new(None) };
    let shared = Shared(NonNull::from(&region).cast());
    let sleepers = {
        let mut board = board();
        board.open.push(Open { region: shared, seats: others });
        POSTED.fetch_add(1, Ordering::Release);
        board.asleep.min(others)
    };
    (0..sleepers).for_each(|_| WAKE.notify_one());
    let closing = Closing { region: &region, shared };
    work();
    drop(closing);
    let panic = region.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Ends a computation, also when its caller panics: nobody may join any more, and those inside are waited for.
struct Closing<'a> {
    region: &'a Region<'a>,
    shared: Shared,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        {
            let mut board = board();
            board.open.retain(|open| open.region != self.shared);
            if !board.open.is_empty() {
                // The others may have been waiting for this caller's processor.
                POSTED.fetch_add(1, Ordering::Release);
            }
        }
        let mut looks = 0;
        while self.region.inside.load(Ordering::Acquire) > 0 {
            looks += 1;
            if looks < PATIENCE { spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Board {
    /// A seat in the oldest computation that has one, unless callers and threads already fill the processors; one
    /// thread always helps.
    fn seat(&mut self) -> Option<Shared> {
        if self.busy > 0 && self.open.len() + self.busy > self.threads {
            return None;
        }
        let open = self.open.iter_mut().find(|open| open.seats > 0)?;
        open.seats -= 1;
        self.busy += 1;
        #[expect(unsafe_code, reason = "reads a region through its pointer")]
        // SAFETY: a region on the board is alive: its caller takes it off under this lock before it returns.
        unsafe { open.region.0.as_ref() }.inside.fetch_add(1, Ordering::Relaxed);
        Some(open.region)
    }
}

/// A thread of the pool, for as long as the process lives.
fn serve() {
    loop {
        let seen = POSTED.load(Ordering::Acquire);
        let seat = board().seat();
        let Some(shared) = seat else {
            watch(seen);
            continue;
        };
        #[expect(unsafe_code, reason = "reads a region through its pointer")]
        // SAFETY: this thread is counted inside, and the caller waits until nobody is.
        let region = unsafe { shared.0.as_ref() };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(region.work)) {
            region.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        // The last use of the region.
        region.inside.fetch_sub(1, Ordering::Release);
        board().busy -= 1;
    }
}

/// Returns when something was posted after `seen`.
fn watch(seen: usize) {
    let start = Instant::now();
    while start.elapsed() < WATCH {
        for _ in 0..LOOKS {
            if POSTED.load(Ordering::Acquire) != seen {
                return;
            }
            spin_loop();
        }
    }
    let mut board = board();
    board.asleep += 1;
    // Posting takes the lock: nothing is missed between this look and falling asleep.
    while POSTED.load(Ordering::Acquire) == seen {
        board = WAKE.wait(board).unwrap_or_else(PoisonError::into_inner);
    }
    board.asleep -= 1;
}
