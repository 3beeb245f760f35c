//! The pager of a process: its parts, and how it starts.
//!
//! Nothing runs until the program holds enough memory to be worth it (see `count_committed`). Then
//! the *companion* is made ([`crate::threads::companion`]), a process that shares the program's
//! memory. Its first thread, the *keeper*, opens what is needed and makes the others. These are one
//! *handler* for each userfaultfd, the *mover*, and a *watcher* that ends the companion with the
//! program. None of these threads touches or allocates managed memory, ever.

use crate::counters::Account;
use crate::fault::buffers::Tools;
use crate::fault::event_queue::Events;
use crate::fault::fault_cost::FaultCost;
use crate::fault::following::Threads;
use crate::fault::run_tools::RestoreTools;
use crate::pages::control::{DO, Descriptors, IDLE, MoverControl, RangeRequest};
use crate::pages::lock::{Gate, Lock};
use crate::pages::mm::{Faults, Host, Mm, Mode, Warned};
use crate::pages::probation::Probation;
use crate::pages::ranges::Ranges;
use crate::pages::shards::{SHARD_SHIFT, SHARDS_MAX};
use crate::pages::staging::{STAGING_PAGES, Staging};
use crate::pages::table::Table;
use crate::proc_files::first_number;
use crate::stats_line::StatsMappings;
use crate::threads::fork_notes::ForkState;
use crate::threads::stacks::Companion;
use crate::threads::timer_thread::TimerThread;
use crate::trace::{FaultTimes, Trace};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use std::time::Duration;
use terrace_control::seccomp_probe::{probe, probe_confinement};
use terrace_control::settings::{Dram, Eviction, MIN_BUDGET_BYTES, Settings, Stress};
use terrace_control::stats::State;
use terrace_os::space::Span;
use terrace_os::{self as sys, Errno, Fd, PAGE, SignalsBlocked};
use terrace_tiers::{
    DramMedium, EXTENT_BYTES, FileMedium, Medium, MediumKind, Node, Open, Tier, TierKind, TierSpec,
    parse_tiers,
};

/// Figures of a program that has the pager linked in: see [`Pager::figures`].
#[derive(Clone, Debug)]
pub struct PagerStats {
    /// The budget for managed memory in DRAM, bytes, by what is touched now.
    pub budget_bytes: u64,
    /// Time for which threads have waited for memory so far, ns.
    pub stall_ns: u64,
    /// How much time the program lost by these waits, ns.
    pub lost_ns: u64,
    /// Bytes of managed memory that were touched, in DRAM or not.
    pub touched_bytes: u64,
    /// The tiers below DRAM.
    pub tiers: Vec<PagerTierStats>,
}

/// The figures of one tier.
#[derive(Clone, Debug)]
pub struct PagerTierStats {
    /// The tier's name, as in `--tiers`.
    pub name: String,
    /// Pages in the tier.
    pub pages: u64,
    /// Bytes that these pages take in the tier.
    pub stored_bytes: u64,
    /// Pages that were brought back from the tier.
    pub faults: u64,
    /// 99th percentile of the time that a restore took, ns.
    pub restore_p99_ns: u64,
}

/// Bytes of the pool's range that are reserved from the start: see [`terrace_os::space`].
const POOL_RESERVED: usize = 128 << 20;

/// The pager: one in each process, never freed.
pub struct Pager {
    /// The state that Terrace's threads need to move pages. A pager derefs to it.
    pub(crate) mm: Mm,
    pub(crate) companion: Companion,
    pub(crate) timers: TimerThread,
    /// Requests to the keeper.
    pub(crate) service: RangeRequest,
}

impl Deref for Pager {
    type Target = Mm;

    fn deref(&self) -> &Mm {
        &self.mm
    }
}

/// A request to the keeper: unregister the range, so that the kernel serves its faults again.
const UNREGISTER: u32 = 2;
/// A request to the keeper: lend the staging area to the kernel.
pub(crate) const LEND_STAGING: u32 = 3;
/// A request to the keeper: take the staging area back from the kernel.
pub(crate) const TAKE_STAGING: u32 = 4;
/// A request to the keeper: prepare the files of file tiers for a child that is about to be forked.
pub(crate) const SHARE_FILES: u32 = 5;
/// A request to the keeper: end what [`SHARE_FILES`] began, once the child is forked.
pub(crate) const FILES_SHARED: u32 = 6;
/// A request to the keeper: split huge pages.
const SPLIT: u32 = 8;
/// A request to the keeper: copy an evicted page that lies in a file.
pub(crate) const COPY_EVICTED: u32 = 9;
/// A request to the keeper: end the fault handlers, then end itself.
const RETIRE: u32 = 7;

impl Pager {
    /// A pager that does nothing yet. `Err` says in a sentence what is wrong with the settings or
    /// the address space.
    pub fn create(settings: Settings, host: Host) -> Result<&'static Pager, String> {
        Pager::create_with(settings, host, tier)
    }

    /// A pager that does nothing yet, with tiers that `tier` makes. `Err` says in a sentence what
    /// is wrong with the settings or the address space.
    pub(crate) fn create_with(
        settings: Settings,
        host: Host,
        tier: impl Fn(TierSpec, Arc<dyn Medium>) -> Tier,
    ) -> Result<&'static Pager, String> {
        let specs = parse_tiers(&settings.tiers).map_err(|e| e.to_string())?;
        sys::become_program();
        if let Some(injection) = settings.inject {
            injection.start();
        }
        // Room for four times the machine's memory: managed memory beyond that stays in DRAM.
        let machine_bytes = machine_memory_bytes();
        let regions =
            (machine_bytes * 4 / crate::pages::table::REGION as u64).clamp(4096, 1 << 22) as u32;
        let space =
            |e: Errno| format!("cannot reserve address space ({e}): raise the limit (ulimit -v)");
        let table = Table::new(regions).map_err(space)?;
        let pool_bytes = (machine_bytes as usize * 2).next_multiple_of(EXTENT_BYTES);
        let shared = memory(pool_bytes, None)?;
        let of_spec = |spec: TierSpec| match &spec.kind {
            TierKind::Compressed { medium: MediumKind::Node { node }, .. } => {
                let far = memory(pool_bytes, Some(*node))?;
                Ok(tier(spec, far))
            }
            _ => Ok(tier(spec, shared.clone())),
        };
        let mut tiers = specs.into_iter().map(of_spec).collect::<Result<Vec<Tier>, String>>()?;
        Tier::share_codecs(&mut tiers);
        let start_at = match (settings.stress, settings.dram) {
            (Stress::Off, Dram::Bytes(bytes)) => (bytes / 2).min(MIN_BUDGET_BYTES * 3 / 4) as usize,
            (Stress::Off, _) => (MIN_BUDGET_BYTES * 3 / 4) as usize,
            _ => 1 << 20,
        };
        let mm = Mm {
            account: Account::new(),
            fork: ForkState::new().map_err(space)?,
            faults: Faults {
                events: Events::default(),
                threads: Threads::default(),
                cost: FaultCost::default(),
                run_tools: RestoreTools::new(),
            },
            staging: Staging::new(STAGING_PAGES).map_err(space)?,
            trace: Trace::new(settings.trace_faults),
            settings,
            host,
            tiers,
            table,
            ranges: Lock::new(Ranges::default()),
            gate: Gate::default(),
            stats: StatsMappings::default(),
            descriptors: Descriptors::default(),
            mover: MoverControl::default(),
            probation: Probation::default(),
            mode: AtomicU32::new(Mode::Off as u32),
            frozen: AtomicBool::new(false),
            warned: Warned::default(),
            committed: AtomicUsize::new(0),
            start_at,
            probed: AtomicBool::new(false),
            restores_only: AtomicBool::new(false),
        };
        let pager = Pager {
            mm,
            companion: Companion::new().map_err(space)?,
            timers: TimerThread::default(),
            service: RangeRequest::default(),
        };
        let pager: &'static Pager = Box::leak(Box::new(pager));
        pager.open_stats(false);
        // Two that move the same pages would undo each other's moves. With a filter it is left so:
        // it may end a process that asks for that.
        if pager.far().is_some() && pager.moves() && !sys::is_filtered() {
            sys::leave_pages_in_their_nodes();
        }
        Ok(pager)
    }

    /// Makes the companion, unless that was done. Called by a thread of the program, which must
    /// hold no lock that an allocation needs. Returns when everything runs, or it is known that it
    /// cannot.
    pub fn start(&'static self) {
        let _signals = SignalsBlocked::new();
        let _forking = self.fork.forking.lock();
        if self
            .mode
            .compare_exchange(Mode::Off as u32, Mode::Starting as u32, AcqRel, Relaxed)
            .is_err()
        {
            return;
        }
        (self.host.enter_internal)();
        match self.companion.make(self) {
            Err(note) => self.fail(&note),
            Ok(()) => self.wait_for_start(),
        }
        (self.host.leave_internal)();
    }

    /// Starts the pager before the program gives up rights: what is opened now stays open. Called
    /// as [`Pager::start`] is.
    pub fn start_before_rights_go(&'static self) {
        if self.mode() == Mode::Off
            && self.has_purpose()
            && !self.is_shut_down()
            && !self.restores_only.load(Relaxed)
        {
            self.start();
        }
    }

    /// Waits until the start has succeeded or failed. Every way of the keeper ends the mode
    /// `Starting`. A time limit would let a process that was stopped go on half started.
    fn wait_for_start(&self) {
        while self.mode() == Mode::Starting {
            if self.companion.has_ended() && self.mode() == Mode::Starting {
                self.fail("the process beside the program ended before it was ready: all memory stays in DRAM");
            }
            sys::futex_wait(&self.mode, Mode::Starting as u32, Some(Duration::from_millis(100)));
        }
        if self.mode() == Mode::Active && !self.companion.holds() {
            self.keep_copies();
        }
        let failure = self.companion.take_failure();
        if !failure.is_empty() {
            self.warn(&failure);
        }
    }

    pub(crate) fn fail(&self, note: &str) {
        self.publish_state(State::Unmanaged, note);
        // What stops the companion is said by the thread of the program that waits for it.
        if sys::is_program() {
            self.warn(note);
        } else {
            self.companion.set_failure(note);
        }
        self.set_mode(Mode::Failed);
        sys::futex_wake(&self.mode, u32::MAX >> 1);
    }

    /// Makes what the companion's threads need of the C library now, rather than at the first
    /// start. Where that fails, the start says so.
    pub fn make_thread_storage(&self) {
        let _ = self.companion.make_thread_storage();
    }

    /// Figures that a program which has the pager linked in may tell of it.
    pub fn figures(&self) -> PagerStats {
        let touched_bytes = self.touched_bytes();
        let tiers = self.tiers.iter().skip(1).map(|tier| PagerTierStats {
            name: tier.spec.name.clone(),
            pages: tier.stats.pages(),
            stored_bytes: tier.stats.stored_bytes(),
            faults: tier.stats.faults(),
            restore_p99_ns: tier.stats.restore_quantile_ns(0.99),
        });
        let assigned = self.account.assigned_bytes.load(Relaxed);
        PagerStats {
            budget_bytes: self.settings.dram.budget_bytes(touched_bytes).min(assigned),
            stall_ns: self.account.stall_ns.load(Relaxed),
            lost_ns: self.account.lost_ns.load(Relaxed),
            touched_bytes,
            tiers: tiers.collect(),
        }
    }

    /// Notes a thread that the program has made.
    pub fn note_thread(&self, thread: libc::pthread_t) {
        self.faults.threads.add(sys::thread_pointer_of(thread));
    }

    /// Has the keeper restore every page of `start..end`; for threads of the program, which cannot
    /// reach the userfaultfds. The caller keeps the mover away (region locks, or a paused
    /// mover). What that takes counts as a wait of the thread, unless it comes by faults of the
    /// keeper's, which count themselves ([`Mm::restore_now`]).
    pub(crate) fn restore_range(&self, start: usize, end: usize) {
        let begun_ns = sys::now_ns();
        self.ask_keeper(DO, start, end);
        if !self.faults.events.bypasses_libc() {
            self.account.add_stall(sys::now_ns() - begun_ns, 0);
        }
    }

    /// Has the keeper unregister `start..end`, where nothing is evicted: the kernel serves it
    /// again.
    pub(crate) fn unregister_range(&self, start: usize, end: usize) {
        self.ask_keeper(UNREGISTER, start, end);
    }

    /// Has the keeper split the huge pages of regions in `start..end`, which the caller has locked,
    /// as far as they can be.
    pub(crate) fn split_range(&self, start: usize, end: usize) {
        self.ask_keeper(SPLIT, start, end);
    }

    pub(crate) fn ask_keeper(&self, what: u32, start: usize, end: usize) {
        if self.mode() == Mode::Active {
            self.call_keeper(what, start, end);
        }
    }

    fn call_keeper(&self, what: u32, start: usize, end: usize) {
        self.service.ask(
            what,
            start,
            end,
            || sys::futex_wake(&self.service.asked, 1),
            || !self.is_shut_down() && !self.companion.has_ended(),
        );
    }

    /// Ends the start: everything is there, and the program goes on. The calling thread is the
    /// keeper from now on.
    pub(crate) fn become_keeper(&self, note: &str) {
        self.account.count_this_thread();
        let (state, mode) = if self.moves() {
            (State::Active, Mode::Active)
        } else {
            (State::Observing, Mode::Observing)
        };
        self.publish_state(state, note);
        // A thread that changes a mapping right now looked at page states when there was no mover:
        // it is to finish first.
        self.gate.close();
        self.set_mode(mode);
        self.gate.open();
        sys::futex_wake(&self.mode, u32::MAX >> 1);
    }

    /// Serves requests to the keeper until it is asked to shut down.
    pub(crate) fn serve(&'static self, mut tools: Tools) {
        loop {
            if let Some((RETIRE, ..)) = self.service.asked() {
                self.stop_handlers();
                return self.service.done();
            }
            if !self.serve_one(&mut tools) {
                sys::futex_wait(&self.service.asked, IDLE, None);
            }
        }
    }

    /// Does what the keeper is asked; false if there is no request.
    pub(crate) fn serve_one(&self, tools: &mut Tools) -> bool {
        let Some((what, start, end)) = self.service.asked() else { return false };
        let staging = self.descriptors.staging.load(Relaxed);
        match what {
            UNREGISTER => {
                for uffd in &self.descriptors.uffds[..self.descriptors.shards.load(Relaxed)] {
                    // A range of several shards is each one's in part only: unregistered in pieces
                    // of one shard.
                    for (from, to) in shard_pieces(start, end) {
                        let _ = with_retries(|| {
                            sys::uffd_unregister(uffd.load(Relaxed), from, to - from)
                        });
                    }
                }
            }
            // Staging is plain memory where pages are copied out: see `open_descriptors`.
            LEND_STAGING | TAKE_STAGING if staging < 0 => self.staging.empty(0, STAGING_PAGES),
            LEND_STAGING => self.staging.unregister(staging),
            TAKE_STAGING => {
                if let Err(e) = with_retries(|| self.staging.register(staging)) {
                    self.freeze(&format!("staging cannot be registered again ({e})"));
                }
            }
            SPLIT => self.table.overlapping(start, end).for_each(|entry| {
                self.ensure_split(&entry);
            }),
            // SAFETY: `end` is the address of a `Wanted` of `copy_evicted`, whose thread waits for
            // the answer.
            COPY_EVICTED => unsafe { self.copy_evicted_for(start, end, tools) },
            SHARE_FILES => self.begin_sharing_files(),
            FILES_SHARED => self.end_sharing_files(),
            _ => self.restore_all_of(start, end, tools),
        }
        self.service.done();
        true
    }

    /// Ends our threads, when nothing is managed any more, and waits until they are gone: a second
    /// at most.
    pub(crate) fn end_threads(&self) {
        self.call_keeper(RETIRE, 0, 0);
        self.mover.shut_down.store(true, Release);
        self.wake_mover();
        // A handler stays in `read` if the kernel has no memory to wake it: the program goes on all
        // the same.
        for _ in 0..1000 {
            if self.companion.is_gone() && !self.timers.is_running() {
                return;
            }
            sys::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the handlers, in the keeper. Nothing but a message lets a handler out of `read`. So
    /// each gets one: a fault on a page that is used for nothing else.
    fn stop_handlers(&self) {
        let handlers = self.descriptors.shards.load(Acquire);
        let Ok(page) = sys::reserve(PAGE) else { return };
        self.descriptors.shutdown_page.store(page, Release);
        for uffd in self.descriptors.uffds[..handlers].iter().map(|uffd| uffd.load(Acquire)) {
            if with_retries(|| sys::uffd_register(uffd, page, PAGE, false)).is_ok() {
                sys::peek(page, &mut [0]);
                let _ = with_retries(|| sys::uffd_unregister(uffd, page, PAGE));
                // SAFETY: the page is this function's.
                unsafe { sys::empty(page, PAGE) };
            }
        }
    }

    fn restore_all_of(&self, start: usize, end: usize, tools: &mut Tools) {
        for entry in self.table.overlapping(start, end) {
            let base = entry.region.address();
            for address in
                (start.max(base)..end.min(base + crate::pages::table::REGION)).step_by(PAGE)
            {
                if !entry.word(address).load().is_present() {
                    self.restore_now(address, tools);
                }
            }
        }
    }

    /// Opens everything in the keeper's own descriptor table. `Err` is a sentence for the user.
    pub(crate) fn open_descriptors(&self) -> Result<(), String> {
        let table = &self.descriptors;
        // A forked child has what its parent was allowed; a filter that the program loads meanwhile
        // ends all this first.
        if !self.probed.load(Relaxed) {
            let directories: Vec<&str> =
                self.tiers.iter().filter_map(Tier::files).map(|files| files.directory()).collect();
            probe(&directories, self.far().is_some())?;
            self.companion.set_may_hold(probe_confinement());
            self.probed.store(true, Release);
        }
        sys::leave_descriptor_table(self.inherited_descriptors()).map_err(|e| {
            format!("cannot leave the program's descriptor table ({e}): all memory stays in DRAM")
        })?;
        self.check_inherited_files()?;
        let program = sys::watch_program().map_err(|e| {
            format!("cannot watch the program's process ({e}): all memory stays in DRAM")
        })?;
        table.program.store(program, Release);
        // That of this process, which stays. (A thread's would be empty once it has ended.)
        table
            .statm
            .store(sys::open("/proc/self/statm\0", libc::O_RDONLY, 0).unwrap_or(-1), Release);
        self.descriptors.mappings_max.store(
            first_number("/proc/sys/vm/max_map_count\0").unwrap_or(65_530) as usize,
            Relaxed,
        );
        match self.open_pagemap() {
            Ok(pagemap) => table.pagemap.store(pagemap, Release),
            // A forked child whose parent gave up its user id or /proc meanwhile: what is out must
            // come back; nothing more leaves.
            Err(problem) if self.table_has_evicted() => self.freeze(&problem),
            Err(problem) => return Err(problem),
        }
        if !self.moves() {
            return Ok(());
        }
        let device = sys::open("/dev/userfaultfd\0", libc::O_RDWR, 0).ok();
        let open = || {
            sys::userfaultfd(device).map_err(|e| match e {
                Errno::EPERM => "no permission for userfaultfd: all memory stays in DRAM. To change that: run as root, or give access to \
                    /dev/userfaultfd, or set sysctl vm.unprivileged_userfaultfd=1; in a container, allow it in the seccomp profile"
                    .to_string(),
                Errno::ENOSYS => {
                    "no userfaultfd in this kernel, or a seccomp filter (of a container?) hides it: all memory stays in DRAM. \
                    terrace doctor says more"
                        .to_string()
                }
                e => format!("userfaultfd failed ({e}): all memory stays in DRAM"),
            })
        };
        let agree = |fd: Fd| {
            let (feature, problem) = match self.settings.evict {
                Eviction::Move => (
                    sys::FEATURE_MOVE,
                    "this kernel has no UFFDIO_MOVE (needs Linux 6.8): all memory stays in DRAM. To change that: a newer kernel, or \
                     --evict wp if the program uses neither O_DIRECT nor io_uring",
                ),
                Eviction::WriteProtect => (
                    sys::FEATURE_WRITE_PROTECT,
                    "this kernel's userfaultfd cannot write-protect (needs Linux 5.7): all memory stays in DRAM",
                ),
            };
            sys::uffd_api(fd, feature).map(drop).map_err(|_| problem.to_string())
        };
        // Pages that are copied land in plain memory.
        if self.settings.evict == Eviction::Move {
            let staging = open()?;
            agree(staging)?;
            with_retries(|| self.staging.register(staging)).map_err(|e| {
                format!("userfaultfd refuses registration ({e}): all memory stays in DRAM")
            })?;
            table.staging.store(staging, Release);
        }
        let shards = sys::cpu_count().min(SHARDS_MAX);
        let mut tracks_writes = self.settings.evict == Eviction::Move;
        // A thread that reads events must be able to see whether there is one (Linux 6.10).
        let mut events = 0;
        if tracks_writes
            && sys::uffd_read_now(table.staging.load(Relaxed), &mut [sys::Message::default()])
                == Err(Errno::EAGAIN)
        {
            events = sys::FEATURE_EVENTS;
        }
        for slot in &table.uffds[..shards] {
            let fd = open()?;
            tracks_writes = tracks_writes
                && sys::uffd_api(fd, sys::FEATURE_MOVE | sys::FEATURE_WP_ASYNC | events).is_ok();
            if !tracks_writes {
                agree(fd)?;
            }
            slot.store(fd, Release);
        }
        self.descriptors.tracks_writes.store(tracks_writes, Relaxed);
        self.faults.events.set_events_enabled(tracks_writes && events != 0);
        table.shards.store(shards, Release);
        device.into_iter().for_each(sys::close);
        Ok(())
    }

    fn open_pagemap(&self) -> Result<Fd, String> {
        let pagemap = sys::open("/proc/self/pagemap\0", libc::O_RDONLY, 0).map_err(|e| match e {
            Errno::EACCES | Errno::EPERM => "no permission for /proc/self/pagemap: this process gave up its user id, or its parent did \
                before the fork. All memory stays in DRAM. To change that: fork first, or start as that user, with access to \
                /dev/userfaultfd"
                .to_string(),
            e => format!("cannot open /proc/self/pagemap ({e}): is /proc mounted here, and this process in it (a sandbox or chroot may hide it)? All memory stays in DRAM"),
        })?;
        let scan = || sys::scan_present(pagemap, 0, PAGE, &mut [sys::Run::default()]);
        // A kernel short of memory is asked again.
        (0..10).find_map(|_| scan().ok()).map_or_else(scan, Ok).map_err(|e| {
            format!("cannot read /proc/self/pagemap ({e}): all memory stays in DRAM")
        })?;
        // Tried with an address that is mapped: that of the local variable.
        if !sys::tells_of(pagemap, &raw const pagemap as usize) {
            return Err(
                "cannot read /proc/self/pagemap (by a seccomp filter?): all memory stays in DRAM"
                    .into(),
            );
        }
        Ok(pagemap)
    }

    /// Registers in a child what its parent had registered.
    pub(crate) fn register_inherited(&self) -> Result<(), String> {
        let all = self.ranges.lock().all();
        for range in all.into_iter().filter(|r| r.attributes.registered) {
            for (start, end) in shard_pieces(range.start, range.end) {
                let register = || {
                    sys::uffd_register(
                        self.uffd_of(start),
                        start,
                        end - start,
                        self.write_protects(),
                    )
                };
                match with_retries(register) {
                    Ok(()) => sys::keep_from_children(start, end - start),
                    // MADV_DONTFORK by an instruction of the program's own: the child has no such
                    // memory.
                    Err(Errno::EINVAL) => {}
                    Err(e) => {
                        return Err(format!(
                            "cannot register {start:#x}..{end:#x} in a forked child ({e})"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Registers or unregisters what must be: asks a kernel short of memory again, for a second.
fn with_retries(register: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 0..100 {
        match register() {
            Err(Errno::ENOMEM) => sys::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
    register()
}

/// Address space for pools, of `bytes`. Its memory comes from `node`, if one is named.
fn memory(bytes: usize, node: Option<u32>) -> Result<Arc<dyn Medium>, String> {
    let space =
        |e: Errno| format!("cannot reserve address space ({e}): raise the limit (ulimit -v)");
    let pool = Span::new(bytes, POOL_RESERVED).map_err(space)?;
    let start = pool.start;
    let open: Open = Box::new(move |start, bytes| {
        // SAFETY: a part of the range that the medium opens once, in whole extents.
        unsafe { pool.open(start, bytes) }?;
        // Where that is refused, the memory is of the nearest node: slower or faster, and as good.
        let _ = node.map(|node| sys::prefer_node(start, bytes, node));
        Ok(())
    });
    // SAFETY: the range was made here for this medium alone.
    let medium = unsafe { DramMedium::over(start, bytes, open) };
    Ok(Arc::new(medium.map_err(|e| e.to_string())?))
}

/// The tier that `spec` asks for. Its pool is in `memory`, unless it is in files or there is none.
fn tier(spec: TierSpec, memory: Arc<dyn Medium>) -> Tier {
    match &spec.kind {
        TierKind::Compressed { medium: MediumKind::File { directory }, .. } => {
            let files = FileMedium::new(directory);
            Tier::in_files(spec, files)
        }
        TierKind::Node { node } => {
            let node = Node::new(*node);
            Tier::in_node(spec, node)
        }
        TierKind::Swap => Tier::in_swap(spec),
        TierKind::Compressed { .. } | TierKind::Dram => Tier::new(spec, memory),
    }
}

/// Cuts a range at the borders between shards.
fn shard_pieces(start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
    let step = 1usize << SHARD_SHIFT;
    (start / step..end.div_ceil(step)).map(move |n| (start.max(n * step), end.min((n + 1) * step)))
}

/// Bytes of the machine's memory, from /proc/meminfo (its first line is MemTotal); 16 GiB if that
/// cannot be read.
fn machine_memory_bytes() -> u64 {
    first_number("/proc/meminfo\0").map_or(16 << 30, |kib| kib << 10)
}

impl Pager {
    /// Confines the calling thread of the companion, which has opened all that it needs: see
    /// [`sys::confine_thread`]. Tiers in files, far memory and the kernel's swap open files while
    /// they run, as do write-protecting eviction and allocation sites.
    pub(crate) fn confine_thread(&self) {
        let opens_files =
            self.tiers.iter().any(|tier| {
                tier.files().is_some() || tier.node().is_some() || tier.swap().is_some()
            }) || self.settings.evict == Eviction::WriteProtect
                || self.settings.sites;
        if self.companion.may_hold() && !opens_files {
            // Where the kernel has no filters the companion works as well without.
            let _ = sys::confine_thread(self.descriptors.program.load(Relaxed));
        }
    }
}

impl Pager {
    /// The times of the last fault on the page at `address`, if it was traced and no other has
    /// taken its place.
    pub fn fault_times(&self, address: usize) -> Option<FaultTimes> {
        self.trace.times_of(address)
    }

    /// The names of all tiers.
    pub fn tier_names(&self) -> impl Iterator<Item = &str> {
        self.tiers.iter().map(|tier| tier.spec.name.as_str())
    }

    /// The file in which this process tells of its allocation sites; `None` without a run
    /// directory.
    pub fn sites_path(&self) -> Option<String> {
        let page = self.stats()?;
        Some(format!(
            "{}/{}-{}.sites",
            self.settings.run_dir.as_ref()?,
            page.pid.load(Relaxed),
            page.started_ns.load(Relaxed)
        ))
    }
}
