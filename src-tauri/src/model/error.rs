//! What can be wrong with a model's files: the file, the tensor or key, what was expected and what was there.

use super::tokenizer::TokenizerError;

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The operating system refused.
    #[error("{file}: {source}")]
    Io {
        /// Path of the file.
        file: String,
        /// Its reason.
        source: std::io::Error,
    },
    /// A length in the file points past its end.
    #[error("{file}: expected {expected} bytes for {what} at offset {at}, got {got}")]
    Truncated {
        /// Path of the file.
        file: String,
        /// What was being read.
        what: &'static str,
        /// Where it begins.
        at: usize,
        /// Bytes it should have.
        expected: u64,
        /// Bytes that are left.
        got: usize,
    },
    /// A header field, metadata key or configuration key has a value that cannot be used.
    #[error("{file}: {what}: expected {expected}, got {got}")]
    Field {
        /// Path of the file.
        file: String,
        /// The field or key.
        what: String,
        /// What would do.
        expected: String,
        /// What is there, cut to 80 characters.
        got: String,
    },
    /// A tensor has another shape, type or place than the model's sizes imply.
    #[error("{file}: tensor {tensor}: expected {expected}, got {got}")]
    Tensor {
        /// Path of the file that holds it.
        file: String,
        /// Its name, cut to 80 characters.
        tensor: String,
        /// What would do.
        expected: String,
        /// What is there.
        got: String,
    },
    /// The architecture needs a tensor that no file has.
    #[error("{file}: expected tensor {tensor}, got none of that name")]
    MissingTensor {
        /// Path of the model.
        file: String,
        /// The missing name.
        tensor: String,
    },
    /// A layer holds a tensor that this architecture would not use, so the output would be wrong.
    #[error("{file}: expected only known tensors in the layers, got {tensor}")]
    UnknownTensor {
        /// Path of the file that holds it.
        file: String,
        /// The name that has no place.
        tensor: String,
    },
    /// A JSON file does not parse.
    #[error("{file}: {source}")]
    Json {
        /// Path of the file.
        file: String,
        /// Position and reason.
        source: serde_json::Error,
    },
    /// A safetensors header does not hold together.
    #[error("{file}: {source}")]
    SafeTensors {
        /// Path of the file.
        file: String,
        /// Reason.
        source: safetensors::SafeTensorError,
    },
    /// The tokenizer in the files cannot be built.
    #[error("{file}: {source}")]
    Tokenizer {
        /// Path of the file.
        file: String,
        /// Reason.
        source: TokenizerError,
    },
}

impl ModelError {
    /// A field whose value cannot be used.
    pub(super) fn field(file: &str, what: impl Into<String>, expected: impl Into<String>, got: impl ToString) -> Self {
        Self::Field {
            file: file.into(),
            what: cut(&what.into()),
            expected: expected.into(),
            got: cut(&got.to_string()),
        }
    }

    /// A tensor that does not fit.
    pub(super) fn tensor(file: &str, tensor: &str, expected: impl Into<String>, got: impl ToString) -> Self {
        Self::Tensor { file: file.into(), tensor: cut(tensor), expected: expected.into(), got: cut(&got.to_string()) }
    }
}

/// Text from a file, short enough for a message.
fn cut(text: &str) -> String {
    if text.chars().nth(80).is_none() { text.into() } else { text.chars().take(79).chain(['…']).collect() }
}
