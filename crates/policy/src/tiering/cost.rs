//! `terrace-cost`: every region where it costs least for the time that is lost, by the faults that
//! are to be expected.
//!
//! After its first fault a page is in DRAM. So a compressed tier costs the *different* pages that
//! are touched times the whole time of a fault. TierScape's equation 7 charges accesses times it. A
//! region is out in one of two ways:
//!
//! - as a whole, and each page that is touched in a window is a fault;
//! - but for pages in use, which stay in DRAM, and only touches of pages that were idle are faults.
//!
//! Both numbers are measured in each window, [`predict`](super::predict) says what the next one
//! will have, and both ways are choices of the solver.
//!
//! Costs are TierScape's equations 8 to 10. The work of moving is charged too: to compress, to
//! bring back, or to copy where two tiers have one codec. A region that has just moved stays for
//! some windows unless it goes up, and a plan that hardly saves time is not made.

use super::knapsack::{CHOICES_MAX, Problem, Solution, solve};
use super::predict::{Predictor, Use};
use super::{Kind, Model, Resend, Setting, Tier, Window};

/// Name of the model.
pub const NAME: &str = "terrace-cost";

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The knob, 0 (all saving) to 1 (all speed).
    pub alpha: f64,
    /// Time that a second of work by our threads takes from the program, seconds. The threads have
    /// a lower priority, and idle processors where there are some.
    pub work_price: f64,
    /// Windows over which the work of a move has to pay.
    pub horizon: f64,
    /// Least number of windows that a region stays where it came, unless it goes up.
    pub dwell: u32,
    /// Part of the time that a new plan must save where the present one is within the bound.
    pub hysteresis: f64,
}

/// Parameters where nothing else is said. In simulation dwelling cost more than it saved: see
/// `SPREADS` in `sim/src/tiering.rs`.
pub const CONFIG: Config =
    Config { alpha: 0.5, work_price: 0.25, horizon: 8.0, dwell: 0, hysteresis: 0.02 };

/// Time to copy a page from one medium to another, ns.
const COPY_NS: f64 = 1000.0;

/// What is known of a region.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Windows since the region moved.
    dwelt: u32,
    tier: u8,
    /// Whether all pages of the region are sent out, those in use too.
    whole: bool,
    seen: bool,
}

/// A choice for a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub tier: usize,
    /// Whether all pages of the region are sent out at each window's end, those in use too.
    pub whole: bool,
}

/// What pages of a region, or of any set, do in a compressed tier in one window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    /// Pages that refault.
    pub faults: f64,
    /// Pages in DRAM, on average.
    pub in_dram: f64,
}

impl Stay {
    /// What `pages` pages do, of which `touched` are touched in a window, and `fresh` of those were
    /// not in the window before. With `whole` all are sent out at its beginning, else idle ones
    /// only.
    pub fn of(whole: bool, pages: f64, touched: f64, fresh: f64) -> Stay {
        match whole {
            true => Stay { faults: touched, in_dram: pages * leak(touched / pages) },
            // Those that refault stay for half of the window on average.
            false => Stay { faults: fresh, in_dram: (touched + fresh / 2.0).min(pages) },
        }
    }
}

/// The choices that there are over these tiers, two for each compressed one.
pub(super) fn columns(tiers: &[Tier]) -> Vec<Column> {
    let of = |(tier, its): (usize, &Tier)| {
        let ways: &[bool] = if its.is_bytes() { &[false] } else { &[false, true] };
        ways.iter().map(move |whole| Column { tier, whole: *whole })
    };
    tiers.iter().enumerate().flat_map(of).take(CHOICES_MAX).collect()
}

/// Part of a window for which a page is in DRAM on average if all are sent out at its beginning.
/// `touched`: the part of the pages that is touched, at random times.
fn leak(touched: f64) -> f64 {
    let rate = -(1.0 - touched.min(0.9999)).ln();
    if rate < 1e-6 { rate / 2.0 } else { 1.0 - (1.0 - (-rate).exp()) / rate }
}

/// The model named `terrace-cost`.
#[derive(Clone, Debug)]
pub struct TerraceCost {
    config: Config,
    known: Vec<Known>,
    predictor: Predictor,
    expected: Expected,
}

/// What a plan is expected to come to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// Time that is lost in a window, ns, with the work of moving.
    pub time_ns: f64,
    /// Cost that is expected, pages of DRAM.
    pub cost: f64,
    /// Most that the plan may cost, pages of DRAM.
    pub bound: f64,
}

/// A problem's tables.
struct Tables {
    columns: Vec<Column>,
    time: Vec<f32>,
    cost: Vec<f32>,
    uses: Vec<f32>,
    limited: Vec<Option<usize>>,
    limits: Vec<f64>,
    bound: f64,
}

impl TerraceCost {
    /// Makes a model that has seen nothing.
    pub fn new(config: Config) -> TerraceCost {
        TerraceCost {
            config,
            known: Vec::new(),
            predictor: Predictor::default(),
            expected: Expected::default(),
        }
    }

    /// What the last plan is expected to come to.
    pub fn expected(&self) -> Expected {
        self.expected
    }

    /// Time that our threads take to move a page from one tier to another, ns.
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
        self.predictor.learn(window.regions);
        for (known, region) in self.known.iter_mut().zip(window.regions) {
            known.dwelt = if known.tier == region.tier { known.dwelt.saturating_add(1) } else { 0 };
            if !known.seen {
                known.dwelt = self.config.dwell;
            }
            (known.tier, known.seen) = (region.tier, true);
        }
    }

    /// What a region loses in a window with a choice, ns, and what it costs, pages of DRAM.
    fn row(&self, window: &Window<'_>, region: usize, column: Column, expected: Use) -> (f64, f64) {
        let of = &window.tiers[column.tier];
        let pages = f64::from(window.regions[region].pages);
        let all = window.cost(region, column.tier);
        let (store_ns, fault_ns) = match of.kind {
            Kind::Bytes { extra_ns } => {
                return (expected.accesses * extra_ns, all);
            }
            Kind::Compressed { store_ns, fault_ns, .. } => (store_ns, fault_ns),
        };
        // Pages in use stay for the next window, whether or not they are touched in it.
        let touched = if column.whole { expected.touched } else { expected.in_use };
        let stay = Stay::of(column.whole, pages, touched, expected.fresh);
        // What refaulted is evicted again.
        let time = stay.faults * (fault_ns + store_ns * self.config.work_price);
        (time, stay.in_dram + (1.0 - stay.in_dram / pages) * all)
    }

    fn tables(&self, window: &Window<'_>, dwell: bool) -> Tables {
        let columns = columns(window.tiers);
        let mut limits: Vec<f64> = Vec::new();
        let mut of_medium = vec![None; window.limits.len()];
        for (medium, limit) in window.limits.iter().enumerate() {
            if let Some(limit) = limit {
                of_medium[medium] = Some(limits.len());
                limits.push(*limit);
            }
        }
        let limited: Vec<Option<usize>> = columns
            .iter()
            .map(|column| of_medium.get(window.tiers[column.tier].medium).copied().flatten())
            .collect();
        let dram = limited.first().copied().flatten();
        let size = window.regions.len() * columns.len();
        let mut tables = Tables {
            columns: columns.clone(),
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
            let expected = self.predictor.next(number, f64::from(region.pages));
            let stay = expected.in_use;
            if let Some(dram) = dram {
                tables.limits[dram] -= stay;
            }
            for column in &columns {
                let (mut time, cost) = self.row(window, number, *column, expected);
                // As it will be summed.
                let cost = f64::from(cost as f32);
                (least, most) = (least.min(cost), most.max(cost));
                let (index, tier) = (column.tier, &window.tiers[column.tier]);
                let out = !tier.is_bytes() && !column.whole;
                if index != usize::from(region.tier) {
                    // What leaked is in DRAM already.
                    let there = match index {
                        0 => f64::from(region.leaked),
                        _ if out => stay,
                        _ => 0.0,
                    };
                    let moved = f64::from(region.pages) - there;
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
                    // Of DRAM what is in use is taken already.
                    let less = if index == 0 || out { stay } else { 0.0 };
                    let pages = f64::from(region.pages) - less;
                    tables.uses.push((pages * window.stored(number, index)) as f32);
                }
            }
            tables.bound += least + self.config.alpha * (most - least);
        }
        tables
    }

    fn solve(tables: &Tables) -> Solution {
        solve(&Problem {
            choices: tables.columns.len(),
            time: &tables.time,
            cost: &tables.cost,
            uses: &tables.uses,
            limited: &tables.limited,
            limits: &tables.limits,
            bound: tables.bound,
        })
    }

    /// What the present placement comes to, if it is within all limits and the bound.
    fn present(&self, window: &Window<'_>, tables: &Tables) -> Option<Expected> {
        let mut sums = vec![0.0; tables.limits.len()];
        let (mut now, mut cost) = (0.0, 0.0);
        for (number, region) in window.regions.iter().enumerate() {
            let whole = self.known[number].whole;
            let present = |column: &Column| {
                column.tier == usize::from(region.tier)
                    && (column.whole == whole || window.tiers[column.tier].is_bytes())
            };
            let column = tables.columns.iter().position(present)?;
            let at = number * tables.columns.len() + column;
            now += f64::from(tables.time[at]);
            cost += f64::from(tables.cost[at]);
            if let Some(limit) = tables.limited[column] {
                sums[limit] += f64::from(tables.uses[at]);
            }
        }
        let fits = sums.iter().zip(&tables.limits).all(|(sum, limit)| sum <= limit);
        let expected = Expected { time_ns: now, cost, bound: tables.bound };
        (fits && cost <= tables.bound).then_some(expected)
    }
}

impl Model for TerraceCost {
    fn name(&self) -> &'static str {
        NAME
    }

    fn place(&mut self, window: &Window<'_>, plan: &mut Vec<u8>) {
        self.learn(window);
        let mut tables = self.tables(window, true);
        let mut solution = Self::solve(&tables);
        if !solution.bound_met || !solution.limits_met {
            tables = self.tables(window, false);
            solution = Self::solve(&tables);
        }
        plan.clear();
        let present = self.present(window, &tables);
        let least = |of: &Expected| of.time_ns * (1.0 - self.config.hysteresis);
        let bound = tables.bound;
        self.expected = Expected { time_ns: solution.time, cost: solution.cost, bound };
        // What fits nowhere stays where it is.
        if !solution.limits_met || present.is_some_and(|of| solution.time >= least(&of)) {
            self.expected = present.unwrap_or_default();
            plan.extend(window.regions.iter().map(|region| region.tier));
        } else {
            for (known, choice) in self.known.iter_mut().zip(&solution.choice) {
                let column = tables.columns[usize::from(*choice)];
                known.whole = column.whole;
                plan.push(column.tier as u8);
            }
        }
    }

    fn resend(&self, region: usize) -> Resend {
        if self.known.get(region).is_some_and(|known| known.whole) {
            Resend::All
        } else {
            Resend::Idle
        }
    }

    fn set(&mut self, setting: Setting) {
        self.config.alpha = setting.alpha.clamp(0.0, 1.0);
    }

    fn bound(&self) -> Option<f64> {
        Some(self.expected.bound)
    }
}
