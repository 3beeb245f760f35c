//! A radix tree: a byte of the key at each level, the highest first.

use super::guarded::{Guarded, Ordered, Reference};

/// A radix tree under one lock.
pub type Radix = Guarded<Digits>;

const LEVELS: u32 = 8;

#[derive(Default)]
enum Node {
    #[default]
    Empty,
    Inner(Box<Inner>),
    /// A single key, and its entry.
    Leaf(u64, Reference),
}

struct Inner {
    below: [Node; 256],
    /// Number of children that are not empty.
    count: u16,
}

/// Nodes; a branch of one key is a leaf, also when the others have gone.
#[derive(Default)]
pub struct Digits {
    root: Node,
}

fn digit(key: u64, level: u32) -> usize {
    (key >> (8 * (LEVELS - 1 - level)) & 0xFF) as usize
}

impl Ordered for Digits {
    fn get(&self, key: u64) -> Option<&Reference> {
        let (mut node, mut level) = (&self.root, 0);
        while let Node::Inner(inner) = node {
            node = &inner.below[digit(key, level)];
            level += 1;
        }
        match node {
            Node::Leaf(other, entry) if *other == key => Some(entry),
            _ => None,
        }
    }

    fn insert(&mut self, key: u64, entry: Reference) {
        let (mut node, mut level) = (&mut self.root, 0);
        loop {
            if let Node::Leaf(other, _) = node {
                // Two keys: the other one goes a level down.
                let at = digit(*other, level);
                let mut inner = Box::new(Inner { below: [const { Node::Empty }; 256], count: 1 });
                inner.below[at] = std::mem::take(node);
                *node = Node::Inner(inner);
            }
            match node {
                Node::Inner(inner) => {
                    node = &mut inner.below[digit(key, level)];
                    inner.count += u16::from(matches!(node, Node::Empty));
                }
                Node::Empty => return *node = Node::Leaf(key, entry),
                Node::Leaf(..) => unreachable!("it went a level down"),
            }
            level += 1;
        }
    }

    fn remove(&mut self, key: u64) -> Option<Reference> {
        self.root.remove(key, 0)
    }
}

impl Node {
    /// Removes a key below. A branch that has one key left becomes its leaf, up to the root.
    fn remove(&mut self, key: u64, level: u32) -> Option<Reference> {
        let inner = match self {
            Node::Inner(inner) => inner,
            Node::Leaf(other, _) if *other == key => match std::mem::take(self) {
                Node::Leaf(_, entry) => return Some(entry),
                _ => unreachable!("it is a leaf"),
            },
            _ => return None,
        };
        let at = digit(key, level);
        let removed = inner.below[at].remove(key, level + 1)?;
        let only = match inner.below[at] {
            Node::Empty => {
                inner.count -= 1;
                let is_left = |node: &Node| !matches!(node, Node::Empty);
                (inner.count == 1).then(|| inner.below.iter().position(is_left)).flatten()
            }
            _ => (inner.count == 1).then_some(at),
        };
        if let Some(only) = only
            && let Node::Leaf(..) = inner.below[only]
        {
            let leaf = std::mem::take(&mut inner.below[only]);
            *self = leaf;
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
                Node::Inner(inner) => 1 + inner.below.iter().map(Node::count).sum::<usize>(),
                _ => 0,
            }
        }
    }

    fn reference() -> Reference {
        Reference::new(NonNull::<Entry>::dangling())
    }

    #[test]
    fn keys_that_rise_and_go_leave_no_nodes_behind() {
        const KEPT: u64 = 1000;
        let mut digits = Digits::default();
        for key in 0..200 * KEPT {
            digits.insert(key, reference());
            assert!(key < KEPT || digits.remove(key - KEPT).is_some());
        }
        // Levels above, and one for 256 keys.
        let nodes = digits.root.count();
        assert!(nodes < 20, "{nodes} nodes for {KEPT} keys");
        assert!((199 * KEPT..200 * KEPT).all(|key| digits.get(key).is_some()));
        assert!((199 * KEPT..200 * KEPT).rev().all(|key| digits.remove(key).is_some()));
        assert!(matches!(digits.root, Node::Empty));
    }

    #[test]
    fn a_branch_of_one_key_is_a_leaf_again() {
        let mut digits = Digits::default();
        [1, 2, 1 << 60].into_iter().for_each(|key| digits.insert(key, reference()));
        assert_eq!(digits.root.count(), 8);
        assert!(digits.remove(3).is_none() && digits.remove(2).is_some());
        assert_eq!(digits.root.count(), 1, "the first byte tells them apart");
        assert!(digits.remove(1 << 60).is_some());
        assert!(matches!(digits.root, Node::Leaf(1, _)) && digits.get(1).is_some());
    }
}
