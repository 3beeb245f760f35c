//! `terrace report heatmap` and `terrace report wss`: what a recording shows.
//!
//! Samples meet who waits for memory, so what is shown is where the program spends its waiting: see
//! `terrace record`. A window's working set is the regions that were met in it: with few samples
//! that is less than were touched.

use crate::args::{HeatmapArguments, Shown};
use crate::quantity::{bytes, share};
use anyhow::{Context, Result, bail};
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

/// Shades of the drawing, from least to most.
const LEVELS: usize = 8;
/// Width of a cell, pixels.
const CELL_WIDTH: usize = 4;
const CELL_HEIGHT: usize = 3;
/// The drawing's height without its frame, pixels, at least.
const HEIGHT_LEAST: usize = 300;
/// Space left of the cells, for addresses; above them, for titles; and below, for time and scale.
const LEFT: usize = 150;
const TOP: usize = 60;
const BOTTOM: usize = 90;
/// Between two addresses that are written, pixels.
const BETWEEN_LABELS: usize = 14;

/// Class of a cell's shade: 1 is the least, [`LEVELS`] the most; 0 where nothing was met.
fn level(count: f64, most: f64) -> usize {
    (heat(count, most) * LEVELS as f64).ceil() as usize
}

/// Colours by class, for light and dark pages. Brighter is hotter on a dark page, darker on a light
/// one, so that both can be read without colour.
fn style() -> String {
    let mut light = String::new();
    let mut dark = String::new();
    for level in 1..=LEVELS {
        let part = level as f64 / LEVELS as f64;
        let mix = |from: f64, to: f64| (from + (to - from) * part) as u8;
        let colour = |r: [f64; 2], g: [f64; 2], b: [f64; 2]| {
            format!("rgb({},{},{})", mix(r[0], r[1]), mix(g[0], g[1]), mix(b[0], b[1]))
        };
        let on_light = colour([225.0, 60.0], [225.0, 10.0], [245.0, 90.0]);
        let on_dark = colour([30.0, 250.0], [30.0, 220.0], [80.0, 60.0]);
        let _ = write!(light, ".l{level}{{fill:{on_light}}}");
        let _ = write!(dark, ".l{level}{{fill:{on_dark}}}");
    }
    format!(
        "<style>text{{font-family:sans-serif;font-size:12px;fill:#111}}.p{{fill:#fff}}\
         .f{{fill:none;stroke:#888}}{light}\
         @media (prefers-color-scheme: dark){{text{{fill:#ddd}}.p{{fill:#111}}{dark}}}</style>"
    )
}

fn draw(recording: &Recording, grid: &Grid, path: &Path) -> Result<()> {
    std::fs::write(path, svg(recording, grid))
        .with_context(|| format!("cannot draw {}", path.display()))
}

/// The drawing: address by time, with both axes and a scale. Neighbouring cells of one shade are
/// one rectangle, so that a drawing is some ten kilobytes.
fn svg(recording: &Recording, grid: &Grid) -> String {
    let cell_height = HEIGHT_LEAST.div_ceil(grid.rows.len().max(1)).max(CELL_HEIGHT);
    let (width, height) = (SVG_COLUMNS * CELL_WIDTH, grid.rows.len() * cell_height);
    let (all_width, all_height) = (LEFT + width + 40, TOP + height + BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_width} {all_height}\" \
         width=\"{all_width}\" height=\"{all_height}\">\n{}\n\
         <rect class=\"p\" width=\"{all_width}\" height=\"{all_height}\"/>\n",
        style()
    );
    let name = recording.header.command.first().map_or("", String::as_str);
    let name = Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy());
    text(&mut out, LEFT, 22, "start", &format!("{name}: where it waits for memory"));
    text(&mut out, LEFT - 8, 44, "end", "address, length");
    addresses(&mut out, recording, grid, cell_height);
    for (row, cells) in grid.cells.iter().enumerate() {
        runs(&mut out, cells, grid.most, TOP + row * cell_height, cell_height);
    }
    let _ = writeln!(
        out,
        "<rect class=\"f\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\"/>"
    );
    times(&mut out, end_ms(recording) as f64 / 1e3, TOP + height + 18, width);
    scale(&mut out, grid.most, TOP + height + 55);
    out + "</svg>\n"
}

fn text(out: &mut String, x: usize, y: usize, anchor: &str, text: &str) {
    let text =
        text.replace('&', "&amp;").replace('<', "&lt;").replace(char::is_control, "\u{fffd}");
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>");
}

/// The address at which each group of neighbouring rows begins, and its length, where there is
/// room for them.
fn addresses(out: &mut String, recording: &Recording, grid: &Grid, cell_height: usize) {
    let size = recording.header.region_bytes;
    let mut free_from = 0;
    let mut row = 0;
    while row < grid.rows.len() {
        let is_next = |next: &usize| grid.rows[*next].0 - grid.rows[*next - 1].1 <= 1;
        let end = (row + 1..grid.rows.len()).find(|next| !is_next(next)).unwrap_or(grid.rows.len());
        let y = TOP + row * cell_height + 10;
        if y >= free_from {
            let (first, last) = (grid.rows[row].0, grid.rows[end - 1].1);
            let label = format!("{:#x} {}", first * size, bytes((last + 1 - first) * size));
            text(out, LEFT - 8, y, "end", &label);
            free_from = y + BETWEEN_LABELS;
        }
        row = end;
    }
}

fn runs(out: &mut String, cells: &[f64], most: f64, y: usize, height: usize) {
    let levels: Vec<usize> = cells.iter().map(|count| level(*count, most)).collect();
    let mut column = 0;
    for run in levels.chunk_by(|a, b| a == b) {
        if run[0] > 0 {
            let (x, width) = (LEFT + column * CELL_WIDTH, run.len() * CELL_WIDTH);
            let _ = writeln!(
                out,
                "<path class=\"l{}\" d=\"M{x} {y}h{width}v{height}h-{width}z\"/>",
                run[0]
            );
        }
        column += run.len();
    }
}

/// Time from left to right, in five steps.
fn times(out: &mut String, seconds: f64, y: usize, width: usize) {
    const STEPS: usize = 5;
    for step in 0..=STEPS {
        let label = format!("{:.1} s", seconds * step as f64 / STEPS as f64);
        text(out, LEFT + width * step / STEPS, y, "middle", &label);
    }
}

/// What the shades mean: samples in a cell, of so many regions and so long.
fn scale(out: &mut String, most: f64, y: usize) {
    const BOX: usize = 60;
    text(out, LEFT - 8, y + 11, "end", "samples in a cell");
    for level in 1..=LEVELS {
        let x = LEFT + (level - 1) * BOX;
        let _ = writeln!(
            out,
            "<rect class=\"l{level}\" x=\"{x}\" y=\"{y}\" width=\"{BOX}\" height=\"14\"/>"
        );
        // The inverse of `heat`.
        let least = most * (8.0 * ((level - 1) as f64 / LEVELS as f64 - 1.0)).exp2();
        let label = if level == 1 { "> 0".into() } else { format!("> {least:.1}") };
        text(out, x + BOX / 2, y + 30, "middle", &label);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_trace::counts::{Header, Place, Window};

    /// A recording of 10 s: `regions` of 2 MiB, each met as often as a hash of it and time says.
    fn recording(regions: u64) -> Recording {
        let header = Header {
            terrace: "0".into(),
            command: vec!["/bin/a<b".into()],
            source: "clock".into(),
            rate_hz: 1000,
            region_bytes: 2 << 20,
        };
        let window = |index: u64| {
            let mut window =
                Window { start_ms: index * 50, end_ms: index * 50 + 50, ..Window::default() };
            for region in 0..regions {
                let random = (region * 2_654_435_761 + index * 40_503) >> 7;
                let place = Place { process: 1, region: 1000 + region };
                window.add(place, (random % 50) as f32 / 10.0);
            }
            window
        };
        Recording { header, windows: (0..200).map(window).collect(), incomplete: None }
    }

    #[test]
    fn a_drawing_has_axes_a_scale_a_dark_side_and_is_high_and_small_enough() {
        for regions in [1, 31, 2000] {
            let recording = recording(regions);
            let svg = svg(&recording, &grid(&recording, SVG_ROWS, SVG_COLUMNS));
            for part in [
                "0x7d000000",
                "10.0 s",
                "samples in a cell",
                "prefers-color-scheme: dark",
                "a&lt;b",
            ] {
                assert!(svg.contains(part), "no {part}: {}", &svg[..3000]);
            }
            let height = svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap();
            assert!(height.parse::<usize>().unwrap() >= 300, "{height}");
        }
        // What a program of 62 MB does that goes from region to region.
        let mut recording = recording(31);
        for (index, window) in recording.windows.iter_mut().enumerate() {
            window.counts.retain(|place, _| (place.region as usize + index / 8) % 31 < 12);
        }
        let svg = svg(&recording, &grid(&recording, SVG_ROWS, SVG_COLUMNS));
        assert!(svg.len() <= 100_000, "{} bytes", svg.len());
    }

    #[test]
    fn the_scale_is_the_inverse_of_the_shades() {
        for level_from in 2..=LEVELS {
            let least = 1000.0 * (8.0 * ((level_from - 1) as f64 / LEVELS as f64 - 1.0)).exp2();
            assert_eq!(level(least * 1.01, 1000.0), level_from);
            assert_eq!(level(least * 0.99, 1000.0), level_from - 1);
        }
        assert_eq!((level(0.0, 5.0), level(5.0, 5.0)), (0, LEVELS));
    }
}
