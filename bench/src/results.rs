//! Where figures go: JSON under bench/results/, one file a benchmark, the newest run in it.

use crate::machine;
use serde_json::{Value, json};
use std::path::Path;

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

/// Writes one benchmark's figures.
pub fn write(name: &str, figures: Value) -> anyhow::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(&json!({ "machine": machine::description(), "figures": figures }))?;
    std::fs::write(&path, text + "\n")?;
    println!("written: bench/results/{name}.json\n");
    Ok(())
}
