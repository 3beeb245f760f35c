//! fork: the child sees exactly the parent's data.
//!
//! A forked child inherits page table, page states and pools (private memory, copied on write) of one instant, but no thread
//! and no userfaultfd: an evicted page would read as zeros. So:
//!
//! 1. *Prepare* (parent): the mover pauses and brings back what it has staged; what the C library itself touches in the child before
//!    our handler runs is touched, hence resident (open streams), or was never evicted (see `runtime/src/processes.rs`); the gate closes.
//!    The stack needs nothing: what the child reads of it before it is registered, the parent has used since the mover paused.
//! 2. The kernel forks. Faults of other threads are still filled meanwhile, without changing a state; each leaves a note.
//! 3. *Parent*: notes are worked off, the gate opens.
//! 4. *Child*: locks are opened, what was registered is registered again, threads are made ([`crate::child`]), notes are worked off, and only
//!    then does anything else run.
//!
//! Pages in files ([`terrace_tiers::file`]) are not copied on write: the child reads its parent's file, which leaves alone what the child may
//! need until that is gone. For it the child gets two descriptors a file by way of the program's table: the file, and a token whose end the
//! parent sees. The child's keeper takes them along into its own table, where nothing but the child's end closes them.
//!
//! Why notes suffice: a page filled before the fork copies has its note in the child's copy of the notes; one filled after it is still evicted
//! in the child, in states and page table alike. With per-mapping locks a page can also be filled between the copies of the notes and of its
//! own mapping: then it is present in the child, with the right contents, while its word says Evicted. That costs the child the stored copy,
//! which nothing reads: only a missing page is ever filled from it.

use crate::lock::Lock;
use crate::pager::{FILES_SHARED, Mode, Pager, SHARE_FILES};
use crate::stats::State as Reported;
use crate::sys::{self, Errno, Fd, PAGE};
use crate::word::{Snapshot, State, tick_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;
use terrace_policy::victims::Return;
use terrace_tiers::{DataFile, Identity, Location, Tier, identity};

/// Most pages filled during one fork. A fork takes milliseconds; a handler restores at most some 200 pages in one.
const NOTES: usize = 1 << 16;

/// Values of `MoverLine::pause`.
pub(crate) const RUN: u32 = 0;
pub(crate) const PAUSE: u32 = 1;
pub(crate) const PAUSED: u32 = 2;

/// State of forks.
pub(crate) struct ForkState {
    notes: usize,
    noted: AtomicUsize,
    /// Held from prepare to the end of the parent's or child's part, and while our threads are started.
    pub(crate) forking: Lock<()>,
    /// A /dev/userfaultfd in the *program's* descriptor table for the time of the fork.
    device: Lock<Option<(Fd, Identity)>>,
    /// Likewise the descriptors of files that hold pages.
    files: Lock<Vec<(Arc<DataFile>, [Fd; 2])>>,
    /// The keeper could make files ready for a child.
    shared: AtomicBool,
}

impl ForkState {
    pub fn new() -> Result<Self, Errno> {
        Ok(ForkState {
            notes: sys::reserve(NOTES * 8)?,
            noted: AtomicUsize::new(0),
            forking: Lock::new(()),
            device: Lock::new(None),
            files: Lock::new(Vec::new()),
            shared: AtomicBool::new(false),
        })
    }

    fn slots(&self) -> &[AtomicU64] {
        // SAFETY: the reservation holds NOTES words, valid when zeroed, and lives for ever.
        unsafe { std::slice::from_raw_parts(self.notes as *const AtomicU64, NOTES) }
    }

    /// Notes a page that is about to be filled; false if there is no room, and it must wait.
    pub fn note(&self, address: usize) -> bool {
        let index = self.noted.fetch_add(1, AcqRel);
        match self.slots().get(index) {
            Some(slot) => {
                slot.store(address as u64, Release);
                true
            }
            None => {
                self.noted.fetch_sub(1, AcqRel);
                false
            }
        }
    }
}

impl Pager {
    /// Before a fork, with signals blocked until it is over (a handler could touch a page, or fork). Every call is followed by [`Pager::fork_parent`] or [`Pager::fork_child`]. `touch_streams` touches what the C library
    /// will touch in the child before our handler; it runs while nothing is evicted any more.
    pub fn fork_prepare(&self, touch_streams: impl FnOnce()) {
        // Also waits for a start under way on another thread.
        std::mem::forget(self.fork.forking.lock());
        self.count_fork();
        if self.mode() == Mode::Active {
            self.pause_mover();
            self.provide_for_child();
            self.provide_files_for_child();
            touch_streams();
        } else if self.mode() == Mode::Observing {
            self.pause_mover();
        }
        self.gate.close();
    }

    /// Stops evictions; returns when nothing is staged any more.
    pub(crate) fn pause_mover(&self) {
        self.mover.pause.store(PAUSE, SeqCst);
        while self.mover.running.load(Acquire) && self.mover.pause.load(SeqCst) == PAUSE {
            self.call_mover();
            sys::futex_wait(&self.mover.pause, PAUSE, Some(Duration::from_millis(10)));
        }
    }

    pub(crate) fn resume_mover(&self) {
        if self.mover.pause.load(SeqCst) == RUN {
            return;
        }
        self.mover.pause.store(RUN, SeqCst);
        sys::futex_wake(&self.mover.pause, 1);
    }

    /// Sees to it that the child can open a userfaultfd although this process may have given up its privileges since ours was
    /// opened. Where that is impossible everything is restored, so that the child needs none.
    fn provide_for_child(&self) {
        let device = sys::open("/dev/userfaultfd\0", libc::O_RDWR, 0).ok();
        let opened = sys::userfaultfd(device).ok();
        for fd in device.into_iter().chain(opened) {
            sys::close(fd);
        }
        if opened.is_some() {
            return;
        }
        let table = &self.descriptors;
        let device = table.device.load(Acquire);
        if device >= 0
            && let Ok(device) = sys::descriptor_of_thread(table.keeper.load(Acquire), device)
        {
            if let (Ok(fd), Ok(identity)) = (sys::userfaultfd(Some(device)), identity(device)) {
                sys::close(fd);
                *self.fork.device.lock() = Some((device, identity));
                return;
            }
            sys::close(device);
        }
        self.freeze("this process can no longer open a userfaultfd for a forked child: everything is kept in DRAM");
        self.restore_everything();
    }

    /// Brings all evicted pages back. The mover must be paused.
    fn restore_everything(&self) {
        let all = self.ranges.lock().all();
        for range in all {
            self.restore_range(range.start, range.end);
        }
    }

    /// Gives the child what it needs to read pages in files. Where that is impossible they are restored. The mover must be paused.
    fn provide_files_for_child(&self) {
        if self.files_in_use().next().is_none() {
            return;
        }
        self.ask_keeper(SHARE_FILES, 0, 0);
        let keeper = self.descriptors.keeper.load(Acquire);
        let fetch = |file: Arc<DataFile>| {
            let [data, token] = file.descriptors();
            let data = sys::descriptor_of_thread(keeper, data)?;
            let token = sys::descriptor_of_thread(keeper, token).inspect_err(|_| sys::close(data))?;
            self.fork.files.lock().push((file, [data, token]));
            Ok::<(), Errno>(())
        };
        let provided = self.fork.shared.load(Acquire) && self.files_in_use().try_for_each(fetch).is_ok();
        self.ask_keeper(FILES_SHARED, 0, 0);
        if !provided {
            self.take_files_back();
            let note =
                "a forked child could not be given files with pages (out of descriptors, or Linux before 6.9): they were restored first";
            static SAID: AtomicBool = AtomicBool::new(false);
            if !SAID.swap(true, Relaxed) {
                sys::complain(note);
                self.remark(note);
            }
            self.restore_everything();
        }
    }

    fn files_in_use(&self) -> impl Iterator<Item = Arc<DataFile>> {
        self.tiers.iter().filter_map(Tier::files).flat_map(|files| files.files_in_use())
    }

    /// In the keeper.
    pub(crate) fn begin_sharing_files(&self) {
        let shared = self.tiers.iter().filter_map(Tier::files).try_for_each(|files| files.begin_sharing()).is_ok();
        self.fork.shared.store(shared, Release);
    }

    /// In the keeper.
    pub(crate) fn end_sharing_files(&self) {
        self.tiers.iter().filter_map(Tier::files).for_each(|files| files.end_sharing());
    }

    /// Closes the files' descriptors in the program's table, unless the program has closed them and put others there.
    fn take_files_back(&self) {
        for (file, descriptors) in std::mem::take(&mut *self.fork.files.lock()) {
            if file.are(descriptors) {
                descriptors.into_iter().for_each(sys::close);
            }
        }
    }

    /// After a fork, in the parent.
    pub fn fork_parent(&self) {
        // Another thread may have closed it meanwhile, and put something else there.
        if let Some((device, known)) = self.fork.device.lock().take()
            && identity(device) == Ok(known)
        {
            sys::close(device);
        }
        self.take_files_back();
        self.gate.settle();
        self.work_off_notes();
        self.gate.open();
        self.resume_mover();
        // SAFETY: this thread took the lock in `fork_prepare` and forgot the guard.
        drop(unsafe { self.fork.forking.held() });
    }

    /// Pages filled during the fork are resident now; their compressed copies go.
    fn work_off_notes(&self) {
        let now_ms = sys::now_ns() / 1_000_000;
        let noted = self.fork.noted.swap(0, AcqRel).min(NOTES);
        for slot in &self.fork.slots()[..noted] {
            let address = slot.swap(0, AcqRel) as usize;
            let Some(entry) = self.table.get(address).filter(|_| address != 0) else { continue };
            let mut store = entry.region.store.lock();
            let found = entry.word(address).load();
            let resident = Snapshot::back(Return { returns: found.returns(), probation: false }, tick_of(now_ms));
            // Two faults on one page leave two notes.
            if found.is(State::Evicted) && entry.word(address).transition(found, resident).is_ok() {
                let removed = store.remove(&self.tiers, Location::from_bits(found.payload()));
                self.check(removed.is_ok(), "a page filled during a fork had its bytes in its store");
                entry.region.evicted.fetch_sub(1, Relaxed);
                self.account.resident_pages.fetch_add(1, Relaxed);
                self.account.promoted_pages.fetch_add(1, Relaxed);
                entry.region.returned.fetch_add(1, Relaxed);
            }
        }
    }

    /// After a fork, in the child, before anything else runs there. `threads`: whether the C library can make some; it cannot where it did not
    /// fork itself, because its locks are as other threads of the parent left them.
    pub fn fork_child(&'static self, threads: bool) {
        // SAFETY: a forked child has one thread, this one; the gate was closed, so states and stores are consistent.
        unsafe {
            self.fork.forking.reset_after_fork();
            self.fork.device.reset_after_fork();
            self.fork.files.reset_after_fork();
            self.ranges.reset_after_fork();
            self.probation.reset_after_fork();
            self.table.reset_after_fork();
            self.service.asking.reset_after_fork();
            self.mover.page_out.asking.reset_after_fork();
            self.gate.reset_after_fork();
            self.account.reset_after_fork();
            self.ahead.reset_after_fork();
        }
        if self.is_retired() {
            // There is a seccomp filter: opening a file could end the child. Nothing is out, and nothing starts again.
            self.stats.store(std::ptr::null_mut(), Release);
            return;
        }
        let was = self.mode();
        self.forget_threads();
        self.begin_childs_budget();
        if self.settings.children {
            self.open_stats(true);
        } else {
            self.let_go_of_stats();
            self.restores_only.store(true, Relaxed);
        }
        let device = self.fork.device.lock().take().map(|(device, _)| device);
        self.descriptors.device.store(device.unwrap_or(-1), Release);
        for (file, descriptors) in &*self.fork.files.lock() {
            file.inherit(*descriptors);
        }
        self.tiers.iter().filter_map(Tier::files).for_each(|files| files.reset_after_fork());
        match was {
            Mode::Active => {
                self.start_in_child(threads);
                if self.mode() == Mode::Active {
                    self.restore_noted_in_child();
                } else if self.table_has_evicted() {
                    self.end_program("a forked child cannot bring its pages back");
                }
            }
            // Its own start will come with its own growth.
            Mode::Observing if threads && self.settings.children => self.start(),
            Mode::Failed => {
                self.set_mode(Mode::Failed);
                self.say(Reported::Unmanaged, "as its parent");
            }
            Mode::Observing | Mode::Off | Mode::Starting => {}
        }
        if let Some(device) = device {
            sys::close(device);
        }
        // The keeper has its own.
        for (_, descriptors) in std::mem::take(&mut *self.fork.files.lock()) {
            descriptors.into_iter().for_each(sys::close);
        }
    }

    pub(crate) fn table_has_evicted(&self) -> bool {
        (0..self.table.len()).any(|n| self.table.by_number(n).region.evicted.load(Relaxed) > 0)
    }

    /// A page noted by the parent may or may not be present here: asking for it settles both.
    fn restore_noted_in_child(&self) {
        let noted = self.fork.noted.swap(0, AcqRel).min(NOTES);
        for slot in &self.fork.slots()[..noted] {
            let address = slot.swap(0, AcqRel) as usize;
            if address != 0 {
                self.restore_range(address, address + PAGE);
            }
        }
    }

    /// In the keeper of a child: all descriptors that the forking thread brought along.
    pub(crate) fn inherited_descriptors(&self) -> Vec<Fd> {
        let files = self.files_in_use().flat_map(|file| file.descriptors());
        self.inherited_device().into_iter().chain(files).filter(|fd| *fd >= 0).collect()
    }

    /// In the keeper of a child: whether another thread of the parent closed the files' descriptors while it forked, and perhaps put others
    /// in their place.
    pub(crate) fn check_inherited_files(&self) -> Result<(), String> {
        if self.files_in_use().all(|file| file.are(file.descriptors())) {
            return Ok(());
        }
        Err("another thread closed the descriptors of a forked child's pages".to_string())
    }

    /// In a child: the device that the forking thread brought along, to be taken over from the program's table before that is left.
    pub(crate) fn inherited_device(&self) -> Option<i32> {
        Some(self.descriptors.device.load(Acquire)).filter(|fd| *fd >= 0)
    }
}
