// Four rows of activations per thread: weights are unpacked once for all of them.
alias Column = vec4<i32>;
alias ColumnU = vec4<u32>;
alias Starts = vec4<u32>;
const WIDTH: u32 = 4u;

struct Values {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

// Where the rows of a set of columns begin, in vec4. Columns behind the tile's last repeat it; nobody keeps them.
fn starts_of(tile: vec4<u32>, nth_set: u32, stride: u32) -> Starts {
    let first = tile.y;
    let last = tile.z - 1u;
    let i = 4u * nth_set;
    return stride * vec4<u32>(
        row_of(first + min(i, last)),
        row_of(first + min(i + 1u, last)),
        row_of(first + min(i + 2u, last)),
        row_of(first + min(i + 3u, last)),
    );
}

fn values(starts: Starts, at: u32) -> Values {
    return Values(rows[starts.x + at], rows[starts.y + at], rows[starts.z + at], rows[starts.w + at]);
}

fn words(starts: Starts, at: u32) -> Column {
    let first = 4u * starts + at;
    return bitcast<vec4<i32>>(vec4<u32>(row_words[first.x], row_words[first.y], row_words[first.z], row_words[first.w]));
}

fn dot16(x: vec4<u32>, w: vec4<u32>) -> i32 {
    return dot4I8Packed(x.x, w.x) + dot4I8Packed(x.y, w.y) + dot4I8Packed(x.z, w.z) + dot4I8Packed(x.w, w.w);
}

fn dots(x: Values, w: vec4<u32>) -> Column {
    return vec4<i32>(dot16(x.a, w), dot16(x.b, w), dot16(x.c, w), dot16(x.d, w));
}

fn nth(column: Column, i: u32) -> i32 {
    return column[i];
}
