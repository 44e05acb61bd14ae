// Fills memory with numbers that follow from their place, for `read.any.wgsl` to add up. WORKGROUP is generated in
// front.

@group(0) @binding(0) var<storage, read_write> memory: array<vec4<u32>>; // any number

// `bandwidth.rs` computes the same.
fn content(i: u32) -> vec4<u32> {
    let h = (i ^ (i >> 15u)) * 0x2c1b3c6du;
    return vec4<u32>(h, h ^ (h >> 12u), i, ~h);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let threads = groups.x * WORKGROUP;
    for (var i = id.x; i < arrayLength(&memory); i += threads) {
        memory[i] = content(i);
    }
}
