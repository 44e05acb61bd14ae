//! The tree over what wallets were paid, so that one signature vouches for every leaf and each wallet can show its own.
//!
//! `leaf = SHA-256(0x00 ‖ address 32 ‖ lifetime nano-KVR u64)`, `node = SHA-256(0x01 ‖ the lesser child ‖ the greater)`,
//! a node without a neighbour goes up as it is; leaves are in the order of their addresses. Why sorted children: a proof
//! is then a list of hashes without sides, which is what contracts that pay from such a tree take.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::types::{Hex, NanoKvr, PublicKey};

/// A node of the tree.
pub type Node = Hex<32>;

/// What a wallet was paid over its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Leaf {
    /// The wallet.
    pub address: PublicKey,
    /// All of it, so that a payer who knows what was paid before pays the rest, once.
    pub lifetime_nano_kvr: NanoKvr,
}

impl Leaf {
    fn node(&self) -> Node {
        hash(&[&[0], &self.address.0, &self.lifetime_nano_kvr.0.to_le_bytes()])
    }

    /// Whether the leaf is in the tree of `root`.
    #[must_use]
    pub fn is_proven(&self, proof: &[Node], root: &Node) -> bool {
        proof.iter().fold(self.node(), |node, neighbour| parent(&node, neighbour)) == *root
    }
}

fn hash(parts: &[&[u8]]) -> Node {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    Hex(hash.finalize().into())
}

fn parent(a: &Node, b: &Node) -> Node {
    hash(&[&[1], &a.min(b).0, &a.max(b).0])
}

/// The next level of the tree.
fn above(level: &[Node]) -> Vec<Node> {
    let pair = |pair: &[Node]| match pair {
        [a, b] => parent(a, b),
        rest => rest.first().copied().unwrap_or(Hex([0; 32])),
    };
    level.chunks(2).map(pair).collect()
}

/// The root over leaves in their order; 32 zeros over none.
#[must_use]
pub fn root(leaves: &[Leaf]) -> Node {
    let mut level: Vec<Node> = leaves.iter().map(Leaf::node).collect();
    while level.len() > 1 {
        level = above(&level);
    }
    level.first().copied().unwrap_or(Hex([0; 32]))
}

/// The nodes that lead from the leaf at `index` to the root.
#[must_use]
pub fn proof(leaves: &[Leaf], mut index: usize) -> Vec<Node> {
    let mut level: Vec<Node> = leaves.iter().map(Leaf::node).collect();
    let mut proof = Vec::new();
    while level.len() > 1 {
        proof.extend(level.get(index ^ 1));
        level = above(&level);
        index /= 2;
    }
    proof
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: u8) -> Vec<Leaf> {
        (0..count).map(|n| Leaf { address: PublicKey([n; 32]), lifetime_nano_kvr: NanoKvr(u64::from(n) + 1) }).collect()
    }

    #[test]
    fn every_leaf_is_proven_and_no_other() {
        for count in 1..20 {
            let leaves = leaves(count);
            let root = root(&leaves);
            for (index, leaf) in leaves.iter().enumerate() {
                let proof = proof(&leaves, index);
                assert!(leaf.is_proven(&proof, &root), "{index} of {count}");
                let more = Leaf { lifetime_nano_kvr: NanoKvr(leaf.lifetime_nano_kvr.0 + 1), ..*leaf };
                assert!(!more.is_proven(&proof, &root));
            }
        }
    }

    /// Computed with Python's hashlib by the rules of the module's header.
    #[test]
    fn the_root_of_three_leaves_is_this() {
        assert_eq!(root(&leaves(1)).to_string(), "772c8ab76fe2a61c8206eb4a51b27dad65dc18fc29f9a2b8cf01e21b5de21078");
        assert_eq!(root(&leaves(3)).to_string(), "b49820bb5fd9bacc71399179f22214f5f2beaa40fc1ab8a4055d47f097fc893f");
        assert_eq!(root(&[]), Hex([0; 32]));
    }
}
