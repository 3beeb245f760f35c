//! Terrace inside the server: its segments are moved between DRAM and tiers, and nothing else is.
//!
//! The index, what is known of segments, buffers and large items stay in DRAM. An item that is read
//! and not resident is restored by the thread that reads it, without a page fault.

use std::fmt;

use terrace_alloc::unmanaged;
use terrace_pager::settings::{Dram, Settings};
use terrace_pager::{Host, Mode, Pager};

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
    /// thread is the only one and has all its rights. With a pager that cannot work here, all
    /// memory stays in DRAM, and it has said why.
    ///
    /// # Errors
    /// The tiers make no sense, or there is no address space.
    pub fn start(dram: Dram, tiers: Option<&str>) -> Result<Tiering, String> {
        let mut settings = Settings { dram, ..Settings::default() };
        if let Some(tiers) = tiers {
            settings.tiers = tiers.to_owned();
        }
        // For tests, as in programs under `terrace run`.
        if let Ok(stress) = std::env::var("TERRACE_STRESS") {
            settings.stress = stress.parse().map_err(|error| format!("{error}"))?;
        }
        // Nothing that `malloc` gives is managed here, so that the hooks around it have no work.
        let host = Host {
            enter_internal: || {},
            leave_internal: || {},
            start_soon: || {},
            tidy_soon: || {},
            unmanaged_range: unmanaged::range,
            map_bytes: || 0,
            sampled: |_, _| {},
            look_at_sites: |_| {},
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

    /// Has the pages of a range in DRAM before it returns.
    #[inline]
    pub(crate) fn restore(self, start: *const u8, bytes: usize) {
        self.0.touch(start as usize, bytes);
    }

    /// Gives up what a range holds. It reads as zeros then.
    pub(crate) fn discard(self, start: *mut u8, bytes: usize) {
        // A failure leaves the contents where they are, which nobody reads any more.
        let _ = self.0.discard(start as usize, bytes, |start, bytes| {
            // SAFETY: of the caller: nobody uses what the range holds.
            unsafe { terrace_pager::sys::advise(start, bytes, libc::MADV_DONTNEED) }
        });
    }

    /// Names and figures for `stats terrace`.
    pub fn figures(self) -> Vec<(String, u64)> {
        let figures = self.0.figures();
        let mut lines = vec![
            ("active".to_owned(), u64::from(self.is_active())),
            ("frozen".to_owned(), u64::from(self.0.is_frozen())),
            ("physical_bytes".to_owned(), self.0.physical_bytes()),
            ("budget_bytes".to_owned(), figures.budget_bytes),
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
