// Streams memory as the expert kernels do, in whole vectors, to find how fast it can be read; the XOR of all of it
// proves that nothing was skipped. WORKGROUP is generated in front.

@group(0) @binding(0) var<storage, read> memory: array<vec4<u32>>; // any number
@group(0) @binding(1) var<storage, read_write> sums: array<vec4<u32>>; // one per thread

// Neighbouring threads read neighbouring vectors, four of a thread under way at once.
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let threads = groups.x * WORKGROUP;
    let count = arrayLength(&memory);
    var a = vec4<u32>(0u);
    var b = vec4<u32>(0u);
    var c = vec4<u32>(0u);
    var d = vec4<u32>(0u);
    var i = id.x;
    for (; i + 3u * threads < count; i += 4u * threads) {
        a ^= memory[i];
        b ^= memory[i + threads];
        c ^= memory[i + 2u * threads];
        d ^= memory[i + 3u * threads];
    }
    for (; i < count; i += threads) {
        a ^= memory[i];
    }
    sums[id.x] = a ^ b ^ c ^ d;
}
