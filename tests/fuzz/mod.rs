//! Mutated inputs for every reader of bytes from outside, in the ordinary test run and for as long as one likes.
//!
//! A target is a function that must not panic, whatever the bytes. Its corpus is `tests/fuzz/corpus/<name>/`: valid
//! examples, and inputs that once failed. The ordinary run replays the corpus and tries a fixed, small number of
//! mutations of it from a fixed seed; `KVASIR_FUZZ_SECONDS=600 cargo test --release fuzz -- --nocapture` goes on with
//! a new seed. A failure names its seed and leaves its input in a file; that file, put into the corpus, is the
//! regression test. Why not a coverage-guided tool: it needs a nightly compiler; here new *outcomes* guide instead.

mod engine;
mod invites;
mod models;
mod mutate;
mod network;

use std::path::{Path, PathBuf};

pub use engine::{Budget, Finding, hunt};

/// Mutations in an ordinary run; a second or less per target.
const ITERATIONS: u64 = 20_000;
/// Longest input that is tried.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;

/// A reader under test.
pub struct Target {
    /// Folder of its corpus.
    pub name: &'static str,
    /// Reads `input` and says in a few words what came of it; inputs with new words are mutated further.
    pub run: fn(input: &[u8]) -> String,
}

impl Target {
    fn corpus_dir(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(self.name)
    }

    /// The corpus in the order of its file names.
    pub fn corpus(&self) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(self.corpus_dir()).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
    }

    /// Replays the corpus, then mutates it: the body of a target's test.
    pub fn check(&self) {
        let corpus = self.corpus();
        assert!(!corpus.is_empty(), "expected examples in {}", self.corpus_dir().display());
        let seconds = std::env::var("KVASIR_FUZZ_SECONDS").ok().map(|text| text.parse::<u64>().unwrap());
        let seed = std::env::var("KVASIR_FUZZ_SEED").ok().map(|text| text.parse::<u64>().unwrap());
        let (budget, seed) = match seconds {
            None => (Budget::Iterations(ITERATIONS), seed.unwrap_or(1)),
            Some(seconds) => (Budget::Seconds(seconds), seed.unwrap_or_else(mutate::any_seed)),
        };
        eprintln!("fuzz {}: seed {seed}, {} examples", self.name, corpus.len());
        if let Some(finding) = hunt(self.run, &corpus, budget, seed) {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{seed}.bin", self.name));
            std::fs::write(&path, &finding.input).unwrap();
            panic!(
                "fuzz {}: seed {seed}, iteration {}: {}\nthe input of {} bytes is {}",
                self.name,
                finding.iteration,
                finding.message,
                finding.input.len(),
                path.display()
            );
        }
    }

    /// Asserts that a defect which `is_reached` describes by the target's words would be found from the corpus.
    pub fn finds(&self, is_reached: fn(&str) -> bool) -> Finding {
        let defective = |input: &[u8]| {
            let outcome = (self.run)(input);
            assert!(!is_reached(&outcome), "a planted defect: {outcome}");
            outcome
        };
        let found = hunt(defective, &self.corpus(), Budget::Iterations(10 * ITERATIONS), 1);
        found.unwrap_or_else(|| panic!("expected the planted defect of {} to be found", self.name))
    }
}
