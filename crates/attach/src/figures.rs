//! What is told of a process that is attached to.

use serde::{Deserialize, Serialize};

/// What was counted, and what stands; `terrace status` shows it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Figures {
    /// Process id.
    pub pid: i32,
    /// The process outside that compresses and restores.
    pub keeper: i32,
    /// The process that brings everything back if the keeper is killed; 0 without one.
    pub guard: i32,
    /// The process beside the program, in its memory.
    pub stub: i32,
    /// Name of the program.
    pub program: String,
    /// What its memory may take, bytes.
    pub budget_bytes: u64,
    /// Resident anonymous memory, bytes.
    pub resident_bytes: u64,
    /// Data that is in the store, bytes.
    pub out_bytes: u64,
    /// Memory that the store takes, bytes.
    pub store_bytes: u64,
    /// Memory that the record of pages takes, bytes.
    pub overhead_bytes: u64,
    /// Pages that left, in all.
    pub evicted_pages: u64,
    /// Pages that came back, in all.
    pub restored_pages: u64,
    /// Pages that were touched for the first time while registered, in all.
    pub zero_pages: u64,
    /// Faults that were served, in all.
    pub faults: u64,
    /// Calls that the kernel told of: discards, unmaps, remaps, forks.
    pub events: u64,
    /// Forks, in all.
    pub forks: u64,
    /// Forked children with pages out, now.
    pub children: usize,
    /// Moves that the kernel refused: pages that are pinned, locked or shared with a child.
    pub failed_moves: u64,
    /// The last error (errno) of such a move; 0 without one.
    pub last_error: i32,
    /// Pages that went back at once because they do not compress.
    pub incompressible_pages: u64,
    /// Pages of which another copy was found in place; 0 unless something is wrong.
    pub stale_pages: u64,
    /// What there is to say; empty if nothing.
    pub note: String,
}
