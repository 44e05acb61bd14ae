//! The list of a model's experts by content: what a worker may hold, and how it knows that it holds the right bytes.
//!
//! **Invariant:** a manifest has one byte form (JSON, keys sorted, no spaces), so its id, the BLAKE3 of those bytes,
//! names the experts exactly. [`Manifest::from_bytes`] refuses every other spelling of the same content.
//! Why not the file's hash: workers fetch single experts, and two files with the same experts should share them.

mod beside;

use rayon::prelude::*;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BlockType, ExpertShape, Model};
use crate::types::{Digest, ExpertId, Hex};

/// Version of the exact expert function (`numerics`).
const NUMERICS: u32 = 1;
/// Planes of int8 per value that travel (`planes`).
const PLANES: u32 = 1;
/// Bytes of a manifest: 122B's 12,544 digests take 0.85 MB.
pub const MANIFEST_BYTES_MAX: usize = 16 << 20;
const LAYERS_MAX: usize = 1_024;
/// Ids are 16 bits, and 65,535 asks for the manifest itself.
const EXPERTS_MAX: usize = 65_535;
const WIDTH_MAX: usize = 1 << 20;

/// A model's experts: shapes, types and digests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    content: Content,
    bytes: Vec<u8>,
}

/// Bytes that are not a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The model's files.
    #[error("cannot read an expert: {0}")]
    Read(#[from] std::io::Error),
    /// Longer than any manifest.
    #[error("expected a manifest of at most {MANIFEST_BYTES_MAX} bytes, got {got}")]
    TooLong {
        /// Bytes given.
        got: usize,
    },
    /// Not JSON, or not with exactly these keys.
    #[error("manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// A value that no model of this version has.
    #[error("manifest: expected {expected} for {what}, got {got}")]
    Value {
        /// The key.
        what: &'static str,
        /// What would do.
        expected: String,
        /// What is there.
        got: String,
    },
    /// The same content in another spelling, which would have another id.
    #[error("manifest: expected sorted keys and no spaces, got another spelling from byte {at}")]
    Spelling {
        /// First byte that differs.
        at: usize,
    },
}

/// Keys stand in alphabetical order here because serde writes them in this order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    hidden: usize,
    intermediate: usize,
    layers: Vec<Layer>,
    numerics: u32,
    planes: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    digests: Vec<Digest>,
    #[serde(serialize_with = "name", deserialize_with = "from_name")]
    down: BlockType,
    #[serde(serialize_with = "name", deserialize_with = "from_name")]
    gate: BlockType,
    #[serde(serialize_with = "name", deserialize_with = "from_name")]
    up: BlockType,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn name<S: Serializer>(ty: &BlockType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(ty.name())
}

fn from_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BlockType, D::Error> {
    let name = std::borrow::Cow::<str>::deserialize(deserializer)?;
    let unknown = || serde::de::Error::custom(format!("expected an element type, got {name:?}"));
    BlockType::from_name(&name).ok_or_else(unknown)
}

impl Manifest {
    /// Hashes every expert of `model`; takes as long as reading the file, of which no page stays resident.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(model: &Model) -> Result<Self, ManifestError> {
        let layers: Vec<_> = model.weights.moe_layers().collect();
        let layers = layers.into_iter().filter_map(|layer| {
            let shape = layer.experts.first()?.shape();
            let digests = layer.experts.par_iter().map(super::ExpertWeights::digest).collect::<Result<_, _>>();
            Some(digests.map(|digests| Layer { digests, down: shape.down, gate: shape.gate, up: shape.up }))
        });
        let content = Content {
            hidden: model.hyper.hidden_size,
            intermediate: model.hyper.intermediate_size,
            layers: layers.collect::<Result<_, _>>()?,
            numerics: NUMERICS,
            planes: PLANES,
        };
        Ok(Self { bytes: serde_json::to_vec(&content)?, content })
    }

    /// Reads a manifest from the network or from disk. The caller compares [`id`](Self::id) with the one it trusts.
    ///
    /// # Errors
    /// Bytes that are too long, no manifest of this version, or not in the one form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLong { got: bytes.len() });
        }
        let content: Content = serde_json::from_slice(bytes)?;
        check(&content)?;
        let canonical = serde_json::to_vec(&content)?;
        if canonical != bytes {
            let same = canonical.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            return Err(ManifestError::Spelling { at: same });
        }
        Ok(Self { content, bytes: canonical })
    }

    /// The one byte form.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// BLAKE3 of [`bytes`](Self::bytes).
    #[must_use]
    pub fn id(&self) -> Digest {
        Hex(*blake3::hash(&self.bytes).as_bytes())
    }

    /// Layers with experts: the trunk's, then MTP's.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.content.layers.len()
    }

    /// Experts of `layer`; 0 when there is no such layer.
    #[must_use]
    pub fn experts(&self, layer: u16) -> usize {
        self.layer(layer).map_or(0, |layer| layer.digests.len())
    }

    /// Elements of a hidden state.
    #[must_use]
    pub fn hidden_size(&self) -> usize {
        self.content.hidden
    }

    /// How the experts of `layer` are stored.
    #[must_use]
    pub fn expert_shape(&self, layer: u16) -> Option<ExpertShape> {
        let Layer { gate, up, down, .. } = *self.layer(layer)?;
        Some(ExpertShape { gate, up, down, hidden: self.content.hidden, intermediate: self.content.intermediate })
    }

    /// Whether `model` has exactly these layers, experts and shapes, whatever their bytes.
    #[must_use]
    pub fn describes(&self, model: &Model) -> bool {
        let with_experts =
            model.weights.moe_layers().filter_map(|l| Some((l.experts.len(), l.experts.first()?.shape())));
        let ours = (0u16..).take(self.layers()).map(|layer| Some((self.experts(layer), self.expert_shape(layer)?)));
        ours.eq(with_experts.map(Some))
    }

    /// BLAKE3 of the expert's gate ‖ up ‖ down bytes.
    #[must_use]
    pub fn digest(&self, id: ExpertId) -> Option<Digest> {
        self.layer(id.layer)?.digests.get(usize::from(id.expert)).copied()
    }

    fn layer(&self, layer: u16) -> Option<&Layer> {
        self.content.layers.get(usize::from(layer))
    }
}

fn check(content: &Content) -> Result<(), ManifestError> {
    let range = |what, got: usize, min: usize, max: usize| {
        if (min..=max).contains(&got) {
            return Ok(());
        }
        Err(ManifestError::Value { what, expected: format!("{min} to {max}"), got: got.to_string() })
    };
    range("numerics", content.numerics as usize, NUMERICS as usize, NUMERICS as usize)?;
    range("planes", content.planes as usize, PLANES as usize, PLANES as usize)?;
    range("hidden", content.hidden, 1, WIDTH_MAX)?;
    range("intermediate", content.intermediate, 1, WIDTH_MAX)?;
    range("the number of layers", content.layers.len(), 1, LAYERS_MAX)?;
    for layer in &content.layers {
        range("the number of a layer's experts", layer.digests.len(), 1, EXPERTS_MAX)?;
        let Layer { gate, up, down, .. } = *layer;
        let (hidden, intermediate) = (content.hidden, content.intermediate);
        if (ExpertShape { gate, up, down, hidden, intermediate }).part_bytes().is_none() {
            let got = format!("{hidden} × {intermediate} of {}, {}, {}", gate.name(), up.name(), down.name());
            return Err(ManifestError::Value { what: "a layer's types", expected: "rows of whole blocks".into(), got });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embedded() -> (Model, Manifest) {
        let model = crate::model::embedded().unwrap();
        let manifest = Manifest::of(&model).unwrap();
        (model, manifest)
    }

    #[test]
    fn a_manifest_survives_its_bytes() {
        let (_, manifest) = embedded();
        assert_eq!(Manifest::from_bytes(manifest.bytes()).unwrap(), manifest);
        assert_eq!((manifest.layers(), manifest.experts(4), manifest.experts(5)), (5, 16, 0));
        let start = br#"{"hidden":256,"intermediate":256,"layers":[{"digests":[""#;
        assert!(manifest.bytes().starts_with(start));
        assert!(manifest.bytes().ends_with(br#""numerics":1,"planes":1}"#));
    }

    #[test]
    fn digests_cover_an_experts_bytes_as_served() {
        let (model, manifest) = embedded();
        for (layer, expert) in [(0u16, 0u16), (3, 15), (4, 7)] {
            let weights = &model.weights.moe_layers().nth(layer.into()).unwrap().experts[usize::from(expert)];
            let expected = Hex(*blake3::hash(&weights.to_bytes()).as_bytes());
            assert_eq!(manifest.digest(ExpertId { layer, expert }), Some(expected));
            assert_eq!(manifest.expert_shape(layer), Some(weights.shape()));
        }
        assert_eq!(manifest.digest(ExpertId { layer: 0, expert: 16 }), None);
        assert_eq!(manifest.expert_shape(5), None);
    }

    #[test]
    fn the_embedded_models_id_is_permanent() {
        let (_, manifest) = embedded();
        assert_eq!(manifest.id().to_string(), "a0651837b50f6bc5c05cf75ba4f6fa49dd0fbb3be07427f683ad6f3edd8dd0a5");
    }

    #[test]
    fn other_spellings_versions_and_shapes_are_refused() {
        let (_, manifest) = embedded();
        let text = std::str::from_utf8(manifest.bytes()).unwrap();
        let cases = [
            (text.replacen(':', ": ", 1), "another spelling from byte 10"),
            (text.replace("\"planes\":1", "\"planes\":2"), "expected 1 to 1 for planes, got 2"),
            (text.replace("\"numerics\":1", "\"numerics\":0"), "expected 1 to 1 for numerics, got 0"),
            (text.replace("\"hidden\":256", "\"hidden\":0"), "expected 1 to 1048576 for hidden, got 0"),
            (text.replace("\"hidden\":256", "\"hidden\":250"), "expected rows of whole blocks"),
            (text.replacen("Q4_K", "Q9_K", 1), "expected an element type, got \"Q9_K\""),
            (text.replacen("\"planes\"", "\"plans\"", 1), "unknown field `plans`"),
            (text[..text.len() - 1].to_owned(), "EOF"),
            (format!("{text} "), "another spelling"),
        ];
        for (bytes, expected) in cases {
            let got = Manifest::from_bytes(bytes.as_bytes()).unwrap_err().to_string();
            assert!(got.contains(expected), "expected {expected:?} in {got:?}");
        }
        let long = vec![b' '; MANIFEST_BYTES_MAX + 1];
        assert!(matches!(Manifest::from_bytes(&long), Err(ManifestError::TooLong { .. })));
    }
}
