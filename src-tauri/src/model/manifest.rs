//! The manifest: which experts a model has and what their bytes are, so that a stranger's copy can be checked.
//!
//! Canonical JSON (keys sorted, no spaces): `hidden`, `intermediate`, `layers`, `numerics`, `planes`; per layer the
//! types and shapes of gate, up and down, and one BLAKE3 digest per expert over `gate ‖ up ‖ down` as stored, rows in
//! file order, a fused tensor split first. The manifest's id is the BLAKE3 of these bytes.
//! **Promise:** two different texts never stand for the same manifest: what does not read back byte for byte is refused.

use serde::{Deserialize, Serialize};

use super::{BlockType, Data, ExpertWeights, LayerWeights, Matrix, Model};
use crate::types::{Digest, Hex};

/// Version of the exact numerics that the experts are computed with.
const NUMERICS: u32 = 1;
/// int8 planes of an activation.
const PLANES: u32 = 1;
/// Bounds of what a peer's manifest may say; far above any model, far below any overflow.
const WIDTH_MAX: usize = 1 << 20;
const LAYERS_MAX: usize = 4096;
const EXPERTS_MAX: usize = 65_535;

/// Why there is no manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Text that is no manifest.
    #[error("not a manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// A manifest in another form than the canonical one.
    #[error("manifest is not in canonical form")]
    NotCanonical,
    /// A manifest of other rules.
    #[error("manifest's {what} is {got}, expected {expected}")]
    Rules {
        /// Which field.
        what: &'static str,
        /// Its value.
        got: u32,
        /// The only value known here.
        expected: u32,
    },
    /// A number out of bounds.
    #[error("manifest's {what}: expected 1..={max}, got {got}")]
    Size {
        /// Which field.
        what: &'static str,
        /// Its bound.
        max: usize,
        /// Its value.
        got: usize,
    },
    /// Matrices that do not form an expert, or a type that does not exist.
    #[error("manifest's layer {layer}: {matrix} is {got}, which does not fit the model")]
    Matrix {
        /// The layer.
        layer: usize,
        /// `gate`, `up` or `down`.
        matrix: &'static str,
        /// What it says.
        got: String,
    },
    /// Experts of one layer that are stored differently.
    #[error("layer {layer}: expert {expert} is stored in other types than expert 0")]
    Mixed {
        /// The layer.
        layer: usize,
        /// The first that differs.
        expert: usize,
    },
}

/// How one matrix of a layer's experts is stored: type, rows, columns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Stored(String, usize, usize);

impl Stored {
    fn of(matrix: &Matrix) -> Self {
        Self(format!("{:?}", matrix.ty), matrix.rows, matrix.cols)
    }

    fn ty(&self) -> Option<BlockType> {
        BlockType::ALL.into_iter().find(|ty| format!("{ty:?}") == self.0)
    }

    fn bytes(&self) -> Option<usize> {
        self.ty()?.row_bytes(self.2)?.checked_mul(self.1)
    }
}

/// The experts of one layer; fields in the order of their names, which is that of the text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    digests: Vec<Digest>,
    down: Stored,
    gate: Stored,
    up: Stored,
}

/// As above.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    hidden: usize,
    intermediate: usize,
    layers: Vec<Layer>,
    numerics: u32,
    planes: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Manifest {
    body: Body,
    bytes: Vec<u8>,
    id: Digest,
}

impl Manifest {
    /// The manifest of a model; reads every byte of its experts.
    ///
    /// # Errors
    /// [`ManifestError::Mixed`], or a model beyond the bounds of a manifest.
    pub fn of(model: &Model) -> Result<Self, ManifestError> {
        let weights = &model.weights;
        let layers = weights.layers.iter().chain(weights.mtp.iter().map(|mtp| &mtp.layer));
        let body = Body {
            hidden: model.hyper.hidden_size,
            intermediate: model.hyper.intermediate_size,
            layers: layers.enumerate().map(|(index, layer)| layer_of(index, layer)).collect::<Result<_, _>>()?,
            numerics: NUMERICS,
            planes: PLANES,
        };
        body.check()?;
        let bytes = serde_json::to_vec(&body)?;
        Ok(Self { id: Hex(*blake3::hash(&bytes).as_bytes()), body, bytes })
    }

    /// Reads a manifest. The caller bounds the length and compares [`Manifest::id`].
    ///
    /// # Errors
    /// [`ManifestError`] for anything that [`Manifest::of`] would not have written.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ManifestError> {
        let body: Body = serde_json::from_slice(bytes)?;
        body.check()?;
        if serde_json::to_vec(&body)? != bytes {
            return Err(ManifestError::NotCanonical);
        }
        Ok(Self { id: Hex(*blake3::hash(bytes).as_bytes()), body, bytes: bytes.to_vec() })
    }

    /// The canonical text.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// BLAKE3 of [`Manifest::bytes`].
    #[must_use]
    pub fn id(&self) -> Digest {
        self.id
    }

    /// Elements of a hidden row.
    #[must_use]
    pub fn hidden_size(&self) -> usize {
        self.body.hidden
    }

    /// Stored bytes of each expert of a layer; `None` when there is no such layer.
    #[must_use]
    pub fn expert_bytes(&self, layer: u16) -> Option<u64> {
        let layer = self.body.layers.get(usize::from(layer))?;
        let sizes = [&layer.gate, &layer.up, &layer.down].map(Stored::bytes);
        sizes.into_iter().map(|size| size.map(|n| n as u64)).sum()
    }

    /// Digest of an expert's bytes; `None` when there is no such expert.
    #[must_use]
    pub fn digest(&self, layer: u16, expert: u16) -> Option<Digest> {
        self.body.layers.get(usize::from(layer))?.digests.get(usize::from(expert)).copied()
    }

    /// The matrices in `bytes` (`gate ‖ up ‖ down`) of an expert of `layer`, which share them; `None` when there is no
    /// such layer or the length is another.
    #[must_use]
    pub fn expert(&self, layer: u16, bytes: &Data) -> Option<ExpertWeights> {
        let layer = self.body.layers.get(usize::from(layer))?;
        let mut at = 0;
        let mut cut = |stored: &Stored| {
            let end = at + stored.bytes()?;
            let data = bytes.slice(at..end)?;
            at = end;
            Matrix::new(stored.ty()?, stored.1, stored.2, data)
        };
        let (gate, up, down) = (cut(&layer.gate)?, cut(&layer.up)?, cut(&layer.down)?);
        (at == bytes.len()).then_some(ExpertWeights { gate, up, down })
    }
}

impl ExpertWeights {
    /// Digest of the bytes that travel: `gate ‖ up ‖ down` as stored.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for matrix in [&self.gate, &self.up, &self.down] {
            hasher.update(&matrix.data);
        }
        Hex(*hasher.finalize().as_bytes())
    }
}

fn layer_of(index: usize, layer: &LayerWeights) -> Result<Layer, ManifestError> {
    let stored = |e: &ExpertWeights| [&e.gate, &e.up, &e.down].map(Stored::of);
    let Some(first) = layer.experts.first().map(stored) else {
        return Err(ManifestError::Size { what: "experts of a layer", max: EXPERTS_MAX, got: 0 });
    };
    if let Some(expert) = layer.experts.iter().position(|e| stored(e) != first) {
        return Err(ManifestError::Mixed { layer: index, expert });
    }
    let [gate, up, down] = first;
    Ok(Layer { digests: layer.experts.iter().map(ExpertWeights::digest).collect(), down, gate, up })
}

impl Body {
    fn check(&self) -> Result<(), ManifestError> {
        let rules = |what, got, expected| {
            if got == expected { Ok(()) } else { Err(ManifestError::Rules { what, got, expected }) }
        };
        rules("numerics", self.numerics, NUMERICS)?;
        rules("planes", self.planes, PLANES)?;
        let size = |what, got: usize, max| {
            if (1..=max).contains(&got) { Ok(()) } else { Err(ManifestError::Size { what, max, got }) }
        };
        size("hidden", self.hidden, WIDTH_MAX)?;
        size("intermediate", self.intermediate, WIDTH_MAX)?;
        size("layers", self.layers.len(), LAYERS_MAX)?;
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        for (index, layer) in self.layers.iter().enumerate() {
            size("experts of a layer", layer.digests.len(), EXPERTS_MAX)?;
            for (matrix, stored, rows, cols) in [
                ("gate", &layer.gate, intermediate, hidden),
                ("up", &layer.up, intermediate, hidden),
                ("down", &layer.down, hidden, intermediate),
            ] {
                if (stored.1, stored.2) != (rows, cols) || stored.bytes().is_none() {
                    let got = format!("{} {}×{}", stored.0.chars().take(16).collect::<String>(), stored.1, stored.2);
                    return Err(ManifestError::Matrix { layer: index, matrix, got });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(layer: &str) -> String {
        format!(r#"{{"hidden":32,"intermediate":64,"layers":[{layer}],"numerics":1,"planes":1}}"#)
    }

    fn layer(gate: &str) -> String {
        let digest = "0".repeat(64);
        format!(r#"{{"digests":["{digest}"],"down":["Q8_0",32,64],"gate":[{gate}],"up":["F32",64,32]}}"#)
    }

    #[test]
    fn a_manifest_reads_back_and_cuts_an_expert_apart() {
        let bytes = text(&layer(r#""Q4_0",64,32"#));
        let manifest = Manifest::from_bytes(bytes.as_bytes()).unwrap();
        assert_eq!(manifest.bytes(), bytes.as_bytes());
        assert_eq!(manifest.id(), Hex(*blake3::hash(bytes.as_bytes()).as_bytes()));
        let size = 64 * 18 + 64 * 32 * 4 + 32 * 68;
        assert_eq!(manifest.expert_bytes(0), Some(size as u64));
        let expert = manifest.expert(0, &Data::from(vec![7; size])).unwrap();
        assert_eq!((expert.gate.data.len(), expert.up.data.len(), expert.down.data.len()), (1152, 8192, 2176));
        assert!(manifest.expert(0, &Data::from(vec![7; size + 1])).is_none());
        assert!(manifest.expert(0, &Data::from(vec![7; size - 1])).is_none());
        assert_eq!(manifest.digest(0, 0), Some(Hex([0; 32])));
        assert_eq!((manifest.digest(0, 1), manifest.digest(1, 0), manifest.expert_bytes(1)), (None, None, None));
    }

    #[test]
    fn what_is_not_canonical_or_does_not_fit_is_refused() {
        let good = text(&layer(r#""Q4_0",64,32"#));
        let spaced = good.replace(',', ", ");
        assert!(matches!(Manifest::from_bytes(spaced.as_bytes()), Err(ManifestError::NotCanonical)));
        for (from, to) in [
            (r#""numerics":1"#, r#""numerics":2"#),
            (r#""hidden":32"#, r#""hidden":64"#),
            (r#""hidden":32"#, r#""hidden":0"#),
            (r#""Q4_0",64,32"#, r#""Q4_K",64,32"#),
            (r#""Q4_0",64,32"#, r#""Q9_9",64,32"#),
            (r#""planes":1"#, r#""planes":1,"x":1"#),
        ] {
            assert!(Manifest::from_bytes(good.replace(from, to).as_bytes()).is_err(), "{to}");
        }
        assert!(Manifest::from_bytes(text("").as_bytes()).is_err());
    }
}
