//! Terrace inside the server: its items are moved between DRAM and tiers, and nothing else is.
//!
//! The index, the metadata of segments and buffers stay in DRAM. An item that is read
//! and not resident is restored by the thread that reads it, without a page fault.

use std::fmt;
use std::time::Instant;

use terrace_alloc::unmanaged;
use terrace_control::settings::{Dram, Knob, MIN_BUDGET_BYTES, NO_BUDGET, Placement, Settings};
use terrace_os::PAGE;
use terrace_pager::{Host, Mode, Pager};
use terrace_policy::slowdown::{Sample, Slowdown, Target};
use terrace_policy::tiering::cost;

/// The pager of this process.
#[derive(Clone, Copy)]
pub struct Tiering(&'static Pager);

impl fmt::Debug for Tiering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tiering").finish_non_exhaustive()
    }
}

impl Tiering {
    /// Starts the pager, which makes the process beside this one. To be called once, while this
    /// thread is the only one and has all its rights. If the pager cannot work here, it says why,
    /// and all memory stays in DRAM.
    ///
    /// # Errors
    /// The tiers make no sense, or there is no address space.
    pub fn start(dram: Dram, knob: Option<Knob>, tiers: Option<&str>) -> Result<Tiering, String> {
        let dram = if dram == Dram::Unlimited { Dram::Bytes(NO_BUDGET) } else { dram };
        let mut settings = Settings { dram, ..Settings::default() };
        if let Some(knob) = knob {
            (settings.placement, settings.knob) = (Placement::Model(cost::NAME), knob);
        }
        if let Some(tiers) = tiers {
            settings.tiers = tiers.to_owned();
        }
        // For tests, as in programs under `terrace run`.
        if let Ok(stress) = std::env::var("TERRACE_STRESS") {
            settings.stress = stress.parse().map_err(|error| format!("{error}"))?;
        }
        if let Ok(injection) = std::env::var("TERRACE_INJECT") {
            settings.inject = Some(injection.parse()?);
        }
        // Nothing that `malloc` returns is managed here, so that the hooks around it have no work.
        let host = Host {
            enter_internal: || {},
            leave_internal: || {},
            start_soon: || {},
            purge_soon: || {},
            unmanaged_range: unmanaged::range,
            map_bytes: || 0,
            sampled: |_, _| {},
            scan_sites: |_| {},
        };
        let pager = Pager::create(settings, host)?;
        pager.start();
        Ok(Tiering(pager))
    }

    /// Whether pages are moved.
    pub fn is_active(self) -> bool {
        self.0.mode() == Mode::Active && !self.0.is_frozen()
    }

    /// Takes a new private anonymous mapping under management.
    pub(crate) fn manage(self, start: *mut u8, bytes: usize) {
        self.0.manage(start as usize, bytes, true);
    }

    /// Restores the pages of a range before it returns.
    #[inline]
    pub(crate) fn restore(self, start: *const u8, bytes: usize) {
        self.0.touch(start as usize, bytes);
    }

    /// Number of pages of a range that are not in DRAM. It reads nothing of the range.
    #[inline]
    pub(crate) fn pages_out(self, start: *const u8, bytes: usize) -> usize {
        self.0.evicted_pages(start as usize, bytes)
    }

    /// Copies the contents of a page that is not in DRAM, and leaves it where it is. Returns false
    /// where it is in DRAM, or cannot be copied in this way.
    fn copy_out(self, address: usize, page: &mut [u8; PAGE]) -> bool {
        self.0.copy_evicted(address, page)
    }

    /// Share of the pages ever used that are in DRAM, 0 to 1.
    pub(crate) fn resident_share(self) -> f64 {
        let figures = self.0.figures();
        let out = figures.tiers.iter().map(|tier| tier.pages).sum::<u64>() * PAGE as u64;
        1.0 - out as f64 / (figures.touched_bytes as f64).max(1.0)
    }

    /// Discards the contents of a range. It reads as zeros then.
    pub(crate) fn discard(self, start: *mut u8, bytes: usize) {
        // A failure leaves the contents where they are; no thread reads them any more.
        let _ = self.0.discard(start as usize, bytes, |start, bytes| {
            // SAFETY: of the caller: no thread uses what the range holds.
            unsafe { terrace_os::advise(start, bytes, libc::MADV_DONTNEED) }
        });
    }

    /// Makes the budget follow the time that threads lose, where that is limited.
    pub fn follow(self, target: Target) -> Follower {
        let slowdown = Slowdown::new(target);
        Follower { tiering: self, slowdown, begun: Instant::now(), most: 0 }
    }

    /// Names and figures for `stats terrace`.
    pub fn figures(self) -> Vec<(String, u64)> {
        let figures = self.0.figures();
        let mut lines = vec![
            ("active".to_owned(), u64::from(self.is_active())),
            ("frozen".to_owned(), u64::from(self.0.is_frozen())),
            ("physical_bytes".to_owned(), self.0.physical_bytes()),
            ("budget_bytes".to_owned(), figures.budget_bytes),
            ("stall_us".to_owned(), figures.stall_ns / 1000),
            ("lost_us".to_owned(), figures.lost_ns / 1000),
            ("touched_bytes".to_owned(), figures.touched_bytes),
        ];
        for tier in figures.tiers {
            lines.push((format!("tier:{}:pages", tier.name), tier.pages));
            lines.push((format!("tier:{}:stored_bytes", tier.name), tier.stored_bytes));
            lines.push((format!("tier:{}:faults", tier.name), tier.faults));
            lines.push((format!("tier:{}:fault_p99_ns", tier.name), tier.restore_p99_ns));
        }
        lines
    }
}

/// Reads items for a list of all, which says nothing about later use: pages that are not in DRAM
/// stay where they are.
#[derive(Debug)]
pub(crate) struct Aside {
    tiering: Option<Tiering>,
    /// The page that was copied last, and its address; 0 for none.
    page: Box<[u8; PAGE]>,
    address: usize,
}

impl Aside {
    /// Makes a reader, which keeps one page.
    pub(crate) fn new(tiering: Option<Tiering>) -> Aside {
        Aside { tiering, page: Box::new([0; PAGE]), address: 0 }
    }

    /// Forgets the page that was copied last, as it may change from now on.
    pub(crate) fn forget(&mut self) {
        self.address = 0;
    }

    /// Copies bytes from `from` on.
    ///
    /// # Safety
    /// The bytes exist. They do not change from the last [`Aside::forget`] until this returns.
    pub(crate) unsafe fn read(&mut self, from: *const u8, to: &mut [u8]) {
        let mut done = 0;
        while done < to.len() {
            let at = from as usize + done;
            let (address, offset) = (at & !(PAGE - 1), at % PAGE);
            let bytes = (PAGE - offset).min(to.len() - done);
            let part = &mut to[done..done + bytes];
            let is_known = self.address == address;
            if is_known || self.tiering.is_some_and(|t| t.copy_out(address, &mut self.page)) {
                self.address = address;
                part.copy_from_slice(&self.page[offset..offset + bytes]);
            } else {
                self.address = 0;
                // SAFETY: of the caller.
                unsafe { std::ptr::copy_nonoverlapping(from.add(done), part.as_mut_ptr(), bytes) };
            }
            done += bytes;
        }
    }
}

/// Lowers the budget while threads lose little time, and raises it where they lose more
/// (`--slowdown`).
#[derive(Debug)]
pub struct Follower {
    tiering: Tiering,
    slowdown: Slowdown,
    begun: Instant,
    most: u64,
}

impl Follower {
    /// Adjusts the budget. To be called some ten times a second.
    pub fn poll(&mut self) {
        let pager = self.tiering.0;
        let figures = pager.figures();
        self.most = self.most.max(figures.touched_bytes);
        let sample = Sample {
            now_s: self.begun.elapsed().as_secs_f64(),
            most: self.most,
            data: figures.touched_bytes,
            physical: pager.physical_bytes(),
            lost_s: figures.lost_ns as f64 / 1e9,
        };
        pager.limit(self.slowdown.limit(sample, MIN_BUDGET_BYTES));
    }
}
