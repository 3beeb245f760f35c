//! `--tiers auto`: which tier pages are evicted into, chosen by what each tier costs on this
//! machine and for this program.

use crate::pages::mm::Mm;
use terrace_os::{self as sys, PAGE};
use terrace_tiers::{Page, Scratch, Tier};

/// Pages on which costs are measured: a few milliseconds for each measurement.
pub(crate) const SAMPLE: usize = 64;
/// Number of evicted pages of which one is taken into the sample.
const ONE_IN: u32 = 16;
/// Pages that one call pages out, as the mover does on average.
const RUN: usize = 16;
/// Time between measurements, ns.
pub(crate) const MEASURE_EVERY_NS: u64 = 10_000_000_000;
/// Cost of UFFDIO_MOVE for a page until it is measured, ns. `STORE_NS` is what the pool and
/// emptying the slot take besides.
const MOVE_NS: u64 = 2_000;
const STORE_NS: u64 = 1_000;
/// Inverse weight of a measurement in the cost of evicting a page.
const WEIGHT: u64 = 64;
/// Factor on what is measured of the kernel's swap: 64 pages in a row are its best case. Memcached
/// and redis at half of their memory take 16 to 20 µs a fault where 9 are measured. Faults with
/// swap are 1.2 to 1.3 times those with a tier of ours that is as dense. A refault from swap is
/// seen a scan later, and writes are not seen (`terrace-bench zram-servers --terrace-flags "--tiers
/// dram,swap"`).
const SWAP_TIMES: f64 = 2.2;
/// A share of memory to evict that counts as none; factors between tiers still hold for it.
const LEAST_SHARE_TO_EVICT: f64 = 1e-3;
/// A rival must be cheaper than the tier in use by this factor: measurements are no more exact.
const CLEARLY: f64 = 0.9;

/// Results of measurements, and the tier that was chosen.
///
/// The rule: a tier's cost is the time that evicting and restoring a page takes. UFFDIO_MOVE and
/// MADV_PAGEOUT are measured as they are called, with the interrupts that the program's CPUs cost
/// ([`PerPage`]). For the kernel's swap, restoring is measured on recently evicted pages, copied
/// into memory of our own. Evicting is measured so too until its cost is known. For tiers of ours,
/// evicting costs the codec's time on the same pages. Restoring costs the median restore, for each
/// fault that a read finds waiting, plus its overhead. A denser tier evicts fewer pages for the
/// same budget, so fewer faults are made ([`faults`]); swap causes more ([`SWAP_TIMES`]). The tier
/// where cost × faults is least takes the victims. Swap on a disk never does. Under pressure the
/// densest tier of ours takes all, and what has been in swap for long (`Mover::recompress`). So it
/// holds the coldest pages.
///
/// Until the sample is full, which takes evictions into a tier of ours, the first of these is used.
pub(crate) struct Auto {
    sample: Vec<Page>,
    seen: u32,
    /// Cost of UFFDIO_MOVE into staging, and of MADV_PAGEOUT.
    pub moved: PerPage,
    pub paged_out: PerPage,
    /// The cost of each tier, ns, for as many faults as a tier of ours would cause. 0 where it is
    /// not known.
    costs_ns: Vec<u64>,
    measured_ns: u64,
    chosen: usize,
}

/// Recent cost of a call for each page, ns; 0 before the first call.
#[derive(Default)]
pub(crate) struct PerPage(u64);

impl PerPage {
    /// Records that a call took `call_ns` for `pages` pages, at least one.
    pub fn add_sample(&mut self, call_ns: u64, pages: u64) {
        let page_ns = call_ns / pages.max(1);
        self.0 = match self.0 {
            0 => page_ns,
            // A mover that was preempted meanwhile does not count in full.
            known => (known * (WEIGHT - 1) + page_ns.min(known * 8)) / WEIGHT,
        };
    }

    fn or(&self, otherwise_ns: u64) -> u64 {
        if self.0 > 0 { self.0 } else { otherwise_ns }
    }
}

/// Number of faults, up to a constant factor, if `share_to_evict` of the data must leave memory. An
/// evicted page takes `ratio` of its size. It is the accesses that go to the least popular share by
/// Zipf's law. `None` if evicting all pages is not enough.
pub(crate) fn faults(share_to_evict: f64, ratio: f64) -> Option<f64> {
    let share_out = (share_to_evict / (1.0 - ratio).max(0.01)).clamp(0.0, 0.999);
    (share_out < 0.999).then(|| -(1.0 - share_out).ln())
}

impl Auto {
    /// The chooser for the tier list `auto`; `None` for any other list.
    pub fn new(mm: &Mm) -> Option<Auto> {
        let auto = mm.settings.tiers.trim() == "auto";
        auto.then(|| Auto {
            sample: Vec::new(),
            seen: 0,
            moved: PerPage::default(),
            paged_out: PerPage::default(),
            costs_ns: vec![0; mm.tiers.len()],
            measured_ns: 0,
            chosen: 0,
        })
    }

    /// Offers a page that is about to be stored for the sample.
    pub fn offer(&mut self, page: &Page) {
        self.seen = self.seen.wrapping_add(1);
        if !self.seen.is_multiple_of(ONE_IN) {
            return;
        }
        if self.sample.len() < SAMPLE {
            self.sample.push(*page);
        } else {
            self.sample[(self.seen / ONE_IN) as usize % SAMPLE] = *page;
        }
    }

    /// Measures, if that is due.
    pub fn measure(&mut self, mm: &Mm, scratch: &mut Scratch, now_ns: u64) {
        let Some((_, swap)) = mm.swap().filter(|_| self.sample.len() == SAMPLE) else { return };
        if self.measured_ns > 0 && now_ns - self.measured_ns < MEASURE_EVERY_NS {
            return;
        }
        self.measured_ns = now_ns;
        for (index, tier) in mm.tiers.iter().enumerate().skip(1) {
            let cost = match tier.swap() {
                Some(_) if swap.accepts() => self.cost_of_swap(mm),
                Some(_) => None,
                None => Some(self.cost_of(tier, scratch, mm)),
            };
            let times = if tier.swap().is_some() { SWAP_TIMES } else { 1.0 };
            self.costs_ns[index] = (cost.unwrap_or(0) as f64 * times) as u64;
        }
    }

    fn cost_of(&self, tier: &Tier, scratch: &mut Scratch, mm: &Mm) -> u64 {
        let (mut evict_ns, mut restore_ns) =
            (Vec::with_capacity(SAMPLE), Vec::with_capacity(SAMPLE));
        for page in &self.sample {
            let measured = tier.measure(page, scratch, sys::thread_cpu_ns);
            evict_ns.push(measured.encode_ns);
            restore_ns.push(measured.decode_ns);
        }
        // Measured restores, where there are some: with all that copying a page takes.
        let restore = tier.stats.restore_quantile_ns(0.5).max(median(restore_ns));
        let move_ns = self.moved.or(MOVE_NS) + STORE_NS;
        median(evict_ns)
            + move_ns
            + mm.faults.cost.waiting_ns(restore)
            + mm.faults.cost.overhead_ns()
    }

    fn cost_of_swap(&self, mm: &Mm) -> Option<u64> {
        let fill = |memory: usize| {
            // SAFETY: the reservation holds `SAMPLE` pages, and no other code has its address.
            unsafe {
                let to = memory as *mut u8;
                std::ptr::copy_nonoverlapping(self.sample.as_ptr().cast::<u8>(), to, SAMPLE * PAGE);
            }
            SAMPLE
        };
        measure_swap(mm, sys::thread_cpu_ns, fill)
            .map(|(out, restore_ns)| self.paged_out.or(out) + restore_ns)
    }

    /// The tier to evict into now. `takes` lists the tiers that accept pages, each with the share
    /// of its size that a page takes there.
    pub fn choose(
        &mut self,
        share_to_evict: f64,
        takes: &[(usize, f64)],
        first_own: usize,
    ) -> usize {
        // Where all fits, as far as is known, evicted pages are borderline: the cost of one fault
        // decides.
        let share_to_evict = share_to_evict.max(LEAST_SHARE_TO_EVICT);
        let cost = |tier: usize| {
            let ratio = takes.iter().find(|(index, _)| *index == tier)?.1;
            Some(self.costs_ns[tier])
                .filter(|ns| *ns > 0)
                .map(|ns| ns as f64)
                .zip(faults(share_to_evict, ratio))
                .map(|(ns, faults)| ns * faults)
        };
        let best = takes
            .iter()
            .filter_map(|(tier, _)| Some((*tier, cost(*tier)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        // In use is that tier, or the first of ours that accepts pages now.
        let chosen = if takes.iter().any(|(tier, _)| *tier == self.chosen) {
            self.chosen
        } else {
            first_own
        };
        self.chosen = match (best, cost(chosen)) {
            (None, _) => first_own,
            (Some((_, least)), Some(now)) if least > now * CLEARLY => chosen,
            (Some((tier, _)), _) => tier,
        };
        self.chosen
    }
}

/// Costs of swapping a page out and in by the kernel, ns. Both are medians by `clock_ns` over up to
/// [`SAMPLE`] pages of our own. `fill` writes the pages at the address that it is given and returns
/// how many it wrote. `None` if the kernel does not swap them out.
pub(crate) fn measure_swap(
    mm: &Mm,
    clock_ns: fn() -> u64,
    fill: impl FnOnce(usize) -> usize,
) -> Option<(u64, u64)> {
    let bytes = SAMPLE * PAGE;
    let memory = sys::reserve(bytes).ok()?;
    // SAFETY: a new reservation of this function's; the advice changes no contents.
    unsafe {
        let _ = sys::advise(memory, bytes, libc::MADV_NOHUGEPAGE);
    }
    let end = memory + fill(memory) * PAGE;
    let (mut evict_ns, mut restore_ns) =
        (Vec::with_capacity(SAMPLE / RUN), Vec::with_capacity(SAMPLE));
    for run in (memory..end).step_by(RUN * PAGE) {
        let begun = clock_ns();
        let pages = RUN.min((end - run) / PAGE);
        sys::page_out(-1, &[(run, pages * PAGE)]);
        evict_ns.push((clock_ns() - begun) / pages as u64);
    }
    let pagemap = mm.descriptors.pagemap.load(std::sync::atomic::Ordering::Relaxed);
    for page in (memory..end).step_by(PAGE).filter(|page| !sys::is_present(pagemap, *page)) {
        let begun = clock_ns();
        // Through the kernel: if the page cannot be restored, that is an error and no signal.
        if sys::peek(page, &mut [0]) {
            restore_ns.push(clock_ns() - begun);
        }
    }
    // SAFETY: no other code knows this reservation.
    unsafe { sys::unmap(memory, bytes) };
    let some = !restore_ns.is_empty() && restore_ns.len() * 2 > (end - memory) / PAGE;
    some.then(|| (median(evict_ns), median(restore_ns)))
}

fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto(costs_ns: &[u64]) -> Auto {
        Auto {
            sample: Vec::new(),
            seen: 0,
            moved: PerPage::default(),
            paged_out: PerPage::default(),
            costs_ns: costs_ns.to_vec(),
            measured_ns: 0,
            chosen: 0,
        }
    }

    #[test]
    fn the_cheapest_in_all_takes_the_pages() {
        let all = [(1, 0.45), (2, 0.45), (3, 0.3)];
        // Nothing is known.
        assert_eq!(auto(&[0; 4]).choose(0.3, &all, 2), 2);
        // As dense and cheaper.
        assert_eq!(auto(&[0, 12_000, 16_000, 30_000]).choose(0.3, &all, 2), 1);
        assert_eq!(auto(&[0, 16_000, 12_000, 30_000]).choose(0.3, &all, 2), 2);
        // The share to evict is so large that the denser one makes up for its cost; then, that the
        // others are not enough.
        assert_eq!(auto(&[0, 12_000, 16_000, 18_000]).choose(0.5, &all, 2), 3);
        assert_eq!(auto(&[0, 12_000, 16_000, 90_000]).choose(0.6, &all, 2), 3);
        // All would fit.
        for share_to_evict in [0.0, -0.1] {
            assert_eq!(auto(&[0, 12_000, 10_000, 30_000]).choose(share_to_evict, &all[..2], 2), 2);
            assert_eq!(auto(&[0, 8_000, 10_000, 30_000]).choose(share_to_evict, &all[..2], 2), 1);
        }
        // Swap takes nothing at present.
        assert_eq!(auto(&[0, 12_000, 16_000, 30_000]).choose(0.3, &all[1..], 2), 2);
    }

    #[test]
    fn a_choice_stays_while_nothing_is_clearly_better() {
        let all = [(1, 0.45), (2, 0.45)];
        // Ours at first.
        let mut auto = auto(&[0, 10_000, 10_500]);
        assert_eq!(auto.choose(0.3, &all, 2), 2);
        auto.costs_ns = vec![0, 9_000, 10_500];
        assert_eq!(auto.choose(0.3, &all, 2), 1);
        auto.costs_ns = vec![0, 10_500, 10_000];
        assert_eq!(auto.choose(0.3, &all, 2), 1);
        auto.costs_ns = vec![0, 15_000, 10_000];
        assert_eq!(auto.choose(0.3, &all, 2), 2);
    }

    #[test]
    fn what_a_page_takes_follows_what_is_measured() {
        let mut moved = PerPage::default();
        assert_eq!(moved.or(2_000), 2_000);
        moved.add_sample(28_000, 2);
        assert_eq!(moved.or(2_000), 14_000);
        (0..1_000).for_each(|_| moved.add_sample(64_000, 32));
        assert!((2_000..2_200).contains(&moved.or(0)), "{}", moved.or(0));
        moved.add_sample(50_000_000, 1);
        assert!(moved.or(0) < 2_500, "the mover was preempted: {}", moved.or(0));
    }

    #[test]
    fn a_sample_is_of_what_left_lately() {
        let mut auto = auto(&[0]);
        for n in 0..(SAMPLE as u32 + 1) * ONE_IN {
            auto.offer(&[(n / ONE_IN) as u8; PAGE]);
        }
        assert_eq!(auto.sample.len(), SAMPLE);
        assert!(auto.sample.iter().any(|page| page[0] == SAMPLE as u8));
    }
}
