//! What holds of every model, and of the solver against exhaustive search.

use super::cost::{CONFIG, Config, TerraceCost};
use super::heat::{Counted, Heat};
use super::knapsack::{Problem, solve};
use super::moves::{Move, Queue, filter, list};
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// TierScape's standard mix.
fn tiers() -> Vec<Tier> {
    let tier = |name: &str, kind, medium, price| Tier { name: name.into(), kind, medium, price };
    let packed = |codec, store_ns, fault_ns| Kind::Compressed { codec, store_ns, fault_ns };
    vec![
        tier("dram", Kind::Bytes { extra_ns: 0.0 }, 0, 1.0),
        tier("slow", Kind::Bytes { extra_ns: 270.0 }, 1, 1.0 / 3.0),
        tier("lzo", packed(Codec::Lzo, 6300.0, 8400.0), 0, 1.0),
        tier("zstd@slow", packed(Codec::Zstd, 14900.0, 12500.0), 1, 1.0 / 3.0),
    ]
}

/// A heap: which regions are how hot, and how they compress.
#[derive(Clone, Debug)]
struct Heap {
    regions: Vec<Region>,
    stored: Vec<f32>,
}

impl Heap {
    fn window<'a>(&'a self, tiers: &'a [Tier], limits: &'a [Option<f64>]) -> Window<'a> {
        Window { tiers, regions: &self.regions, stored: &self.stored, limits }
    }

    /// All pages are where the plan has them, but those in use, which leak.
    fn apply(&mut self, plan: &[u8], tiers: &[Tier], resend: impl Fn(usize) -> Resend) {
        for (number, (region, to)) in self.regions.iter_mut().zip(plan).enumerate() {
            let out = !tiers[usize::from(*to)].is_bytes();
            region.tier = *to;
            region.leaked = if out && resend(number) == Resend::Idle { region.touched } else { 0 };
        }
    }
}

fn heaps(most: usize) -> impl Strategy<Value = Heap> {
    let region = (1u32..=512, 0f32..1000.0, 0f32..=1.0, 0f32..=1.0, 0.2f32..1.0, 0.1f32..0.9);
    vec(region, 1..most).prop_map(|regions| Heap {
        stored: regions.iter().flat_map(|of| [1.0, 1.0, of.4, of.4 * of.5]).collect(),
        regions: regions
            .iter()
            .map(|(pages, accesses, touched, fresh, ..)| {
                let touched = (*pages as f32 * touched * touched) as u32;
                Region {
                    pages: *pages,
                    accesses: if *accesses < 300.0 { 0.0 } else { *accesses },
                    touched,
                    fresh: (touched as f32 * fresh) as u32,
                    ..Region::default()
                }
            })
            .collect(),
    })
}

/// Times and costs of a region.
type Row = (Vec<u8>, Vec<u8>);

/// A problem's tables: 3 choices; costs as f32 so that sums are exact enough.
fn small() -> impl Strategy<Value = (Vec<f32>, Vec<f32>, f64, f64)> {
    let row = (vec(0u8..100, 3), vec(1u8..100, 3));
    (vec(row, 1..7), 0.0..1.0f64, 0.2..1.0f64).prop_map(|(rows, alpha, room)| {
        let table = |of: &dyn Fn(&Row) -> &Vec<u8>| {
            rows.iter().flat_map(of).map(|number| f32::from(*number)).collect::<Vec<f32>>()
        };
        (table(&|row| &row.0), table(&|row| &row.1), alpha, room)
    })
}

/// The least time by trying everything; `None` where nothing is within the bound and the limit of
/// the second choice's resource.
fn exact(time: &[f32], cost: &[f32], bound: f64, limit: f64) -> Option<f64> {
    let regions = time.len() / 3;
    let all = (0..3usize.pow(regions as u32)).filter_map(|number| {
        let choice = |region: usize| region * 3 + number / 3usize.pow(region as u32) % 3;
        let sum = |of: &[f32]| (0..regions).map(|r| f64::from(of[choice(r)])).sum::<f64>();
        let used: f64 = (0..regions)
            .filter(|region| choice(*region) % 3 == 1)
            .map(|region| f64::from(cost[choice(region)]))
            .sum();
        (sum(cost) <= bound && used <= limit).then(|| sum(time))
    });
    all.min_by(f64::total_cmp)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..ProptestConfig::with_cases(400)
    })]

    /// Cost and limits hold. Nothing beats the exact least, nor that the lower bound. The distance
    /// is at most a step of one region for each constraint.
    #[test]
    fn the_greedy_is_near_exhaustive_search((time, cost, alpha, room) in small()) {
        let sum = |least: bool| -> f64 {
            cost.chunks(3).map(|row| {
                f64::from(
                    row.iter().copied().reduce(if least { f32::min } else { f32::max }).unwrap()
                )
            }).sum()
        };
        let bound = sum(true) + alpha * (sum(false) - sum(true));
        let step = time
            .chunks(3)
            .map(|row| f64::from(row.iter().copied().fold(0.0, f32::max)))
            .fold(0.0, f64::max);
        for limits in [vec![], vec![room * sum(false)]] {
            let solution = solve(&Problem {
                choices: 3, time: &time, cost: &cost,
                uses: if limits.is_empty() { &[] } else { &cost },
                limited: if limits.is_empty() { &[] } else { &[None, Some(0), None] },
                limits: &limits, bound,
            });
            let least =
                exact(&time, &cost, bound, limits.first().copied().unwrap_or(f64::INFINITY));
            prop_assert!(solution.limits_met);
            if limits.is_empty() {
                prop_assert!(solution.bound_met, "{solution:?}");
            }
            if solution.bound_met {
                prop_assert!(solution.cost <= bound);
                let least = least.expect("one was found");
                prop_assert!(solution.time >= least - 1e-3, "{solution:?} {least}");
                prop_assert!(solution.at_least <= least + 1e-3, "{solution:?} {least}");
                prop_assert!(
                    solution.time <= least + step * (1 + limits.len()) as f64 + 1e-3,
                    "{solution:?} {least}",
                );
            }
        }
    }

    /// Media hold no more than they can, and the cost is within the bound of the knob, wherever
    /// pages were before.
    #[test]
    fn limits_and_the_bound_hold(mut heap in heaps(60), alpha in 0.0..1.0f64, slow in 0.0..1.0f64) {
        let tiers = tiers();
        let pages: f64 = heap.regions.iter().map(|region| f64::from(region.pages)).sum();
        let slow = if slow > 0.5 { f64::INFINITY } else { slow };
        let limits = [None, slow.is_finite().then_some(slow * pages)];
        let mut model = TerraceCost::new(Config { alpha, ..CONFIG });
        let mut plan = Vec::new();
        for _ in 0..4 {
            let window = heap.window(&tiers, &limits);
            model.place(&window, &mut plan);
            let on_slow: f64 = plan.iter().enumerate()
                .filter(|(_, tier)| tiers[usize::from(**tier)].medium == 1)
                .map(|(number, tier)| {
                    f64::from(heap.regions[number].pages) * window.stored(number, (*tier).into())
                })
                .sum();
            // A node holds all of a region; of a compressed tier pages in use have left.
            let touched = f64::from(heap.regions.iter().map(|r| r.touched).sum::<u32>());
            prop_assert!(on_slow <= slow * pages + touched + 0.1);
            if slow.is_infinite() {
                let expected = model.expected();
                prop_assert!(expected.cost <= expected.bound, "{expected:?}");
            }
            heap.apply(&plan, &tiers, |region| model.resend(region));
        }
    }

    /// With nothing limited the cost is never above min + alpha (max - min).
    #[test]
    fn the_knob_bounds_the_cost(heap in heaps(80), alpha in 0.0..1.0f64) {
        let tiers = tiers();
        let window = heap.window(&tiers, &[]);
        let (most, least) = window.range();
        let mut plan = Vec::new();
        tierscape::TierScape { alpha }.place(&window, &mut plan);
        let cost: f64 =
            plan.iter().enumerate().map(|(n, tier)| window.cost(n, (*tier).into())).sum();
        prop_assert!(cost <= least + alpha * (most - least) + 1e-3 * most, "{cost} {least} {most}");
    }

    /// Where a plan has been carried out, nothing is left to move; and the same statistics give
    /// the same plan again.
    #[test]
    fn a_plan_applied_twice_moves_nothing(mut heap in heaps(60), alpha in 0.0..1.0f64) {
        let tiers = tiers();
        let setting = Setting { alpha, percentile: 50.0 };
        for name in NAMES.iter().filter(|name| **name != "waterfall") {
            let mut model = model(name, setting, &tiers).unwrap();
            let mut plan = Vec::new();
            // What moved may have to dwell before the rest can go.
            for _ in 0..6 {
                model.place(&heap.window(&tiers, &[]), &mut plan);
                heap.apply(&plan, &tiers, |region| model.resend(region));
            }
            let moves =
                list(&heap.window(&tiers, &[]), &plan, |region| model.resend(region), |_, _| 1.0);
            prop_assert!(moves.is_empty());
            let before = plan.clone();
            model.place(&heap.window(&tiers, &[]), &mut plan);
            prop_assert_eq!(&before, &plan, "{}", name);
        }
    }

    /// Moves done a few pages at a time come to the same as all at once, promotions first.
    #[test]
    fn resumed_is_uninterrupted(
        heap in heaps(40), plan in vec(0u8..4, 40), mut pages in vec(1u32..900, 1..50)
    ) {
        let tiers = tiers();
        let window = heap.window(&tiers, &[]);
        let moves = list(
            &window,
            &plan[..heap.regions.len()],
            |_| Resend::Idle,
            |n, _| f64::from(heap.regions[n].accesses),
        );
        let ordered = moves.windows(2).all(|pair| {
            pair[0].is_promotion() && !pair[1].is_promotion()
                || pair[0].is_promotion() == pair[1].is_promotion() && pair[0].gain >= pair[1].gain
        });
        prop_assert!(ordered);
        let moved = |moves: &[Move]| {
            let mut by_region = vec![(0, 0); heap.regions.len()];
            for step in moves {
                let of = &mut by_region[step.region as usize];
                *of = (step.to, of.1 + step.pages);
            }
            by_region
        };
        let (mut at_once, mut resumed) = (Queue::default(), Queue::default());
        at_once.replace(moves.clone());
        resumed.replace(moves);
        let all = at_once.take(u32::MAX);
        let mut parts = Vec::new();
        while resumed.pages() > 0 {
            let now = pages.pop().unwrap_or(u32::MAX);
            let taken = resumed.take(now);
            prop_assert!(taken.iter().map(|step| step.pages).sum::<u32>() <= now);
            parts.extend(taken);
        }
        prop_assert_eq!(moved(&all), moved(&parts));
    }

    /// What the filter lets through never exceeds a medium, and nothing enters a pressed tier.
    #[test]
    fn the_filter_keeps_room(heap in heaps(40), plan in vec(0u8..4, 40), free in 0.0..5000.0f64) {
        let tiers = tiers();
        let window = heap.window(&tiers, &[]);
        let mut moves = list(
            &window,
            &plan[..heap.regions.len()],
            |_| Resend::All,
            |n, _| f64::from(heap.regions[n].accesses),
        );
        let mut room = [free, free / 2.0];
        filter(&mut moves, &window, &mut room, &[false, false, true, false], 0.5);
        prop_assert!(room.iter().all(|room| *room >= -1e-6), "{room:?}");
        prop_assert!(moves.iter().all(|step| step.to != 2 && step.gain >= 0.5));
    }
}

fn uniform(regions: usize) -> Heap {
    Heap {
        stored: [1.0, 1.0, 0.5, 0.3].repeat(regions),
        regions: (0..regions)
            .map(|number| Region {
                pages: 512,
                accesses: number as f32,
                touched: number.min(512) as u32,
                fresh: (number / 4).min(512) as u32,
                ..Region::default()
            })
            .collect(),
    }
}

#[test]
fn thresholds_are_percentiles_of_what_was_touched() {
    let (tiers, heap) = (tiers(), uniform(101));
    let mut plan = Vec::new();
    for (preset, in_dram) in [(Preset::Conservative, 75), (Preset::Aggressive, 25)] {
        for (name, slow) in [("hemem*", 1), ("gswap*", 2), ("tmo*", 3)] {
            let mut model = model(name, preset.into(), &tiers).unwrap();
            model.place(&heap.window(&tiers, &[]), &mut plan);
            let up = plan.iter().filter(|tier| **tier == 0).count();
            assert!(up.abs_diff(in_dram) <= 1, "{name}: {up}");
            assert!(plan.iter().all(|tier| [0, slow].contains(tier)), "{name}");
        }
    }
}

#[test]
fn a_waterfall_goes_down_a_tier_in_each_window() {
    let (tiers, mut heap) = (tiers(), uniform(101));
    let mut model = model("waterfall", Preset::Moderate.into(), &tiers).unwrap();
    let mut plan = Vec::new();
    for expected in [1, 2, 3, 3] {
        model.place(&heap.window(&tiers, &[]), &mut plan);
        assert_eq!((plan[0], plan[100]), (expected, 0));
        heap.apply(&plan, &tiers, |region| model.resend(region));
    }
    // What is hot again begins at the top.
    heap.regions[0].accesses = 1000.0;
    model.place(&heap.window(&tiers, &[]), &mut plan);
    assert_eq!(plan[0], 0);
}

#[test]
fn the_artifact_decides_for_ten_regions_by_its_constants() {
    let (tiers, heap) = (tiers(), uniform(100));
    let mut plan = Vec::new();
    let mut model = model("tierscape-artifact", Preset::Moderate.into(), &tiers).unwrap();
    model.place(&heap.window(&tiers, &[]), &mut plan);
    assert!(plan.chunks(10).all(|group| group.iter().all(|tier| tier == &group[0])), "{plan:?}");
    // By its constants lzo in DRAM is slower and dearer than Optane.
    assert!(plan.iter().all(|tier| *tier != 2), "{plan:?}");
    assert_eq!(tierscape::constants(&tiers[2]), (5.0, 8.0));
    assert_eq!(tierscape::constants(&tiers[3]), (7.0, 1.5));
}

#[test]
fn pages_in_use_stay_and_faults_are_what_is_charged() {
    let tiers = tiers();
    // Both are accessed as often: one on few pages over and over, the other anywhere.
    let mut heap = uniform(2);
    heap.regions[0] =
        Region { pages: 512, accesses: 900.0, touched: 20, fresh: 0, ..Region::default() };
    heap.regions[1] =
        Region { pages: 512, accesses: 900.0, touched: 400, fresh: 300, ..Region::default() };
    let mut model = TerraceCost::new(Config { alpha: 0.5, ..CONFIG });
    let mut plan = Vec::new();
    model.place(&heap.window(&tiers, &[]), &mut plan);
    assert!(plan[0] > 1, "few pages in use cost nothing where they stay: {plan:?}");
    assert!(tiers[usize::from(plan[1])].is_bytes(), "300 faults a window: {plan:?}");
}

#[test]
fn what_moved_dwells_but_may_come_up() {
    let tiers = tiers();
    let mut heap = uniform(40);
    let mut model = TerraceCost::new(Config { alpha: 0.3, dwell: 3, hysteresis: 0.0, ..CONFIG });
    let mut plan = Vec::new();
    model.place(&heap.window(&tiers, &[]), &mut plan);
    heap.apply(&plan, &tiers, |_| Resend::Idle);
    let before = plan.clone();
    // The heat is turned around: what is out may come up, nothing changes between slow tiers.
    heap.regions.reverse();
    for (region, tier) in heap.regions.iter_mut().zip(&before) {
        region.tier = *tier;
    }
    model.place(&heap.window(&tiers, &[]), &mut plan);
    let sideways = before.iter().zip(&plan).filter(|(from, to)| **to != 0 && from != to).count();
    assert!(sideways == 0 || plan.iter().all(|tier| *tier != 0), "{before:?} {plan:?}");
}

/// An evicted region of which 300 pages were restored, most of them in windows before.
#[test]
fn what_leaked_in_a_live_program_is_listed_again() {
    let counted = Counted { pages: 512, tier: 2, resident: 300, faults: 20, expected: None };
    let regions = [Heat::default().end_window(0, counted, 0.0)];
    let (tiers, stored) = (tiers(), [1.0, 0.4, 0.3, 0.2]);
    let window = Window { tiers: &tiers, regions: &regions, stored: &stored, limits: &[] };
    let listed = |resend: Resend| list(&window, &[2], |_| resend, |_, _| 1.0);
    assert_eq!(listed(Resend::Idle.by_mover())[0].pages, 300);
    assert!(listed(Resend::Never.by_mover()).is_empty());
}
