// Q6_K, 13 vec4 per super-block as stored (low nibbles, upper bit pairs, i8 scales of 16 steps); the f16 scales, which
// would break the alignment, stand behind all super-blocks of the row. Part p = 4·n + v of half n: vec4 p of the low
// nibbles holds steps 8·n + v (low) and 8·n + 4 + v (high); their upper bits are in vec4 v mod 2 of the half's.
const GROWTH: i32 = 12;
const OFFSET: i32 = 32;
const BLOCK_SCALES: bool = false;
const HAS_MINIMA: bool = false;
const BLOCK_VEC4S: u32 = 13u;

fn weight_row_vec4s(blocks: u32) -> u32 {
    return blocks * BLOCK_VEC4S + (blocks + 7u) / 8u;
}

fn signed_byte(word: u32, i: u32) -> i32 {
    return (bitcast<i32>(word) << (24u - 8u * i)) >> 24u;
}

fn weight_part(row: u32, b: u32, p: u32) -> Part {
    let at = row + b * BLOCK_VEC4S;
    let nibbles = weights[at + p];
    let n = p / 4u;
    let v = p % 4u;
    let uppers = weights[at + 8u + 2u * n + v % 2u] >> vec4<u32>(2u * (v / 2u));
    let scales = weights[at + 12u];
    let step = 8u * n + v;
    return Part(
        (nibbles & vec4<u32>(0x0f0f0f0fu)) | ((uppers & vec4<u32>(0x03030303u)) << vec4<u32>(4u)),
        ((nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu)) | (uppers & vec4<u32>(0x30303030u)),
        vec2<u32>(step, step + 4u),
        vec2<i32>(
            signed_byte(select(scales.x, scales.z, n == 1u), v),
            signed_byte(select(scales.y, scales.w, n == 1u), v),
        ),
        vec2<i32>(0, 0),
    );
}

// f16 bits of the scale.
fn weight_scales(row: u32, b: u32, p: u32, blocks: u32) -> vec2<u32> {
    let word = weights[row + blocks * BLOCK_VEC4S + b / 8u][(b / 2u) % 4u];
    return vec2<u32>((word >> (16u * (b % 2u))) & 0xffffu, 0u);
}
