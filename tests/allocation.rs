//! Counts what a thread allocates, so that tests can bound it; and bounds what the steps of a model allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use kvasir::backbone::{Backbone, Sequence, Want};
use kvasir::dispatch::Mode;

use crate::support::local;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    // A thread that is ending has no cells any more; nobody measures there.
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + usize::try_from(bytes).unwrap_or(0)));
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is handed to the system's allocator as it came; the counters are plain thread-local cells that
// neither allocate nor drop.
#[expect(unsafe_code, reason = "an allocator has no safe form")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `pointer` came from this allocator, which is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: `pointer` came from this allocator, which is the system's; `size` is the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work` and tells by how many bytes this thread's live memory rose at most above where it began.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let out = work();
    (out, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

/// Bytes that `work`, polled on this thread alone, took from the allocator in all.
async fn taken<T>(work: impl Future<Output = T>) -> (T, usize) {
    let before = TAKEN.get();
    let out = work.await;
    (out, TAKEN.get() - before)
}

#[test]
fn a_large_allocation_is_seen_after_it_is_gone() {
    let ((), bytes) = peak(|| drop(std::hint::black_box(vec![1u8; 1 << 20])));
    assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
}

/// What a step of one row may take from the allocator: the logits that it returns (16 KiB here) and, for each of the
/// four layers, the request for its routed experts, the kernel's rows and sums and the answer, which are handed on.
const STEP_BYTES_MAX: usize = 160 << 10;

#[tokio::test]
async fn a_decode_step_takes_a_fixed_amount_however_long_the_sequence_is() {
    let model = Arc::new(kvasir::model::embedded().unwrap());
    let backbone = Backbone::new(model.clone(), Arc::new(local(&model, Mode::Exact))).unwrap();
    let mut sequence = Sequence::with_room(&model.hyper, 400);
    backbone.prefill(&mut sequence, &[7; 10]).await.unwrap();
    for warm in 0..20 {
        backbone.forward(&mut sequence, &[warm], Want::Last).await.unwrap();
    }
    let mut most = 0;
    // Past a block of 256 keys, so that what grows with the sequence would show.
    for token in 0..300 {
        let tokens = [token * 13 % 4000];
        let (logits, bytes) = taken(backbone.forward(&mut sequence, &tokens, Want::Last)).await;
        assert_eq!(logits.unwrap().len(), 1);
        most = most.max(bytes);
    }
    eprintln!("a decode step takes {most} bytes at most");
    assert!(most <= STEP_BYTES_MAX, "{most}");
}

#[tokio::test]
async fn a_prefill_takes_no_more_than_the_first_one() {
    let model = Arc::new(kvasir::model::embedded().unwrap());
    let backbone = Backbone::new(model.clone(), Arc::new(local(&model, Mode::Exact))).unwrap();
    let prompt: Vec<u32> = (0..512).map(|i| i * 7 % 4000).collect();
    let mut found = Vec::new();
    for _ in 0..3 {
        let mut sequence = Sequence::with_room(&model.hyper, prompt.len());
        let (logits, bytes) = taken(backbone.prefill(&mut sequence, &prompt)).await;
        assert_eq!(logits.unwrap().len(), 1);
        found.push(bytes);
    }
    eprintln!("prefills of 512 tokens take {found:?} bytes");
    // Who computes a piece takes its memory: the calling thread's share varies.
    assert!(found[1..].iter().all(|bytes| *bytes <= found[0]), "{found:?}");
}
