// gate_proj and up_proj of one expert against the rows that need it, and their SwiGLU.
//
// Workgroup (x, y): ROWS weight rows from x · ROWS on, for tile y, which is an expert and at most SETS · WIDTH rows.
// LANES threads share a weight row, each taking every LANES-th super-block (or its share of one).

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> weights: array<vec4<u32>>; // a chunk: whole experts
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>; // prepared hidden states
@group(0) @binding(3) var<storage, read> row_words: array<u32>; // the same memory
@group(0) @binding(4) var<storage, read> tiles: array<vec4<u32>>; // expert's start, first slot, slots, 0
@group(0) @binding(5) var<storage, read> slots: array<vec2<u32>>; // row, gate weight and grid
@group(0) @binding(6) var<storage, read_write> inner: array<u32>; // slots × inner_blocks · 256, f32 bits
@group(0) @binding(7) var<storage, read> sigmoid_q30: array<u32>; // 513

var<workgroup> gate_shares: array<Column, WORKGROUP>;
var<workgroup> up_shares: array<Column, WORKGROUP>;

fn row_of(slot: u32) -> u32 {
    return slots[slot].x;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let tile = tiles[group.y];
    let here = place(group.x, t);
    let blocks = shape.outer_blocks;
    let starts = starts_of(tile, here.nth_set, row_vec4s(blocks));
    let row = min(here.row, shape.inner_rows - 1u);
    let gate_row = tile.x + row * weight_row_vec4s(blocks);
    let up_row = gate_row + shape.up_at;
    let gate_exponent = row_exponent(tile.x + shape.gate_exponents_at, row);
    let up_exponent = row_exponent(tile.x + shape.up_exponents_at, row);

    var gate = Column(0);
    var up = Column(0);
    // All threads take the same number of turns, so that lanes which share a super-block stay together.
    let stride = LANES / SPLIT;
    for (var first = 0u; first < blocks; first += stride) {
        let b = first + here.lane / SPLIT;
        let within = min(b, blocks - 1u);
        let inside = b < blocks;
        gate += select(Column(0), block_dot(gate_row, gate_exponent, within, here.lane, starts, blocks), inside);
        up += select(Column(0), block_dot(up_row, up_exponent, within, here.lane, starts, blocks), inside);
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
    let tops = words(starts, (BLOCK_WORDS + 1u) * blocks);
    let base = t - here.lane;
    for (var i = here.lane; i < WIDTH; i += LANES) {
        let column = here.nth_set * WIDTH + i;
        if (column < tile.z && here.row < shape.inner_rows) {
            let common_exponent = nth(tops, i) + GROWTH - 31 + GUARD;
            inner[(tile.y + column) * shape.inner_blocks * 256u + row] = swiglu(
                nth(gate_shares[base], i), gate_exponent + common_exponent,
                nth(up_shares[base], i), up_exponent + common_exponent,
            );
        }
    }
}
