//! Tables of ratios to one side, one for each group, and what comes of all.

use super::allocator::Allocator;
use super::{Found, GROUPS, Group, Run, Test};
use serde_json::{Value, json};

const MIB: f64 = (1 << 20) as f64;
/// Memory in bytes below which a program's own pages and the libraries' are most of it.
const LARGE_BYTES: f64 = 16.0 * MIB;

/// What is compared.
struct Measure {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    of: fn(&Run) -> f64,
    unit_is: f64,
}

const MEASURES: [Measure; 3] = [
    Measure { name: "time", title: "time", unit: "s", of: |run| run.seconds, unit_is: 1.0 },
    Measure {
        name: "cpu",
        title: "CPU time of the process",
        unit: "s",
        of: |run| run.cpu_s,
        unit_is: 1.0,
    },
    Measure {
        name: "memory",
        title: "most memory",
        unit: "MiB",
        of: |run| run.peak_bytes,
        unit_is: MIB,
    },
];

/// The geometric mean of what is there.
fn mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = ratios
        .filter(|ratio| ratio.is_finite())
        .fold((0.0, 0.0), |(sum, count), ratio| (sum + ratio.ln(), count + 1.0));
    if count > 0.0 { (sum / count).exp() } else { f64::NAN }
}

fn cell(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:>9.digits$}") } else { format!("{:>9}", "-") }
}

/// Prints all tables, and returns the ratios as JSON.
pub fn print(found: &[Found], sides: &[Allocator], base: Allocator) -> Value {
    for group in GROUPS {
        let tests: Vec<&Found> = found.iter().filter(|found| found.test.group() == group).collect();
        if tests.is_empty() {
            continue;
        }
        for measure in &MEASURES {
            print_one(&tests, sides, base, group, measure);
        }
    }
    print_nanoseconds(found, sides);
    print_threads(found, sides);
    print_means(found, sides, base)
}

fn head(title: &str, sides: &[Allocator]) {
    println!("{title}:");
    print!("{:>14} {:>9}", "", "");
    sides.iter().for_each(|side| print!(" {:>9}", side.name()));
    println!();
}

fn counts(found: &Found, measure: &Measure) -> bool {
    measure.name == "memory" || found.test.is_timed()
}

fn print_one(
    tests: &[&Found],
    sides: &[Allocator],
    base: Allocator,
    group: Group,
    measure: &Measure,
) {
    head(
        &format!("{}, {}, and {} of {}", group.title(), measure.title, measure.unit, base.name()),
        sides,
    );
    for found in tests.iter().filter(|found| counts(found, measure)) {
        print!(
            "{:>14} {}",
            found.test.name(),
            cell(found.of(base, measure.of) / measure.unit_is, 2)
        );
        sides.iter().for_each(|side| print!(" {}", cell(found.ratio(*side, base, measure.of), 2)));
        println!();
    }
    print!("{:>14} {:>9}", "mean", "");
    for side in sides {
        print!(
            " {}",
            cell(
                mean(
                    tests
                        .iter()
                        .filter(|found| counts(found, measure))
                        .map(|found| found.ratio(*side, base, measure.of))
                ),
                2
            )
        );
    }
    println!("\n");
}

fn print_nanoseconds(found: &[Found], sides: &[Allocator]) {
    let counted: Vec<&Found> =
        found.iter().filter(|found| found.test.group() == Group::Pairs).collect();
    if counted.is_empty() {
        return;
    }
    head("ns for a malloc and a free, with the test's own loop", sides);
    for found in counted {
        print!("{:>14} {:>9}", found.test.name(), "");
        sides.iter().for_each(|side| {
            print!(" {}", cell(found.of(*side, |run| run.seconds / run.operations) * 1e9, 1))
        });
        println!();
    }
    println!();
}

fn print_threads(found: &[Found], sides: &[Allocator]) {
    let Some(found) = found.iter().find(|found| found.test == Test::ManyThreads) else { return };
    head("MiB of many threads", sides);
    print!("{:>14} {:>9}", found.test.name(), "");
    sides
        .iter()
        .for_each(|side| print!(" {}", cell(found.of(*side, |run| run.peak_bytes) / MIB, 1)));
    println!("\n");
}

fn print_means(found: &[Found], sides: &[Allocator], base: Allocator) -> Value {
    head(&format!("geometric means over all tests, to {}", base.name()), sides);
    let mut all = serde_json::Map::new();
    let mut line =
        |title: &str, name: &str, chosen: &dyn Fn(&Found) -> bool, of: fn(&Run) -> f64| {
            print!("{title:>24}");
            let mut row = serde_json::Map::new();
            for side in sides {
                let ratio = mean(
                    found
                        .iter()
                        .filter(|found| chosen(found))
                        .map(|found| found.ratio(*side, base, of)),
                );
                print!(" {}", cell(ratio, 2));
                row.insert(side.name().into(), json!(ratio));
            }
            println!();
            all.insert(name.into(), Value::Object(row));
        };
    line("time", "time", &|found| found.test.is_timed(), |run| run.seconds);
    line(
        "time of whole programs",
        "time_whole",
        &|found| found.test.group() == Group::Whole,
        |run| run.seconds,
    );
    line("CPU time", "cpu", &|found| found.test.is_timed(), |run| run.cpu_s);
    line(
        "CPU of whole programs",
        "cpu_whole",
        &|found| found.test.group() == Group::Whole,
        |run| run.cpu_s,
    );
    line("most memory", "memory", &|_| true, |run| run.peak_bytes);
    line(
        "of 16 MiB and more",
        "memory_large",
        &|found| found.of(base, |run| run.peak_bytes) >= LARGE_BYTES,
        |run| run.peak_bytes,
    );
    println!();
    let mut ratios = serde_json::Map::new();
    for found in found {
        let mut row = serde_json::Map::new();
        for side in sides {
            let of = MEASURES.iter().map(|measure| {
                (measure.name.to_owned(), json!(found.ratio(*side, base, measure.of)))
            });
            row.insert(side.name().into(), Value::Object(of.collect()));
        }
        ratios.insert(found.test.name().into(), Value::Object(row));
    }
    json!({ "means": all, "tests": ratios })
}
