// Eight neighbouring lanes of a subgroup share a super-block, so that they read neighbouring bytes.
const SPLIT: u32 = 8u;

// The sum over the eight lanes, in all of them.
fn shared_sum(column: Column) -> Column {
    let pairs = column + subgroupShuffleXor(column, 1u);
    let fours = pairs + subgroupShuffleXor(pairs, 2u);
    return fours + subgroupShuffleXor(fours, 4u);
}
