//! Real programs under the recorder (`crates/recorder`): SQLite and redis-server, on each
//! allocator's own layout. They are compiled with the compiler's hooks, so that every access is
//! seen.

use super::{PLACED, SIDES};
use crate::machine;
use crate::side::jemalloc;
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names of the programs. SQLite answers Zipf-distributed lookups and updates of rows in memory,
/// redis-server commands on values of mixed sizes.
pub const PROGRAMS: [&str; 2] = ["sqlite", "redis"];

/// Builds the programs beside the benchmark; an error says why they cannot be built.
pub fn build() -> anyhow::Result<PathBuf> {
    let into = std::env::current_exe()?.with_file_name("recorded-programs");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/build.sh");
    let output = Command::new(script).arg(&into).args(PROGRAMS).stdin(Stdio::null()).output()?;
    anyhow::ensure!(
        output.status.success(),
        "bench/programs/build.sh failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(into)
}

/// Numbers of pages that hold given shares of the misses of a program on a side, as the recorder
/// tells. `None` where that side is not for such programs.
pub fn pages(programs: &Path, name: &str, side: &str, seed: u64) -> anyhow::Result<Option<Value>> {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("pages.json");
    let (_, flags) = SIDES.iter().find(|(known, _)| *known == side).context("a side")?;
    // What runs the program on this side.
    let prefix: Vec<String> = match (side, flags) {
        (PLACED, _) => return Ok(None),
        ("jemalloc", _) => {
            let library = jemalloc().context("libjemalloc.so.2 is not installed")?;
            vec!["env".into(), format!("LD_PRELOAD={}", library.display())]
        }
        (_, Some(flags)) => {
            let terrace = machine::terrace()?.to_string_lossy().into_owned();
            // A budget that is never near. The recorder's malloc is a frame of its own: one more
            // makes the default depth.
            let more = ["--dram", "8G", "--context-depth", "5", "--"];
            [terrace, "run".into()]
                .into_iter()
                .chain(flags.iter().chain(&more).map(|word| (*word).to_owned()))
                .collect()
        }
        _ => Vec::new(),
    };
    let mut command = Command::new(if name == "redis" { "sh" } else { "env" });
    machine::ends_with_us(&mut command);
    command
        .env("TERRACE_RECORD", format!("pages:{}", file.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .stdin(Stdio::null());
    if name == "redis" {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/redis.sh");
        command.arg(script).arg(programs).args(&prefix).env("SEED", seed.to_string());
    } else {
        command
            .env("TERRACE_RECORD_START", "call")
            .args(&prefix)
            .arg(programs.join("sqlite_points"))
            .args(["300000", "1000000", &seed.to_string()]);
    }
    let status = command.status()?;
    anyhow::ensure!(status.success(), "{name} on the side {side} ended with {status}");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("{name} on the side {side} recorded nothing"))?;
    Ok(Some(serde_json::from_str(&text)?))
}
