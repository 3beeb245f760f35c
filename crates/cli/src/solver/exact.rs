//! The placement problem solved exactly, as a reference for the solver that Terrace uses: a mixed
//! integer program with a column for each region and tier, by HiGHS.

use highs::{HighsModelStatus, RowProblem, Sense};
use serde::Serialize;
use std::time::Instant;
use terrace_policy::tiering::knapsack::Problem;

/// The optimum counts as found from this relative distance on.
const OPTIMAL: f64 = 1e-5;

/// What HiGHS found.
#[derive(Serialize)]
pub struct Exact {
    pub elapsed_s: f64,
    /// The sum of times, unit as the problem's.
    pub time: f64,
    /// Whether nothing is better, but for one part in 100,000.
    pub is_optimal: bool,
    /// How much more time the other solution takes, as a share of this one's.
    pub gap: f64,
}

/// Solves a problem within `seconds` seconds; `other_time` is another solution's. `None` if nothing
/// was found.
pub fn exact(problem: &Problem, seconds: u32, other_time: f64) -> Option<Exact> {
    let (choices, regions) = (problem.choices, problem.regions());
    let mut model = RowProblem::default();
    let columns: Vec<_> = problem
        .time
        .iter()
        .map(|time| match time.is_finite() {
            true => model.add_integer_column(f64::from(*time), 0.0..=1.0),
            false => model.add_integer_column(0.0, 0.0..=0.0),
        })
        .collect();
    for region in 0..regions {
        let row: Vec<_> =
            columns[region * choices..][..choices].iter().map(|column| (*column, 1.0)).collect();
        model.add_row(1.0..=1.0, &row);
    }
    let sum = |of: &[f32], is_in: &dyn Fn(usize) -> bool| -> Vec<_> {
        let all = columns.iter().zip(of).enumerate().filter(|(at, _)| is_in(at % choices));
        all.map(|(_, (column, value))| (*column, f64::from(*value))).collect()
    };
    model.add_row(..=problem.bound, &sum(problem.cost, &|_| true));
    for (resource, limit) in problem.limits.iter().enumerate() {
        let uses_it = |choice: usize| problem.limited[choice] == Some(resource);
        model.add_row(..=*limit, &sum(problem.uses, &uses_it));
    }
    let mut model = model.optimise(Sense::Minimise);
    model.make_quiet();
    model.set_option("threads", 1);
    model.set_option("mip_rel_gap", OPTIMAL);
    model.set_option("time_limit", f64::from(seconds));
    let begun = Instant::now();
    let solved = model.solve();
    let elapsed_s = begun.elapsed().as_secs_f64();
    let is_optimal = solved.status() == HighsModelStatus::Optimal;
    let found = is_optimal || solved.status() == HighsModelStatus::ReachedTimeLimit;
    let time = solved.objective_value();
    (found && time.is_finite()).then(|| Exact {
        elapsed_s,
        time,
        is_optimal,
        gap: other_time / time - 1.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_optimum_is_found() {
        // Two regions, two tiers: only one of them may be in the fast one.
        let problem = Problem {
            choices: 2,
            time: &[0.0, 5.0, 0.0, 3.0],
            cost: &[1.0, 0.25, 1.0, 0.25],
            uses: &[],
            limited: &[],
            limits: &[],
            bound: 1.5,
        };
        let found = exact(&problem, 10, 3.3).expect("a solution");
        assert!(found.is_optimal && (found.time - 3.0).abs() < 1e-6);
        assert!((found.gap - 0.1).abs() < 1e-6);
    }
}
