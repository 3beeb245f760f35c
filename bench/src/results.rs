//! Where figures go: JSON under bench/results/, a file for each benchmark, the newest run in it.

use crate::machine;
use serde_json::{Value, json};
use std::path::Path;
use terrace_testkit::random::Congruential;

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The 95 % interval of the median, from 10,000 samples drawn with replacement from `values`
/// (always the same draws).
pub fn median_interval(values: &[f64]) -> (f64, f64) {
    let mut random = Congruential::new(0x9E37_79B9_7F4A_7C15);
    let mut draw = || values[(random.draw() >> 33) as usize % values.len()];
    if values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let mut medians: Vec<f64> =
        (0..10_000).map(|_| median(&values.iter().map(|_| draw()).collect::<Vec<_>>())).collect();
    medians.sort_by(f64::total_cmp);
    (medians[249], medians[9749])
}

/// Writes one benchmark's figures.
pub fn write(name: &str, figures: Value) -> anyhow::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(
        &json!({ "machine": machine::description(), "figures": figures }),
    )?;
    std::fs::write(&path, text + "\n")?;
    println!("written: bench/results/{name}.json\n");
    Ok(())
}
