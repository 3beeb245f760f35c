//! M2T (Aboytes, Mehra): Figures 3 and 5, and of Table I and Figure 4 what a model of pages and a cache can say.

use super::figure::{Figure, Rows, percent, short};
use super::plot::{Drawing, Plot};
use super::study::{Done, Kept, Memory, Run, kept};
use super::{Options, Paper, parallel};
use anyhow::{Context, Result};
use terrace_sim::machine::{Machine, PAGE};
use terrace_sim::objects::figures::{Row, measure};
use terrace_sim::objects::layouts::Kind;
use terrace_sim::objects::store::{Config, Store};
use terrace_sim::objects::{Filter, HeapSource, ObjectSource};

/// The paper.
pub const PAPER: Paper = Paper {
    name: "m2t",
    title: "M2T: Improving Performance on Tiered Memory with Semantic Data Placement",
    cited: "Aboytes, Mehra. Figures 3 and 5, with what Table I and Figure 4 say of the same runs, as far as a model of pages can carry \
            them.",
    about: "A store of chained buckets; key, value and entry of each record are objects of their own. `standard` has them in the order \
            of time, as glibc's malloc; `NextTo` has those of a bucket beside one another, as the paper's key-value store asks for. \
            Modelled are lines and pages, a cache of lines, a TLB, two tiers, and the policies. Not modelled are the processor's first \
            two caches, the cost of a walk of page tables, false sharing between 32 threads, TCP, and the time of instructions: the \
            paper's factors of throughput are those of all of that on one machine.",
    figures: &["m2t-fig3", "m2t-fig5"],
    run,
};

/// Of the records, the paper has 85 million.
struct Size {
    keys: u64,
    /// Twice the records, as the paper.
    lookups: u64,
    /// A power of two near the share of 54 MB of the last-level cache in 109 GB.
    cache_bytes: usize,
}

const FOOTPRINT_GB: f64 = 109.0;
const FAST_GB: f64 = 64.0;
/// Lookups at full size: 12·10⁹ accesses to memory as in Jenga's figures, of which one costs about eight. The paper has 170 million, which as
/// accesses to memory alone would be over before TPP had looked at a tenth of the memory; its run took longer, for network and threads, how long
/// it does not say.
const REAL_LOOKUPS: f64 = 12e9 / 8.0;

fn size(options: &Options) -> Size {
    if options.quick {
        Size { keys: 20_000, lookups: 40_000, cache_bytes: 8 << 10 }
    } else {
        Size { keys: 300_000, lookups: 1_200_000, cache_bytes: 64 << 10 }
    }
}

fn make(theta: f64, options: &Options) -> impl Fn() -> Box<dyn ObjectSource> + Send + Sync + use<> {
    let Size { keys, lookups, .. } = size(options);
    let config = Config { theta, seed: options.seed, ..Config::new(keys, lookups) };
    move || Box::new(Store::new(config))
}

fn about(options: &Options) -> String {
    let Size { keys, lookups, cache_bytes } = size(options);
    format!(
        "{keys} records (paper: 85 million, 109 GB), two keys to a bucket, {lookups} lookups by Zipf after them (YCSB-C), a cache of {} \
         KiB of 16 ways, a TLB of 2048 entries, pages of 4 KiB; 64/109 of the memory fast; 84.6 and 156 ns, 176 and 55 GB/s (M2T §IV-A).",
        cache_bytes >> 10
    )
}

fn machine() -> Result<Machine> {
    let mut machine = Machine::preset("numa").context("no machine `numa`")?;
    machine.fast.latency_ns = 84.6;
    (machine.fast.read_gbps, machine.fast.write_gbps) = (176.0, 176.0);
    if let terrace_sim::machine::Slow::Memory(slow) = &mut machine.slow {
        slow.latency_ns = 156.0;
        (slow.read_gbps, slow.write_gbps) = (55.0, 55.0);
    }
    Ok(machine)
}

/// Runs policies over the lookups with the records in a layout. Time is counted for the same lookups, whatever they miss.
/// The other layout's scale is that of the standard one, so that tiers, ticks and lookups are the same.
fn policies(layout: Kind, theta: f64, runs: &[Run], standard: Option<(f64, f64)>, options: &Options) -> Result<(Vec<Done>, (f64, f64))> {
    let make = make(theta, options);
    let mut source = HeapSource::new(&make, layout, Filter::Misses(size(options).cache_bytes), PAGE)?;
    let units = terrace_sim::source::Source::units(&source);
    let all = kept(&mut source)?;
    let (scale, stands_for) = standard.unwrap_or_else(|| {
        let scale = f64::from(units) / (FOOTPRINT_GB * 512.0);
        (scale, (REAL_LOOKUPS * scale / size(options).lookups as f64).max(1.0))
    });
    let memory = Memory { machine: machine()?, scale, units, stands_for, accesses: all.len() as u64, seed: options.seed };
    Ok((memory.run(&mut Kept::new(units, &all), runs)?, (scale, stands_for)))
}

fn run(wanted: &[&'static str], options: &Options) -> Result<Vec<Figure>> {
    wanted.iter().map(|id| if *id == "m2t-fig3" { figure_3(options) } else { figure_5(options) }).collect()
}

const SYSTEMS: [&str; 3] = ["tpp", "nomad", "memtis"];

struct Skew {
    theta: f64,
    standard: Row,
    near: Row,
    /// Seconds for the lookups: the systems' with the standard layout, and TPP's with the other.
    seconds: Vec<f64>,
    seconds_near: f64,
}

fn skew(theta: f64, options: &Options) -> Result<Skew> {
    let of = |kind| measure(&make(theta, options), kind, size(options).cache_bytes);
    let runs: Vec<Run> = SYSTEMS.iter().map(|policy| Run::of(policy, FAST_GB)).collect();
    let (done, scale) = policies(Kind::Time, theta, &runs, None, options)?;
    let (near, _) = policies(Kind::Near, theta, &runs[..1], Some(scale), options)?;
    Ok(Skew {
        theta,
        standard: of(Kind::Time)?,
        near: of(Kind::Near)?,
        seconds: done.iter().map(|done| done.outcome.total.time_ns).collect(),
        seconds_near: near[0].outcome.total.time_ns,
    })
}

fn figure_3(options: &Options) -> Result<Figure> {
    let id = "m2t-fig3";
    let thetas: &[f64] = if options.quick { &[0.25, 0.99, 2.0] } else { &[0.25, 0.5, 0.75, 0.99, 1.25, 1.5, 1.75, 2.0] };
    let skews = parallel(thetas, |theta| format!("{id} θ = {theta}"), |theta| skew(*theta, options))?;
    let at = |theta: f64| skews.iter().find(|skew| skew.theta == theta).context("no such θ");
    let ratio = |of: fn(&Row) -> u64, skew: &Skew| of(&skew.standard) as f64 / of(&skew.near) as f64;
    let speed = |skew: &Skew| skew.seconds[0] / skew.seconds_near;
    let mut rows = Rows::of(id);
    let (low, usual, high) = (at(0.25)?, at(0.99)?, at(2.0)?);
    rows.number("throughput, M2T over TPP, θ = 0.25 (paper: 3.52 to 3.87 over all)", "×", 3.52, speed(low), 0.2);
    rows.number("throughput, M2T over TPP, θ = 2.0 (paper: 2.36 to 2.65 over all)", "×", 2.36, speed(high), 0.2);
    rows.claim(
        "M2T is the fastest at any skew",
        "yes",
        skews
            .iter()
            .map(|skew| format!("{}× at {}", short(skew.seconds.iter().copied().fold(f64::MAX, f64::min) / skew.seconds_near), skew.theta))
            .collect::<Vec<_>>()
            .join(", "),
        skews.iter().all(|skew| skew.seconds.iter().all(|seconds| *seconds > skew.seconds_near)),
    );
    rows.claim(
        "the benefit falls with skew",
        "3.5–3.9× at low, 2.4–2.7× at high skew",
        format!("{}× and {}×", short(speed(low)), short(speed(high))),
        speed(high) < speed(low),
    );
    for (skew, misses, tlb) in [(low, 4.969e11 / 1.641e11, 9.25), (usual, 4.178e11 / 1.327e11, 9.51)] {
        rows.number(
            format!("last-level misses, TPP over M2T, θ = {} (Table I)", skew.theta),
            "×",
            misses,
            ratio(|row| row.misses, skew),
            0.2,
        );
        rows.number(format!("TLB misses, TPP over M2T, θ = {} (Table I)", skew.theta), "×", tlb, ratio(|row| row.tlb_misses, skew), 0.2);
    }
    rows.unjudged("L1 and L2 misses (Table I)", "2.16× and 3× fewer at θ = 0.25", "the model has one cache of lines");
    rows.ours("memory, NextTo over standard (pages)", "×", usual.near.pages as f64 / usual.standard.pages as f64);
    let line = |of: &dyn Fn(&Skew) -> f64| skews.iter().map(|skew| (skew.theta, of(skew))).collect::<Vec<_>>();
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = SYSTEMS
        .iter()
        .enumerate()
        .map(|(number, name)| (format!("M2T over {name}"), line(&|skew| skew.seconds[number] / skew.seconds_near)))
        .collect();
    lines.push(("misses".into(), line(&|skew| ratio(|row| row.misses, skew))));
    lines.push(("TLB misses".into(), line(&|skew| ratio(|row| row.tlb_misses, skew))));
    Ok(Figure {
        id,
        title: "YCSB-C with varying skew",
        claim: "M2T is 3.52–3.87 times as fast as other systems at low skew and 2.36–2.65 times at high skew; the benefit falls as skew \
                rises, but stays above 2.",
        run_with: format!(
            "{} Throughput: lookups over the time that their accesses to memory take, 16 on their way at a time, with the policy's moves \
             and faults.",
            about(options)
        ),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Standard layout over NextTo: time of the same lookups, and misses".into(),
            axes: ["Zipf θ", "×"],
            drawing: Drawing::Lines(lines),
        }],
        note: "A bucket's parts on one page are fewer pages to look up, and somewhat fewer lines; that much a model of memory shows. The \
               factors it does not: the paper's store waits for its own first caches, for TLB walks and for 32 threads that share lines, \
               none of which is here; and three times fewer last-level misses say that its layouts differ in lines far more than these \
               do. How long its chains and how large its values are it does not say; here two keys share a bucket, and both layouts read \
               each entry, key and value in full. By heat, NextTo's pages differ less: hot and cold records of a bucket share them, so \
               that a policy that finds the hot pages of the standard layout can be the faster one."
            .into(),
    })
}

fn figure_5(options: &Options) -> Result<Figure> {
    let id = "m2t-fig5";
    let theta = 0.99;
    let runs = [Run::of("tpp", FAST_GB), Run::of("first-touch", FAST_GB)];
    let (standard, scale) = policies(Kind::Time, theta, &runs, None, options)?;
    let (near, _) = policies(Kind::Near, theta, &runs, Some(scale), options)?;
    crate::say(&format!("  {id} (1 of 1)"));
    let counts = |done: &Done| [done.outcome.total.promoted as f64, done.outcome.total.demoted as f64];
    let ([up, down], [near_up, near_down]) = (counts(&standard[0]), counts(&near[0]));
    let time = |done: &Done| done.outcome.total.time_ns;
    let mut rows = Rows::of(id);
    rows.number("promotions, TPP over M2T", "×", 244.0, up / near_up.max(1.0), 0.2);
    rows.number("demotions, TPP over M2T", "×", 211.0, down / near_down.max(1.0), 0.2);
    rows.claim(
        "M2T moves fewer pages",
        "thousands of moves instead of hundreds of thousands",
        format!("{} moves instead of {}", short(near_up + near_down), short(up + down)),
        near_up + near_down < up + down,
    );
    let gain = |a: &Done, b: &Done| (time(a) / time(b) - 1.0) * 100.0;
    let tiering = gain(&standard[1], &standard[0]);
    rows.claim(
        "TPP over first touch, standard layout (Figure 4)",
        "+2.3 to +14 %",
        format!("{tiering:+.1} %"),
        (2.3..=14.0).contains(&tiering),
    );
    let layout = time(&standard[1]) / time(&near[1]);
    rows.number("NextTo alone over the baseline (Figure 4; 3.86 to 4.14)", "×", 3.86, layout, 0.2);
    let both = gain(&near[1], &near[0]);
    rows.claim("TPP on top of NextTo (Figure 4)", "+0.05 to +0.41 %", format!("{both:+.2} %"), (0.05..=0.41).contains(&both));
    rows.claim(
        "the benefit comes from the layout, not from moving pages",
        "yes",
        format!("layout {}×, moving pages {tiering:+.1} %", short(layout)),
        layout - 1.0 > tiering / 100.0,
    );
    for (done, layout) in [(&standard, "standard layout"), (&near, "NextTo")] {
        rows.ours(format!("hit rate of TPP, {layout}"), "%", done[0].hit_rate * 100.0);
        rows.ours(format!("hit rate of first touch, {layout}"), "%", done[1].hit_rate * 100.0);
    }
    let bars = vec![("TPP".to_owned(), vec![up, down]), ("M2T".to_owned(), vec![near_up, near_down])];
    Ok(Figure {
        id,
        title: "Promotions and demotions of TPP and M2T",
        claim: "M2T's tiering, which is TPP under another layout, promotes 244 times and demotes 211 times less. Most of the benefit is \
                the allocator's (Figure 4).",
        run_with: format!(
            "{} θ = {theta}. A page of 4 KiB plays a unit of 2 MiB of the footprint. The whole of the memory is there at first, the part \
             that was made first in the fast tier. Each access stands for {} real ones, 1.5·10⁹ lookups in all: with the paper's 170 \
             million, memory alone would take some seconds.",
            about(options),
            short(scale.1)
        ),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Pages moved (model's units)".into(),
            axes: ["", "moves"],
            drawing: Drawing::Bars(vec!["promoted".into(), "demoted".into()], bars),
        }],
        note: format!(
            "Here TPP moves about as much under either layout (hit rates {} and {}): what it moves follows how hot pages are, and NextTo \
             does not make fewer of them hot. The paper explains its factor by fewer cache and TLB misses, which leave M2T's accessed \
             bits unset; a model of pages without a processor's TLB cannot show that: it sees every access to a page. Migration rates in \
             bytes a second (Figure 6) follow the same counts.",
            percent(standard[0].hit_rate),
            percent(near[0].hit_rate)
        ),
    })
}
