//! The guard: brings everything back where the keeper was killed.
//!
//! It is a copy of the keeper from some earlier time. Descriptors, record of pages, store and
//! journal are the keeper's own. What it has in private memory may be old, so it is made anew from
//! those. The guard stores nothing and frees nothing in the store.

use crate::filters::Purpose;
use crate::inject::{Injection, Traced};
use crate::state::{Keeper, MESSAGES, SPACES, Shared, Space};
use crate::stop::stop_any_thread;
use crate::sys::{self, Message, PAGE};
use crate::table::{ADDRESSES, Table};
use anyhow::{Result, bail};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;
use terrace_os::{exit_process, fork, name_thread, reap, signal_by_id};

/// Time after a failure until it is tried again to leave.
const AGAIN_MS: i32 = 200;

/// The process, by its id, that lets the target go if the keeper is killed before there is a guard.
/// It is ended when this value is dropped.
pub struct Rescuer(i32);

impl Rescuer {
    pub fn begin(target: i32, shared: &'static Shared) -> Result<Self> {
        let keeper = sys::pidfd_open(std::process::id() as i32)?;
        // From its beginning it has another name, against kills by name.
        name_thread(c"terrace-guard");
        // SAFETY: this process has one thread, so every lock is free in the child.
        let forked = unsafe { fork() };
        if forked != Ok(0) {
            name_thread(c"terrace-keeper");
        }
        match forked {
            Err(errno) => bail!("cannot make a process: {}", sys::io_error(errno)),
            Ok(0) => {
                while !sys::wait_readable(keeper.as_raw_fd(), -1) {}
                if is_first(shared) {
                    rescue(target, &shared.injection);
                }
                // Nothing of the keeper's is to be undone.
                exit_process(0)
            }
            Ok(pid) => Ok(Rescuer(pid)),
        }
    }
}

/// Whether the keeper was killed, and no other process does what is left to do.
fn is_first(shared: &Shared) -> bool {
    shared.done.load(Acquire) == 0 && shared.rescued.swap(1, AcqRel) == 0
}

impl Drop for Rescuer {
    fn drop(&mut self) {
        let _ = signal_by_id(self.0, libc::SIGKILL);
        reap(self.0);
    }
}

/// Number of tries to stop a thread of a process that is to be left.
const TRIES: u32 = 5;

/// Leaves a process to which attaching was begun as it was before. Nothing is evicted yet.
pub fn rescue(target: i32, injection: &'static Injection) {
    let base = injection.base.load(Acquire);
    if base != 0 {
        crate::stub::end_unknown(target, injection);
    } else if !injection.is_under_way() {
        return;
    }
    let traced = (0..TRIES).find_map(|_| {
        let is_adopted = injection.is_under_way();
        let traced = match is_adopted {
            true => Traced::adopt(target, injection),
            false => injection
                .prepare(target)
                .and_then(|()| stop_any_thread(target, injection, Purpose::Leave)),
        };
        Some((traced.ok()?, is_adopted))
    });
    if let Some((mut traced, is_adopted)) = traced {
        if base != 0 {
            // It may have begun a stub since.
            crate::stub::end_unknown(target, injection);
            // Another thread may be of another program, which has something else there.
            let _ = match is_adopted && injection.is_fresh.load(Acquire) == 1 {
                true => crate::stub::unmap_fresh(&mut traced, base),
                false => crate::stub::unmap(&mut traced, target, base),
            };
        }
        // This puts the program's bytes back. Without a hold of the thread they stay replaced: it
        // may be just there, and would begin the program anew.
        let _ = traced.release();
    }
}

/// Runs the guard until it ends.
pub fn main(keeper: &mut Keeper, pidfd: i32) -> ! {
    while !sys::wait_readable(pidfd, -1) {}
    if is_first(keeper.shared) {
        take_over(keeper);
    }
    // Nothing of the keeper's is to be undone by destructors.
    exit_process(0)
}

fn take_over(keeper: &mut Keeper) {
    keeper.store.only_read();
    keeper.frozen = true;
    keeper.queue.clear();
    // In the copy, the guard is not a child.
    std::mem::forget(keeper.guard.take());
    keeper.channel.take_over();
    leave_old_spaces(keeper);
    // Until all are open nothing is read, as what was read last is still to be applied.
    while let Err(error) = open_spaces(keeper) {
        sys::wait_for_any(keeper.channel.descriptors(), AGAIN_MS);
        answer(keeper, &error);
    }
    if !keeper.stub.dead {
        let _ = keeper.stub.settle();
    }
    take_landed(keeper);
    apply_unapplied(keeper);
    // Faults that the keeper had read are told again.
    for space in keeper.spaces.iter().flatten() {
        let _ = sys::wake(space.uffd.as_raw_fd(), PAGE, ADDRESSES - PAGE);
    }
    // A thread that touches memory that cannot be left yet waits for this process.
    while let Err(error) = keeper.leave() {
        let until = sys::now_ns() + AGAIN_MS as u64 * 1_000_000;
        while sys::now_ns() < until {
            if keeper.is_over() {
                // Children had everything before it was tried to leave.
                return keeper.stub.kill();
            }
            keeper.serve_for(20);
            answer(keeper, &error);
        }
        take_landed(keeper);
    }
}

/// Answers requests while this process cannot leave yet.
fn answer(keeper: &mut Keeper, error: &anyhow::Error) {
    const WHO: &str = "the keeper was killed; its guard leaves as soon as it can";
    keeper.answer(&format!("{WHO}: {error:#}"));
}

/// Forgets the address spaces that this process has a copy of.
fn leave_old_spaces(keeper: &mut Keeper) {
    for space in std::mem::take(&mut keeper.spaces).into_iter().flatten() {
        let Space { uffd, table, .. } = space;
        // Descriptors are shared: these may be other files by now, and are not closed. What is
        // mapped would keep addresses from what is to be mapped.
        table.leave();
        std::mem::forget(uffd);
    }
    keeper.spaces = (0..SPACES).map(|_| None).collect();
}

/// Opens the address spaces as the keeper had them, but for those that are open already.
///
/// # Errors
/// If a record of pages cannot be mapped. Its pages stay evicted meanwhile, and threads that touch
/// them wait.
fn open_spaces(keeper: &mut Keeper) -> Result<()> {
    let mut opened = Ok(());
    for (space, shared) in keeper.spaces.iter_mut().zip(&keeper.shared.spaces) {
        if space.is_some() || shared.used.load(Acquire) == 0 {
            continue;
        }
        let fd = shared.uffd.load(Relaxed);
        // SAFETY: the keeper had it open, and has ended without closing it.
        let table = match unsafe { Table::take(shared.table.load(Relaxed)) } {
            Ok(table) => table,
            Err(_) if sys::memory_is_gone(fd) => {
                shared.used.store(0, Release);
                continue;
            }
            Err(error) => {
                opened = Err(error);
                continue;
            }
        };
        let out =
            table.known(0, ADDRESSES).filter(|(_, word)| word.slot().is_some()).count() as u64;
        // SAFETY: as for the table's.
        let uffd = unsafe { OwnedFd::from_raw_fd(fd) };
        *space = Some(Space { uffd, table, out, there: -1 });
    }
    opened
}

/// Puts pages back that were on their way out when the keeper ended, or notes them in the store.
fn take_landed(keeper: &mut Keeper) {
    let count = keeper.shared.journaled.load(Acquire) as usize;
    let landed = keeper.landed(count);
    let is_quiet = unapplied(keeper.shared).next().is_none();
    for (index, _) in landed.iter().enumerate().filter(|(_, landed)| **landed) {
        let Some(content) = keeper.landed_page(index) else { return };
        let Some(space) = &mut keeper.spaces[0] else { return };
        let page = keeper.shared.journal[index].load(Relaxed);
        let word = space.table.get(page);
        // What is in the store already was noted before the journal was closed.
        if word.slot().is_some() {
            continue;
        }
        // Straight back takes no memory but the page's own. While a change of the mappings is under
        // way that is refused, and what was read of one must be applied first.
        let fd = space.uffd.as_raw_fd();
        if is_quiet && matches!(sys::copy_page(fd, page, &content), Ok(_) | Err(libc::EEXIST)) {
            continue;
        }
        let (offset, len) = keeper.store.rescue(index, &content);
        space.table.set(page, word.out(offset, len));
        space.out += 1;
    }
    keeper.shared.journaled.store(0, Release);
}

/// The messages that the keeper had read and not applied, or not in full.
fn unapplied(shared: &Shared) -> impl Iterator<Item = Message> {
    let applied = shared.applied.load(Acquire) as usize;
    // SAFETY: the keeper has ended, and this process reads none before these are applied.
    let messages: [Message; MESSAGES] = unsafe { *shared.messages.get() };
    messages.into_iter().skip(applied).filter(|message| message.event != 0)
}

/// Applies events that the keeper had read and not applied.
fn apply_unapplied(keeper: &mut Keeper) {
    let number = keeper.shared.reading.load(Acquire) as usize;
    for message in unapplied(keeper.shared) {
        keeper.apply(number, &message);
    }
    keeper.queue.clear();
}
