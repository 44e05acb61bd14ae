// Q4_0, eight blocks of 32 as one super-block of 9 vec4: the eight f16 scales, then the nibbles; the low nibbles of a
// block are its first 16 weights, the high ones its last 16.
const GROWTH: i32 = 3;
const OFFSET: i32 = 8;
const BLOCK_SCALES: bool = true;
const HAS_MINIMA: bool = false;
const BLOCK_VEC4S: u32 = 9u;

fn weight_row_vec4s(blocks: u32) -> u32 {
    return blocks * BLOCK_VEC4S;
}

fn weight_part(row: u32, b: u32, p: u32) -> Part {
    let nibbles = weights[row + b * BLOCK_VEC4S + 1u + p];
    return Part(
        nibbles & vec4<u32>(0x0f0f0f0fu),
        (nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu),
        vec2<u32>(2u * p, 2u * p + 1u),
        vec2<i32>(1, 1),
        vec2<i32>(0, 0),
    );
}

// f16 bits of the scale of block p.
fn weight_scales(row: u32, b: u32, p: u32, blocks: u32) -> vec2<u32> {
    let word = weights[row + b * BLOCK_VEC4S][p / 2u];
    return vec2<u32>((word >> (16u * (p % 2u))) & 0xffffu, 0u);
}
