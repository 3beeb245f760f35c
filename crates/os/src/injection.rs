//! Kernel calls that fail on purpose (`TERRACE_INJECT=SEED[:PER_MILLE]`), and which errors each may
//! fail with.
//!
//! For tests. An injected failure is one that the kernel may give at any time and that must cost
//! time only. So any program under it must compute what it computes alone. What happens to the n-th
//! call is settled by the seed. The simulation's kernel (`simulation.rs`) fails in the same ways.

use crate::types::{Errno, PAGE};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// A kernel call whose failure the pager must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// UFFDIO_MOVE out of the page table. May also end early, its work in part done.
    Move,
    /// UFFDIO_WRITEPROTECT before a page is copied, and to lift the protection.
    Protect,
    /// Reading pages that are write-protected. May also end early.
    Read,
    /// MADV_DONTNEED of pages that were copied.
    Drop,
    /// UFFDIO_COPY into place.
    Copy,
    /// UFFDIO_ZEROPAGE into place.
    Zero,
    /// UFFDIO_REGISTER before a first eviction.
    Register,
    /// UFFDIO_UNREGISTER before a mapping is moved or resized.
    Unregister,
    /// MADV_POPULATE_WRITE of a page that was shared with a child.
    Populate,
    /// MADV_DONTNEED of staging slots.
    Empty,
    /// MADV_PAGEOUT.
    PageOut,
    /// move_pages between NUMA nodes.
    Nodes,
    /// PAGEMAP_SCAN.
    Scan,
    /// A page's entry in /proc/self/pagemap.
    Entry,
}

impl Call {
    /// Calls of which the simulation must have seen every failure.
    pub const ALL: [Call; 9] = [
        Call::Move,
        Call::Copy,
        Call::Zero,
        Call::Register,
        Call::Unregister,
        Call::Populate,
        Call::Empty,
        Call::Scan,
        Call::Entry,
    ];

    /// Errors of mm/userfaultfd.c, mm/madvise.c and fs/proc/task_mmu.c that say nothing about the
    /// page itself.
    pub fn errors(self) -> &'static [Errno] {
        match self {
            Call::Move => &[Errno::EAGAIN, Errno::EBUSY, Errno::ENOMEM, Errno::EINVAL],
            Call::Protect => &[Errno::EAGAIN, Errno::ENOMEM],
            Call::Read => &[Errno::ENOMEM, Errno::EFAULT],
            Call::Drop => &[Errno::EAGAIN, Errno::EINVAL, Errno::ENOMEM],
            Call::Copy | Call::Zero => &[Errno::EAGAIN, Errno::ENOMEM],
            Call::Register | Call::Unregister => &[Errno::ENOMEM],
            Call::Populate => &[Errno::ENOMEM, Errno::EAGAIN, Errno::EFAULT],
            Call::Empty => &[Errno::EAGAIN, Errno::ENOMEM],
            Call::PageOut => &[Errno::EAGAIN, Errno::EINVAL, Errno::EINTR],
            Call::Nodes => &[Errno::ENOMEM, Errno::EAGAIN],
            Call::Scan => &[Errno::ENOMEM, Errno::EFAULT],
            Call::Entry => &[Errno::ENOMEM, Errno::EINTR],
        }
    }
}

/// When calls fail: the value of `TERRACE_INJECT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Settles what happens to the n-th call.
    pub seed: u64,
    /// Calls that fail, of each thousand; 0 to 500.
    pub per_mille: u32,
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let refuse = || {
            format!(
                "TERRACE_INJECT=`{text}`: write SEED or SEED:PER_MILLE (0 to 500), such as 7:50"
            )
        };
        let (seed, rate) = text.trim().split_once(':').unwrap_or((text.trim(), "50"));
        match (seed.parse(), rate.parse()) {
            (Ok(seed), Ok(per_mille)) if per_mille <= 500 => Ok(Injection { seed, per_mille }),
            _ => Err(refuse()),
        }
    }
}

impl Injection {
    /// From now on calls of this process fail.
    pub fn start(self) {
        SEED.store(self.seed, Relaxed);
        PER_MILLE.store(self.per_mille, Relaxed);
    }
}

static SEED: AtomicU64 = AtomicU64::new(0);
static PER_MILLE: AtomicU32 = AtomicU32::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// What befalls this call: an error, or nothing.
pub fn strike(call: Call) -> Option<Errno> {
    let rate = PER_MILLE.load(Relaxed);
    if rate == 0 {
        return None;
    }
    let draw = next();
    let errors = call.errors();
    (draw % 1000 < u64::from(rate)).then(|| errors[(draw >> 32) as usize % errors.len()])
}

/// How many of `len` bytes the call is to be given, so that it ends early.
pub fn shorten(len: usize) -> usize {
    let rate = PER_MILLE.load(Relaxed);
    if rate == 0 || len <= PAGE {
        return len;
    }
    let draw = next();
    if draw % 1000 < u64::from(rate) {
        (1 + (draw >> 32) as usize % (len / PAGE)) * PAGE
    } else {
        len
    }
}

/// splitmix64 of seed and call number.
fn next() -> u64 {
    let n = CALLS.fetch_add(1, Relaxed);
    let mut z = (SEED.load(Relaxed) ^ n.rotate_left(40))
        .wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}
