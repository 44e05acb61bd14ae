// Shape of a class of experts stored as floats, for the plain f32 kernels: no promise across devices.
struct Shape {
    // vec4 of a row of gate and up, and of a row of down; rows of activations are padded to 8 elements.
    outer_vec4s: u32,
    inner_vec4s: u32,
    // f32 vec4 of a hidden state and of an inner row.
    hidden_vec4s: u32,
    inner_row_vec4s: u32,
    // Rows of gate and up (the intermediate size), and of down (the hidden size).
    inner_rows: u32,
    outer_rows: u32,
    // Where up and down begin, in vec4 from the expert's start; gate begins at 0.
    up_at: u32,
    down_at: u32,
}

// A thread's place in its workgroup: which weight row, which row of activations, which share of the row.
struct Place {
    row: u32,
    nth_set: u32,
    lane: u32,
}

fn place(group: u32, t: u32) -> Place {
    return Place(group * ROWS + t / (LANES * SETS), (t / LANES) % SETS, t % LANES);
}
