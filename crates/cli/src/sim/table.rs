//! Results for people: a table for each workload, machine and size of the fast tier, a line for
//! each policy, averages over seeds.

use super::results::Row;
use std::fmt::Write as _;

/// What lines of one table have in common.
type Key<'a> = (&'a str, Option<&'a str>, &'a str, &'a str);

fn key(row: &Row) -> Key<'_> {
    (&row.case.workload, row.case.layout.as_deref(), &row.case.machine, &row.case.fast)
}

fn name(row: &Row) -> String {
    // What is set is the policy's anyway.
    let set =
        row.case.set.iter().map(|set| set.split_once('.').map_or(set.as_str(), |(_, set)| set));
    std::iter::once(row.case.policy.as_str()).chain(set).collect::<Vec<_>>().join(" ")
}

/// The table; empty where nothing was run.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut tables: Vec<(Key<'_>, Vec<&Row>)> = Vec::new();
    for row in rows {
        match tables.iter_mut().find(|(of, _)| *of == key(row)) {
            Some((_, rows)) => rows.push(row),
            None => tables.push((key(row), vec![row])),
        }
    }
    for ((workload, layout, machine, fast), rows) in tables {
        let layout = layout.map(|layout| format!(", objects by {layout}")).unwrap_or_default();
        let first = rows[0];
        let _ = writeln!(text, "{workload}{layout}");
        let _ = match first.base_units {
            None => writeln!(
                text,
                "{machine}, fast tier {fast}: {} of {} units",
                first.fast_units, first.units
            ),
            Some(all) => writeln!(
                text,
                "{machine}, fast tier {fast}: {} of {all} base units, in {} units",
                first.fast_units, first.units
            ),
        };
        if let Some(why) = rows.iter().find_map(|row| row.incomplete.as_deref()) {
            let _ = writeln!(text, "incomplete, of what comes before: {why}");
        }
        let mut lines: Vec<(String, Vec<&Row>)> = Vec::new();
        for row in rows {
            match lines.iter_mut().find(|(of, _)| *of == name(row)) {
                Some((_, rows)) => rows.push(row),
                None => lines.push((name(row), vec![row])),
            }
        }
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max("policy".len());
        let _ = writeln!(
            text,
            "  {:<width$} {:>7} {:>9} {:>7} {:>9} {:>10} {:>10} {:>9} {:>6}",
            "policy", "hit %", "M acc/s", "+-", "AMAT ns", "promoted", "demoted", "faults", "cost"
        );
        for (name, rows) in lines {
            let mean = |of: &dyn Fn(&Row) -> f64| {
                rows.iter().map(|row| of(row)).sum::<f64>() / rows.len() as f64
            };
            let rates = rows.iter().map(|row| row.total.per_s / 1e6);
            let spread =
                (rates.clone().fold(f64::MIN, f64::max) - rates.fold(f64::MAX, f64::min)) / 2.0;
            let spread = if rows.len() > 1 { format!("{spread:.1}") } else { "-".into() };
            let _ = writeln!(
                text,
                "  {name:<width$} {:>7.1} {:>9.1} {spread:>7} {:>9.1} {:>10.0} {:>10.0} {:>9.0} {:>6.3}",
                mean(&|row| row.total.hit_rate) * 100.0,
                mean(&|row| row.total.per_s) / 1e6,
                mean(&|row| row.total.amat_ns),
                mean(&|row| row.total.promoted as f64),
                mean(&|row| row.total.demoted as f64),
                mean(&|row| row.total.faults as f64),
                mean(&|row| row.total.cost),
            );
        }
        text.push('\n');
    }
    text
}
