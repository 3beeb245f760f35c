//! A skip list (Pugh, "Skip lists: a probabilistic alternative to balanced trees", 1990). Its nodes
//! lie in one array and name each other by number; heights come from the key's hash.

use super::guarded::{Guarded, Ordered, Reference};
use super::index::hash;

/// A skip list under one lock.
pub type SkipList = Guarded<Levels>;

const HEIGHT: usize = 16;
/// The number of the node before all others.
const HEAD: u32 = 0;
/// The end of a list: no node.
const END: u32 = u32::MAX;

struct Node {
    key: u64,
    entry: Option<Reference>,
    /// The next node, at each level of this one.
    next: Vec<u32>,
}

/// The nodes.
pub struct Levels {
    nodes: Vec<Node>,
    unused: Vec<u32>,
}

impl Default for Levels {
    fn default() -> Levels {
        let head = Node { key: 0, entry: None, next: vec![END; HEIGHT] };
        Levels { nodes: vec![head], unused: Vec::new() }
    }
}

impl Levels {
    fn next(&self, node: u32, level: usize) -> u32 {
        self.nodes[node as usize].next[level]
    }

    /// The last node before the key, at each level.
    fn before(&self, key: u64) -> [u32; HEIGHT] {
        let (mut found, mut at) = ([HEAD; HEIGHT], HEAD);
        for level in (0..HEIGHT).rev() {
            loop {
                let next = self.next(at, level);
                if next == END || self.nodes[next as usize].key >= key {
                    break;
                }
                at = next;
            }
            found[level] = at;
        }
        found
    }

    /// The node of a key, and those before it.
    fn node(&self, key: u64) -> Option<(u32, [u32; HEIGHT])> {
        let before = self.before(key);
        let node = self.next(before[0], 0);
        (node != END && self.nodes[node as usize].key == key).then_some((node, before))
    }
}

impl Ordered for Levels {
    fn get(&self, key: u64) -> Option<&Reference> {
        let (node, _) = self.node(key)?;
        self.nodes[node as usize].entry.as_ref()
    }

    fn insert(&mut self, key: u64, entry: Reference) {
        let before = self.before(key);
        let height = (hash(key).trailing_ones() as usize + 1).min(HEIGHT);
        let next = (0..height).map(|level| self.next(before[level], level)).collect();
        let node = Node { key, entry: Some(entry), next };
        let number = match self.unused.pop() {
            Some(number) => {
                self.nodes[number as usize] = node;
                number
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        for (level, before) in before.iter().enumerate().take(height) {
            self.nodes[*before as usize].next[level] = number;
        }
    }

    fn remove(&mut self, key: u64) -> Option<Reference> {
        let (node, before) = self.node(key)?;
        let next = std::mem::take(&mut self.nodes[node as usize].next);
        for (level, next) in next.into_iter().enumerate() {
            self.nodes[before[level] as usize].next[level] = next;
        }
        self.unused.push(node);
        self.nodes[node as usize].entry.take()
    }
}
