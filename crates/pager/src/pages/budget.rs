//! This process's share of the run's budget, and what is published of its counters.

use crate::pages::mm::Mm;
use std::sync::atomic::Ordering::*;
use terrace_os as sys;

/// Forks are in a row if they are less than this apart, ns. `terrace run` polls twice in this time.
/// It then has assigned a share to every child that was forked before.
const FORKS_IN_A_ROW_NS: u64 = 200_000_000;

impl Mm {
    /// Bytes of the run's budget that this process may have; `u64::MAX` without a limit. `terrace
    /// run` assigns the shares. Without a run, each process has the whole budget.
    pub(crate) fn share_of_budget(&self, touched_max_bytes: u64) -> u64 {
        let whole = self.settings.dram.budget_bytes(touched_max_bytes);
        if whole == u64::MAX || self.settings.run_dir.is_none() {
            return whole.min(self.account.assigned_bytes.load(Relaxed));
        }
        let page = self.stats();
        match page.map_or(0, |page| page.share_bytes.load(Acquire)) {
            0 => match self.account.interim_bytes.load(Relaxed) {
                // Half, because there is at least one process besides: the one that executed this
                // one, or one that this one is to execute.
                u64::MAX => whole / 2,
                interim => interim.min(whole),
            },
            share => {
                let touched_then = page.map_or(u64::MAX, |page| page.share_for_bytes.load(Relaxed));
                share.saturating_add(
                    self.settings.dram.of_growth(touched_max_bytes.saturating_sub(touched_then)),
                )
            }
        }
    }

    /// Counts forks in a row, before each: see [`Mm::begin_childs_budget`].
    pub(crate) fn count_fork(&self) {
        let now_ns = sys::now_ns();
        let row = now_ns - self.account.forked_ns.swap(now_ns, Relaxed) < FORKS_IN_A_ROW_NS;
        let before = if row { self.account.forks.load(Relaxed) } else { 0 };
        self.account.forks.store(before + 1, Relaxed);
    }

    /// Sets the budget of a fork's child, before it has a page of its own: memory is still its
    /// parent's. The first child may have half of the room that is left, until it is assigned a
    /// share. The next one in a row may have a quarter, and so on: together no more than there is.
    pub(crate) fn begin_childs_budget(&self) {
        let account = &self.account;
        let forks = account.forks.swap(0, Relaxed).min(63);
        let (budget, physical) = (account.budget_bytes.load(Relaxed), self.physical_bytes());
        if budget < u64::MAX {
            let interim = physical + (budget.saturating_sub(physical) >> forks);
            account.interim_bytes.store(interim, Relaxed);
            account.budget_bytes.store(interim, Relaxed);
        }
    }

    /// Writes the counters that need no measuring into the statistics page. This is done as the
    /// program ends, too: it may have moved pages since the last publication. Nothing but stores,
    /// because a filter may forbid system calls by then. The companion copies the page into the
    /// file.
    pub fn publish_counts(&self) {
        let Some(page) = self.stats() else { return };
        let account = &self.account;
        page.counts.write(&account.read_counts(page.started_ns.load(Relaxed)));
        for (index, (tier, field)) in self.tiers.iter().zip(&page.tiers).enumerate() {
            field
                .pages
                .store(if index == 0 { account.resident() } else { tier.stats.pages() }, Relaxed);
            field.faults.store(tier.stats.faults(), Relaxed);
            field.rejected.store(tier.stats.rejected(), Relaxed);
        }
    }
}
