// gate_proj and up_proj of one expert stored as floats, and their SwiGLU in f32.
//
// Workgroup (x, y): ROWS weight rows from x · ROWS on, for tile y, which is an expert and at most SETS rows.

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> weights: array<vec4<u32>>; // a chunk: whole experts
@group(0) @binding(2) var<storage, read> rows: array<vec4<f32>>; // hidden states
@group(0) @binding(3) var<storage, read> tiles: array<vec4<u32>>; // expert's start, first slot, slots, 0
@group(0) @binding(4) var<storage, read> slots: array<vec2<u32>>; // row, 0
@group(0) @binding(5) var<storage, read_write> inner: array<f32>; // slots × inner_row_vec4s · 4

var<workgroup> gate_shares: array<f32, WORKGROUP>;
var<workgroup> up_shares: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let tile = tiles[group.y];
    let here = place(group.x, t);
    let slot = tile.y + min(here.nth_set, tile.z - 1u);
    let x = slots[slot].x * shape.hidden_vec4s;
    let row = min(here.row, shape.inner_rows - 1u);
    let gate_row = tile.x + row * shape.outer_vec4s;
    let up_row = gate_row + shape.up_at;
    var gate = 0.0;
    var up = 0.0;
    for (var i = here.lane; i < shape.outer_vec4s; i += LANES) {
        gate += weight_dot(weights[gate_row + i], x, i);
        up += weight_dot(weights[up_row + i], x, i);
    }
    gate_shares[t] = gate;
    up_shares[t] = up;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (here.lane < half) {
            gate_shares[t] += gate_shares[t + half];
            up_shares[t] += up_shares[t + half];
        }
        workgroupBarrier();
    }
    if (here.lane == 0u && here.nth_set < tile.z && here.row < shape.inner_rows) {
        let g = gate_shares[t];
        inner[slot * shape.inner_row_vec4s * 4u + row] = g / (1.0 + exp(-g)) * up_shares[t];
    }
}
