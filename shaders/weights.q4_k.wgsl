// Q4_K as stored: 9 vec4 per super-block. d and dmin (f16), 6-bit scales and minima of 8 sub-blocks of 32, then nibbles:
// vec4 p holds 16 weights of sub-block 2·(p/2) in its low and 16 of the next one in its high nibbles.
const GROWTH: i32 = 10;
const OFFSET: i32 = 0;
const BLOCK_SCALES: bool = false;
const HAS_MINIMA: bool = true;
const BLOCK_VEC4S: u32 = 9u;

fn weight_row_vec4s(blocks: u32) -> u32 {
    return blocks * BLOCK_VEC4S;
}

fn weight_part(row: u32, b: u32, p: u32) -> Part {
    let at = row + b * BLOCK_VEC4S;
    let head = weights[at];
    let nibbles = weights[at + 1u + p];
    let pair = p / 2u;
    let late = pair > 1u;
    let shift = (pair % 2u) * 16u;
    let late_factors = (head.w & 0x0f0f0f0fu) | (((head.y >> 6u) & 0x03030303u) << 4u);
    let late_minima = ((head.w >> 4u) & 0x0f0f0f0fu) | (((head.z >> 6u) & 0x03030303u) << 4u);
    let factors = select(head.y & 0x3f3f3f3fu, late_factors, late) >> shift;
    let minima = select(head.z & 0x3f3f3f3fu, late_minima, late) >> shift;
    let step = 4u * pair + p % 2u;
    return Part(
        nibbles & vec4<u32>(0x0f0f0f0fu),
        (nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu),
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
