//! Whole programs at a share of their memory, not pinned to any CPU: alone, under Terrace, and in a
//! control group over zram that holds as much as Terrace took. What is compared is work, 1 ÷ time.
//!
//! Memory is what the control group is charged, and what zram takes beside it; Terrace's own
//! processes are in the group. Terrace's budget is the share of the program's peak alone. The limit
//! of the other group follows what zram takes, so that both together stay below the 95th percentile
//! of what the Terrace run before it took.

use crate::results::{self, median};
use crate::servers::group::Group;
use crate::zram::Zram;
use crate::{interrupt, machine};
use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Shares of the peak alone, percent
    #[arg(long, value_delimiter = ',', default_values_t = [60u64], value_parser = clap::value_parser!(u64).range(10..=95))]
    shares: Vec<u64>,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// More flags for `terrace run`
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    terrace_flags: String,
}

/// Between looks at memory.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// A run that takes longer than so many times the time alone is ended.
const SLOWEST: u32 = 12;
const LONGEST_ALONE: Duration = Duration::from_secs(120);
/// What zram can hold.
const ZRAM_BYTES: u64 = 8 << 30;

/// A program of the system's.
struct Program {
    name: &'static str,
    needs: &'static str,
    /// Its command; it may make its input in the directory.
    command: fn(&Path) -> anyhow::Result<Vec<String>>,
}

const PROGRAMS: [Program; 6] = [
    Program { name: "cpython-index", needs: "python3", command: index },
    Program { name: "xz", needs: "xz", command: xz },
    Program { name: "g++", needs: "g++", command: gxx },
    Program { name: "node-map", needs: "node", command: node },
    Program {
        name: "java-g1",
        needs: "java",
        command: |directory| java(directory, "-XX:+UseG1GC"),
    },
    Program {
        name: "java-parallel",
        needs: "java",
        command: |directory| java(directory, "-XX:+UseParallelGC"),
    },
];

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn index(_: &Path) -> anyhow::Result<Vec<String>> {
    // The interpreter itself, not a script that finds one.
    let output = Command::new("python3")
        .args(["-c", "import os, sys; print(os.path.realpath(sys.executable))"])
        .output()?;
    let python = String::from_utf8(output.stdout)?;
    Ok(words([python.trim(), concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/document_index.py")]))
}

fn xz(directory: &Path) -> anyhow::Result<Vec<String>> {
    let input = directory.join("input");
    if !input.exists() {
        // Text that repeats itself over long distances, a little changed.
        let mut state = 1u64;
        let mut text = String::new();
        while text.len() < 24 << 20 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(&format!(
                "record {} of {} holds {:x}\n",
                state >> 50,
                state >> 44 & 1023,
                state >> 40
            ));
        }
        fs::write(&input, text)?;
    }
    Ok(words(["sh", "-c", &format!("exec xz -T1 -7 -c {} | cksum", input.display())]))
}

fn gxx(directory: &Path) -> anyhow::Result<Vec<String>> {
    let source = directory.join("unit.cc");
    if !source.exists() {
        let mut text = String::from(
            "#include <algorithm>\n#include <functional>\n#include <map>\n#include <regex>\n#include <string>\n#include <vector>\n",
        );
        for n in 0..60 {
            text.push_str(&format!(
                "struct T{n} {{ int a; bool operator<(const T{n} &o) const {{ return a < o.a; }} }};\n\
                 int f{n}(const std::string &s) {{ std::map<T{n}, std::vector<std::string>> m; m[{{{n}}}].push_back(s); \
                 std::vector<T{n}> v(10); std::sort(v.begin(), v.end()); std::function<int(int)> g = [&](int x) {{ return x + v[0].a; }}; \
                 std::regex r(\"a{n}+b\"); return g({n}) + std::regex_match(s, r) + m.size(); }}\n"
            ));
        }
        fs::write(&source, text)?;
    }
    Ok(words(["g++", "-O2", "-c", &source.to_string_lossy(), "-o", "/dev/null"]))
}

fn node(_: &Path) -> anyhow::Result<Vec<String>> {
    const SCRIPT: &str = "const map = new Map(); let sum = 0, x = 1; \
        for (let i = 0; i < 700000; i++) map.set('key ' + i, { number: i, text: 'value of ' + i, list: [i, i + 1] }); \
        for (let i = 0; i < 2000000; i++) { x = (x * 48271) % 2147483647; const u = x / 2147483647; \
        sum += map.get('key ' + Math.floor(700000 * u * u * u * u)).number; } console.log(sum)";
    Ok(words(["node", "-e", SCRIPT]))
}

fn java(directory: &Path, collector: &str) -> anyhow::Result<Vec<String>> {
    let source = directory.join("Strings.java");
    if !directory.join("Strings.class").exists() {
        fs::write(
            &source,
            "import java.util.*; public class Strings { public static void main(String[] a) { \
             HashMap<String, String> map = new HashMap<>(); Random random = new Random(1); long sum = 0; \
             for (int i = 0; i < 900000; i++) map.put(\"key \" + i, \"value of some length \" + i); \
             for (int i = 0; i < 8000000; i++) { double u = random.nextDouble(); \
             sum += map.get(\"key \" + (int) (900000 * u * u * u * u)).length(); } System.out.println(sum); } }",
        )?;
        ensure!(
            Command::new("javac").arg(&source).status().context("no javac")?.success(),
            "javac failed"
        );
    }
    Ok(words(["java", "-Xmx1g", collector, "-cp", &directory.to_string_lossy(), "Strings"]))
}

/// One run.
struct Sample {
    seconds: f64,
    /// Of the group and zram.
    mean: f64,
    p95: f64,
    peak: f64,
    output: Vec<u8>,
}

/// Runs `words` in a group of its own; with `limit`, usage and what zram takes stay below.
fn one(
    words: &[String],
    limit: Option<(u64, &Zram)>,
    longest: Duration,
) -> anyhow::Result<Option<Sample>> {
    let group = Group::create()?;
    let meter = group.meter();
    let joins = format!("echo 0 >{} && exec \"$@\"", group.processes_file().display());
    let mut output = tempfile::tempfile()?;
    let mut command = Command::new("sh");
    machine::ends_with_us(&mut command);
    command
        .args(["-c", &joins, "sh"])
        .args(words)
        .env("PYTHONHASHSEED", "0")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(Stdio::null()).process_group(0);
    let begun = Instant::now();
    let mut child = command.spawn()?;
    let mut looks = Vec::new();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > longest {
            end(&mut child);
            return Ok(None);
        }
        let swapped = limit.map_or(Ok(0), |(_, zram)| zram.used_bytes())?;
        looks.push((meter.usage_bytes()? + swapped) as f64);
        if let Some((bytes, _)) = limit {
            group.limit(bytes.saturating_sub(swapped).max(8 << 20));
            group.help();
        }
        if let Err(error) = interrupt::sleep(LOOK_EVERY) {
            end(&mut child);
            return Err(error);
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(status.success(), "{words:?} failed: {status}");
    let mut text = Vec::new();
    std::io::Seek::rewind(&mut output)?;
    std::io::Read::read_to_end(&mut output, &mut text)?;
    let mean = looks.iter().sum::<f64>() / looks.len().max(1) as f64;
    looks.sort_by(f64::total_cmp);
    let at = |share: f64| {
        looks
            .get(((looks.len() as f64 * share) as usize).min(looks.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    };
    Ok(Some(Sample { seconds, mean, p95: at(0.95), peak: at(1.0), output: text }))
}

fn end(child: &mut Child) {
    // SAFETY: the group that the child leads.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let _ = child.wait();
}

/// Runs all programs that are here.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    let directory = tempfile::tempdir()?;
    println!(
        "{:>14} {:>6} {:>9} {:>10} {:>9} {:>12} {:>12}",
        "program", "share", "alone s", "Terrace s", "zram s", "Terrace/zram", "told"
    );
    let mut rows = Vec::new();
    for program in PROGRAMS.iter().filter(|program| {
        options.only.is_empty() || options.only.iter().any(|only| only == program.name)
    }) {
        if Command::new("which")
            .arg(program.needs)
            .stdout(Stdio::null())
            .status()
            .map_or(true, |status| !status.success())
        {
            println!("{:>14}: not here: {} is not installed", program.name, program.needs);
            continue;
        }
        let words = (program.command)(directory.path()).with_context(|| program.name)?;
        // Files that it reads are in the page cache then.
        one(&words, None, LONGEST_ALONE)?
            .with_context(|| format!("{} takes longer than {LONGEST_ALONE:?}", program.name))?;
        for share in &options.shares {
            match of_program(program.name, &words, *share, options) {
                Ok(row) => rows.push(row),
                Err(error) if interrupt::came() => return Err(error),
                Err(error) => println!("{:>14} {share:>5}%: {error:#}", program.name),
            }
        }
    }
    results::write(
        "programs",
        json!({ "repeats": options.repeats, "terrace_flags": options.terrace_flags, "rows": rows }),
    )
}

fn of_program(
    name: &str,
    words: &[String],
    share: u64,
    options: &Options,
) -> anyhow::Result<Value> {
    let report = tempfile::NamedTempFile::new()?;
    let [mut alone, mut ours, mut theirs, mut told] = [const { Vec::new() }; 4];
    let mut samples = Vec::new();
    for _ in 0..options.repeats {
        let by_itself = one(words, None, LONGEST_ALONE)?.context("slower than before")?;
        let longest = Duration::from_secs_f64(by_itself.seconds) * SLOWEST;
        let budget = by_itself.peak as u64 * share / 100;
        let under = under_terrace(words, budget, report.path(), &options.terrace_flags)?;
        let Some(terrace) = one(&under, None, longest)? else {
            bail!("Terrace takes more than {SLOWEST} times the time alone")
        };
        ensure!(terrace.output == by_itself.output, "{name} computes something else under Terrace");
        let figures: Value = serde_json::from_slice(&fs::read(report.path())?)?;
        let zram = Zram::swap_on(ZRAM_BYTES, "lz4")?;
        let peer = one(words, Some((terrace.p95 as u64, &zram)), longest)?;
        drop(zram);
        told.push(figures["slowdown_estimate"].as_f64().unwrap_or(f64::NAN));
        samples.push(json!({
            "alone_s": by_itself.seconds, "alone_peak_bytes": by_itself.peak, "alone_mean_bytes": by_itself.mean,
            "terrace_s": terrace.seconds, "terrace_mean_bytes": terrace.mean, "terrace_p95_bytes": terrace.p95,
            "zram_s": peer.as_ref().map(|peer| peer.seconds), "zram_mean_bytes": peer.as_ref().map(|peer| peer.mean),
            "zram_p95_bytes": peer.as_ref().map(|peer| peer.p95), "slowdown_told": figures["slowdown_estimate"],
            "restored_pages": figures["tiers"].as_array().into_iter().flatten().filter_map(|tier| tier["faults"].as_u64()).sum::<u64>(),
        }));
        alone.push(by_itself.seconds);
        ours.push(terrace.seconds);
        // One that was ended takes longer than all.
        theirs.push(peer.map_or(longest.as_secs_f64(), |peer| peer.seconds));
    }
    let [alone, ours, theirs, told] = [alone, ours, theirs, told].map(|values| median(&values));
    println!(
        "{name:>14} {share:>5}% {alone:>9.2} {ours:>10.2} {theirs:>9.2} {:>11.2}x {:>11.0}%",
        theirs / ours,
        told * 100.0
    );
    Ok(json!({
        "program": name, "share_percent": share, "alone_s": alone, "terrace_s": ours, "zram_s": theirs, "work_to_zram": theirs / ours,
        "slowdown": ours / alone - 1.0, "slowdown_told": told, "samples": samples,
    }))
}

fn under_terrace(
    words: &[String],
    budget: u64,
    report: &Path,
    flags: &str,
) -> anyhow::Result<Vec<String>> {
    let terrace: PathBuf = machine::terrace()?;
    let mut under = vec![
        terrace.to_string_lossy().into_owned(),
        "run".into(),
        "--dram".into(),
        budget.to_string(),
    ];
    under.extend(["--report".into(), report.to_string_lossy().into_owned()]);
    under.extend(flags.split_whitespace().map(str::to_owned));
    under.push("--".into());
    under.extend(words.iter().cloned());
    Ok(under)
}
