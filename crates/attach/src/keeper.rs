//! The keeper: the process outside that serves, evicts, and in the end brings everything back.

use crate::channel::{Channel, Request};
use crate::evict::Hand;
use crate::figures::Figures;
use crate::inject::Traced;
use crate::process;
use crate::store::Store;
use crate::stub::{BATCH, Stub};
use crate::sys::{self, Message};
use crate::table::{ADDRESSES, Table};
use anyhow::{Context, Result, anyhow};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// Address spaces at a time: the target's, and those of forked children with pages out.
pub const SPACES: usize = 512;
/// How often memory is measured where nothing happens.
const TICK_MS: i32 = 20;
/// How often it is looked at who still lives.
const LOOK_MS: u64 = 250;

/// What keeper and guard both need to know.
#[repr(C)]
pub struct Shared {
    /// 1 when the keeper has left as it should.
    pub done: AtomicU32,
    /// How many pages of the journal count.
    pub journaled: AtomicU32,
    /// Addresses of the pages that are asked to land: the first lands first.
    pub journal: [AtomicU64; BATCH],
    /// The address spaces in use.
    pub spaces: [SharedSpace; SPACES],
    /// The address space whose messages are in the buffer, and how many of them were applied.
    pub reading: AtomicU32,
    pub applied: AtomicU32,
    /// The kernel writes messages here, so that none is lost with the process that read it.
    pub messages: std::cell::UnsafeCell<[Message; MESSAGES]>,
}
/// Messages that are read at a time.
pub const MESSAGES: usize = 64;

// SAFETY: the messages are used by one process at a time: the keeper, and after its end the guard.
unsafe impl Sync for Shared {}

/// Descriptors of one address space.
#[repr(C)]
pub struct SharedSpace {
    /// 1 while in use: written last.
    pub used: AtomicU32,
    pub uffd: AtomicI32,
    pub table: AtomicI32,
}

impl Shared {
    fn new() -> Result<&'static Shared> {
        let file = sys::memory_file(c"terrace-shared", size_of::<Shared>() as u64)?;
        let at = sys::map_shared(file.as_raw_fd(), size_of::<Shared>() as u64)?;
        // SAFETY: mapped for ever, zeroed, aligned to a page; all zero is a valid value.
        Ok(unsafe { &*at.cast() })
    }
}

/// One address space: its userfaultfd and its pages.
pub struct Space {
    pub uffd: OwnedFd,
    pub table: Table,
    /// Pages in the store.
    pub out: u64,
    /// The userfaultfd's number in the stub, of a child.
    pub there: i32,
}

/// Everything about one attached process.
pub struct Keeper {
    pub target: i32,
    pub stub: Stub,
    pub spaces: Vec<Option<Space>>,
    pub store: Store,
    pub shared: &'static Shared,
    pub pagemap: File,
    pub memory: File,
    pub queue: VecDeque<(usize, u64)>,
    pub hand: Hand,
    pub figures: Figures,
    /// Why nothing more is evicted, once that is so.
    pub frozen: bool,
    pidfd: OwnedFd,
    pub guard: Option<(i32, OwnedFd)>,
    channel: Channel,
    looked_ms: u64,
    /// The target has ended or executes another program: only its children are served.
    over: bool,
}

/// What was done to attach.
#[derive(Debug, Default)]
pub struct Attached {
    pub stopped_ns: u64,
    pub stub: i32,
}

impl Keeper {
    /// Attaches to a process that was checked.
    pub fn attach(target: i32, budget: u64, channel: Channel) -> Result<(Self, Attached)> {
        let pidfd = sys::pidfd_open(target).context("the process has ended")?;
        let open = |file: &str| {
            File::open(format!("/proc/{target}/{file}"))
                .with_context(|| format!("cannot open /proc/{target}/{file}"))
        };
        let (pagemap, memory) = (open("pagemap")?, open("mem")?);
        let (store, table, shared) = (Store::new()?, Table::new()?, Shared::new()?);
        let mut traced = stop_any_thread(target)?;
        let planted = Stub::plant(&mut traced, target);
        let stopped_ns = traced.release()?;
        let mut stub = planted?;
        let number = process::number_there(target).context("the process has ended")?;
        let armed = stub.hold().and_then(|()| stub.confine(number));
        if let Err(error) = armed {
            stub.uproot()?;
            return Err(error);
        }
        let attached = Attached { stopped_ns, stub: stub.pid };
        let uffd = stub.uffd.try_clone()?;
        let keeper = Keeper {
            target,
            stub,
            spaces: vec![Some(Space { uffd, table, out: 0, there: -1 })],
            store,
            shared,
            pagemap,
            memory,
            queue: VecDeque::new(),
            hand: Hand::default(),
            figures: Figures {
                pid: target,
                program: process::name(target),
                budget_bytes: budget,
                ..Figures::default()
            },
            frozen: false,
            pidfd,
            guard: None,
            channel,
            looked_ms: 0,
            over: false,
        };
        keeper.share_space(0);
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

    /// Serves and evicts until told to leave, or until nobody needs it.
    pub fn run(&mut self) -> Result<()> {
        loop {
            self.wait(TICK_MS);
            self.pump();
            while let Some(mut request) = self.channel.next() {
                match request.text.as_str() {
                    "detach" => {
                        let left = self.leave();
                        request.answer(&match &left {
                            Ok(ms) => format!("ok {ms}"),
                            Err(error) => format!("error {error:#}"),
                        });
                        return left.map(drop);
                    }
                    "status" => self.tell(&mut request),
                    other => request.answer(&format!("error what is {other}?")),
                }
            }
            if self.look_around() {
                return Ok(());
            }
            self.keep_budget();
        }
    }

    fn tell(&mut self, request: &mut Request) {
        self.measure();
        match serde_json::to_string(&self.figures) {
            Ok(text) => request.answer(&text),
            Err(error) => request.answer(&format!("error {error}")),
        }
    }

    /// Waits until there is something to do, at most some milliseconds.
    fn wait(&self, milliseconds: i32) {
        let mut polls: Vec<libc::pollfd> = self
            .spaces
            .iter()
            .flatten()
            .map(|space| space.uffd.as_raw_fd())
            .chain([self.channel.descriptor()])
            .chain((!self.over).then_some(self.pidfd.as_raw_fd()))
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
            .collect();
        // SAFETY: the structures are writable, and as many as is said.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, milliseconds) };
    }

    /// Looks who has ended. Whether nothing is left to do.
    fn look_around(&mut self) -> bool {
        let now_ms = sys::now_ns() / 1_000_000;
        let ended = !self.over && sys::wait_readable(self.pidfd.as_raw_fd(), 0);
        if !ended && now_ms - self.looked_ms < LOOK_MS {
            return false;
        }
        self.looked_ms = now_ms;
        self.keep_guard();
        for number in 1..self.spaces.len() {
            let Some(space) = &self.spaces[number] else { continue };
            let probe = sys::zero_page(space.uffd.as_raw_fd(), sys::PAGE);
            if space.out == 0 || probe == Err(libc::ESRCH) {
                self.drop_space(number);
            }
        }
        if !self.over && self.has_left() && !self.memory_is_shared() {
            self.over = true;
            // The memory lives as long as the stub.
            let _ = sys::kill(self.stub.pid, libc::SIGKILL);
            self.stub.dead = true;
            self.drop_space(0);
        }
        self.over && self.spaces.iter().all(Option::is_none) && {
            self.shared.done.store(1, Release);
            self.end_guard();
            true
        }
    }

    /// Whether the target has ended or executes another program.
    fn has_left(&self) -> bool {
        if sys::wait_readable(self.pidfd.as_raw_fd(), 0) {
            return true;
        }
        !self.stub.dead && sys::shares_memory(self.stub.pid, self.target) == Some(false)
    }

    /// Whether a process besides the stub has the target's memory: one made by vfork, or by clone
    /// with CLONE_VM.
    fn memory_is_shared(&self) -> bool {
        process::all()
            .filter(|pid| *pid != self.stub.pid)
            .any(|pid| sys::shares_memory(self.stub.pid, pid) == Some(true))
    }

    /// Forgets an address space whose pages are all back, or which is no more.
    pub fn drop_space(&mut self, number: usize) {
        let Some(space) = self.spaces[number].take() else { return };
        self.shared.spaces[number].used.store(0, Release);
        if space.out > 0 {
            for (_, word) in space.table.known(0, ADDRESSES) {
                if let crate::table::State::Out(offset, _) = word.state() {
                    self.store.release(offset);
                }
            }
        }
        if space.there >= 0 && !self.stub.dead {
            let close = [libc::SYS_close as u64, space.there as u64, 0, 0, 0, 0, 0];
            let _ = self.stub.calls(&[close], &mut []);
        }
        self.queue.retain(|(of, _)| *of != number);
    }

    /// Makes a guard where there is none.
    pub fn keep_guard(&mut self) {
        if let Some((pid, pidfd)) = &self.guard {
            if !sys::wait_readable(pidfd.as_raw_fd(), 0) {
                return;
            }
            // SAFETY: a child of ours that has ended.
            unsafe { libc::waitpid(*pid, std::ptr::null_mut(), 0) };
            self.guard = None;
        }
        let keeper = sys::pidfd_open(std::process::id() as i32);
        let Ok(keeper) = keeper else { return };
        // SAFETY: as fork, with the descriptors shared; this process has one thread, so every lock
        // is free in the child.
        let pid = unsafe {
            libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0)
        };
        match pid {
            0 => crate::guard::main(self, keeper.as_raw_fd()),
            1.. => {
                // Guard and keeper have one table: the descriptor stays open for the guard.
                std::mem::forget(keeper);
                self.guard = sys::pidfd_open(pid as i32).ok().map(|pidfd| (pid as i32, pidfd));
            }
            _ => self.figures.note = "there is no guard: no process can be made".into(),
        }
    }

    /// Ends the guard, which has nothing to guard any more.
    fn end_guard(&mut self) {
        let Some((pid, _)) = self.guard.take() else { return };
        let _ = sys::kill(pid, libc::SIGKILL);
        // SAFETY: a child of ours.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }

    /// Brings everything back, and takes everything of ours away. How long that took, ms.
    pub fn leave(&mut self) -> Result<u64> {
        let started = sys::now_ns();
        self.frozen = true;
        self.restore_everything();
        for number in 1..self.spaces.len() {
            self.drop_space(number);
        }
        if !self.over {
            self.uproot()?;
            if let Some(space) = &self.spaces[0] {
                for mapping in process::mappings(self.target).unwrap_or_default() {
                    let fd = space.uffd.as_raw_fd();
                    let _ = sys::unregister(fd, mapping.start, mapping.end);
                }
            }
        }
        self.drop_space(0);
        self.shared.done.store(1, Release);
        self.end_guard();
        Ok((sys::now_ns() - started) / 1_000_000)
    }

    fn uproot(&mut self) -> Result<()> {
        if !self.stub.dead && self.stub.uproot().is_ok() {
            return Ok(());
        }
        if sys::wait_readable(self.pidfd.as_raw_fd(), 0) {
            return Ok(());
        }
        let mut traced = stop_any_thread(self.target)?;
        self.stub.unmap_by(&mut traced)?;
        traced.release().map(drop)
    }

    /// Measures: what is resident, what is out.
    pub fn measure(&mut self) {
        let figures = &mut self.figures;
        figures.keeper = std::process::id() as i32;
        figures.guard = self.guard.as_ref().map_or(0, |(pid, _)| *pid);
        figures.stub = self.stub.pid;
        figures.resident_bytes = process::resident_anonymous(self.target).unwrap_or(0);
        figures.store_bytes = self.store.bytes();
        let spaces = || self.spaces.iter().flatten();
        figures.overhead_bytes = spaces().map(|space| space.table.bytes()).sum();
        figures.out_bytes = self.spaces[0].as_ref().map_or(0, |space| space.out * sys::PAGE);
        figures.children = spaces().count() - usize::from(self.spaces[0].is_some());
    }
}

/// Stops a thread of a process: the main thread, or another where that one has ended or hangs.
fn stop_any_thread(pid: i32) -> Result<Traced> {
    let main = Traced::stop(pid, pid);
    let Err(first) = main else { return main };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).context("the process has ended")?;
    let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    for tid in tids.filter(|tid: &i32| *tid != pid) {
        if let Ok(traced) = Traced::stop(pid, tid) {
            return Ok(traced);
        }
    }
    Err(anyhow!("{first:#}"))
}
