// Four f32 weights of a vec4.
fn weight_dot(w: vec4<u32>, row: u32, i: u32) -> f32 {
    return dot(bitcast<vec4<f32>>(w), rows[row + i]);
}
