//! A B+-tree in which everything is an object of its own: nodes, their keys, their pointers, and
//! records. Inner nodes and leaves are of one size.

use super::measured::Measured;
use crate::place::{next_to, place, with_kind};
use terrace_api::Placement;

/// Children of a node at most: one more than keys.
const ORDER: usize = 4;
const KEYS: usize = ORDER - 1;

/// A record of four words: the key, and small numbers.
struct Record([u64; 4]);

enum Pointers {
    Inner(Box<[Option<Box<Node>>; ORDER]>),
    Leaf(Box<[Option<Box<Record>>; ORDER]>),
}

struct Node {
    keys: Box<[u64; KEYS]>,
    pointers: Pointers,
    len: usize,
}

/// The tree.
#[derive(Default)]
pub struct Tree {
    root: Option<Box<Node>>,
    /// Number of levels of inner nodes.
    height: usize,
}

#[inline(never)]
fn make_node(pointers: Pointers) -> Box<Node> {
    Box::new(Node { keys: Box::new([0; KEYS]), pointers, len: 0 })
}

/// Makes a leaf. With placements, its parts lie together.
#[inline(never)]
fn make_leaf() -> Box<Node> {
    let pointers: Box<_> = place(Placement::NextTo(std::ptr::null()), Box::default);
    let leaf = place(next_to(&*pointers), || make_node(Pointers::Leaf(pointers)));
    std::hint::black_box(leaf)
}

/// Makes an inner node. With placements it is hot, as more lookups come by. They are the more, the
/// higher it is above the leaves, so it lies with others of its level.
#[inline(never)]
fn make_inner(level: usize) -> Box<Node> {
    let inner =
        place(with_kind(level, Placement::Hot), || make_node(Pointers::Inner(Box::default())));
    std::hint::black_box(inner)
}

/// Makes a record. With placements it is cold, as a leaf has several.
#[inline(never)]
fn make_record(key: u64) -> Box<Record> {
    std::hint::black_box(place(Placement::Cold, || Box::new(Record([key, key + 1, key / 3, 1]))))
}

fn whole<T>(object: &T, touched: &mut impl FnMut(u64, usize)) {
    touched(std::ptr::from_ref(object) as u64, size_of::<T>());
}

/// How many of the keys are at most this one.
fn place_of(node: &Node, key: u64) -> usize {
    node.keys[..node.len].partition_point(|there| *there <= key)
}

/// A node's right half, with the least key below it.
type Split = (u64, Box<Node>);

impl Tree {
    /// Puts a key in that is not there.
    pub fn insert(&mut self, key: u64) {
        let root = self.root.get_or_insert_with(make_leaf);
        if let Some((between, right)) = insert(root, self.height, key) {
            self.height += 1;
            let left = std::mem::replace(root, make_inner(self.height));
            root.keys[0] = between;
            root.len = 1;
            if let Pointers::Inner(children) = &mut root.pointers {
                (children[0], children[1]) = (Some(left), Some(right));
            }
        }
    }
}

fn insert(node: &mut Node, level: usize, key: u64) -> Option<Split> {
    let at = place_of(node, key);
    let full = node.len == KEYS;
    match &mut node.pointers {
        Pointers::Leaf(records) => {
            let record = make_record(key);
            if !full {
                node.keys.copy_within(at..node.len, at + 1);
                node.keys[at] = key;
                records[at..=node.len].rotate_right(1);
                records[at] = Some(record);
                node.len += 1;
                return None;
            }
            let mut right = make_leaf();
            let Pointers::Leaf(theirs) = &mut right.pointers else { unreachable!("it is a leaf") };
            let mut all: Vec<(u64, Option<Box<Record>>)> =
                node.keys.iter().copied().zip(records.iter_mut().map(Option::take)).collect();
            all.insert(at, (key, Some(record)));
            (node.len, right.len) = (all.len() / 2, all.len() - all.len() / 2);
            for (index, (key, record)) in all.into_iter().enumerate() {
                match index.checked_sub(node.len) {
                    None => (node.keys[index], records[index]) = (key, record),
                    Some(index) => (right.keys[index], theirs[index]) = (key, record),
                }
            }
            Some((right.keys[0], right))
        }
        Pointers::Inner(children) => {
            let (between, child) =
                insert(children[at].as_mut().expect("a child for each gap"), level - 1, key)?;
            if !full {
                node.keys.copy_within(at..node.len, at + 1);
                node.keys[at] = between;
                children[at + 1..=node.len + 1].rotate_right(1);
                children[at + 1] = Some(child);
                node.len += 1;
                return None;
            }
            let mut right = make_inner(level);
            let Pointers::Inner(theirs) = &mut right.pointers else {
                unreachable!("it is an inner node")
            };
            let mut keys = node.keys.to_vec();
            keys.insert(at, between);
            let mut all: Vec<Option<Box<Node>>> = children.iter_mut().map(Option::take).collect();
            all.insert(at + 1, Some(child));
            let middle = keys.len() / 2;
            (node.len, right.len) = (middle, keys.len() - middle - 1);
            node.keys[..middle].copy_from_slice(&keys[..middle]);
            right.keys[..keys.len() - middle - 1].copy_from_slice(&keys[middle + 1..]);
            for (index, child) in all.into_iter().enumerate() {
                match index.checked_sub(middle + 1) {
                    None => children[index] = child,
                    Some(index) => theirs[index] = child,
                }
            }
            Some((keys[middle], right))
        }
    }
}

impl Measured for Tree {
    fn look_up(&self, key: u64, touched: &mut impl FnMut(u64, usize)) -> bool {
        let Some(mut node) = self.root.as_deref() else { return false };
        loop {
            whole(node, touched);
            whole(&*node.keys, touched);
            let at = place_of(node, key);
            match &node.pointers {
                Pointers::Inner(children) => {
                    whole(&**children, touched);
                    node = children[at].as_deref().expect("a child for each gap");
                }
                Pointers::Leaf(records) => {
                    whole(&**records, touched);
                    let Some(record) = at.checked_sub(1).and_then(|at| records[at].as_deref())
                    else {
                        return false;
                    };
                    whole(record, touched);
                    return record.0[1] == key + 1;
                }
            }
        }
    }

    fn objects(&self, each: &mut impl FnMut(u64, usize)) {
        let mut waiting: Vec<&Node> = self.root.as_deref().into_iter().collect();
        while let Some(node) = waiting.pop() {
            whole(node, each);
            whole(&*node.keys, each);
            match &node.pointers {
                Pointers::Inner(children) => {
                    whole(&**children, each);
                    waiting.extend(children.iter().flatten().map(|child| &**child));
                }
                Pointers::Leaf(records) => {
                    whole(&**records, each);
                    records.iter().flatten().for_each(|record| whole(&**record, each));
                }
            }
        }
    }
}
