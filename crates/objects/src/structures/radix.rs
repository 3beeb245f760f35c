//! A radix tree: a byte of the key at each level, the highest first.

use super::guarded::{Guarded, Ordered, Reference};

/// A radix tree under one lock.
pub type Radix = Guarded<Digits>;

const LEVELS: u32 = 8;

#[derive(Default)]
enum Node {
    #[default]
    Empty,
    Inner(Box<[Node; 256]>),
    /// The only key below, and its entry.
    Leaf(u64, Reference),
}

/// Nodes; a branch of one key is a leaf. One that becomes empty stays.
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
        while let Node::Inner(below) = node {
            node = &below[digit(key, level)];
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
                let mut below = Box::new([const { Node::Empty }; 256]);
                below[at] = std::mem::take(node);
                *node = Node::Inner(below);
            }
            match node {
                Node::Inner(below) => node = &mut below[digit(key, level)],
                Node::Empty => return *node = Node::Leaf(key, entry),
                Node::Leaf(..) => unreachable!("it went a level down"),
            }
            level += 1;
        }
    }

    fn remove(&mut self, key: u64) -> Option<Reference> {
        let (mut node, mut level) = (&mut self.root, 0);
        while let Node::Inner(below) = node {
            node = &mut below[digit(key, level)];
            level += 1;
        }
        match node {
            Node::Leaf(other, _) if *other == key => match std::mem::take(node) {
                Node::Leaf(_, entry) => Some(entry),
                _ => None,
            },
            _ => None,
        }
    }
}
