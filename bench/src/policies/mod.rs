//! Tiering policies in the simulator: ours against all that papers describe. They run on generated
//! accesses, on recorded programs on which ours was tuned, and on programs that were kept aside.
//!
//! Everything goes through the command that a user would give, `terrace sim … -o FILE`. After an
//! interruption, or with more seeds, what was finished is still there.

mod figures;
pub mod sets;
mod table;
pub mod traces;

use crate::{machine, results};
use anyhow::Context as _;
use serde_json::{Value, json};
use sets::Set;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use terrace_policy::registry::simulated::NAMES;

/// What is compared.
#[derive(clap::Args)]
pub struct Options {
    /// On what
    #[arg(long, value_delimiter = ',', default_values = ["synthetic", "tuning", "heldout"])]
    set: Vec<Set>,
    /// Seeds, as of `terrace sim`: of generated accesses, and of samples
    #[arg(long, default_value = "1-5")]
    seeds: String,
    /// Policies, by their names [default: all]
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// A policy's parameter, POLICY.NAME=VALUE, as `--set` of `terrace sim`; for trials
    #[arg(long)]
    knob: Vec<String>,
    /// Machines of `terrace sim`
    #[arg(long, value_delimiter = ',', default_value = "optane")]
    machines: Vec<String>,
    /// Only these workloads of a set
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Where recordings are; those that are missing are made [default: beside the benchmark]
    #[arg(long)]
    traces: Option<PathBuf>,
}

/// Runs the comparison, one set after the other.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let policies = match &options.policies[..] {
        [] => NAMES.map(str::to_owned).to_vec(),
        some => some.to_vec(),
    };
    for set in &options.set {
        run_set(*set, &policies, options)?;
    }
    Ok(())
}

fn run_set(set: Set, policies: &[String], options: &Options) -> anyhow::Result<()> {
    let asked =
        |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let generators: Vec<String> =
        set.generators().iter().filter(|name| asked(name)).map(|name| (*name).to_owned()).collect();
    let mut files = Vec::new();
    let mut recordings = Vec::new();
    let directory = match &options.traces {
        Some(directory) => directory.clone(),
        None => std::env::current_exe()?.with_file_name("recordings"),
    };
    let mut missing = Vec::new();
    for program in set.programs().iter().filter(|program| asked(program.name)) {
        match traces::of(program, &directory) {
            Ok(file) => {
                recordings.push(traces::description(program, &file)?);
                files.push(file.display().to_string());
            }
            Err(error) => {
                println!("without {}: {error:#}", program.name);
                missing.push(program.name);
            }
        }
    }
    if generators.is_empty() && files.is_empty() {
        println!("{}: nothing to compare policies on\n", set.name());
        return Ok(());
    }
    for told in &recordings {
        println!(
            "{}: {:.1} million records, {} MiB",
            told["name"].as_str().unwrap_or_default(),
            told["records"].as_f64().unwrap_or(0.0) / 1e6,
            told["mib"]
        );
    }
    let finished = finished(set, &machine::terrace()?, &files)?;
    let mut lines = Vec::new();
    if !generators.is_empty() {
        lines.extend(simulate(set, &generators, None, policies, options, &finished)?);
    }
    for (file, told) in files.iter().zip(&recordings) {
        let stands_for = sets::REAL_ACCESSES / told["records"].as_u64().unwrap_or(1).max(1);
        lines.extend(simulate(
            set,
            std::slice::from_ref(file),
            Some(stands_for.max(1)),
            policies,
            options,
            &finished,
        )?);
    }
    let found = table::show(set, &table::rows(&lines, policies)?);
    if !options.policies.is_empty() || !options.only.is_empty() || !options.knob.is_empty() {
        println!("not written to bench/results: it is a part\n");
        return Ok(());
    }
    let figures = json!({
        "set": set.name(), "seeds": options.seeds, "fast": set.fast(), "recordings": recordings,
        "missing": missing, "rows": found["rows"],
        "machines": found["machines"],
    });
    results::write(&format!("policies-{}", set.name()), figures)
}

/// The lines of `terrace sim` for all these workloads. Each access stands for `stands_for`
/// accesses.
fn simulate(
    set: Set,
    workloads: &[String],
    stands_for: Option<u64>,
    policies: &[String],
    options: &Options,
    finished: &Path,
) -> anyhow::Result<Vec<Value>> {
    let mut command = Command::new(machine::terrace()?);
    machine::ends_with_us(&mut command);
    command
        .arg("sim")
        .args(workloads)
        .arg("--policies")
        .arg(policies.join(","))
        .arg("--fast")
        .arg(set.fast().join(","));
    command.arg("--machines").arg(options.machines.join(",")).arg("--seeds").arg(&options.seeds);
    command
        .args(options.knob.iter().flat_map(|knob| ["--set", knob]))
        .arg("-o")
        .arg(finished)
        .arg("--json");
    command.args(
        stands_for.into_iter().flat_map(|number| ["--stands-for".to_owned(), number.to_string()]),
    );
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    println!("terrace {}\n", words.join(" "));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    anyhow::ensure!(output.status.success(), "terrace sim ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("what terrace sim --json printed")
}

/// The file of finished cases. It is another one for another simulator, and for other recordings of
/// the same names.
fn finished(set: Set, terrace: &Path, files: &[String]) -> anyhow::Result<PathBuf> {
    let mut hash = DefaultHasher::new();
    std::fs::read(terrace)?.hash(&mut hash);
    for file in files.iter().filter_map(|file| std::fs::metadata(file).ok()) {
        (file.len(), file.modified()?).hash(&mut hash);
    }
    let directory = terrace.with_file_name("policies");
    std::fs::create_dir_all(&directory)?;
    Ok(directory.join(format!("{}-{:016x}.jsonl", set.name(), hash.finish())))
}
