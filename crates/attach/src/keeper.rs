//! The keeper: the process outside that serves, evicts, and in the end brings everything back.

use crate::channel::{Channel, Request};
use crate::family::Family;
use crate::filters::Purpose;
use crate::guard::Rescuer;
use crate::inject::{Injection, Traced};
use crate::limit::{Limit, SET, Sample};
use crate::paging::InSwap;
use crate::process;
use crate::seen::Children;
use crate::state::{BudgetCheck, Hand, Keeper, Shared, Space, Steady};
use crate::stats::AttachedStats;
use crate::stop::stop_any_thread;
use crate::store::Store;
use crate::stub::{HELD, Stub};
use crate::sys;
use crate::table::{ADDRESSES, Table};
use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;
use terrace_os::{fork_with_descriptors, name_thread, reap, signal_by_id};

/// Interval, ms, at which memory is measured; and where it has been the same for a second.
pub const TICK_MS: i32 = 20;
const STEADY_TICK_MS: i32 = 100;
const STEADY_MS: u64 = 1_000;
/// Interval, ms, at which the keeper looks which processes still live, and applies the limit.
const POLL_MS: u64 = 250;

/// How long a process must run a program that it has executed, before it is attached to again.
const STAYS_NS: u64 = 1_000_000_000;

/// Number of tries to take everything of ours away.
const TRIES: u32 = 5;

/// What was done to attach.
#[derive(Debug, Default)]
pub struct Attached {
    pub stopped_ns: u64,
    pub stub: i32,
}

impl Keeper {
    /// Attaches to a process that was checked.
    pub fn attach(
        target: i32,
        limit: Limit,
        family: Family,
        channel: Channel,
    ) -> Result<(Self, Attached)> {
        // The guard, which is forked later, holds these signals back too.
        let termination = sys::block_termination().context("signalfd")?;
        let pidfd = sys::pidfd_open(target).context("the process has ended")?;
        let open = |file: &str| {
            File::open(format!("/proc/{}/{file}", process::with_memory(target)))
                .with_context(|| format!("cannot open /proc/{target}/{file}"))
        };
        let (pagemap, memory) = (open("pagemap")?, open("mem")?);
        let (store, table, shared) = (Store::new(limit.codec)?, Table::new()?, Shared::new()?);
        let rescuer = Rescuer::begin(target, shared)?;
        let (stub, uffd, stopped_ns) = match plant(target, &shared.injection) {
            Ok(planted) => planted,
            Err(error) => {
                crate::guard::rescue(target, &shared.injection);
                return Err(error);
            }
        };
        let attached = Attached { stopped_ns, stub: stub.pid };
        let mut keeper = Keeper {
            target,
            stub,
            spaces: vec![Some(Space { uffd, table, out: 0, there: -1 })],
            store,
            shared,
            pagemap,
            memory,
            queue: VecDeque::new(),
            discards: VecDeque::new(),
            later: Vec::new(),
            hand: Hand::default(),
            in_swap: InSwap::default(),
            figures: AttachedStats {
                pid: target,
                program: process::name(target),
                budget_bytes: limit.budget.dram_bytes.unwrap_or(u64::MAX),
                limit: limit.budget.text.clone(),
                tier: limit.tier.clone(),
                stopped_us: stopped_ns / 1000,
                ..AttachedStats::default()
            },
            limit,
            family,
            children: Children::default(),
            crowd: Vec::new(),
            limited_ms: 0,
            steady: Steady::from(sys::now_ms()),
            budget_check: BudgetCheck::default(),
            frozen: false,
            pidfd,
            guard: None,
            channel,
            termination,
            polled_ms: 0,
            has_ended: false,
            over: false,
        };
        keeper.share_space(0);
        keeper.keep_guard();
        drop(rescuer);
        Ok((keeper, attached))
    }

    /// Notes an address space for the guard.
    pub fn share_space(&self, number: usize) {
        let (Some(space), shared) = (&self.spaces[number], &self.shared.spaces[number]) else {
            return;
        };
        shared.uffd.store(space.uffd.as_raw_fd(), Relaxed);
        shared.table.store(space.table.descriptor(), Relaxed);
        shared.used.store(1, Release);
    }

    /// Serves and evicts until told to leave, or until no process needs it. Returns whether that is
    /// since the process has executed another program.
    pub fn run(&mut self) -> Result<bool> {
        loop {
            self.serve_for(self.tick_ms());
            while let Some(mut request) = self.channel.next() {
                match request.text.as_str() {
                    "detach" => {
                        let left = self.leave_and_report();
                        request.answer(&match &left {
                            Ok(ms) => format!("ok {ms}"),
                            Err(error) => format!("error {error:#}"),
                        });
                        return left.map(|_| false);
                    }
                    "status" => self.tell(&mut request),
                    text if text.starts_with(SET) => {
                        let said = self.set(&text[SET.len()..]);
                        request.answer(&said.unwrap_or_else(|error| format!("error {error:#}")));
                    }
                    other => request.answer(&format!("error what is {other}?")),
                }
            }
            if sys::wait_readable(self.termination.as_raw_fd(), 0) {
                // systemd ends all processes of a unit at once: the program gets all its memory
                // back for its own orderly end.
                return self.leave_and_report().map(|_| false);
            }
            if self.poll_processes() {
                self.report();
                return Ok(!self.has_ended);
            }
            self.follow();
            if self.budget_is_due() {
                self.keep_budget();
            }
        }
    }

    /// Time until memory is measured again, if neither a fault nor a request comes before.
    fn tick_ms(&self) -> i32 {
        let steady_ms = sys::now_ms() - self.steady.since_ms;
        if steady_ms < STEADY_MS { TICK_MS } else { STEADY_TICK_MS }
    }

    /// Waits for faults and events, at most this many milliseconds, and answers them.
    pub fn serve_for(&mut self, milliseconds: i32) {
        self.wait(if self.later.is_empty() { milliseconds } else { 1 });
        self.pump();
        self.settle_discards();
        self.restore_crowd();
    }

    /// Takes another limit ([`Limit::change`]).
    fn set(&mut self, asked: &str) -> Result<String> {
        let family = &self.family;
        let said = self.limit.change(asked, |dram, budget| {
            // A share is of one process's data.
            if dram.ends_with('%') && !family.is_alone() {
                bail!("other processes share its limit: give a size, or detach and attach again");
            }
            family.set_limit(budget.dram_bytes);
            Ok(())
        })?;
        self.figures.limit = self.limit.budget.text.clone();
        self.limited_ms = 0;
        Ok(said)
    }

    /// Applies the limit, which may follow what is lost, and which several processes may share.
    fn follow(&mut self) {
        let now_ms = sys::now_ms();
        if now_ms - self.limited_ms < POLL_MS {
            return;
        }
        self.limited_ms = now_ms;
        self.measure();
        let figures = &self.figures;
        let physical = figures.physical_bytes();
        let sample = Sample {
            now_s: now_ms as f64 / 1e3,
            data: figures.data_bytes(),
            physical,
            waited_s: figures.waited_us as f64 / 1e6,
        };
        let followed = self.limit.budget.follow.as_mut().map_or(u64::MAX, |follow| follow(sample));
        self.figures.budget_bytes = followed.min(self.family.share(sample.data));
    }

    /// Whether the process runs the program that it has executed for a second, and no client asks
    /// for an end meanwhile.
    pub fn stays(&mut self) -> bool {
        let until = sys::now_ns() + STAYS_NS;
        while sys::now_ns() < until {
            self.wait(TICK_MS);
            let has_come = |fd: &OwnedFd| sys::wait_readable(fd.as_raw_fd(), 0);
            if has_come(&self.pidfd) || has_come(&self.termination) {
                return false;
            }
            while let Some(mut request) = self.channel.next() {
                match request.text.as_str() {
                    "detach" => {
                        request.answer("ok 0");
                        return false;
                    }
                    "status" => self.tell(&mut request),
                    _ => request.answer("error it has just executed another program: try again"),
                }
            }
        }
        true
    }

    /// Writes the figures where they were asked for.
    fn report(&self) {
        let Some(file) = &self.limit.report else { return };
        let text = serde_json::to_string_pretty(&self.figures).unwrap_or_default();
        // There is no client to be told.
        let _ = std::fs::write(file, text + "\n");
    }

    fn leave_and_report(&mut self) -> Result<u64> {
        let left = self.leave();
        self.report();
        left
    }

    /// Answers requests with a reason, while nothing else can be done for them.
    pub fn answer(&mut self, why: &str) {
        while let Some(mut request) = self.channel.next() {
            if request.text == "status" {
                let note = std::mem::replace(&mut self.figures.note, why.into());
                self.tell(&mut request);
                self.figures.note = note;
            } else {
                request.answer(&format!("error {why}"));
            }
        }
    }

    fn tell(&mut self, request: &mut Request) {
        self.measure();
        match serde_json::to_string(&self.figures) {
            Ok(text) => request.answer(&text),
            Err(error) => request.answer(&format!("error {error}")),
        }
    }

    /// Waits until there is something to do, at most this many milliseconds.
    fn wait(&self, milliseconds: i32) {
        let spaces = self.spaces.iter().flatten().map(|space| space.uffd.as_raw_fd());
        let target = (!self.has_ended).then_some(self.pidfd.as_raw_fd());
        // Once it leaves, or in the guard, there is nothing more to do for a signal.
        let termination = (!self.frozen).then_some(self.termination.as_raw_fd());
        let others = self.channel.descriptors().chain(termination);
        sys::wait_for_any(spaces.chain(others).chain(target), milliseconds);
    }

    /// Looks which processes have ended. Returns whether nothing is left to do.
    fn poll_processes(&mut self) -> bool {
        let now_ms = sys::now_ms();
        let has_just_ended = !self.has_ended && sys::wait_readable(self.pidfd.as_raw_fd(), 0);
        self.has_ended |= has_just_ended;
        if !has_just_ended && now_ms - self.polled_ms < POLL_MS {
            return false;
        }
        self.polled_ms = now_ms;
        self.stub.dead = self.stub.has_ended();
        self.keep_guard();
        self.poll_children();
        if !self.over {
            self.poll_shared_memory();
        }
        for number in 1..self.spaces.len() {
            let Some(space) = &self.spaces[number] else { continue };
            // After the stub's death a descriptor that it held stays open: faults still come.
            let is_held = !self.over && self.stub.dead && space.there >= 0;
            if space.out == 0 && !is_held || space.is_gone() {
                self.drop_space(number);
            }
        }
        if !self.over && self.is_over() {
            self.over = true;
            // The memory lives as long as the stub.
            self.stub.kill();
            self.drop_space(0);
        }
        self.over && self.spaces.iter().all(Option::is_none) && {
            self.shared.done.store(1, Release);
            self.end_guard();
            true
        }
    }

    /// Whether no process needs the target's memory any more.
    pub fn is_over(&mut self) -> bool {
        self.has_ended |= sys::wait_readable(self.pidfd.as_raw_fd(), 0);
        self.has_left() && !self.memory_is_shared()
    }

    /// Whether the target has ended or executes another program. The main thread may have ended
    /// before the others.
    fn has_left(&self) -> bool {
        if self.has_ended {
            return true;
        }
        if self.stub.has_ended() {
            return self.memory_is_gone();
        }
        process::has_other_memory(self.stub.pid, process::with_memory(self.target))
    }

    /// Whether no process has the target's memory any more.
    pub fn memory_is_gone(&self) -> bool {
        self.spaces[0].as_ref().is_none_or(Space::is_gone)
    }

    /// Whether a process besides the stub has the target's memory: a process made by vfork, or by
    /// clone with CLONE_VM.
    fn memory_is_shared(&self) -> bool {
        if self.stub.has_ended() {
            return !self.memory_is_gone();
        }
        process::all()
            .filter(|pid| *pid != self.stub.pid)
            .any(|pid| sys::shares_memory(self.stub.pid, process::with_memory(pid)) == Some(true))
    }

    /// Forgets an address space whose pages are all back, or which does not exist any more.
    pub fn drop_space(&mut self, number: usize) {
        let Some(space) = self.spaces[number].take() else { return };
        if let Some(shared) = self.shared.spaces.get(number) {
            shared.used.store(0, Release);
        }
        if space.out > 0 {
            let slots = space.table.known(0, ADDRESSES).filter_map(|(_, word)| word.slot());
            slots.for_each(|offset| self.store.release(offset));
        }
        if space.there >= 0 && !self.stub.dead {
            if number < HELD {
                self.stub.let_go(number);
            }
            let close = [libc::SYS_close as u64, space.there as u64, 0, 0, 0, 0, 0];
            let _ = self.stub.calls(&[close], &mut []);
        }
        self.queue.retain(|(of, _)| *of != number);
        self.later.retain(|(of, _)| *of != number);
        self.discards.retain(|discard| discard.space != number);
        self.crowd.retain(|of| *of != number);
    }

    /// Makes a guard where there is none.
    pub fn keep_guard(&mut self) {
        if let Some((pid, pidfd)) = &self.guard {
            if !sys::wait_readable(pidfd.as_raw_fd(), 0) {
                return;
            }
            reap(*pid);
            self.guard = None;
        }
        let keeper = sys::pidfd_open(std::process::id() as i32);
        let Ok(keeper) = keeper else { return };
        name_thread(c"terrace-guard");
        // SAFETY: this process has one thread, so every lock is free in the child. The guard closes
        // what the keeper uses only after the keeper's end.
        let forked = unsafe { fork_with_descriptors() };
        if forked != Ok(0) {
            name_thread(c"terrace-keeper");
        }
        match forked {
            Ok(0) => crate::guard::main(self, keeper.as_raw_fd()),
            Ok(pid) => {
                // Guard and keeper have one table: the descriptor stays open for the guard.
                std::mem::forget(keeper);
                self.guard = sys::pidfd_open(pid).ok().map(|pidfd| (pid, pidfd));
            }
            Err(_) => self.figures.note = "there is no guard: no process can be made".into(),
        }
    }

    /// Ends the guard, which has nothing to guard any more.
    fn end_guard(&mut self) {
        let Some((pid, _)) = self.guard.take() else { return };
        let _ = signal_by_id(pid, libc::SIGKILL);
        reap(pid);
    }

    /// Brings everything back, and takes everything of ours away. Returns how long that took, ms.
    pub fn leave(&mut self) -> Result<u64> {
        let started = sys::now_ns();
        self.frozen = true;
        self.restore_everything();
        self.over |= self.memory_is_gone();
        if self.shared.journaled.load(Acquire) > 0 && !self.over {
            bail!("pages on their way out cannot be read: who touches them waits");
        }
        for number in 1..self.spaces.len() {
            self.drop_space(number);
        }
        if !self.over {
            // First, as a thread that waits until its call is told of does not stop.
            self.unregister_everything();
            let mut tries = 1;
            while let Err(error) = self.uproot() {
                if tries == TRIES {
                    return Err(error);
                }
                tries += 1;
                self.pump();
            }
        }
        self.drop_space(0);
        self.shared.done.store(1, Release);
        self.end_guard();
        self.figures.detached_ms = (sys::now_ns() - started) / 1_000_000;
        Ok(self.figures.detached_ms)
    }

    /// Unregisters all memory. What the program has moved meanwhile is told by an event.
    fn unregister_everything(&mut self) {
        loop {
            let before = self.figures.events;
            let Some(space) = &self.spaces[0] else { return };
            for mapping in process::mappings(self.target).unwrap_or_default() {
                let _ = sys::unregister(space.uffd.as_raw_fd(), mapping.start, mapping.end);
            }
            self.pump();
            if self.figures.events == before {
                return;
            }
        }
    }

    fn uproot(&mut self) -> Result<()> {
        if !self.stub.dead && self.stub.uproot().is_ok() {
            return Ok(());
        }
        self.stub.kill();
        // The process has ended, or a thread would be stopped of another program that it executes.
        if sys::wait_readable(self.pidfd.as_raw_fd(), 0) || self.memory_is_gone() {
            return Ok(());
        }
        let injection = &self.shared.injection;
        let mut traced = if injection.is_under_way() {
            Traced::adopt(self.target, injection)?
        } else {
            injection.prepare(self.target)?;
            stop_any_thread(self.target, injection, Purpose::Leave)?
        };
        let unmapped = self.stub.unmap_by(&mut traced, self.target);
        traced.release()?;
        unmapped
    }

    /// Measures: what is resident, what is evicted.
    pub fn measure(&mut self) {
        let figures = &mut self.figures;
        figures.keeper = std::process::id() as i32;
        figures.guard = self.guard.as_ref().map_or(0, |(pid, _)| *pid);
        figures.stub = self.stub.pid;
        figures.resident_bytes = process::resident_anonymous(self.target).unwrap_or(0);
        let in_swap = figures.shared_out_bytes;
        figures.store_bytes = self.store.bytes() + self.in_swap.memory_of(in_swap);
        let spaces = || self.spaces.iter().flatten();
        let records = spaces().map(|space| space.table.bytes()).sum::<u64>();
        figures.overhead_bytes = records + self.in_swap.record_bytes();
        figures.out_bytes = self.spaces[0].as_ref().map_or(0, |space| space.out * sys::PAGE);
        figures.peak_bytes = figures.peak_bytes.max(figures.physical_bytes());
        figures.children = spaces().count() - usize::from(self.spaces[0].is_some());
    }
}

/// Puts a stub into a process, and takes hold of it. Returns also how long a thread stood still,
/// ns.
fn plant(target: i32, injection: &'static Injection) -> Result<(Stub, OwnedFd, u64)> {
    injection.prepare(target)?;
    let mut traced = stop_any_thread(target, injection, Purpose::Attach)?;
    let planted = Stub::plant(&mut traced, target, injection);
    let (stopped_ns, copy) = traced.release()?;
    planted?;
    let mut stub = Stub::find(target, injection)?;
    let number = process::number_there(target).context("the process has ended")?;
    stub.hold().and_then(|()| stub.confine(number))?;
    if let Some(page) = copy {
        stub.drop_copy(page);
    }
    let uffd = stub.uffd.try_clone().context("cannot copy a descriptor")?;
    Ok((stub, uffd, stopped_ns))
}
