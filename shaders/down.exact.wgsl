// down_proj of one expert against its inner rows, weighted, rounded to each row's grid and added to the row's sums.
//
// Laid out like gate_up; integers are added, so the order in which experts and workgroups come does not matter.

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> weights: array<vec4<u32>>; // a chunk: whole experts
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>; // prepared inner rows, one per slot
@group(0) @binding(3) var<storage, read> row_words: array<u32>; // the same memory
@group(0) @binding(4) var<storage, read> tiles: array<vec4<u32>>; // expert's start, first slot, slots, 0
@group(0) @binding(5) var<storage, read> slots: array<vec2<u32>>; // row, gate weight and grid
@group(0) @binding(6) var<storage, read_write> sums: array<atomic<i32>>; // rows × outer_rows, then a status per row

var<workgroup> shares: array<Column, WORKGROUP>;

const RANGE: i32 = 1;

fn row_of(slot: u32) -> u32 {
    return slot;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let tile = tiles[group.y];
    let here = place(group.x, t);
    let blocks = shape.inner_blocks;
    let starts = starts_of(tile, here.nth_set, row_vec4s(blocks));
    let row = min(here.row, shape.outer_rows - 1u);
    let weight_row = tile.x + shape.down_at + row * weight_row_vec4s(blocks);
    let exponent = row_exponent(tile.x + shape.down_exponents_at, row);

    var sum = Column(0);
    let stride = LANES / SPLIT;
    for (var first = 0u; first < blocks; first += stride) {
        let b = first + here.lane / SPLIT;
        let within = min(b, blocks - 1u);
        sum += select(Column(0), block_dot(weight_row, exponent, within, here.lane, starts, blocks), b < blocks);
    }

    shares[t] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (here.lane < half) {
            shares[t] += shares[t + half];
        }
        workgroupBarrier();
    }
    let tops = words(starts, (BLOCK_WORDS + 1u) * blocks);
    let base = t - here.lane;
    for (var i = here.lane; i < WIDTH; i += LANES) {
        let column = here.nth_set * WIDTH + i;
        if (column < tile.z && here.row < shape.outer_rows) {
            let slot = slots[tile.y + column];
            let gate_exponent = (bitcast<i32>(slot.y) << 8u) >> 24u;
            let grid = bitcast<i32>(slot.y) >> 24u;
            let dot_exponent = exponent + nth(tops, i) + GROWTH - 31 + GUARD;
            let weighted = output(nth(shares[base], i), i32(slot.y & 0xffffu), grid - dot_exponent - gate_exponent);
            if (weighted.in_range) {
                atomicAdd(&sums[slot.x * shape.outer_rows + row], weighted.value);
            } else {
                atomicOr(&sums[shape.status_at + slot.x], RANGE);
            }
        }
    }
}
