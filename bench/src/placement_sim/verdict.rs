//! How far our model's curve of savings against slowdown is below another's, beside the spread of
//! the seeds.

use super::mean;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use terrace_policy::tiering::cost;
use terrace_sim::tiering::reached;

/// Points of each model with one seed: slowdown and the part that is saved.
pub type Curves = BTreeMap<&'static str, Vec<(f64, f64)>>;

/// Names of the printed columns.
pub fn print_header() {
    println!(
        "{:>14} {:>19} {:>20} {:>9} {:>8} {:>16} {:>8}",
        "workload", "tiers", "ours is below", "slowdown", "by", "least to most", "spread"
    );
}

/// The verdict over one workload and one set of tiers, which is printed too. Curves are those of
/// each seed.
pub fn row(workload: &str, set: &str, seeds: &[Curves]) -> Value {
    let ours: Vec<&[(f64, f64)]> =
        seeds.iter().filter_map(|curves| curves.get(cost::NAME).map(Vec::as_slice)).collect();
    let mut worst: Option<(&str, Vec<(f64, f64)>)> = None;
    let others = seeds.first().into_iter().flat_map(BTreeMap::keys).copied();
    for model in others.filter(|model| *model != cost::NAME) {
        let gaps: Vec<(f64, f64)> = seeds
            .iter()
            .zip(&ours)
            .filter_map(|(curves, ours)| curves.get(model).map(|other| gap(ours, other)))
            .collect();
        if mean_of(&gaps) > worst.as_ref().map_or(0.0, |(_, most)| mean_of(most)) {
            worst = Some((model, gaps));
        }
    }
    let Some((model, gaps)) = worst else {
        println!("{workload:>14} {set:>19} {:>20}", "none");
        return json!({ "workload": workload, "tiers": set, "against": null, "below": 0.0 });
    };
    let largest =
        gaps.iter().copied().fold((0.0, 0.0), |most, gap| if gap.0 > most.0 { gap } else { most });
    let saved: Vec<f64> = ours.iter().map(|curve| reached(curve, largest.1)).collect();
    let spread = most(&saved) - least(&saved);
    let each: Vec<f64> = gaps.iter().map(|(below, _)| *below).collect();
    let below = mean(&each);
    println!(
        "{workload:>14} {set:>19} {model:>20} {:>8.1}% {:>7.1}% {:>6.1} to {:>4.1}% {:>7.1}%",
        largest.1 * 100.0,
        below * 100.0,
        least(&each) * 100.0,
        most(&each) * 100.0,
        spread * 100.0
    );
    json!({
        "workload": workload, "tiers": set, "against": model, "slowdown": largest.1,
        "below": below, "below_of_each": each, "spread": spread, "within": below <= spread,
    })
}

/// How far our curve is below another's at most, and the slowdown where that is. Between the
/// points of both curves it is nowhere more.
fn gap(ours: &[(f64, f64)], other: &[(f64, f64)]) -> (f64, f64) {
    ours.iter()
        .chain(other)
        .map(|(slowdown, _)| (reached(other, *slowdown) - reached(ours, *slowdown), *slowdown))
        .fold((0.0, 0.0), |most, gap| if gap.0 > most.0 { gap } else { most })
}

fn mean_of(gaps: &[(f64, f64)]) -> f64 {
    mean(&gaps.iter().map(|(below, _)| *below).collect::<Vec<f64>>())
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(ours: &[(f64, f64)], other: &[(f64, f64)]) -> Curves {
        Curves::from([(cost::NAME, ours.to_vec()), ("other", other.to_vec())])
    }

    #[test]
    fn a_curve_above_all_others_is_below_none() {
        let seed = curves(&[(0.1, 0.3), (0.2, 0.5)], &[(0.1, 0.2), (0.3, 0.5)]);
        let row = row("load", "set", &[seed]);
        assert!(row["against"].is_null() && row["below"] == 0.0, "{row}");
    }

    #[test]
    fn what_is_below_is_told_beside_the_spread_of_the_seeds() {
        let seeds = [
            curves(&[(0.1, 0.3)], &[(0.1, 0.34), (0.2, 0.34)]),
            curves(&[(0.1, 0.2)], &[(0.1, 0.26), (0.2, 0.26)]),
        ];
        let row = row("load", "set", &seeds);
        let is = |key: &str, wanted: f64| (row[key].as_f64().unwrap() - wanted).abs() < 1e-9;
        assert!(row["against"] == "other" && row["within"] == true, "{row}");
        assert!(is("below", 0.05) && is("spread", 0.1) && is("slowdown", 0.1), "{row}");
    }
}
