//! Splits huge pages before single pages are evicted from them.

use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION, REGION_PAGES};
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, Errno, PAGE, Run};

impl Mm {
    /// Makes sure that single pages can be taken out of a region, which is locked. Returns whether
    /// they can. A region that was made huge is split, unless it is pinned or shared with a child.
    /// Call it in a pager thread, because the page map is among our descriptors. The program's
    /// threads use [`Pager::split_range`](crate::Pager::split_range).
    pub(crate) fn ensure_split(&self, entry: &Entry) -> bool {
        if !entry.is_huge() {
            return true;
        }
        let pagemap = self.descriptors.pagemap.load(Relaxed);
        let base = entry.region.address();
        let is_whole = sys::huge_bytes(pagemap, base, base + REGION) == Ok(REGION);
        let is_ours =
            || (0..REGION_PAGES).all(|page| sys::mapped_exclusively(pagemap, base + page * PAGE));
        if !(is_whole || is_ours() && self.collapse(base)) {
            return false;
        }
        // The kernel may find a pin after it has taken the mapping apart. Then the huge page stays,
        // and the kernel counts a failed split.
        let failed_before = sys::failed_splits();
        // SAFETY: changes no contents.
        let advised = unsafe { sys::advise(base, PAGE, libc::MADV_COLD) };
        let split = advised.is_ok()
            && self.forbid_huge_pages(base)
            && failed_before.is_some()
            && sys::failed_splits() == failed_before;
        if split {
            entry.region.huge.store(0, Relaxed);
            self.account.huge_split.fetch_add(1, Relaxed);
        }
        split
    }

    /// Collapses the region at `base` into one huge page. Returns whether that succeeded.
    pub(crate) fn collapse(&self, base: usize) -> bool {
        // SAFETY: neither changes contents. The flag is set, so that nothing is moved out of the
        // region before it is split.
        unsafe {
            let made = sys::advise(base, REGION, libc::MADV_HUGEPAGE)
                .and_then(|()| sys::advise(base, REGION, sys::MADV_COLLAPSE));
            // If this fails, splitting tries it again.
            let _ = sys::advise(base, REGION, libc::MADV_NOHUGEPAGE);
            made.is_ok()
        }
    }

    /// Keeps the kernel from making a huge page at `base` unasked. True if there is none now.
    pub(crate) fn forbid_huge_pages(&self, base: usize) -> bool {
        // SAFETY: changes no contents.
        let kept = unsafe { sys::advise(base, REGION, libc::MADV_NOHUGEPAGE) };
        kept.is_ok()
            && sys::huge_bytes(self.descriptors.pagemap.load(Relaxed), base, base + REGION) == Ok(0)
    }

    pub(crate) fn present_bytes(&self, base: usize) -> Result<usize, Errno> {
        let mut runs = [Run::default(); 8];
        let (count, _) = sys::scan_present(
            self.descriptors.pagemap.load(Relaxed),
            base,
            base + REGION,
            &mut runs,
        )?;
        Ok(runs[..count].iter().map(Run::bytes).sum())
    }
}
