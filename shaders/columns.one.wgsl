// One row of activations per thread.
alias Column = i32;
alias ColumnU = u32;
alias Starts = u32;
alias Values = vec4<u32>;
const WIDTH: u32 = 1u;

// Where the rows of a set of columns begin, in vec4.
fn starts_of(tile: vec4<u32>, nth_set: u32, stride: u32) -> Starts {
    return row_of(tile.y + min(nth_set, tile.z - 1u)) * stride;
}

fn values(starts: Starts, at: u32) -> Values {
    return rows[starts + at];
}

fn words(starts: Starts, at: u32) -> Column {
    return bitcast<i32>(row_words[4u * starts + at]);
}

fn dots(x: Values, w: vec4<u32>) -> Column {
    return dot4I8Packed(x.x, w.x) + dot4I8Packed(x.y, w.y) + dot4I8Packed(x.z, w.z) + dot4I8Packed(x.w, w.w);
}

fn nth(column: Column, i: u32) -> i32 {
    return column;
}
