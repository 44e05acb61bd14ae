//! A model's weights → the tensors of its GGUF file, by name and in the order in which a token meets them.

use super::ConvertError;
use super::body::{Body, Planned};
use super::heads::{Stretches, tiled, whole};
use crate::model::assemble::Container;
use crate::model::names::GGUF_EXPERTS;
use crate::model::quantise::{check_layer, parts};
use crate::model::{
    AttentionWeights, BlockType, DeltaNetShape, DeltaNetWeights, LayerWeights, Matrix, Mixer, Model, MtpWeights, gguf,
};

/// The tensors of `model` with its routed experts as `to`.
pub(super) fn plan(model: &Model, to: BlockType) -> Result<Vec<Planned<'_>>, ConvertError> {
    let container = gguf::container(&model.hyper);
    let (weights, net) = (&model.weights, model.hyper.delta_net);
    let mut plan = Plan { container: &container, net, to, tensors: Vec::new() };
    plan.matrix(container.embedding.clone(), &weights.embedding);
    for (i, layer) in weights.layers.iter().enumerate() {
        plan.layer(i, layer)?;
    }
    if let Some(mtp) = &weights.mtp {
        plan.mtp(model, mtp)?;
    }
    plan.floats(container.final_norm.clone(), &weights.final_norm);
    plan.own_matrix(&container.head, &weights.head, &weights.embedding);
    Ok(plan.tensors)
}

struct Plan<'a, 'c> {
    container: &'c Container,
    net: Option<DeltaNetShape>,
    to: BlockType,
    tensors: Vec<Planned<'a>>,
}

impl<'a> Plan<'a, '_> {
    fn matrix(&mut self, name: String, matrix: &'a Matrix) {
        self.rows(name, matrix, whole(matrix.rows));
    }

    fn rows(&mut self, name: String, matrix: &'a Matrix, stretches: Stretches) {
        let shape = vec![matrix.rows, matrix.cols];
        self.tensors.push(Planned { name, shape, ty: matrix.ty, body: Body::Rows(matrix, stretches) });
    }

    /// A matrix that is left out when it is `shared` once more.
    fn own_matrix(&mut self, name: &str, matrix: &'a Matrix, shared: &Matrix) {
        if !matrix.is_same(shared) {
            self.matrix(name.into(), matrix);
        }
    }

    fn floats(&mut self, name: String, values: &[f32]) {
        self.stretches_of_floats(name, values, vec![values.len()], &whole(values.len()));
    }

    fn stretches_of_floats(&mut self, name: String, values: &[f32], shape: Vec<usize>, order: &Stretches) {
        let ordered = order.iter().flat_map(|stretch| &values[stretch.clone()]);
        let body = Body::Bytes(ordered.flat_map(|value| value.to_le_bytes()).collect());
        self.tensors.push(Planned { name, shape, ty: BlockType::F32, body });
    }

    fn layer(&mut self, index: usize, layer: &'a LayerWeights) -> Result<(), ConvertError> {
        let names = self.container.names;
        let name = |part: &str| format!("{}{index}.{part}", self.container.layer_prefix);
        let (input_norm, post_norm, router) = (name(names.input_norm), name(names.post_norm), name(names.router));
        let [gate, up, down] = [names.shared_gate, names.shared_up, names.shared_down].map(name);
        let scalar = name(names.shared_scalar);
        self.floats(input_norm, &layer.input_norm);
        match (&layer.mixer, self.net) {
            (Mixer::Attention(attention), _) => self.attention(index, attention),
            (Mixer::DeltaNet(weights), Some(net)) => self.delta_net(index, weights, &net)?,
            (Mixer::DeltaNet(_), None) => {
                let expected = "sizes of its heads in the model's parameters".into();
                return Err(ConvertError::Form { what: "a DeltaNet layer", expected, got: "none".into() });
            }
        }
        self.floats(post_norm, &layer.post_norm);
        self.matrix(router, &layer.router);
        if let Some(shared) = &layer.shared {
            self.floats(scalar, &shared.gate);
            for (name, matrix) in [gate, up, down].into_iter().zip(parts(&shared.ffn)) {
                self.matrix(name, matrix);
            }
        }
        check_layer(index, &layer.experts, self.to)?;
        for (part, part_name) in GGUF_EXPERTS.into_iter().enumerate() {
            let Some(first) = layer.experts.first().map(|expert| parts(expert)[part]) else { continue };
            let body = Body::Experts { layer: index, part, experts: &layer.experts };
            let shape = vec![layer.experts.len(), first.rows, first.cols];
            let name = format!("{}{index}.{part_name}", self.container.layer_prefix);
            self.tensors.push(Planned { name, shape, ty: self.to, body });
        }
        Ok(())
    }

    fn attention(&mut self, index: usize, attention: &'a AttentionWeights) {
        let (prefix, names) = (&self.container.layer_prefix, self.container.names);
        let name = |part: &str| format!("{prefix}{index}.{part}");
        let parts = [
            (name(names.q), &attention.q),
            (name(names.k), &attention.k),
            (name(names.v), &attention.v),
            (name(names.attention_output), &attention.output),
        ];
        let norms = [(name(names.q_norm), &attention.q_norm), (name(names.k_norm), &attention.k_norm)];
        parts.into_iter().for_each(|(name, matrix)| self.matrix(name, matrix));
        norms.into_iter().for_each(|(name, norm)| self.floats(name, norm));
    }

    fn delta_net(&mut self, index: usize, w: &'a DeltaNetWeights, net: &DeltaNetShape) -> Result<(), ConvertError> {
        let (prefix, names) = (&self.container.layer_prefix, self.container.names);
        let name = |part: &str| format!("{prefix}{index}.{part}");
        let [qkv, z, a, b] = [names.net_qkv, names.net_z, names.net_a, names.net_b].map(name);
        let [conv, decay, bias, norm, output] =
            [names.conv, names.decay, names.dt_bias, names.net_norm, names.net_output].map(name);
        let keys = 2 * net.key_heads * net.key_head_dim;
        let (width, taps) = (net.value_head_dim, net.conv_kernel);
        self.rows(qkv, &w.qkv, tiled(net, keys, width));
        self.rows(z, &w.z, tiled(net, 0, width));
        self.rows(a, &w.a, tiled(net, 0, 1));
        self.rows(b, &w.b, tiled(net, 0, 1));
        let channels = w.conv.len() / taps;
        self.stretches_of_floats(conv, &w.conv, vec![channels, taps], &tiled(net, keys * taps, width * taps));
        self.stretches_of_floats(decay, &w.neg_a, vec![w.neg_a.len()], &tiled(net, 0, 1));
        self.stretches_of_floats(bias, &w.dt_bias, vec![w.dt_bias.len()], &tiled(net, 0, 1));
        self.floats(norm, &w.norm);
        let order = tiled(net, 0, width);
        if order.len() > 1 && w.output.ty.row_bytes(width).is_none() {
            let got = format!("{} in heads of {width}", w.output.ty.name());
            return Err(ConvertError::Form {
                what: "DeltaNet's output",
                expected: "heads of whole blocks".into(),
                got,
            });
        }
        let shape = vec![w.output.rows, w.output.cols];
        self.tensors.push(Planned { name: output, shape, ty: w.output.ty, body: Body::Columns(&w.output, order) });
        Ok(())
    }

    fn mtp(&mut self, model: &'a Model, mtp: &'a MtpWeights) -> Result<(), ConvertError> {
        let Some(names) = &self.container.mtp else { return Ok(()) };
        self.layer(model.hyper.layers, &mtp.layer)?;
        self.matrix(names.projection.clone(), &mtp.projection);
        self.floats(names.embedding_norm.clone(), &mtp.embedding_norm);
        self.floats(names.hidden_norm.clone(), &mtp.hidden_norm);
        self.floats(names.final_norm.clone(), &mtp.final_norm);
        self.own_matrix(&names.embedding, &mtp.embedding, &model.weights.embedding);
        self.own_matrix(&names.head, &mtp.head, &model.weights.head);
        Ok(())
    }
}
