//! Throughput and p99 against memory, as one picture: bench/results/servers-NAME-BYTES-PEER.svg.

use super::table::middle;
use super::{Cell, Comparison};
use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const OURS: RGBColor = RGBColor(0, 90, 181);
const THEIRS: RGBColor = RGBColor(220, 50, 32);
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Share of the unlimited server's memory, and a figure.
type Points = Vec<(f64, f64)>;

fn points(cells: &[&Cell], ours: bool, p99: bool) -> Points {
    let of = |cell: &&Cell| {
        let samples = if ours { &cell.terrace } else { &cell.peer };
        let share = middle(samples, |s| s.memory_mean) / middle(&cell.unlimited, |s| s.memory_mean) * 100.0;
        let value = if p99 { middle(samples, |s| s.p99_us) / 1e3 } else { middle(samples, |s| s.ops_per_s) / 1e3 };
        (share, value)
    };
    let mut all: Points = cells.iter().map(of).filter(|(share, value)| share.is_finite() && value.is_finite()).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

fn panel(
    area: &Area<'_>,
    title: &str,
    unit: &str,
    legend: SeriesLabelPosition,
    curves: [(&str, Points, RGBColor); 2],
) -> anyhow::Result<()> {
    let every = || curves.iter().flat_map(|(_, points, _)| points);
    let least = every().map(|point| point.0).fold(100.0, f64::min) - 3.0;
    let right = every().map(|point| point.0).fold(100.0, f64::max) + 2.0;
    let most = every().map(|point| point.1).fold(0.0, f64::max) * 1.1;
    let wrong = |error: DrawingAreaErrorKind<_>| anyhow!("cannot draw: {error}");
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(least..right, 0.0..most.max(f64::MIN_POSITIVE))
        .map_err(wrong)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("memory from outside, % of the unlimited server's").y_desc(unit).label_style(("sans-serif", 13)).light_line_style(WHITE);
    mesh.x_label_formatter(&|share| format!("{share:.0}"));
    mesh.draw().map_err(wrong)?;
    for (name, points, colour) in curves {
        let line = chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2))).map_err(wrong)?;
        line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled()))).map_err(wrong)?;
    }
    let mut labels = chart.configure_series_labels();
    labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).label_font(("sans-serif", 13)).position(legend);
    labels.draw().map_err(wrong)
}

/// Draws the first load of a comparison.
pub fn draw(comparison: &Comparison) -> anyhow::Result<()> {
    let Some(load) = comparison.cells.first().map(|cell| cell.load) else { return Ok(()) };
    let cells: Vec<&Cell> =
        comparison.cells.iter().filter(|cell| cell.load == load && !cell.peer.is_empty() && !cell.terrace.is_empty()).collect();
    if cells.is_empty() {
        return Ok(());
    }
    let data = &comparison.data;
    let against = comparison.against.to_string();
    let name = format!("servers-{}-{}-{}.svg", data.server.name(), data.value_bytes, against.replace(':', "-"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results").join(&name);
    let root = SVGBackend::new(&path, (760, 720)).into_drawing_area();
    let wrong = |error: DrawingAreaErrorKind<_>| anyhow!("cannot draw: {error}");
    root.fill(&WHITE).map_err(wrong)?;
    let (upper, lower) = root.split_vertically(380);
    let title = format!(
        "{}: {} values of {} bytes, {} % GETs, {} connections, depth {}",
        data.server.name(),
        data.items,
        data.value_bytes,
        load.get_percent,
        load.connections,
        load.depth
    );
    let curves = |p99| [("Terrace", points(&cells, true, p99), OURS), (against.as_str(), points(&cells, false, p99), THEIRS)];
    panel(&upper, &title, "thousand operations a second", SeriesLabelPosition::LowerRight, curves(false))?;
    panel(&lower, "99th percentile of their times", "ms", SeriesLabelPosition::UpperRight, curves(true))?;
    root.present().map_err(wrong)?;
    println!("written: bench/results/{name}");
    Ok(())
}
