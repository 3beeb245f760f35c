//! `terrace report heatmap` and `terrace report wss`: what a recording shows.
//!
//! Samples meet threads that wait for memory, so what is shown is where the program spends its
//! waiting: see `terrace record`. A window's working set is the regions that were met in it: with
//! few samples that is less than were touched.

use crate::quantity::{bytes, share};
use crate::report::args::{HeatmapArguments, Shown};
use crate::report::recording;
use crate::terminal;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use terrace_trace::counts::{Mapping, PARTS, Recording};

/// Cells of a line where it is not known how wide the terminal is, and the fewest and most
/// elsewhere.
const COLUMNS: usize = 72;
const COLUMNS_OF_TERMINALS: (usize, usize) = (20, 240);
/// What a line has beside its cells.
const LABELS: usize = 24;
const ROWS: usize = 32;
/// Columns of the heatmap in the SVG file, which has the first of these that keeps it below
/// [`SVG_BYTES`]. All divide [`SVG_WIDTH`].
const SVG_COLUMNS: [usize; 4] = [240, 160, 120, 60];
/// Bytes of the SVG file.
const SVG_BYTES: usize = 100_000;
/// Rows of the heatmap in the SVG file, at most.
const SVG_ROWS: usize = 160;
/// Regions this far apart are in rows of their own.
const FAR_BYTES: u64 = 1 << 30;
/// Shades of a cell, from least to most.
const SHADES: [char; 6] = [' ', '·', '░', '▒', '▓', '█'];

/// Counts by row of addresses and column of time.
struct Grid {
    /// First and last region of each row. What lies between rows was never met.
    rows: Vec<(u64, u64)>,
    cells: Vec<Vec<f64>>,
    most: f64,
}

/// Reads the recording, and leaves one process in it; the last is the exit status. Says on standard
/// error if it is not whole.
fn read(Shown { file: path, process: asked, .. }: &Shown) -> Result<(Recording, u32, u8)> {
    let mut recording = Recording::read(path).with_context(|| path.display().to_string())?;
    let status = recording::status(path, recording.incomplete.as_deref(), "shown");
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
    recording.mappings.retain(|mapping| mapping.process == process);
    Ok((recording, process, status))
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

/// Heat of a cell from 0 to 1, by logarithm: half as many samples are a shade less.
fn heat(count: f64, most: f64) -> f64 {
    if count <= 0.0 { 0.0 } else { (1.0 + (count / most).log2() / 8.0).clamp(0.1, 1.0) }
}

/// Prints the heatmap, and draws it where that is asked for.
pub fn run(arguments: &HeatmapArguments) -> Result<u8> {
    let (recording, process, status) = read(&arguments.shown)?;
    if let Some(path) = &arguments.svg {
        std::fs::write(path, drawing(&recording))
            .with_context(|| format!("cannot draw {}", path.display()))?;
    }
    let grid = grid(&recording, ROWS, columns(LABELS));
    let text = if arguments.shown.json {
        as_json(&recording, process)
    } else {
        picture(&recording, process, &grid)
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(status)
}

/// Cells of a line: as many as the terminal has room for beside `labels` columns.
pub fn columns(labels: usize) -> usize {
    let (least, most) = COLUMNS_OF_TERMINALS;
    let fitting = |width: usize| width.saturating_sub(labels).clamp(least, most);
    terminal::width().map_or(COLUMNS, fitting)
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
        width = grid.cells.first().map_or(COLUMNS, Vec::len) - 5
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
                .map(|(place, count)| {
                    json!({
                        "address": place.region * recording.header.region_bytes,
                        "samples": *count as f32 / PARTS,
                    })
                })
                .collect();
            json!({ "start_ms": window.start_ms, "end_ms": window.end_ms, "regions": regions })
        })
        .collect();
    let mappings: Vec<serde_json::Value> = recording
        .mappings
        .iter()
        .map(|mapping| json!({ "start": mapping.start, "end": mapping.end, "name": mapping.name }))
        .collect();
    let all = json!({
        "header": recording.header, "process": process, "incomplete": recording.incomplete,
        "mappings": mappings, "windows": windows,
    });
    all.to_string() + "\n"
}

/// Shades of the drawing, from least to most.
const LEVELS: usize = 8;
/// Width of all cells of a row, pixels.
const SVG_WIDTH: usize = 960;
const CELL_HEIGHT: usize = 3;
/// The drawing's height without its frame, pixels, at least.
const HEIGHT_LEAST: usize = 300;
/// Space left of the cells, for addresses; right of them, for what is mapped there, or for the last
/// moment's label; above them, for titles; and below, for time and scale.
const LEFT: usize = 190;
const RIGHT: usize = 260;
const RIGHT_WITHOUT_NAMES: usize = 40;
const TOP: usize = 60;
const BOTTOM: usize = 90;
/// Space between two labels, pixels.
const BETWEEN_LABELS: usize = 14;
/// Letters of a mapping's name in a label, names in one, and letters of a whole label.
const NAME_LETTERS: usize = 26;
const NAMES_OF_A_LABEL: usize = 2;
const LABEL_LETTERS: usize = 36;
/// What covers less than this part of what the largest mapping of some rows covers is not named.
const NAMED_PART: f64 = 0.01;

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
            format!("#{:02x}{:02x}{:02x}", mix(r[0], r[1]), mix(g[0], g[1]), mix(b[0], b[1]))
        };
        let on_light = colour([225.0, 60.0], [225.0, 10.0], [245.0, 90.0]);
        let on_dark = colour([30.0, 250.0], [30.0, 220.0], [80.0, 60.0]);
        let rule = |colour: String| {
            format!("rect.l{level}{{fill:{colour}}}path.l{level}{{stroke:{colour}}}")
        };
        light += &rule(on_light);
        dark += &rule(on_dark);
    }
    format!(
        "<style>text{{font-family:sans-serif;font-size:12px;fill:#111}}.p{{fill:#fff}}\
         .f{{fill:none;stroke:#888}}{light}\
         @media (prefers-color-scheme: dark){{text{{fill:#ddd}}.p{{fill:#111}}{dark}}}</style>"
    )
}

/// The drawing, with as many columns as [`SVG_BYTES`] allow.
fn drawing(recording: &Recording) -> String {
    let drawings = SVG_COLUMNS
        .iter()
        .map(|columns| svg(recording, &grid(recording, SVG_ROWS, *columns), SVG_WIDTH / columns));
    let mut coarsest = String::new();
    for drawing in drawings {
        coarsest = drawing;
        if coarsest.len() <= SVG_BYTES {
            break;
        }
    }
    coarsest
}

/// The drawing: address by time, with both axes and a scale, and what is mapped at the addresses.
fn svg(recording: &Recording, grid: &Grid, cell_width: usize) -> String {
    let cell_height = HEIGHT_LEAST.div_ceil(grid.rows.len().max(1)).max(CELL_HEIGHT);
    let height = grid.rows.len() * cell_height;
    let right = if recording.mappings.is_empty() { RIGHT_WITHOUT_NAMES } else { RIGHT };
    let (all_width, all_height) = (LEFT + SVG_WIDTH + right, TOP + height + BOTTOM);
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
    if !recording.mappings.is_empty() {
        text(&mut out, LEFT + SVG_WIDTH + 16, 44, "start", "what is mapped there");
        names(&mut out, recording, grid, cell_height);
    }
    cells(&mut out, grid, (cell_width, cell_height));
    let _ = writeln!(
        out,
        "<rect class=\"f\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{SVG_WIDTH}\" height=\"{height}\"/>"
    );
    let end_ms = end_ms(recording);
    times(&mut out, end_ms as f64 / 1e3, TOP + height + 18, SVG_WIDTH);
    let columns = grid.cells.first().map_or(1, Vec::len);
    let regions = grid.rows.iter().map(|(first, last)| last + 1 - first).max().unwrap_or(1);
    let cell = format!(
        "samples in a cell: up to {} of addresses, {} ms",
        bytes(regions * recording.header.region_bytes),
        rounded(end_ms as f64 / columns as f64)
    );
    scale(&mut out, grid.most, &cell, TOP + height + 55);
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

/// What is mapped at each row's addresses: neighbouring rows of one name share a bracket. Where
/// there is no room beside it, a name stands below.
fn names(out: &mut String, recording: &Recording, grid: &Grid, cell_height: usize) {
    let size = recording.header.region_bytes;
    let named: Vec<String> = grid
        .rows
        .iter()
        .map(|(first, last)| name_of(&recording.mappings, first * size, (last + 1) * size))
        .collect();
    let bottom = TOP + grid.rows.len() * cell_height + BETWEEN_LABELS;
    let (from, to) = (LEFT + SVG_WIDTH + 4, LEFT + SVG_WIDTH + 14);
    let (mut row, mut free_from, mut before) = (0, 0, "");
    for run in named.chunk_by(|a, b| a == b) {
        let (top, name) = (TOP + row * cell_height, &run[0][..]);
        row += run.len();
        let label = (top + 10).max(free_from);
        let is_pushed = label > top + 10;
        // The same name once more says nothing new where it has no room.
        if name.is_empty() || label > bottom || is_pushed && name == before {
            continue;
        }
        let (end, middle) = (TOP + row * cell_height, label - 4);
        let (up, down) = (top + 1, end.saturating_sub(1).max(top + 2));
        let _ = writeln!(
            out,
            "<path class=\"f\" d=\"M{from} {up}h4V{down}h-4M{} {}L{to} {middle}\"/>",
            from + 4,
            middle.clamp(up, down)
        );
        text(out, to + 2, label, "start", name);
        (free_from, before) = (label + BETWEEN_LABELS, name);
    }
}

/// What covers most of these addresses, and what comes next.
fn name_of(mappings: &[Mapping], start: u64, end: u64) -> String {
    let mut covered: BTreeMap<&str, u64> = BTreeMap::new();
    let first = mappings.partition_point(|mapping| mapping.end <= start);
    for mapping in mappings[first..].iter().take_while(|mapping| mapping.start < end) {
        let name = if mapping.name.is_empty() { "anonymous" } else { &mapping.name };
        *covered.entry(name).or_default() += mapping.end.min(end) - mapping.start.max(start);
    }
    let mut covered: Vec<(&str, u64)> = covered.into_iter().collect();
    covered.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let least = covered.first().map_or(0.0, |(_, most)| *most as f64 * NAMED_PART);
    covered.retain(|(_, bytes)| *bytes as f64 >= least);
    let label = |names: usize| {
        let shown: Vec<String> =
            covered.iter().take(names).map(|(name, _)| shortened(name)).collect();
        shown.join(", ") + if covered.len() > names { ", …" } else { "" }
    };
    let whole = label(NAMES_OF_A_LABEL);
    if whole.chars().count() > LABEL_LETTERS { label(1) } else { whole }
}

/// A name's end, which tells more of a file than its beginning.
fn shortened(name: &str) -> String {
    let letters = name.chars().count();
    if letters <= NAME_LETTERS {
        return name.to_owned();
    }
    let end: String = name.chars().skip(letters - NAME_LETTERS + 1).collect();
    format!("…{end}")
}

/// Neighbouring cells of one shade are one stroke, and all strokes of a shade one path, so that a
/// drawing is some ten kilobytes.
fn cells(out: &mut String, grid: &Grid, (cell_width, cell_height): (usize, usize)) {
    let mut paths: Vec<(String, (usize, usize))> = vec![Default::default(); LEVELS + 1];
    for (row, cells) in grid.cells.iter().enumerate() {
        let levels: Vec<usize> = cells.iter().map(|count| level(*count, grid.most)).collect();
        let mut column = 0;
        for run in levels.chunk_by(|a, b| a == b) {
            let (path, (at_column, at_row)) = &mut paths[run[0]];
            let to_right = (column as isize - *at_column as isize) * cell_width as isize;
            let down = (row - *at_row) * cell_height;
            let _ = write!(path, "m{to_right} {down}h{}", run.len() * cell_width);
            column += run.len();
            (*at_column, *at_row) = (column, row);
        }
    }
    let middle = TOP as f64 + cell_height as f64 / 2.0;
    let _ = writeln!(out, "<g fill=\"none\" stroke-width=\"{cell_height}\">");
    for (level, (path, _)) in
        paths.iter().enumerate().skip(1).filter(|(_, path)| !path.0.is_empty())
    {
        let _ = writeln!(out, "<path class=\"l{level}\" d=\"M{LEFT} {middle}{path}\"/>");
    }
    *out += "</g>\n";
}

/// Time from left to right, in five steps.
fn times(out: &mut String, seconds: f64, y: usize, width: usize) {
    const STEPS: usize = 5;
    for step in 0..=STEPS {
        let label = format!("{:.1} s", seconds * step as f64 / STEPS as f64);
        text(out, LEFT + width * step / STEPS, y, "middle", &label);
    }
}

/// What the shades mean: samples in a cell, whose size is `cell`.
fn scale(out: &mut String, most: f64, cell: &str, y: usize) {
    const BOX: usize = 60;
    text(out, LEFT + LEVELS * BOX + 12, y + 11, "start", cell);
    for level in 1..=LEVELS {
        let x = LEFT + (level - 1) * BOX;
        let _ = writeln!(
            out,
            "<rect class=\"l{level}\" x=\"{x}\" y=\"{y}\" width=\"{BOX}\" height=\"14\"/>"
        );
        // The inverse of `heat`.
        let least = most * (8.0 * ((level - 1) as f64 / LEVELS as f64 - 1.0)).exp2();
        let label = if level == 1 { "> 0".into() } else { format!("> {}", rounded(least)) };
        text(out, x + BOX / 2, y + 30, "middle", &label);
    }
}

/// A number with as many places as it takes to tell it from 0.
fn rounded(number: f64) -> String {
    let places = if number >= 10.0 { 0.0 } else { (-number.log10()).ceil().clamp(1.0, 9.0) };
    format!("{number:.0$}", places as usize)
}

/// Prints how much memory is met, in each stretch of time and in all.
pub fn working_set(arguments: &Shown) -> Result<u8> {
    let (recording, process, status) = read(arguments)?;
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
        json!({
            "process": process, "window_ms": window_ms, "mean_bytes": mean, "peak_bytes": peak,
            "windows": by_time, "needed": needed,
        })
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
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_trace::counts::{Header, Place, Window};

    #[test]
    fn a_number_is_told_from_zero() {
        let told = [0.0004, 0.031, 0.5, 1.0, 9.96, 250.0].map(rounded);
        assert_eq!(told, ["0.0004", "0.03", "0.5", "1.0", "10.0", "250"]);
    }

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
        let of = |start, end, name: &str| Mapping { process: 1, start, end, name: name.into() };
        let (first, second, behind) = (1000 << 21, 1001 << 21, (1000 + regions) << 21);
        let mut mappings = vec![of(first, second - 4096, "[heap]")];
        if regions > 1 {
            mappings.push(of(second, second + (1 << 20), "libsomething<1>.so.6 .bss"));
            mappings.push(of(second + (1 << 20), behind, ""));
        }
        let windows = (0..200).map(window).collect();
        Recording { header, windows, mappings, incomplete: None }
    }

    #[test]
    fn a_drawing_has_axes_a_scale_names_a_dark_side_and_is_high_and_small_enough() {
        for regions in [1, 31, 2000] {
            let recording = recording(regions);
            let svg = drawing(&recording);
            assert!(svg.len() <= SVG_BYTES, "{} bytes", svg.len());
            let mut parts = vec![
                "0x7d000000",
                "10.0 s",
                "samples in a cell: up to ",
                "prefers-color-scheme: dark",
                "a&lt;b",
            ];
            parts.extend(match regions {
                1 => vec![">[heap]<"],
                31 => vec![">[heap]<", "ing&lt;1>.so.6 .bss", ">anonymous<"],
                _ => vec![">anonymous, [heap], …<", ">anonymous<"],
            });
            for part in parts {
                assert!(svg.contains(part), "no {part}: {}", &svg[..3000]);
            }
            let height = svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap();
            assert!(height.parse::<usize>().unwrap() >= 300, "{height}");
        }
        // Of a program of 62 MB that goes from region to region, no column need be left out.
        let mut recording = recording(31);
        for (index, window) in recording.windows.iter_mut().enumerate() {
            window.counts.retain(|place, _| (place.region as usize + index / 8) % 31 < 12);
        }
        let fine = svg(&recording, &grid(&recording, SVG_ROWS, SVG_COLUMNS[0]), 4);
        assert_eq!(drawing(&recording), fine);
        // Without names, as older recordings are, there is no room left for them.
        recording.mappings.clear();
        let bare = drawing(&recording);
        assert!(!bare.contains("mapped") && bare.contains(" 1190 "), "{}", &bare[..200]);
    }

    #[test]
    fn strokes_are_where_the_cells_are() {
        let grid = Grid {
            rows: vec![(0, 0), (1, 1)],
            cells: vec![vec![0.0, 8.0, 8.0, 0.0], vec![8.0, 0.0, 0.0, 8.0]],
            most: 8.0,
        };
        let mut out = String::new();
        cells(&mut out, &grid, (4, 3));
        let path = "d=\"M190 61.5m4 0h8m-12 3h4m8 0h4\"";
        assert!(out.contains(path), "{out}");
    }

    #[test]
    fn addresses_are_called_by_what_covers_most_of_them() {
        let of = |start, end, name: &str| Mapping { process: 1, start, end, name: name.into() };
        let mappings = [
            of(0, 1000, "[heap]"),
            of(1000, 1005, "a"),
            of(2000, 2400, ""),
            of(2400, 3000, "a name of more letters than there is room for"),
            of(3000, 3300, "c"),
        ];
        let called = |start, end| name_of(&mappings, start, end);
        assert_eq!(called(0, 2000), "[heap]");
        assert_eq!(called(1000, 2000), "a");
        assert_eq!(called(1500, 1600), "");
        assert_eq!(called(2000, 3300), "…rs than there is room for, …");
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
