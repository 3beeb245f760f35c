//! Metadata per managed byte (bar: 0.3 %), with three quarters of the memory evicted. It is the
//! report's overhead, which the pager counts page by page over its own reservations.

use crate::machine::terrace;
use crate::results;
use anyhow::bail;
use serde_json::{Value, json};
use std::process::Command;

/// Runs both sizes.
pub fn run() -> anyhow::Result<()> {
    println!(
        "Metadata and all other overhead (stacks, buffers, allocator), three quarters evicted:\n"
    );
    let mut rows = Vec::new();
    for gib in [1usize, 8] {
        let report = tempfile::NamedTempFile::new()?;
        let path = report.path().to_string_lossy().into_owned();
        let own = std::env::current_exe()?;
        let gib_text = gib.to_string();
        let output = Command::new(terrace()?)
            .args(["run", "--dram", "16G", "--report", &path, "--"])
            .arg(own)
            .args(["fill-memory", &gib_text])
            .output()?;
        if !output.status.success() {
            bail!("the measured program failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        let overhead = json["peak_overhead_bytes"].as_f64().unwrap_or(f64::NAN);
        let managed = (gib << 30) as f64;
        println!(
            "{gib:>3} GiB managed: {:>8.2} MiB = {:.3} % (bar 0.300 %)",
            overhead / 1048576.0,
            overhead / managed * 100.0
        );
        rows.push(
            json!({ "managed_gib": gib, "overhead_bytes": overhead, "share": overhead / managed }),
        );
    }
    results::write("metadata", json!(rows))
}
