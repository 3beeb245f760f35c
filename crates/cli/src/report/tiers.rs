//! `terrace report tiers`: what the placement model of a run recommended, beside where pages were,
//! window by window and region by region; faults of each tier; and what all of it cost.

use crate::cost::tco::Tco;
use crate::quantity::{bytes, share};
use crate::report::args::TiersArguments;
use crate::report::heatmap::columns;
use crate::reproduce::plot::{Drawing, Plot};
use crate::run_report::placements::{Placed, Placement, WindowSeen};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;

/// What a row of the terminal's picture has beside its windows, and its rows at most.
const MARGIN: usize = 2;
const ROWS: usize = 24;
/// Rows of the pictures in the SVG file, at most.
const SVG_ROWS: usize = 80;
/// Lines of the table of windows: the first and the last ones.
const LINES: usize = 24;
const PAGE: u64 = 4096;

/// What is needed of a report.
#[derive(Deserialize)]
struct Reported {
    placement: Option<Placement>,
    tco: Option<Tco>,
}

/// Runs the subcommand; the result is the exit status.
pub fn run(arguments: &TiersArguments) -> Result<u8> {
    let name = arguments.file.display();
    // What is no report is not read to its end, which it may not have.
    let file = std::fs::File::open(&arguments.file).with_context(|| name.to_string())?;
    let reported: Reported = serde_json::from_reader(std::io::BufReader::new(file))
        .with_context(|| format!("{name} is no report of `terrace run --report`"))?;
    let Some(placement) = reported.placement else {
        bail!(
            "{name}: no model placed regions in that run; `terrace run --knob 0.5 --report FILE.json -- CMD` has one do so"
        );
    };
    let placed = choose(&placement, arguments.process)?;
    if let Some(svg) = &arguments.svg {
        std::fs::write(svg, picture(&placement, placed)?)
            .with_context(|| format!("{}: cannot be written", svg.display()))?;
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let all = json!({
            "model": placement.model, "window_s": placement.window_s,
            "mean_cost": placement.mean_cost, "tco": reported.tco, "process": placed,
        });
        writeln!(out, "{all:#}")?;
    } else {
        write!(out, "{}{}", shown(&placement, placed), costs(reported.tco.as_ref()))?;
    }
    Ok(0)
}

/// The process that is asked for, or the one with the most pages.
fn choose(placement: &Placement, asked: Option<u32>) -> Result<&Placed> {
    let pages = |placed: &&Placed| placed.windows.iter().map(WindowSeen::pages).max();
    let found = match asked {
        Some(pid) => placement.processes.iter().find(|placed| placed.pid == pid),
        None => placement.processes.iter().max_by_key(pages),
    };
    let Some(placed) = found else {
        let pids: Vec<String> =
            placement.processes.iter().map(|placed| placed.pid.to_string()).collect();
        match asked {
            Some(pid) => {
                bail!("no plans of process {pid} are in it; there are: {}", pids.join(", "))
            }
            None => bail!(
                "no window ended in that run: let it run for longer than {}s, or say a shorter --window",
                placement.window_s
            ),
        }
    };
    Ok(placed)
}

/// What the whole run cost beside all in DRAM, tier by tier.
fn costs(tco: Option<&Tco>) -> String {
    let Some(tco) = tco else { return String::new() };
    let tiers: Vec<String> =
        tco.tiers.iter().map(|tier| format!("{} {}", tier.tier, share(tier.cost))).collect();
    format!(
        "\nthe main process in all of the run, overhead included: {} of all in DRAM ({}), at the prices of {}\n",
        share(tco.relative),
        tiers.join(", "),
        tco.prices_of
    )
}

fn mib(pages: u32) -> String {
    bytes(u64::from(pages) * PAGE)
}

fn shown(placement: &Placement, placed: &Placed) -> String {
    let mut text = String::new();
    let mean = placement.mean_cost.map_or_else(String::new, |mean| {
        format!("; costs {} of all in DRAM on average", share(mean))
    });
    let _ = writeln!(
        text,
        "{}, process {}, {} windows, of {}s at first{mean}",
        placement.model,
        placed.pid,
        placed.windows.len(),
        placement.window_s
    );
    table(&mut text, placed);
    if placed.lost_rows > 0 {
        let _ = writeln!(text, "{} rows of regions are missing", placed.lost_rows);
    }
    let rows = |of: fn(&Placed) -> Vec<Vec<Option<u8>>>| picked(&of(placed), ROWS);
    for (title, rows) in [("recommended", rows(recommended)), ("actual", rows(actual))] {
        let _ = writeln!(
            text,
            "\n{title} tier ({}), lowest address first, time to the right:",
            legend(placed)
        );
        for row in rows {
            let cells = row[row.len().saturating_sub(columns(MARGIN))..].iter();
            let line: String =
                cells.map(|tier| tier.map_or(' ', |tier| char::from(b'0' + tier.min(9)))).collect();
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn legend(placed: &Placed) -> String {
    let names = placed.tiers.iter().enumerate();
    names.map(|(number, name)| format!("{number} {name}")).collect::<Vec<_>>().join(", ")
}

/// A line for each window: what it cost, the pressure, and each tier's pages, those recommended,
/// leaks, faults.
fn table(text: &mut String, placed: &Placed) {
    let _ = write!(
        text,
        "{:>8} {:>5} {:>6} {:>6} {:>8}",
        "second", "knob", "cost", "bound", "pressure"
    );
    for name in &placed.tiers {
        let _ = write!(text, "  | {:<33}", format!("{name}: there/planned/leak/faults"));
    }
    text.push('\n');
    let all = placed.windows.len();
    for (index, window) in placed.windows.iter().enumerate() {
        if all > LINES && (LINES / 2..all - LINES / 2).contains(&index) {
            if index == LINES / 2 {
                let _ = writeln!(text, "{:>8}", "…");
            }
            continue;
        }
        let bound = window.bound.map_or_else(|| "-".into(), |bound| format!("{bound:.3}"));
        let _ = write!(
            text,
            "{:>8.1} {:>5.2} {:>6.3} {bound:>6} {:>8}",
            window.at_s, window.knob, window.cost, window.pressure
        );
        for tier in &window.tiers {
            let cells = [tier.actual_pages, tier.recommended_pages, tier.leaked_pages].map(mib);
            let _ = write!(
                text,
                "  | {:>8} {:>8} {:>8} {:>6}",
                cells[0], cells[1], cells[2], tier.faults
            );
        }
        text.push('\n');
    }
}

fn recommended(placed: &Placed) -> Vec<Vec<Option<u8>>> {
    grid(placed, |region| &region.recommended)
}

fn actual(placed: &Placed) -> Vec<Vec<Option<u8>>> {
    grid(placed, |region| &region.actual)
}

/// A row for each region, a column for each window; `None` where it was not there yet.
fn grid(
    placed: &Placed,
    of: fn(&crate::run_report::placements::RegionSeen) -> &Vec<u8>,
) -> Vec<Vec<Option<u8>>> {
    let windows = placed.windows.last().map_or(0, |last| last.number as usize);
    let row = |region: &crate::run_report::placements::RegionSeen| {
        let before = (region.first_window as usize).saturating_sub(1).min(windows);
        let mut row = vec![None; before];
        row.extend(of(region).iter().map(|tier| Some(*tier)));
        row.resize(windows, None);
        row
    };
    placed.regions.iter().map(row).collect()
}

/// At most `most` rows: neighbours share one, in which the tier of most of them stands.
fn picked(rows: &[Vec<Option<u8>>], most: usize) -> Vec<Vec<Option<u8>>> {
    let together = rows.len().div_ceil(most).max(1);
    let one = |rows: &[Vec<Option<u8>>]| {
        (0..rows[0].len())
            .map(|column| {
                let tiers: Vec<u8> = rows.iter().filter_map(|row| row[column]).collect();
                let count = |tier: &u8| tiers.iter().filter(|other| *other == tier).count();
                tiers.iter().copied().max_by_key(count)
            })
            .collect()
    };
    rows.chunks(together).map(one).collect()
}

/// The pictures, one below the other, as one file.
fn picture(placement: &Placement, placed: &Placed) -> Result<String> {
    const WIDTH: u32 = 920;
    let plots = plots(placement, placed);
    let mut inner = String::new();
    let mut height = 0;
    for plot in &plots {
        let its = if matches!(plot.drawing, Drawing::Heat(_)) { 240 } else { 380 };
        let place = format!("<svg y=\"{height}\" width=\"{WIDTH}\" height=\"{its}\" role=\"img\"");
        inner += &plot.svg()?.replacen("<svg role=\"img\"", &place, 1);
        height += its;
    }
    Ok(format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\"><style>svg{{color:#1c2024;background:#fff}}@media(prefers-color-scheme:dark){{svg{{color:#e4e7ea;background:#15181b}}}}</style>{inner}</svg>\n"
    ))
}

fn plots(placement: &Placement, placed: &Placed) -> Vec<Plot> {
    let over = |value: &dyn Fn(&WindowSeen) -> Option<f64>| -> Vec<(f64, f64)> {
        placed.windows.iter().filter_map(|seen| Some((seen.at_s, value(seen)?))).collect()
    };
    let tier = |number: usize, value: fn(&crate::run_report::placements::TierSeen) -> f64| {
        over(&|seen: &WindowSeen| seen.tiers.get(number).map(value))
    };
    let tiers = || placed.tiers.iter().enumerate();
    let where_pages_are: Vec<_> = tiers()
        .flat_map(|(number, name)| {
            [
                (name.clone(), tier(number, |tier| f64::from(tier.actual_pages) / 256.0)),
                (
                    format!("{name}, planned"),
                    tier(number, |tier| f64::from(tier.recommended_pages) / 256.0),
                ),
            ]
        })
        .collect();
    let faults: Vec<_> = tiers()
        .skip(1)
        .map(|(number, name)| (name.clone(), tier(number, |tier| f64::from(tier.faults))))
        .chain(tiers().skip(1).map(|(number, name)| {
            (format!("{name}, leaked pages"), tier(number, |tier| f64::from(tier.leaked_pages)))
        }))
        .collect();
    let cost = vec![
        ("all in DRAM".to_owned(), over(&|_| Some(1.0))),
        (placement.model.clone(), over(&|seen| Some(seen.cost))),
        ("its bound".to_owned(), over(&|seen| seen.bound)),
    ];
    let maps = [("recommended", recommended(placed)), ("actual", actual(placed))]
        .map(|(name, rows)| (name.to_owned(), shades(&picked(&rows, SVG_ROWS), placed.tiers.len())))
        .to_vec();
    let plot = |name: &str, title: String, y, drawing| Plot {
        name: name.into(),
        title,
        axes: ["time, s", y],
        drawing,
    };
    vec![
        plot(
            "pages",
            "Where pages are, and were to be".into(),
            "MiB",
            Drawing::Lines(where_pages_are),
        ),
        plot("cost", "Cost beside all in DRAM".into(), "cost", Drawing::Lines(cost)),
        plot("faults", "Faults and leaks in a window".into(), "pages", Drawing::Lines(faults)),
        plot(
            "pressure",
            "How urgently room was needed in a window, from 0 to 12".into(),
            "pressure",
            Drawing::Lines(vec![("pressure".into(), over(&|seen| Some(f64::from(seen.pressure))))]),
        ),
        plot(
            "maps",
            "Tier of each region, the lowest address below: the darker, the slower".into(),
            "",
            Drawing::Heat(maps),
        ),
    ]
}

/// Values that are drawn in shades of even steps, DRAM as none.
fn shades(rows: &[Vec<Option<u8>>], tiers: usize) -> Vec<Vec<f64>> {
    let step = 5.0 / (tiers.saturating_sub(2).max(1)) as f64;
    let value = |tier: &Option<u8>| match tier {
        None | Some(0) => 0.0,
        Some(tier) => (step * f64::from(*tier)).exp2(),
    };
    rows.iter().map(|row| row.iter().map(value).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_report::placements::samples;

    fn placement() -> Placement {
        Placement {
            model: "terrace-cost".into(),
            window_s: 5.0,
            mean_cost: Some(0.878),
            processes: vec![samples::placed()],
        }
    }

    #[test]
    fn planned_and_actual_stand_side_by_side() {
        let text = shown(&placement(), &samples::placed());
        for part in [
            "terrace-cost, process 7, 2 windows, of 5s at first; costs 88% of all in DRAM on average",
            "lz4: there/planned/leak/faults",
            "    15.0  0.30  0.756  0.781        6",
            "recommended tier (0 dram, 1 lz4), lowest address first, time to the right:\n  00\n  11\n",
            "actual tier (0 dram, 1 lz4), lowest address first, time to the right:\n  00\n  01\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn pictures_follow_the_theme() {
        let svg = picture(&placement(), &samples::placed()).unwrap();
        assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("lz4, planned"));
        assert_eq!(svg.matches("<svg").count(), 6);
        assert_eq!(svg.matches("</svg>").count(), 6);
    }

    #[test]
    fn a_process_is_chosen_or_it_is_said_which_there_are() {
        let placement = placement();
        assert_eq!(choose(&placement, None).unwrap().pid, 7);
        let error = choose(&placement, Some(8)).unwrap_err().to_string();
        assert!(error.contains("process 8") && error.ends_with("there are: 7"), "{error}");
        let none = Placement { processes: Vec::new(), ..placement };
        assert!(choose(&none, None).unwrap_err().to_string().contains("--window"));
    }

    #[test]
    fn neighbours_share_a_row() {
        let rows = vec![vec![Some(1), None], vec![Some(1), Some(2)], vec![Some(0), Some(2)]];
        assert_eq!(picked(&rows, 1), [[Some(1), Some(2)]]);
        assert_eq!(picked(&rows, 3), rows);
    }
}
