// Eight f16 weights of a vec4.
fn weight_dot(w: vec4<u32>, row: u32, i: u32) -> f32 {
    let first = vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
    let second = vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w));
    return dot(first, rows[row + 2u * i]) + dot(second, rows[row + 2u * i + 1u]);
}
