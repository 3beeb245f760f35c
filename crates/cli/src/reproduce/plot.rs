//! Plots as SVG that follow the page's theme: text and axes have the colour of the text around
//! them, nothing has a background.

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;

/// A picture.
pub struct Plot {
    /// Name of the picture; its file is `NAME.svg`.
    pub name: String,
    /// Title above the picture.
    pub title: String,
    /// Labels of the axes: under the picture, and left of it.
    pub axes: [&'static str; 2],
    /// What is drawn.
    pub drawing: Drawing,
}

/// What is drawn.
pub enum Drawing {
    /// A line for each name; a point where it has one value.
    Lines(Vec<(String, Vec<(f64, f64)>)>),
    /// A point for each name.
    Points(Vec<(String, (f64, f64))>),
    /// Groups of bars: the groups' names, and for each series a value in each group.
    Bars(Vec<String>, Vec<(String, Vec<f64>)>),
    /// Small heatmaps: rows from the lowest address, columns of time, values from 0.
    Heat(Vec<(String, Vec<Vec<f64>>)>),
}

const WIDTH: u32 = 920;
const HEIGHT: u32 = 380;
/// Room for the names, pixels.
const LEGEND: u32 = 150;

/// Colours that are legible on white and on black.
const COLOURS: [RGBColor; 12] = [
    RGBColor(46, 125, 200),
    RGBColor(220, 100, 40),
    RGBColor(40, 150, 80),
    RGBColor(205, 60, 90),
    RGBColor(145, 95, 205),
    RGBColor(160, 120, 60),
    RGBColor(20, 150, 165),
    RGBColor(205, 85, 170),
    RGBColor(125, 130, 140),
    RGBColor(180, 150, 20),
    RGBColor(95, 115, 230),
    RGBColor(100, 160, 40),
];
const HEAT: RGBColor = RGBColor(40, 110, 190);
/// Colour in whose place the text's colour is put.
const INK: RGBColor = BLACK;
const INK_WRITTEN: &str = "\"#000000\"";

impl Plot {
    /// The picture, for a page: it takes its colour from there.
    pub fn svg(&self) -> Result<String> {
        let mut out = String::new();
        let size = match &self.drawing {
            Drawing::Heat(maps) => (WIDTH, 40 + 200 * maps.len().div_ceil(HEATS_A_ROW) as u32),
            _ => (WIDTH, HEIGHT),
        };
        {
            let area = SVGBackend::with_string(&mut out, size).into_drawing_area();
            area.draw(&Text::new(
                self.title.clone(),
                (12, 8),
                ("sans-serif", 17).into_font().color(&INK),
            ))
            .map_err(wrong)?;
            match &self.drawing {
                Drawing::Heat(maps) => heat(&area, maps)?,
                Drawing::Lines(lines) => self.lines(&area, lines)?,
                Drawing::Points(points) => self.points(&area, points)?,
                Drawing::Bars(groups, series) => self.bars(&area, groups, series)?,
            }
            area.present().map_err(wrong)?;
        }
        let out = out
            .replace(INK_WRITTEN, "\"currentColor\"")
            .replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
        // It shrinks with the window.
        let fixed = format!("<svg width=\"{}\" height=\"{}\"", size.0, size.1);
        Ok(out.replacen(&fixed, "<svg role=\"img\"", 1).replacen(
            "<svg role=\"img\"",
            &format!("<svg role=\"img\" aria-label=\"{}\"", escaped(&self.title)),
            1,
        ))
    }

    /// The picture as an SVG file of its own, with the colours that a page would give it.
    pub fn svg_file(&self) -> Result<String> {
        const STYLE: &str = "<style>svg{color:#1c2024;background:#fff}@media(prefers-color-scheme:dark){svg{color:#e4e7ea;background:#15181b}}</style>";
        let svg = self.svg()?;
        let (opening, rest) = svg.split_once('>').ok_or_else(|| anyhow!("no picture was drawn"))?;
        Ok(format!("{} xmlns=\"http://www.w3.org/2000/svg\">{STYLE}{rest}", opening.trim_end()))
    }

    fn lines(&self, area: &Area<'_>, lines: &[(String, Vec<(f64, f64)>)]) -> Result<()> {
        let points = || lines.iter().flat_map(|(_, points)| points);
        let mut chart =
            self.chart(area, points().map(|point| point.0), points().map(|point| point.1), None)?;
        for (number, (_, points)) in lines.iter().enumerate() {
            if let [point] = &points[..] {
                let point = Circle::new(*point, 5, colour(number).filled());
                chart.draw_series(std::iter::once(point)).map_err(wrong)?;
                continue;
            }
            chart
                .draw_series(LineSeries::new(
                    points.iter().copied(),
                    colour(number).stroke_width(2),
                ))
                .map_err(wrong)?;
        }
        legend(area, lines.iter().map(|(name, _)| name.as_str()))
    }

    fn points(&self, area: &Area<'_>, points: &[(String, (f64, f64))]) -> Result<()> {
        let mut chart = self.chart(
            area,
            points.iter().map(|(_, point)| point.0),
            points.iter().map(|(_, point)| point.1),
            None,
        )?;
        chart
            .draw_series(points.iter().enumerate().map(|(number, (_, point))| {
                Circle::new(*point, (10 - number as i32 / 2).max(4), colour(number).filled())
            }))
            .map_err(wrong)?;
        legend(area, points.iter().map(|(name, _)| name.as_str()))
    }

    fn bars(
        &self,
        area: &Area<'_>,
        groups: &[String],
        series: &[(String, Vec<f64>)],
    ) -> Result<()> {
        let values = series.iter().flat_map(|(_, values)| values.iter().copied());
        let mut chart =
            self.chart(area, [0.0, groups.len() as f64].into_iter(), values, Some(groups))?;
        let width = 0.84 / series.len() as f64;
        for (number, (_, values)) in series.iter().enumerate() {
            let bar = |(group, value): (usize, &f64)| {
                let left = group as f64 + 0.08 + number as f64 * width;
                Rectangle::new(
                    [(left, 0.0), (left + width * 0.92, *value)],
                    colour(number).filled(),
                )
            };
            chart.draw_series(values.iter().enumerate().map(bar)).map_err(wrong)?;
        }
        legend(area, series.iter().map(|(name, _)| name.as_str()))
    }

    /// A chart with axes from 0, or below.
    fn chart<'a, 'b>(
        &self,
        area: &'a Area<'b>,
        xs: impl Iterator<Item = f64>,
        ys: impl Iterator<Item = f64>,
        groups: Option<&[String]>,
    ) -> Result<
        ChartContext<
            'a,
            SVGBackend<'b>,
            Cartesian2d<Labelled, plotters::coord::types::RangedCoordf64>,
        >,
    > {
        let range = |values: &mut dyn Iterator<Item = f64>| {
            let (low, high) = values
                .filter(|value| value.is_finite())
                .fold((0.0f64, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
            low..if high > low { high } else { low + 1.0 }
        };
        let (x, y) = (range(&mut { xs }), range(&mut { ys }));
        let top = y.end + (y.end - y.start) * 0.04;
        let x = Labelled {
            range: if groups.is_some() { x.start..x.end } else { x.start..x.end * 1.02 },
            groups: groups.map(<[String]>::to_vec),
        };
        let mut chart = ChartBuilder::on(area)
            .margin_top(36)
            .margin_left(8)
            .margin_right(LEGEND)
            .margin_bottom(6)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y.start..top)
            .map_err(wrong)?;
        let text = |size: u32| ("sans-serif", size).into_font().color(&INK);
        let mut mesh = chart.configure_mesh();
        mesh.axis_style(INK.stroke_width(1))
            .bold_line_style(RGBColor(128, 128, 128).mix(0.25))
            .light_line_style(TRANSPARENT)
            .label_style(text(12))
            .axis_desc_style(text(13))
            .x_desc(self.axes[0])
            .y_desc(self.axes[1])
            .x_labels(groups.map_or(10, <[String]>::len))
            .y_label_formatter(&|value| label(*value));
        if groups.is_some() {
            mesh.disable_x_mesh();
        }
        mesh.draw().map_err(wrong)?;
        Ok(chart)
    }
}

type Area<'b> = DrawingArea<SVGBackend<'b>, plotters::coord::Shift>;

fn wrong(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn legend<'n>(area: &Area<'_>, names: impl Iterator<Item = &'n str>) -> Result<()> {
    let left = (WIDTH - LEGEND) as i32 + 12;
    for (number, name) in names.enumerate() {
        let y = 44 + number as i32 * 20;
        area.draw(&Rectangle::new([(left, y), (left + 12, y + 12)], colour(number).filled()))
            .map_err(wrong)?;
        area.draw(&Text::new(
            name.to_owned(),
            (left + 18, y),
            ("sans-serif", 13).into_font().color(&INK),
        ))
        .map_err(wrong)?;
    }
    Ok(())
}

const HEATS_A_ROW: usize = 5;
const SHADES: f64 = 7.0;

fn heat(area: &Area<'_>, maps: &[(String, Vec<Vec<f64>>)]) -> Result<()> {
    for (number, (name, rows)) in maps.iter().enumerate() {
        let (left, top) =
            (12 + 181 * (number % HEATS_A_ROW) as i32, 40 + 200 * (number / HEATS_A_ROW) as i32);
        let (width, height) = (170.0, 160.0);
        let (columns, lines) = (rows.first().map_or(1, Vec::len), rows.len());
        area.draw(&Text::new(
            name.clone(),
            (left, top),
            ("sans-serif", 13).into_font().color(&INK),
        ))
        .map_err(wrong)?;
        let top = top + 18;
        let most = rows.iter().flatten().copied().fold(0.0, f64::max);
        let at = |column: usize, line: usize| {
            (
                left + (column as f64 / columns as f64 * width) as i32,
                top + ((lines - line) as f64 / lines as f64 * height) as i32,
            )
        };
        for (line, row) in rows.iter().enumerate() {
            // Half as many accesses are a shade less.
            let shade = |value: f64| {
                if value > 0.0 {
                    (SHADES + (value / most).log2()).max(0.0).round() as u32
                } else {
                    0
                }
            };
            let mut from = 0;
            while from < columns {
                let value = shade(row[from]);
                let to =
                    (from..columns).find(|column| shade(row[*column]) != value).unwrap_or(columns);
                if value > 0 {
                    let ((x, bottom), (x_end, y)) = (at(from, line), at(to, line + 1));
                    area.draw(&Rectangle::new(
                        [(x, y), (x_end, bottom)],
                        HEAT.mix(f64::from(value) / SHADES).filled(),
                    ))
                    .map_err(wrong)?;
                }
                from = to;
            }
        }
        let frame = [(left, top), (left + width as i32, top + height as i32)];
        area.draw(&Rectangle::new(frame, INK.mix(0.4))).map_err(wrong)?;
    }
    Ok(())
}

/// A text inside of HTML or SVG.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// An axis of numbers, or of names each of which stands for a whole number on.
struct Labelled {
    range: Range<f64>,
    groups: Option<Vec<String>>,
}

impl Ranged for Labelled {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match &self.groups {
            Some(groups) => (0..groups.len()).map(|group| group as f64 + 0.5).collect(),
            None => {
                let numbers: plotters::coord::types::RangedCoordf64 = self.range.clone().into();
                numbers.key_points(hint)
            }
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Labelled {
    fn format_ext(&self, value: &f64) -> String {
        match &self.groups {
            Some(groups) => groups.get(*value as usize).cloned().unwrap_or_default(),
            None => label(*value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_colours_of_its_page() {
        let lines = vec![("a <b>".to_owned(), vec![(0.0, 1.0), (2.0, 3.0)])];
        let plot = Plot {
            name: "x".into(),
            title: "A & B".into(),
            axes: ["x", "y"],
            drawing: Drawing::Lines(lines),
        };
        let svg = plot.svg().unwrap();
        assert!(
            svg.contains("currentColor") && !svg.contains(INK_WRITTEN) && !svg.contains("http"),
            "{svg}"
        );
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("aria-label=\"A &amp; B\""));
        assert!(plot.svg_file().unwrap().contains("xmlns=\"http://www.w3.org/2000/svg\"><style>"));
    }

    #[test]
    fn equal_cells_in_a_row_are_one() {
        let plot = |rows| Plot {
            name: "x".into(),
            title: "x".into(),
            axes: ["", ""],
            drawing: Drawing::Heat(vec![("m".into(), rows)]),
        };
        let rectangles = |rows| plot(rows).svg().unwrap().matches("<rect").count();
        // And the frame.
        assert_eq!(rectangles(vec![vec![1.0, 1.0, 0.0, 1.0], vec![0.0; 4]]), 3);
        assert_eq!(rectangles(vec![vec![1.0, 1e-3]]), 2);
    }
}
