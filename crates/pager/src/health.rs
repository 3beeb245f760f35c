//! Reports of a process about itself, and the end of its evictions: an internal check failed, or
//! the kernel refuses a call.

use crate::pages::mm::Mm;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;
use terrace_control::moves::MOVE_WORDS;
use terrace_control::stats::{
    self, InterruptRing, MOVE_SLOTS, Ring, SampleRing, State, StatsFile, StatsPage,
};
use terrace_control::windows::{ROW_SLOTS, ROW_WORDS};
use terrace_os as sys;
use terrace_tiers::PoolError;

impl Mm {
    /// Writes the state and a note into the statistics page.
    pub fn publish_state(&self, state: State, note: &str) {
        if let Some(page) = self.stats() {
            stats::set_text(&page.note, note);
            page.state.store(state as u32, Release);
            self.publish_stats();
        }
    }

    /// Leaves a note for the report, unless there is one already.
    pub(crate) fn set_note_if_empty(&self, note: &str) {
        if let Some(page) = self.stats().filter(|page| stats::get_text(&page.note).is_empty()) {
            stats::set_text(&page.note, note);
            self.publish_stats();
        }
    }

    /// Stops eviction for good: an internal check failed, a call that is needed was refused, or the
    /// pager retires. `why` is a sentence for the user.
    pub fn freeze(&self, why: &str) {
        if !self.frozen.swap(true, AcqRel) {
            self.publish_state(State::Frozen, why);
            self.warn(&format!("frozen, nothing more is evicted: {why}"));
        }
    }

    /// Says something that is no failure of ours, at most once: on standard error and as the
    /// report's note.
    pub(crate) fn warn_once(&self, said: &AtomicBool, text: &str) {
        if said.swap(true, Relaxed) {
            return;
        }
        self.warn(text);
        if let Some(page) = self.stats()
            && !self.is_frozen()
        {
            stats::set_text(&page.note, text);
            self.publish_stats();
        }
    }

    /// Warns that a page could not be stored: it stays in DRAM.
    pub(crate) fn no_room(&self, error: &PoolError) {
        self.warn_once(&self.warned.no_room, &format!("pages stay in DRAM: {error}"));
    }

    /// Ends the program, which would get wrong bytes if it went on. Terrace ends it in no other
    /// case.
    pub(crate) fn end_program(&self, why: &str) -> ! {
        sys::warn(&format!("{why}. Ending the program rather than giving it wrong data"));
        self.frozen.store(true, Release);
        self.publish_state(State::Frozen, why);
        if sys::is_program() {
            sys::abort();
        }
        // Not SIGABRT: a handler of the program's could run, and a system call that waits for a
        // page is ended by this alone.
        let program = self.descriptors.program.load(Acquire);
        sys::signal_process(program, libc::SIGKILL);
        // Where it may not be ended, threads that wait for the page go on waiting.
        loop {
            sys::sleep(Duration::from_secs(3600));
        }
    }

    /// Whether eviction has stopped for good: see [`Mm::freeze`].
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Acquire)
    }

    /// Freezes this process if an internal promise does not hold, and returns `holds`. A debug
    /// build panics instead.
    pub(crate) fn check(&self, holds: bool, promise: &str) -> bool {
        if !holds {
            debug_assert!(holds, "{promise}");
            self.freeze(promise);
        }
        holds
    }

    /// The statistics page, if there is one.
    pub(crate) fn stats(&self) -> Option<&StatsPage> {
        self.stats_file().map(|file| &file.page)
    }

    /// The ring of samples that `terrace run` writes, if there is a statistics page.
    pub(crate) fn samples(&self) -> Option<&SampleRing> {
        self.stats_file().map(|file| &file.samples)
    }

    /// The ring into which threads write when a timer interrupts them, if there is a statistics
    /// page.
    pub(crate) fn interrupts(&self) -> Option<&InterruptRing> {
        self.stats_file().map(|file| &file.interrupts)
    }

    /// The ring in which moves are listed, if there is a statistics page.
    pub(crate) fn move_ring(&self) -> Option<&Ring<MOVE_SLOTS, MOVE_WORDS>> {
        self.stats_file().map(|file| &file.moves)
    }

    /// The ring for windows of the placement model, if there is a statistics page.
    pub(crate) fn window_ring(&self) -> Option<&Ring<ROW_SLOTS, ROW_WORDS>> {
        self.stats_file().map(|file| &file.windows)
    }

    fn stats_file(&self) -> Option<&StatsFile> {
        // SAFETY: null, or private memory of this size that is never unmapped while in use (see
        // `open_stats`).
        unsafe { self.stats.own.load(Acquire).as_ref() }
    }

    /// Whether this process was made by a fork, and has executed no program since.
    pub(crate) fn is_forked(&self) -> bool {
        self.stats().is_some_and(|page| page.forked.load(Relaxed) != 0)
    }
}
