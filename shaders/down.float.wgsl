// down_proj of one expert stored as floats: unweighted outputs, one row per slot.

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> weights: array<vec4<u32>>; // a chunk: whole experts
@group(0) @binding(2) var<storage, read> rows: array<vec4<f32>>; // inner rows, one per slot
@group(0) @binding(3) var<storage, read> tiles: array<vec4<u32>>; // expert's start, first slot, slots, 0
@group(0) @binding(4) var<storage, read_write> outputs: array<f32>; // slots × outer_rows

var<workgroup> shares: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let tile = tiles[group.y];
    let here = place(group.x, t);
    let slot = tile.y + min(here.nth_set, tile.z - 1u);
    let x = slot * shape.inner_row_vec4s;
    let row = min(here.row, shape.outer_rows - 1u);
    let weight_row = tile.x + shape.down_at + row * shape.inner_vec4s;
    var sum = 0.0;
    for (var i = here.lane; i < shape.inner_vec4s; i += LANES) {
        sum += weight_dot(weights[weight_row + i], x, i);
    }
    shares[t] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (here.lane < half) {
            shares[t] += shares[t + half];
        }
        workgroupBarrier();
    }
    if (here.lane == 0u && here.nth_set < tile.z && here.row < shape.outer_rows) {
        outputs[slot * shape.outer_rows + row] = shares[t];
    }
}
