//! `terrace-cost`: every region where it costs least for the time that is lost, by the faults that
//! are to be expected.
//!
//! After its first fault a page is in DRAM. So a compressed tier costs the *different* pages that
//! are touched times the whole time of a fault, not accesses times it, as TierScape's equation 7
//! charges. Pages that were touched in the last window stay in DRAM, whatever their region's tier;
//! what is to be expected are touches of pages that were idle. Both are measured in each window and
//! averaged.
//!
//! Costs are TierScape's equations 8 to 10. The work of moving is charged too: to compress, to
//! bring back, or to copy where two tiers have one codec. A region that has just moved stays for
//! some windows unless it goes up, and a plan that hardly saves time is not made.

use super::knapsack::{Problem, Solution, solve};
use super::{Kind, Model, Resend, Tier, Window};

/// Its name.
pub const NAME: &str = "terrace-cost";

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The knob, 0 (all saving) to 1 (all speed).
    pub alpha: f64,
    /// What a second of work by our threads takes from the program, seconds: they have a lower
    /// priority, and idle processors where there are some.
    pub work_price: f64,
    /// Windows over which the work of a move has to pay.
    pub horizon: f64,
    /// Windows that a region stays where it came, at least, unless it goes up.
    pub dwell: u32,
    /// Part of the time that a new plan must save where the present one is within the bound.
    pub hysteresis: f64,
    /// Weight of the last window in averages.
    pub weight: f32,
}

/// As it is used where nothing else is said.
pub const CONFIG: Config =
    Config { alpha: 0.5, work_price: 0.25, horizon: 8.0, dwell: 2, hysteresis: 0.02, weight: 0.4 };

/// Time to copy a page from one medium to another, ns.
const COPY_NS: f64 = 1000.0;

/// What is known of a region.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    accesses: f32,
    touched: f32,
    fresh: f32,
    /// Windows since it moved.
    dwelt: u32,
    tier: u8,
    seen: bool,
}

/// The model.
#[derive(Clone, Debug)]
pub struct TerraceCost {
    config: Config,
    known: Vec<Known>,
}

/// A problem's tables.
struct Tables {
    time: Vec<f32>,
    cost: Vec<f32>,
    uses: Vec<f32>,
    limited: Vec<Option<usize>>,
    limits: Vec<f64>,
    bound: f64,
}

impl TerraceCost {
    /// One that has seen nothing.
    pub fn new(config: Config) -> TerraceCost {
        TerraceCost { config, known: Vec::new() }
    }

    /// Another knob, from the next window on.
    pub fn set_alpha(&mut self, alpha: f64) {
        self.config.alpha = alpha.clamp(0.0, 1.0);
    }

    /// What moving a page from one tier to another takes of our threads, ns.
    fn move_ns(from: &Tier, to: &Tier) -> f64 {
        match (from.kind, to.kind) {
            (Kind::Compressed { codec, .. }, Kind::Compressed { codec: same, .. })
                if codec == same =>
            {
                COPY_NS
            }
            (Kind::Compressed { fault_ns, .. }, Kind::Compressed { store_ns, .. }) => {
                fault_ns + store_ns
            }
            (Kind::Compressed { fault_ns, .. }, Kind::Bytes { .. }) => fault_ns,
            (Kind::Bytes { .. }, Kind::Compressed { store_ns, .. }) => store_ns,
            (Kind::Bytes { .. }, Kind::Bytes { .. }) => COPY_NS,
        }
    }

    /// Takes a window into the averages.
    fn learn(&mut self, window: &Window<'_>) {
        self.known.resize(window.regions.len(), Known::default());
        for (known, region) in self.known.iter_mut().zip(window.regions) {
            let weight = if known.seen { self.config.weight } else { 1.0 };
            let average = |old: f32, new: f32| old + weight * (new - old);
            known.accesses = average(known.accesses, region.accesses);
            known.touched = average(known.touched, region.touched as f32);
            known.fresh = average(known.fresh, region.fresh as f32);
            known.dwelt = if known.tier == region.tier { known.dwelt.saturating_add(1) } else { 0 };
            if !known.seen {
                known.dwelt = self.config.dwell;
            }
            (known.tier, known.seen) = (region.tier, true);
        }
    }

    /// What a region loses in a window in each tier, ns, and what it costs there, pages of DRAM.
    fn row(&self, window: &Window<'_>, region: usize, tier: usize) -> (f64, f64) {
        let (known, of) = (&self.known[region], &window.tiers[tier]);
        let pages = f64::from(window.regions[region].pages);
        match of.kind {
            Kind::Bytes { extra_ns } => {
                (f64::from(known.accesses) * extra_ns, window.cost(region, tier))
            }
            Kind::Compressed { store_ns, fault_ns, .. } => {
                let faults = f64::from(known.fresh).min(pages);
                let stay = f64::from(known.touched).min(pages);
                // What came back goes out again once it is idle.
                let time = faults * (fault_ns + store_ns * self.config.work_price);
                let part = 1.0 - stay / pages;
                (time, stay + part * window.cost(region, tier))
            }
        }
    }

    fn tables(&self, window: &Window<'_>, dwell: bool) -> Tables {
        let tiers = window.tiers.len();
        let mut limits: Vec<f64> = Vec::new();
        let mut of_medium = vec![None; window.limits.len()];
        for (medium, limit) in window.limits.iter().enumerate() {
            if let Some(limit) = limit {
                of_medium[medium] = Some(limits.len());
                limits.push(*limit);
            }
        }
        let limited: Vec<Option<usize>> =
            window.tiers.iter().map(|tier| of_medium.get(tier.medium).copied().flatten()).collect();
        let dram = limited.first().copied().flatten();
        let size = window.regions.len() * tiers;
        let mut tables = Tables {
            time: Vec::with_capacity(size),
            cost: Vec::with_capacity(size),
            uses: Vec::with_capacity(if limits.is_empty() { 0 } else { size }),
            limited,
            limits,
            bound: 0.0,
        };
        for (number, region) in window.regions.iter().enumerate() {
            let known = &self.known[number];
            let (mut least, mut most) = (f64::INFINITY, 0.0f64);
            // Pages in use stay in DRAM in any compressed tier, so their room is not to be had.
            let stay = f64::from(known.touched).min(f64::from(region.pages));
            if let Some(dram) = dram {
                tables.limits[dram] -= stay;
            }
            for (index, tier) in window.tiers.iter().enumerate() {
                let (mut time, cost) = self.row(window, number, index);
                (least, most) = (least.min(cost), most.max(cost));
                if index != usize::from(region.tier) {
                    let moved = f64::from(region.pages) - if tier.is_bytes() { 0.0 } else { stay };
                    let from = &window.tiers[usize::from(region.tier)];
                    time += moved * Self::move_ns(from, tier) * self.config.work_price
                        / self.config.horizon;
                    if dwell && index != 0 && known.dwelt < self.config.dwell {
                        time = f64::INFINITY;
                    }
                }
                tables.time.push(time as f32);
                tables.cost.push(cost as f32);
                if !tables.limits.is_empty() {
                    let pages = f64::from(region.pages) - stay;
                    let more = match tier.is_bytes() {
                        // There the pages in use are too.
                        true if index != 0 => stay,
                        _ => 0.0,
                    };
                    tables.uses.push((pages * window.stored(number, index) + more) as f32);
                }
            }
            tables.bound += least + self.config.alpha * (most - least);
        }
        tables
    }

    fn solve(tables: &Tables, tiers: usize) -> Solution {
        solve(&Problem {
            choices: tiers,
            time: &tables.time,
            cost: &tables.cost,
            uses: &tables.uses,
            limited: &tables.limited,
            limits: &tables.limits,
            bound: tables.bound,
        })
    }

    /// Whether the present placement is within all limits and hardly slower than another.
    fn is_enough(&self, window: &Window<'_>, tables: &Tables, time: f64) -> bool {
        let mut sums = vec![0.0; tables.limits.len()];
        let (mut now, mut cost) = (0.0, 0.0);
        for (number, region) in window.regions.iter().enumerate() {
            let at = number * window.tiers.len() + usize::from(region.tier);
            now += f64::from(tables.time[at]);
            cost += f64::from(tables.cost[at]);
            if let Some(limit) = tables.limited[usize::from(region.tier)] {
                sums[limit] += f64::from(tables.uses[at]);
            }
        }
        cost <= tables.bound
            && sums.iter().zip(&tables.limits).all(|(sum, limit)| sum <= limit)
            && time >= now * (1.0 - self.config.hysteresis)
    }
}

impl Model for TerraceCost {
    fn name(&self) -> &'static str {
        NAME
    }

    fn place(&mut self, window: &Window<'_>, plan: &mut Vec<u8>) {
        self.learn(window);
        let mut tables = self.tables(window, true);
        let mut solution = Self::solve(&tables, window.tiers.len());
        if !solution.bound_met || !solution.limits_met {
            tables = self.tables(window, false);
            solution = Self::solve(&tables, window.tiers.len());
        }
        plan.clear();
        // What fits nowhere stays where it is.
        if !solution.limits_met || self.is_enough(window, &tables, solution.time) {
            plan.extend(window.regions.iter().map(|region| region.tier));
        } else {
            plan.extend_from_slice(&solution.choice);
        }
    }

    fn resend(&self) -> Resend {
        Resend::Idle
    }
}
