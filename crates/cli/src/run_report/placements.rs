//! What the placement models of a run wanted, and what came of it: read from the processes' rings
//! ([`terrace_control::windows`]) while they run, for the report.

use crate::cost::prices::Prices;
use crate::cost::tco;
use crate::processes::statistics::{self, PageFile, WindowFile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_control::settings::Settings;
use terrace_control::windows::{Row, main_tier};

/// Time between polls. A window's rows are written at once, and a ring holds 7,000 regions.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Regions times windows of which a report tells, over all processes; beyond that only of tiers.
const CELLS_MOST: usize = 1 << 20;

/// What a report tells of `--placement`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Name of the model.
    pub model: String,
    /// Time between two plans.
    pub window_s: f64,
    /// What all data cost on average over windows, of all processes together; all of it in DRAM
    /// is 1. `null` before the first window.
    pub mean_cost: Option<f64>,
    /// One entry for each process that has ended a window.
    pub processes: Vec<Placed>,
}

/// What a report tells of one process's plans.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Placed {
    /// The process.
    pub pid: u32,
    /// Names of the tiers, fastest first; other keys have their numbers.
    pub tiers: Vec<String>,
    /// Windows of the model, oldest first.
    pub windows: Vec<WindowSeen>,
    /// Regions of 2 MiB, by address.
    pub regions: Vec<RegionSeen>,
    /// Rows that came faster than they could be read, and those of regions that a report of this
    /// length has no room for.
    pub lost_rows: u64,
}

/// One window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WindowSeen {
    /// Number of the window, from 1.
    pub number: u32,
    /// When it ended, since the run began.
    pub at_s: f64,
    /// The knob: 1 is all speed, 0 all saving.
    pub knob: f64,
    /// What all data cost at its end; all of it in DRAM is 1.
    pub cost: f64,
    /// The most that the next plan may cost, likewise; `null` where the model has no such bound.
    pub bound: Option<f64>,
    /// Pages that were still to be moved.
    pub left_pages: u32,
    /// Processor time that measuring and planning took.
    pub spent_us: u32,
    /// How urgently room was needed within `--dram` or `--slowdown`, at most: 0 to 12.
    pub pressure: u32,
    /// The tiers, fastest first.
    pub tiers: Vec<TierSeen>,
}

/// One tier in a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TierSeen {
    /// Pages that were to be there.
    pub recommended_pages: u32,
    /// Pages that were there.
    pub actual_pages: u32,
    /// Pages that were to be there, and were in DRAM because they had been touched.
    pub leaked_pages: u32,
    /// Faults on pages there.
    pub faults: u32,
    /// Bytes of the medium for each byte of data there.
    pub stored: f64,
}

/// One region: an entry for each window from the first in which it was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionSeen {
    /// Where it begins.
    pub address: String,
    /// Number of the first window.
    pub first_window: u32,
    /// The tier in which it was to be.
    pub recommended: Vec<u8>,
    /// The tier in which most of its pages were.
    pub actual: Vec<u8>,
    /// Pages in DRAM although the region was to be elsewhere.
    pub leaked_pages: Vec<u16>,
    /// Pages that were touched, as estimated.
    pub touched_pages: Vec<u16>,
}

/// Where rows come together.
pub struct Placements {
    run_dir: PathBuf,
    started_ns: u64,
    model: String,
    window_s: f64,
    processes: HashMap<String, Process>,
    prices: Prices,
    cells: usize,
}

struct Process {
    file: WindowFile,
    placed: Placed,
    /// Indices of regions by address.
    by_address: HashMap<usize, usize>,
}

impl Placements {
    /// The placements of a run; `None` where no model places regions.
    pub fn new(run_dir: &Path, settings: &Settings) -> Option<Placements> {
        Some(Placements {
            run_dir: run_dir.to_owned(),
            started_ns: terrace_os::now_ns(),
            model: settings.placement.model()?.into(),
            window_s: settings.window.0 as f64 / 1000.0,
            processes: HashMap::new(),
            prices: Prices::default(),
            cells: 0,
        })
    }

    /// Takes out what has been written since. Returns when to poll again.
    pub fn poll(&mut self) -> Duration {
        for page in statistics::page_files(&self.run_dir) {
            self.look_at(&page);
        }
        POLL_INTERVAL
    }

    fn look_at(&mut self, page: &PageFile) {
        if !self.processes.contains_key(&page.name) {
            let Some(tiers) = statistics::tier_names(page) else { return };
            let Some(file) = WindowFile::open(page) else { return };
            let placed = Placed { pid: page.pid, tiers, ..Placed::default() };
            self.processes
                .insert(page.name.clone(), Process { file, placed, by_address: HashMap::new() });
        }
        let Some(Process { file, placed, by_address }) = self.processes.get_mut(&page.name) else {
            return;
        };
        let (started_ns, prices, cells) = (self.started_ns, &self.prices, &mut self.cells);
        let mut dropped = 0;
        let lost = file.take(|row| match row {
            Row::Region { .. } if *cells >= CELLS_MOST => dropped += 1,
            row => {
                *cells += usize::from(matches!(row, Row::Region { .. }));
                placed.take(row, by_address, started_ns, prices);
            }
        });
        placed.lost_rows += lost + dropped;
    }

    /// What is known so far.
    pub fn so_far(&self) -> Placement {
        let mut processes: Vec<Placed> = self
            .processes
            .values()
            .map(|process| process.placed.clone())
            .filter(|placed| !placed.windows.is_empty())
            .collect();
        for placed in &mut processes {
            placed.regions.sort_by_key(|region| {
                usize::from_str_radix(region.address.trim_start_matches("0x"), 16).unwrap_or(0)
            });
        }
        processes.sort_by_key(|placed| placed.pid);
        Placement {
            model: self.model.clone(),
            window_s: self.window_s,
            mean_cost: mean_cost(&processes),
            processes,
        }
    }
}

impl WindowSeen {
    /// Pages of all tiers.
    pub fn pages(&self) -> u64 {
        self.tiers.iter().map(|tier| u64::from(tier.actual_pages)).sum()
    }
}

/// The mean over windows, each by its pages.
fn mean_cost(processes: &[Placed]) -> Option<f64> {
    let windows = || processes.iter().flat_map(|placed| &placed.windows);
    let pages: u64 = windows().map(WindowSeen::pages).sum();
    let cost: f64 = windows().map(|window| window.cost * window.pages() as f64).sum();
    (pages > 0).then(|| cost / pages as f64)
}

impl Placed {
    fn take(
        &mut self,
        row: Row,
        by_address: &mut HashMap<usize, usize>,
        started_ns: u64,
        prices: &Prices,
    ) {
        match row {
            Row::Window { number, at_ns, knob, left, bound, spent_us, pressure, .. } => {
                self.windows.push(WindowSeen {
                    number,
                    at_s: at_ns.saturating_sub(started_ns) as f64 / 1e9,
                    // As it was said, but for the rounding of its shorter form.
                    knob: (f64::from(knob) * 1e6).round() / 1e6,
                    cost: 0.0,
                    // Pages of DRAM, until the tiers say how many there are.
                    bound: (bound > 0.0).then_some(f64::from(bound)),
                    left_pages: left,
                    spent_us,
                    pressure: pressure.into(),
                    tiers: Vec::new(),
                });
            }
            Row::Tier {
                number, tier, recommended, actual, leaked, faults, stored, cost, ..
            } => {
                let all = self.tiers.len();
                let name = self.tiers.get(usize::from(tier)).map_or("dram", String::as_str);
                let held = f64::from(actual.max(u32::from(tier > 0))) * f64::from(stored);
                // The process knows of a directory whether it is in memory (tmpfs).
                let cost = match tco::medium(name) {
                    "file" => f64::from(cost),
                    _ => tco::cost(name, held, prices),
                };
                let Some(window) = self.windows.last_mut().filter(|last| last.number == number)
                else {
                    return;
                };
                window.cost += cost;
                window.tiers.push(TierSeen {
                    recommended_pages: recommended,
                    actual_pages: actual,
                    leaked_pages: leaked,
                    faults,
                    stored: f64::from(stored),
                });
                if window.tiers.len() == all {
                    let pages = window.pages().max(1) as f64;
                    window.cost /= pages;
                    window.bound = window.bound.map(|bound| bound / pages);
                }
            }
            Row::Region { number, address, recommended, pages, touched, .. } => {
                let index = *by_address.entry(address).or_insert_with(|| {
                    self.regions.push(RegionSeen {
                        address: format!("{address:#x}"),
                        first_window: number,
                        ..RegionSeen::default()
                    });
                    self.regions.len() - 1
                });
                let region = &mut self.regions[index];
                // Empty for a while, or lost: as it was.
                while region.first_window as usize + region.recommended.len() < number as usize {
                    region.repeat_last();
                }
                region.recommended.push(recommended);
                region.actual.push(main_tier(&pages));
                region.leaked_pages.push(if recommended == 0 { 0 } else { pages[0] });
                region.touched_pages.push(touched);
            }
        }
    }
}

impl RegionSeen {
    fn repeat_last(&mut self) {
        self.recommended.push(self.recommended.last().copied().unwrap_or(0));
        self.actual.push(self.actual.last().copied().unwrap_or(0));
        self.leaked_pages.push(self.leaked_pages.last().copied().unwrap_or(0));
        self.touched_pages.push(0);
    }
}

#[cfg(test)]
pub mod samples {
    use super::*;

    fn rows(number: u32, lz4: u32) -> Vec<Row> {
        let tier = |tier: u8, recommended, actual, cost: f32| Row::Tier {
            number,
            tier,
            recommended,
            actual,
            leaked: u32::from(tier) * 12,
            faults: u32::from(tier) * 30,
            cost,
            stored: cost / actual.max(1) as f32,
        };
        let region = |address, recommended, there: [u16; 2]| Row::Region {
            number,
            address,
            recommended,
            pages: [there[0], there[1], 0, 0, 0, 0, 0, 0],
            touched: 9,
            accesses: 5.0,
        };
        vec![
            Row::Window {
                number,
                at_ns: 6_000_000_000 + u64::from(number) * 5_000_000_000,
                knob: 0.3,
                regions: 2,
                left: 0,
                bound: 800.0,
                spent_us: 700,
                pressure: number as u8 * 3,
            },
            tier(0, 512, 1024 - lz4, (1024 - lz4) as f32),
            tier(1, 512, lz4, lz4 as f32 / 2.0),
            region(0x20_0000, 0, [512, 0]),
            region(0x40_0000, 1, [512 - lz4 as u16, lz4 as u16]),
        ]
    }

    /// Two windows of a process with two regions, over dram and lz4.
    pub fn placed() -> Placed {
        let tiers = ["dram", "lz4"].map(String::from).to_vec();
        let mut placed = Placed { pid: 7, tiers, ..Placed::default() };
        let mut by_address = HashMap::new();
        for row in rows(1, 0).into_iter().chain(rows(2, 500)) {
            placed.take(row, &mut by_address, 1_000_000_000, &Prices::default());
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_windows_and_regions() {
        let placed = samples::placed();
        let [first, second] = &placed.windows[..] else { panic!("{placed:?}") };
        assert_eq!((first.at_s, first.cost, first.knob), (10.0, 1.0, 0.3));
        assert_eq!((second.at_s, second.bound), (15.0, Some(800.0 / 1024.0)));
        assert_eq!((first.pressure, second.pressure), (3, 6));
        assert!((second.cost - (524.0 + 250.0) / 1024.0).abs() < 1e-9);
        assert_eq!(second.tiers[1].leaked_pages, 12);
        let out = &placed.regions[1];
        assert_eq!((&out.address[..], &out.recommended[..]), ("0x400000", &[1, 1][..]));
        assert_eq!((&out.actual[..], &out.leaked_pages[..]), (&[0, 1][..], &[512, 12][..]));
        let mean = mean_cost(std::slice::from_ref(&placed)).unwrap();
        assert!((mean - (1.0 + second.cost) / 2.0).abs() < 1e-9);
        assert_eq!(mean_cost(&[]), None);
    }
}
