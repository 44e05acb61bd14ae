// What the exact kernels share: how rows lie in memory, and the one rounding step of a weight block.
//
// Everything here is integer arithmetic on 32 bits with defined results: the same bytes on every device.
//
// A prepared row (a hidden state or an inner row) of n super-blocks, in words:
//   80·b + 4·j ..   the 16 values of step j of super-block b, i8 each
//   80·b + 64 + j   step j: its scale (0..15) in the low half, scale · (sum of its values) in the high half
//   80·n + b        super-block b: L (0..19) in the low byte, Emax − E (0..255) above it
//   80·n + n        Emax of the row
// padded to whole vec4.

// Shape of a class of experts, in words of the tables above.
struct Shape {
    // Super-blocks of a row of gate and up, and of a row of down.
    outer_blocks: u32,
    inner_blocks: u32,
    // Rows of gate and up (the intermediate size), and of down (the hidden size).
    inner_rows: u32,
    outer_rows: u32,
    // Where the parts of an expert begin, in vec4 from its start; gate begins at 0.
    up_at: u32,
    down_at: u32,
    // Row exponents, one i8 per row.
    gate_exponents_at: u32,
    up_exponents_at: u32,
    down_exponents_at: u32,
    // Index of the first status word behind the sums.
    status_at: u32,
    pad_a: u32,
    pad_b: u32,
}

// Words of a prepared super-block.
const BLOCK_WORDS: u32 = 80u;
// Bits that every term is rounded by at least.
const GUARD: i32 = 17;

fn row_vec4s(blocks: u32) -> u32 {
    return blocks * (BLOCK_WORDS / 4u) + blocks / 4u + 1u;
}
