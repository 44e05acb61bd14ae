// What the subgroups of this device really are: their size, whether neighbouring threads are neighbouring lanes, and
// whether three shuffles add up eight neighbours.

@group(0) @binding(0) var<storage, read_write> seen: array<vec4<u32>>; // per thread: lane, size, sum of eight, own value

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) size: u32,
) {
    let place = group.x * 128u + t;
    let own = (place + 1u) * 0x9e3779b9u;
    let pairs = own + subgroupShuffleXor(own, 1u);
    let fours = pairs + subgroupShuffleXor(pairs, 2u);
    let eights = fours + subgroupShuffleXor(fours, 4u);
    seen[place] = vec4<u32>(lane, size, eights, own);
}
