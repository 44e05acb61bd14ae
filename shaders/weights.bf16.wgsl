// Eight bf16 weights of a vec4: the upper halves of f32.
fn weight_dot(w: vec4<u32>, row: u32, i: u32) -> f32 {
    let even = bitcast<vec4<f32>>(w << vec4<u32>(16u));
    let odd = bitcast<vec4<f32>>(w & vec4<u32>(0xffff0000u));
    let a = rows[row + 2u * i];
    let b = rows[row + 2u * i + 1u];
    return dot(even, vec4<f32>(a.xz, b.xz)) + dot(odd, vec4<f32>(a.yw, b.yw));
}
