//! A placement model over accesses to pages: what it saves, and what the program loses by it.
//!
//! Units of the source are pages of 4 KiB, of which 512 in a row are a region. An access to a page
//! that is compressed is a fault, which brings it to DRAM; one to a page of a slower medium takes
//! longer. At each window's end the model is told what was seen, and the moves for its answer are
//! made. Samples meet one access in [`Settings::sample_period`], on average; which pages were
//! touched is known by accessed bits. All pages begin in DRAM.
//!
//! What is saved is 1 less the mean cost over time (TierScape, equation 10), of what all data in
//! DRAM costs. The slowdown is lost time over the time that the program takes with all in DRAM.
//! Lost is the time of faults and of slower accesses, and the part of the work of moving that the
//! program pays.

use crate::recorded::Pace;
use crate::sampling::Gaps;
use crate::source::{Source, SourceError};
use crate::workload::Opened;
use serde::Serialize;
use terrace_policy::tiering::{
    Kind, Model, Preset, Region, Resend, Setting, Tier, Window, cost, heat, moves,
};

/// Pages of a region.
pub const REGION_PAGES: usize = 512;

/// How a run is modelled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Time that the program takes for each access of the source with all in DRAM, ns. An access
    /// stands for a request and its share of computing.
    pub access_ns: f64,
    /// Accesses to memory, beyond caches, that each one of the source stands for.
    pub misses: f64,
    /// Accesses in a window.
    pub window: u64,
    /// Windows before figures count, while the model learns and data leave DRAM.
    pub warm_up: u64,
    /// Accesses for each one that is sampled, on average; at least 1.
    pub sample_period: u64,
    /// What a second of moving takes from the program, seconds.
    pub work_price: f64,
    /// Whether the model is told what a live program tells ([`heat`]): samples, and faults on pages
    /// that are out. Otherwise it is told which pages were touched.
    pub live: bool,
}

/// Requests of 5 µs, which touch memory 8 times beyond caches, in windows of one second.
pub const SETTINGS: Settings = Settings {
    access_ns: 5_000.0,
    misses: 8.0,
    window: 200_000,
    warm_up: 4,
    sample_period: 16,
    work_price: 0.25,
    live: false,
};

/// Windows that a recording has at least, if it is long enough for them.
const WINDOWS_LEAST: u64 = 24;
/// Accesses of a recording's window, at least: with fewer a model would be told next to nothing.
const WINDOW_LEAST: u64 = 10_000;

impl Settings {
    /// Settings for a workload. An access is a request, as in [`SETTINGS`], but for recordings of
    /// accesses, which have a pace of their own. Their windows take a second, or less where a
    /// recording would have less than 24 windows.
    pub fn of(opened: &Opened) -> Settings {
        opened.pace.map_or(SETTINGS, |pace| SETTINGS.at(pace, opened.source.accesses()))
    }

    /// These settings at a recording's pace.
    fn at(self, pace: Pace, accesses: Option<u64>) -> Settings {
        let second = (1e9 / pace.access_ns) as u64;
        let most = accesses.map_or(u64::MAX, |all| all / WINDOWS_LEAST);
        // Where misses are not known, as many in a second as requests have.
        let usual = self.misses * pace.access_ns / self.access_ns;
        Settings {
            access_ns: pace.access_ns,
            misses: pace.misses.unwrap_or(usual),
            window: second.min(most).max(WINDOW_LEAST),
            ..self
        }
    }
}

/// Names and values of a model's settings: the three of TierScape's authors, and the artifact's
/// where the model has a percentile.
pub fn settings_of(model: &str) -> Vec<(String, Setting)> {
    let by_percentile = !model.starts_with("tierscape") && model != cost::NAME;
    let presets = if by_percentile { &Preset::ALL[..] } else { &Preset::ALL[..3] };
    presets
        .iter()
        .map(|preset| {
            let of = Setting::from(*preset);
            let name = if by_percentile {
                format!("p{:.0}", of.percentile)
            } else {
                format!("alpha {}", of.alpha)
            };
            (name, of)
        })
        .collect()
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Mean part of the cost of all-DRAM that was saved.
    pub saved: f64,
    /// Time lost, as a part of the time with all in DRAM.
    pub slowdown: f64,
    /// Faults, by tier.
    pub faults: Vec<u64>,
    /// Accesses to pages of a slower medium, by tier.
    pub slower: Vec<u64>,
    /// Pages at the end, by tier.
    pub pages: Vec<u64>,
    /// Pages that the model wanted in each tier: what differs has leaked back.
    pub wanted: Vec<u64>,
    /// Pages moved up and down at windows' ends.
    pub moved: u64,
    /// Work of moving, as a part of the program's time, on whichever processor.
    pub work: f64,
    /// Windows that count.
    pub windows: u64,
    /// Accesses that count.
    pub accesses: u64,
    /// Each window, those of the warm-up too.
    #[serde(skip)]
    pub trail: Vec<Passed>,
}

impl Outcome {
    /// Time of a request that a share of all requests take longer than, as a multiple of the time
    /// with all in DRAM. An access is a request, and none waits for another.
    pub fn quantile(&self, tiers: &[Tier], settings: &Settings, above: f64) -> f64 {
        let delay = |tier: &Tier| match tier.kind {
            Kind::Bytes { extra_ns } => extra_ns * settings.misses,
            Kind::Compressed { fault_ns, .. } => fault_ns,
        };
        let counts = self.faults.iter().zip(&self.slower).map(|(faults, slower)| faults + slower);
        let mut delayed: Vec<(f64, u64)> = tiers.iter().map(delay).zip(counts).collect();
        delayed.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut left = above * self.accesses as f64;
        for (delay_ns, count) in delayed {
            left -= count as f64;
            if left < 0.0 {
                return 1.0 + delay_ns / settings.access_ns;
            }
        }
        1.0
    }
}

/// What was at the end of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Passed {
    /// Pages by tier, before the moves that the window's plan asks for.
    pub pages: Vec<u64>,
    /// Pages that the plan before it wanted in each tier.
    pub wanted: Vec<u64>,
    /// Faults in the window, by tier.
    pub faults: Vec<u64>,
    /// What all pages cost; all of them in DRAM is 1.
    pub cost: f64,
}

/// Memory while it is used.
struct State<'a> {
    tiers: &'a [Tier],
    stored: &'a [f32],
    settings: Settings,
    /// The tier of each page, and the window in which it was last touched, from 1.
    place: Vec<u8>,
    touched: Vec<u32>,
    regions: Vec<Region>,
    /// What a live program would know, and faults of the window by region, where the model is told
    /// that.
    heat: heat::Heat,
    faulted: Vec<u32>,
    window: u32,
    cost: f64,
    lost_ns: f64,
    cost_time: f64,
    work_ns: f64,
    faults: Vec<u64>,
    slower: Vec<u64>,
    moved: u64,
    accesses: u64,
    gaps: Gaps,
    /// The access that is sampled next.
    sampled_next: u64,
    trail: Vec<Passed>,
    /// Faults that the trail has.
    told: Vec<u64>,
}

impl State<'_> {
    fn price(&self, region: usize, tier: u8) -> f64 {
        let at = region * self.tiers.len() + usize::from(tier);
        f64::from(self.stored[at]) * self.tiers[usize::from(tier)].price
    }

    fn put(&mut self, page: usize, tier: u8) {
        let region = page / REGION_PAGES;
        self.cost += self.price(region, tier) - self.price(region, self.place[page]);
        self.place[page] = tier;
    }

    fn access(&mut self, page: usize) {
        let region = page / REGION_PAGES;
        let from = self.place[page];
        if from != 0 {
            match self.tiers[usize::from(from)].kind {
                Kind::Bytes { extra_ns } => {
                    self.lost_ns += extra_ns * self.settings.misses;
                    self.slower[usize::from(from)] += 1;
                }
                Kind::Compressed { fault_ns, .. } => {
                    self.lost_ns += fault_ns;
                    self.faults[usize::from(from)] += 1;
                    self.faulted[region] += 1;
                    self.put(page, 0);
                }
            }
        }
        let of = &mut self.regions[region];
        if self.touched[page] != self.window {
            of.touched += 1;
            of.fresh += u32::from(self.touched[page] + 1 < self.window);
            self.touched[page] = self.window;
        }
        self.accesses += 1;
        if self.accesses == self.sampled_next {
            self.sampled_next += self.gaps.next_gap();
            let weight = (self.settings.sample_period as f64 * self.settings.misses) as f32;
            of.accesses += weight;
            if self.settings.live {
                self.heat.sampled(region as u32, page % REGION_PAGES, weight);
            }
        }
        self.cost_time += self.cost;
    }

    /// Asks the model, and moves what it wants moved.
    fn end_window(&mut self, model: &mut dyn Model, plan: &mut Vec<u8>) {
        for (number, region) in self.regions.iter_mut().enumerate() {
            let pages = number * REGION_PAGES..((number + 1) * REGION_PAGES).min(self.place.len());
            let tier = region.tier;
            region.leaked = self.place[pages].iter().filter(|place| **place != tier).count() as u32;
        }
        self.remember();
        if self.settings.live {
            self.tell_as_live();
        }
        let window =
            Window { tiers: self.tiers, regions: &self.regions, stored: self.stored, limits: &[] };
        model.place(&window, plan);
        let list = moves::list(
            &window,
            plan,
            |region| {
                let resend = model.resend(region);
                if self.settings.live { resend.by_mover() } else { resend }
            },
            |region, _| f64::from(window.regions[region].accesses),
        );
        for step in list {
            self.carry_out(step, model.resend(step.region as usize));
        }
        for (region, tier) in self.regions.iter_mut().zip(plan.iter()) {
            *region = Region { pages: region.pages, tier: *tier, ..Region::default() };
        }
        self.window += 1;
    }

    /// Puts what a live program knows in the place of what was touched.
    fn tell_as_live(&mut self) {
        for (number, region) in self.regions.iter_mut().enumerate() {
            // Pages of a slower medium do not fault, so samples tell of them as of those in DRAM.
            let faults = !self.tiers[usize::from(region.tier)].is_bytes();
            let counted = heat::Counted {
                pages: region.pages,
                tier: if faults { region.tier } else { 0 },
                // Read of evicted regions alone: what is not in their tier is in DRAM.
                resident: region.leaked,
                faults: std::mem::take(&mut self.faulted[number]),
                expected: None,
            };
            let known = self.heat.end_window(number as u32, counted, 0.0);
            *region = Region { tier: region.tier, leaked: region.leaked, ..known };
        }
    }

    /// Adds the window to the trail.
    fn remember(&mut self) {
        let mut passed = Passed {
            pages: vec![0; self.tiers.len()],
            wanted: vec![0; self.tiers.len()],
            faults: self.faults.iter().zip(&self.told).map(|(now, then)| now - then).collect(),
            cost: self.cost / self.place.len().max(1) as f64,
        };
        self.told.clone_from(&self.faults);
        self.place.iter().for_each(|tier| passed.pages[usize::from(*tier)] += 1);
        for region in &self.regions {
            passed.wanted[usize::from(region.tier)] += u64::from(region.pages);
        }
        self.trail.push(passed);
    }

    fn carry_out(&mut self, step: moves::Move, resend: Resend) {
        let first = step.region as usize * REGION_PAGES;
        let to = &self.tiers[usize::from(step.to)];
        let stays = resend == Resend::Idle && !to.is_bytes();
        for page in first..(first + REGION_PAGES).min(self.place.len()) {
            let from = self.place[page];
            if from == step.to || stays && from == 0 && self.touched[page] == self.window {
                continue;
            }
            self.work_ns += work_ns(&self.tiers[usize::from(from)], to);
            self.moved += 1;
            self.put(page, step.to);
        }
    }
}

/// Work to move a page from one tier to another, ns. Between tiers of one codec bytes are copied.
fn work_ns(from: &Tier, to: &Tier) -> f64 {
    const COPY_NS: f64 = 1_000.0;
    match (from.kind, to.kind) {
        (Kind::Compressed { codec, .. }, Kind::Compressed { codec: same, .. }) if codec == same => {
            COPY_NS
        }
        (from, to) => {
            let out = match to {
                Kind::Compressed { store_ns, .. } => store_ns,
                Kind::Bytes { .. } => COPY_NS,
            };
            let back = match from {
                Kind::Compressed { fault_ns, .. } => fault_ns - crate::tiersets::FAULT_NS,
                Kind::Bytes { .. } => 0.0,
            };
            out + back
        }
    }
}

/// Runs a model over all of a source. `stored`: bytes of each tier's medium for each byte of data,
/// a row for each region (see [`regions_of`]).
///
/// # Errors
/// What the source says.
pub fn run(
    model: &mut dyn Model,
    source: &mut dyn Source,
    tiers: &[Tier],
    stored: &[f32],
    settings: Settings,
) -> Result<Outcome, SourceError> {
    let units = source.units() as usize;
    let regions = regions_of(units);
    let mut gaps = Gaps::new(settings.sample_period as f64, 1);
    let sampled_next = gaps.next_gap();
    let mut state = State {
        tiers,
        stored,
        settings,
        place: vec![0; units],
        touched: vec![0; units],
        regions: (0..regions)
            .map(|number| Region {
                pages: (units - number * REGION_PAGES).min(REGION_PAGES) as u32,
                ..Region::default()
            })
            .collect(),
        heat: heat::Heat::default(),
        faulted: vec![0; regions],
        window: 2,
        cost: units as f64,
        lost_ns: 0.0,
        cost_time: 0.0,
        work_ns: 0.0,
        faults: vec![0; tiers.len()],
        slower: vec![0; tiers.len()],
        moved: 0,
        accesses: 0,
        gaps,
        sampled_next,
        trail: Vec::new(),
        told: vec![0; tiers.len()],
    };
    let (mut block, mut plan) = (Vec::new(), Vec::new());
    let mut counted_from = 0;
    loop {
        source.next_block(&mut block)?;
        if block.is_empty() {
            break;
        }
        for access in &block {
            state.access(access.unit() as usize);
            if state.accesses.is_multiple_of(settings.window) {
                state.end_window(model, &mut plan);
                if state.accesses == settings.window * settings.warm_up {
                    counted_from = state.accesses;
                    (state.lost_ns, state.cost_time, state.work_ns) = (0.0, 0.0, 0.0);
                    state.faults.fill(0);
                    state.slower.fill(0);
                    state.told.fill(0);
                    state.moved = 0;
                }
            }
        }
    }
    let counted = (state.accesses - counted_from).max(1) as f64;
    let base_ns = counted * settings.access_ns;
    let mut outcome = Outcome {
        saved: 1.0 - state.cost_time / counted / units.max(1) as f64,
        slowdown: (state.lost_ns + state.work_ns * settings.work_price) / base_ns,
        faults: state.faults,
        slower: state.slower,
        pages: vec![0; tiers.len()],
        wanted: vec![0; tiers.len()],
        moved: state.moved,
        work: state.work_ns / base_ns,
        windows: (state.accesses - counted_from) / settings.window,
        accesses: state.accesses - counted_from,
        trail: state.trail,
    };
    state.place.iter().for_each(|tier| outcome.pages[usize::from(*tier)] += 1);
    for region in &state.regions {
        outcome.wanted[usize::from(region.tier)] += u64::from(region.pages);
    }
    Ok(outcome)
}

/// Number of regions that `pages` pages are in.
pub fn regions_of(pages: usize) -> usize {
    pages.div_ceil(REGION_PAGES)
}

/// How much a curve of (slowdown, saved) reaches at a slowdown: between its points linearly, along
/// the best that is reached with less. A model that moves nothing is at (0, 0).
pub fn reached(curve: &[(f64, f64)], slowdown: f64) -> f64 {
    let mut points = vec![(0.0, 0.0)];
    points.extend_from_slice(curve);
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best = 0.0f64;
    let mut last: Option<(f64, f64)> = None;
    for (x, y) in points {
        if x > slowdown {
            if let Some((x0, y0)) = last.filter(|_| y > best) {
                best = best.max(y0 + (y - y0) * (slowdown - x0) / (x - x0));
            }
            break;
        }
        best = best.max(y);
        last = Some((x, best));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiersets::{stored_by_region, tiers};
    use crate::workload::{Pages, Workload};
    use terrace_policy::tiering::{NAMES as MODELS, model};

    /// How far below another's curve ours may be at any of the other's points, as a part of the
    /// cost of all-DRAM. The first is over compressed tiers alone, the second where a slower medium
    /// is one.
    const SPREADS: [(&str, f64); 2] = [("tierscape-spectrum", 0.02), ("tierscape-standard", 0.07)];
    const KNOBS: [f64; 12] = [0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.03, 0.0];
    const WORKLOADS: [&str; 7] = ["zipf", "scattered", "jump", "drift", "scan", "phases", "btree"];

    fn one(name: &str, setting: Setting, workload: &str, set: &str) -> Outcome {
        with_settings(name, setting, workload, set, Settings { window: 40_000, ..SETTINGS })
    }

    fn with_settings(
        name: &str,
        setting: Setting,
        workload: &str,
        set: &str,
        settings: Settings,
    ) -> Outcome {
        let text = format!("{workload}:units=8192,accesses=1M,elements=8");
        let mut source = Workload::parse(&text, 0, 0)
            .unwrap()
            .open(
                1,
                crate::objects::layouts::Kind::Size,
                crate::objects::Filter::All,
                Pages::Alike(4096),
            )
            .unwrap()
            .source;
        let tiers = tiers(set).unwrap();
        let stored = stored_by_region(set, regions_of(8192), 1).unwrap();
        let mut model = model(name, setting, &tiers).unwrap();
        run(&mut *model, &mut *source, &tiers, &stored, settings).unwrap()
    }

    #[test]
    fn ours_stays_close_to_the_best_curve() {
        let mut wrong = Vec::new();
        for (set, spread) in SPREADS {
            for workload in WORKLOADS {
                let ours: Vec<(f64, f64)> = KNOBS
                    .iter()
                    .map(|alpha| Setting { alpha: *alpha, percentile: 0.0 })
                    .map(|setting| one("terrace-cost", setting, workload, set))
                    .map(|outcome| (outcome.slowdown, outcome.saved))
                    .collect();
                for name in MODELS.iter().filter(|name| **name != "terrace-cost") {
                    for preset in Preset::ALL {
                        let other = one(name, preset.into(), workload, set);
                        let reached = reached(&ours, other.slowdown);
                        if reached < other.saved - spread {
                            wrong.push(format!(
                                "{set} {workload} {name} {}: {:.3} saved at {:.3}, ours {reached:.3}",
                                preset.name(), other.saved, other.slowdown
                            ));
                        }
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Every other access meets an inner node, so a fixed period would sample none of them.
    #[test]
    fn samples_meet_what_every_other_access_meets() {
        let setting = Setting { alpha: 0.9, percentile: 0.0 };
        let outcome = one("terrace-cost", setting, "btree", "tierscape-standard");
        assert!(outcome.slowdown < 0.1, "inner nodes are in a slow tier: {outcome:?}");
    }

    #[test]
    fn all_in_dram_saves_and_costs_nothing() {
        let outcome = one("terrace-cost", Setting { alpha: 1.0, percentile: 0.0 }, "zipf", "tmo");
        assert!(outcome.saved.abs() < 1e-9 && outcome.slowdown == 0.0, "{outcome:?}");
    }

    #[test]
    fn what_a_live_program_knows_is_enough_to_save() {
        let settings = Settings { live: true, sample_period: 400, window: 40_000, ..SETTINGS };
        let setting = Setting { alpha: 0.5, percentile: 0.0 };
        for set in ["tierscape-standard", "tierscape-spectrum"] {
            let outcome = with_settings("terrace-cost", setting, "zipf", set, settings);
            assert_eq!(outcome.pages.iter().sum::<u64>(), 8192);
            assert!(outcome.saved > 0.2 && outcome.slowdown < 0.2, "{set}: {outcome:?}");
        }
    }

    #[test]
    fn all_saving_takes_what_a_tier_takes() {
        let outcome = one("terrace-cost", Setting { alpha: 0.0, percentile: 0.0 }, "jump", "tmo");
        assert!(outcome.saved > 0.2 && outcome.pages[1] > 3000, "{outcome:?}");
        assert_eq!(outcome.pages.iter().sum::<u64>(), 8192);
    }

    #[test]
    fn a_recording_is_played_at_its_own_pace() {
        let pace = Pace { access_ns: 1_600.0, misses: Some(16.0) };
        let of = SETTINGS.at(pace, Some(25_000_000));
        assert_eq!((of.access_ns, of.misses, of.window), (1_600.0, 16.0, 625_000));
        assert_eq!(SETTINGS.at(pace, Some(2_400_000)).window, 100_000);
        // Samples, one in a millisecond.
        let sampled = SETTINGS.at(Pace { access_ns: 1e6, misses: None }, None);
        assert_eq!((sampled.misses, sampled.window), (1_600.0, 10_000));
    }

    #[test]
    fn the_slowest_requests_are_those_of_the_slowest_tier() {
        let tiers = tiers("tierscape-standard").unwrap();
        let outcome = Outcome {
            faults: vec![0, 0, 0, 10],
            slower: vec![0, 100, 0, 0],
            accesses: 1_000,
            ..Outcome::default()
        };
        let of = |above: f64| outcome.quantile(&tiers, &SETTINGS, above);
        assert!(of(0.001) > of(0.05) && of(0.05) > 1.0, "{} {}", of(0.001), of(0.05));
        // 270 ns for each of eight misses.
        assert!((of(0.1) - 1.432).abs() < 1e-9, "{}", of(0.1));
        assert_eq!(of(0.2), 1.0);
    }

    #[test]
    fn a_curve_is_read_between_its_points() {
        let curve = [(0.1, 0.2), (0.3, 0.4), (0.2, 0.1)];
        assert!((reached(&curve, 0.05) - 0.1).abs() < 1e-12);
        assert!((reached(&curve, 0.2) - 0.2).abs() < 1e-12);
        assert!((reached(&curve, 0.25) - 0.3).abs() < 1e-12);
        assert_eq!(reached(&curve, 1.0), 0.4);
    }
}
