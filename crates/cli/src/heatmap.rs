//! `terrace report heatmap` and `terrace report wss`: what a recording shows.
//!
//! Samples meet who waits for memory, so what is shown is where the program spends its waiting: see
//! `terrace record`. A window's working set is the regions that were met in it: with few samples
//! that is less than were touched.

use crate::args::{HeatmapArguments, Shown};
use crate::quantity::{bytes, share};
use anyhow::{Context, Result, bail};
use plotters::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use terrace_trace::counts::{PARTS, Recording};

/// Cells of the terminal's picture, at most.
const COLUMNS: usize = 72;
const ROWS: usize = 32;
/// Columns of the heatmap in the SVG file, at most.
const SVG_COLUMNS: usize = 240;
/// Rows of the heatmap in the SVG file, at most.
const SVG_ROWS: usize = 160;
/// Regions this far apart are in rows of their own.
const FAR_BYTES: u64 = 1 << 30;
/// From least to most.
const SHADES: [char; 6] = [' ', '·', '░', '▒', '▓', '█'];

/// Counts by row of addresses and column of time.
struct Grid {
    /// First and last region of each row. What lies between rows was never met.
    rows: Vec<(u64, u64)>,
    cells: Vec<Vec<f64>>,
    most: f64,
}

/// Reads the recording, and leaves one process in it. Says on standard error if it is not whole.
fn read(Shown { file: path, process: asked, .. }: &Shown) -> Result<(Recording, u32)> {
    let mut recording = Recording::read(path).with_context(|| path.display().to_string())?;
    if let Some(why) = &recording.incomplete {
        crate::say(&format!("{}: {why}; what comes before is shown", path.display()));
    }
    if recording.windows.iter().all(|window| window.counts.is_empty()) {
        bail!(
            "{}: no access to the program's data was met, so there is nothing to show (record for longer, or with a higher --rate)",
            path.display()
        );
    }
    let process = process(&recording, *asked)?;
    recording
        .windows
        .iter_mut()
        .for_each(|window| window.counts.retain(|place, _| place.process == process));
    Ok((recording, process))
}

/// The process that was met most, or the one that is asked for.
fn process(recording: &Recording, asked: Option<u32>) -> Result<u32> {
    let mut met: BTreeMap<u32, u64> = BTreeMap::new();
    for (place, count) in recording.windows.iter().flat_map(|window| &window.counts) {
        *met.entry(place.process).or_default() += u64::from(*count);
    }
    match asked {
        Some(process) if met.contains_key(&process) => Ok(process),
        Some(process) => {
            let all: Vec<String> = met.keys().map(u32::to_string).collect();
            bail!("process {process} is not in it; those that are: {}", all.join(", "))
        }
        None => met
            .into_iter()
            .max_by_key(|(_, count)| *count)
            .map(|(process, _)| process)
            .context("nothing was met"),
    }
}

fn end_ms(recording: &Recording) -> u64 {
    recording.windows.last().map_or(1, |window| window.end_ms.max(1))
}

fn grid(recording: &Recording, rows_max: usize, columns: usize) -> Grid {
    let windows = || recording.windows.iter();
    let counts = || {
        windows().flat_map(|window| {
            window.counts.iter().map(move |(place, count)| (window, place.region, *count))
        })
    };
    let mut regions: Vec<u64> = counts().map(|(_, region, _)| region).collect();
    regions.sort_unstable();
    regions.dedup();
    // Neighbours share a row, as many as it takes; what lies far apart does not.
    let in_row = regions.len().div_ceil(rows_max).max(1);
    let near = |a: &u64, b: &u64| (b - a) * recording.header.region_bytes < FAR_BYTES;
    let rows: Vec<(u64, u64)> = regions
        .chunk_by(near)
        .flat_map(|near| near.chunks(in_row))
        .map(|chunk| (chunk[0], chunk[chunk.len() - 1]))
        .collect();
    let mut cells = vec![vec![0.0; columns]; rows.len()];
    let end = end_ms(recording);
    for (window, region, count) in counts() {
        let row = rows.partition_point(|(_, last)| *last < region);
        let column = |ms: u64| (ms as usize * columns / end as usize).min(columns - 1);
        let (first, last) =
            (column(window.start_ms), column(window.end_ms.saturating_sub(1).max(window.start_ms)));
        for cell in &mut cells[row][first..=last] {
            *cell += f64::from(count) / f64::from(PARTS) / (last - first + 1) as f64;
        }
    }
    let most = cells.iter().flatten().copied().fold(0.0, f64::max);
    Grid { rows, cells, most }
}

/// 0 to 1, by logarithm: half as many samples are a shade less.
fn heat(count: f64, most: f64) -> f64 {
    if count <= 0.0 { 0.0 } else { (1.0 + (count / most).log2() / 8.0).clamp(0.1, 1.0) }
}

/// Prints the heatmap, and draws it where that is asked for.
pub fn run(arguments: &HeatmapArguments) -> Result<u8> {
    let (recording, process) = read(&arguments.shown)?;
    if let Some(path) = &arguments.svg {
        draw(&recording, &grid(&recording, SVG_ROWS, SVG_COLUMNS), path)?;
    }
    let grid = grid(&recording, ROWS, COLUMNS);
    let text = if arguments.shown.json {
        as_json(&recording, process)
    } else {
        picture(&recording, process, &grid)
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(0)
}

fn title(recording: &Recording, process: u32) -> String {
    let header = &recording.header;
    let seconds = end_ms(recording) as f64 / 1e3;
    format!(
        "{} (process {process}), {seconds:.1} s, sampled by {} at {} Hz",
        header.command.join(" "),
        header.source,
        header.rate_hz
    )
}

fn picture(recording: &Recording, process: u32, grid: &Grid) -> String {
    let size = recording.header.region_bytes;
    let mut out = title(recording, process) + "\n";
    let mut before = None;
    for ((first, last), cells) in grid.rows.iter().zip(&grid.cells) {
        let gap = if before.is_some_and(|before| first - before > 1) { '-' } else { ' ' };
        before = Some(*last);
        let shade = |count: &f64| {
            SHADES[(heat(*count, grid.most) * (SHADES.len() - 1) as f64).ceil() as usize]
        };
        let line: String = cells.iter().map(shade).collect();
        let _ = writeln!(
            out,
            "{:>14x}{gap}{:>6} |{line}|",
            first * size,
            bytes((last + 1 - first) * size)
        );
    }
    let _ = writeln!(
        out,
        "{:>14} {:>6}  0 s{:>width$.1} s",
        "address",
        "length",
        end_ms(recording) as f64 / 1e3,
        width = COLUMNS - 5
    );
    let _ = writeln!(
        out,
        "darkest: {:.0} samples; each shade half to a third of the next. '-': untouched addresses above",
        grid.most
    );
    out
}

fn as_json(recording: &Recording, process: u32) -> String {
    let windows: Vec<serde_json::Value> = recording
        .windows
        .iter()
        .map(|window| {
            let regions: Vec<_> = window
                .counts
                .iter()
                .map(|(place, count)| json!({ "address": place.region * recording.header.region_bytes, "samples": *count as f32 / PARTS }))
                .collect();
            json!({ "start_ms": window.start_ms, "end_ms": window.end_ms, "regions": regions })
        })
        .collect();
    let all = json!({ "header": recording.header, "process": process, "incomplete": recording.incomplete, "windows": windows });
    all.to_string() + "\n"
}

/// Dark blue to yellow, as one reads it without colour too: brighter is hotter.
fn colour(heat: f64) -> RGBColor {
    let part = |from: f64, to: f64| (from + (to - from) * heat) as u8;
    RGBColor(part(30.0, 250.0), part(20.0, 220.0), part(90.0, 60.0))
}

fn draw(recording: &Recording, grid: &Grid, path: &Path) -> Result<()> {
    let wrong =
        |error: &dyn std::fmt::Display| anyhow::anyhow!("cannot draw {}: {error}", path.display());
    let (cell, left, top) = ((4, 3), 130, 40);
    let size = (
        left as u32 + SVG_COLUMNS as u32 * cell.0 as u32 + 20,
        top as u32 + grid.rows.len() as u32 * cell.1 as u32 + 50,
    );
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE).map_err(|e| wrong(&e))?;
    let text = |text: String, at: (i32, i32), size: u32| {
        area.draw(&Text::new(text, at, ("sans-serif", size)))
    };
    let first = recording.header.command.first().map_or("", String::as_str);
    text(format!("{first}: where it waits for memory, address × time"), (left, 12), 18)
        .map_err(|e| wrong(&e))?;
    for (row, cells) in grid.cells.iter().enumerate() {
        let y = top + row as i32 * cell.1;
        let gap = row > 0 && grid.rows[row].0 - grid.rows[row - 1].1 > 1;
        if row == 0 || gap && row % 4 == 0 || row % 40 == 0 {
            let address = grid.rows[row].0 * recording.header.region_bytes;
            text(format!("{address:#x}"), (8, y - 4), 11).map_err(|e| wrong(&e))?;
        }
        for (column, count) in cells.iter().enumerate() {
            let x = left + column as i32 * cell.0;
            // One more either way, under the next: or viewers draw seams.
            let rectangle = Rectangle::new(
                [(x, y), (x + cell.0 + 1, y + cell.1 + 1)],
                colour(heat(*count, grid.most)).filled(),
            );
            area.draw(&rectangle).map_err(|e| wrong(&e))?;
        }
    }
    let bottom = top + grid.rows.len() as i32 * cell.1 + 8;
    text("0 s".into(), (left, bottom), 13).map_err(|e| wrong(&e))?;
    let seconds = end_ms(recording) as f64 / 1e3;
    text(format!("{seconds:.1} s"), (left + SVG_COLUMNS as i32 * cell.0 - 40, bottom), 13)
        .map_err(|e| wrong(&e))?;
    area.present().map_err(|e| wrong(&e))
}

/// Prints how much memory is met, in each stretch of time and in all.
pub fn working_set(arguments: &Shown) -> Result<u8> {
    let (recording, process) = read(arguments)?;
    let size = recording.header.region_bytes;
    let mut sets: Vec<(u64, u64)> = Vec::new();
    let mut met: BTreeMap<u64, u64> = BTreeMap::new();
    for window in &recording.windows {
        for (place, count) in &window.counts {
            *met.entry(place.region).or_default() += u64::from(*count);
        }
        sets.push((window.start_ms, window.counts.len() as u64 * size));
    }
    let mean = sets.iter().map(|(_, bytes)| *bytes as f64).sum::<f64>() / sets.len().max(1) as f64;
    let peak = sets.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let mut counts: Vec<u64> = met.values().copied().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let total: u64 = counts.iter().sum();
    let needed = |part: f64| {
        let wanted = total as f64 * part;
        let sums = counts.iter().scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count)));
        sums.take_while(|before| (*before as f64) < wanted).count() as u64 * size
    };
    let shares = [0.5, 0.8, 0.9, 0.99, 1.0].map(|part| (part, needed(part)));
    let window_ms = end_ms(&recording) / recording.windows.len().max(1) as u64;
    let text = if arguments.json {
        let by_time: Vec<_> = sets
            .iter()
            .map(|(start_ms, bytes)| json!({ "start_ms": start_ms, "bytes": bytes }))
            .collect();
        let needed: Vec<_> =
            shares.iter().map(|(part, bytes)| json!({ "share": part, "bytes": bytes })).collect();
        json!({ "process": process, "window_ms": window_ms, "mean_bytes": mean, "peak_bytes": peak, "windows": by_time, "needed": needed })
            .to_string()
            + "\n"
    } else {
        let mut out = title(&recording, process) + "\n";
        let _ = writeln!(
            out,
            "regions of {} that were met, in {window_ms} ms: {} on average, {} at most",
            bytes(size),
            bytes(mean as u64),
            bytes(peak)
        );
        for (part, needed) in shares {
            let _ = writeln!(out, "{:>5} of the samples are in {}", share(part), bytes(needed));
        }
        out
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(0)
}
