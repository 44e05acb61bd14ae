//! Named tensors → [`Weights`], the same for both containers.
//!
//! Before: a [`Tensors`] with everything the files hold. After: every matrix in its place with the shape that the
//! hyper-parameters imply, and nothing left over in the layers. What differs between containers is data: a table of
//! names, whether norms are stored minus one, and whether the decay is stored as a logarithm.

use super::names::{ExpertForm, LayerNames};
use super::tensors::Tensors;
use super::{
    AttentionWeights, DeltaNetWeights, ExpertWeights, HyperParameters, LayerWeights, Mixer, ModelError, MtpWeights,
    SharedExpert, Weights,
};

/// Where a container keeps things and in what form.
pub(super) struct Container {
    pub embedding: String,
    pub head: String,
    pub final_norm: String,
    /// Layer i's names begin with `{layer_prefix}{i}.`.
    pub layer_prefix: String,
    pub names: &'static LayerNames,
    /// Added to every norm but DeltaNet's own: 1 where the container stores `w` of `1 + w`.
    pub norm_shift: f32,
    /// Whether `decay` holds `A_log` instead of `-exp(A_log)`.
    pub decay_is_log: bool,
    pub mtp: Option<MtpNames>,
}

/// Full names of the MTP head's own tensors, and the prefix of its layer.
pub(super) struct MtpNames {
    pub projection: String,
    pub embedding_norm: String,
    pub hidden_norm: String,
    pub final_norm: String,
    pub layer: String,
    /// Present only when the head does not share the trunk's.
    pub embedding: String,
    pub head: String,
}

/// Takes all weights out of `tensors`.
pub(super) fn weights(
    hyper: &HyperParameters,
    container: &Container,
    tensors: &mut Tensors,
) -> Result<Weights, ModelError> {
    let mut take = Assembly { hyper, container, tensors };
    let (vocab, hidden) = (hyper.vocab_size, hyper.hidden_size);
    let embedding = take.tensors.matrix(&container.embedding, vocab, hidden)?;
    let head = if take.tensors.has(&container.head) {
        take.tensors.matrix(&container.head, vocab, hidden)?
    } else {
        embedding.clone()
    };
    let final_norm = take.norm(&container.final_norm, hidden)?;
    let mut layers = Vec::new();
    for (i, recurrent) in hyper.recurrent.iter().enumerate() {
        layers.push(take.layer(&format!("{}{i}.", container.layer_prefix), *recurrent)?);
    }
    let mtp = match &container.mtp {
        None => None,
        Some(names) => {
            let own = |take: &mut Assembly, name: &str, trunk: &super::Matrix| match take.tensors.has(name) {
                true => take.tensors.matrix(name, vocab, hidden),
                false => Ok(trunk.clone()),
            };
            Some(MtpWeights {
                embedding: own(&mut take, &names.embedding, &embedding)?,
                head: own(&mut take, &names.head, &head)?,
                projection: take.tensors.matrix(&names.projection, hidden, 2 * hidden)?,
                embedding_norm: take.norm(&names.embedding_norm, hidden)?,
                hidden_norm: take.norm(&names.hidden_norm, hidden)?,
                layer: take.layer(&names.layer, false)?,
                final_norm: take.norm(&names.final_norm, hidden)?,
            })
        }
    };
    let mtp_prefix = container.mtp.as_ref().map_or(container.layer_prefix.as_str(), |names| &names.layer);
    tensors.nothing_left_under(&[&container.layer_prefix, mtp_prefix])?;
    Ok(Weights { embedding, head, final_norm, layers, mtp })
}

struct Assembly<'a> {
    hyper: &'a HyperParameters,
    container: &'a Container,
    tensors: &'a mut Tensors,
}

impl Assembly<'_> {
    fn layer(&mut self, prefix: &str, recurrent: bool) -> Result<LayerWeights, ModelError> {
        let (hyper, names) = (self.hyper, self.container.names);
        let name = |part: &str| format!("{prefix}{part}");
        Ok(LayerWeights {
            input_norm: self.norm(&name(names.input_norm), hyper.hidden_size)?,
            mixer: match (&hyper.delta_net, recurrent) {
                (Some(_), true) => Mixer::DeltaNet(self.delta_net(prefix)?),
                _ => Mixer::Attention(self.attention(prefix)?),
            },
            post_norm: self.norm(&name(names.post_norm), hyper.hidden_size)?,
            router: self.tensors.matrix(&name(names.router), hyper.experts, hyper.hidden_size)?,
            experts: self.experts(prefix)?,
            shared: if hyper.shared_intermediate_size > 0 { Some(self.shared(prefix)?) } else { None },
        })
    }

    fn attention(&mut self, prefix: &str) -> Result<AttentionWeights, ModelError> {
        let (hyper, names) = (self.hyper, self.container.names);
        let name = |part: &str| format!("{prefix}{part}");
        let (hidden, width) = (hyper.hidden_size, hyper.heads * hyper.head_dim);
        let q_rows = if hyper.gated_attention { 2 * width } else { width };
        let kv_rows = hyper.kv_heads * hyper.head_dim;
        let fused = names.qkv_fused.map(name).filter(|fused| self.tensors.has(fused));
        let (q, k, v) = match fused {
            Some(fused) => {
                let all = self.tensors.matrix(&fused, q_rows + 2 * kv_rows, hidden)?;
                let part = |start, count| self.tensors.rows(&fused, &all, start, count);
                (part(0, q_rows)?, part(q_rows, kv_rows)?, part(q_rows + kv_rows, kv_rows)?)
            }
            None => (
                self.tensors.matrix(&name(names.q), q_rows, hidden)?,
                self.tensors.matrix(&name(names.k), kv_rows, hidden)?,
                self.tensors.matrix(&name(names.v), kv_rows, hidden)?,
            ),
        };
        Ok(AttentionWeights {
            q,
            k,
            v,
            output: self.tensors.matrix(&name(names.attention_output), hidden, width)?,
            q_norm: self.norm(&name(names.q_norm), hyper.head_dim)?,
            k_norm: self.norm(&name(names.k_norm), hyper.head_dim)?,
        })
    }

    fn delta_net(&mut self, prefix: &str) -> Result<DeltaNetWeights, ModelError> {
        let (hyper, names) = (self.hyper, self.container.names);
        let name = |part: &str| format!("{prefix}{part}");
        let Some(net) = &hyper.delta_net else {
            return Err(ModelError::field(prefix, "layer kind", "attention", "DeltaNet"));
        };
        let hidden = hyper.hidden_size;
        let value_dim = net.value_heads * net.value_head_dim;
        let channels = 2 * net.key_heads * net.key_head_dim + value_dim;
        let taps = net.conv_kernel;
        let conv_shapes: [&[usize]; 3] = [&[channels, taps], &[channels, 1, taps], &[channels, taps, 1]];
        let mut neg_a = self.tensors.floats(&name(names.decay), &[&[net.value_heads]])?;
        if self.container.decay_is_log {
            neg_a.iter_mut().for_each(|a| *a = -a.exp());
        }
        Ok(DeltaNetWeights {
            qkv: self.tensors.matrix(&name(names.net_qkv), channels, hidden)?,
            z: self.tensors.matrix(&name(names.net_z), value_dim, hidden)?,
            a: self.tensors.matrix(&name(names.net_a), net.value_heads, hidden)?,
            b: self.tensors.matrix(&name(names.net_b), net.value_heads, hidden)?,
            conv: self.tensors.floats(&name(names.conv), &conv_shapes)?,
            neg_a,
            dt_bias: self.tensors.floats(&name(names.dt_bias), &[&[net.value_heads]])?,
            norm: self.tensors.floats(&name(names.net_norm), &[&[net.value_head_dim]])?,
            output: self.tensors.matrix(&name(names.net_output), hidden, value_dim)?,
        })
    }

    fn experts(&mut self, prefix: &str) -> Result<Vec<ExpertWeights>, ModelError> {
        let (count, hidden, inner) = (self.hyper.experts, self.hyper.hidden_size, self.hyper.intermediate_size);
        let forms = self.container.names.experts;
        let name = |part: &str| format!("{prefix}{part}");
        let present = |form: &&ExpertForm| match form {
            ExpertForm::Fused { gate_up, .. } => self.tensors.has(&name(gate_up)),
            ExpertForm::Stacked { gate, .. } => self.tensors.has(&name(gate)),
            ExpertForm::Each { before, gate, .. } => self.tensors.has(&format!("{prefix}{before}0.{gate}")),
        };
        let Some(form) = forms.iter().find(present).or(forms.first()) else { return Ok(Vec::new()) };
        let experts = match form {
            ExpertForm::Fused { gate_up, down } => {
                let gate_up = name(gate_up);
                let both = self.tensors.stack(&gate_up, count, 2 * inner, hidden)?;
                let down = self.tensors.stack(&name(down), count, hidden, inner)?;
                let half = |both, start| self.tensors.rows(&gate_up, both, start, inner);
                let pairs = both.iter().zip(down);
                pairs
                    .map(|(both, down)| Ok(ExpertWeights { gate: half(both, 0)?, up: half(both, inner)?, down }))
                    .collect::<Result<_, _>>()?
            }
            ExpertForm::Stacked { gate, up, down } => {
                let gate = self.tensors.stack(&name(gate), count, inner, hidden)?;
                let up = self.tensors.stack(&name(up), count, inner, hidden)?;
                let down = self.tensors.stack(&name(down), count, hidden, inner)?;
                let parts = gate.into_iter().zip(up).zip(down);
                parts.map(|((gate, up), down)| ExpertWeights { gate, up, down }).collect()
            }
            ExpertForm::Each { before, gate, up, down } => {
                let mut experts = Vec::new();
                for e in 0..count {
                    let name = |part: &str| format!("{prefix}{before}{e}.{part}");
                    experts.push(ExpertWeights {
                        gate: self.tensors.matrix(&name(gate), inner, hidden)?,
                        up: self.tensors.matrix(&name(up), inner, hidden)?,
                        down: self.tensors.matrix(&name(down), hidden, inner)?,
                    });
                }
                experts
            }
        };
        self.same_types(prefix, &experts)?;
        Ok(experts)
    }

    /// A slice's bytes are described per layer, so the experts of a layer must be stored alike.
    fn same_types(&self, prefix: &str, experts: &[ExpertWeights]) -> Result<(), ModelError> {
        let types = |e: &ExpertWeights| [e.gate.ty, e.up.ty, e.down.ty];
        match experts.iter().find(|e| types(e) != types(&experts[0])) {
            None => Ok(()),
            Some(odd) => {
                let expected = format!("types {:?} for all experts of the layer", types(&experts[0]));
                Err(ModelError::tensor(self.tensors.model(), prefix, expected, format!("{:?}", types(odd))))
            }
        }
    }

    fn shared(&mut self, prefix: &str) -> Result<SharedExpert, ModelError> {
        let (hidden, inner) = (self.hyper.hidden_size, self.hyper.shared_intermediate_size);
        let names = self.container.names;
        let name = |part: &str| format!("{prefix}{part}");
        let scalar_shapes: [&[usize]; 2] = [&[hidden], &[1, hidden]];
        Ok(SharedExpert {
            ffn: ExpertWeights {
                gate: self.tensors.matrix(&name(names.shared_gate), inner, hidden)?,
                up: self.tensors.matrix(&name(names.shared_up), inner, hidden)?,
                down: self.tensors.matrix(&name(names.shared_down), hidden, inner)?,
            },
            gate: self.tensors.floats(&name(names.shared_scalar), &scalar_shapes)?,
        })
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let mut norm = self.tensors.floats(name, &[&[len]])?;
        let shift = self.container.norm_shift;
        norm.iter_mut().for_each(|w| *w += shift);
        Ok(norm)
    }
}
