//! Throughput and p99 against memory, as one picture: bench/results/servers-NAME-BYTES-PEER.svg.

use super::table::middle;
use super::{Cell, Comparison};
use crate::picture::{self, Area, Frame, Points};
use plotters::prelude::*;

const OURS: RGBColor = RGBColor(0, 90, 181);
const THEIRS: RGBColor = RGBColor(220, 50, 32);

/// Points of a curve: share of the unlimited server's memory, and a figure.
fn points(cells: &[&Cell], ours: bool, p99: bool) -> Points {
    let of = |cell: &&Cell| {
        let samples = if ours { &cell.terrace } else { &cell.peer };
        let share =
            middle(samples, |s| s.memory_mean) / middle(&cell.unlimited, |s| s.memory_mean) * 100.0;
        let value = if p99 {
            middle(samples, |s| s.p99_us) / 1e3
        } else {
            middle(samples, |s| s.ops_per_s) / 1e3
        };
        (share, value)
    };
    let mut all: Points = cells
        .iter()
        .map(of)
        .filter(|(share, value)| share.is_finite() && value.is_finite())
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

fn panel(
    area: &Area<'_>,
    title: &str,
    y: &str,
    legend: SeriesLabelPosition,
    curves: Vec<(&str, Points, RGBColor)>,
) -> anyhow::Result<()> {
    let shares = || curves.iter().flat_map(|(_, points, _)| points).map(|point| point.0);
    let across = shares().fold(100.0, f64::min) - 3.0..shares().fold(100.0, f64::max) + 2.0;
    picture::panel(
        area,
        Frame { title, x: "memory from outside, % of the unlimited server's", y, across, legend },
        true,
        curves,
    )
}

/// Draws the first load of a comparison.
pub fn draw(comparison: &Comparison) -> anyhow::Result<()> {
    let Some(load) = comparison.cells.first().map(|cell| cell.load) else { return Ok(()) };
    let cells: Vec<&Cell> = comparison
        .cells
        .iter()
        .filter(|cell| cell.load == load && !cell.peer.is_empty() && !cell.terrace.is_empty())
        .collect();
    if cells.is_empty() {
        return Ok(());
    }
    let data = &comparison.data;
    let against = comparison.against.to_string();
    let name = format!(
        "servers-{}-{}-{}",
        data.server.name(),
        data.value_bytes,
        against.replace(':', "-")
    );
    let title = format!(
        "{}: {} values of {} bytes, {} % GETs, {} connections, depth {}",
        data.server.name(),
        data.items,
        data.value_bytes,
        load.get_percent,
        load.connections,
        load.depth
    );
    let curves = |p99| {
        vec![
            ("Terrace", points(&cells, true, p99), OURS),
            (against.as_str(), points(&cells, false, p99), THEIRS),
        ]
    };
    picture::make(&name, (760, 720), |root| {
        let (upper, lower) = root.split_vertically(380);
        panel(
            &upper,
            &title,
            "thousand operations a second",
            SeriesLabelPosition::LowerRight,
            curves(false),
        )?;
        panel(
            &lower,
            "99th percentile of their times",
            "ms",
            SeriesLabelPosition::UpperRight,
            curves(true),
        )
    })
}
