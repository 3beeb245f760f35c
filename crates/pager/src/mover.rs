//! The mover: one thread that keeps memory under the budget, with headroom, and measures.
//!
//! It holds a region's lock or none, waits for no thread of the program, and can be paused between
//! any two batches. How hard it looks for victims is its *pressure*: up a step whenever a look at
//! all regions was not enough, down again when things are easy.

use crate::account::Measure;
use crate::ahead::RUN_PAGES;
use crate::auto::faults;
use crate::evict::{Evictor, Taken, Wish, is_refused, note_refusals};
use crate::far::Far;
use crate::fork::{PAUSE, PAUSED};
use crate::huge::{Huge, is_kept_huge};
use crate::moves::Why;
use crate::pager::{DO, IDLE, Mode, Pager};
use crate::quiet::Quiet;
use crate::recall::Recall;
use crate::settings::Stress;
use crate::swapping::own_tier;
use crate::sys::{self, PAGE, Run};
use crate::table::REGION;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_policy::faults::Faults;
use terrace_policy::victims::{
    Action, Choice, FLOOR_MS, PRESSURE_MAX, Reason, RegionId, VictimPolicy, probation_room,
    soon_pages,
};
use terrace_policy::{live, placement};
use terrace_tiers::{Swap, SwapKind, Tier};

/// Sleep between looks while there is plenty of room, and while the budget is near.
const IDLE_TICK: Duration = Duration::from_millis(50);
const BUSY_TICK: Duration = Duration::from_millis(5);
/// Longest sleep while nothing new is found.
const QUIET_TICK: Duration = Duration::from_millis(250);
/// Longest stretch of evicting before measuring again.
const SLICE_NS: u64 = 10_000_000;
/// Time until the mover knows what the kernel brought back from its swap, s.
const RETURN_S: f64 = 0.02;
/// How often it is looked at what is under the kernel's swap, ns.
const LOOK_AT_SWAP_EVERY_NS: u64 = 200_000_000;
/// Bounds of the headroom.
const HEADROOM_MIN: u64 = 2 << 20;
const HEADROOM_MAX: u64 = 64 << 20;
/// Time for which headroom is kept, s.
const REACTION_S: f64 = 0.2;
/// Time in which a burst of first touches is half forgotten, s.
const BURST_HALF_LIFE_S: f64 = 2.0;
/// The half-life of a burst (s) once no burst has grown for so long (ns). DRAM kept free for
/// nothing costs refaults.
const CALM_AFTER_NS: u64 = 1_000_000_000;
const CALM_HALF_LIFE_S: f64 = 0.2;
/// Pages taken at a time (twice as many of a region, if that much room is needed), and while a
/// thread waits for room: 0.2 ms with lz4.
const AT_ONCE: usize = 32;
const AT_ONCE_WAITED_FOR: usize = 24;
/// The policy is told so often what came back, ns.
const TELL_EVERY_NS: u64 = 200_000_000;
/// How often the policy is told of samples, ns.
const SAMPLES_EVERY_NS: u64 = 100_000_000;
/// How often what `terrace run` reads and writes behind the statistics page is copied.
const EXCHANGE_EVERY_NS: u64 = 20_000_000;
const SAMPLES_WITH_ROOM: f32 = 0.1;
/// The time to evict this part (1/n) of the resident pages is measured.
const PACE_PARTS: u64 = 8;
/// Room for this share of the resident pages on probation: where much comes back, many are too
/// young to leave.
const PROBATION_ROOM: f64 = 0.25;
/// A look at memory so shortly before the ranking is fresh, ns.
const FRESH_NS: u64 = 20_000_000;
/// Rest after walks that found next to nothing, ns; doubles each time.
const REST_MIN_NS: u64 = 20_000_000;
const REST_MAX_NS: u64 = 1_000_000_000;
/// Pressure goes down a step after so long without need, ns.
const EASE_EVERY_NS: u64 = 200_000_000;
/// How often files give back what was freed in them, ns, and a refusing one is tried again.
const TIDY_EVERY_NS: u64 = 50_000_000;
const TRY_AGAIN_EVERY_NS: u64 = 1_000_000_000;
/// How often the program is asked to give back what it freed, ns.
const GIVE_BACK_EVERY_NS: u64 = 1_000_000_000;
/// So many pools are looked at at once, and so often, ns: 0.2 % of a CPU, and a second for 12 GiB.
/// One is packed at a time.
const POOLS_AT_ONCE: u32 = 32;
const POOLS_EVERY_NS: u64 = 5_000_000;
/// After so long, and after eight times as long again and again, code that was needed once leaves
/// the page table, ns.
const FORGET_AFTER_NS: u64 = 1_000_000_000;
/// From this pressure on, evictions go straight to the densest tier.
const PRESSURE_DENSE: u32 = 4;
/// Where a full node's coldest regions are compressed, at least this pressure.
const FAR_PRESSURE: u32 = 1;
/// What a page's way out and back costs with the densest tier, as a multiple of that with the
/// first. With lz4 and zstd, all in all, 16 to 19 and 22 to 27 µs where the program and the mover
/// share a CPU (`terrace-bench zram-servers`: 1.4), less because there zstd saves more faults than
/// Zipf's law says: at 80 % of memcached's memory and of redis' both give the same throughput, zstd
/// with a third fewer faults.
const DENSEST_COST: f64 = 1.3;
/// What a page's way out and back costs with a tier in files, as a multiple of that with the first
/// tier: a read takes 100 µs.
const FILE_COST: f64 = 5.0;
/// Until the densest tier's ratio is known, it is tried once in so many choices.
const TRY_DENSEST: u32 = 32;
/// What packed pages take, as a multiple of their encoded bytes.
const PACKED: f64 = 1.07;
/// The first tier's ratio before it is known.
const RATIO_ASSUMED: f64 = 0.5;
/// The densest tier's ratio before it is known, as a multiple of the first's: as zstd to lz4.
const DENSER_ASSUMED: f64 = 0.82;

/// How the mover stands to the threads of the program that share a processor with it.
#[derive(Clone, Copy)]
enum Standing {
    Beside,
    /// As somebody of lower priority: the program's threads wait less often for it.
    Behind,
    /// Before all of them, where they take memory faster than it makes room.
    Before,
}

/// [`Standing::Behind`] as a nice value, added to the program's, and [`Standing::Before`].
const BEHIND: i32 = 10;
const FIRST: i32 = -20;
/// Behind, the mover gets a tenth of what another thread gets, and falls behind where that goes on.
/// So it goes there while more than half of the headroom is free and nobody waits for it, and
/// stands beside the others again where less than a quarter is. Two servers in turn, to one whose
/// mover always stood beside: redis at 30 % of its memory 0.84 to 0.86 times the p99, memcached at
/// 50 % 0.95; always behind, memcached's p99.9 is 1.28 times as long (docs/benchmarks.md, *The
/// tail*).
const HEADROOM_BEHIND: u64 = 2;
const HEADROOM_BESIDE: u64 = 4;
/// Not so soon: who gives up its privileges mostly does so when it has just started or been forked,
/// and a mover that was behind then would have to stay there. (One that gives them up later stays
/// as it stands.)
const BEHIND_AFTER_NS: u64 = 2_000_000_000;

struct Mover {
    pager: &'static Pager,
    evictor: Evictor,
    measure: Measure,
    policy: Box<dyn VictimPolicy>,
    /// Where there is a tier `node:N`.
    far: Option<Far>,
    /// Where hot regions get huge pages.
    huge: Option<Huge>,
    /// Samples that it has been told of, and when.
    samples_taken: u64,
    sampled_ns: u64,
    exchanged_ns: u64,
    pressure: u32,
    eased_ns: u64,
    order: Vec<Choice>,
    cursor: usize,
    /// The page of the region at the cursor to go on with.
    from: usize,
    ranked_ns: u64,
    /// See `headroom`; bytes per second.
    growth: f64,
    grew_ns: u64,
    looked_ns: u64,
    quiet: Quiet,
    /// How often a tier has been chosen, wrapping around.
    choices: u32,
    /// Pages whose probation is over.
    leaving: Vec<u32>,
    /// When so many pages had been evicted.
    paced_ns: u64,
    paced_pages: u64,
    /// Bytes of pages that the present walk through the order moved out.
    walk_moved_bytes: u64,
    /// The hand took returns off: the next walk may find more.
    walk_changed: bool,
    told_ns: u64,
    /// No walk before this time: the last one found next to nothing.
    rest_until_ns: u64,
    rest_ns: u64,
    random: u64,
    stress_due: f64,
    stress_ns: u64,
    tidied_ns: u64,
    tried_again_ns: u64,
    gave_back_ns: u64,
    swap_looked_ns: u64,
    recall: Recall,
    /// The region whose pool was looked at last.
    tidied_region: RegionId,
    tidied_pools_ns: u64,
}

/// The mover thread's life.
pub(crate) fn run(pager: &'static Pager) {
    sys::set_thread_background();
    let now_ns = sys::now_ns();
    pager.fetch_share();
    let mut mover = Mover {
        pager,
        evictor: Evictor::new(pager),
        measure: Measure::new(pager),
        policy: live::victims(pager.settings.policy.name())
            .unwrap_or_else(|| Box::new(Faults::default())),
        far: Far::new(pager),
        huge: Huge::new(pager),
        samples_taken: 0,
        sampled_ns: now_ns,
        exchanged_ns: 0,
        pressure: 0,
        eased_ns: now_ns,
        order: Vec::new(),
        cursor: 0,
        from: 0,
        ranked_ns: 0,
        growth: 0.0,
        grew_ns: now_ns,
        looked_ns: now_ns,
        quiet: Quiet::new(IDLE_TICK, QUIET_TICK),
        choices: 0,
        leaving: Vec::with_capacity(AT_ONCE),
        paced_ns: now_ns,
        paced_pages: 0,
        walk_moved_bytes: 0,
        walk_changed: false,
        told_ns: now_ns,
        rest_until_ns: 0,
        rest_ns: REST_MIN_NS,
        random: now_ns | 1,
        stress_due: 0.0,
        stress_ns: now_ns,
        tidied_ns: now_ns,
        tried_again_ns: now_ns,
        gave_back_ns: now_ns,
        swap_looked_ns: 0,
        recall: Recall::new(now_ns),
        tidied_region: 0,
        tidied_pools_ns: 0,
    };
    pager.prepare_move_ring();
    pager.mover.own_nice.store(sys::nice_of_thread().min(sys::nice_of_program()), Relaxed);
    pager.mover.standing.store(Standing::Beside as u32, Relaxed);
    pager.mover.stays_beside.store(now_ns + BEHIND_AFTER_NS, Relaxed);
    pager.confine_thread();
    pager.mover.running.store(true, Release);
    let mut forget_after_ns = FORGET_AFTER_NS;
    loop {
        let calls = pager.mover.calls.load(Acquire);
        pager.stand_by_room();
        mover.pause_if_asked();
        if pager.is_retired() {
            return;
        }
        pager.forget_unmapped();
        mover.page_out();
        mover.fetch_ahead();
        let sleep = mover.tick();
        if sys::now_ns() - now_ns > forget_after_ns {
            forget_after_ns = forget_after_ns.saturating_mul(8);
            sys::forget_own_code(pager.descriptors.pagemap.load(Relaxed));
        }
        if !sleep.is_zero() {
            sys::futex_wait(&pager.mover.calls, calls, Some(sleep));
        }
    }
}

impl Pager {
    /// Whether somebody waits for the mover to pause.
    pub(crate) fn pause_asked(&self) -> bool {
        self.mover.pause.load(Relaxed) != 0
    }

    /// In the mover: while memory is within the budget, whoever has something to do goes first; but
    /// for those who wait for the mover.
    pub(crate) fn let_others_run(&self) {
        let waited_for = self.mover.waiting.load(Relaxed) > 0 || self.pause_asked();
        let room = self.stand_by_room();
        if !waited_for && room > 0 {
            sys::yield_now();
        }
    }

    /// In the mover: it stands behind the program's threads while there is room and nobody waits
    /// for it, and else beside them. Returns the room, in bytes.
    fn stand_by_room(&self) -> u64 {
        let room = self.account.budget_bytes.load(Relaxed).saturating_sub(self.physical_bytes());
        let headroom = self.mover.headroom.load(Relaxed);
        let waited_for = self.mover.waiting.load(Relaxed) > 0
            || self.pause_asked()
            || self.mover.page_out.asked.load(Relaxed) != IDLE;
        if room > headroom / HEADROOM_BEHIND && !waited_for {
            self.stand(Standing::Behind);
        } else if room < headroom / HEADROOM_BESIDE || waited_for {
            self.leave_behind();
        }
        room
    }

    /// In the mover: somebody waits for it.
    pub(crate) fn leave_behind(&self) {
        if self.stands(Standing::Behind) {
            self.stand(Standing::Beside);
        }
    }

    fn stands(&self, so: Standing) -> bool {
        self.mover.standing.load(Relaxed) == so as u32
    }

    fn stand(&self, to: Standing) {
        let stays_beside_ns = self.mover.stays_beside.load(Relaxed);
        let too_soon = matches!(to, Standing::Behind) && sys::now_ns() <= stays_beside_ns;
        if stays_beside_ns == 0 || too_soon || self.stands(to) {
            return;
        }
        self.mover.standing.store(to as u32, Relaxed);
        let own_nice = self.mover.own_nice.load(Relaxed);
        match to {
            // Whoever may not come back does not go: only going up tells.
            Standing::Behind => {
                if ![own_nice - 1, own_nice, own_nice + BEHIND]
                    .into_iter()
                    .all(sys::set_thread_nice)
                {
                    self.mover.stays_beside.store(u64::MAX, Relaxed);
                }
            }
            Standing::Beside => _ = sys::set_thread_nice(own_nice),
            Standing::Before => _ = sys::set_thread_nice(FIRST),
        }
    }
}

impl Mover {
    fn pause_if_asked(&mut self) {
        let pause = &self.pager.mover.pause;
        if pause.load(SeqCst) != PAUSE {
            return;
        }
        self.evictor.cancel_probes(self.pager);
        if self.pager.watches.load(Relaxed) {
            // A forked child registers what is believed to be registered: not what is something
            // else.
            self.pager.disown_unregistered(0, usize::MAX / PAGE * PAGE);
        }
        if pause.compare_exchange(PAUSE, PAUSED, SeqCst, SeqCst).is_ok() {
            sys::futex_wake(pause, u32::MAX >> 1);
        }
        while pause.load(SeqCst) == PAUSED {
            sys::futex_wait(pause, PAUSED, None);
        }
    }

    /// Serves [`Pager::page_out`].
    fn page_out(&mut self) {
        let pager = self.pager;
        let line = &pager.mover.page_out;
        let Some((_, start, end)) = line.asked() else { return };
        let before = self.demoted();
        let mut address = start;
        if let Some(far) = self.far.as_mut().filter(|_| pager.densest_own().is_none()) {
            far.page_out(pager, start, end);
            address = end;
        }
        while address < end && !pager.is_frozen() && !pager.pause_asked() {
            if pager.table.get(address).is_none() {
                // Never looked at: if nothing is there, it needs no record.
                let mut first = [Run::default()];
                let found = sys::scan_present(
                    pager.descriptors.pagemap.load(Relaxed),
                    address,
                    end,
                    &mut first,
                );
                address = match found {
                    Ok((0, _)) => end,
                    Ok(_) => address.max(first[0].start as usize),
                    Err(_) => (address / REGION + 1) * REGION,
                };
                if address >= end || found.is_err() {
                    continue;
                }
            }
            let region_end = (address / REGION + 1) * REGION;
            if let Some(entry) = pager.table.get_or_create(address) {
                let pages = (end.min(region_end) - address) / PAGE;
                let wish = Wish {
                    pages,
                    pressure: PRESSURE_MAX,
                    anything: false,
                    tier: self.ends().0,
                    from: address % REGION / PAGE,
                };
                let taken = self.evictor.evict(pager, entry, wish);
                self.list(Reason::Asked, entry.number, taken.evicted.into(), wish.tier);
                if entry.region.evicted.load(Relaxed) > 0 {
                    entry.region.asked_out.store(1, Relaxed);
                }
            }
            address = region_end;
        }
        self.count(Reason::Asked, before);
        line.done();
    }

    /// Looks at all memory.
    fn scan(&mut self) {
        self.measure.scan(self.pager);
        if let Some(far) = &mut self.far {
            far.look(self.pager, &mut self.measure.views);
        }
    }

    /// Serves [`Pager::prefetch`] while no eviction would follow from it.
    fn fetch_ahead(&mut self) {
        let pager = self.pager;
        pager.grant_wishes(|pager| {
            let budget = pager.account.budget_bytes.load(Relaxed);
            let room = budget.saturating_sub(self.headroom(budget, sys::now_ns()) / 2);
            let may = !pager.pause_asked() && !pager.is_retired() && !pager.events.past_us();
            may && pager.physical_bytes() + ((RUN_PAGES * PAGE) as u64) < room
        });
    }

    /// One look; returns how long to sleep after it.
    fn tick(&mut self) -> Duration {
        let pager = self.pager;
        let now_ns = sys::now_ns();
        let budget = pager.account.budget_bytes.load(Relaxed);
        let tight = pager.physical_bytes() + budget / 8 > budget;
        let due = if tight || self.measure.has_shrunk(pager) {
            self.measure.scan_due(now_ns)
        } else {
            self.measure.idle_scan_due(now_ns)
        };
        if due {
            self.scan();
        }
        if now_ns - self.exchanged_ns > EXCHANGE_EVERY_NS {
            self.exchanged_ns = now_ns;
            pager.exchange();
        }
        self.measure.tick(pager, now_ns);
        self.pace(now_ns);
        if now_ns - self.gave_back_ns > GIVE_BACK_EVERY_NS {
            self.gave_back_ns = now_ns;
            (pager.host.tidy_soon)();
        }
        if pager.table.has_refused() {
            pager.say_once(&pager.said.no_room, "pages stay in DRAM: there is no memory for their table (ulimit -d, vm.max_map_count)");
        }
        if pager.settings.sites && now_ns - self.sampled_ns > SAMPLES_EVERY_NS {
            self.tell_samples(now_ns);
            (pager.host.look_at_sites)(now_ns);
        }
        if pager.mode() != Mode::Active {
            return self.idle_tick(u64::MAX);
        }
        self.tidy_files(now_ns);
        self.look_at_swap(now_ns);
        if pager.is_frozen() {
            self.evictor.cancel_probes(pager);
            return IDLE_TICK;
        }
        if !pager.pause_asked() {
            self.evictor.learn(pager);
        }
        let before = self.demoted();
        let (policy, pressure) = (&mut self.policy, self.pressure);
        self.evictor.end_probes(pager, now_ns, |region, staged, touched, evicted| {
            list(
                pager,
                Reason::Probed,
                (region, policy.heat(region)),
                pressure,
                evicted.into(),
                own_tier(pager, 1),
            );
            policy.probed(region, staged, touched, now_ns / 1_000_000);
        });
        self.count(Reason::Probed, before);
        if tight {
            self.tidy_pools(now_ns);
        }
        let stressed = self.stress(now_ns);
        let budget = pager.account.budget_bytes.load(Relaxed);
        if budget == u64::MAX {
            return if stressed { Duration::from_millis(1) } else { self.idle_tick(u64::MAX) };
        }
        if now_ns - self.told_ns > TELL_EVERY_NS {
            self.tell_returns(now_ns);
        }
        if now_ns - self.sampled_ns > SAMPLES_EVERY_NS {
            self.tell_samples(now_ns);
        }
        let headroom = self.headroom(budget, now_ns);
        pager.mover.headroom.store(headroom, Relaxed);
        if let Some(far) = &mut self.far {
            far.look_up(pager, now_ns);
            let pools_and_overhead =
                pager.physical_bytes().saturating_sub(pager.account.resident() * PAGE as u64);
            let room = budget.saturating_sub(headroom + pools_and_overhead);
            far.decide(pager, room, now_ns);
        }
        if let Some(huge) = &mut self.huge {
            huge.look(pager, &mut *self.policy, &self.measure.views, self.measure.scanned_ns);
        }
        let physical = pager.physical_bytes();
        if physical <= budget {
            self.ease(now_ns);
        }
        let swaps = pager.swap().is_some_and(|(tier, _)| tier.stats.pages() > 0);
        self.hurry(swaps && physical > budget);
        // Beyond half of the budget no single demand is worth it.
        let demand = pager.mover.demand.load(Relaxed).min(budget / 2);
        if physical + demand > budget - headroom / 2 {
            if self.make_room(budget - headroom.max(demand), now_ns) {
                return Duration::ZERO;
            }
            return BUSY_TICK;
        }
        self.met();
        // Not while memory grows: what comes back then would leave again at once. Nor in a fork's
        // child, whose parent has the pages.
        let grows = self.growth * REACTION_S > HEADROOM_MIN as f64;
        if self.far.is_none() && !stressed && !grows && !pager.is_forked() {
            self.recall.look(pager, budget.saturating_sub(headroom * 3 / 2), budget, now_ns);
        }
        if stressed {
            Duration::from_millis(1)
        } else if self.evictor.probing() || physical + budget / 8 > budget {
            BUSY_TICK
        } else {
            self.idle_tick(budget - physical)
        }
    }

    /// How long to sleep with so much room: longer each time while nothing changes.
    fn idle_tick(&mut self, room: u64) -> Duration {
        self.quiet.sleep(self.pager.physical_bytes(), room, false)
    }

    /// Bytes kept free for first touches, which cannot be made to wait (refaults wait for room): as
    /// much as came in [`REACTION_S`] when it came fastest, of late. They also serve for swap-ins
    /// by the kernel, which do not wait either.
    fn headroom(&mut self, budget: u64, now_ns: u64) -> u64 {
        let seconds = (now_ns - self.looked_ns) as f64 / 1e9;
        self.looked_ns = now_ns;
        if self.measure.growth * REACTION_S > HEADROOM_MIN as f64 {
            self.grew_ns = now_ns;
        }
        let half_life_s = if now_ns - self.grew_ns < CALM_AFTER_NS {
            BURST_HALF_LIFE_S
        } else {
            CALM_HALF_LIFE_S
        };
        self.growth = (self.growth * (-seconds / half_life_s).exp2()).max(self.measure.growth);
        ((self.growth * REACTION_S + self.measure.returning * RETURN_S) as u64)
            .clamp(HEADROOM_MIN, HEADROOM_MAX)
            .min(budget / 4)
    }

    /// Pages that come back leave holes in their regions' pools. Where pages leave again, those are
    /// filled or packed; here the others have their turn.
    fn tidy_pools(&mut self, now_ns: u64) {
        let pager = self.pager;
        if now_ns - self.tidied_pools_ns < POOLS_EVERY_NS || pager.pause_asked() {
            return;
        }
        self.tidied_pools_ns = now_ns;
        for _ in 0..pager.table.len().min(POOLS_AT_ONCE) {
            self.tidied_region = (self.tidied_region + 1) % pager.table.len();
            let entry = pager.table.by_number(self.tidied_region);
            let wastes = entry.region.store.lock().wastes();
            if wastes.is_some() {
                self.evictor.tidy(pager, &entry);
                return;
            }
        }
    }

    fn tidy_files(&mut self, now_ns: u64) {
        if now_ns - self.tidied_ns < TIDY_EVERY_NS {
            return;
        }
        self.tidied_ns = now_ns;
        let try_again = now_ns - self.tried_again_ns >= TRY_AGAIN_EVERY_NS;
        if try_again {
            self.tried_again_ns = now_ns;
        }
        for files in self.pager.tiers.iter().filter_map(Tier::files) {
            if files.tidy() || try_again {
                files.try_again();
            }
        }
    }

    fn look_at_swap(&mut self, now_ns: u64) {
        let Some((tier, swap)) =
            self.pager.swap().filter(|_| now_ns - self.swap_looked_ns > LOOK_AT_SWAP_EVERY_NS)
        else {
            return;
        };
        // Each second: as files that refused.
        if self.swap_looked_ns / TRY_AGAIN_EVERY_NS != now_ns / TRY_AGAIN_EVERY_NS {
            swap.try_again();
        }
        self.swap_looked_ns = now_ns;
        swap.look(tier.stats.pages());
        if let Some(auto) = &mut self.evictor.auto {
            auto.measure(self.pager, &mut self.evictor.tools.scratch, now_ns);
        }
    }

    /// Gives the mover precedence over the program's threads, where it may, while memory is over
    /// the budget. A thread that swaps a page in waits for no room, so the mover would otherwise
    /// fall behind where processors are scarce.
    fn hurry(&self, hurries: bool) {
        if hurries {
            self.pager.stand(Standing::Before);
        } else if self.pager.stands(Standing::Before) {
            self.pager.stand(Standing::Beside);
        }
    }

    /// The tiers that take pages at present. A disk is asked for by name only.
    fn takers(&self) -> impl Iterator<Item = usize> {
        let auto = self.evictor.auto.is_some();
        let takes = move |swap: &Swap| swap.accepts() && !(auto && swap.kind() == SwapKind::Disk);
        let tiers = &self.pager.tiers;
        (1..tiers.len()).filter(move |tier| {
            tiers[*tier].is_ours() || tiers[*tier].swap().is_some_and(|swap| takes(swap))
        })
    }

    /// The first (fastest) of the tiers that take pages at present, and the last (densest).
    fn ends(&self) -> (usize, usize) {
        let mut all = self.takers();
        let first = all.next().unwrap_or(1);
        (first, all.last().unwrap_or(first))
    }

    /// Evicts until memory is down to `target` or the time slice is over. True if there is more to
    /// do at once.
    fn make_room(&mut self, target: u64, now_ns: u64) -> bool {
        let pager = self.pager;
        let budget = pager.account.budget_bytes.load(Relaxed);
        let deadline = now_ns + SLICE_NS;
        if now_ns < self.rest_until_ns {
            return false;
        }
        if let Some(more) = self.make_room_in_node(target, deadline) {
            return more;
        }
        if let Some(far) = self.far.as_ref().filter(|_| self.takers().next().is_none()) {
            if pager.physical_bytes() <= budget {
                return false;
            }
            if !far.accepts() {
                far.say_full(pager);
            }
            self.ranked_ns = now_ns;
            return self.walk_ended(budget);
        }
        // Every region has its turn before any has another: the hand that passes over pages.
        if self.cursor >= self.order.len() {
            self.rank(now_ns);
        }
        while pager.physical_bytes() > target {
            if pager.pause_asked() || sys::now_ns() > deadline {
                return true;
            }
            if pager.physical_bytes() <= budget {
                self.hurry(false);
            }
            pager.let_others_run();
            if self.end_probation() {
                continue;
            }
            let Some(choice) = self.order.get(self.cursor).copied() else {
                return self.walk_ended(budget);
            };
            let from = std::mem::take(&mut self.from);
            self.cursor += 1;
            let over = pager.physical_bytes().saturating_sub(target);
            let entry = pager.table.by_number(choice.region);
            let now_ms = sys::now_ns() / 1_000_000;
            if is_refused(&entry, now_ms) || is_kept_huge(&entry, &*self.policy, self.pressure) {
                continue;
            }
            if choice.action == Action::Probe && pager.physical_bytes() <= budget {
                let salt = self.next_random();
                self.walk_moved_bytes += u64::from(self.evictor.probe(pager, entry, salt));
                continue;
            }
            // A page gives back about half of itself.
            let (least, most) = self.at_once();
            let pages = (over as usize / PAGE * 2 + 1).clamp(least, most);
            let tier = self.tier();
            let before = self.demoted();
            let taken = self.evictor.evict(
                pager,
                entry,
                Wish { pages, pressure: self.pressure, anything: false, tier, from },
            );
            let reason = if self.pressure == 0 { Reason::Cold } else { Reason::Pressed };
            self.count(reason, before);
            self.list(reason, choice.region, taken.evicted.into(), tier);
            if taken.next < REGION / PAGE {
                self.cursor -= 1;
                self.from = taken.next;
            }
            if taken.evicted > 0 {
                self.policy.evicted(choice.region, taken.evicted, now_ms);
                self.walk_moved_bytes += u64::from(taken.evicted) * PAGE as u64;
            }
            self.walk_changed |= taken.changed;
            note_refusals(&entry, &taken);
        }
        self.met();
        false
    }

    /// Makes room by moving pages to far memory, as long as that has room or room can be made in
    /// it; otherwise `None`. True if there is more to do at once.
    fn make_room_in_node(&mut self, target: u64, deadline: u64) -> Option<bool> {
        self.far.as_ref()?;
        let pager = self.pager;
        let before = self.demoted();
        let more = loop {
            let now_ns = sys::now_ns();
            if pager.physical_bytes() <= target {
                self.met();
                break Some(false);
            }
            if pager.pause_asked() || now_ns > deadline || pager.is_frozen() {
                break Some(!pager.is_frozen());
            }
            pager.let_others_run();
            let far = self.far.as_mut()?;
            if far.demote_coldest(pager, now_ns) {
                continue;
            }
            if far.accepts() {
                // What came after the last scan is not known yet.
                if self.measure.scan_due(now_ns) {
                    self.scan();
                    continue;
                }
                // Over the budget that cannot wait: the other tiers have to help.
                break (pager.physical_bytes() <= pager.account.budget_bytes.load(Relaxed))
                    .then_some(false);
            }
            if !self.compress_far(deadline) {
                // Other tiers have their turn.
                break None;
            }
        };
        self.count(Reason::Cold, before);
        more
    }

    /// The node is full: what is coldest there is compressed. False if nothing was.
    fn compress_far(&mut self, deadline: u64) -> bool {
        let pager = self.pager;
        // Of a node that takes none even then, nothing is compressed: that would cost DRAM.
        if !self.far.as_ref().is_some_and(Far::is_usable) || pager.densest_own().is_none() {
            return false;
        }
        while let Some(entry) =
            self.far.as_mut().and_then(|far| far.coldest_far(pager, sys::now_ns()))
        {
            // Samples say that it is cold; a page that came back from there lately, or is written,
            // stays at first.
            let wish = Wish {
                pages: REGION / PAGE,
                pressure: self.pressure.max(FAR_PRESSURE),
                anything: false,
                tier: self.tier(),
                from: 0,
            };
            let taken = self.evictor.evict(pager, entry, wish);
            pager.list_move(
                entry.region.address(),
                taken.evicted.into(),
                None,
                wish.tier,
                Why::Placed(placement::Reason::Coldest),
            );
            note_refusals(&entry, &taken);
            if let Some(far) = &mut self.far {
                far.compressed(pager, &entry, taken.evicted);
            }
            if taken.evicted > 0 {
                return true;
            }
            if pager.pause_asked() || sys::now_ns() > deadline {
                return false;
            }
        }
        if let Some(far) = &mut self.far {
            far.compressed_none(sys::now_ns());
        }
        false
    }

    /// Pages that left so far. Nobody but this thread moves any out.
    fn demoted(&self) -> u64 {
        self.pager.account.demoted_pages.load(Relaxed)
    }

    /// What left since there were `before` did so for this reason.
    fn count(&self, reason: Reason, before: u64) {
        self.pager.account.demoted_for[reason as usize].fetch_add(self.demoted() - before, Relaxed);
    }

    /// Lists what left a region, of whatever tier it was in where the reason is that it takes less
    /// room in a denser one.
    fn list(&self, reason: Reason, region: RegionId, pages: u64, to: usize) {
        list(self.pager, reason, (region, self.policy.heat(region)), self.pressure, pages, to);
    }

    /// Least and most pages to take at a time.
    fn at_once(&self) -> (usize, usize) {
        let waited_for = self.pager.mover.waiting.load(Relaxed) > 0;
        if waited_for { (AT_ONCE_WAITED_FOR, AT_ONCE_WAITED_FOR) } else { (AT_ONCE, 2 * AT_ONCE) }
    }

    /// Evicts pages that were on probation for long enough. True if there were some.
    fn end_probation(&mut self) -> bool {
        let pager = self.pager;
        let stay = probation_room(pager.account.resident(), pager.all_pages_out());
        self.leaving.clear();
        let now_ms = sys::now_ns() / 1_000_000;
        let ready = |page: u32| {
            let (entry, address) = pager.table.page(page);
            let word = entry.word(address).load();
            !word.is_on_probation() || word.age_ms(now_ms) >= FLOOR_MS
        };
        pager.probation.leave(stay, self.at_once().0, ready, &mut self.leaving);
        if self.leaving.is_empty() {
            return false;
        }
        let (tier, before) = (self.tier(), self.demoted());
        let (policy, moved, pressure) =
            (&mut self.policy, &mut self.walk_moved_bytes, self.pressure);
        self.evictor.end_probation(pager, &self.leaving, tier, |region| {
            list(pager, Reason::Probation, (region, policy.heat(region)), pressure, 1, tier);
            policy.evicted(region, 1, now_ms);
            *moved += PAGE as u64;
        });
        self.count(Reason::Probation, before);
        true
    }

    /// Measures how long it takes to evict [`soon_pages`], and makes room for those on probation.
    fn pace(&mut self, now_ns: u64) {
        let account = &self.pager.account;
        let resident = account.resident();
        let evicted = account.demoted_pages.load(Relaxed) - self.paced_pages;
        let part_ms = (now_ns - self.paced_ns) / 1_000_000;
        let soon_pages = soon_pages(resident, self.pager.all_pages_out());
        let soon_ms =
            (part_ms as f64 * soon_pages / evicted.max(resident / PACE_PARTS).max(1) as f64) as u64;
        let soon = &self.pager.mover.soon_ms;
        if evicted > 0 && evicted * PACE_PARTS >= resident {
            soon.store(soon_ms, Relaxed);
            self.paced_ns = now_ns;
            self.paced_pages += evicted;
            self.pager.probation.reserve((resident as f64 * PROBATION_ROOM) as usize);
        } else {
            soon.fetch_max(soon_ms, Relaxed);
        }
    }

    /// Into which tier to evict next: the cheapest, and now and then the densest until its ratio is
    /// known.
    fn tier(&mut self) -> usize {
        let (_, densest) = self.ends();
        self.choices = self.choices.wrapping_add(1);
        let trial = self.choices.is_multiple_of(TRY_DENSEST) && self.ratio(densest).is_none();
        if trial {
            densest
        } else if self.evictor.auto.is_some() && self.pressure < PRESSURE_DENSE {
            self.measured_tier()
        } else {
            self.cheapest_tier()
        }
    }

    /// The tier that `--tiers auto` chooses by measured costs: see [`Auto`](crate::auto::Auto).
    fn measured_tier(&mut self) -> usize {
        let first_own = own_tier(self.pager, 1);
        // Among ours as without swap.
        let own = self.cheaper_of(first_own, self.pager.densest_own().unwrap_or(first_own));
        let assumed = |tier: usize| {
            if tier == first_own { RATIO_ASSUMED } else { RATIO_ASSUMED * DENSER_ASSUMED }
        };
        let rivals =
            self.takers().filter(|tier| *tier == own || self.pager.tiers[*tier].swap().is_some());
        let takes: Vec<(usize, f64)> =
            rivals.map(|tier| (tier, self.ratio(tier).unwrap_or_else(|| assumed(tier)))).collect();
        let must_go = self.must_go();
        self.evictor.auto.as_mut().map_or(own, |auto| auto.choose(must_go, &takes, own))
    }

    /// The share of the data that cannot stay in DRAM as it is.
    fn must_go(&self) -> f64 {
        let data = (self.pager.all_pages_out() + self.pager.account.resident()) * PAGE as u64;
        1.0 - self.pager.account.budget_bytes.load(Relaxed) as f64 / data.max(1) as f64
    }

    /// DRAM for each byte in a tier, if that is known.
    fn ratio(&self, tier: usize) -> Option<f64> {
        let known = self.evictor.encoded[tier].known().map(|ratio| (ratio * PACKED).min(1.0));
        let known = self.pager.tiers[tier].swap().map(|swap| swap.ratio()).or(known);
        if self.pager.tiers[tier].leaves_dram() { Some(0.0) } else { known }
    }

    /// The first (fastest) compressed tier, or the densest where that costs less in all.
    ///
    /// With ratio r (physical per logical byte) a share x = (1 − budget/logical) / (1 − r) of the
    /// data must be out to meet the budget: less of it in a denser tier, whose faults cost
    /// more. How many accesses go to the least popular share x is taken from Zipf's law: −ln(1 −
    /// x), but for a factor.
    fn cheapest_tier(&self) -> usize {
        let (fastest, densest) = self.ends();
        if self.pressure >= PRESSURE_DENSE { densest } else { self.cheaper_of(fastest, densest) }
    }

    fn cheaper_of(&self, fastest: usize, densest: usize) -> usize {
        let pager = self.pager;
        let must_go = self.must_go();
        let first = self.ratio(fastest).unwrap_or(RATIO_ASSUMED);
        let dense = self.ratio(densest).unwrap_or(first * DENSER_ASSUMED).min(first);
        // The first cannot do it.
        let Some(faults_first) = faults(must_go, first) else { return densest };
        let faults_dense = faults(must_go, dense).unwrap_or(faults_first);
        let cost = if pager.tiers[densest].leaves_dram() { FILE_COST } else { DENSEST_COST };
        if faults_dense * cost < faults_first { densest } else { fastest }
    }

    /// Memory is within the budget.
    fn met(&mut self) {
        self.pager.mover.at_floor.store(false, Relaxed);
        self.rest_until_ns = 0;
        self.rest_ns = REST_MIN_NS;
    }

    fn ease(&mut self, now_ns: u64) {
        if self.pressure > 0 && now_ns - self.eased_ns > EASE_EVERY_NS {
            self.pressure -= 1;
            self.eased_ns = now_ns;
        }
    }

    /// The whole order was walked and it was not enough: a fresh look, denser tiers, more pressure,
    /// and then the floor. True if there is more to do at once.
    fn walk_ended(&mut self, budget: u64) -> bool {
        let pager = self.pager;
        let now_ns = sys::now_ns();
        let excess = pager.physical_bytes().saturating_sub(budget);
        let found = self.walk_moved_bytes > excess / 4 || excess == 0 && self.walk_changed;
        if found && excess == 0 {
            // Or it would never go down while memory is always at the budget.
            self.ease(now_ns);
        }
        let looked_ns = self.measure.scanned_ns;
        let ranked_ns = std::mem::replace(&mut self.ranked_ns, 0);
        if !found && looked_ns + FRESH_NS < ranked_ns {
            // What was allocated since the last look is not in the order.
            self.scan();
            return true;
        }
        if excess > 0
            && (self.pressure >= 2 || self.cheapest_tier() + 1 == pager.tiers.len())
            && self.densify()
        {
            return true;
        }
        if self.pressure < PRESSURE_MAX && !found {
            self.pressure += 1;
            self.eased_ns = now_ns;
            return true;
        }
        if found || excess == 0 {
            return excess > 0;
        }
        // Whoever waits for room waits in vain.
        pager.mover.at_floor.store(true, Relaxed);
        sys::futex_wake(&pager.mover.progress, u32::MAX >> 1);
        self.rest_until_ns = now_ns + self.rest_ns;
        self.rest_ns = (self.rest_ns * 2).min(REST_MAX_NS);
        false
    }

    /// Recompresses what is out already; true if that gained something.
    fn densify(&mut self) -> bool {
        let pager = self.pager;
        let Some(densest) = pager.densest_own() else { return false };
        if pager.tiers[1..densest]
            .iter()
            .all(|tier| tier.node().is_some() || tier.stats.pages() == 0)
        {
            return false;
        }
        let swap = pager.swap_number().filter(|swap| *swap < densest);
        // Moving for less than an eighth is not worth a slower fault.
        let swap_is_sparser = swap.is_some_and(|swap| {
            self.ratio(densest).unwrap_or(RATIO_ASSUMED) < self.ratio(swap).unwrap_or(0.0) * 0.875
        });
        let deadline = sys::now_ns() + SLICE_NS;
        let demoted = self.demoted();
        let before: u64 = pager.tiers.iter().map(Tier::dram_bytes).sum();
        let regions = pager.table.len();
        let first = (self.next_random() % u64::from(regions.max(1))) as u32;
        let mut gained = 0;
        for step in 0..regions {
            let entry = pager.table.by_number((first + step) % regions);
            let moved = self.demoted();
            if entry.region.evicted.load(Relaxed) > 0 {
                gained += self.evictor.densify(pager, entry);
            }
            if swap_is_sparser {
                gained += u64::from(self.evictor.densify_swapped(pager, entry, densest));
            }
            self.list(Reason::Denser, entry.number, self.demoted() - moved, densest);
            if pager.pause_asked() || sys::now_ns() > deadline {
                break;
            }
        }
        self.count(Reason::Denser, demoted);
        let after: u64 = pager.tiers.iter().map(Tier::dram_bytes).sum();
        gained > 0 && after < before
    }

    fn rank(&mut self, now_ns: u64) {
        let now_ms = now_ns / 1_000_000;
        if self.measure.scan_due(now_ns) {
            self.scan();
        }
        self.tell_returns(now_ns);
        self.policy.rank(now_ms, self.pressure, &self.measure.views, &mut self.order);
        self.cursor = 0;
        self.from = 0;
        self.walk_moved_bytes = 0;
        self.walk_changed = false;
        self.ranked_ns = now_ns;
    }

    /// Tells the policy what came back.
    fn tell_returns(&mut self, now_ns: u64) {
        self.told_ns = now_ns;
        let table = &self.pager.table;
        for number in 0..table.len() {
            let region = table.by_number(number).region;
            let returned = region.returned.swap(0, Relaxed);
            if returned > 0 {
                self.pager.list_move(region.address(), returned.into(), None, 0, Why::Touched);
            }
            let restores = region.restores.swap(0, Relaxed);
            if restores > 0 {
                self.policy.restored(number, restores, now_ns / 1_000_000);
            }
        }
    }

    /// Tells the policy where the program waited for memory.
    fn tell_samples(&mut self, now_ns: u64) {
        self.sampled_ns = now_ns;
        let pager = self.pager;
        let (Some(samples), Some(page)) = (pager.samples(), pager.stats()) else { return };
        // While there is plenty of room, what is hot makes no difference yet.
        let budget = self.pager.account.budget_bytes.load(Relaxed);
        let tight = self.pager.physical_bytes() + budget / 8 > budget;
        let wanted = match &self.far {
            // Nothing but samples tells what is used there.
            Some(_) if pager.far_pages() > 0 => 1.0,
            _ if self.huge.is_some() || pager.settings.sites => 1.0,
            _ if tight => self.policy.samples_wanted(),
            _ => SAMPLES_WITH_ROOM,
        };
        page.samples_percent.store((wanted * 100.0) as u64, Relaxed);
        let (table, policy, far) = (&pager.table, &mut self.policy, &mut self.far);
        let sampled = pager.host.sampled;
        samples.take(&mut self.samples_taken, |address, weight| {
            sampled(address, weight);
            // What is not managed has no region.
            if let Some(entry) = table.get(address) {
                policy.sampled(entry.number, weight);
                if let Some(far) = far {
                    far.sampled(entry.number, weight);
                }
            }
        });
    }

    /// `TERRACE_STRESS`: random pages of random regions, whatever the policy thinks. True if stress
    /// is on.
    fn stress(&mut self, now_ns: u64) -> bool {
        let pager = self.pager;
        let batch = match pager.settings.stress {
            Stress::Off => return false,
            Stress::Full => 4096,
            Stress::PagesPerSecond(rate) => {
                self.stress_due = (self.stress_due
                    + (now_ns - self.stress_ns) as f64 / 1e9 * rate as f64)
                    .min(4096.0);
                self.stress_due as usize
            }
        };
        self.stress_ns = now_ns;
        if self.measure.scan_due(now_ns) {
            self.scan();
        }
        let deadline = now_ns + SLICE_NS;
        let before = self.demoted();
        let mut left = batch;
        let mut tries = 64;
        while left > 0 && tries > 0 && sys::now_ns() < deadline && !pager.pause_asked() {
            tries -= 1;
            let random = self.next_random();
            let Some(view) =
                self.measure.views.get(random as usize % self.measure.views.len().max(1)).copied()
            else {
                break;
            };
            let entry = pager.table.by_number(view.region);
            if is_refused(&entry, now_ns / 1_000_000) {
                continue;
            }
            let pages = left.min(1 + (random >> 32) as usize % 64);
            let from = (random >> 40) as usize % (REGION / PAGE);
            let tier = 1 + (random >> 20) as usize % (pager.tiers.len() - 1);
            let mut moved = self.demoted();
            let taken = if random >> 60 == 0 {
                self.evictor.probe(pager, entry, random);
                Taken::default()
            } else if let Some(far) = self.far.as_mut().filter(|_| random >> 60 < 4) {
                far.toss(pager, &entry, random >> 8 & 1 == 0);
                // It is in the list already.
                moved = self.demoted();
                Taken::default()
            } else {
                self.evictor.evict(
                    pager,
                    entry,
                    Wish { pages, pressure: PRESSURE_MAX, anything: true, tier, from },
                )
            };
            if self.huge.is_some() && random >> 59 & 1 == 0 {
                // Others: pages of this one have just left.
                for _ in 0..4 {
                    let other = self.next_random() as usize % self.measure.views.len();
                    pager.make_huge(&pager.table.by_number(self.measure.views[other].region));
                }
            }
            if random >> 56 & 15 == 1 {
                self.evictor.densify(pager, entry);
            }
            if let Some(densest) = pager.densest_own().filter(|_| random >> 56 & 15 == 2) {
                self.evictor.densify_swapped(pager, entry, densest);
            }
            self.list(Reason::Stress, entry.number, self.demoted() - moved, tier);
            note_refusals(&entry, &taken);
            left -= (taken.evicted as usize).min(left);
        }
        self.count(Reason::Stress, before);
        self.stress_due -= (batch - left) as f64;
        true
    }

    /// xorshift64: speed and spread, nothing else, are asked of it.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

fn list(
    pager: &Pager,
    reason: Reason,
    (region, heat): (RegionId, Option<f32>),
    pressure: u32,
    pages: u64,
    to: usize,
) {
    // Stress moves anything, and what is densified may be from any tier.
    let from = (!matches!(reason, Reason::Denser | Reason::Stress)).then_some(0);
    pager.list_move(
        pager.table.by_number(region).region.address(),
        pages,
        from,
        to,
        Why::Victim { reason, heat, pressure },
    );
}

impl Pager {
    /// Evicts what is resident in `start..start + len`, as MADV_PAGEOUT asks: the program knows
    /// that it will not need it soon. False if nothing is evicted at present; then the kernel
    /// may try.
    pub fn page_out(&self, start: usize, len: usize) -> bool {
        if self.mode() != Mode::Active || self.is_frozen() || !self.mover.running.load(Acquire) {
            return false;
        }
        self.mover.page_out.ask(
            DO,
            start,
            start + len,
            || self.call_mover(),
            || !self.is_retired(),
        );
        true
    }
}
