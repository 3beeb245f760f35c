//! The memory of a process that already runs, moved into compressed memory and back.
//!
//! # What each process does
//!
//! *The stub* ([`stub`]) is a process in the target's address space (clone with CLONE_VM). It is
//! some 200 bytes of code that make the system calls they are told, and nothing else. It is there
//! for what only that address space may do: create the userfaultfd, move pages into a landing area
//! (UFFDIO_MOVE), empty that area. It is no thread of the target, has none of its descriptors, and
//! is confined by a seccomp filter of a dozen calls.
//!
//! *The keeper* ([`keeper`]) is an ordinary process outside. It takes the userfaultfd out of the
//! stub (pidfd_getfd) and serves faults (UFFDIO_COPY works from any process). It follows the
//! kernel's events, chooses victims, compresses, and has the compressed pages. None of its memory
//! is in the target, so nothing that it does can wait for itself.
//!
//! *The guard* ([`guard`]) is a copy of the keeper that shares its descriptors and its record of
//! pages. It sleeps until the keeper ends. If that was not by `terrace detach`, it brings
//! everything back and leaves.
//!
//! # Why no byte is lost
//!
//! 1. *One thread* reads events and has pages moved, never both at a time. So every move is decided
//!    from all events that were read. While one is unread the kernel refuses the move (EAGAIN):
//!    landing area and target are registered on one userfaultfd.
//! 2. A page moves only if it is *known to be registered*: UFFDIO_ZEROPAGE says EEXIST. That is
//!    noted for each page, and forgotten when it is unmapped or remapped. For REGISTER passes over
//!    holes, in which the program may map memory a moment later.
//! 3. The event of a discard (MADV_DONTNEED) comes *before* the discard. A page that is resident
//!    then is `Gone`: it is not moved again before it has faulted once. An evicted page has a mark
//!    in the page table, which the discard takes away. It stays in the store, and a touch of it is
//!    answered with zeros once UFFDIO_ZEROPAGE finds no mark. Answered earlier, the program could
//!    write there, and the discard would take that away.
//! 4. Where UFFDIO_COPY or ZEROPAGE say EAGAIN, events are read, and what is to be put there is
//!    looked up again.
//! 5. A stored page goes only when its page is in place. A checksum of the page is stored with it.
//! 6. The record of pages is written before the landing area is emptied. A journal names the pages
//!    of the batch under way, so that the guard finds what was in the landing area.
//! 7. The userfaultfds are open in keeper, guard and stub. They are also open in requests of
//!    asynchronous I/O (IOCB_CMD_POLL, for no event) that belong to the memory itself. Whichever
//!    process is killed, a touch of an evicted page waits, and never reads zeros.
//! 8. A stopped thread makes calls where it may stand for ever ([`inject`]), and another process
//!    has what it needs to go on. Whichever process is killed, the thread goes on as it was.
//!
//! A forked child's userfaultfd comes with the fork's event, before the fork returns. The child is
//! served from the same store, and nothing of it is evicted.

mod limit;
mod stats;
pub use limit::{Budget, Follow, Limit, Sample};
pub use stats::AttachedStats;

#[cfg(target_arch = "x86_64")]
mod channel;
#[cfg(target_arch = "x86_64")]
mod children;
#[cfg(target_arch = "x86_64")]
mod daemon;
#[cfg(target_arch = "x86_64")]
mod evict;
#[cfg(target_arch = "x86_64")]
mod family;
#[cfg(target_arch = "x86_64")]
mod filters;
#[cfg(target_arch = "x86_64")]
mod guard;
#[cfg(target_arch = "x86_64")]
mod inject;
#[cfg(target_arch = "x86_64")]
mod keeper;
#[cfg(target_arch = "x86_64")]
mod outside;
#[cfg(target_arch = "x86_64")]
mod paging;
#[cfg(target_arch = "x86_64")]
mod process;
#[cfg(target_arch = "x86_64")]
mod refusals;
#[cfg(target_arch = "x86_64")]
mod seen;
#[cfg(target_arch = "x86_64")]
mod serve;
#[cfg(target_arch = "x86_64")]
mod shared_memory;
#[cfg(target_arch = "x86_64")]
mod state;
#[cfg(target_arch = "x86_64")]
mod stop;
#[cfg(target_arch = "x86_64")]
mod store;
#[cfg(target_arch = "x86_64")]
mod stub;
#[cfg(target_arch = "x86_64")]
mod sys;
#[cfg(target_arch = "x86_64")]
mod table;
#[cfg(target_arch = "x86_64")]
pub use daemon::{attach, attach_group, attach_outside, attached, detach, possible, set, status};

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere;
#[cfg(not(target_arch = "x86_64"))]
pub use elsewhere::{
    attach, attach_group, attach_outside, attached, detach, possible, set, status,
};
