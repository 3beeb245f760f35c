//! A B+-tree in which everything is an object of its own: nodes, their keys, their pointers, and
//! records; the one that Jenga measures (§7.1.1), as `terrace-bench objects` builds it. Keys come
//! in an order of chance; then lookups read.

use super::{Event, Keys, ObjectId, ObjectSource, Request};
use crate::scattered::mixed;
use crate::source::SourceError;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

/// Children of a node, at most; one less key.
const ORDER: usize = 4;
const KEYS: usize = ORDER - 1;
/// Bytes of a node, its keys, its pointers, and a record.
const NODE_BYTES: u32 = 32;
const KEYS_BYTES: u32 = 8 * KEYS as u32;
const POINTERS_BYTES: u32 = 8 * ORDER as u32;
const RECORD_BYTES: u32 = 32;
/// Calling contexts: a leaf's three objects, an inner node's, and a record.
const LEAF: u32 = 0;
const INNER: u32 = 3;
const RECORD: u32 = 6;
/// Events of a block, about.
const BLOCK: usize = 4096;

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    keys: [u32; KEYS],
    len: u8,
    leaf: bool,
    /// Nodes, or a leaf's records.
    children: [u32; ORDER],
    /// Number of the object with the node's pointers; its keys and itself follow.
    object: ObjectId,
}

impl Node {
    /// How many of the keys are at most this one.
    fn place_of(&self, key: u32) -> usize {
        self.keys[..usize::from(self.len)].partition_point(|there| *there <= key)
    }
}

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Number of keys, at least 1.
    pub keys: u64,
    /// Exponent of the Zipf distribution of lookups; 0: uniform.
    pub theta: f64,
    /// Number of lookups after all keys are in.
    pub lookups: u64,
    /// Settles the order of keys and of lookups.
    pub seed: u64,
}

/// The program.
#[derive(Debug)]
pub struct Tree {
    lookups: u64,
    keys: Keys,
    to_insert: Vec<u32>,
    nodes: Vec<Node>,
    root: u32,
    objects: ObjectId,
}

impl Tree {
    /// Makes the tree before its first key.
    pub fn new(config: Config) -> Tree {
        let mut keys =
            Keys::new(config.keys, config.theta, SmallRng::seed_from_u64(mixed(config.seed)));
        let to_insert = keys.shuffled();
        Tree { lookups: config.lookups, keys, to_insert, nodes: Vec::new(), root: 0, objects: 0 }
    }

    fn make(
        &mut self,
        bytes: u32,
        context: u32,
        near: Option<ObjectId>,
        events: &mut Vec<Event>,
    ) -> ObjectId {
        events.push(Event::Allocated(Request { bytes: u64::from(bytes), context, near }));
        self.objects += 1;
        self.objects - 1
    }

    /// Makes a node. Pointers come first, as they are made before what holds them.
    fn make_node(&mut self, leaf: bool, events: &mut Vec<Event>) -> u32 {
        let context = if leaf { LEAF } else { INNER };
        let object = self.make(POINTERS_BYTES, context, None, events);
        self.make(KEYS_BYTES, context + 1, Some(object), events);
        self.make(NODE_BYTES, context + 2, Some(object), events);
        self.nodes.push(Node { leaf, object, ..Node::default() });
        self.nodes.len() as u32 - 1
    }

    fn insert(&mut self, key: u32, events: &mut Vec<Event>) {
        if self.nodes.is_empty() {
            self.root = self.make_node(true, events);
        }
        if let Some((between, right)) = self.insert_below(self.root, key, events) {
            let root = self.make_node(false, events);
            let node = &mut self.nodes[root as usize];
            (node.keys[0], node.len) = (between, 1);
            (node.children[0], node.children[1]) = (self.root, right);
            self.root = root;
        }
    }

    /// Inserts a key below a node. A node that had to be split gives its right half, and the least
    /// key below that.
    fn insert_below(&mut self, node: u32, key: u32, events: &mut Vec<Event>) -> Option<(u32, u32)> {
        let Node { leaf, len, children, .. } = self.nodes[node as usize];
        let (at, len) = (self.nodes[node as usize].place_of(key), usize::from(len));
        // The new key and child, and where it comes among the children.
        let (key, child, child_at) = if leaf {
            (key, self.make(RECORD_BYTES, RECORD, None, events), at)
        } else {
            let (between, child) = self.insert_below(children[at], key, events)?;
            (between, child, at + 1)
        };
        let there = &self.nodes[node as usize];
        let mut keys = there.keys[..len].to_vec();
        let mut children = there.children[..if leaf { len } else { len + 1 }].to_vec();
        keys.insert(at, key);
        children.insert(child_at, child);
        if len < KEYS {
            self.fill(node, &keys, &children);
            return None;
        }
        let right = self.make_node(leaf, events);
        let middle = keys.len() / 2;
        // An inner node's middle key goes up.
        let (between, after) = (keys[middle], if leaf { middle } else { middle + 1 });
        self.fill(node, &keys[..middle], &children[..after]);
        self.fill(right, &keys[after..], &children[after..]);
        Some((between, right))
    }

    fn fill(&mut self, node: u32, keys: &[u32], children: &[u32]) {
        let node = &mut self.nodes[node as usize];
        node.keys[..keys.len()].copy_from_slice(keys);
        node.children[..children.len()].copy_from_slice(children);
        node.len = keys.len() as u8;
    }

    fn look_up(&self, key: u32, events: &mut Vec<Event>) {
        let mut at = self.root;
        loop {
            let node = &self.nodes[at as usize];
            events.push(Event::read(node.object + 2, NODE_BYTES));
            events.push(Event::read(node.object + 1, KEYS_BYTES));
            events.push(Event::read(node.object, POINTERS_BYTES));
            let place = node.place_of(key);
            if node.leaf {
                assert!(place > 0 && node.keys[place - 1] == key, "key {key} is gone");
                events.push(Event::read(node.children[place - 1], RECORD_BYTES));
                return;
            }
            at = node.children[place];
        }
    }
}

impl ObjectSource for Tree {
    fn next_block(&mut self, events: &mut Vec<Event>) -> Result<(), SourceError> {
        events.clear();
        while events.len() < BLOCK {
            if let Some(key) = self.to_insert.pop() {
                self.insert(key, events);
            } else if self.lookups > 0 {
                self.lookups -= 1;
                let key = self.keys.next_key();
                self.look_up(key as u32, events);
            } else {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::for_each;

    /// Every lookup finds its key (it asserts that), in a tree whose leaves and inner nodes are at
    /// least half full.
    #[test]
    fn it_is_a_tree() {
        let config = Config { keys: 5000, theta: 0.0, lookups: 20_000, seed: 3 };
        let mut tree = Tree::new(config);
        let (mut objects, mut records, mut nodes, mut reads) = (0u32, 0, 0, 0);
        for_each(&mut tree, |event| match event {
            Event::Allocated(request) => {
                objects += 1;
                records += u32::from(request.context == RECORD);
                nodes += u32::from(request.context == LEAF || request.context == INNER);
            }
            Event::Touched { object, .. } => {
                assert!(object < objects);
                reads += 1;
            }
            _ => panic!("nothing is freed"),
        })
        .unwrap();
        assert_eq!((records, objects), (5000, 5000 + 3 * nodes));
        // Three keys a leaf at most and two at least, but for those that are split at once; and
        // inner nodes of two to four children above them.
        assert!((1700..3500).contains(&nodes), "{nodes}");
        let height = (reads / 20_000 - 1) / 3;
        assert!((6..12).contains(&height), "{height}");
        let mut keys = Vec::new();
        let mut waiting = vec![tree.root];
        while let Some(at) = waiting.pop() {
            let node = tree.nodes[at as usize];
            if node.leaf {
                keys.extend_from_slice(&node.keys[..usize::from(node.len)]);
            } else {
                waiting.extend(node.children[..=usize::from(node.len)].iter().rev());
            }
        }
        assert!(keys.iter().copied().eq(0..5000));
    }
}
