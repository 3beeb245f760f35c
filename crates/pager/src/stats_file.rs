//! The file of the statistics page, and the copies to and from it.
//!
//! Where a file was truncated or its file system is full, a thread that touches its mapping is
//! ended by SIGBUS. So no thread touches this mapping: all work on a private copy. The kernel
//! copies between the two (process_vm_writev, process_vm_readv), which fails with an error instead.
//! It needs no descriptor and no privilege. So it goes on after the program gave up its user id,
//! its root directory or its descriptors.
//!
//! Where the kernel does not copy (a seccomp filter that was not tried yet), the file is opened
//! each time instead. Where there can be no file, the private page is all there is: the process is
//! managed, and has no part in the report.

use crate::pages::mm::{Mm, Mode};
use crate::stats_line::{RingsTold, SAID_MOST};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;
use terrace_control::moves::{MoveReason, Moved};
use terrace_control::stats::{
    self, Ring, SAMPLE_SLOTS, SampleRing, Slot, StatsFile, StatsPage, TOLD_BYTES,
};
use terrace_os::{self as sys, Errno, PAGE};
use terrace_tiers::Tier;

/// Number of newly committed bytes at which they are reported, and the process's share is looked up
/// again.
const COMMITTED_STEP: u64 = 1 << 20;
/// Committed bytes are told again after this time, ns, even if they are few more.
const COMMITTED_EVERY_NS: u64 = 100_000_000;
impl Mm {
    /// Drops the statistics page: a fork's child has its parent's.
    pub(crate) fn unmap_stats(&self) {
        crate::threads::timers::forget_ring();
        let (own, mapping) =
            (self.stats.own.swap(std::ptr::null_mut(), AcqRel), self.stats.mapping.swap(0, AcqRel));
        for start in [own as usize, mapping].into_iter().filter(|start| *start != 0) {
            // SAFETY: mapped in this size in `open_stats`; the pointers are gone, and a child has
            // no other thread that may hold one.
            unsafe { sys::unmap(start, size_of::<StatsFile>()) };
        }
        *self.stats.rings.lock() = RingsTold::default();
        self.stats.committed.store(0, Relaxed);
        self.stats.committed_ns.store(0, Relaxed);
    }

    /// Makes this process's statistics page, if there is a run directory. Failure costs the report
    /// and a share of the budget that is made for this process, nothing else.
    pub(crate) fn open_stats(&self, forked: bool) {
        self.unmap_stats();
        let Some(dir) = &self.settings.run_dir else { return };
        let Ok(own) = sys::reserve(size_of::<StatsFile>()) else { return };
        self.stats.own.store(own as *mut StatsFile, Release);
        let Some(page) = self.stats() else { return };
        self.fill_stats(page, forked);
        match self.make_stats_file() {
            Ok(mapping) => self.stats.mapping.store(mapping, Release),
            Err(errno) => {
                // Its user has changed since the run was started.
                let others = matches!(errno, Errno::EACCES | Errno::EPERM);
                if others && self.stats.said.load(Acquire).is_null() {
                    let said = sys::share_with_children(size_of::<[AtomicU64; SAID_MOST]>());
                    self.stats.said.store(said.unwrap_or(0) as *mut _, Release);
                }
                self.warn_of_no_place(dir, errno);
            }
        }
    }

    fn fill_stats(&self, page: &StatsPage, forked: bool) {
        let started_ns = sys::now_ns();
        page.pid.store(sys::process_id() as u32, Relaxed);
        page.pid_namespace.store(sys::pid_namespace(), Relaxed);
        page.started_ns.store(started_ns, Relaxed);
        page.updated_ns.store(started_ns, Relaxed);
        page.start_ticks.store(crate::proc_files::start_ticks().unwrap_or(0), Relaxed);
        page.forked.store(u32::from(forked), Relaxed);
        page.committed_bytes.store(self.committed_bytes(), Relaxed);
        page.budget_bytes.store(u64::MAX, Relaxed);
        page.budget_met.store(1, Relaxed);
        page.tier_count.store(self.tiers.len() as u32, Relaxed);
        for (field, tier) in page.tiers.iter().zip(&self.tiers) {
            stats::set_text(&field.name, &tier.spec.name);
            field.file_bytes.store(if tier.files().is_some() { 0 } else { u64::MAX }, Relaxed);
        }
        if forked && self.tiers.iter().any(Tier::is_disabled) {
            let enabled = self.tiers.iter().enumerate().filter(|(_, tier)| !tier.is_disabled());
            page.tiers_told.store(enabled.fold(0, |bits, (number, _)| bits | 1 << number), Relaxed);
        }
        stats::set_text(&page.program, &crate::proc_files::program_name());
        page.magic.store(stats::MAGIC, Release);
    }

    /// Makes the file, with the page in it, and maps it; returns the address. Of the rings there is
    /// only the length, and where that is limited not even that.
    fn make_stats_file(&self) -> Result<usize, Errno> {
        let path = self.stats_path().ok_or(Errno::ENOENT)?;
        let fd = sys::open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600)?;
        let own = self.stats.own.load(Acquire) as usize;
        let made = sys::without_write_signals(|| {
            let whole = sys::truncate(fd, size_of::<StatsFile>());
            // SAFETY: the private side, of which a page is a part.
            let written = unsafe { sys::write_at(fd, own, size_of::<StatsPage>(), 0) };
            // Where files are limited, it is made without the rings.
            (written, whole.err().filter(|e| *e == Errno::EFBIG).or(written.err()))
        });
        let made = made.and_then(|()| sys::map_shared(fd, size_of::<StatsFile>()));
        sys::close(fd);
        made.inspect_err(|_| sys::unlink(&path))
    }

    /// The file's path, which ends in a NUL.
    fn stats_path(&self) -> Option<String> {
        let page = self.stats()?;
        let dir = self.settings.run_dir.as_ref()?;
        Some(format!("{dir}/{}-{}.stats\0", page.pid.load(Relaxed), page.started_ns.load(Relaxed)))
    }

    /// Copies a part of the private side to the file. False if that failed, or there is no file.
    fn put(&self, offset: usize, len: usize) -> bool {
        let (own, mapping) =
            (self.stats.own.load(Acquire) as usize, self.stats.mapping.load(Acquire));
        if mapping == 0 {
            return false;
        }
        if self.may_copy() {
            // SAFETY: a part of the private side, and of a mapping that no thread touches.
            return unsafe { sys::copy_to(own + offset, mapping + offset, len) };
        }
        self.with_stats_file(|fd| {
            sys::without_write_signals(|| {
                // SAFETY: a part of the private side.
                let written = unsafe { sys::write_at(fd, own + offset, len, offset) };
                (written, written.err())
            })
            .is_ok()
        })
    }

    /// Copies a part of the file to the private side. False if that failed, or there is no file.
    fn get(&self, offset: usize, len: usize) -> bool {
        let (own, mapping) =
            (self.stats.own.load(Acquire) as usize, self.stats.mapping.load(Acquire));
        if mapping == 0 {
            return false;
        }
        if self.may_copy() {
            // SAFETY: a part of the private side, made of atomics, for which any bits are valid.
            return unsafe { sys::copy_from(mapping + offset, own + offset, len) };
        }
        // SAFETY: a part of the private side, made of atomics, for which any bits are valid.
        self.with_stats_file(|fd| unsafe { sys::read_into(fd, own + offset, len, offset) }.is_ok())
    }

    /// Whether the kernel may be asked to copy: a filter that was not tried yet could end the
    /// process for it.
    fn may_copy(&self) -> bool {
        self.is_probed() || !sys::is_filtered()
    }

    fn with_stats_file(&self, act: impl FnOnce(sys::Fd) -> bool) -> bool {
        let Some(fd) = self
            .stats_path()
            .and_then(|path| sys::open(&path, libc::O_RDWR | libc::O_NOFOLLOW, 0).ok())
        else {
            return false;
        };
        let done = act(fd);
        sys::close(fd);
        done
    }

    /// Copies what the private page tells to the file.
    pub(crate) fn publish_stats(&self) {
        // After a filter was loaded no call is made that the program would not make.
        if !self.is_shut_down() {
            self.put(0, TOLD_BYTES);
        }
    }

    /// Copies the share that `terrace run` has assigned from the file.
    pub(crate) fn fetch_share(&self) {
        self.get(TOLD_BYTES, size_of::<StatsPage>() - TOLD_BYTES);
    }

    /// Tells how much is committed and looks up what the process may have, now and then. Called
    /// before the companion is there.
    pub(crate) fn publish_committed(&self, page: &StatsPage, committed: u64) {
        page.committed_bytes.store(committed, Relaxed);
        let now_ns = sys::now_ns();
        let more = committed >= self.stats.committed.load(Relaxed) + COMMITTED_STEP;
        if self.is_shut_down()
            || !more && now_ns - self.stats.committed_ns.load(Relaxed) < COMMITTED_EVERY_NS
        {
            return;
        }
        self.stats.committed.fetch_max(committed, Relaxed);
        self.stats.committed_ns.store(now_ns, Relaxed);
        self.put(offset_of!(StatsPage, committed_bytes), size_of::<u64>());
        self.fetch_share();
    }

    /// Syncs the file's contents with `terrace run`, in the mover. Takes in the share, samples,
    /// and how often timers are to interrupt. Hands out interrupts, moves and windows.
    pub(crate) fn sync_stats_page(&self) {
        self.fetch_share();
        if self.settings.timers {
            self.get(offset_of!(StatsFile, interrupts), 2 * size_of::<u64>());
        }
        self.fetch_samples();
        self.publish_rings();
    }

    fn fetch_samples(&self) {
        const AT: usize = offset_of!(StatsFile, samples);
        const SENT: usize = AT + offset_of!(SampleRing, sent);
        const SLOTS: usize = AT + offset_of!(SampleRing, slots);
        let Some(samples) = self.samples() else { return };
        let before = samples.sent.load(Relaxed);
        if !self.get(SENT, size_of::<u64>()) {
            return;
        }
        let sent = samples.sent.load(Relaxed);
        // Another process may have written anything there: no more is copied than there are slots.
        let new = sent.wrapping_sub(before).min(SAMPLE_SLOTS as u64) as usize;
        let first = (sent.wrapping_sub(new as u64) % SAMPLE_SLOTS as u64) as usize;
        let until_end = new.min(SAMPLE_SLOTS - first);
        for (slot, count) in
            [(first, until_end), (0, new - until_end)].into_iter().filter(|(_, count)| *count > 0)
        {
            self.get(SLOTS + slot * size_of::<u64>(), count * size_of::<u64>());
        }
    }

    /// Hands out what is new in the rings that the process writes. False if another thread does so
    /// just now.
    fn publish_rings(&self) -> bool {
        let Some(mut told) = self.stats.rings.try_lock() else { return false };
        if self.settings.timers
            && let Some(interrupts) = self.interrupts()
        {
            let at = offset_of!(StatsFile, interrupts) + offset_of!(stats::InterruptRing, ring);
            self.publish_ring(&interrupts.ring, at, &mut told.interrupts);
        }
        if self.settings.moves
            && let Some(moves) = self.move_ring()
        {
            self.publish_ring(moves, offset_of!(StatsFile, moves), &mut told.moves);
        }
        if self.settings.placement.model().is_some()
            && let Some(windows) = self.window_ring()
        {
            self.publish_ring(windows, offset_of!(StatsFile, windows), &mut told.windows);
        }
        true
    }

    fn publish_ring<const SLOTS: usize, const WORDS: usize>(
        &self,
        ring: &Ring<SLOTS, WORDS>,
        at: usize,
        told: &mut u64,
    ) {
        let begun = ring.begun.load(Acquire);
        let from = (*told).max(begun.saturating_sub(SLOTS as u64));
        let whole = |number: &u64| {
            ring.slots[(number % SLOTS as u64) as usize].number.load(Acquire) > *number
        };
        // An entry that is being written waits for the next time, with all after it.
        let until = (from..begun).find(|number| !whole(number)).unwrap_or(begun);
        let (count, first) = ((until - from) as usize, (from % SLOTS as u64) as usize);
        let slots = at + offset_of!(Ring<SLOTS, WORDS>, slots);
        let until_end = count.min(SLOTS - first);
        for (slot, count) in
            [(first, until_end), (0, count - until_end)].into_iter().filter(|(_, count)| *count > 0)
        {
            self.put(slots + slot * size_of::<Slot<WORDS>>(), count * size_of::<Slot<WORDS>>());
        }
        if until > *told {
            *told = until;
            self.put_number(at + offset_of!(Ring<SLOTS, WORDS>, begun), until);
        }
    }

    /// Writes a number into the file that is not the private side's.
    fn put_number(&self, offset: usize, number: u64) {
        let mapping = self.stats.mapping.load(Acquire);
        if mapping != 0 && self.may_copy() {
            // SAFETY: a local variable, and a part of a mapping that no thread touches.
            unsafe { sys::copy_to(&raw const number as usize, mapping + offset, size_of::<u64>()) };
        }
    }

    /// Publishes the last figures, once the program has ended or before it retires us. Allocates
    /// nothing and waits for no lock, but 10 ms at most for a thread that copies the rings.
    pub(crate) fn publish_last(&self) {
        if matches!(self.mode(), Mode::Active | Mode::Observing) {
            self.publish_counts();
            self.publish_stats();
            // The mover may be copying them.
            let _ = (0..10).any(|_| {
                let told = self.publish_rings();
                if !told {
                    sys::sleep_raw(Duration::from_millis(1));
                }
                told
            });
        }
    }
}

impl Mm {
    /// Says a line on standard error, unless a process of this run has said it.
    pub(crate) fn warn(&self, line: &str) {
        let mut hasher = DefaultHasher::new();
        line.hash(&mut hasher);
        if self.is_first_in_run(&format!("said-{:016x}", hasher.finish())) {
            sys::warn(line);
        }
    }

    /// Whether this process is the first of its run that makes the file `name` in the run
    /// directory; an empty file takes no room. Where it cannot be made, whether it is the first
    /// among its program's forked processes.
    fn is_first_in_run(&self, name: &str) -> bool {
        let Some(dir) = &self.settings.run_dir else { return true };
        let path = format!("{dir}/{name}\0");
        match sys::open(&path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o600) {
            Ok(fd) => {
                sys::close(fd);
                true
            }
            Err(e) => e != Errno::EEXIST && self.is_first_among_children(name),
        }
    }

    fn is_first_among_children(&self, name: &str) -> bool {
        // SAFETY: null, or mapped in this size in `open_stats` and never unmapped; zeroed memory is
        // a valid array of atomics.
        let Some(said) = (unsafe { self.stats.said.load(Acquire).as_ref() }) else { return true };
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let hash = hasher.finish().max(1);
        let put = |slot: &AtomicU64| slot.compare_exchange(0, hash, AcqRel, Acquire);
        for slot in said {
            match put(slot) {
                Ok(_) => return true,
                Err(there) if there == hash => return false,
                Err(_) => {}
            }
        }
        true
    }

    /// Warns that there is no place for this process's figures, once in a run where that can be
    /// known.
    fn warn_of_no_place(&self, dir: &str, errno: Errno) {
        static SAID: AtomicBool = AtomicBool::new(false);
        let remedy = match errno {
            Errno::ENOSPC | Errno::EDQUOT => {
                "make room there, or set XDG_RUNTIME_DIR to a directory with room"
            }
            Errno::EFBIG => "raise the limit on the size of files (ulimit -f)",
            Errno::EMFILE | Errno::ENFILE => "raise the limit on open files (ulimit -n)",
            // The run has ended, or the program gave up its user id or root directory before it
            // forked or executed this one.
            Errno::ENOENT | Errno::EACCES | Errno::EPERM | Errno::ENOTDIR => return,
            _ => "set XDG_RUNTIME_DIR to a writable directory",
        };
        if self.is_first_in_run(stats::NO_PLACE) && !SAID.swap(true, Relaxed) {
            sys::warn(&format!(
                "no place in {dir} for the figures of a process ({errno}): it runs, but is not in \
                 the report and takes half of the budget for its own. To change that: {remedy}"
            ));
        }
    }
}

impl Mm {
    /// Lists a move of pages of the region at `address`. Nothing but a few stores, and without
    /// `--moves` not even that.
    pub(crate) fn list_move(
        &self,
        address: usize,
        pages: u64,
        from: Option<usize>,
        to: usize,
        why: MoveReason,
    ) {
        if !self.settings.moves || pages == 0 {
            return;
        }
        let Some(ring) = self.move_ring().filter(|_| !self.warned.no_moves.load(Relaxed)) else {
            return;
        };
        let pages = pages.min(u64::from(u16::MAX)) as u16;
        ring.write(
            &Moved {
                at_ns: sys::now_ns(),
                address,
                pages,
                from: from.map(|tier| tier as u8),
                to: to as u8,
                why,
            }
            .to_words(),
        );
    }

    /// Populates the ring of moves before the first one: the lack of memory is met here, not in a
    /// store.
    pub(crate) fn prepare_move_ring(&self) {
        let Some(ring) = self.move_ring().filter(|_| self.settings.moves) else { return };
        let (start, len) = (std::ptr::from_ref(ring) as usize, size_of_val(ring));
        let from = start / PAGE * PAGE;
        if sys::populate_for_writing(from, (start + len).next_multiple_of(PAGE) - from).is_err() {
            self.warn_once(
                &self.warned.no_moves,
                "moves are not listed: there is no memory for them",
            );
        }
    }
}
