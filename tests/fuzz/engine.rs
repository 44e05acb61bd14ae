//! The loop: take an example, change it, run it, keep it when something new came of it.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::INPUT_BYTES_MAX;
use super::mutate::Random;
use crate::allocation;

/// Examples kept beside the corpus.
const POOL_MAX: usize = 1_024;
/// Memory that a run may hold beside a multiple of its input; readers of models keep caches of their own.
const PEAK_BYTES: usize = 8 << 20;
const PEAK_PER_BYTE: usize = 64;

/// How long to go on.
#[derive(Clone, Copy)]
pub enum Budget {
    Iterations(u64),
    Seconds(u64),
}

/// An input that a target did not survive.
#[derive(Debug)]
pub struct Finding {
    /// 0 when the corpus itself failed.
    pub iteration: u64,
    pub input: Vec<u8>,
    pub message: String,
}

/// Runs `run` on `corpus` and on mutations of it until something fails or the budget is spent.
pub fn hunt(run: impl Fn(&[u8]) -> String, corpus: &[Vec<u8>], budget: Budget, seed: u64) -> Option<Finding> {
    let mut random = Random::new(seed);
    let mut pool = corpus.to_vec();
    let mut seen = HashSet::new();
    for input in corpus {
        match attempt(&run, input) {
            Ok(outcome) => _ = seen.insert(outcome),
            Err(message) => return Some(Finding { iteration: 0, input: input.clone(), message }),
        }
    }
    let begun = Instant::now();
    let mut iteration = 0;
    while match budget {
        Budget::Iterations(n) => iteration < n,
        Budget::Seconds(n) => begun.elapsed() < Duration::from_secs(n),
    } {
        iteration += 1;
        let mut input = random.pick(&pool).clone();
        random.mutate(&mut input, &pool);
        input.truncate(INPUT_BYTES_MAX);
        match attempt(&run, &input) {
            Ok(outcome) => {
                if seen.insert(outcome) && pool.len() < POOL_MAX + corpus.len() {
                    pool.push(input);
                }
            }
            Err(message) => return Some(Finding { iteration, input, message }),
        }
    }
    eprintln!("  {iteration} inputs, {} outcomes", seen.len());
    None
}

/// What came of one input, without the numbers in it; or how it failed.
fn attempt(run: impl Fn(&[u8]) -> String, input: &[u8]) -> Result<String, String> {
    let (outcome, peak) = allocation::peak(|| catch_unwind(AssertUnwindSafe(|| run(input))));
    let outcome = outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })?;
    let allowed = PEAK_BYTES + PEAK_PER_BYTE * input.len();
    if peak > allowed {
        return Err(format!("expected at most {allowed} bytes of memory, got {peak}"));
    }
    Ok(outcome.chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').take(120).collect())
}

#[test]
fn a_panic_behind_a_magic_and_a_length_is_found() {
    let reader = |input: &[u8]| {
        let Some((magic, rest)) = input.split_first_chunk::<4>() else { return "short".to_owned() };
        if magic != b"KVAS" {
            return "magic".to_owned();
        }
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return "no length".to_owned() };
        let length = u32::from_le_bytes(*length) as usize;
        assert!(length <= rest.len() || length < 1 << 31, "sliced {length} of {}", rest.len());
        if length == rest.len() { "whole".into() } else { "cut".into() }
    };
    let corpus = [[&b"KVAS"[..], &3u32.to_le_bytes(), b"abc"].concat()];
    let finding = hunt(reader, &corpus, Budget::Iterations(10_000), 7).unwrap();
    assert!(finding.message.starts_with("sliced "), "{}", finding.message);
}

#[test]
fn memory_taken_for_a_claimed_length_is_found() {
    let reader = |input: &[u8]| {
        let length = input.first_chunk::<4>().map_or(0, |n| u32::from_le_bytes(*n));
        let room: Vec<u8> = Vec::with_capacity(std::hint::black_box(length as usize % (64 << 20)));
        format!("room {}", room.capacity() > 0)
    };
    let finding = hunt(reader, &[vec![4, 0, 0, 0, 1]], Budget::Iterations(10_000), 7).unwrap();
    assert!(finding.message.contains("bytes of memory"), "{}", finding.message);
}

#[test]
fn a_seed_gives_the_same_inputs_again() {
    let run = |seed| {
        let seen = std::cell::RefCell::new(Vec::new());
        let record = |input: &[u8]| {
            seen.borrow_mut().push(input.to_vec());
            format!("{}", input.len().is_multiple_of(2))
        };
        hunt(record, &[b"kvasir".to_vec(), b"mead".to_vec()], Budget::Iterations(200), seed);
        seen.into_inner()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
