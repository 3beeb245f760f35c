//! Recordings of programs (`bench/programs`, `crates/recorder`), made where they are missing.

use super::sets::{CACHE, Program};
use crate::machine;
use anyhow::Context as _;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use terrace_trace::accesses::Reader;

/// The program's recording in `directory`. An error says why there is none, and none can be made.
pub fn of(program: &Program, directory: &Path) -> anyhow::Result<PathBuf> {
    let file = directory.join(format!("{}.acc", program.name));
    if !file.exists() {
        record(program, &file)?;
    }
    // Another size would be another workload under the same name.
    let reader = Reader::open(&file).with_context(|| file.display().to_string())?;
    let told = || reader.header.command.iter().skip(1).map(String::as_str);
    let asked = &program.command[1..];
    anyhow::ensure!(
        program.built_as == "redis" || told().eq(asked.iter().copied()),
        "{} is of `{}`, not of `{}`: remove it to have it made again",
        file.display(),
        told().collect::<Vec<_>>().join(" "),
        asked.join(" ")
    );
    Ok(file)
}

fn record(program: &Program, file: &Path) -> anyhow::Result<()> {
    let programs = std::env::current_exe()?.with_file_name("recorded-programs");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    println!("recording {}: {} (a minute or two)", program.name, program.command.join(" "));
    let built = Command::new(scripts.join("build.sh"))
        .arg(&programs)
        .arg(program.built_as)
        .stdin(Stdio::null())
        .output()?;
    anyhow::ensure!(
        built.status.success(),
        "bench/programs/build.sh failed: {}",
        String::from_utf8_lossy(&built.stderr).trim()
    );
    std::fs::create_dir_all(file.parent().context("a file has a directory")?)?;
    let unfinished = file.with_extension("unfinished");
    let mut command = if program.built_as == "redis" {
        let mut command = Command::new(scripts.join("redis.sh"));
        command
            .arg(&programs)
            .envs(["KEYS", "OPERATIONS", "SEED"].into_iter().zip(program.command));
        command
    } else {
        let mut command = Command::new(programs.join(program.command[0]));
        command.args(&program.command[1..]);
        command
    };
    machine::ends_with_us(&mut command);
    let output = command
        .env("TERRACE_RECORD", format!("trace:{}", unfinished.display()))
        .env("TERRACE_RECORD_CACHE", CACHE)
        .env("TERRACE_RECORD_PERIOD", program.period.to_string())
        .env("TERRACE_RECORD_START", "now")
        .stdin(Stdio::null())
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "{} ended with {}: {}",
        program.name,
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(std::fs::rename(&unfinished, file)?)
}

/// What is in a recording.
pub fn description(program: &Program, file: &Path) -> anyhow::Result<Value> {
    let reader = Reader::open(file)?;
    let pages = reader.pages().len() as u64;
    Ok(json!({
        "name": program.name, "command": program.command, "cache": CACHE,
        "period": reader.header.period, "records": reader.records(),
        "pages": pages, "mib": (pages * reader.header.page_bytes) >> 20,
        "file_bytes": std::fs::metadata(file)?.len(),
    }))
}
