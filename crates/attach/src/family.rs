//! A limit that a process that was attached to shares with the children that were attached to after
//! it.
//!
//! The limit itself is in a shared mapping, so that it changes for all of them at once. Each keeper
//! writes into a row of that mapping what its process would take without a limit. Then it divides
//! the limit by all rows ([`terrace_policy::budget_split`]). All come to the same shares, as they
//! divide the same numbers. Rows of keepers that have ended do not count. The mapping is a file in
//! memory without a name; a child's `terrace attach` inherits its descriptor.

use crate::process;
use crate::sys;
use anyhow::{Context, Result, ensure};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};
use terrace_policy::budget_split::{Need, shares};

/// Most processes that share a limit. A process beyond that keeps to the limit by itself.
const MEMBERS: usize = 256;

/// Row in which a keeper tells the others of its process.
#[repr(C)]
#[derive(Default)]
struct Row {
    /// The keeper's process; 0 where there is none.
    keeper: AtomicI32,
    /// What the process would take without a limit, bytes.
    demand: AtomicU64,
}

/// What all keepers share.
#[repr(C)]
struct Members {
    /// The limit of all together, bytes; `u64::MAX` without one.
    limit: AtomicU64,
    rows: [Row; MEMBERS],
}

/// Processes that share a limit.
pub struct Family {
    members: &'static Members,
    /// Inherited by commands that attach to children.
    file: OwnedFd,
    own: Option<usize>,
}

impl Family {
    const BYTES: u64 = size_of::<Members>() as u64;

    /// Makes a family without members, with a limit in bytes.
    ///
    /// # Errors
    /// Fails without memory or descriptors.
    pub fn new(limit: Option<u64>) -> Result<Family> {
        let file = sys::memory_file(c"terrace-family", Self::BYTES)?;
        let family = Family::of(sys::inherited(file.as_raw_fd())?)?;
        family.set_limit(limit);
        Ok(family)
    }

    /// Gives the whole family another limit, bytes.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.members.limit.store(limit.unwrap_or(u64::MAX), Release);
    }

    /// Takes the family whose descriptor this process has inherited.
    ///
    /// # Errors
    /// If the descriptor is not one, or without memory or descriptors.
    pub fn inherited(descriptor: RawFd) -> Result<Family> {
        Family::of(sys::inherited(descriptor).context("--family is for terrace's own use")?)
    }

    fn of(file: OwnedFd) -> Result<Family> {
        let length = sys::length(file.as_raw_fd())?;
        ensure!(length == Self::BYTES, "--family: that is no descriptor of a family");
        let at = sys::map_shared(file.as_raw_fd(), Self::BYTES)?;
        // SAFETY: mapped for ever, as long as the structure is, and aligned to a page; any bytes
        // are valid values of atomic integers.
        Ok(Family { members: unsafe { &*at.cast() }, file, own: None })
    }

    /// Descriptor that commands for children inherit.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Whether no other keeper has a part of the limit.
    pub fn is_alone(&self) -> bool {
        let others = self.members.rows.iter().enumerate().filter(|(row, _)| Some(*row) != self.own);
        others.map(|(_, row)| row.keeper.load(Acquire)).all(|pid| pid == 0 || !is_keeper(pid))
    }

    /// The part of the limit, bytes, for this keeper's process, which would take `demand` bytes.
    pub fn share(&mut self, demand: u64) -> u64 {
        let limit = self.members.limit.load(Acquire);
        let me = std::process::id() as i32;
        let Some(own) = self.own.or_else(|| self.join(me)) else { return limit };
        self.own = Some(own);
        self.members.rows[own].demand.store(demand, Relaxed);
        let (mut place, mut needs) = (0, Vec::new());
        for (number, row) in self.members.rows.iter().enumerate() {
            let keeper = row.keeper.load(Acquire);
            if number == own {
                place = needs.len();
            } else if keeper == 0 || !is_keeper(keeper) {
                continue;
            }
            needs.push(Need { demand: row.demand.load(Relaxed), floor: 0 });
        }
        if limit == u64::MAX { limit } else { shares(limit, &needs)[place] }
    }

    /// Takes a row that is free, or whose keeper has ended.
    fn join(&self, me: i32) -> Option<usize> {
        self.members.rows.iter().position(|row| {
            let there = row.keeper.load(Acquire);
            (there == 0 || !is_keeper(there))
                && row.keeper.compare_exchange(there, me, AcqRel, Relaxed).is_ok()
        })
    }
}

/// Whether a process is a keeper, and not another one that has its number now.
fn is_keeper(pid: i32) -> bool {
    pid == std::process::id() as i32 || process::name(pid) == "terrace-keeper"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_ended_leaves_its_part_to_the_others() {
        let mut family = Family::new(None).unwrap();
        assert_eq!(family.share(400 << 20), u64::MAX, "there is no limit");
        family.set_limit(Some(100 << 20));
        assert_eq!(family.share(400 << 20), 100 << 20, "nobody else is there");
        // No process has this number.
        family.members.rows[1].keeper.store(i32::MAX, Release);
        family.members.rows[1].demand.store(400 << 20, Release);
        assert_eq!(family.share(400 << 20), 100 << 20);
        assert!(family.is_alone());
        let again = Family::inherited(family.descriptor()).unwrap();
        assert_eq!(again.members.rows[0].keeper.load(Acquire), std::process::id() as i32);
        assert_eq!(again.join(7), Some(1), "the row of one that has ended is taken");
    }

    #[test]
    fn other_descriptors_are_refused() {
        let other = sys::memory_file(c"other", 8192).unwrap();
        assert!(Family::inherited(other.as_raw_fd()).is_err());
        assert!(Family::inherited(-1).is_err());
    }
}
