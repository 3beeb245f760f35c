//! Costs of one page, against zram lz4: eviction, the fault as the program sees it, and the restore
//! within it. Also the restore by a program that says what it is about to touch. Everything is on
//! CPU 0, Terrace's threads too; runs are interleaved.

use crate::machine::pinned;
use crate::results::{self, median};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use terrace_testkit::zram::Zram;

/// Figures of a run.
struct Figures {
    fault_p50: f64,
    fault_p99: f64,
    page_out: f64,
    share: f64,
}

/// Reads a figure of a run.
type Get = fn(&Figures) -> f64;

/// What a measured program prints.
fn measured(flags: Option<&[&str]>, program: &str) -> anyhow::Result<Value> {
    let own = std::env::current_exe()?;
    let output = pinned(flags, &[&own.to_string_lossy(), program])?.output()?;
    if !output.status.success() {
        bail!("the measured program failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let line = String::from_utf8(output.stdout)?;
    Ok(serde_json::from_str(line.lines().last().context("no figures")?)?)
}

fn figures(flags: Option<&[&str]>) -> anyhow::Result<Figures> {
    let value = measured(flags, "touch-pages")?;
    let get = |name: &str| value[name].as_f64().context("a figure is missing");
    Ok(Figures {
        fault_p50: get("fault_p50_us")?,
        fault_p99: get("fault_p99_us")?,
        page_out: get("page_out_us")?,
        share: get("paged_out_share")?,
    })
}

/// Runs both sides `repeats` times.
pub fn run(repeats: usize) -> anyhow::Result<()> {
    println!(
        "One page, 64 MiB in random order, everything on CPU 0, medians of {repeats} interleaved runs (µs):\n"
    );
    let report = tempfile::NamedTempFile::new()?;
    let path = report.path().to_string_lossy().into_owned();
    let (mut ours, mut theirs, mut restores, mut inline) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut missing = None;
    for _ in 0..repeats {
        ours.push(figures(Some(&["--dram", "16G", "--tiers", "dram,lz4", "--report", &path]))?);
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        restores.push(json["tiers"][1]["fault_p50_us"].as_f64().unwrap_or(f64::NAN));
        inline.push(measured(Some(&["--dram", "16G", "--tiers", "dram,lz4"]), "touch-ahead")?);
        if missing.is_none() {
            match Zram::for_measuring(1 << 30, "lz4") {
                Ok(_zram) => theirs.push(figures(None)?),
                Err(e) => missing = Some(format!("{e:#}")),
            }
        }
    }
    let of = |side: &[Figures], get: Get| median(&side.iter().map(get).collect::<Vec<_>>());
    let rows: [(&str, Get); 3] = [
        ("fault, median", |f| f.fault_p50),
        ("fault, p99", |f| f.fault_p99),
        ("eviction, batches of 512", |f| f.page_out),
    ];
    let mut json = json!({ "repeats": repeats, "restore_p50_us": median(&restores) });
    println!("{:28}{:>10}{:>10}{:>10}", "", "Terrace", "zram lz4", "ratio");
    for (name, get) in rows {
        let (a, b) = (of(&ours, get), of(&theirs, get));
        println!("{name:28}{a:>10.2}{b:>10.2}{:>9.2}x", a / b);
        json[name] = json!({ "terrace_us": a, "zram_us": b, "ratio": a / b });
    }
    let restore = median(&restores);
    let fault = of(&theirs, |f| f.fault_p50);
    println!(
        "{:28}{restore:>10.2}{fault:>10.2}{:>9.2}x",
        "restore within the fault",
        restore / fault
    );
    let asked = |name: &str| {
        median(&inline.iter().map(|run| run[name].as_f64().unwrap_or(f64::NAN)).collect::<Vec<_>>())
    };
    for (row, name) in [
        ("inline restore, one page", "inline_p50_us"),
        ("inline restore, of 16", "inline_range_p50_us"),
    ] {
        let us = asked(name);
        println!("{row:28}{us:>10.2}{fault:>10.2}{:>9.2}x", us / fault);
        json[row] = json!({ "terrace_us": us, "zram_us": fault, "ratio": us / fault });
    }
    println!("terrace_touch where nothing is out:");
    for (row, name) in [
        ("one page", "resident_page_ns"),
        ("a page of a range, others of its region out", "resident_among_evicted_ns"),
        ("a page of a range, none out", "resident_region_ns"),
    ] {
        let ns = asked(name);
        println!("  {row:46}{ns:>8.3} ns");
        json[name] = json!(ns);
    }
    println!(
        "paged out when touched: Terrace {:.1} %, zram {:.1} %",
        of(&ours, |f| f.share) * 100.0,
        of(&theirs, |f| f.share) * 100.0
    );
    if let Some(why) = missing {
        println!("no zram side: {why}");
        json["zram_missing"] = json!(why);
    }
    results::write("pages", json)
}
