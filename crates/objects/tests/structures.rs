//! Five structures with readers, writers, deleters and the relocator at once. They go through the
//! same under eviction and faults in `tests/tests/objects_move_under_eviction.rs`.
#![cfg(not(loom))]

#[path = "torture/structures.rs"]
mod torture;

use terrace_objects::structures::{Chained, Open, Radix, SkipList, Tree};
use torture::{KEYS, all_at_once};

#[test]
fn chained_hash() {
    all_at_once(Chained::for_keys(KEYS as usize / 4));
}

#[test]
fn open_hash() {
    all_at_once(Open::for_keys(KEYS as usize));
}

#[test]
fn b_plus_tree() {
    all_at_once(Tree::default());
}

#[test]
fn skip_list() {
    all_at_once(SkipList::default());
}

#[test]
fn radix_tree() {
    all_at_once(Radix::default());
}
