//! A plan for people: in a terminal, and as a picture.

use super::choice::{COLD_S, Plan, Point, WARM_S};
use crate::quantity::{bytes, share, short_time};
use crate::reproduce::plot::{Drawing, Plot};
use std::fmt::Write as _;

/// Characters for a cost of 100 %.
const BAR: f64 = 24.0;
/// Slowdowns beyond this are not drawn: they are of no use, and the others would not be seen.
const DRAWN_MOST: f64 = 1.0;

pub fn text(plan: &Plan) -> String {
    let mut text = String::new();
    let what = match (plan.command.is_empty(), plan.pid) {
        (false, None) => plan.command.join(" "),
        (false, Some(pid)) => format!("{} ({pid})", plan.command.join(" ")),
        (true, Some(pid)) => format!("process {pid}"),
        (true, None) => "a program".into(),
    };
    let _ = writeln!(
        text,
        "{what}: {} of data at most, observed for {:.0} s",
        bytes(plan.data_bytes),
        plan.observed_s
    );
    heat_classes(&mut text, plan);
    compressibility(&mut text, plan);
    if let Some(here) = &plan.here {
        let _ = writeln!(text, "you are here: {}", place(here, plan));
    }
    curves(&mut text, plan);
    sets(&mut text, plan);
    settings(&mut text, plan);
    for line in &plan.untold {
        let _ = writeln!(text, "  note: {line}");
    }
    if !plan.curves.is_empty() {
        let _ = writeln!(
            text,
            "estimates: time lost = expected faults x {:.0} us (as other programs lost) and decompression, under the same load; cost: prices of {}",
            plan.fault_us, plan.prices_of
        );
    }
    text
}

fn heat_classes(text: &mut String, plan: &Plan) {
    let of = |part: f64| {
        format!("{:>5} {:>8}", share(part), bytes((part * plan.data_bytes as f64) as u64))
    };
    if let (Some(hot), Some(warm)) = (plan.hot, plan.warm) {
        let _ = writeln!(text, "  hot   {}  touched within {WARM_S} s", of(hot));
        let until = match plan.cold {
            Some(_) => format!("idle for {WARM_S} to {COLD_S} s"),
            None => format!("idle for {WARM_S} s or more"),
        };
        let _ = writeln!(text, "  warm  {}  {until}", of(warm));
    }
    if let Some(cold) = plan.cold {
        let _ = writeln!(text, "  cold  {}  idle for {COLD_S} s or more", of(cold));
    }
    let times: Vec<String> = plan
        .idle
        .iter()
        .map(|idle| format!("{} for {} s", share(idle.fraction), idle.seconds))
        .collect();
    if !times.is_empty() {
        let _ = writeln!(text, "  not touched: {}", times.join(", "));
    }
}

fn compressibility(text: &mut String, plan: &Plan) {
    for tier in &plan.compressed {
        let quarters: Vec<String> = tier.by_quarter.iter().map(|part| share(*part)).collect();
        let mut line = format!("  {:<9} leaves {:>4} of a page", tier.tier, share(tier.fraction));
        if !quarters.is_empty() {
            let _ = write!(line, ", by quarters of the pages {}", quarters.join(" "));
        }
        if let (Some(store), Some(restore)) = (tier.store_ns, tier.restore_ns) {
            let _ = write!(line, "; {} there, {} back", short_time(store), short_time(restore));
        }
        let _ = writeln!(text, "{line}");
    }
}

fn lost(point: &Point) -> String {
    format!("{}{}", if point.at_least { ">" } else { "" }, share(point.slowdown))
}

fn usd(point: &Point) -> String {
    point.usd.map_or_else(String::new, |usd| format!(", ${usd:.2}"))
}

fn place(point: &Point, plan: &Plan) -> String {
    format!(
        "{} of {} in DRAM, {} of the cost of all in DRAM{}, {} of the time lost",
        bytes(point.dram_bytes),
        bytes(plan.data_bytes),
        share(point.cost),
        usd(point),
        lost(point)
    )
}

/// A line for each knob: cost and slowdown with each set of tiers, and a bar of the first one's.
fn curves(text: &mut String, plan: &Plan) {
    let Some(first) = plan.curves.first() else { return };
    let width = |tiers: &str| tiers.chars().count().max(14);
    let _ = write!(text, "cost and time lost, by the knob (1 is all speed, 0 all saving)\n  knob");
    for curve in &plan.curves {
        let _ = write!(text, "  {:<w$}", curve.tiers, w = width(&curve.tiers));
    }
    text.push('\n');
    let here = plan.here.as_ref().and_then(|here| {
        let far = |point: &Point| (point.cost - here.cost).abs();
        let nearest = |a: &&Point, b: &&Point| far(a).total_cmp(&far(b));
        first.points.iter().min_by(nearest)?.alpha
    });
    for (index, point) in first.points.iter().enumerate() {
        let _ = write!(text, "  {:>4.1}", point.alpha.unwrap_or_default());
        for curve in &plan.curves {
            let point = &curve.points[index];
            let cell = format!("{:>5} {:>8}", share(point.cost), lost(point));
            let _ = write!(text, "  {cell:<w$}", w = width(&curve.tiers));
        }
        let bar = "#".repeat((point.cost * BAR).round() as usize);
        let mark = if here.is_some() && point.alpha == here { "  <- you are here" } else { "" };
        let _ = writeln!(text, "  {bar}{mark}");
    }
}

fn sets(text: &mut String, plan: &Plan) {
    if plan.sets.is_empty() {
        return;
    }
    let _ = writeln!(text, "best sets of tiers where at most {} is lost", share(plan.slowdown));
    for (number, set) in plan.sets.iter().enumerate() {
        let _ = writeln!(
            text,
            "  {}: {} costs {}; the last one adds {}",
            number + 1,
            set.tiers,
            share(set.cost),
            share(set.adds.max(0.0))
        );
    }
    if let Some(enough) = &plan.enough {
        let _ = writeln!(text, "  {enough}");
    }
}

fn settings(text: &mut String, plan: &Plan) {
    for setting in &plan.settings {
        let point = &setting.point;
        let _ = writeln!(
            text,
            "{}: {} of DRAM, {} of the cost{}, {} of the time lost",
            setting.name,
            bytes(point.dram_bytes),
            share(point.cost),
            usd(point),
            lost(point)
        );
        if let Some(command) = &setting.command {
            let _ = writeln!(text, "  {command}");
        }
    }
    if let Some(attach) = &plan.attach {
        let _ = writeln!(
            text,
            "without starting it again, for at most {}:\n  {attach}",
            share(plan.slowdown)
        );
    }
    if plan.settings.iter().any(|setting| setting.point.usd.is_none()) {
        text.push_str("  no dollars: say what a GiB of DRAM costs, as --price usd=4.5\n");
    }
}

/// What is saved against what is lost.
pub fn picture(plan: &Plan) -> Plot {
    let percent = |point: &Point| (point.slowdown * 100.0, (1.0 - point.cost) * 100.0);
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = plan
        .curves
        .iter()
        .map(|curve| {
            let drawn = curve.points.iter().filter(|point| point.slowdown <= DRAWN_MOST);
            (curve.tiers.clone(), drawn.map(percent).collect())
        })
        .collect();
    lines.extend(plan.here.iter().map(|here| ("you are here".into(), vec![percent(here)])));
    let of_settings = plan.settings.iter().filter(|setting| setting.point.slowdown <= DRAWN_MOST);
    lines.extend(of_settings.map(|of| (of.name.to_owned(), vec![percent(&of.point)])));
    Plot {
        name: "plan".into(),
        title: "Savings against slowdown: estimates".into(),
        axes: ["time lost, %", "saved, % of the cost of all in DRAM"],
        drawing: Drawing::Lines(lines),
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::samples::planned;
    use super::*;

    #[test]
    fn a_plan_reads_from_what_is_to_what_to_do() {
        let told = text(&planned(&["--choose-tiers", "2"]));
        for part in [
            "app -c print('a b'): 1.0G of data at most, observed for 400 s",
            "  hot     55%   563.2M  touched within 10 s",
            "  cold    35%   358.4M  idle for 60 s or more",
            "by quarters of the pages 20% 40% 70% 95%; 6.0us there, 2.0us back",
            "you are here: 1.0G of 1.0G in DRAM, 100% of the cost of all in DRAM, 0.0% of the time lost",
            "<- you are here",
            "best sets of tiers where at most 2.0% is lost",
            "conservative: ",
            "  terrace run --knob 0.9 --tiers dram,",
            "--price usd=4.5",
            "estimates: time lost = expected faults x 45 us",
        ] {
            assert!(told.contains(part), "{part:?} is not in {told}");
        }
        assert!(told.lines().all(|line| !line.ends_with(' ')), "{told}");
    }

    #[test]
    fn the_picture_shows_where_one_is() {
        let svg = picture(&planned(&[])).svg_file().unwrap();
        assert!(svg.contains("you are here") && svg.contains("prefers-color-scheme:dark"));
        assert!(svg.contains("<circle"), "a place is a point");
    }
}
