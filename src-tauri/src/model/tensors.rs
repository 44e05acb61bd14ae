//! Every tensor of a model's files by name, handed out once each and only in the shape that was asked for.
//!
//! Shapes are row-major (GGUF's `ne` reversed). What nobody took is left over, and a left-over tensor inside a layer
//! is refused: a bias or a scale that is silently dropped makes a model that runs and is wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{BlockType, Data, Matrix, ModelError};

/// Where a tensor's elements lie, and of which kind they are.
pub(super) struct Tensor {
    pub file: Arc<str>,
    pub ty: ElementType,
    pub shape: Vec<usize>,
    pub data: Data,
}

/// A type that can be read, or the name of one that cannot.
pub(super) enum ElementType {
    Known(BlockType),
    Other(String),
}

/// All tensors of one model.
pub(super) struct Tensors {
    model: Arc<str>,
    by_name: BTreeMap<String, Tensor>,
}

impl Tensors {
    /// No tensors yet; `model` names the whole in messages about missing ones.
    pub fn new(model: &str) -> Self {
        Self { model: model.into(), by_name: BTreeMap::new() }
    }

    /// Adds a tensor; a second one of the same name is refused.
    pub fn insert(&mut self, name: String, tensor: Tensor) -> Result<(), ModelError> {
        if let Some(first) = self.by_name.get(&name) {
            return Err(ModelError::tensor(&tensor.file, &name, format!("it only in {}", first.file), "a second one"));
        }
        self.by_name.insert(name, tensor);
        Ok(())
    }

    /// The model's name in messages.
    pub fn model(&self) -> &str {
        &self.model
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The row-major shape of a tensor that has not been taken.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.by_name.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Drops every tensor whose name `is_other` accepts: other parts of the model that Kvasir does not run.
    pub fn forget(&mut self, is_other: impl Fn(&str) -> bool) {
        self.by_name.retain(|name, _| !is_other(name));
    }

    /// Takes `[rows, cols]`.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, ModelError> {
        let tensor = self.take(name, &[&[rows, cols]])?;
        cut(&tensor, name, rows, cols, tensor.data.clone())
    }

    /// Takes `[count, rows, cols]` as `count` matrices that share the bytes.
    pub fn stack(&mut self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Vec<Matrix>, ModelError> {
        let tensor = self.take(name, &[&[count, rows, cols]])?;
        let bytes = tensor.data.len().checked_div(count).unwrap_or(0);
        (0..count)
            .map(|i| {
                let data = tensor.data.slice(i * bytes..(i + 1) * bytes);
                data.map_or_else(|| Err(length_error(&tensor, name)), |data| cut(&tensor, name, rows, cols, data))
            })
            .collect()
    }

    /// Takes a float tensor of any of `shapes` (all of one size) as f32 values.
    pub fn floats(&mut self, name: &str, shapes: &[&[usize]]) -> Result<Vec<f32>, ModelError> {
        let tensor = self.take(name, shapes)?;
        let values = known(&tensor, name)?.floats(&tensor.data);
        values.ok_or_else(|| ModelError::tensor(&tensor.file, name, "F32, F16 or BF16", describe(&tensor.ty)))
    }

    /// Rows `start..start + count` of a matrix that was stored together with others under `name`.
    pub fn rows(&self, name: &str, all: &Matrix, start: usize, count: usize) -> Result<Matrix, ModelError> {
        all.row_range(start, count)
            .ok_or_else(|| ModelError::tensor(&self.model, name, format!("at least {} rows", start + count), all.rows))
    }

    /// Refuses tensors under any of `prefixes` that were not taken.
    pub fn nothing_left_under(&self, prefixes: &[&str]) -> Result<(), ModelError> {
        match self.by_name.iter().find(|(name, _)| prefixes.iter().any(|p| name.starts_with(p))) {
            None => Ok(()),
            Some((name, tensor)) => Err(ModelError::UnknownTensor {
                file: tensor.file.to_string(),
                tensor: name.chars().take(80).collect(),
            }),
        }
    }

    fn take(&mut self, name: &str, shapes: &[&[usize]]) -> Result<Tensor, ModelError> {
        let Some(tensor) = self.by_name.remove(name) else {
            return Err(ModelError::MissingTensor { file: self.model.to_string(), tensor: name.into() });
        };
        if shapes.contains(&tensor.shape.as_slice()) {
            return Ok(tensor);
        }
        let expected = shapes.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(" or ");
        Err(ModelError::tensor(&tensor.file, name, format!("shape {expected}"), format!("{:?}", tensor.shape)))
    }
}

fn known(tensor: &Tensor, name: &str) -> Result<BlockType, ModelError> {
    match &tensor.ty {
        ElementType::Known(ty) => Ok(*ty),
        ElementType::Other(got) => Err(ModelError::tensor(&tensor.file, name, "a supported element type", got)),
    }
}

fn cut(tensor: &Tensor, name: &str, rows: usize, cols: usize, data: Data) -> Result<Matrix, ModelError> {
    Matrix::new(known(tensor, name)?, rows, cols, data).ok_or_else(|| length_error(tensor, name))
}

fn length_error(tensor: &Tensor, name: &str) -> ModelError {
    let expected = format!("bytes for {:?} of {}", tensor.shape, describe(&tensor.ty));
    ModelError::tensor(&tensor.file, name, expected, format!("{} bytes", tensor.data.len()))
}

fn describe(ty: &ElementType) -> String {
    match ty {
        ElementType::Known(ty) => ty.name().into(),
        ElementType::Other(name) => name.clone(),
    }
}
