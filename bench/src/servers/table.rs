//! Tables of both sides beside each other: medians, spreads, ratios.

use super::measure::Sample;
use super::{Cell, Comparison};
use crate::results::median;
use serde_json::{Map, Value, json};

/// Reads a figure of a sample.
type Get = fn(&Sample) -> f64;

const FIGURES: [(&str, Get); 12] = [
    ("ops_per_s", |s| s.ops_per_s),
    ("p50_us", |s| s.p50_us),
    ("p99_us", |s| s.p99_us),
    ("p999_us", |s| s.p999_us),
    ("max_us", |s| s.max_us),
    ("cpu_us_per_op", |s| s.cpu_us_per_op),
    ("terrace_us_per_op", Sample::terrace_us),
    ("faults_per_op", |s| s.faults_per_op),
    ("demoted_per_op", |s| s.demoted_per_op),
    ("memory_mean_bytes", |s| s.memory_mean),
    ("memory_max_bytes", |s| s.memory_max),
    ("pss_and_swap_bytes", |s| s.pss),
];

/// The median of one figure.
pub fn middle(samples: &[Sample], get: Get) -> f64 {
    median(&samples.iter().map(get).collect::<Vec<_>>())
}

fn ends(samples: &[Sample], get: Get) -> (f64, f64) {
    samples.iter().map(get).fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
        (least.min(value), most.max(value))
    })
}

/// CPU time that a fault costs in all, µs: what an operation takes more than without a limit, per
/// fault.
fn us_per_fault(samples: &[Sample], unlimited: &[Sample]) -> Option<f64> {
    let faults = middle(samples, |s| s.faults_per_op);
    let more = middle(samples, |s| s.cpu_us_per_op) - middle(unlimited, |s| s.cpu_us_per_op);
    // Of a few faults in thousands of operations only noise would be told.
    (faults > 0.001).then(|| more / faults)
}

/// A cell for the results file: every sample, medians, spreads, ratios.
pub fn json(cell: &Cell) -> Value {
    let side = |samples: &[Sample]| {
        let mut figures: Map<String, Value> = Map::new();
        for (name, get) in FIGURES {
            let (least, most) = ends(samples, get);
            figures.insert(
                name.into(),
                json!({ "median": middle(samples, get), "min": least, "max": most }),
            );
        }
        figures.insert("us_per_fault".into(), json!(us_per_fault(samples, &cell.unlimited)));
        figures.insert("samples".into(), samples.iter().map(Sample::json).collect());
        Value::Object(figures)
    };
    let ratios: Map<String, Value> = FIGURES
        .iter()
        .map(|(name, get)| {
            ((*name).into(), json!(middle(&cell.terrace, *get) / middle(&cell.peer, *get)))
        })
        .collect();
    json!({
        "resident_percent": cell.resident, "get_percent": cell.load.get_percent,
        "connections": cell.load.connections,
        "depth": cell.load.depth, "unlimited": side(&cell.unlimited), "peer": side(&cell.peer),
        "terrace": side(&cell.terrace),
        "terrace_to_peer": ratios,
    })
}

/// A number with as many digits as tell something.
fn number(value: f64) -> String {
    match value {
        value if !value.is_finite() => "-".into(),
        value if value.abs() >= 100.0 => format!("{value:.0}"),
        value if value.abs() >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

fn row(name: &str, samples: &[Sample], unlimited: &[Sample]) {
    let get = |get: Get| number(middle(samples, get));
    let (least, most) = ends(samples, |s| s.ops_per_s);
    let spread = if samples.is_empty() {
        String::new()
    } else {
        format!("({}-{})", number(least), number(most))
    };
    println!(
        "  {name:18}{:>9} {:>17} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>8} {:>8} {:>8}",
        get(|s| s.ops_per_s),
        spread,
        get(|s| s.p50_us),
        get(|s| s.p99_us),
        get(|s| s.p999_us),
        get(|s| s.cpu_us_per_op),
        get(Sample::terrace_us),
        get(|s| s.faults_per_op),
        us_per_fault(samples, unlimited).map_or("-".into(), number),
        get(|s| s.memory_mean / 1048576.0),
        get(|s| s.memory_max / 1048576.0),
    );
}

fn ratios(cell: &Cell) {
    let ratio = |get: Get| match middle(&cell.terrace, get) / middle(&cell.peer, get) {
        ratio if ratio.is_finite() => format!("{ratio:.2}x"),
        _ => "-".into(),
    };
    let per_fault =
        us_per_fault(&cell.terrace, &cell.unlimited).zip(us_per_fault(&cell.peer, &cell.unlimited));
    println!(
        "  {:18}{:>9} {:>17} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>8} {:>8} {:>8}",
        "  ratio",
        ratio(|s| s.ops_per_s),
        "",
        ratio(|s| s.p50_us),
        ratio(|s| s.p99_us),
        ratio(|s| s.p999_us),
        ratio(|s| s.cpu_us_per_op),
        "",
        ratio(|s| s.faults_per_op),
        per_fault.map_or("-".into(), |(ours, theirs)| format!("{:.2}x", ours / theirs)),
        ratio(|s| s.memory_mean),
        ratio(|s| s.memory_max),
    );
}

/// Prints the table of a comparison.
pub fn print(comparison: &Comparison, repeats: usize) {
    let data = &comparison.data;
    println!(
        "\n{}, {} items of {} bytes, against {} ({}): medians (least-most) of {repeats} interleaved repeats; times in µs, memory in MiB",
        data.server.name(),
        data.items,
        data.value_bytes,
        comparison.against,
        comparison.compressor
    );
    println!(
        "  {:18}{:>9} {:>17} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>8} {:>8} {:>8}",
        "",
        "ops/s",
        "",
        "p50",
        "p99",
        "p99.9",
        "CPU/op",
        "ours",
        "faults/op",
        "CPU/flt",
        "memory",
        "highest"
    );
    let mut told = None;
    for cell in &comparison.cells {
        if told != Some(cell.resident) {
            told = Some(cell.resident);
            println!("at {} %", cell.resident);
        }
        let load = cell.load;
        println!(
            " {} % GETs, {} connections, depth {}",
            load.get_percent, load.connections, load.depth
        );
        row("unlimited", &cell.unlimited, &cell.unlimited);
        row(&comparison.against.to_string(), &cell.peer, &cell.unlimited);
        row("terrace", &cell.terrace, &cell.unlimited);
        ratios(cell);
    }
}
