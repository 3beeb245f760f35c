//! Forks: a forked child sees exactly the parent's data.
//!
//! A forked child inherits page table, page states and pools (private memory, copied on write) of
//! one instant. It inherits no thread and no userfaultfd: an evicted page would read as zeros. So:
//!
//! 1. *Prepare* (parent): the mover pauses and brings back what it has staged. What the C library
//!    itself touches in the child before our handler runs is touched here, hence resident (open
//!    streams). Or it was never evicted (see `runtime/src/processes.rs`). The gate closes. The
//!    stack needs nothing: what the child reads of it before it is registered, the parent has used
//!    since the mover paused. What is registered is given to children only now
//!    ([`sys::keep_from_children`]). A fork that is made past the C library is not prepared, and
//!    its child must not read zeros.
//! 2. The kernel forks. Faults of other threads are still filled meanwhile, without changing a
//!    state; each leaves a note.
//! 3. *Parent*: what is registered is kept from children again, notes are worked off, the gate
//!    opens.
//! 4. *Child*: locks are opened, and a companion is made ([`crate::threads::companion`]), which
//!    registers again what was registered. Notes are worked off, and only then does anything else
//!    run. Where there can be no companion (a limit on processes, no right to userfaultfd any
//!    more), the child's only thread brings all pages back itself.
//!
//! Memory that the program keeps from its children (MADV_DONTFORK) is dropped in the child before
//! it starts anything: ranges, page words, stored pages. The parent's stay.
//!
//! Pages in files ([`terrace_tiers::file`]) are not copied on write. The child reads its parent's
//! file, which leaves alone what the child may need until that is gone. For it the child gets two
//! descriptors a file by way of the program's table: the file, and a token whose end the parent
//! sees. The child's keeper takes them along into its own table, where nothing but the child's end
//! closes them.
//!
//! Why notes suffice: a page filled before the fork copies the notes has its note in the child's
//! copy. One filled after that is still evicted in the child, in states and page table alike. With
//! per-mapping locks a page can also be filled between the copies of the notes and of its own
//! mapping. Then it is present in the child, with the right contents, while its word says Evicted.
//! That costs the child the stored copy, which nothing reads: only a missing page is ever filled
//! from it.

use crate::fault::buffers::Tools;
use crate::pager::{FILES_SHARED, Pager, SHARE_FILES};
use crate::pages::mm::Mode;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{Snapshot, State, tick_of};
use crate::threads::fork_notes::{NOTES, PAUSE, RUN};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;
use terrace_control::stats::State as Reported;
use terrace_os::{self as sys, Errno, Fd, PAGE};
use terrace_policy::eviction::victims::Refault;
use terrace_tiers::{DataFile, Location, Tier};

impl Pager {
    /// Prepares a fork, with signals blocked until it is over: a signal handler could touch a page,
    /// or fork. Every call is followed by [`Pager::fork_parent`] or [`Pager::fork_child`].
    /// `touch_streams` touches what the C library will touch in the child before our handler runs.
    /// It is called while nothing is evicted any more.
    pub fn fork_prepare(&self, touch_streams: impl FnOnce()) {
        // Also waits for a start under way on another thread.
        std::mem::forget(self.fork.forking.lock());
        self.count_fork();
        if self.mode() == Mode::Active {
            self.pause_mover();
            self.provide_files_for_child();
            touch_streams();
        } else if self.mode() == Mode::Observing {
            self.pause_mover();
        }
        self.gate.close();
        self.give_registered_to_children(0, usize::MAX);
    }

    /// Stops evictions; returns when nothing is staged any more.
    pub(crate) fn pause_mover(&self) {
        self.mover.pause.store(PAUSE, SeqCst);
        while self.mover.running.load(Acquire)
            && self.mover.pause.load(SeqCst) == PAUSE
            && !self.companion.has_ended()
        {
            self.wake_mover();
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

    /// Brings all evicted pages back. The mover must be paused.
    fn restore_everything(&self) {
        let all = self.ranges.lock().all();
        for range in all {
            self.restore_range(range.start, range.end);
        }
    }

    /// Gives the child what it needs to read pages in files. Where that is impossible they are
    /// restored. The mover must be paused.
    fn provide_files_for_child(&self) {
        if self.files_in_use().next().is_none() {
            return;
        }
        self.ask_keeper(SHARE_FILES, 0, 0);
        let companion = self.companion.pid();
        let fetch = |file: Arc<DataFile>| {
            let [data, token] = file.descriptors();
            let data = sys::descriptor_of(companion, data)?;
            let token = sys::descriptor_of(companion, token).inspect_err(|_| sys::close(data))?;
            self.fork.files.lock().push((file, [data, token]));
            Ok::<(), Errno>(())
        };
        let provided =
            self.fork.shared.load(Acquire) && self.files_in_use().try_for_each(fetch).is_ok();
        self.ask_keeper(FILES_SHARED, 0, 0);
        if !provided {
            self.take_files_back();
            let note = "a forked child could not be given files with pages (out of descriptors, or Linux before 6.9): they were restored first";
            static SAID: AtomicBool = AtomicBool::new(false);
            if !SAID.swap(true, Relaxed) {
                self.warn(note);
                self.set_note_if_empty(note);
            }
            self.restore_everything();
        }
    }

    fn files_in_use(&self) -> impl Iterator<Item = Arc<DataFile>> {
        self.tiers.iter().filter_map(Tier::files).flat_map(|files| files.files_in_use())
    }

    /// The files of its parent that a child has open, including those in which it holds nothing any
    /// more. Tidying closes them by their numbers, so these must be the child's own.
    fn files_inherited(&self) -> impl Iterator<Item = Arc<DataFile>> {
        self.tiers.iter().filter_map(Tier::files).flat_map(|files| files.files_inherited())
    }

    /// Prepares the files of all file tiers for a child, in the keeper. `fork.shared` tells whether
    /// that succeeded.
    pub(crate) fn begin_sharing_files(&self) {
        let shared = self
            .tiers
            .iter()
            .filter_map(Tier::files)
            .try_for_each(|files| files.begin_sharing())
            .is_ok();
        self.fork.shared.store(shared, Release);
    }

    /// Ends what [`Pager::begin_sharing_files`] began, in the keeper.
    pub(crate) fn end_sharing_files(&self) {
        self.tiers.iter().filter_map(Tier::files).for_each(|files| files.end_sharing());
    }

    /// Closes the files' descriptors in the program's table, unless the program has closed them and
    /// put others there.
    fn take_files_back(&self) {
        for (file, descriptors) in std::mem::take(&mut *self.fork.files.lock()) {
            if file.are(descriptors) {
                descriptors.into_iter().for_each(sys::close);
            }
        }
    }

    /// Ends a fork in the parent: works off the notes, opens the gate and lets the mover go on.
    pub fn fork_parent(&self) {
        self.take_files_back();
        if self.mode() == Mode::Active {
            self.keep_registered_from_children(0, usize::MAX);
        }
        self.gate.settle();
        self.work_off_notes();
        self.gate.open();
        self.resume_mover();
        // SAFETY: this thread took the lock in `fork_prepare` and forgot the guard.
        drop(unsafe { self.fork.forking.held() });
    }

    /// Works off the notes: pages filled during the fork are resident now, and their compressed
    /// copies are removed.
    fn work_off_notes(&self) {
        let now_ms = sys::now_ns() / 1_000_000;
        let noted = self.fork.noted.swap(0, AcqRel).min(NOTES);
        for slot in &self.fork.slots()[..noted] {
            let address = slot.swap(0, AcqRel) as usize;
            let Some(entry) = self.table.get(address).filter(|_| address != 0) else { continue };
            let mut store = entry.region.store.lock();
            let found = entry.word(address).load();
            let resident = Snapshot::restored(
                Refault { refaults: found.refaults(), probation: false },
                tick_of(now_ms),
            );
            // Two faults on one page leave two notes.
            if found.is(State::Evicted) && entry.word(address).transition(found, resident).is_ok() {
                let removed = store.remove(&self.tiers, Location::from_bits(found.payload()));
                self.check(
                    removed.is_ok(),
                    "a page filled during a fork had its bytes in its store",
                );
                self.count_restored(&entry, 1);
                self.account.resident_pages.fetch_add(1, Relaxed);
                entry.region.refaults.fetch_add(1, Relaxed);
            }
        }
    }

    /// Ends a fork in the child, before anything else runs there: see the module.
    pub fn fork_child(&'static self) {
        // SAFETY: a forked child has one thread, this one; the gate was closed, so states and
        // stores are consistent.
        unsafe {
            self.fork.forking.reset_after_fork();
            self.companion.reset_after_fork();
            self.fork.files.reset_after_fork();
            self.ranges.reset_after_fork();
            self.probation.reset_after_fork();
            self.table.reset_after_fork();
            self.service.asking.reset_after_fork();
            self.mover.page_out.asking.reset_after_fork();
            self.gate.reset_after_fork();
            self.account.reset_after_fork();
            self.faults.run_tools.reset_after_fork();
            self.faults.events.reset_after_fork();
            self.stats.reset_after_fork();
        }
        self.tiers.iter().for_each(|tier| tier.stats.begin_again());
        self.mover.touching.store(0, Relaxed);
        self.timers.reset_after_fork();
        if self.is_shut_down() {
            // There may be a seccomp filter, and opening a file could end the child. Nothing is
            // out, and nothing starts again.
            self.stats.forget();
            return;
        }
        let was = self.mode();
        let absent = self.take_absent();
        sys::become_program();
        self.companion.forget();
        self.forget_threads();
        self.begin_childs_budget();
        if self.settings.children {
            self.open_stats(true);
        } else {
            self.unmap_stats();
            self.restores_only.store(true, Relaxed);
        }
        for (file, descriptors) in &*self.fork.files.lock() {
            file.inherit(*descriptors);
        }
        self.tiers.iter().filter_map(Tier::files).for_each(|files| files.reset_after_fork());
        self.drop_absent(&absent);
        match was {
            Mode::Active => {
                self.start();
                if self.mode() == Mode::Active {
                    self.restore_noted_in_child();
                } else {
                    self.restore_without_companion();
                }
            }
            Mode::Observing if self.settings.children => self.start(),
            Mode::Failed => {
                self.set_mode(Mode::Failed);
                self.publish_state(Reported::Unmanaged, "as its parent");
            }
            // A child whose parent had not started starts as its own memory grows.
            Mode::Observing | Mode::Off | Mode::Starting => {}
        }
        // The keeper has copies of its own.
        for (_, descriptors) in std::mem::take(&mut *self.fork.files.lock()) {
            descriptors.into_iter().for_each(sys::close);
        }
    }

    /// Brings back everything that is out, in a forked child that has one thread and no companion.
    /// Nothing is registered there, and no other thread can touch a page before it is in place.
    fn restore_without_companion(&self) {
        self.fork.noted.store(0, Release);
        let mut tools = Tools::new();
        for number in 0..self.table.len() {
            let entry = self.table.by_number(number);
            let base = entry.region.address();
            let out = || entry.region.evicted.load(Relaxed) > 0;
            for address in (base..base + REGION).step_by(PAGE).take_while(|_| out()) {
                self.restore_page_alone(&entry, address, &mut tools);
            }
        }
    }

    fn restore_page_alone(&self, entry: &Entry, address: usize, tools: &mut Tools) {
        let word = entry.word(address);
        let found = word.load();
        if !found.is(State::Evicted) {
            return;
        }
        if let Err(e) = self.decode_frozen(entry, found, tools) {
            self.end_program(&format!("page {address:#x} cannot be restored: {e}"));
        }
        // SAFETY: an evicted page of this process, which no other thread uses, because there is
        // none. Its contents are what belongs there.
        let done = unsafe { sys::poke(address, &tools.page.0) };
        if !done && let Some(protection) = sys::protection_of(address) {
            // The program has protected the page since it was evicted.
            // SAFETY: this is the child's only thread, so no other one uses the page. Its
            // protection is restored before anything else runs.
            let done = unsafe {
                sys::protect_page(address, libc::PROT_READ | libc::PROT_WRITE)
                    && sys::poke(address, &tools.page.0)
                    && sys::protect_page(address, protection)
            };
            if !done {
                self.end_program(&format!(
                    "page {address:#x} cannot be written back in a forked child"
                ));
            }
        }
        let resident =
            Snapshot::restored(Refault { refaults: found.refaults(), probation: false }, 0);
        let settled = word.transition(found, resident);
        self.check(settled.is_ok(), "the only thread changes page words");
        let removed =
            entry.region.store.lock().remove(&self.tiers, Location::from_bits(found.payload()));
        self.check(removed.is_ok(), "a restored page's bytes were in its store");
        self.count_restored(entry, 1);
        self.account.resident_pages.fetch_add(1, Relaxed);
    }

    /// Restores the pages that the parent noted. Such a page may or may not be present here: asking
    /// for it settles both.
    fn restore_noted_in_child(&self) {
        let noted = self.fork.noted.swap(0, AcqRel).min(NOTES);
        for slot in &self.fork.slots()[..noted] {
            let address = slot.swap(0, AcqRel) as usize;
            if address != 0 {
                self.restore_range(address, address + PAGE);
            }
        }
    }

    /// All descriptors that the forking thread brought along, for the keeper of a child.
    pub(crate) fn inherited_descriptors(&self) -> Vec<Fd> {
        self.files_inherited().flat_map(|file| file.descriptors()).filter(|fd| *fd >= 0).collect()
    }

    /// Checks the files' descriptors, in the keeper of a child. Another thread of the parent may
    /// have closed them while it forked, and perhaps put others in their place. `Err` is a sentence
    /// for the user.
    pub(crate) fn check_inherited_files(&self) -> Result<(), String> {
        if self.files_inherited().all(|file| file.are(file.descriptors())) {
            return Ok(());
        }
        Err("another thread closed the descriptors of a forked child's pages".to_string())
    }
}

impl Pager {
    /// Forgets threads and descriptors of ours, which a fork's child does not have. Called before
    /// anything is started there.
    fn forget_threads(&self) {
        // A child inherits no locks on memory.
        crate::locking::forget_future();
        let table = &self.descriptors;
        for fd in
            table.uffds.iter().chain([&table.staging, &table.pagemap, &table.statm, &table.program])
        {
            fd.store(-1, Relaxed);
        }
        table.shards.store(0, Relaxed);
        self.mover.pause.store(0, Relaxed);
        self.mover.waiting.store(0, Relaxed);
        self.mover.demand.store(0, Relaxed);
        self.mover.normal_until_ns.store(0, Relaxed);
        self.mover.shut_down.store(false, Relaxed);
        self.mover.running.store(false, Relaxed);
        self.mover.at_floor.store(false, Relaxed);
        self.service.asked.store(0, Relaxed);
        self.mover.page_out.asked.store(0, Relaxed);
        self.set_mode(Mode::Off);
    }
}
