// Inner rows, as f32 bits, to prepared rows: one workgroup per slot, one thread per step of 16 values.

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> slots: array<vec2<u32>>; // row, gate weight and grid
@group(0) @binding(2) var<storage, read> inner: array<vec4<u32>>; // slots × inner_blocks · 256, f32 bits
@group(0) @binding(3) var<storage, read_write> prepared: array<u32>; // slots × prepared row
@group(0) @binding(4) var<storage, read_write> sums: array<atomic<i32>>; // rows × outer_rows, then a status per row
@group(0) @binding(5) var<storage, read> tiles: array<vec4<u32>>; // one record: 0, first slot, slots, 0

const POISON: i32 = 2;
// F of a super-block without values.
const EMPTY: i32 = -128;
const STEPS: u32 = 64u;
const BLOCKS_MAX: u32 = 32u;

// Of the steps under way: largest magnitude, then `scale · Σ |q|`.
var<workgroup> of_step: array<u32, STEPS>;
// Of all super-blocks of the row: L and E.
var<workgroup> lengths: array<i32, BLOCKS_MAX>;
var<workgroup> exponents: array<i32, BLOCKS_MAX>;

fn significand(bits: u32) -> u32 {
    return (bits & 0x7fffffu) | 0x800000u;
}

fn field(bits: u32) -> i32 {
    return i32((bits >> 23u) & 0xffu);
}

// One value on the grid s · 2^F, rounded half away from zero.
fn quantised(bits: u32, f: i32, s: u32, reciprocal: u32) -> i32 {
    let e = field(bits);
    let down = f - (e - 150);
    if (e == 0 || down > 24) {
        return 0;
    }
    let d = u32(down);
    let t = (significand(bits) + (s << (d - 1u))) >> d;
    let q = i32((t * reciprocal) >> 16u);
    return select(q, -q, (bits >> 31u) != 0u);
}

fn largest(v: vec4<u32>) -> u32 {
    let m = v & vec4<u32>(0x7fffffffu);
    return max(max(m.x, m.y), max(m.z, m.w));
}

fn packed(q: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

fn four(v: vec4<u32>, f: i32, s: u32, reciprocal: u32) -> vec4<i32> {
    return vec4<i32>(
        quantised(v.x, f, s, reciprocal),
        quantised(v.y, f, s, reciprocal),
        quantised(v.z, f, s, reciprocal),
        quantised(v.w, f, s, reciprocal),
    );
}

@compute @workgroup_size(STEPS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let slot = tiles[0].y + group.x;
    let blocks = shape.inner_blocks;
    let out = slot * 4u * row_vec4s(blocks);
    for (var first = 0u; first < 16u * blocks; first += STEPS) {
        // Steps behind the row's end are empty; threads behind its last super-block keep nothing.
        let step = first + t;
        let b = step / 16u;
        let at = (slot * blocks * 256u + 16u * step) / 4u;
        var v0 = vec4<u32>(0u);
        var v1 = vec4<u32>(0u);
        var v2 = vec4<u32>(0u);
        var v3 = vec4<u32>(0u);
        if (16u * step < shape.inner_rows) {
            v0 = inner[at];
            v1 = inner[at + 1u];
            v2 = inner[at + 2u];
            v3 = inner[at + 3u];
        }
        let own = max(max(largest(v0), largest(v1)), max(largest(v2), largest(v3)));
        of_step[t] = own;
        workgroupBarrier();
        var most = 0u;
        for (var i = 0u; i < 16u; i++) {
            most = max(most, of_step[(t & 48u) + i]);
        }
        workgroupBarrier();

        let e = field(most);
        let poison = e > 227;
        let empty = e < 27 || poison;
        var f = e - 150 + select(14, 13, significand(most) <= 15605760u);
        var s = 0u;
        var q0 = vec4<i32>(0);
        var q1 = vec4<i32>(0);
        var q2 = vec4<i32>(0);
        var q3 = vec4<i32>(0);
        if (empty) {
            f = EMPTY;
        } else if (field(own) != 0) {
            let sh = u32(min(f - (field(own) - 150) - 10, 25));
            s = (((significand(own) + (1u << sh) - 1u) >> sh) + 130047u) / 130048u;
            // ceil(65536 / s): with it, (t · reciprocal) >> 16 = t / s for every t that occurs (at most 2055).
            let reciprocal = (65535u + s) / s;
            q0 = four(v0, f, s, reciprocal);
            q1 = four(v1, f, s, reciprocal);
            q2 = four(v2, f, s, reciprocal);
            q3 = four(v3, f, s, reciprocal);
        }
        let q = q0 + q1 + q2 + q3;
        let magnitudes = abs(q0) + abs(q1) + abs(q2) + abs(q3);
        of_step[t] = s * u32(magnitudes.x + magnitudes.y + magnitudes.z + magnitudes.w);
        workgroupBarrier();
        if (b < blocks) {
            let block_at = out + BLOCK_WORDS * b;
            let j = step % 16u;
            prepared[block_at + 4u * j] = packed(q0);
            prepared[block_at + 4u * j + 1u] = packed(q1);
            prepared[block_at + 4u * j + 2u] = packed(q2);
            prepared[block_at + 4u * j + 3u] = packed(q3);
            prepared[block_at + 64u + j] = s | (bitcast<u32>(i32(s) * (q.x + q.y + q.z + q.w)) << 16u);
            if (j == 0u) {
                var total = 0u;
                for (var i = 0u; i < 16u; i++) {
                    total += of_step[(t & 48u) + i];
                }
                let length = 32 - i32(countLeadingZeros(total));
                lengths[b] = length;
                exponents[b] = f + length;
                if (poison) {
                    atomicOr(&sums[shape.status_at + slots[slot].x], POISON);
                }
            }
        }
        workgroupBarrier();
    }

    var top = -1000;
    for (var b = 0u; b < blocks; b++) {
        if (lengths[b] > 0) {
            top = max(top, exponents[b]);
        }
    }
    let heads = out + BLOCK_WORDS * blocks;
    for (var b = t; b < blocks; b += STEPS) {
        // A super-block without values adds nothing, whatever the shift; this one is always legal.
        let drop = select(0, top - exponents[b], lengths[b] > 0);
        prepared[heads + b] = u32(lengths[b]) | (u32(min(drop, 255)) << 8u);
    }
    if (t == 0u) {
        prepared[heads + blocks] = bitcast<u32>(select(top, 0, top == -1000));
    }
}
