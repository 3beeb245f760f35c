//! What tiers would come to, for data of which it is known how much was idle for how long.
//!
//! Where single regions are not known, this is enough. Let I(t) be the part of the data that
//! nothing touches in t seconds. Pages that are evicted once they were idle for t are that part.
//! They refault at the rate −dI/dt (Denning and Schwartz, "Properties of the working-set model",
//! 1972). So pages of one age are a *class*, with a size and with faults of its own. Each class is
//! in the tier where it costs least for the time that is lost, as in [`super::cost`]. That is
//! equation 2 of TierScape over expected faults, solved by [`super::knapsack`].
//!
//! Between the times that were measured I(t) is taken to fall evenly over log t. What was touched
//! within the shortest of them refaulted at least that often, which is a lower bound
//! ([`Outlook::is_lower_bound`]).
//!
//! A model plans once a window, so a page is evicted once a window at most, and refaults no more
//! often than that. With a knob ([`Data::at_knob`]) the choices of a class are those that
//! [`super::cost`] has for a region. Nothing has left before the first window has ended
//! ([`Outlook::of_run`]).

use super::cost::{Stay, columns};
use super::knapsack::{CHOICES_MAX, Problem, solve};
use super::{Kind, Tier};

/// Part of the data that was not touched for a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idle {
    /// The time, seconds.
    pub seconds: f64,
    /// The part, from 0 to 1.
    pub part: f64,
}

/// Pages of about one age.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Least time for which the pages were idle, seconds.
    pub idle_s: f64,
    /// Part of all data that the pages are.
    pub part: f64,
    /// Part of the data that refaults in a second if the pages are evicted, beyond what refaults if
    /// only older pages are.
    pub rate: f64,
    /// Whether the rate is only a lower bound: the pages were touched sooner than could be seen.
    pub is_lower_bound: bool,
}

/// Classes between two measured times.
const STEPS: usize = 8;
/// Larger classes are cut into pieces of about this part of all data, so that some of them can be
/// out.
const PIECE: f64 = 0.02;
/// Where this part of a class or more is touched in each window, no more than that is left to come.
const NEAR: f64 = 0.8;
/// Seconds that it takes, in each second, to have all data out: so little that it only decides
/// where pages would never refault. They stay in DRAM unless the knob asks for their saving.
const TIE: f64 = 1e-7;

/// Sorted by time, with parts that only fall.
pub fn in_order(idle: &[Idle]) -> Vec<Idle> {
    let usable = |idle: &&Idle| idle.seconds > 0.0 && idle.part.is_finite();
    let mut points: Vec<Idle> = idle.iter().filter(usable).copied().collect();
    points.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    points.dedup_by(|later, before| later.seconds <= before.seconds);
    let mut most = 1.0f64;
    for point in &mut points {
        most = most.min(point.part.clamp(0.0, 1.0));
        point.part = most;
    }
    points
}

/// The classes of some data, hottest first. Empty where nothing was seen.
pub fn classes(idle: &[Idle]) -> Vec<Class> {
    let points = in_order(idle);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    // How much the part falls for each unit of ln t, in each segment.
    let slopes: Vec<f64> = points
        .windows(2)
        .map(|pair| (pair[0].part - pair[1].part) / (pair[1].seconds / pair[0].seconds).ln())
        .collect();
    // The part falls the more slowly the longer the time: before the first it fell faster.
    let rate_of_last = match slopes.last() {
        Some(slope) => slope / last.seconds,
        None => (1.0 - last.part) / last.seconds,
    };
    let hot = 1.0 - first.part;
    let mut all =
        vec![Class { idle_s: 0.0, part: hot, rate: hot / first.seconds, is_lower_bound: true }];
    for (number, (pair, slope)) in points.windows(2).zip(&slopes).enumerate() {
        let at = |step: usize| {
            let along = step as f64 / STEPS as f64;
            pair[0].seconds * (pair[1].seconds / pair[0].seconds).powf(along)
        };
        for step in 0..STEPS {
            let (from, to) = (at(step), at(step + 1));
            let older = match (step + 1 == STEPS, slopes.get(number + 1)) {
                (true, Some(next)) => next / to,
                _ => slope / to,
            };
            all.push(Class {
                idle_s: from,
                part: slope * (to / from).ln(),
                rate: slope / from - older,
                is_lower_bound: false,
            });
        }
    }
    all.push(Class {
        idle_s: last.seconds,
        part: last.part,
        rate: rate_of_last,
        is_lower_bound: false,
    });
    all.retain(|class| class.part > 0.0);
    pieces(&level(all))
}

/// Evens out classes of which an older one refaults more often than a younger one, for each page:
/// measurements of different times need not agree.
fn level(classes: Vec<Class>) -> Vec<Class> {
    let mut pools: Vec<(Vec<Class>, f64, f64)> = Vec::new();
    for class in classes {
        pools.push((vec![class], class.part, class.rate));
        while let [.., (_, part, rate), (_, older_part, older_rate)] = &pools[..]
            && older_rate * part > rate * older_part
        {
            let (older, older_part, older_rate) = pools.pop().expect("two are there");
            let (younger, part, rate) = pools.last_mut().expect("two were there");
            younger.extend(older);
            *part += older_part;
            *rate += older_rate;
        }
    }
    let of_pool = |(classes, part, rate): (Vec<Class>, f64, f64)| {
        let rate = rate.max(0.0);
        classes.into_iter().map(move |class| Class { rate: rate * class.part / part, ..class })
    };
    pools.into_iter().flat_map(of_pool).collect()
}

fn pieces(classes: &[Class]) -> Vec<Class> {
    let of_class = |class: &Class| {
        let count = (class.part / PIECE).ceil().max(1.0);
        let piece = Class { part: class.part / count, rate: class.rate / count, ..*class };
        std::iter::repeat_n(piece, count as usize)
    };
    classes.iter().flat_map(of_class).collect()
}

/// Data, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// Number of pages of 4 KiB.
    pub pages: f64,
    /// Classes of the data: see [`classes`].
    pub classes: &'a [Class],
    /// Bytes of each tier's medium for each byte of data, a row for each of some equal parts of the
    /// data. Each class has as much of each part.
    pub stored: &'a [Vec<f64>],
    /// Time that a second of work by our threads takes from the program, seconds.
    pub work_price: f64,
    /// Time after which a model with a knob plans again, seconds.
    pub window_s: f64,
}

/// What is to be expected of some tiers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// What all data cost; all of it in DRAM is 1.
    pub cost: f64,
    /// The part of its time that the program loses, from 0 to 1.
    pub slowdown: f64,
    /// Whether more may be lost: some of what is evicted was touched sooner than could be seen.
    pub is_lower_bound: bool,
    /// The part of the data's size that is left of it in DRAM, compressed pages included.
    pub dram: f64,
    /// Pages that refault in a second.
    pub faults: f64,
    /// Parts of the data, by tier.
    pub parts: Vec<f64>,
}

impl Outlook {
    /// The outlook on average over a run that takes `run_s` seconds alone and has all data in DRAM
    /// for the first `before_s` of them.
    #[must_use]
    pub fn of_run(mut self, run_s: f64, before_s: f64) -> Outlook {
        let in_force = if run_s > before_s { 1.0 - before_s / run_s } else { 0.0 };
        self.cost = 1.0 - in_force * (1.0 - self.cost);
        self.dram = 1.0 - in_force * (1.0 - self.dram);
        self.slowdown = part_of_time(in_force * of_each_second(self.slowdown));
        self.faults *= in_force;
        self.is_lower_bound &= in_force > 0.0;
        for (tier, part) in self.parts.iter_mut().enumerate() {
            let before = if tier == 0 { 1.0 } else { 0.0 };
            *part = before + in_force * (*part - before);
        }
        self
    }
}

/// Part of a program's time that is lost, where `lost` seconds are for each second that it takes
/// alone.
fn part_of_time(lost: f64) -> f64 {
    lost / (1.0 + lost)
}

/// The inverse of [`part_of_time`].
fn of_each_second(part: f64) -> f64 {
    part / (1.0 - part).max(f64::MIN_POSITIVE)
}

/// When pages are evicted to a tier.
#[derive(Clone, Copy, Debug)]
enum Leave {
    /// Pages are evicted once they have been idle for long enough.
    ByAge,
    /// Pages are evicted at windows' ends: all of them, or idle ones only.
    AtWindows { whole: bool },
}

/// A choice for a class.
#[derive(Clone, Copy, Debug)]
struct Choice {
    tier: usize,
    leave: Leave,
}

/// Tables for the solver.
struct Tables {
    columns: Vec<Choice>,
    time: Vec<f32>,
    cost: Vec<f32>,
    /// The class of each row, and which part of its data.
    rows: Vec<(usize, usize)>,
}

impl Tables {
    fn at(&self, row: usize, column: usize) -> usize {
        row * self.columns.len() + column
    }
}

impl Data<'_> {
    /// What a class does with a choice.
    fn stay(&self, tiers: &[Tier], class: &Class, column: Choice) -> Stay {
        match (tiers[column.tier].kind, column.leave) {
            (Kind::Bytes { .. }, _) => Stay { faults: 0.0, in_dram: class.part },
            (Kind::Compressed { .. }, Leave::ByAge) => Stay { faults: class.rate, in_dram: 0.0 },
            (Kind::Compressed { .. }, Leave::AtWindows { whole }) => {
                let touched = self.touched(class);
                // A page that is touched at random times was so in the window before as well, as
                // often as in any other.
                let fresh = touched * (1.0 - touched);
                let stay = Stay::of(whole, 1.0, touched, fresh);
                let faults = stay.faults * class.part / self.window_s;
                Stay { faults, in_dram: stay.in_dram * class.part }
            }
        }
    }

    /// The part of a class that is touched in a window.
    fn touched(&self, class: &Class) -> f64 {
        1.0 - (-class.rate / class.part * self.window_s).exp()
    }

    fn tables(&self, tiers: &[Tier], columns: Vec<Choice>) -> Tables {
        let parts = self.stored.len().max(1) as f64;
        let rows: Vec<(usize, usize)> = (0..self.classes.len())
            .flat_map(|class| (0..self.stored.len()).map(move |part| (class, part)))
            .collect();
        let (mut time, mut cost) = (Vec::new(), Vec::new());
        for (class, part) in &rows {
            let class = &self.classes[*class];
            for column in &columns {
                let (of, stay) = (&tiers[column.tier], self.stay(tiers, class, *column));
                let page_ns = match of.kind {
                    Kind::Bytes { .. } => 0.0,
                    Kind::Compressed { store_ns, fault_ns, .. } => {
                        fault_ns + store_ns * self.work_price
                    }
                };
                time.push((stay.faults * self.pages / parts * page_ns * 1e-9) as f32);
                let out = (class.part - stay.in_dram) * self.stored[*part][column.tier] * of.price;
                cost.push(((stay.in_dram + out) / parts) as f32);
            }
        }
        Tables { columns, time, cost, rows }
    }

    fn outlook(&self, tiers: &[Tier], tables: &Tables, choice: &[u8]) -> Outlook {
        let parts = self.stored.len().max(1) as f64;
        let mut out = Outlook { parts: vec![0.0; tiers.len()], ..Outlook::default() };
        let mut lost = 0.0;
        for (row, (choice, (class, part))) in choice.iter().zip(&tables.rows).enumerate() {
            let at = tables.at(row, usize::from(*choice));
            let (column, class) = (tables.columns[usize::from(*choice)], &self.classes[*class]);
            let (tier, stay) = (column.tier, self.stay(tiers, class, column));
            out.cost += f64::from(tables.cost[at]);
            lost += f64::from(tables.time[at]);
            out.parts[0] += stay.in_dram / parts;
            out.dram += stay.in_dram / parts;
            if !tiers[tier].is_bytes() {
                let away = (class.part - stay.in_dram) / parts;
                out.parts[tier] += away;
                if tiers[tier].medium == 0 {
                    out.dram += away * self.stored[*part][tier];
                }
                out.faults += stay.faults * self.pages / parts;
                // A page refaults once a window at most: then the bound is near.
                let is_at_windows = matches!(column.leave, Leave::AtWindows { .. });
                let is_near = is_at_windows && self.touched(class) >= NEAR;
                out.is_lower_bound |= class.is_lower_bound && !is_near;
            }
        }
        out.slowdown = part_of_time(lost);
        out
    }

    /// With the tiers of these numbers (0, which is DRAM, first) and a knob: the least time lost
    /// within the knob's cost.
    pub fn at_knob(&self, tiers: &[Tier], used: &[usize], alpha: f64) -> Outlook {
        let in_use: Vec<Tier> = used.iter().map(|tier| tiers[*tier].clone()).collect();
        let choices = columns(&in_use).into_iter().map(|column| Choice {
            tier: used[column.tier],
            leave: Leave::AtWindows { whole: column.whole },
        });
        let mut tables = self.tables(tiers, choices.collect());
        let count = tables.columns.len();
        let mut bound = 0.0;
        for row in tables.cost.chunks(count) {
            let least = row.iter().copied().fold(f32::INFINITY, f32::min);
            let most = row.iter().copied().fold(0.0, f32::max);
            let (least, most) = (f64::from(least), f64::from(most));
            bound += least + alpha.clamp(0.0, 1.0) * (most - least);
        }
        let parts = self.stored.len().max(1) as f64;
        for (row, (class, _)) in tables.time.chunks_mut(count).zip(&tables.rows) {
            let tie = (TIE * self.classes[*class].part / parts) as f32;
            row.iter_mut().skip(1).for_each(|time| *time += tie);
        }
        let choice = choose(count, &tables.time, &tables.cost, bound);
        self.outlook(tiers, &tables, &choice)
    }

    /// The least cost where no more than this part of the program's time is lost, if pages are
    /// evicted by their age. Classes of which only a lower bound of that is known stay in DRAM.
    pub fn at_slowdown(&self, tiers: &[Tier], used: &[usize], slowdown: f64) -> Outlook {
        let by_age = |tier: &usize| Choice { tier: *tier, leave: Leave::ByAge };
        let tables = self.tables(tiers, used.iter().map(by_age).collect());
        // What is touched more often than can be told would lose more than can be told: it stays.
        let mut allowed = tables.cost.clone();
        for (row, (class, _)) in allowed.chunks_mut(used.len()).zip(&tables.rows) {
            if self.classes[*class].is_lower_bound {
                row.iter_mut().skip(1).for_each(|cost| *cost = f32::INFINITY);
            }
        }
        let choice = choose(used.len(), &allowed, &tables.time, of_each_second(slowdown));
        self.outlook(tiers, &tables, &choice)
    }

    /// For each number of tiers below DRAM, from 1 to `most`, the cheapest set of them. No more
    /// time than `slowdown` is lost with it. Sets are numbers of `tiers`, 0 first.
    pub fn best_sets(
        &self,
        tiers: &[Tier],
        most: usize,
        slowdown: f64,
    ) -> Vec<(Vec<usize>, Outlook)> {
        let below = tiers.len().saturating_sub(1);
        let mut best: Vec<Option<(Vec<usize>, Outlook)>> = vec![None; most.min(below)];
        for bits in 1u32..1 << below {
            let count = bits.count_ones() as usize;
            if count > best.len() {
                continue;
            }
            let is_used = |tier: &usize| *tier == 0 || bits >> (tier - 1) & 1 == 1;
            let used: Vec<usize> = (0..=below).filter(is_used).collect();
            let outlook = self.at_slowdown(tiers, &used, slowdown);
            let known = &mut best[count - 1];
            if known.as_ref().is_none_or(|(_, known)| outlook.cost < known.cost) {
                *known = Some((used, outlook));
            }
        }
        best.into_iter().flatten().collect()
    }
}

/// The choice with the least of `minimised`, where the other sums up to `bound` at most.
fn choose(choices: usize, minimised: &[f32], bounded: &[f32], bound: f64) -> Vec<u8> {
    assert!(choices <= CHOICES_MAX, "a solver of so few choices");
    let problem = Problem {
        choices,
        time: minimised,
        cost: bounded,
        uses: &[],
        limited: &[],
        limits: &[],
        bound,
    };
    solve(&problem).choice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::Codec;
    use proptest::prelude::*;

    fn curve(of: impl Fn(f64) -> f64) -> Vec<Idle> {
        [2.0, 10.0, 60.0, 300.0].map(|seconds| Idle { seconds, part: of(seconds) }).to_vec()
    }

    fn tiers() -> Vec<Tier> {
        let compressed = |name: &str, codec, store_ns, fault_ns| Tier {
            name: name.into(),
            kind: Kind::Compressed { codec, store_ns, fault_ns },
            medium: 0,
            price: 1.0,
        };
        vec![
            Tier {
                name: "dram".into(),
                kind: Kind::Bytes { extra_ns: 0.0 },
                medium: 0,
                price: 1.0,
            },
            compressed("lz4", Codec::Lz4, 6_000.0, 46_000.0),
            compressed("zstd:1", Codec::Zstd, 15_000.0, 52_000.0),
        ]
    }

    fn rate_from(classes: &[Class], seconds: f64) -> f64 {
        classes.iter().filter(|class| class.idle_s >= seconds * 0.999).map(|class| class.rate).sum()
    }

    #[test]
    fn what_is_idle_comes_back_as_fast_as_its_part_falls() {
        // Half of the pages are touched once in 20 s on average, the others once in 1,000.
        let part = |t: f64| 0.5 * (-t / 20.0).exp() + 0.5 * (-t / 1000.0).exp();
        let falls = |t: f64| 0.025 * (-t / 20.0).exp() + 0.0005 * (-t / 1000.0).exp();
        let found = classes(&curve(part));
        let all: f64 = found.iter().map(|class| class.part).sum();
        assert!((all - 1.0).abs() < 1e-9, "{all}");
        for t in [2.0, 10.0, 60.0] {
            let ratio = rate_from(&found, t) / falls(t);
            assert!((0.4..2.5).contains(&ratio), "{ratio} at {t}");
        }
    }

    #[test]
    fn of_what_stays_idle_nothing_comes_back() {
        let found = classes(&curve(|_| 0.4));
        assert_eq!(rate_from(&found, 2.0), 0.0);
        let stored = [vec![1.0, 0.5, 0.3]];
        let data =
            Data { pages: 1e6, classes: &found, stored: &stored, work_price: 0.25, window_s: 5.0 };
        let outlook = data.at_slowdown(&tiers(), &[0, 1, 2], 0.0);
        assert!(outlook.slowdown == 0.0 && (outlook.cost - 0.72).abs() < 0.001, "{outlook:?}");
        assert!((outlook.dram - 0.72).abs() < 0.001 && !outlook.is_lower_bound, "{outlook:?}");
        assert!((outlook.parts[2] - 0.4).abs() < 1e-6, "{outlook:?}");
        let still = data.at_knob(&tiers(), &[0, 1, 2], 1.0);
        assert!((still.cost - 1.0).abs() < 1e-6, "all speed moves nothing: {still:?}");
        let half = data.at_knob(&tiers(), &[0, 1, 2], 0.9);
        assert!(half.cost > 0.85 && half.slowdown < 1e-6, "{half:?}");
    }

    #[test]
    fn one_time_alone_says_little_and_none_nothing() {
        assert_eq!(classes(&[]), []);
        let found = classes(&[Idle { seconds: 2.0, part: 0.5 }]);
        assert!((rate_from(&found, 2.0) - 0.25).abs() < 1e-9, "{found:?}");
        assert!(found[0].is_lower_bound && (found[0].rate / found[0].part - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_second_tier_is_worth_while_where_data_differ() {
        let found = classes(&curve(|t| 0.9 / t.powf(0.3)));
        let alike = [vec![1.0, 0.5, 0.3]];
        let data = Data {
            pages: 250_000.0,
            classes: &found,
            stored: &alike,
            work_price: 0.25,
            window_s: 5.0,
        };
        let sets = data.best_sets(&tiers(), 2, 0.02);
        assert_eq!(sets.len(), 2);
        assert_eq!(sets[0].0, [0, 2], "zstd alone is better than lz4 alone: {sets:?}");
        assert!(sets[1].1.cost <= sets[0].1.cost + 1e-6, "{sets:?}");
        // Half of the data is as large in both.
        let halves = [vec![1.0, 0.3, 0.3], vec![1.0, 0.9, 0.3]];
        let data = Data { stored: &halves, ..data };
        let second = data.best_sets(&tiers(), 2, 0.02);
        assert!(second[1].1.parts[1] > 0.0 && second[1].1.parts[2] > 0.0, "{second:?}");
    }

    #[test]
    fn what_is_hot_comes_back_once_a_window() {
        // All of it is touched in each second.
        let found = classes(&curve(|_| 0.0));
        let stored = [vec![1.0, 0.5, 0.3]];
        let data =
            Data { pages: 1e6, classes: &found, stored: &stored, work_price: 0.25, window_s: 5.0 };
        let all_saving = data.at_knob(&tiers(), &[0, 1, 2], 0.0);
        assert!(all_saving.faults <= 1e6 / 5.0, "{all_saving:?}");
        // 10 s of stall for 1 s of work, at most.
        assert!((0.85..0.92).contains(&all_saving.slowdown), "{all_saving:?}");
        assert!(all_saving.cost > 0.6, "they are in DRAM most of the time: {all_saving:?}");
        assert!(all_saving.slowdown > data.at_knob(&tiers(), &[0, 1, 2], 0.9).slowdown * 2.0);
    }

    #[test]
    fn a_run_has_everything_in_dram_until_the_first_window_has_ended() {
        let outlook = Outlook {
            cost: 0.4,
            slowdown: 0.5,
            is_lower_bound: true,
            dram: 0.6,
            faults: 100.0,
            parts: vec![0.2, 0.8],
        };
        let none = outlook.clone().of_run(3.0, 5.0);
        assert_eq!((none.cost, none.slowdown, none.faults), (1.0, 0.0, 0.0));
        assert!(!none.is_lower_bound && none.parts == [1.0, 0.0]);
        let half = outlook.clone().of_run(10.0, 5.0);
        assert!((half.cost - 0.7).abs() < 1e-9 && (half.dram - 0.8).abs() < 1e-9, "{half:?}");
        // 10 s of work, of which 5 s take twice as long.
        assert!((half.slowdown - 1.0 / 3.0).abs() < 1e-9 && half.is_lower_bound, "{half:?}");
        assert!((outlook.of_run(1e6, 5.0).cost - 0.4).abs() < 1e-4);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::with_cases(64)
        })]

        /// Whatever was seen: parts sum up to 1, older pages refault no more often, and no cost is
        /// above the bound. A knob's cost falls and its slowdown rises.
        #[test]
        fn outlooks_are_possible(
            parts in proptest::collection::vec(0.0f64..1.0, 1..5), stored in 0.05f64..1.0,
        ) {
            let idle: Vec<Idle> = parts.iter().zip([2.0, 10.0, 60.0, 300.0])
                .map(|(part, seconds)| Idle { seconds, part: *part }).collect();
            let found = classes(&idle);
            let all: f64 = found.iter().map(|class| class.part).sum();
            prop_assert!((all - 1.0).abs() < 1e-6);
            for pair in found.windows(2) {
                let each = |class: &Class| class.rate / class.part;
                prop_assert!(each(&pair[1]) <= each(&pair[0]) * (1.0 + 1e-6) + 1e-12);
            }
            let rows = [vec![1.0, stored, stored * 0.7]];
            let data = Data {
                pages: 1e5, classes: &found, stored: &rows, work_price: 0.25, window_s: 5.0
            };
            let mut last = data.at_knob(&tiers(), &[0, 1, 2], 1.0);
            prop_assert!(last.slowdown <= 1e-6);
            let least = data.at_knob(&tiers(), &[0, 1, 2], 0.0).cost;
            for alpha in [0.9, 0.5, 0.1, 0.0] {
                let next = data.at_knob(&tiers(), &[0, 1, 2], alpha);
                prop_assert!(next.cost <= least + alpha * (1.0 - least) + 1e-4, "{:?}", next);
                prop_assert!(next.slowdown >= last.slowdown * 0.98 - 1e-6);
                last = next;
            }
        }
    }
}
