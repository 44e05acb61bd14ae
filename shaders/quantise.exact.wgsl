// Inner rows, as f32 bits, to prepared rows: one workgroup per slot, one thread per vector of 4 values.

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> slots: array<vec2<u32>>; // row, gate weight and grid
@group(0) @binding(2) var<storage, read> inner: array<vec4<u32>>; // slots × inner_blocks · 256, f32 bits
@group(0) @binding(3) var<storage, read_write> prepared: array<u32>; // slots × prepared row
@group(0) @binding(4) var<storage, read_write> sums: array<atomic<i32>>; // rows × outer_rows, then a status per row
@group(0) @binding(5) var<storage, read> tiles: array<vec4<u32>>; // one record: 0, first slot, slots, 0

const POISON: i32 = 2;
// F of a super-block without values.
const EMPTY: i32 = -128;
const THREADS: u32 = 128u;
const STEPS: u32 = THREADS / 4u;
const BLOCK_VECTORS: u32 = 64u;
const BLOCKS_MAX: u32 = 32u;

// Of the vectors under way: largest magnitude, then `Σ q` and `Σ |q|`.
var<workgroup> largest: array<u32, THREADS>;
var<workgroup> sums_of_q: array<vec2<i32>, THREADS>;
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

// Four values on the grid s · 2^F, rounded half away from zero.
fn quantised(bits: vec4<u32>, f: i32, s: u32) -> vec4<i32> {
    let e = vec4<i32>((bits >> vec4<u32>(23u)) & vec4<u32>(0xffu));
    let down = f + 150 - e;
    let d = vec4<u32>(clamp(down, vec4<i32>(1), vec4<i32>(24)));
    let significands = (bits & vec4<u32>(0x7fffffu)) | vec4<u32>(0x800000u);
    let t = (significands + (vec4<u32>(s) << (d - 1u))) >> d;
    // ceil(65536 / s): with it, (t · reciprocal) >> 16 = t / s for every t that occurs (at most 2055).
    let reciprocal = (65535u + s) / s;
    let q = vec4<i32>((t * reciprocal) >> vec4<u32>(16u));
    let signs = bits >= vec4<u32>(0x80000000u);
    let nothing = (e == vec4<i32>(0)) | (down > vec4<i32>(24));
    return select(select(q, -q, signs), vec4<i32>(0), nothing);
}

fn packed(q: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let slot = tiles[0].y + group.x;
    let blocks = shape.inner_blocks;
    let out = slot * 4u * row_vec4s(blocks);
    let own_step = t / 4u;
    let own_block = t / BLOCK_VECTORS * 16u;
    for (var first = 0u; first < BLOCK_VECTORS * blocks; first += THREADS) {
        // Vectors behind the row's end are empty; threads behind its last super-block keep nothing.
        let vector = first + t;
        let b = vector / BLOCK_VECTORS;
        var v = vec4<u32>(0u);
        if (4u * vector < shape.inner_rows) {
            v = inner[slot * blocks * BLOCK_VECTORS + vector];
        }
        let m = v & vec4<u32>(0x7fffffffu);
        largest[t] = max(max(m.x, m.y), max(m.z, m.w));
        workgroupBarrier();
        let step_at = 4u * own_step;
        let of_own = max(max(largest[step_at], largest[step_at + 1u]), max(largest[step_at + 2u], largest[step_at + 3u]));
        of_step[own_step] = of_own;
        workgroupBarrier();
        var most = 0u;
        for (var i = 0u; i < 16u; i++) {
            most = max(most, of_step[own_block + i]);
        }

        let e = field(most);
        let poison = e > 227;
        var f = e - 150 + select(14, 13, significand(most) <= 15605760u);
        var s = 0u;
        var q = vec4<i32>(0);
        if (e < 27 || poison) {
            f = EMPTY;
        } else if (field(of_own) != 0) {
            let sh = u32(min(f - (field(of_own) - 150) - 10, 25));
            s = (((significand(of_own) + (1u << sh) - 1u) >> sh) + 130047u) / 130048u;
            q = quantised(v, f, s);
        }
        let magnitudes = abs(q);
        sums_of_q[t] = vec2<i32>(q.x + q.y + q.z + q.w, magnitudes.x + magnitudes.y + magnitudes.z + magnitudes.w);
        workgroupBarrier();
        let sums_of_step =
            sums_of_q[step_at] + sums_of_q[step_at + 1u] + sums_of_q[step_at + 2u] + sums_of_q[step_at + 3u];
        of_step[own_step] = s * u32(sums_of_step.y);
        workgroupBarrier();
        if (b < blocks) {
            let block_at = out + BLOCK_WORDS * b;
            prepared[block_at + vector % BLOCK_VECTORS] = packed(q);
            if (t % 4u == 0u) {
                prepared[block_at + 64u + vector / 4u % 16u] = s | (bitcast<u32>(i32(s) * sums_of_step.x) << 16u);
            }
            if (t % BLOCK_VECTORS == 0u) {
                var total = 0u;
                for (var i = 0u; i < 16u; i++) {
                    total += of_step[own_block + i];
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
    for (var b = t; b < blocks; b += THREADS) {
        // A super-block without values adds nothing, whatever the shift; this one is always legal.
        let drop = select(0, top - exponents[b], lengths[b] > 0);
        prepared[heads + b] = u32(lengths[b]) | (u32(min(drop, 255)) << 8u);
    }
    if (t == 0u) {
        prepared[heads + blocks] = bitcast<u32>(select(top, 0, top == -1000));
    }
}
