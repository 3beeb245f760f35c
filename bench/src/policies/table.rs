//! What the lines of `terrace sim` say, by workload and policy, and the table of it.

use super::figures::{Estimate, over_workloads};
use super::sets::{BAR_BEST, Set};
use anyhow::Context as _;
use serde_json::{Value, json};

/// Name of the policy that has to meet the bars.
pub const OURS: &str = "terrace";
const JENGA: &str = "jenga";
/// Name of the policy that knows what will come: no rival.
const ORACLE: &str = "oracle";

/// A policy on a workload; one value of each seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    per_s: Vec<f64>,
    hit_rate: Vec<f64>,
    moves: Vec<f64>,
}

/// A workload with a fast tier on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    machine: String,
    workload: String,
    fast: String,
    policies: Vec<(String, Results)>,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Rows of what `terrace sim --json` printed: by machine, then in the order in which workloads
/// come. `policies` is their order in a row.
pub fn rows(lines: &[Value], policies: &[String]) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for line in lines {
        let text = |path: &str| Some(line.pointer(path)?.as_str()?.to_owned());
        let number = |path: &str| line.pointer(path)?.as_f64();
        let read = || -> Option<_> {
            let path = text("/case/workload")?;
            // A generator with its parameters, or a file.
            let name =
                path.split(':').next()?.rsplit('/').next()?.trim_end_matches(".acc").to_owned();
            let moves = number("/total/promoted")? + number("/total/demoted")?;
            Some((
                text("/case/machine")?,
                name,
                text("/case/fast")?,
                text("/case/policy")?,
                number("/total/per_s")?,
                number("/total/hit_rate")?,
                moves,
            ))
        };
        let (machine, workload, fast, policy, per_s, hit_rate, moves) =
            read().with_context(|| format!("not a line of `terrace sim`: {line}"))?;
        let at = rows
            .iter()
            .position(|row| row.machine == machine && row.workload == workload && row.fast == fast)
            .unwrap_or_else(|| {
                let empty = policies.iter().map(|name| (name.clone(), Results::default()));
                rows.push(Row { machine, workload, fast, policies: empty.collect() });
                rows.len() - 1
            });
        let (_, results) = rows[at]
            .policies
            .iter_mut()
            .find(|(name, _)| *name == policy)
            .context("a policy that was asked for")?;
        results.per_s.push(per_s);
        results.hit_rate.push(hit_rate);
        results.moves.push(moves);
    }
    rows.sort_by(|a, b| a.machine.cmp(&b.machine));
    Ok(rows)
}

impl Row {
    fn of(&self, policy: &str) -> Option<&Results> {
        self.policies.iter().find(|(name, _)| name == policy).map(|(_, results)| results)
    }

    /// Our throughput over Jenga's, of each seed.
    fn to_jenga(&self) -> Option<Vec<f64>> {
        let pairs = self.of(OURS)?.per_s.iter().zip(&self.of(JENGA)?.per_s);
        Some(pairs.map(|(ours, jenga)| ours / jenga).collect())
    }

    fn rivals(&self) -> impl Iterator<Item = &(String, Results)> {
        self.policies.iter().filter(|(name, _)| name != OURS && name != ORACLE)
    }

    /// The rival with the highest throughput, on average over the seeds.
    fn best(&self) -> Option<&(String, Results)> {
        self.rivals().max_by(|(_, a), (_, b)| mean(&a.per_s).total_cmp(&mean(&b.per_s)))
    }

    /// Our throughput over that of the best rival in the same seed, of each seed.
    fn to_best(&self) -> Option<Vec<f64>> {
        let ours = &self.of(OURS)?.per_s;
        self.best()?;
        let best =
            |seed: usize| self.rivals().map(|(_, rival)| rival.per_s[seed]).fold(0.0, f64::max);
        Some(ours.iter().enumerate().map(|(seed, ours)| ours / best(seed)).collect())
    }

    fn json(&self) -> Value {
        let policies: serde_json::Map<String, Value> = self
            .policies
            .iter()
            .map(|(name, found)| {
                let found = json!({
                    "per_s": found.per_s, "hit_rate": found.hit_rate, "moves": found.moves,
                });
                (name.clone(), found)
            })
            .collect();
        json!({
            "machine": self.machine, "workload": self.workload, "fast": self.fast,
            "policies": policies,
            "to_jenga": self.to_jenga().map(|ratios| of(Estimate::of(&ratios))),
            "to_best": self.to_best().map(|ratios| of(Estimate::of(&ratios))),
            "best": self.best().map(|(name, _)| name),
        })
    }
}

fn of(estimate: Estimate) -> Value {
    json!({ "mean": estimate.mean, "margin_95": estimate.margin, "least": estimate.least })
}

fn written(estimate: Estimate) -> String {
    if estimate.margin.is_nan() {
        format!("{:.3}", estimate.mean)
    } else {
        format!("{:.3} ± {:.3}", estimate.mean, estimate.margin)
    }
}

fn over(bar: f64, met: bool) -> String {
    format!("bar {bar:.2}: {}", if met { "met" } else { "MISSED" })
}

/// Prints a set's tables, one a machine, and returns the same as JSON.
pub fn show(set: Set, rows: &[Row]) -> Value {
    let mut machines = Vec::new();
    for of_machine in rows.chunk_by(|a, b| a.machine == b.machine) {
        machines.push(show_machine(set, of_machine));
    }
    json!({ "rows": rows.iter().map(Row::json).collect::<Vec<_>>(), "machines": machines })
}

fn show_machine(set: Set, rows: &[Row]) -> Value {
    let Some(first) = rows.first() else { return Value::Null };
    let seeds = first.policies.first().map_or(0, |(_, results)| results.per_s.len());
    println!(
        "{} on {}: hit rate % / M accesses a second, modelled; means of {seeds} seeds\n",
        set.name(),
        first.machine
    );
    print!("{:<9} {:>4}", "workload", "fast");
    first.policies.iter().for_each(|(name, _)| print!(" {name:>11}"));
    println!("  {:>8} {:>8}  best rival", "to jenga", "to best");
    let (mut to_jenga, mut to_best) = (Vec::new(), Vec::new());
    let mut lost = Vec::new();
    for row in rows {
        print!("{:<9} {:>4}", row.workload, row.fast);
        for (_, found) in &row.policies {
            print!(
                " {:>11}",
                format!("{:.1}/{:.1}", mean(&found.hit_rate) * 100.0, mean(&found.per_s) / 1e6)
            );
        }
        if let (Some(jenga), Some(best), Some((rival, theirs)), Some(ours)) =
            (row.to_jenga(), row.to_best(), row.best(), row.of(OURS))
        {
            let [a, b] = [&jenga, &best].map(|ratios| Estimate::of(ratios));
            println!("  {:>8.3} {:>8.3}  {rival}", a.mean, b.mean);
            if a.mean < 1.0 || b.mean < 1.0 {
                lost.push(format!(
                    "  {:<9} {:>4}: {} of jenga, {} of the best (least {:.3}); {rival} has {:.1} % hits and {:.0} moves, {OURS} {:.1} % and {:.0}",
                    row.workload,
                    row.fast,
                    written(a),
                    written(b),
                    b.least,
                    mean(&theirs.hit_rate) * 100.0,
                    mean(&theirs.moves),
                    mean(&ours.hit_rate) * 100.0,
                    mean(&ours.moves)
                ));
            }
            to_jenga.push(jenga);
            to_best.push(best);
        } else {
            println!();
        }
    }
    println!();
    if to_jenga.is_empty() {
        println!("no ratios: they need the policies {OURS} and {JENGA}\n");
        return Value::Null;
    }
    let (geomean, of_best) = (over_workloads(&to_jenga), over_workloads(&to_best));
    let worst = to_best
        .iter()
        .map(|ratios| Estimate::of(ratios))
        .min_by(|a, b| a.mean.total_cmp(&b.mean))
        .expect("there are rows");
    println!(
        "{OURS} / {JENGA}, geometric mean:      {}   {}",
        written(geomean),
        over(set.bar(), geomean.mean >= set.bar())
    );
    println!(
        "{OURS} / best rival, least workload: {}   {}",
        written(worst),
        over(BAR_BEST, worst.mean >= BAR_BEST)
    );
    println!("{OURS} / best rival, geometric mean: {}", written(of_best));
    if !lost.is_empty() {
        println!("what it loses:");
        lost.iter().for_each(|line| println!("{line}"));
    }
    println!();
    json!({
        "machine": first.machine, "geomean_to_jenga": of(geomean), "bar_to_jenga": set.bar(),
        "least_to_best": of(worst), "bar_to_best": BAR_BEST,
        "geomean_to_best": of(of_best),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(workload: &str, seed: u64, policy: &str, per_s: f64) -> Value {
        json!({
            "case": {
                "workload": workload, "machine": "optane", "fast": "25%", "policy": policy,
                "seed": seed,
            },
            "total": { "per_s": per_s, "hit_rate": 0.5, "promoted": 3, "demoted": 4 },
        })
    }

    #[test]
    fn ratios_are_of_one_seed_and_the_best_rival_is_no_oracle() {
        let policies = ["memtis", "jenga", "oracle", "terrace"].map(str::to_owned);
        let mut lines = Vec::new();
        for (workload, values) in [
            ("/somewhere/pr.acc", [[8.0, 10.0, 90.0, 12.0], [11.0, 10.0, 90.0, 9.9]]),
            ("jump:units=16", [[1.0, 2.0, 3.0, 4.0]; 2]),
        ] {
            for (seed, of_seed) in (1..).zip(values) {
                for (policy, per_s) in policies.iter().zip(of_seed) {
                    lines.push(line(workload, seed, policy, per_s));
                }
            }
        }
        let rows = rows(&lines, &policies).unwrap();
        let [pr, jump] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(
            (pr.workload.as_str(), jump.workload.as_str(), pr.fast.as_str()),
            ("pr", "jump", "25%")
        );
        assert_eq!(pr.of("terrace").unwrap().moves, [7.0, 7.0]);
        assert_eq!(pr.to_jenga().unwrap(), [1.2, 0.99]);
        // In the first seed Jenga is the best rival, in the second Memtis; on average Jenga.
        assert_eq!(pr.to_best().unwrap(), [1.2, 9.9 / 11.0]);
        assert_eq!(pr.best().unwrap().0, "jenga");
        assert_eq!(jump.to_best().unwrap(), [2.0, 2.0]);
    }

    #[test]
    fn without_our_policy_there_are_no_ratios() {
        let policies = ["jenga".to_owned()];
        let rows = rows(&[line("zipf", 1, "jenga", 5.0)], &policies).unwrap();
        assert!(rows[0].to_jenga().is_none() && rows[0].to_best().is_none());
        assert_eq!(show(Set::Synthetic, &rows)["machines"], json!([null]));
        assert!(super::rows(&[json!({ "case": 1 })], &policies).is_err());
    }
}
