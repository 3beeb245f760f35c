//! Shared memory of an attached process. No userfaultfd of ours moves it, as other processes may
//! have it too: the kernel's swap takes it, where there is some, as with `--outside`.
//!
//! Victims are chosen by a CLOCK hand of its own ([`crate::paging`]), beside the hand of private
//! memory ([`crate::evict`]). The two share what is to be evicted by what each has in DRAM. What
//! several processes have mapped counts in parts, and what stayed though it was to be evicted
//! counts no more.

use crate::outside::{NO_ROOM, cost_us};
use crate::paging::{InSwap, Paged, Route};
use crate::process::{self, Mapping};
use crate::state::Keeper;
use crate::sys::PAGE;
use terrace_tiers::{SwapKind, SwapView};

/// Bytes that the CLOCK hand passes at a time: faults are served after each.
const REGION: u64 = 256 << 10;
/// Regions that the CLOCK hand passes before the keeper looks at what else there is to do.
const REGIONS: usize = 16;
const NO_SWAP: &str = "there is no swap to take it: set up zram, or swapon a device";
const MAPPED_BY_MORE: &str = "it is mapped more than once, or locked";

impl Keeper {
    /// Looks how much shared memory there is, and whether it can leave.
    pub fn poll_shared_memory(&mut self) {
        let figures = &mut self.figures;
        figures.shared_bytes = process::status_kib(self.target, "RssShmem").unwrap_or(0) << 10;
        let has_some = figures.shared_bytes + figures.shared_out_bytes > 0;
        let swap = if has_some { SwapView::of_machine() } else { SwapView::default() };
        if swap.kind == SwapKind::None {
            self.in_swap = InSwap::default();
        } else {
            let paged = self.in_swap.paged.take();
            let is_shared = |mapping: &Mapping| mapping.is_shared;
            let open = || Paged::open(self.target, Route::Swap, is_shared, REGION);
            self.in_swap = InSwap {
                paged: paged.or_else(open),
                ratio: swap.ratio(),
                cost_us: cost_us(swap.kind),
            };
        }
        let Some(paged) = &mut self.in_swap.paged else {
            figures.kept_bytes = figures.shared_bytes;
            (figures.shared_limited_bytes, figures.shared_out_bytes) = (0, 0);
            figures.shared_note = if has_some { NO_SWAP.into() } else { String::new() };
            return;
        };
        let all = paged.measure(1);
        let own = paged.part_of(all);
        figures.kept_bytes = all.kept[1];
        figures.shared_out_bytes = own.shared_out;
        figures.shared_limited_bytes = own.shared.saturating_sub(own.kept[1]);
        figures.shared_note = if swap.room_bytes() < PAGE {
            NO_ROOM.into()
        } else if all.kept[1] > 0 {
            MAPPED_BY_MORE.into()
        } else {
            String::new()
        };
    }

    /// How many of `pages` pages that are to be evicted are to be shared memory.
    pub fn shared_part(&self, pages: u64) -> u64 {
        let figures = &self.figures;
        let shared = figures.shared_limited_bytes;
        if self.in_swap.paged.is_none() || shared == 0 || figures.shared_note == NO_ROOM {
            return 0;
        }
        (pages * shared).div_ceil(shared + figures.resident_bytes)
    }

    /// Pages out about `pages` pages of shared memory. Returns whether the CLOCK hand can go on.
    pub fn page_out_shared(&mut self, mut pages: u64) -> bool {
        let mut has_moved = false;
        for _ in 0..REGIONS {
            let Some(paged) = self.in_swap.paged.as_mut().filter(|_| pages > 0) else { break };
            let Some(step) = paged.step(pages) else { break };
            has_moved = true;
            pages = pages.saturating_sub(step.left);
            let figures = &mut self.figures;
            figures.evicted_pages += step.left;
            figures.restored_pages += step.back;
            figures.cold_pages += step.cold;
            figures.faults += step.back;
            figures.waited_us += step.back * self.in_swap.cost_us;
            // Until the next poll.
            let left = step.left * PAGE;
            figures.shared_limited_bytes = figures.shared_limited_bytes.saturating_sub(left);
            figures.shared_out_bytes += left;
            self.pump();
        }
        has_moved
    }
}
