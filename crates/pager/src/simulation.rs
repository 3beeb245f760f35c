//! The pager's state machine against a simulated kernel. The real code of eviction, faults,
//! discards and forks runs; every kernel call fails at every point; other threads work inside every
//! call. A seed decides all of it. A shadow copy proves every byte.
//!
//! One thread plays all parts. Whenever the pager makes a kernel call, waits or yields, the kernel
//! here may first let others run, to a depth of [`DEPTH`]. The program's threads touch pages,
//! handlers serve faults, and the mover evicts (unless the mover made the call). It does not play:
//! - two threads inside the pager between kernel calls (the stress tests do);
//! - the child's side of a fork (`model_test` does). Here it is checked that the child could find
//!   everything.
//!
//! Steps: `TERRACE_SIMULATION_STEPS`, 10 million by default; seeds from `TERRACE_SIMULATION_SEED`
//! on, [`WORLD_STEPS`] for each.

use crate::evict::{EvictRequest, Evictor, RecompressFilter};
use crate::fault::buffers::Tools;
use crate::fault::inline::Cause;
use crate::fault::readahead::ReadAhead;
use crate::fault::restore::Outcome;
use crate::model_test::HOST;
use crate::pager::Pager;
use crate::pages::mm::Mode;
use crate::pages::staging::BATCH;
use crate::pages::table::REGION;
use crate::pages::word::State;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_control::settings::{Dram, Eviction, Settings};
use terrace_os::injection::Call;
use terrace_os::{self as sys, Errno, Fd, PAGE, Run};
use terrace_policy::eviction::victims::PRESSURE_MAX;
use terrace_tiers::Location;

const WORLD_STEPS: u64 = 1 << 21;
const DEPTH: u32 = 3;
const THREADS: usize = 4;
/// Two regions with this many pages in use each, on both sides of a border between userfaultfds.
const REGIONS: usize = 2;
const USED: usize = 96;
const PAGES: usize = REGIONS * USED;
/// Every so-many-th kernel call fails, where it can.
const FAIL_ONE_IN: u64 = 12;
const SHARD_BYTES: usize = 64 << 20;
const UFFDS: [Fd; 2] = [100, 101];
const STAGING_FD: Fd = 102;
const PAGEMAP_FD: Fd = 103;
/// Contents of memory that no thread may read.
const POISON: u8 = 0xDB;

type PageBytes = [u8; PAGE];

thread_local! {
    static KERNEL: RefCell<Option<Rc<Kernel>>> = const { RefCell::new(None) };
}

/// The kernel that this thread's calls go to instead of the real one.
pub(crate) fn kernel() -> Option<Rc<dyn sys::simulated::Kernel>> {
    KERNEL.with_borrow(|kernel| kernel.clone().map(|kernel| kernel as _))
}

/// A page table entry of the program.
#[derive(Clone, Copy)]
struct Pte {
    present: bool,
    /// The shared page of zeros.
    zero: bool,
    /// Copy-on-write since a fork.
    shared: bool,
    registered: Option<Fd>,
    writable: bool,
    /// Pinned for DMA: cannot be moved. (Write-protect and discard must not be used beside that.)
    pinned: bool,
    /// Writers wait.
    protected: bool,
    /// No thread has written since it was set.
    write_tracked: bool,
}

/// What a thread of the program does.
#[derive(Clone, Copy, PartialEq)]
enum Thread {
    Runs,
    /// Waits in the kernel for a page.
    Waits {
        page: usize,
        write: bool,
    },
}

#[derive(Clone, Copy)]
struct Message {
    page: usize,
    write: bool,
}

/// The simulated kernel, with the program in it.
pub(crate) struct Kernel {
    seed: u64,
    random: Cell<u64>,
    clock_ns: Cell<u64>,
    steps: Cell<u64>,
    depth: Cell<u32>,
    /// Number of waits in a row without progress of any thread.
    idle: Cell<u32>,
    base: usize,
    pager: &'static Pager,
    staging: (usize, usize),
    table: RefCell<Vec<Pte>>,
    staged: RefCell<Vec<bool>>,
    shadow: RefCell<Vec<PageBytes>>,
    threads: RefCell<[Thread; THREADS]>,
    messages: RefCell<Vec<Message>>,
    /// Number of turns in which handlers do not get to run.
    handlers_late: Cell<usize>,
    /// Pages whose messages handlers have taken, further down on this stack.
    serving: RefCell<Vec<usize>>,
    /// The tools and the read-ahead state of each handler that there may be on this stack.
    tools: RefCell<Vec<(Tools, ReadAhead)>>,
    /// Where a thread is that walks through memory, and whether it goes up.
    walk: Cell<(usize, bool)>,
    keeper_tools: RefCell<Tools>,
    evictor: RefCell<Evictor>,
    /// Regions that are locked further down on this stack, or in which a handler is at work there:
    /// the mover would wait.
    busy: RefCell<Vec<usize>>,
    /// The first page of which the kernel discards nothing, during a discard.
    refused: Cell<usize>,
    /// The kernel forks at any moment.
    forking: Cell<bool>,
    children: Cell<u32>,
    failures: RefCell<BTreeMap<(Call, i32), u64>>,
    moved: Cell<u64>,
    miscounts: Cell<u64>,
    restored: Cell<u64>,
    /// Restored pages that threads of the program asked for, and (next field) claims that these
    /// threads gave back.
    ahead: Cell<u64>,
    given_back: Cell<u64>,
    runs: Cell<u64>,
    forks: Cell<u64>,
}

/// What the pager calls.
impl sys::simulated::Kernel for Kernel {
    fn now_ns(&self) -> u64 {
        self.clock_ns.set(self.clock_ns.get() + 1_000);
        self.clock_ns.get()
    }

    fn close(&self, _fd: Fd) {}

    fn userfaultfd(&self) -> Fd {
        110
    }

    fn warn(&self, line: &str) {
        // Out of memory for a moment is part of the game.
        if !line.starts_with("the kernel cannot put a page back yet") {
            self.wrong(line);
        }
    }

    /// A thread sleeps or yields: the others go on.
    fn wait(&self, time: Option<Duration>) {
        self.clock_ns.set(self.clock_ns.get() + time.map_or(0, |t| t.as_nanos() as u64));
        self.idle.set(self.idle.get() + 1);
        if self.idle.get() > 100_000 {
            self.wrong("somebody waits for ever");
        }
        if let Ok(mut tools) = self.keeper_tools.try_borrow_mut()
            && self.pager.service.asked().is_some()
        {
            // The keeper is ours alone: no nested keeper.
            self.pager.serve_one(&mut tools);
            return;
        }
        self.others();
    }

    fn advise(&self, start: usize, len: usize, advice: i32) -> Result<(), Errno> {
        const DONTNEED_LOCKED: i32 = 24;
        self.others();
        if let Some(slot) = self.slot(start) {
            assert!(matches!(advice, libc::MADV_DONTNEED | DONTNEED_LOCKED));
            if let Some(errno) = self.strike(Call::Empty) {
                return Err(errno);
            }
            for slot in slot..slot + len / PAGE {
                if std::mem::replace(&mut self.staged.borrow_mut()[slot], false) {
                    self.poison(self.staging.0 + slot * PAGE);
                }
            }
            return Ok(());
        }
        match advice {
            libc::MADV_NOHUGEPAGE | libc::MADV_DONTFORK | libc::MADV_DOFORK => Ok(()),
            libc::MADV_DONTNEED => self.drop_copied(start, len),
            libc::MADV_COLD if start + len > self.refused.get() => Err(Errno::EINVAL),
            libc::MADV_COLD => Ok(()),
            libc::MADV_POPULATE_WRITE => {
                if let Some(errno) = self.strike(Call::Populate) {
                    return Err(errno);
                }
                let page = self
                    .page(start)
                    .unwrap_or_else(|| self.wrong("populating what is not the program's"));
                let mut table = self.table.borrow_mut();
                if !table[page].present {
                    drop(table);
                    self.wrong("populating would fault, in the mover");
                }
                table[page].shared = false;
                Ok(())
            }
            _ => self.wrong("unexpected advice"),
        }
    }

    fn copy_pages(&self, from: usize, to: usize, pages: usize) -> usize {
        self.others();
        let copied = if self.strike(Call::Read).is_some() { self.below(pages) } else { pages };
        for i in 0..copied {
            let (from, to) = (from + i * PAGE, to + i * PAGE);
            let page =
                self.page(from).unwrap_or_else(|| self.wrong("copying what is not the program's"));
            if !self.table.borrow()[page].present {
                self.wrong("copying would fault, in the mover");
            }
            let slot =
                self.slot(to).unwrap_or_else(|| self.wrong("copying to what is not staging"));
            if std::mem::replace(&mut self.staged.borrow_mut()[slot], true) {
                self.wrong("a slot is used twice");
            }
            self.put(to, self.bytes(from));
        }
        self.others();
        copied
    }

    fn track_writes(&self, start: usize, end: usize) -> Result<(), Errno> {
        for address in (start..end).step_by(PAGE) {
            if let Some(errno) = self.strike(Call::Scan) {
                return Err(errno);
            }
            if let Some(page) = self.page(address) {
                let pte = &mut self.table.borrow_mut()[page];
                pte.write_tracked |= pte.registered.is_some() && pte.present && !pte.zero;
            }
        }
        Ok(())
    }

    fn scan_present(
        &self,
        start: usize,
        end: usize,
        runs: &mut [Run],
        tell: bool,
    ) -> Result<(usize, usize), Errno> {
        self.others();
        if let Some(errno) = self.strike(Call::Scan) {
            return Err(errno);
        }
        let table = self.table.borrow();
        let mut count = 0;
        for address in (start..end).step_by(PAGE) {
            let Some(pte) =
                self.page(address).map(|page| table[page]).filter(|pte| pte.present && !pte.zero)
            else {
                continue;
            };
            let written = tell && !pte.write_tracked;
            if count > 0
                && runs[count - 1].end == address as u64
                && runs[count - 1].is_written() == written
            {
                runs[count - 1].end += PAGE as u64;
                continue;
            }
            if count == runs.len() {
                return Ok((count, address));
            }
            runs[count] = Run::of(address, written);
            count += 1;
        }
        Ok((count, end))
    }

    fn pagemap_entry(&self, address: usize) -> Result<u64, Errno> {
        if let Some(errno) = self.strike(Call::Entry) {
            return Err(errno);
        }
        let bits =
            |present: bool, exclusive: bool| u64::from(present) << 63 | u64::from(exclusive) << 56;
        if let Some(slot) = self.slot(address) {
            return Ok(bits(self.staged.borrow()[slot], true));
        }
        let page =
            self.page(address).unwrap_or_else(|| self.wrong("asked for a page that is nobody's"));
        let pte = self.table.borrow()[page];
        Ok(bits(pte.present, pte.present && (!pte.shared || self.children.get() == 0)))
    }

    fn uffd_ioctl(&self, fd: Fd, request: u64, args: &mut [u64]) -> Result<(), Errno> {
        self.others();
        let (start, second, len) =
            (args[0] as usize, args[1] as usize, args.get(2).copied().unwrap_or(0) as usize);
        let result = match request {
            sys::UFFDIO_REGISTER => self.set_registered(start, second, Some(fd)),
            sys::UFFDIO_UNREGISTER => self.set_registered(start, second, None),
            sys::UFFDIO_WAKE => {
                self.wake(start, second);
                Ok(())
            }
            sys::UFFDIO_COPY => self.copy(fd, start, second, len, &mut args[4]),
            sys::UFFDIO_ZEROPAGE => self.zero(fd, start, second),
            sys::UFFDIO_WRITEPROTECT => self.write_protect(start, second, args[2] == 1),
            sys::UFFDIO_MOVE => self.move_out(fd, start, second, len, &mut args[4]),
            _ => self.wrong("unexpected ioctl"),
        };
        self.others();
        result
    }

    /// Reads no message by itself: waiting threads are served in turns of their own.
    fn read_now(&self, _messages: &mut [sys::Message]) -> Result<usize, Errno> {
        self.others();
        match self.messages.borrow().len() {
            0 => Err(Errno::EAGAIN),
            _ if self.one_in(4) => Ok(0),
            _ => Err(Errno::EAGAIN),
        }
    }
}

impl Kernel {
    /// Odd seeds evict by moving, even ones by write-protecting.
    fn new(seed: u64) -> Rc<Kernel> {
        let evict = if seed.is_multiple_of(2) { Eviction::WriteProtect } else { Eviction::Move };
        let settings = Settings { dram: Dram::Bytes(1 << 40), evict, ..Settings::default() };
        let pager = Pager::create(settings, HOST).unwrap();
        let reserved = sys::reserve(2 * SHARD_BYTES).unwrap();
        let base = (reserved + REGION).next_multiple_of(SHARD_BYTES) - REGION;
        let unused = Pte {
            present: false,
            zero: false,
            shared: false,
            registered: None,
            writable: true,
            pinned: false,
            protected: false,
            write_tracked: false,
        };
        let staging = pager.staging.range();
        let kernel = Rc::new(Kernel {
            seed,
            random: Cell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            clock_ns: Cell::new(1_000_000_000),
            steps: Cell::new(0),
            depth: Cell::new(0),
            idle: Cell::new(0),
            base,
            pager,
            staging,
            table: RefCell::new(vec![unused; PAGES]),
            staged: RefCell::new(vec![false; (staging.1 - staging.0) / PAGE]),
            shadow: RefCell::new(vec![[0; PAGE]; PAGES]),
            threads: RefCell::new([Thread::Runs; THREADS]),
            messages: RefCell::default(),
            handlers_late: Cell::new(0),
            serving: RefCell::default(),
            tools: RefCell::new((0..=DEPTH).map(|_| (Tools::new(), ReadAhead::new())).collect()),
            walk: Cell::new((0, true)),
            keeper_tools: RefCell::new(Tools::new()),
            evictor: RefCell::new(Evictor::new(pager)),
            busy: RefCell::default(),
            refused: Cell::new(usize::MAX),
            forking: Cell::new(false),
            children: Cell::new(0),
            failures: RefCell::default(),
            moved: Cell::new(0),
            miscounts: Cell::new(0),
            restored: Cell::new(0),
            ahead: Cell::new(0),
            given_back: Cell::new(0),
            runs: Cell::new(0),
            forks: Cell::new(0),
        });
        sys::simulated::simulate(self::kernel);
        KERNEL.set(Some(kernel.clone()));
        for page in 0..PAGES {
            kernel.poison(kernel.address(page));
        }
        let descriptors = &pager.descriptors;
        descriptors.staging.store(STAGING_FD, Relaxed);
        descriptors.pagemap.store(PAGEMAP_FD, Relaxed);
        descriptors.uffds.iter().zip(UFFDS).for_each(|(slot, fd)| slot.store(fd, Relaxed));
        descriptors.shards.store(UFFDS.len(), Relaxed);
        pager.descriptors.mappings_max.store(1 << 16, Relaxed);
        // Some kernels track writes.
        pager.descriptors.tracks_writes.store(evict == Eviction::Move && seed % 4 == 1, Relaxed);
        pager.companion.simulate();
        pager.set_mode(Mode::Active);
        for region in 0..REGIONS {
            pager.manage(base + region * REGION, USED * PAGE, true);
        }
        kernel
    }

    // ---- small helpers ----

    fn next(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    fn below(&self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&self, times: u64) -> bool {
        self.next().is_multiple_of(times)
    }

    fn address(&self, page: usize) -> usize {
        self.base + page / USED * REGION + page % USED * PAGE
    }

    /// The page at an address, if it is one in use.
    fn page(&self, address: usize) -> Option<usize> {
        let offset = address.checked_sub(self.base)?;
        let (region, page) = (offset / REGION, offset % REGION / PAGE);
        (region < REGIONS && page < USED).then_some(region * USED + page)
    }

    fn slot(&self, address: usize) -> Option<usize> {
        (self.staging.0..self.staging.1)
            .contains(&address)
            .then(|| (address - self.staging.0) / PAGE)
    }

    #[track_caller]
    fn wrong(&self, what: &str) -> ! {
        panic!("seed {} step {}: {what}", self.seed, self.steps.get());
    }

    fn bytes(&self, address: usize) -> &PageBytes {
        // SAFETY: pages of this simulation's reservations, which live for ever; only this thread
        // changes them, and no reference outlives the expression that made it.
        unsafe { &*(address as *const PageBytes) }
    }

    fn put(&self, address: usize, bytes: &PageBytes) {
        // SAFETY: as above.
        unsafe { *(address as *mut PageBytes) = *bytes }
    }

    fn poison(&self, address: usize) {
        self.put(address, &[POISON; PAGE]);
    }

    /// Whether this call fails, and how.
    fn strike(&self, call: Call) -> Option<Errno> {
        if !self.one_in(FAIL_ONE_IN) {
            return None;
        }
        let errors = call.errors();
        let errno = errors[self.below(errors.len())];
        *self.failures.borrow_mut().entry((call, errno.into_raw())).or_default() += 1;
        Some(errno)
    }

    /// The mover's discard of pages that it copied; may fail half-way.
    fn drop_copied(&self, start: usize, len: usize) -> Result<(), Errno> {
        for address in (start..start + len).step_by(PAGE) {
            if let Some(errno) = self.strike(Call::Drop) {
                return Err(errno);
            }
            let page = self
                .page(address)
                .unwrap_or_else(|| self.wrong("discarding what is not the program's"));
            let pte = self.table.borrow()[page];
            if !pte.present || !pte.protected {
                self.wrong("discarding a page that may have changed since it was copied");
            }
            self.table.borrow_mut()[page].present = false;
            self.table.borrow_mut()[page].protected = false;
            self.poison(address);
            self.moved.set(self.moved.get() + 1);
            self.others();
        }
        Ok(())
    }

    fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        for address in (start..start + len).step_by(PAGE) {
            if let Some(errno) = self.strike(Call::Protect) {
                return Err(errno);
            }
            let page = self
                .page(address)
                .unwrap_or_else(|| self.wrong("protecting what is not the program's"));
            let mut table = self.table.borrow_mut();
            if table[page].registered.is_none() {
                return Err(Errno::ENOENT);
            }
            if self.pager.descriptors.tracks_writes.load(Relaxed) {
                table[page].write_tracked = on;
            } else {
                table[page].protected = on && table[page].present;
            }
        }
        if !on {
            self.wake(start, len);
        }
        Ok(())
    }

    // ---- the ioctls ----

    fn set_registered(&self, start: usize, len: usize, fd: Option<Fd>) -> Result<(), Errno> {
        let call = if fd.is_some() { Call::Register } else { Call::Unregister };
        if let Some(errno) = self.strike(call) {
            return Err(errno);
        }
        let pages = (start..start + len).step_by(PAGE).filter_map(|address| self.page(address));
        for page in pages {
            let mut table = self.table.borrow_mut();
            table[page].registered = fd;
            table[page].protected &= fd.is_some();
        }
        if fd.is_none() {
            self.wake(start, len);
        }
        Ok(())
    }

    /// In the kernel's order, page by page; all must be in one of its mappings.
    fn copy(
        &self,
        fd: Fd,
        dst: usize,
        src: usize,
        len: usize,
        copied: &mut u64,
    ) -> Result<(), Errno> {
        let mapping = |page: usize| {
            self.page(dst + page * PAGE)
                .map(|page| self.table.borrow()[page])
                .map(|pte| (pte.registered, pte.writable))
        };
        if (0..len / PAGE).any(|page| mapping(page) != mapping(0)) {
            return Err(Errno::ENOENT);
        }
        self.runs.set(self.runs.get() + u64::from(len > PAGE));
        for page in 0..len / PAGE {
            let from = src + page * PAGE;
            if self.slot(from).is_some_and(|slot| !self.staged.borrow()[slot]) {
                self.wrong("an empty staging slot is read");
            }
            let bytes = *self.bytes(from);
            if let Err(errno) = self.fill(Call::Copy, fd, dst + page * PAGE, &bytes) {
                *copied =
                    if page > 0 { (page * PAGE) as u64 } else { -(errno.into_raw() as i64) as u64 };
                return Err(if page > 0 { Errno::EAGAIN } else { errno });
            }
            if len > PAGE {
                self.others();
            }
        }
        *copied = len as u64;
        Ok(())
    }

    /// All must be in one mapping that is registered, with whatever userfaultfd; then the first
    /// page that is there ends it.
    fn zero(&self, fd: Fd, dst: usize, len: usize) -> Result<(), Errno> {
        let mapping =
            |page: usize| self.page(dst + page * PAGE).map(|page| self.table.borrow()[page]);
        let kind = |page: usize| mapping(page).map(|pte| (pte.registered, pte.writable));
        if mapping(0).is_none_or(|pte| pte.registered.is_none())
            || (0..len / PAGE).any(|page| kind(page) != kind(0))
        {
            return Err(Errno::ENOENT);
        }
        if mapping(0).is_some_and(|pte| pte.present) {
            return Err(self.strike(Call::Zero).unwrap_or(Errno::EEXIST));
        }
        if len > PAGE {
            self.wrong("a claimed page has gone");
        }
        self.fill(Call::Zero, fd, dst, &[0; PAGE])
    }

    fn fill(&self, call: Call, fd: Fd, dst: usize, bytes: &PageBytes) -> Result<(), Errno> {
        if let Some(errno) = self.strike(call) {
            return Err(errno);
        }
        let page =
            self.page(dst).unwrap_or_else(|| self.wrong("filling what is not the program's"));
        let mut table = self.table.borrow_mut();
        let pte = &mut table[page];
        if pte.registered != Some(fd) {
            return Err(Errno::ENOENT);
        }
        if pte.present {
            return Err(Errno::EEXIST);
        }
        *pte = Pte {
            present: true,
            zero: call == Call::Zero,
            shared: false,
            pinned: false,
            protected: false,
            write_tracked: false,
            ..*pte
        };
        drop(table);
        self.put(dst, bytes);
        if *self.bytes(dst) != self.shadow.borrow()[page] {
            self.wrong(&format!("page {page} comes back with other contents"));
        }
        self.restored.set(self.restored.get() + 1);
        self.wake(dst, PAGE);
        Ok(())
    }

    /// In the kernel's order, page by page; what comes first decides.
    fn move_out(
        &self,
        fd: Fd,
        dst: usize,
        src: usize,
        len: usize,
        moved: &mut u64,
    ) -> Result<(), Errno> {
        if let Some(errno) = self.strike(Call::Move) {
            return Err(errno);
        }
        assert_eq!(fd, STAGING_FD);
        let first =
            self.page(src).unwrap_or_else(|| self.wrong("moving what is not the program's"));
        let alike = |a: Pte, b: Pte| a.registered == b.registered && a.writable == b.writable;
        let mut uncounted = 0;
        for page in 0..len / PAGE {
            let (from, to) = (src + page * PAGE, dst + page * PAGE);
            let slot = self.slot(to).unwrap_or_else(|| self.wrong("moving to what is not staging"));
            let source = self
                .page(from)
                .filter(|source| alike(self.table.borrow()[*source], self.table.borrow()[first]));
            let stop = match source.map(|source| self.table.borrow()[source]) {
                None => Some(Errno::EINVAL),
                Some(pte) if !pte.writable => Some(Errno::EINVAL),
                Some(_) if self.staged.borrow()[slot] => Some(Errno::EEXIST),
                Some(pte) if !pte.present => Some(Errno::ENOENT),
                Some(pte) if pte.pinned || pte.shared => Some(Errno::EBUSY),
                // Enough for now.
                Some(_) if page > 0 && self.one_in(24) => Some(Errno::EAGAIN),
                Some(_) => None,
            };
            if let Some(errno) = stop {
                let errno = if uncounted > 0 { Errno::EEXIST } else { errno };
                let done = page - uncounted;
                *moved =
                    if done > 0 { (done * PAGE) as u64 } else { -(errno.into_raw() as i64) as u64 };
                return Err(if done > 0 { Errno::EAGAIN } else { errno });
            }
            let source = source.unwrap_or_else(|| self.wrong("decided above"));
            self.table.borrow_mut()[source].present = false;
            self.staged.borrow_mut()[slot] = true;
            self.put(to, self.bytes(from));
            self.poison(from);
            self.moved.set(self.moved.get() + 1);
            if uncounted > 0 || self.one_in(200) {
                uncounted += 1;
            }
        }
        if uncounted > 0 {
            self.miscounts.set(self.miscounts.get() + 1);
            let done = len / PAGE - uncounted;
            *moved = if done > 0 {
                (done * PAGE) as u64
            } else {
                -(Errno::EEXIST.into_raw() as i64) as u64
            };
            return Err(if done > 0 { Errno::EAGAIN } else { Errno::EEXIST });
        }
        *moved = len as u64;
        Ok(())
    }

    fn wake(&self, start: usize, len: usize) {
        let mut threads = self.threads.borrow_mut();
        for thread in threads.iter_mut() {
            if let Thread::Waits { page, .. } = *thread
                && (start..start + len).contains(&self.address(page))
            {
                *thread = Thread::Runs;
            }
        }
    }

    // ---- the program, the handlers, the mover ----

    /// Lets other threads run for a while, inside whatever is under way.
    fn others(&self) {
        if self.forking.get() && self.one_in(4) {
            self.check_child();
        }
        if self.depth.get() >= DEPTH || !self.one_in(3) {
            return;
        }
        self.depth.set(self.depth.get() + 1);
        for _ in 0..1 + self.below(3) {
            self.steps.set(self.steps.get() + 1);
            match self.below(8) {
                0..4 if self.one_in(8) => self.ask_ahead(),
                0..4 => self.touch(),
                4..7 => self.serve_fault(),
                _ => self.evict_elsewhere(),
            }
        }
        self.depth.set(self.depth.get() - 1);
    }

    /// A thread of the program reads or writes a page.
    fn touch(&self) {
        let who = self.below(THREADS);
        if self.threads.borrow()[who] != Thread::Runs {
            return;
        }
        // Some pages are hot, and some are touched by two at once.
        let awaited = match self.threads.borrow()[self.below(THREADS)] {
            Thread::Waits { page, .. } if self.one_in(4) => Some(page),
            _ => None,
        };
        let walk = self.walk.get();
        let walks = self.one_in(3);
        if walks {
            // One page further, and now and then elsewhere.
            let (page, up) =
                if self.one_in(32) { (self.below(PAGES), self.one_in(2)) } else { walk };
            self.walk.set(((page + if up { 1 } else { PAGES - 1 }) % PAGES, up));
        }
        let any = if walks {
            walk.0
        } else if self.one_in(2) {
            self.below(PAGES)
        } else {
            self.below(REGIONS) * USED + self.below(8)
        };
        self.touch_page(who, awaited.unwrap_or(any));
    }

    fn touch_page(&self, who: usize, page: usize) {
        if self.threads.borrow()[who] != Thread::Runs {
            return;
        }
        let pte = self.table.borrow()[page];
        let write = pte.writable && self.one_in(2);
        if (!pte.present || write && pte.protected) && pte.registered.is_some() {
            self.threads.borrow_mut()[who] = Thread::Waits { page, write };
            self.messages.borrow_mut().push(Message { page, write });
            return;
        }
        self.idle.set(0);
        let address = self.address(page);
        if !pte.present {
            // The kernel alone serves it: a page of zeros.
            self.put(address, &[0; PAGE]);
            let mut table = self.table.borrow_mut();
            (table[page].present, table[page].zero, table[page].shared) = (true, true, false);
        }
        if *self.bytes(address) != self.shadow.borrow()[page] {
            self.wrong(&format!("page {page} reads wrong"));
        }
        if write {
            let contents = self.contents();
            self.put(address, &contents);
            self.shadow.borrow_mut()[page] = contents;
            let mut table = self.table.borrow_mut();
            (table[page].zero, table[page].shared, table[page].write_tracked) =
                (false, false, false);
            table[page].pinned = self.one_in(64);
        }
    }

    /// A thread of the program says what it is about to touch, and brings it back itself. Its
    /// descriptor may have become another.
    fn ask_ahead(&self) {
        let address = self.address(self.below(PAGES));
        let Some(entry) = self.pager.table.get(address) else { return };
        let end = entry.region.address() + USED * PAGE;
        let most = self.pager.evicted_run_len(&entry, address, end);
        let wrong = self.one_in(8);
        let used = Cell::new(false);
        let cause = [Cause::Asked, Cause::Room, Cause::Planned][self.below(3)];
        let back = self.pager.readahead_run(&entry, address, most, cause, |pager, shard| {
            used.set(true);
            Some(if wrong { STAGING_FD } else { pager.uffd_of_shard(shard) })
        });
        self.ahead.set(self.ahead.get() + back as u64);
        self.given_back.set(self.given_back.get() + u64::from(back == 0 && used.get()));
        if wrong && back > 0 {
            self.wrong("a copy by a descriptor that is no userfaultfd of this range was believed");
        }
        if back > 0 {
            self.idle.set(0);
        }
    }

    /// Contents of four kinds: one byte repeated, compressible, barely compressible, random.
    fn contents(&self) -> PageBytes {
        let mut page = [self.next() as u8; PAGE];
        let noise =
            [0, 64, PAGE * 7 / 8, PAGE][self.below(4).min(if self.one_in(8) { 3 } else { 1 })];
        page[..noise]
            .chunks_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]));
        page[PAGE - 8..].copy_from_slice(&self.next().to_le_bytes());
        if noise == 0 { [page[0]; PAGE] } else { page }
    }

    /// A handler takes a message and makes one attempt.
    fn serve_fault(&self) {
        let count = self.messages.borrow().len();
        if count == 0 {
            return;
        }
        if let Some(turns) = self.handlers_late.get().checked_sub(1) {
            return self.handlers_late.set(turns);
        }
        let message = self.messages.borrow_mut().swap_remove(self.below(count));
        let Some((mut tools, mut ahead)) = self.tools.borrow_mut().pop() else {
            self.messages.borrow_mut().push(message);
            return;
        };
        let address = self.address(message.page);
        let region = message.page / USED;
        let uffd = self.pager.uffd_of(address);
        let now_ns = sys::now_ns();
        self.pager.note_fault(address, &mut ahead);
        let mut serve = || self.pager.try_fault(uffd, address, message.write, &mut tools, now_ns);
        // The mover waits for a handler that brings a page back; not for one that finds none out,
        // and fills a hole.
        let hole = self
            .pager
            .table
            .get(address)
            .is_some_and(|entry| entry.word(address).load().is_present());
        self.serving.borrow_mut().push(message.page);
        let outcome = if hole { serve() } else { self.keeping_out(region..=region, serve) };
        self.serving.borrow_mut().pop();
        match outcome {
            Outcome::Busy => self.messages.borrow_mut().push(message),
            Outcome::Done => {
                self.idle.set(0);
                let is_told = |page| {
                    self.messages.borrow().iter().any(|m| m.page == page)
                        || self.serving.borrow().contains(&page)
                };
                let waits = |thread: &Thread| match thread {
                    Thread::Waits { page, .. } => *page == message.page,
                    _ => false,
                };
                if self.threads.borrow().iter().any(waits) && !is_told(message.page) {
                    self.wrong("a thread was not woken, and no handler knows of it");
                }
                self.pager.read_ahead(uffd, &mut [], &mut tools, &mut ahead);
                if self.one_in(8) {
                    // Whatever a stream would want.
                    let page = address / PAGE - self.below(24) + self.below(24);
                    self.pager.restore_step(
                        uffd,
                        page..=page + self.below(24),
                        self.one_in(2),
                        &mut tools,
                        &mut ahead.step,
                    );
                }
            }
        }
        self.tools.borrow_mut().push((tools, ahead));
    }

    /// Lets the mover evict, unless the mover made the call. It takes a region in which it need not
    /// wait for a thread further down on this stack.
    fn evict_elsewhere(&self) {
        let region = self.below(REGIONS);
        if self.busy.borrow().contains(&region) || self.pager.mover.pause.load(Relaxed) != 0 {
            return;
        }
        if let Ok(mut evictor) = self.evictor.try_borrow_mut() {
            self.evict(&mut evictor, region);
        }
    }

    fn evict(&self, evictor: &mut Evictor, region: usize) {
        let Some(entry) = self.pager.table.get_or_create(self.base + region * REGION) else {
            self.wrong("the table is full")
        };
        let request = EvictRequest {
            pages: 1 + self.below(USED),
            pressure: self.below(PRESSURE_MAX as usize + 1) as u32,
            force: !self.one_in(4),
            tier: 1 + self.below(self.pager.tiers.len() - 1),
            from: self.below(USED),
        };
        evictor.evict(self.pager, entry, request);
    }

    // ---- what is done with nothing else under way ----

    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
        match self.below(100) {
            0..52 => self.touch(),
            52..55 => self.ask_ahead(),
            55..75 => self.serve_fault(),
            75..85 => self.with_evictor(|evictor| self.evict(evictor, self.below(REGIONS))),
            85 => self.with_evictor(|evictor| {
                let mut leaving = Vec::new();
                self.pager.mover.refault_distance_ms.store(self.below(100) as u64, Relaxed);
                self.pager.probation.reserve(self.below(REGIONS * USED));
                self.pager.probation.leave(
                    self.below(4),
                    1 + self.below(BATCH),
                    |_| true,
                    &mut leaving,
                );
                evictor.end_probation(
                    self.pager,
                    &leaving,
                    1 + self.below(self.pager.tiers.len() - 1),
                    |_| (),
                );
            }),
            86..88 => self.with_evictor(|evictor| {
                let entry = self
                    .pager
                    .table
                    .get_or_create(self.base + self.below(REGIONS) * REGION)
                    .unwrap_or_else(|| self.wrong("full"));
                evictor.probe(self.pager, entry, self.next());
            }),
            88..90 => self.with_evictor(|evictor| {
                self.clock_ns.set(self.clock_ns.get() + 150_000_000);
                evictor.end_probes(self.pager, self.clock_ns.get(), |_, _, _, _| ());
            }),
            90 => self.with_evictor(|evictor| {
                let entry = self
                    .pager
                    .table
                    .get_or_create(self.base + self.below(REGIONS) * REGION)
                    .unwrap_or_else(|| self.wrong("full"));
                if self.one_in(4) {
                    // As a plan asks for, up or down.
                    let to = 1 + self.below(self.pager.tiers.len() - 1);
                    evictor.recompress(self.pager, entry, to, RecompressFilter::All);
                } else if self.one_in(2) {
                    evictor.recompress_densest(self.pager, entry);
                } else {
                    evictor.compact_fragmented(self.pager, &entry);
                }
            }),
            91..93 => self.on_a_span(Self::discard),
            93 if self.one_in(4) => self.on_a_span(Self::replace_unseen),
            93 => self.on_a_span(Self::replace),
            94 => self.on_a_span(Self::protect),
            95 => self.on_a_span(Self::resize),
            96 if self.one_in(4) => self.on_a_span(Self::register_elsewhere),
            96 => self.children.set(self.children.get().saturating_sub(1)),
            97 => self.table.borrow_mut().iter_mut().for_each(|pte| pte.pinned = false),
            98 if self.one_in(8) => self.keeping_out(0..=REGIONS - 1, || self.fork()),
            99 if self.one_in(64) => self.check_everything(),
            _ => self.clock_ns.set(self.clock_ns.get() + 20_000_000),
        }
    }

    /// Runs `act` with the mover kept out of these regions.
    fn keeping_out<R>(
        &self,
        regions: std::ops::RangeInclusive<usize>,
        act: impl FnOnce() -> R,
    ) -> R {
        let kept_out = self.busy.borrow().len();
        self.busy.borrow_mut().extend(regions);
        let result = act();
        self.busy.borrow_mut().truncate(kept_out);
        result
    }

    fn with_evictor(&self, act: impl FnOnce(&mut Evictor)) {
        act(&mut self.evictor.borrow_mut());
    }

    /// Does something to a few pages of one region, as a thread of the program that locks it.
    fn on_a_span(&self, act: impl FnOnce(&Self, std::ops::Range<usize>, usize, usize)) {
        let from = self.below(PAGES);
        let until = (from + 1 + self.below(24)).min((from / USED + 1) * USED);
        let region = from / USED;
        self.keeping_out(region..=region, || {
            act(self, from..until, self.address(from), (until - from) * PAGE)
        });
    }

    /// The program's MADV_DONTNEED, which the kernel may refuse from some page on. A present page
    /// is discarded once at most: a thread that saw that it was gone may have written to it.
    fn discard(&self, pages: std::ops::Range<usize>, start: usize, len: usize) {
        let refused =
            if self.one_in(4) { pages.start + self.below(pages.len()) } else { pages.end };
        self.refused.set(if refused < pages.end { self.address(refused) } else { usize::MAX });
        let discarded = RefCell::new(vec![false; pages.len()]);
        let given_up = self.pager.discard(start, len, |from, len| {
            self.others();
            let part =
                pages.start + (from - start) / PAGE..pages.start + (from + len - start) / PAGE;
            for page in part.start..part.end.min(refused) {
                let before =
                    std::mem::replace(&mut discarded.borrow_mut()[page - pages.start], true);
                if before && self.table.borrow()[page].present {
                    self.wrong(&format!("page {page} is discarded twice"));
                }
                self.vanish(page);
            }
            self.others();
            if part.end > refused { Err(Errno::EINVAL) } else { Ok(()) }
        });
        self.refused.set(usize::MAX);
        assert_eq!(given_up.is_err(), refused < pages.end);
        if let Some(page) =
            (pages.start..refused).find(|page| !discarded.borrow()[page - pages.start])
        {
            self.wrong(&format!("page {page} was not discarded"));
        }
    }

    /// Discards a page's contents, in the kernel's view.
    fn vanish(&self, page: usize) {
        let mut table = self.table.borrow_mut();
        table[page] = Pte {
            present: false,
            zero: false,
            shared: false,
            pinned: false,
            protected: false,
            ..table[page]
        };
        drop(table);
        self.poison(self.address(page));
        self.shadow.borrow_mut()[page] = [0; PAGE];
    }

    /// mmap(MAP_FIXED) over a part.
    fn replace(&self, pages: std::ops::Range<usize>, start: usize, len: usize) {
        let done = self.pager.unmap(start, len, || {
            for page in pages.clone() {
                self.vanish(page);
                let mut table = self.table.borrow_mut();
                (table[page].registered, table[page].writable) = (None, true);
            }
            // Threads that wait for the former page are not told. The new page may be touched and
            // registered before a handler looks.
            self.handlers_late.set(self.below(24));
            Ok(())
        });
        assert_eq!(done, Ok(()));
        self.pager.manage(start, len, true);
    }

    /// The program unmaps and maps past the C library. The new mapping is not managed, and a thread
    /// that touches it waits for no other. After a while it is mapped anew by the C library.
    fn replace_unseen(&self, pages: std::ops::Range<usize>, start: usize, len: usize) {
        for page in pages.clone() {
            self.vanish(page);
            let mut table = self.table.borrow_mut();
            (table[page].registered, table[page].writable) = (None, true);
        }
        for _ in 0..8 {
            for page in pages.clone() {
                self.touch_page(self.below(THREADS), page);
            }
            self.with_evictor(|evictor| self.evict(evictor, pages.start / USED));
        }
        self.replace(pages, start, len);
    }

    fn protect(&self, pages: std::ops::Range<usize>, start: usize, len: usize) {
        let writable = self.one_in(2);
        let done = self.pager.protect(start, len, writable, || {
            pages.clone().for_each(|page| self.table.borrow_mut()[page].writable = writable);
            Ok(())
        });
        assert_eq!(done, Ok(()));
    }

    /// mremap in place: everything must be there, and registered no longer.
    fn resize(&self, pages: std::ops::Range<usize>, start: usize, len: usize) {
        let writable: Vec<bool> =
            pages.clone().map(|page| self.table.borrow()[page].writable).collect();
        let done = self.pager.restore_then(start, len, || {
            for page in pages.clone() {
                let pte = self.table.borrow()[page];
                if !pte.present && self.shadow.borrow()[page] != [0; PAGE] {
                    self.wrong("a page is not back before its mapping is moved");
                }
            }
            Ok(())
        });
        assert!(done.is_ok());
        for (page, writable) in pages.zip(writable) {
            self.pager.manage(self.address(page), PAGE, writable);
        }
    }

    /// A mapping that grew over the border between two descriptors keeps the one that it was
    /// registered with.
    fn register_elsewhere(&self, pages: std::ops::Range<usize>, _start: usize, _len: usize) {
        for pte in &mut self.table.borrow_mut()[pages] {
            pte.registered =
                pte.registered.and_then(|fd| UFFDS.into_iter().find(|other| *other != fd));
        }
    }

    fn fork(&self) {
        self.evictor.borrow_mut().cancel_probes(self.pager);
        self.pager.fork_prepare(|| ());
        self.forking.set(true);
        for _ in 0..self.below(4) {
            self.others();
        }
        self.check_child();
        self.forking.set(false);
        self.table
            .borrow_mut()
            .iter_mut()
            .filter(|pte| pte.present && !pte.zero)
            .for_each(|pte| pte.shared = true);
        self.children.set(self.children.get() + 1);
        self.forks.set(self.forks.get() + 1);
        for _ in 0..self.below(6) {
            self.others();
        }
        self.pager.fork_parent();
    }

    /// Whether a child forked now would find everything: present, or in its copy of the stores.
    fn check_child(&self) {
        let (mut tools, ahead) = self
            .tools
            .borrow_mut()
            .pop()
            .unwrap_or_else(|| self.wrong("more handlers than this stack is deep"));
        for page in 0..PAGES {
            let address = self.address(page);
            if self.table.borrow()[page].present {
                continue;
            }
            let word = self.pager.table.get(address).map(|entry| entry.word(address).load());
            let found = match word.map(|word| (word.state(), word.payload())) {
                None | Some((Some(State::Resident | State::Cached), _)) => [0; PAGE],
                Some((Some(State::Evicted), payload)) => {
                    self.decode(address, Location::from_bits(payload), &mut tools)
                }
                Some((state, _)) => {
                    self.wrong(&format!("a child would find page {page} {state:?}"))
                }
            };
            if found != self.shadow.borrow()[page] {
                self.wrong(&format!("a child would find other contents in page {page}"));
            }
        }
        self.tools.borrow_mut().push((tools, ahead));
    }

    fn decode(&self, address: usize, location: Location, tools: &mut Tools) -> PageBytes {
        let entry = self
            .pager
            .table
            .get(address)
            .unwrap_or_else(|| self.wrong("an evicted page without a region"));
        let store = entry.region.store.lock();
        let mut page = [0; PAGE];
        if let Err(e) =
            self.pager.decode(&store, location, &mut page, (&mut tools.scratch, &mut tools.stored))
        {
            self.wrong(&e);
        }
        page
    }

    /// Everything that waits is served; then states, stores and page table must agree, and every
    /// page must read right.
    fn check_everything(&self) {
        self.evictor.borrow_mut().cancel_probes(self.pager);
        for _ in 0..100_000 {
            if self.messages.borrow().is_empty() {
                break;
            }
            self.serve_fault();
        }
        if self.threads.borrow().iter().any(|thread| *thread != Thread::Runs) {
            self.wrong("a thread was not woken");
        }
        if let Some(slot) = self.staged.borrow().iter().position(|staged| *staged) {
            self.wrong(&format!("staging slot {slot} was not emptied"));
        }
        if let Some(page) = self.table.borrow().iter().position(|pte| pte.protected) {
            self.wrong(&format!("page {page} was left write-protected"));
        }
        for region in 0..REGIONS {
            let Some(entry) = self.pager.table.get(self.base + region * REGION) else { continue };
            let evicted = entry.words.iter().filter(|word| word.load().is(State::Evicted)).count();
            assert_eq!(
                evicted,
                entry.region.evicted.load(Relaxed) as usize,
                "seed {} step {}",
                self.seed,
                self.steps.get()
            );
            let kept = entry.words.iter().filter(|word| word.load().is(State::Cached)).count();
            assert_eq!(
                evicted + kept == 0,
                entry.region.store.lock().is_empty(),
                "seed {} step {}",
                self.seed,
                self.steps.get()
            );
            // Its copy would stay for ever, and the page with it: only what is Resident is ever
            // evicted.
            let in_two_places = |page: &usize| {
                self.table.borrow()[*page].present
                    && entry.word(self.address(*page)).load().is(State::Evicted)
            };
            if let Some(page) = (region * USED..(region + 1) * USED).find(in_two_places) {
                self.wrong(&format!("page {page} is there, and stored"));
            }
            let forgotten = |page: &usize| {
                let address = self.address(*page);
                entry.word(address).load().is_on_probation()
                    && !self.pager.probation.holds(entry.page_number(address))
            };
            if let Some(page) = (region * USED..(region + 1) * USED).find(forgotten) {
                self.wrong(&format!("page {page} is on probation and in no queue"));
            }
        }
        self.check_child();
        for page in 0..PAGES {
            if self.table.borrow()[page].present
                && *self.bytes(self.address(page)) != self.shadow.borrow()[page]
            {
                self.wrong(&format!("page {page} differs"));
            }
        }
        if self.pager.is_frozen() {
            self.wrong("frozen");
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}=`{text}` is not a number")),
        Err(_) => default,
    }
}

#[test]
fn every_byte_survives_every_failure() {
    let steps = number("TERRACE_SIMULATION_STEPS", 10_000_000);
    let first = number("TERRACE_SIMULATION_SEED", 1);
    let (mut done, mut seed) = (0, first);
    let mut failures: BTreeMap<(Call, i32), u64> = BTreeMap::new();
    let (mut moved, mut miscounts, mut restored, mut forks, mut unchanged) = (0, 0, 0, 0, 0);
    let (mut ahead, mut given_back) = (0, 0);
    let mut runs = 0;
    while done < steps {
        let kernel = Kernel::new(seed);
        while kernel.steps.get() < WORLD_STEPS.min(steps - done) {
            kernel.step();
        }
        kernel.check_everything();
        for (failure, count) in kernel.failures.borrow().iter() {
            *failures.entry(*failure).or_default() += count;
        }
        moved += kernel.moved.get();
        miscounts += kernel.miscounts.get();
        restored += kernel.restored.get();
        ahead += kernel.ahead.get();
        given_back += kernel.given_back.get();
        runs += kernel.runs.get();
        forks += kernel.forks.get();
        unchanged += kernel.pager.account.unchanged_pages.load(Relaxed);
        done += kernel.steps.get();
        seed += 1;
        KERNEL.set(None);
    }
    println!(
        "seeds {first}..{seed}: {done} steps, {moved} pages moved out, {restored} filled, {unchanged} of them unchanged, {runs} runs ahead, {miscounts} miscounts, {forks} forks"
    );
    assert!(unchanged > 0, "no page left with its copy");
    println!(
        "  {ahead} brought back by threads of the program, {given_back} attempts of theirs came to nothing"
    );
    assert!(ahead > 0 && given_back > 0);
    for ((call, errno), count) in &failures {
        println!("  {call:?} failed with {} {count} times", Errno::new(*errno));
    }
    assert!(runs > 0, "no pages were restored ahead");
    for call in Call::ALL {
        for errno in call.errors() {
            assert!(
                failures.contains_key(&(call, errno.into_raw())),
                "{call:?} never failed with {errno}"
            );
        }
    }
}
