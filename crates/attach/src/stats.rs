//! What is told of a process that is attached to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was counted, and what stands; `terrace status` shows it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct AttachedStats {
    /// Process id.
    pub pid: i32,
    /// The process outside that compresses and restores; 0 where it does not answer in time.
    pub keeper: i32,
    /// The process that brings everything back if the keeper is killed; 0 without one.
    pub guard: i32,
    /// The process beside the program, in its memory.
    pub stub: i32,
    /// Name of the program.
    pub program: String,
    /// The limit as it was asked for: `--dram 200M`.
    pub limit: String,
    /// What its memory may take now, bytes; the highest number there is before that is known.
    pub budget_bytes: u64,
    /// Where pages go, as `--tiers` has it.
    pub tier: String,
    /// For how long a thread stood still when it was attached to, us.
    pub stopped_us: u64,
    /// For how long threads waited for pages and for events, us, estimated.
    pub waited_us: u64,
    /// The most memory that it took while it was attached to, bytes.
    pub peak_bytes: u64,
    /// How long it took to bring everything back, ms; 0 before that.
    pub detached_ms: u64,
    /// Resident anonymous memory, bytes.
    pub resident_bytes: u64,
    /// Shared memory of it in DRAM, bytes.
    pub shared_bytes: u64,
    /// Shared memory that counts into the limit, bytes, as the kernel's swap takes it: what several
    /// processes have counts in parts. With `--outside` it is in `resident_bytes`.
    #[serde(default)]
    pub shared_limited_bytes: u64,
    /// Shared memory of it that is in the kernel's swap, bytes; with `--outside` in `out_bytes`.
    #[serde(default)]
    pub shared_out_bytes: u64,
    /// Why shared memory stays in DRAM; empty where none does.
    #[serde(default)]
    pub shared_note: String,
    /// What was tried and stays, bytes: pages that several processes have in their page tables, or
    /// that are locked; all shared memory where there is no swap.
    #[serde(default)]
    pub kept_bytes: u64,
    /// Data that is in the store, bytes; with `--outside` in swap or on the node.
    pub out_bytes: u64,
    /// Memory that the store takes, and what is in swap, bytes.
    pub store_bytes: u64,
    /// Memory that the record of pages takes, bytes.
    pub overhead_bytes: u64,
    /// Pages that left, in all.
    pub evicted_pages: u64,
    /// Pages that came back, in all.
    pub restored_pages: u64,
    /// Pages that the kernel was advised of as cold before they left for its swap, in all.
    #[serde(default)]
    pub cold_pages: u64,
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

impl AttachedStats {
    /// DRAM that its data takes, in the process and in the keeper, bytes.
    pub fn physical_bytes(&self) -> u64 {
        let resident = self.resident_bytes + self.shared_limited_bytes;
        resident + self.store_bytes + self.overhead_bytes
    }

    /// Data that the limit is for, in DRAM or not, bytes.
    pub fn data_bytes(&self) -> u64 {
        let shared = self.shared_limited_bytes + self.shared_out_bytes;
        self.resident_bytes + self.out_bytes + shared
    }
}
