// Q5_K as stored: 11 vec4 per super-block. As Q4_K, with the fifth bits of all 256 weights in vec4 1 and 2: bit 2·j and
// 2·j + 1 of byte l belong to weight l of sub-blocks 2·j and 2·j + 1.
const GROWTH: i32 = 11;
const OFFSET: i32 = 0;
const BLOCK_SCALES: bool = false;
const HAS_MINIMA: bool = true;
const BLOCK_VEC4S: u32 = 11u;

fn weight_row_vec4s(blocks: u32) -> u32 {
    return blocks * BLOCK_VEC4S;
}

fn weight_part(row: u32, b: u32, p: u32) -> Part {
    let at = row + b * BLOCK_VEC4S;
    let head = weights[at];
    let fifths = weights[at + 1u + p % 2u];
    let nibbles = weights[at + 3u + p];
    let pair = p / 2u;
    let late = pair > 1u;
    let shift = (pair % 2u) * 16u;
    let late_factors = (head.w & 0x0f0f0f0fu) | (((head.y >> 6u) & 0x03030303u) << 4u);
    let late_minima = ((head.w >> 4u) & 0x0f0f0f0fu) | (((head.z >> 6u) & 0x03030303u) << 4u);
    let factors = select(head.y & 0x3f3f3f3fu, late_factors, late) >> shift;
    let minima = select(head.z & 0x3f3f3f3fu, late_minima, late) >> shift;
    let step = 4u * pair + p % 2u;
    let first_fifths = ((fifths >> vec4<u32>(2u * pair)) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
    let second_fifths = ((fifths >> vec4<u32>(2u * pair + 1u)) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
    return Part(
        (nibbles & vec4<u32>(0x0f0f0f0fu)) | first_fifths,
        ((nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu)) | second_fifths,
        vec2<u32>(step, step + 2u),
        vec2<i32>(i32(factors & 63u), i32((factors >> 8u) & 63u)),
        vec2<i32>(i32(minima & 63u), i32((minima >> 8u) & 63u)),
    );
}

// f16 bits of the scale, and of the minima's scale.
fn weight_scales(row: u32, b: u32, p: u32, blocks: u32) -> vec2<u32> {
    let both = weights[row + b * BLOCK_VEC4S].x;
    return vec2<u32>(both & 0xffffu, both >> 16u);
}
