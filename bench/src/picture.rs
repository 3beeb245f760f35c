//! Named lines as an SVG in bench/results/.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

/// Colours that can be told apart by most eyes (Wong, Nature Methods 2011).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

const DARK: &str = "<style>@media (prefers-color-scheme: dark) { svg { filter: invert(1) hue-rotate(180deg) } }</style>";

/// Each value averaged with as many around it as make `width`.
pub fn smooth(values: &[f64], width: usize) -> impl Iterator<Item = f64> {
    (0..values.len()).map(move |i| {
        let part = &values[i.saturating_sub(width / 2)..(i + width / 2 + 1).min(values.len())];
        part.iter().sum::<f64>() / part.len() as f64
    })
}

/// A part of a picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Points of one line in a picture, each as (x, y).
pub type Points = Vec<(f64, f64)>;

/// What stands around the lines.
pub struct Frame<'a> {
    pub title: &'a str,
    /// What the axes show.
    pub x: &'a str,
    pub y: &'a str,
    /// Left and right end.
    pub across: Range<f64>,
    pub legend: SeriesLabelPosition,
}

/// Named lines; with `dots` each point is one.
pub fn panel(
    area: &Area<'_>,
    frame: Frame,
    dots: bool,
    curves: Vec<(&str, Points, RGBColor)>,
) -> anyhow::Result<()> {
    let most =
        curves.iter().flat_map(|(_, points, _)| points).map(|point| point.1).fold(0.0, f64::max)
            * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(frame.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(frame.across, 0.0..most.max(f64::MIN_POSITIVE))
        .map_err(wrong)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(frame.x).y_desc(frame.y).label_style(("sans-serif", 13)).light_line_style(WHITE);
    mesh.x_label_formatter(&|x| format!("{x:.0}"));
    let decimals = if most > 5.0 { 0 } else { 1 };
    let y_label = move |y: &f64| format!("{y:.decimals$}");
    mesh.y_label_formatter(&y_label);
    mesh.draw().map_err(wrong)?;
    for (name, points, colour) in curves {
        let line = chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))
            .map_err(wrong)?;
        line.label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        if dots {
            chart
                .draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))
                .map_err(wrong)?;
        }
    }
    let mut labels = chart.configure_series_labels();
    labels
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .position(frame.legend);
    labels.draw().map_err(wrong)
}

/// Makes bench/results/NAME.svg of this size, white, and lets `draw` draw on it.
pub fn make(
    name: &str,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results").join(format!("{name}.svg"));
    let root = SVGBackend::new(&path, size).into_drawing_area();
    root.fill(&WHITE).map_err(wrong)?;
    draw(&root)?;
    root.present().map_err(wrong)?;
    drop(root);
    // After the line of the root element: dark where the reader's screen is.
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.replacen('>', &format!(">\n{DARK}"), 1))?;
    println!("written: bench/results/{name}.svg");
    Ok(())
}

fn wrong(error: DrawingAreaErrorKind<std::io::Error>) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Draws named lines over time.
pub fn over_time(
    name: &str,
    title: &str,
    y: &str,
    curves: Vec<(&str, Points)>,
) -> anyhow::Result<()> {
    let right = curves
        .iter()
        .flat_map(|(_, points)| points)
        .map(|point| point.0)
        .fold(f64::MIN_POSITIVE, f64::max);
    let frame = Frame {
        title,
        x: "seconds",
        y,
        across: 0.0..right,
        legend: SeriesLabelPosition::LowerRight,
    };
    let coloured = curves
        .into_iter()
        .zip(COLOURS.into_iter().cycle())
        .map(|((name, points), colour)| (name, points, colour));
    make(name, (760, 420), |root| panel(root, frame, false, coloured.collect()))
}
