//! `terrace report FILE`: what a recording holds, in words; and `terrace report export`, which
//! gives it another format.

use crate::quantity::{bytes, share};
use crate::report::args::{ExportArguments, ExportFormat, RecordingArguments};
use crate::{WRONG_CONTENTS, say};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use terrace_trace::accesses::{self, CacheModel, Clock};
use terrace_trace::counts::{self, PARTS, Recording};
use terrace_trace::oracle_general;
use terrace_trace::{file::Decoder, objects};

/// `terrace report FILE`.
pub fn show(arguments: &RecordingArguments) -> Result<u8> {
    let shown = arguments.file.display().to_string();
    let (lines, found) = match magic(&arguments.file).with_context(|| shown.clone())? {
        accesses::MAGIC => of_accesses(&arguments.file),
        objects::MAGIC => of_objects(&arguments.file),
        // Also what is none: the error says what would be one.
        _ => of_counts(&arguments.file),
    }
    .with_context(|| shown.clone())?;
    let status = status(&arguments.file, found["incomplete"].as_str(), "shown");
    let text = if arguments.json {
        format!("{found:#}\n")
    } else {
        lines.iter().map(|line| format!("{line}\n")).collect()
    };
    // A closed standard output is no error of ours.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(status)
}

/// The exit status for a recording of which something is missing (`why`), or nothing. Says the
/// former, and what became of the rest.
pub fn status(file: &Path, why: Option<&str>, what_comes_before_is: &str) -> u8 {
    let Some(why) = why else { return 0 };
    say(&format!("{}: {why}; what comes before is {what_comes_before_is}", file.display()));
    WRONG_CONTENTS
}

/// First bytes of a file; zeros where it is shorter. The version in them is left to the reader of
/// that format.
pub(super) fn magic(path: &Path) -> Result<[u8; 8]> {
    let mut magic = [0; 8];
    let read = File::open(path)?.take(8).read(&mut magic)?;
    if read == 8 {
        magic[7] = counts::MAGIC[7];
    }
    Ok(magic)
}

fn command(words: &[String]) -> String {
    words.join(" ")
}

/// `1,234,567`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}

fn of_counts(path: &Path) -> Result<(Vec<String>, Value)> {
    let Recording { header, windows, incomplete, .. } = Recording::read(path)?;
    let end_ms = windows.last().map_or(0, |window| window.end_ms);
    let parts: u64 = windows
        .iter()
        .flat_map(|window| window.counts.values())
        .map(|count| u64::from(*count))
        .sum();
    let elsewhere: u64 = windows.iter().map(|window| u64::from(window.elsewhere)).sum();
    let samples = |parts: u64| (parts as f64 / f64::from(PARTS)).round() as u64;
    let places: HashSet<_> =
        windows.iter().flat_map(|window| window.counts.keys().copied()).collect();
    let processes: HashSet<u32> = places.iter().map(|place| place.process).collect();
    let lines = vec![
        format!("counts by region and time of `{}`", command(&header.command)),
        format!(
            "  {:.1} s in {} windows, {} samples a second of a running thread ({})",
            end_ms as f64 / 1e3,
            count(windows.len() as u64),
            header.rate_hz,
            header.source
        ),
        format!(
            "  {} samples in {} regions of {} ({}), of {} processes; {} more elsewhere",
            count(samples(parts)),
            count(places.len() as u64),
            bytes(header.region_bytes),
            bytes(places.len() as u64 * header.region_bytes),
            processes.len(),
            count(samples(elsewhere))
        ),
        "  more: terrace report heatmap FILE, terrace report wss FILE".into(),
    ];
    let found = json!({
        "kind": "counts", "terrace": header.terrace, "command": header.command,
        "source": header.source, "rate_hz": header.rate_hz,
        "region_bytes": header.region_bytes, "ms": end_ms, "windows": windows.len(),
        "samples": samples(parts), "elsewhere": samples(elsewhere),
        "regions": places.len(), "processes": processes.len(), "incomplete": incomplete,
    });
    Ok((lines, found))
}

/// The accesses of a recording in words: `every miss of a modelled cache of 4.0M (16 lines a set)`.
fn which(cache: Option<CacheModel>, period: u64, source: &str) -> String {
    let of = |one: &str, many: &str| {
        if period == 1 {
            format!("every {one}")
        } else {
            format!("one in {} {many}, at random,", count(period))
        }
    };
    match cache {
        Some(cache) => format!(
            "{} of a modelled cache of {} ({} lines a set)",
            of("miss", "misses"),
            bytes(cache.bytes),
            cache.ways
        ),
        None if source == "hooks" => of("access", "accesses"),
        None => format!("what the sampler met ({source})"),
    }
}

/// Length of a recording in words: accesses, or seconds.
pub(super) fn length(clock: Clock, end: u64) -> String {
    match clock {
        Clock::Accesses => format!("{} accesses", count(end)),
        Clock::Us => format!("{:.1} s", end as f64 / 1e6),
    }
}

/// A line about a file that had no room for so many more; `None` for 0.
pub(super) fn full(left_out: u64) -> Option<String> {
    (left_out > 0)
        .then(|| format!("  the file was full: {} more came after its end", count(left_out)))
}

fn of_accesses(path: &Path) -> Result<(Vec<String>, Value)> {
    let reader = accesses::Reader::open(path)?;
    let mut incomplete = reader.incomplete().map(str::to_owned);
    let (mut records, mut writes) = (0u64, 0u64);
    let mut blocks = reader.iter();
    while let Some(block) = blocks.next() {
        match block {
            Ok((_, block)) => {
                records += block.len() as u64;
                writes += block.iter().filter(|record| accesses::is_write(**record)).count() as u64;
            }
            Err(why) => incomplete = Some(why),
        }
    }
    let header = &reader.header;
    let pages = reader.pages().len() as u64;
    let processes: HashSet<u32> = reader.pages().iter().map(|page| page.process).collect();
    let start = if reader.blocks() == 0 { 0 } else { reader.block(0).0 };
    let mut lines = vec![
        format!(
            "accesses of `{}`: {}",
            command(&header.command),
            which(header.cache, header.period, &header.source)
        ),
        format!(
            "  {} records, of {} pages of {} ({}) in {} processes{}",
            count(records),
            count(pages),
            bytes(header.page_bytes),
            bytes(pages * header.page_bytes),
            processes.len(),
            if header.writes {
                format!("; {} are writes", share(writes as f64 / records.max(1) as f64))
            } else {
                String::new()
            }
        ),
        format!(
            "  from {} to {}",
            length(header.clock, start),
            length(header.clock, reader.end_clock())
        ),
    ];
    lines.extend(full(reader.left_out()));
    // Units of whole pages do not tell what in a page is hot.
    let is_finer = header.page_bytes < 4096;
    let more = if is_finer { "terrace report utilisation FILE, " } else { "" };
    lines.push(format!("  more: {more}terrace report export FILE -o OUT (for libCacheSim)"));
    let found = json!({
        "kind": "accesses", "header": header, "records": records,
        "writes": if header.writes { json!(writes) } else { Value::Null }, "pages": pages,
        "processes": processes.len(), "start_clock": start, "end_clock": reader.end_clock(),
        "left_out": reader.left_out(), "incomplete": incomplete,
    });
    Ok((lines, found))
}

fn of_objects(path: &Path) -> Result<(Vec<String>, Value)> {
    let reader = objects::Reader::open(path)?;
    let mut incomplete = reader.incomplete().map(str::to_owned);
    let (mut decoder, mut events) = (Decoder::new(), Vec::new());
    let (mut born, mut died, mut accesses, mut writes, mut counting) =
        (0u64, 0u64, 0u64, 0u64, None);
    // Bytes of each, by number.
    let mut sizes: Vec<u64> = Vec::new();
    let (mut live, mut peak) = (0u64, 0u64);
    for number in 0..reader.blocks() {
        if let Err(why) = reader.decode(number, &mut decoder, &mut events) {
            incomplete = Some(why);
            break;
        }
        for event in &events {
            match *event {
                objects::Event::Born { bytes, .. } => {
                    born += 1;
                    sizes.push(bytes);
                    live = live.saturating_add(bytes);
                }
                objects::Event::Died { object, .. } => {
                    died += 1;
                    live = live.saturating_sub(
                        sizes.get_mut(object as usize).map(std::mem::take).unwrap_or_default(),
                    );
                }
                objects::Event::Resized { object, bytes, .. } => {
                    if let Some(size) = sizes.get_mut(object as usize) {
                        live = live
                            .saturating_sub(std::mem::replace(size, bytes))
                            .saturating_add(bytes);
                    }
                }
                objects::Event::Access { written, .. } => {
                    accesses += 1;
                    writes += u64::from(written);
                }
                objects::Event::Counting { clock } => counting = Some(clock),
            }
            peak = peak.max(live);
        }
    }
    let header = &reader.header;
    let mut lines = vec![
        format!(
            "objects of `{}`, and {} in them",
            command(&header.command),
            which(header.cache, header.period, &header.source)
        ),
        format!(
            "  {} objects of {} contexts ({} frames), {} of which went; at most {} at a time",
            count(born),
            count(reader.contexts().len() as u64),
            header.depth,
            count(died),
            bytes(peak)
        ),
        format!(
            "  {} accesses are recorded; {} are writes",
            count(accesses),
            share(writes as f64 / accesses.max(1) as f64)
        ),
        match counting {
            Some(clock) => format!(
                "  from {} to {}",
                length(header.clock, clock),
                length(header.clock, reader.end_clock())
            ),
            None => "  recording of accesses never began".into(),
        },
    ];
    lines.extend(full(reader.left_out()));
    let found = json!({
        "kind": "objects", "header": header, "objects": born, "died": died,
        "contexts": reader.contexts().len(), "peak_bytes": peak,
        "accesses": accesses, "writes": writes, "start_clock": counting,
        "end_clock": reader.end_clock(), "left_out": reader.left_out(),
        "incomplete": incomplete,
    });
    Ok((lines, found))
}

/// `terrace report export`.
pub fn export(arguments: &ExportArguments) -> Result<u8> {
    let (from, to) = (arguments.file.display(), arguments.output.display());
    if magic(&arguments.file).with_context(|| from.to_string())? == counts::MAGIC {
        bail!(
            "{from}: counts by region and time cannot be exported, because single accesses are not in them: `terrace record --accesses` writes those"
        );
    }
    let reader = accesses::Reader::open(&arguments.file).with_context(|| from.to_string())?;
    let file = File::create(&arguments.output).with_context(|| format!("cannot write {to}"))?;
    let ExportFormat::OracleGeneral = arguments.format;
    let exported =
        oracle_general::export(&reader, &file).with_context(|| format!("cannot write {to}"))?;
    let status = status(&arguments.file, exported.incomplete.as_deref(), "exported");
    say(&format!(
        "{} accesses of {} pages: {to}",
        count(exported.records),
        count(reader.pages().len() as u64)
    ));
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let cache = Some(CacheModel { bytes: 4 << 20, ways: 16, line_bytes: 64 });
        assert_eq!(
            which(cache, 1, "hooks"),
            "every miss of a modelled cache of 4.0M (16 lines a set)"
        );
        assert_eq!(
            which(cache, 8, "hooks"),
            "one in 8 misses, at random, of a modelled cache of 4.0M (16 lines a set)"
        );
        assert_eq!(
            (which(None, 1, "hooks"), which(None, 1, "clock")),
            ("every access".into(), "what the sampler met (clock)".into())
        );
    }
}
