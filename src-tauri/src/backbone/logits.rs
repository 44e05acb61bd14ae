//! The logits of a prompt and of its greedy continuation, as a file that other implementations can be held against.

use super::sampler::argmax;
use super::{Backbone, ForwardError, PREFILL_TOKENS, Rows, Want};
use safetensors::tensor::{Dtype, TensorView};

/// What a model says at every position of a prompt and of its greedy continuation.
#[derive(Clone, PartialEq, Debug)]
pub struct LogitRecord {
    /// The prompt, P tokens.
    pub input_ids: Vec<u32>,
    /// The greedy continuation, N tokens.
    pub greedy_ids: Vec<u32>,
    /// `[max(P + N − 1, P), vocab]`: row t is what follows token t, so row P − 1 + j chose `greedy_ids[j]`.
    pub logits: Vec<f32>,
    /// Columns of `logits`.
    pub vocab: usize,
}

impl LogitRecord {
    /// The record as a safetensors file: `input_ids` and `greedy_ids` I32, `logits` F32.
    ///
    /// # Errors
    /// Only if the format refuses the shapes.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, safetensors::SafeTensorError> {
        let ids = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        let (input, greedy) = (ids(&self.input_ids), ids(&self.greedy_ids));
        let logits: Vec<u8> = self.logits.iter().flat_map(|v| v.to_le_bytes()).collect();
        let shape = vec![self.logits.len().checked_div(self.vocab).unwrap_or(0), self.vocab];
        let tensors = [
            ("input_ids", TensorView::new(Dtype::I32, vec![self.input_ids.len()], &input)?),
            ("greedy_ids", TensorView::new(Dtype::I32, vec![self.greedy_ids.len()], &greedy)?),
            ("logits", TensorView::new(Dtype::F32, shape, &logits)?),
        ];
        safetensors::serialize(tensors, None)
    }
}

impl Backbone {
    /// Runs `prompt` and `new_tokens` greedy tokens, keeping every row of logits. Stop tokens do not stop it.
    ///
    /// # Errors
    /// As [`Backbone::forward`].
    pub async fn record_logits(&self, prompt: &[u32], new_tokens: usize) -> Result<LogitRecord, ForwardError> {
        let mut sequence = self.sequence();
        self.check_tokens(&sequence, prompt)?;
        let mut logits = Vec::new();
        let mut keep = |rows: &Rows| {
            logits.extend_from_slice(rows.values());
            argmax(rows.row(rows.len() - 1))
        };
        let mut next = 0;
        for tokens in prompt.chunks(PREFILL_TOKENS) {
            next = keep(&self.forward(&mut sequence, tokens, Want::Every).await?);
        }
        let mut greedy_ids = Vec::with_capacity(new_tokens);
        while greedy_ids.len() < new_tokens {
            greedy_ids.push(next);
            if greedy_ids.len() < new_tokens {
                next = keep(&self.forward(&mut sequence, &[next], Want::Last).await?);
            }
        }
        Ok(LogitRecord { input_ids: prompt.to_vec(), greedy_ids, vocab: self.model().weights.head.rows, logits })
    }
}
