// Q8_0, eight blocks of 32 as one super-block of 17 vec4: the eight f16 scales, then the weights.
const GROWTH: i32 = 7;
const OFFSET: i32 = 0;
const BLOCK_SCALES: bool = true;
const HAS_MINIMA: bool = false;
const BLOCK_VEC4S: u32 = 17u;

fn weight_row_vec4s(blocks: u32) -> u32 {
    return blocks * BLOCK_VEC4S;
}

fn weight_part(row: u32, b: u32, p: u32) -> Part {
    let at = row + b * BLOCK_VEC4S + 1u + 2u * p;
    return Part(
        weights[at],
        weights[at + 1u],
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
