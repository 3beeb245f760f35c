//! A B+-tree: keys and references in the leaves, so that a lookup touches its own entry only.

use super::guarded::{Guarded, Ordered, Reference};

/// Maximum number of keys of a node.
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

/// Nodes are split when they are full, and go when they are empty (Johnson and Shasha, "B-trees
/// with inserts and deletes: why free-at-empty is better than merge-at-half", 1993).
pub struct BPlus {
    root: Node,
}

impl Default for BPlus {
    fn default() -> BPlus {
        BPlus { root: Node::Leaf { keys: Vec::new(), entries: Vec::new() } }
    }
}

impl Node {
    /// Adds a key. If the node had to be split, returns the right half and the least key below it.
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

    /// Removes a key. An inner node that loses its last child has no children then.
    fn remove(&mut self, key: u64) -> Option<Reference> {
        match self {
            Node::Leaf { keys, entries } => {
                let at = keys.binary_search(&key).ok()?;
                keys.remove(at);
                Some(entries.remove(at))
            }
            Node::Inner { keys, children } => {
                let at = keys.partition_point(|least| *least <= key);
                let removed = children[at].remove(key)?;
                if children[at].is_empty() {
                    children.remove(at);
                    // One of the keys beside it is not needed now: both neighbours' bounds hold.
                    if !keys.is_empty() {
                        keys.remove(at.saturating_sub(1));
                    }
                }
                Some(removed)
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Node::Leaf { keys, .. } => keys.is_empty(),
            Node::Inner { children, .. } => children.is_empty(),
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
        let removed = self.root.remove(key)?;
        // A root with one child is not needed.
        while let Node::Inner { children, .. } = &mut self.root {
            match children.len() {
                0 => *self = BPlus::default(),
                1 => self.root = children.pop().expect("there is one"),
                _ => break,
            }
        }
        Some(removed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::index::Entry;
    use super::*;
    use std::ptr::NonNull;

    impl Node {
        fn count(&self) -> usize {
            match self {
                Node::Leaf { .. } => 1,
                Node::Inner { children, .. } => 1 + children.iter().map(Node::count).sum::<usize>(),
            }
        }
    }

    fn reference() -> Reference {
        Reference::new(NonNull::<Entry>::dangling())
    }

    #[test]
    fn keys_that_rise_and_go_leave_no_nodes_behind() {
        const KEPT: u64 = 1000;
        let mut tree = BPlus::default();
        for key in 0..200 * KEPT {
            tree.insert(key, reference());
            assert!(key < KEPT || tree.remove(key - KEPT).is_some());
        }
        assert!(tree.root.count() < 60, "{} nodes for {KEPT} keys", tree.root.count());
        assert!((199 * KEPT..200 * KEPT).all(|key| tree.get(key).is_some()));
        assert!((198 * KEPT..199 * KEPT).all(|key| tree.get(key).is_none()));
        assert!((199 * KEPT..200 * KEPT).rev().all(|key| tree.remove(key).is_some()));
        assert_eq!(tree.root.count(), 1);
        tree.insert(7, reference());
        assert!(tree.get(7).is_some() && tree.remove(8).is_none());
    }

    #[test]
    fn it_has_what_a_map_has_while_nodes_come_and_go() {
        let (mut tree, mut map) = (BPlus::default(), std::collections::BTreeSet::new());
        let mut random = 1u64;
        for step in 0..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The tree grows and shrinks by turns.
            let (key, adds) = (random >> 40 & 0x1FFF, (step / 20_000) % 2 == 0);
            if adds && map.insert(key) {
                tree.insert(key, reference());
            } else if !adds {
                assert_eq!(tree.remove(key).is_some(), map.remove(&key));
            }
        }
        assert!((0..0x2000).all(|key| tree.get(key).is_some() == map.contains(&key)));
    }
}
