// 32 weights of one super-block, unpacked to signed bytes: two steps of 16.
struct Part {
    first: vec4<u32>,
    second: vec4<u32>,
    // Which steps of the row they meet.
    steps: vec2<u32>,
    // Integer scales of the two steps, and their minima where the type has them.
    factors: vec2<i32>,
    minima: vec2<i32>,
}

// Totals of one super-block or block: `Σ factor · s · q · weight` and `Σ minimum · s · q`.
struct Totals {
    products: Column,
    minima: Column,
}

fn part_totals(part: Part, starts: Starts, block_at: u32) -> Totals {
    let meta_a = words(starts, block_at + 64u + part.steps.x);
    let meta_b = words(starts, block_at + 64u + part.steps.y);
    let sum_a = meta_a >> ColumnU(16u);
    let sum_b = meta_b >> ColumnU(16u);
    let dot_a = dots(values(starts, block_at / 4u + part.steps.x), part.first);
    let dot_b = dots(values(starts, block_at / 4u + part.steps.y), part.second);
    let scaled_a = (meta_a & Column(15)) * dot_a - OFFSET * sum_a;
    let scaled_b = (meta_b & Column(15)) * dot_b - OFFSET * sum_b;
    return Totals(
        part.factors.x * scaled_a + part.factors.y * scaled_b,
        part.minima.x * sum_a + part.minima.y * sum_b,
    );
}

// `rsh(m · (total << up), down − e)` for the f16 scale m · 2^e: a block's term, on the row's common exponent.
// 32 bits suffice: |total << up| < 2^31, |m| < 2^11, and a shift beyond 46 gives 0 like one of 46.
fn term(scale: u32, total: Column, up: ColumnU, down: Column) -> Column {
    let field = (scale >> 10u) & 31u;
    let magnitude = i32((scale & 0x3ffu) | select(0u, 0x400u, field != 0u));
    let m = select(magnitude, -magnitude, (scale & 0x8000u) != 0u);
    let e = i32(max(field, 1u)) - 25;
    let v = total << up;
    let t = m * (v >> ColumnU(16u)) + ((m * (v & Column(0xffff))) >> ColumnU(16u));
    let shift = ColumnU(min(down - e - 16, Column(30)));
    return (t + (Column(1) << (shift - 1u))) >> shift;
}

// What super-block b of a weight row adds to its dot products, or, when SPLIT lanes share a super-block, this lane's
// share of it; only the first lane of those that share gets what all have computed together.
fn block_dot(row: u32, exponent: i32, b: u32, lane: u32, starts: Starts, blocks: u32) -> Column {
    let head = words(starts, BLOCK_WORDS * blocks + b);
    let up = ColumnU(Column(31 - GROWTH) - (head & Column(0xff)));
    let down = Column(GUARD + exponent) + (head >> ColumnU(8u));
    let block_at = BLOCK_WORDS * b;
    var sum = Column(0);
    if (BLOCK_SCALES) {
        for (var p = lane % SPLIT; p < 8u; p += SPLIT) {
            let totals = part_totals(weight_part(row, b, p), starts, block_at);
            sum += term(weight_scales(row, b, p, blocks).x, totals.products, up, down);
        }
        return sum;
    }
    var products = Column(0);
    var minima = Column(0);
    for (var p = lane % SPLIT; p < 8u; p += SPLIT) {
        let totals = part_totals(weight_part(row, b, p), starts, block_at);
        products += totals.products;
        minima += totals.minima;
    }
    products = shared_sum(products);
    let scales = weight_scales(row, b, 0u, blocks);
    sum = term(scales.x, products, up, down);
    if (HAS_MINIMA) {
        sum -= term(scales.y, shared_sum(minima), up, down);
    }
    return select(Column(0), sum, lane % SPLIT == 0u);
}

// Exponent of a weight row: one i8 of the table at `at`.
fn row_exponent(at: u32, r: u32) -> i32 {
    let word = weights[at + r / 16u][(r / 4u) % 4u];
    return (bitcast<i32>(word) << (24u - 8u * (r % 4u))) >> 24u;
}

// A thread's place in its workgroup: which weight row, which set of columns, which share of the row.
struct Place {
    row: u32,
    nth_set: u32,
    lane: u32,
}

fn place(group: u32, t: u32) -> Place {
    return Place(group * ROWS + t / (LANES * SETS), (t / LANES) % SETS, t % LANES);
}
