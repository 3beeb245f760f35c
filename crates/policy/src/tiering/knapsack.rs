//! Choice of a tier for each region: a multiple-choice knapsack problem, solved by Lagrange
//! multipliers.
//!
//! Each region takes one choice. The sum of their costs may not exceed a bound. What they use of
//! each limited resource may not exceed its limit. The sum of their times is to be small.
//!
//! With a price on cost and on each resource every region chooses alone. So a pass over all of them
//! is one step of a search for the right prices. The choices that win at some price are the corners
//! of each region's convex hull. Without limits this is the greedy algorithm over hulls, without
//! sorting them. What the prices leave over is then filled step by step.
//!
//! Kellerer, Pferschy, Pisinger, *Knapsack Problems* (2004), chapter 11, has hulls and bounds.

use std::cmp::Ordering;

/// Choices of a region, at most.
pub const CHOICES_MAX: usize = 16;
/// Resources with a limit, at most.
pub const LIMITS_MAX: usize = 8;

/// Regions of which prices are found first, before all regions are asked.
const SAMPLE: usize = 1 << 14;
/// Halvings of a price of which nothing is known, and of one that is nearly right.
const SAMPLE_HALVINGS: usize = 40;
const HALVINGS: usize = 7;
/// Steps of the search for several prices, in the sample and over all regions.
const SAMPLE_STEPS: usize = 600;
const STEPS: usize = 30;
/// A price of the sample is right for all regions within about this factor.
const NEAR: f64 = 1.02;
/// Several prices of the sample are right for all regions within about this share.
const NEAR_LIMITED: f64 = 0.03;
/// What several constraints need together is less than this many times what one needs alone.
const FAR: f64 = 100.0;
/// Prices beyond which a region looks at nothing else.
const PRICE_RANGE: (f64, f64) = (1e-18, 1e18);
/// Most regions that are refined.
const REFINED_REGIONS_MAX: usize = 1 << 12;
/// Changes that lose least at the prices are tried together: any two of the first `PAIRED`, and any
/// three of the first `TRIPLED`.
const PAIRED: usize = 256;
const TRIPLED: usize = 96;
/// Most times that changes are tried together.
const REFINED_MAX: usize = 64;

/// A problem. Tables have a row for each region and a column for each choice.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// Columns, 1 to [`CHOICES_MAX`].
    pub choices: usize,
    /// Time that a region takes with a choice, any unit, not negative. Infinite: forbidden.
    pub time: &'a [f32],
    /// What a region costs with a choice, any unit, not negative and finite.
    pub cost: &'a [f32],
    /// What a region uses with a choice of the resource that [`limited`](Problem::limited) names;
    /// empty without limits.
    pub uses: &'a [f32],
    /// The resource that each choice uses, if that has a limit; empty without limits.
    pub limited: &'a [Option<usize>],
    /// How much there is of each resource, at most [`LIMITS_MAX`] of them.
    pub limits: &'a [f64],
    /// The most that all may cost.
    pub bound: f64,
}

/// A choice for each region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Solution {
    /// The chosen column, by region.
    pub choice: Vec<u8>,
    /// The sum of times.
    pub time: f64,
    /// The sum of costs.
    pub cost: f64,
    /// No choice of columns, not even of parts of them, takes less time than this (weak duality).
    pub at_least: f64,
    /// The cost is within the bound. If not, this is the cheapest that was found.
    pub bound_met: bool,
    /// What is used is within all limits. If not, no choice was found that is.
    pub limits_met: bool,
}

/// Prices: of cost, then of each resource.
type Prices = [f64; LIMITS_MAX + 1];
/// The price of what each choice uses.
type UsePrices = [f64; CHOICES_MAX];
/// What all regions together cost and use.
type Sums = [f64; LIMITS_MAX + 1];

/// A change of one region's choice, with the time that it saves and what it adds to the sums.
struct Change {
    region: usize,
    to: usize,
    saved: f64,
    sums: Sums,
}

/// A change of one region's choice.
#[derive(Clone, Copy, Debug)]
struct Step {
    region: u32,
    to: u8,
    /// Smaller goes first.
    rank: f32,
}

impl Problem<'_> {
    /// Number of regions.
    pub fn regions(&self) -> usize {
        self.time.len() / self.choices.max(1)
    }

    fn row<'t>(&self, table: &'t [f32], region: usize) -> &'t [f32] {
        &table[region * self.choices..(region + 1) * self.choices]
    }

    fn limit_of(&self, choice: usize) -> Option<usize> {
        self.limited.get(choice).copied().flatten()
    }

    /// Cost and what is used of each resource, of one region with one choice.
    fn add(&self, sums: &mut Sums, region: usize, choice: usize, sign: f64) {
        let at = region * self.choices + choice;
        sums[0] += sign * f64::from(self.cost[at]);
        if let Some(resource) = self.limit_of(choice) {
            sums[resource + 1] += sign * f64::from(self.uses[at]);
        }
    }

    fn limit(&self, constraint: usize) -> f64 {
        if constraint == 0 { self.bound } else { self.limits[constraint - 1] }
    }

    fn use_prices(&self, prices: &Prices) -> UsePrices {
        let mut all = [0.0; CHOICES_MAX];
        for (choice, price) in all.iter_mut().enumerate().take(self.choices) {
            *price = self.limit_of(choice).map_or(0.0, |resource| prices[resource + 1]);
        }
        all
    }

    /// The best choice of a region at these prices, and what it comes to. Of equal choices the
    /// cheaper.
    #[inline]
    fn best(&self, region: usize, cost_price: f64, use_prices: &UsePrices) -> (usize, f64) {
        let (time, cost) = (self.row(self.time, region), self.row(self.cost, region));
        let uses = if self.limits.is_empty() { cost } else { self.row(self.uses, region) };
        let mut best = (0, f64::INFINITY, f32::INFINITY);
        for (choice, ((time, cost), uses)) in time.iter().zip(cost).zip(uses).enumerate() {
            let value = f64::from(*time)
                + cost_price * f64::from(*cost)
                + use_prices[choice] * f64::from(*uses);
            if value < best.1 || (value == best.1 && *cost < best.2) {
                best = (choice, value, *cost);
            }
        }
        (best.0, best.1)
    }

    /// What all regions of a sample (each `every`-th) cost and use at these prices.
    fn pass(&self, prices: &Prices, every: usize) -> (Sums, f64) {
        let mut sums = [0.0; LIMITS_MAX + 1];
        let mut value = 0.0;
        let use_prices = self.use_prices(prices);
        for region in (0..self.regions()).step_by(every) {
            let (choice, its) = self.best(region, prices[0], &use_prices);
            self.add(&mut sums, region, choice, 1.0);
            value += its;
        }
        (sums, value)
    }

    /// The least time by weak duality: what regions come to at these prices, less what is paid.
    fn dual(&self, prices: &Prices, value: f64, every: usize) -> f64 {
        (0..=self.limits.len()).fold(value, |value, constraint| {
            value - prices[constraint] * self.limit(constraint) / every as f64
        })
    }
}

/// Solves a problem. The time is within a step of one region, for each limit and the bound, of the
/// least. For many regions it is much nearer: [`Solution::at_least`] says how near.
///
/// # Panics
/// Tables of different sizes, no column or too many, or more limits than there may be.
pub fn solve(problem: &Problem<'_>) -> Solution {
    assert!((1..=CHOICES_MAX).contains(&problem.choices) && problem.limits.len() <= LIMITS_MAX);
    assert_eq!(problem.time.len(), problem.cost.len());
    assert!(problem.limits.is_empty() || problem.uses.len() == problem.cost.len());
    if problem.regions() == 0 {
        return Solution {
            bound_met: problem.bound >= 0.0,
            limits_met: true,
            ..Default::default()
        };
    }
    let every = problem.regions().div_ceil(SAMPLE);
    let (prices, best) = if problem.limits.is_empty() {
        let sampled = if every > 1 { find_price(problem, 0, every, 0.0).0 } else { 0.0 };
        let (price, best) = find_price(problem, 0, 1, sampled);
        let mut prices = [0.0; LIMITS_MAX + 1];
        prices[0] = price;
        (prices, best)
    } else {
        let first = first_prices(problem, every);
        let sampled = ascend(problem, every, first, FAR, SAMPLE_STEPS);
        if every > 1 { ascend(problem, 1, sampled.0, NEAR_LIMITED, STEPS) } else { sampled }
    };
    let mut state = State::new(problem, &prices);
    let at_least = best.max(problem.dual(&prices, state.value, 1)).max(0.0);
    state.repair(&prices);
    state.fill();
    if problem.regions() <= REFINED_REGIONS_MAX {
        state.refine(&prices);
    }
    state.solution(at_least)
}

/// The price of one constraint, all others being free, at which it holds with as little to spare as
/// can be. Also the best lower bound of the time that was seen on the way. `guess`: what the price
/// is about; 0 if nothing is known.
fn find_price(problem: &Problem<'_>, constraint: usize, every: usize, guess: f64) -> (f64, f64) {
    let limit = problem.limit(constraint) / every as f64;
    let mut best = f64::NEG_INFINITY;
    let mut holds = |price: f64| {
        let mut tried = [0.0; LIMITS_MAX + 1];
        tried[constraint] = price;
        let (sums, value) = problem.pass(&tried, every);
        best = best.max(problem.dual(&tried, value, every));
        sums[constraint] <= limit
    };
    // Nothing is to be paid for what there is enough of.
    if guess == 0.0 && holds(0.0) {
        return (0.0, best);
    }
    let (mut low, mut high, halvings) = if guess > 0.0 {
        let (low, high) = bracket(guess, &mut holds);
        (low, high, HALVINGS)
    } else {
        (PRICE_RANGE.0, PRICE_RANGE.1, SAMPLE_HALVINGS)
    };
    for _ in 0..halvings {
        if high <= low * (1.0 + 1e-12) {
            break;
        }
        let middle = (low * high).sqrt();
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    (high, best)
}

/// Prices to begin with: half of what any constraint would need if it were alone, in proportion to
/// limits.
fn first_prices(problem: &Problem<'_>, every: usize) -> Prices {
    let constraints = problem.limits.len() + 1;
    let limit = |constraint: usize| problem.limit(constraint).max(f64::MIN_POSITIVE);
    let worth = (0..constraints)
        .map(|constraint| find_price(problem, constraint, every, 0.0).0 * limit(constraint))
        .filter(|worth| *worth < PRICE_RANGE.1)
        .fold(0.0, f64::max);
    let mut prices = [0.0; LIMITS_MAX + 1];
    for (constraint, price) in prices.iter_mut().enumerate().take(constraints) {
        *price = worth / limit(constraint);
    }
    prices
}

/// Raises the dual over all prices by the ellipsoid method with deep cuts, from prices that are
/// right within `spread` of themselves. Gives the best prices that it saw, and their dual.
fn ascend(
    problem: &Problem<'_>,
    every: usize,
    from: Prices,
    spread: f64,
    steps: usize,
) -> (Prices, f64) {
    let n = problem.limits.len() + 1;
    let largest = from[..n].iter().copied().fold(0.0, f64::max);
    let mut center = from;
    let mut shape = [[0.0; LIMITS_MAX + 1]; LIMITS_MAX + 1];
    for index in 0..n {
        // A price that is nothing here may be something a little further on.
        shape[index][index] = (spread * from[index].max(largest * 1e-3)).powi(2) * n as f64;
    }
    let mut best = (from, f64::NEG_INFINITY);
    for _ in 0..steps {
        let negative = (0..n).find(|index| center[*index] < 0.0);
        let (slope, depth) = match negative {
            Some(index) => {
                let mut slope = [0.0; LIMITS_MAX + 1];
                slope[index] = 1.0;
                (slope, -center[index])
            }
            None => {
                let (sums, value) = problem.pass(&center, every);
                let dual = problem.dual(&center, value, every);
                if dual > best.1 {
                    best = (center, dual);
                }
                let mut slope = [0.0; LIMITS_MAX + 1];
                for (index, slope) in slope.iter_mut().enumerate().take(n) {
                    *slope = sums[index] - problem.limit(index) / every as f64;
                }
                (slope, best.1 - dual)
            }
        };
        let along: Prices = std::array::from_fn(|row| {
            (0..n).map(|column| shape[row][column] * slope[column]).sum()
        });
        let reach = (0..n).map(|index| slope[index] * along[index]).sum::<f64>().sqrt();
        // Nowhere in the ellipsoid is the dual more than this above the centre's.
        let is_there = negative.is_none() && reach - depth <= best.1.abs() * 1e-7;
        if is_there || !reach.is_normal() || depth >= reach {
            break;
        }
        cut(&mut center, &mut shape, n, along.map(|part| part / reach), depth / reach);
    }
    best
}

/// Keeps the part of an ellipsoid on one side of a plane, `depth` (0 to 1) beyond the centre, in
/// the smallest new one. `step`: from the centre to the farthest point on that side.
fn cut(
    center: &mut Prices,
    shape: &mut [[f64; LIMITS_MAX + 1]; LIMITS_MAX + 1],
    n: usize,
    step: Prices,
    depth: f64,
) {
    let size = n as f64;
    let ahead = (1.0 + size * depth) / (size + 1.0);
    let grown = size * size * (1.0 - depth * depth) / (size * size - 1.0);
    let flat = 2.0 * ahead / (1.0 + depth);
    for row in 0..n {
        center[row] += ahead * step[row];
        for column in 0..n {
            shape[row][column] = grown * (shape[row][column] - flat * step[row] * step[column]);
        }
    }
}

/// A price at which a constraint does not hold, and one at which it does, about a guess.
fn bracket(guess: f64, holds: &mut dyn FnMut(f64) -> bool) -> (f64, f64) {
    let mut factor = NEAR;
    let (mut low, mut high) = (guess, guess);
    if holds(guess) {
        while low > PRICE_RANGE.0 {
            low /= factor;
            if !holds(low) {
                break;
            }
            high = low;
            factor *= factor;
        }
    } else {
        while high < PRICE_RANGE.1 {
            high *= factor;
            if holds(high) {
                break;
            }
            low = high;
            factor *= factor;
        }
    }
    (low, high)
}

/// Choices while they are changed.
struct State<'p> {
    problem: &'p Problem<'p>,
    choice: Vec<u8>,
    sums: Sums,
    value: f64,
}

impl<'p> State<'p> {
    /// What each region chooses at these prices.
    fn new(problem: &'p Problem<'p>, prices: &Prices) -> State<'p> {
        let mut state = State {
            problem,
            choice: Vec::with_capacity(problem.regions()),
            sums: [0.0; LIMITS_MAX + 1],
            value: 0.0,
        };
        let use_prices = problem.use_prices(prices);
        for region in 0..problem.regions() {
            let (choice, value) = problem.best(region, prices[0], &use_prices);
            state.choice.push(choice as u8);
            state.value += value;
            problem.add(&mut state.sums, region, choice, 1.0);
        }
        state
    }

    fn time(&self, region: usize, choice: usize) -> f64 {
        f64::from(self.problem.time[region * self.problem.choices + choice])
    }

    fn cost(&self, region: usize, choice: usize) -> f64 {
        f64::from(self.problem.cost[region * self.problem.choices + choice])
    }

    /// What a region uses of a constraint with a choice.
    fn used(&self, constraint: usize, region: usize, choice: usize) -> f64 {
        if constraint == 0 {
            return self.cost(region, choice);
        }
        match self.problem.limit_of(choice) {
            Some(resource) if resource + 1 == constraint => {
                f64::from(self.problem.uses[region * self.problem.choices + choice])
            }
            _ => 0.0,
        }
    }

    fn holds(&self, constraint: usize) -> bool {
        self.sums[constraint] <= self.problem.limit(constraint)
    }

    fn limits_hold(&self) -> bool {
        (1..=self.problem.limits.len()).all(|constraint| self.holds(constraint))
    }

    fn after(&self, region: usize, to: usize) -> Sums {
        let mut sums = self.sums;
        self.problem.add(&mut sums, region, self.choice[region].into(), -1.0);
        self.problem.add(&mut sums, region, to, 1.0);
        sums
    }

    /// Whether a change breaks no limit that holds, and (if `cost`) not the bound.
    fn fits(&self, region: usize, to: usize, cost: bool) -> bool {
        let after = self.after(region, to);
        let first = usize::from(!cost);
        (first..=self.problem.limits.len()).all(|constraint| {
            after[constraint] <= self.problem.limit(constraint)
                || after[constraint] <= self.sums[constraint] && !self.holds(constraint)
        })
    }

    fn change(&mut self, region: usize, to: usize) {
        self.sums = self.after(region, to);
        self.choice[region] = to as u8;
    }

    /// Sums anew, as differences of many numbers drift.
    fn recount(&mut self) {
        self.sums = [0.0; LIMITS_MAX + 1];
        for (region, choice) in self.choice.iter().enumerate() {
            self.problem.add(&mut self.sums, region, (*choice).into(), 1.0);
        }
    }

    /// Makes what is used fit its limits, then the cost its bound, where prices alone did not.
    /// Changes that lose least for what they give back are made first.
    fn repair(&mut self, prices: &Prices) {
        let limits = self.problem.limits.len();
        for round in 0..4 {
            for constraint in (1..=limits).chain([0]) {
                if !self.holds(constraint) {
                    self.give_back(constraint, prices, round);
                    self.recount();
                }
            }
            if self.holds(0) && self.limits_hold() {
                break;
            }
        }
        if !self.limits_hold() || !self.holds(0) {
            self.cheapest();
        }
    }

    fn give_back(&mut self, constraint: usize, prices: &Prices, round: usize) {
        let problem = self.problem;
        let at = |state: &State<'_>, region: usize, choice: usize| {
            (0..=problem.limits.len()).fold(state.time(region, choice), |value, constraint| {
                value + prices[constraint] * state.used(constraint, region, choice)
            })
        };
        let mut steps = Vec::new();
        for region in 0..problem.regions() {
            let from = usize::from(self.choice[region]);
            let used = self.used(constraint, region, from);
            let value = at(self, region, from);
            let best = (0..problem.choices)
                .filter(|&to| to != from && self.time(region, to).is_finite())
                .filter_map(|to| {
                    let given = used - self.used(constraint, region, to);
                    // Later rounds look at any way out.
                    let fits = round > 1 || self.fits(region, to, constraint == 0);
                    (given > 0.0 && fits).then(|| (to, (at(self, region, to) - value) / given))
                })
                .min_by(|a, b| a.1.total_cmp(&b.1));
            if let Some((to, rank)) = best {
                steps.push(Step { region: region as u32, to: to as u8, rank: rank as f32 });
            }
        }
        sort(&mut steps);
        for step in steps {
            if self.holds(constraint) {
                break;
            }
            let (region, to) = (step.region as usize, usize::from(step.to));
            if self.fits(region, to, constraint == 0) {
                self.change(region, to);
            }
        }
    }

    /// Where prices and repairs found nothing: regions take the cheapest choice that has room,
    /// those first that gain most by theirs.
    fn cheapest(&mut self) {
        let problem = self.problem;
        let order = |region: usize| {
            let mut choices: Vec<usize> = (0..problem.choices)
                .filter(|choice| self.time(region, *choice).is_finite())
                .collect();
            choices.sort_by(|a, b| {
                let cost = self.cost(region, *a).total_cmp(&self.cost(region, *b));
                cost.then(self.time(region, *a).total_cmp(&self.time(region, *b)))
            });
            choices
        };
        let mut regions: Vec<(f64, usize)> = (0..problem.regions())
            .map(|region| {
                let choices = order(region);
                let dearest = choices.last().map_or(0.0, |last| self.cost(region, *last));
                let least = choices.first().map_or(0.0, |first| self.cost(region, *first));
                (dearest - least, region)
            })
            .collect();
        regions.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut taken: Vec<u8> = self.choice.clone();
        let mut sums: Sums = [0.0; LIMITS_MAX + 1];
        let mut all_fit = true;
        for (_, region) in regions {
            let fitting = order(region).into_iter().find(|choice| {
                let mut after = sums;
                problem.add(&mut after, region, *choice, 1.0);
                (1..=problem.limits.len()).all(|limit| after[limit] <= problem.limit(limit))
            });
            let Some(choice) = fitting else {
                all_fit = false;
                break;
            };
            problem.add(&mut sums, region, choice, 1.0);
            taken[region] = choice as u8;
        }
        let better = !self.limits_hold() || sums[0] < self.sums[0];
        if all_fit && better {
            self.choice = taken;
            self.recount();
        }
    }

    /// Uses what is left over: steps that save time, the most for what they cost first.
    fn fill(&mut self) {
        if !self.holds(0) || !self.limits_hold() {
            return;
        }
        // What becomes possible by a step is found in the next round.
        for _ in 0..3 {
            let mut steps = Vec::new();
            for region in 0..self.problem.regions() {
                let from = usize::from(self.choice[region]);
                let (time, cost) = (self.time(region, from), self.cost(region, from));
                for to in 0..self.problem.choices {
                    let (saved, more) =
                        (time - self.time(region, to), self.cost(region, to) - cost);
                    if saved > 0.0 && self.fits(region, to, true) {
                        let rank = if more > 0.0 { -saved / more } else { f64::NEG_INFINITY };
                        steps.push(Step { region: region as u32, to: to as u8, rank: rank as f32 });
                    }
                }
            }
            if steps.is_empty() {
                return;
            }
            sort(&mut steps);
            for step in steps {
                let (region, to) = (step.region as usize, usize::from(step.to));
                let from = usize::from(self.choice[region]);
                if self.time(region, to) < self.time(region, from) && self.fits(region, to, true) {
                    self.change(region, to);
                }
            }
            self.recount();
        }
    }

    /// Makes up to three changes at once where that saves time, of those that lose least at the
    /// prices. Only such changes can be in a better solution, if this one is near the dual.
    fn refine(&mut self, prices: &Prices) {
        if !self.holds(0) || !self.limits_hold() {
            return;
        }
        for _ in 0..REFINED_MAX {
            let changes = self.cheap_changes(prices);
            let Some(best) = self.best_of_cheap(&changes) else { break };
            for change in best.iter().filter_map(|index| changes.get(*index)) {
                self.change(change.region, change.to);
            }
        }
        self.recount();
    }

    /// The [`PAIRED`] changes that lose least at the prices, the least first.
    fn cheap_changes(&self, prices: &Prices) -> Vec<Change> {
        let problem = self.problem;
        let mut changes: Vec<(f64, Change)> = Vec::new();
        for region in 0..problem.regions() {
            let from = usize::from(self.choice[region]);
            for to in (0..problem.choices).filter(|to| *to != from) {
                let saved = self.time(region, from) - self.time(region, to);
                if !saved.is_finite() {
                    continue;
                }
                let mut sums = [0.0; LIMITS_MAX + 1];
                problem.add(&mut sums, region, from, -1.0);
                problem.add(&mut sums, region, to, 1.0);
                let paid: f64 = sums.iter().zip(prices).map(|(sum, price)| sum * price).sum();
                changes.push((paid - saved, Change { region, to, saved, sums }));
            }
        }
        let lost = |a: &(f64, Change), b: &(f64, Change)| a.0.total_cmp(&b.0);
        if changes.len() > PAIRED {
            changes.select_nth_unstable_by(PAIRED, lost);
            changes.truncate(PAIRED);
        }
        changes.sort_by(lost);
        changes.into_iter().map(|(_, change)| change).collect()
    }

    /// Up to three changes that together save most and fit, if any do. `usize::MAX` stands for
    /// none.
    fn best_of_cheap(&self, changes: &[Change]) -> Option<[usize; 3]> {
        const NONE: usize = usize::MAX;
        let constraints = self.problem.limits.len() + 1;
        let room: Sums = std::array::from_fn(|constraint| match constraint < constraints {
            true => self.problem.limit(constraint) - self.sums[constraint],
            false => 0.0,
        });
        let fits = |of: &[&Change]| {
            (0..constraints).all(|constraint| {
                of.iter().map(|change| change.sums[constraint]).sum::<f64>() <= room[constraint]
            })
        };
        // A saving that is only rounding would be made for ever.
        let least = changes.iter().map(|change| change.saved.abs()).fold(0.0, f64::max) * 1e-9;
        let mut best = (least, None);
        for (i, first) in changes.iter().enumerate() {
            if first.saved > best.0 && fits(&[first]) {
                best = (first.saved, Some([i, NONE, NONE]));
            }
            for (j, second) in changes.iter().enumerate().skip(i + 1) {
                if second.region == first.region {
                    continue;
                }
                let saved = first.saved + second.saved;
                if saved > best.0 && fits(&[first, second]) {
                    best = (saved, Some([i, j, NONE]));
                }
                if j >= TRIPLED {
                    continue;
                }
                for (k, third) in changes.iter().enumerate().take(TRIPLED).skip(j + 1) {
                    let saved = saved + third.saved;
                    if saved > best.0
                        && third.region != first.region
                        && third.region != second.region
                        && fits(&[first, second, third])
                    {
                        best = (saved, Some([i, j, k]));
                    }
                }
            }
        }
        best.1
    }

    fn solution(mut self, at_least: f64) -> Solution {
        self.recount();
        let chosen = self.choice.iter().enumerate();
        let time = chosen.map(|(region, choice)| self.time(region, (*choice).into())).sum();
        Solution {
            time,
            cost: self.sums[0],
            at_least,
            bound_met: self.holds(0),
            limits_met: self.limits_hold(),
            choice: self.choice,
        }
    }
}

fn sort(steps: &mut [Step]) {
    steps.sort_unstable_by(|a, b| {
        a.rank
            .total_cmp(&b.rank)
            .then(a.region.cmp(&b.region))
            .then_with(|| if a.to == b.to { Ordering::Equal } else { a.to.cmp(&b.to) })
    });
}
