//! A B+-tree: keys and references in the leaves, so that a lookup touches its own entry only.

use super::guarded::{Guarded, Ordered, Reference};

/// Most keys of a node.
const KEYS: usize = 64;

/// A B+-tree under one lock.
pub type Tree = Guarded<BPlus>;

enum Node {
    Leaf {
        keys: Vec<u64>,
        entries: Vec<Reference>,
    },
    /// `keys[n]` is the least key below `children[n + 1]`.
    Inner {
        keys: Vec<u64>,
        children: Vec<Node>,
    },
}

/// Nodes are split when they are full; one that becomes empty stays.
pub struct BPlus {
    root: Node,
}

impl Default for BPlus {
    fn default() -> BPlus {
        BPlus { root: Node::Leaf { keys: Vec::new(), entries: Vec::new() } }
    }
}

impl Node {
    /// Adds a key; where the node had to be split, the right half and the least key below it.
    fn insert(&mut self, key: u64, entry: Reference) -> Option<(u64, Node)> {
        match self {
            Node::Leaf { keys, entries } => {
                let at = keys.partition_point(|other| *other < key);
                keys.insert(at, key);
                entries.insert(at, entry);
                (keys.len() > KEYS).then(|| {
                    let (keys, entries) = (keys.split_off(KEYS / 2), entries.split_off(KEYS / 2));
                    (keys[0], Node::Leaf { keys, entries })
                })
            }
            Node::Inner { keys, children } => {
                let at = keys.partition_point(|least| *least <= key);
                let (least, right) = children[at].insert(key, entry)?;
                keys.insert(at, least);
                children.insert(at + 1, right);
                (keys.len() > KEYS).then(|| {
                    let right = keys.split_off(KEYS / 2 + 1);
                    let least = keys.pop().expect("half of them are left");
                    let children = children.split_off(KEYS / 2 + 1);
                    (least, Node::Inner { keys: right, children })
                })
            }
        }
    }
}

impl Ordered for BPlus {
    fn get(&self, key: u64) -> Option<&Reference> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Inner { keys, children } => {
                    node = &children[keys.partition_point(|least| *least <= key)];
                }
                Node::Leaf { keys, entries } => {
                    return keys.binary_search(&key).ok().map(|at| &entries[at]);
                }
            }
        }
    }

    fn insert(&mut self, key: u64, entry: Reference) {
        if let Some((least, right)) = self.root.insert(key, entry) {
            let empty = Node::Inner { keys: Vec::new(), children: Vec::new() };
            let left = std::mem::replace(&mut self.root, empty);
            self.root = Node::Inner { keys: vec![least], children: vec![left, right] };
        }
    }

    fn remove(&mut self, key: u64) -> Option<Reference> {
        let mut node = &mut self.root;
        loop {
            match node {
                Node::Inner { keys, children } => {
                    node = &mut children[keys.partition_point(|least| *least <= key)];
                }
                Node::Leaf { keys, entries } => {
                    let at = keys.binary_search(&key).ok()?;
                    keys.remove(at);
                    return Some(entries.remove(at));
                }
            }
        }
    }
}
