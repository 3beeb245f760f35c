//! A B+-tree: built by inserts in random order, and looked up, low keys more often.

use super::program::{Batch, Program, addresses};
use super::truth::Watch;
use crate::load::args::MemoryArguments;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use terrace_sim::scattered::{Scattered, mixed};

/// Words of a node, which is a quarter of a page.
const NODE: usize = 128;
/// A node's first word: how many children or records it has.
const COUNT: usize = 0;
/// An inner node: from here on the least key below each child but the first, and from there on its
/// children.
const KEYS: usize = 1;
const CHILDREN: usize = 64;
/// A leaf: from here on records, each in a line of its own.
const RECORDS: usize = 8;
/// Words of a record: key, how often it was written, and contents.
const RECORD: usize = 8;
const WRITES: usize = 1;
/// Most children of an inner node, and most records of a leaf.
const CHILDREN_MOST: u64 = (NODE - CHILDREN) as u64;
const RECORDS_MOST: u64 = ((NODE - RECORDS) / RECORD) as u64;
/// Lookups of a batch.
const BATCH: u64 = 64;
/// Keys a node, on average, with which a tree stays within the memory that was asked for. Inserts
/// in random order fill nodes by ln 2, and inner nodes have no records.
const KEYS_A_NODE: f64 = 9.5;

/// A node, in whole lines of the cache.
#[derive(Debug)]
#[repr(align(1024))]
struct Node([AtomicU64; NODE]);

/// Nodes by their numbers, in the order in which splits made them.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    root: u64,
    /// Inner nodes above each leaf.
    height: u32,
    keys: u64,
    seed: u64,
    /// Number of the 64 lookups of a batch that write.
    writes: u64,
}

impl Tree {
    /// A tree of about `arguments.size` bytes.
    pub fn build(arguments: &MemoryArguments) -> Tree {
        let nodes = arguments.size as usize / (NODE * 8);
        let keys = (nodes as f64 * KEYS_A_NODE) as u64;
        let mut tree = Tree {
            nodes: Vec::with_capacity(nodes),
            root: 0,
            height: 0,
            keys,
            seed: arguments.seed,
            writes: (arguments.write_share * BATCH as f64).round() as u64,
        };
        tree.new_node();
        let order = Scattered::new(keys, arguments.seed);
        (0..keys).for_each(|number| tree.insert(order.item(number)));
        tree
    }

    fn new_node(&mut self) -> u64 {
        self.nodes.push(Node([const { AtomicU64::new(0) }; NODE]));
        self.nodes.len() as u64 - 1
    }

    fn word(&self, node: u64, word: usize) -> &AtomicU64 {
        &self.nodes[node as usize].0[word]
    }

    fn get(&self, node: u64, word: usize) -> u64 {
        self.word(node, word).load(Relaxed)
    }

    fn set(&self, node: u64, word: usize, to: u64) {
        self.word(node, word).store(to, Relaxed);
    }

    /// Number of the child of an inner node that is above the key.
    fn child_for(&self, node: u64, key: u64, watch: &mut impl Watch) -> usize {
        watch.touches(self.word(node, COUNT));
        // A damaged count must not lead out of the node.
        let count = self.get(node, COUNT).min(CHILDREN_MOST) as usize;
        let (mut low, mut high) = (0, count.saturating_sub(1));
        while low < high {
            let middle = (low + high) / 2;
            watch.touches(self.word(node, KEYS + middle));
            if self.get(node, KEYS + middle) <= key { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Where in a leaf the key is, or would be.
    fn record_for(&self, leaf: u64, key: u64, watch: &mut impl Watch) -> usize {
        watch.touches(self.word(leaf, COUNT));
        let (mut low, mut high) = (0, self.get(leaf, COUNT).min(RECORDS_MOST) as usize);
        while low < high {
            let middle = (low + high) / 2;
            let there = self.word(leaf, RECORDS + middle * RECORD);
            watch.touches(there);
            if there.load(Relaxed) < key { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Splits what is full on the way down, so that there is always room above.
    fn insert(&mut self, key: u64) {
        if self.is_full(self.root, self.height) {
            let root = self.new_node();
            self.set(root, COUNT, 1);
            self.set(root, CHILDREN, self.root);
            (self.root, self.height) = (root, self.height + 1);
            self.split(root, 0, self.height - 1);
        }
        let mut node = self.root;
        for above in (0..self.height).rev() {
            let mut child = self.child_for(node, key, &mut ());
            if self.is_full(self.get(node, CHILDREN + child), above) {
                self.split(node, child, above);
                child = self.child_for(node, key, &mut ());
            }
            node = self.get(node, CHILDREN + child);
        }
        let (at, count) = (self.record_for(node, key, &mut ()), self.get(node, COUNT) as usize);
        self.shift(node, RECORDS + at * RECORD, RECORDS + count * RECORD, RECORD);
        for part in 0..RECORD {
            self.set(node, RECORDS + at * RECORD + part, self.contents(key, part));
        }
        self.set(node, COUNT, count as u64 + 1);
    }

    /// What a record's words are at first.
    fn contents(&self, key: u64, part: usize) -> u64 {
        match part {
            0 => key,
            WRITES => 0,
            _ if part.is_multiple_of(2) => mixed(self.seed ^ key),
            _ => 0x2020_2020_0000_0000 | key << 3 | part as u64,
        }
    }

    /// Whether a key's record has its contents, whatever was counted in it.
    fn is_right(&self, leaf: u64, at: usize, key: u64) -> bool {
        (2..RECORD).all(|part| self.get(leaf, at + part) == self.contents(key, part))
    }

    fn is_full(&self, node: u64, height: u32) -> bool {
        self.get(node, COUNT) == if height > 0 { CHILDREN_MOST } else { RECORDS_MOST }
    }

    /// Moves the words of a node from `from` to before `to` up by `by` words.
    fn shift(&self, node: u64, from: usize, to: usize, by: usize) {
        (from..to).rev().for_each(|word| self.set(node, word + by, self.get(node, word)));
    }

    /// The upper half of a full child, which has that height, becomes another child.
    fn split(&mut self, parent: u64, child: usize, height: u32) {
        let (full, new) = (self.get(parent, CHILDREN + child), self.new_node());
        let take = |from: usize, to: usize, words: usize| {
            (0..words).for_each(|word| self.set(new, to + word, self.get(full, from + word)))
        };
        let count = self.get(full, COUNT) as usize;
        let kept = count / 2;
        let least = if height > 0 {
            take(CHILDREN + kept, CHILDREN, count - kept);
            take(KEYS + kept, KEYS, count - kept - 1);
            self.get(full, KEYS + kept - 1)
        } else {
            take(RECORDS + kept * RECORD, RECORDS, (count - kept) * RECORD);
            self.get(new, RECORDS)
        };
        self.set(full, COUNT, kept as u64);
        self.set(new, COUNT, (count - kept) as u64);
        let children = self.get(parent, COUNT) as usize;
        self.shift(parent, KEYS + child, KEYS + children - 1, 1);
        self.shift(parent, CHILDREN + child + 1, CHILDREN + children, 1);
        self.set(parent, KEYS + child, least);
        self.set(parent, CHILDREN + child + 1, new);
        self.set(parent, COUNT, children as u64 + 1);
    }

    /// A key's leaf and place there; `None` if the way leads nowhere.
    fn find(&self, key: u64, watch: &mut impl Watch) -> Option<(u64, usize)> {
        let mut node = self.root;
        for _ in 0..self.height {
            let child = self.word(node, CHILDREN + self.child_for(node, key, watch));
            watch.touches(child);
            node = child.load(Relaxed);
            if node >= self.nodes.len() as u64 {
                return None;
            }
        }
        let number = self.record_for(node, key, watch);
        let at = RECORDS + number * RECORD;
        // Behind the last there may be what was there before a split.
        let there =
            (number as u64) < self.get(node, COUNT).min(RECORDS_MOST) && self.get(node, at) == key;
        there.then_some((node, at))
    }
}

impl Program for Tree {
    type Way = SmallRng;

    fn way(&self, thread: usize, _threads: usize) -> SmallRng {
        SmallRng::seed_from_u64(mixed(mixed(self.seed) ^ thread as u64))
    }

    fn batch(&self, way: &mut SmallRng, watch: &mut impl Watch) -> Batch {
        let mut done = Batch { accesses: BATCH, ..Batch::default() };
        for lookup in 0..BATCH {
            let chance = way.next_u64() as f64 / u64::MAX as f64;
            let key = ((chance.powi(4) * self.keys as f64) as u64).min(self.keys - 1);
            let write = lookup < self.writes;
            done.writes += u64::from(write);
            let found = self.find(key, watch);
            if let Some((leaf, at)) = found.filter(|_| write) {
                self.word(leaf, at + WRITES).fetch_add(1, Relaxed);
            }
            done.wrong += u64::from(!found.is_some_and(|(leaf, at)| self.is_right(leaf, at, key)));
        }
        done
    }

    fn check(&self, writes: u64) -> u64 {
        let (mut wrong, mut found) = (0, 0);
        for key in 0..self.keys {
            let place = self.find(key, &mut ());
            wrong += u64::from(!place.is_some_and(|(leaf, at)| self.is_right(leaf, at, key)));
            found += place.map_or(0, |(leaf, at)| self.get(leaf, at + WRITES));
        }
        wrong + u64::from(found != writes)
    }

    fn place(&self) -> Range<usize> {
        addresses(&self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::memory::tests::arguments;
    use crate::load::memory::truth::Truth;

    fn tree() -> Tree {
        Tree::build(&arguments("btree", 8 << 20))
    }

    #[test]
    fn all_keys_are_there_and_the_memory_is_used() {
        let tree = tree();
        assert!(tree.height >= 2 && tree.check(0) == 0, "{}", tree.height);
        assert!((7 << 20..8 << 20).contains(&tree.place().len()), "{}", tree.place().len());
        for (key, there) in [(0, true), (tree.keys - 1, true), (tree.keys, false)] {
            assert_eq!(tree.find(key, &mut ()).is_some(), there, "{key}");
        }
    }

    /// The keys are in order, and all nodes but the root are half full at least (of 15 records:
    /// seven). Each bound is the least key above it.
    #[test]
    fn the_tree_is_one() {
        let tree = tree();
        fn keys(tree: &Tree, node: u64, height: u32, all: &mut Vec<u64>) {
            let count = tree.get(node, COUNT) as usize;
            assert!(
                node == tree.root
                    || count as u64 >= if height > 0 { CHILDREN_MOST } else { RECORDS_MOST } / 2,
                "{count} in {node}"
            );
            for number in 0..count {
                if height == 0 {
                    all.push(tree.get(node, RECORDS + number * RECORD));
                } else {
                    let begin = all.len();
                    keys(tree, tree.get(node, CHILDREN + number), height - 1, all);
                    assert!(number == 0 || all[begin] == tree.get(node, KEYS + number - 1));
                }
            }
        }
        let mut all = Vec::new();
        keys(&tree, tree.root, tree.height, &mut all);
        assert!(all.iter().copied().eq(0..tree.keys));
    }

    #[test]
    fn lookups_find_write_and_see_damage() {
        let tree = tree();
        let mut way = tree.way(0, 1);
        let done = (0..100).fold(Batch::default(), |sum, _| {
            let batch = tree.batch(&mut way, &mut ());
            Batch {
                accesses: sum.accesses + batch.accesses,
                wrong: sum.wrong + batch.wrong,
                writes: sum.writes + batch.writes,
            }
        });
        assert_eq!((done.accesses, done.wrong, tree.check(done.writes)), (6_400, 0, 0));
        assert!(done.writes > 500 && tree.check(done.writes + 1) == 1);
        let (leaf, at) = tree.find(7, &mut ()).unwrap();
        tree.word(leaf, at + 5).fetch_xor(1, Relaxed);
        assert_eq!(tree.check(done.writes), 1);
        // Damage above makes lookups fail, and nothing worse.
        for word in 0..NODE {
            tree.set(tree.root, word, u64::MAX);
        }
        assert!(tree.check(done.writes) > 0);
    }

    #[test]
    fn what_is_low_is_hot() {
        let tree = tree();
        let (mut truth, mut way) = (Truth::new(tree.place()), tree.way(0, 1));
        let writes: u64 = (0..2_000).map(|_| tree.batch(&mut way, &mut truth).writes).sum();
        let low = (0..tree.keys / 10)
            .map(|key| tree.find(key, &mut ()).map_or(0, |(leaf, at)| tree.get(leaf, at + WRITES)))
            .sum::<u64>();
        // The fourth root of a tenth.
        assert!((low as f64 / writes as f64 - 0.562).abs() < 0.03, "{low} of {writes}");
        let told = serde_json::to_value(&truth).unwrap();
        let accesses: u64 =
            told["accesses"].as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).sum();
        // Each lookup: two inner nodes at least, of seven compared keys or so, and a leaf.
        assert!((128_000 * 10..128_000 * 30).contains(&accesses), "{accesses}");
    }
}
