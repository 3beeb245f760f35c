//! M2T (Aboytes, Mehra): Figures 3 and 5, and of Table I and Figure 4 what a model of pages and a
//! cache can say.

use super::figure::{Figure, Rows, percent, short};
use super::plot::{Drawing, Plot};
use super::study::{Done, Kept, Memory, Run, kept};
use super::{Options, Paper, parallel};
use anyhow::{Context, Result};
use terrace_sim::machine::{Machine, PAGE};
use terrace_sim::objects::figures::{Row, measure};
use terrace_sim::objects::layouts::Kind;
use terrace_sim::objects::store::{Buckets, Config, Store};
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

/// How long chains are, and what is run of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Chains {
    /// Keys of a bucket, on average, by chance.
    keys_a_bucket: u64,
    lookups: u64,
    /// Lookups at full size.
    real_lookups: f64,
}

/// Records, of which the paper has 85 million.
fn keys(options: &Options) -> u64 {
    if options.quick { 20_000 } else { 300_000 }
}

/// A power of two near the share of 54 MB of the last-level cache in 109 GB.
fn cache_bytes(options: &Options) -> usize {
    if options.quick { 8 << 10 } else { 64 << 10 }
}

const FOOTPRINT_GB: f64 = 109.0;
const FAST_GB: f64 = 64.0;
/// Lookups of the paper.
const LOOKUPS: f64 = 170e6;
/// Last-level misses of loads (Table I) at θ = 0.25 and 0.99, of TPP and of M2T.
const PAPERS_MISSES: [[f64; 2]; 2] = [[4.969e11, 1.641e11], [4.178e11, 1.327e11]];

/// The paper's chains, as its Table I has them: 4.178·10¹¹ misses of 170 million lookups are 2,460
/// each. A key that a lookup passes costs the store here three misses. So a lookup passes some 800
/// keys, half of a bucket's. A tenth of the paper's lookups is some minutes, in which TPP's scan
/// goes once through the memory.
fn long(options: &Options) -> Chains {
    let (keys_a_bucket, lookups) = if options.quick { (200, 2000) } else { (1600, 6000) };
    Chains { keys_a_bucket, lookups, real_lookups: LOOKUPS / 10.0 }
}

/// Chains as usual for a hash table. There are as many lookups as make 12·10⁹ accesses to memory:
/// each makes about eight.
fn short_chains(options: &Options) -> Chains {
    Chains {
        keys_a_bucket: 2,
        lookups: if options.quick { 40_000 } else { 1_200_000 },
        real_lookups: 12e9 / 8.0,
    }
}

fn make(
    chains: Chains,
    theta: f64,
    options: &Options,
) -> impl Fn() -> Box<dyn ObjectSource> + Send + Sync + use<> {
    let config = Config {
        theta,
        seed: options.seed,
        buckets: Buckets::Of(chains.keys_a_bucket),
        ..Config::new(keys(options), chains.lookups)
    };
    move || Box::new(Store::new(config))
}

fn about(options: &Options) -> String {
    let (long, short) = (long(options), short_chains(options));
    format!(
        "{} records (paper: 85 million, 109 GB); chains of {} keys, which is what the paper's Table I comes to (2,460 last-level misses a \
         lookup, three for each key that is passed), and of {}, as is usual, for comparison; {} and {} lookups by Zipf after them (YCSB-C); a \
         cache of {} KiB of 16 ways, a TLB of 2048 entries, pages of 4 KiB; 64/109 of the memory fast; 84.6 and 156 ns, 176 and 55 GB/s \
         (M2T §IV-A).",
        keys(options),
        long.keys_a_bucket,
        short.keys_a_bucket,
        long.lookups,
        short.lookups,
        cache_bytes(options) >> 10
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

/// Runs policies over the lookups with the records in a layout. Time is counted for the same
/// lookups, whatever they miss. The other layout's scale is that of the standard one, so that
/// tiers, ticks and lookups are the same.
fn policies(
    chains: Chains,
    layout: Kind,
    theta: f64,
    runs: &[Run],
    standard: Option<(f64, f64)>,
    options: &Options,
) -> Result<(Vec<Done>, (f64, f64))> {
    let make = make(chains, theta, options);
    let mut source = HeapSource::new(&make, layout, Filter::Misses(cache_bytes(options)), PAGE)?;
    let units = terrace_sim::source::Source::units(&source);
    let all = kept(&mut source)?;
    let (scale, stands_for) = standard.unwrap_or_else(|| {
        let scale = f64::from(units) / (FOOTPRINT_GB * 512.0);
        (scale, (chains.real_lookups * scale / chains.lookups as f64).max(1.0))
    });
    let memory = Memory {
        machine: machine()?,
        scale,
        units,
        stands_for,
        accesses: all.len() as u64,
        seed: options.seed,
    };
    Ok((memory.run(&mut Kept::new(units, &all), runs)?, (scale, stands_for)))
}

fn run(wanted: &[&'static str], options: &Options) -> Result<Vec<Figure>> {
    wanted
        .iter()
        .map(|id| if *id == "m2t-fig3" { figure_3(options) } else { figure_5(options) })
        .collect()
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

fn skew(chains: Chains, theta: f64, options: &Options) -> Result<Skew> {
    let of = |kind| measure(&make(chains, theta, options), kind, cache_bytes(options));
    let runs: Vec<Run> = SYSTEMS.iter().map(|policy| Run::of(policy, FAST_GB)).collect();
    let (done, scale) = policies(chains, Kind::Time, theta, &runs, None, options)?;
    let (near, _) = policies(chains, Kind::Near, theta, &runs[..1], Some(scale), options)?;
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
    let thetas: &[f64] = if options.quick {
        &[0.25, 0.99, 2.0]
    } else {
        &[0.25, 0.5, 0.75, 0.99, 1.25, 1.5, 1.75, 2.0]
    };
    // At the end the usual chains, where the text has a number.
    let wanted: Vec<(Chains, f64)> = thetas
        .iter()
        .map(|theta| (long(options), *theta))
        .chain([0.25, 0.99, 2.0].map(|theta| (short_chains(options), theta)))
        .collect();
    let name = |(chains, theta): &(Chains, f64)| {
        format!("{id} θ = {theta}, {} keys a bucket", chains.keys_a_bucket)
    };
    let skews = parallel(&wanted, name, |(chains, theta)| skew(*chains, *theta, options))?;
    let (skews, usual_chains) = skews.split_at(thetas.len());
    let at = |theta: f64| skews.iter().find(|skew| skew.theta == theta).context("no such θ");
    let ratio =
        |of: fn(&Row) -> u64, skew: &Skew| of(&skew.standard) as f64 / of(&skew.near) as f64;
    let speed = |skew: &Skew| skew.seconds[0] / skew.seconds_near;
    // A lookup's, of the second half of them.
    let each = |misses: u64| misses as f64 * 2.0 / long(options).lookups as f64;
    let mut rows = Rows::of(id);
    let (low, usual, high) = (at(0.25)?, at(0.99)?, at(2.0)?);
    let lines = format!(
        "the model's time is that of last-level misses alone, and by these the layouts differ little ({} times): each key that is passed is a \
         line or two wherever it lies. The paper's own counts differ three times, which its prefetchers, first caches, false \
         sharing and TLB walks may explain, all of which are missing here",
        short(ratio(|row| row.misses, usual))
    );
    for (paper, skew, all) in [(3.52, low, "3.52 to 3.87"), (2.36, high, "2.36 to 2.65")] {
        let metric =
            format!("throughput, M2T over TPP, θ = {} (paper: {all} over all)", skew.theta);
        rows.number(metric, "×", paper, speed(skew), 0.2).because(&*lines);
    }
    rows.claim(
        "M2T is the fastest at any skew",
        "yes",
        skews
            .iter()
            .map(|skew| {
                let best = skew.seconds.iter().copied().fold(f64::MAX, f64::min);
                format!("{}× at {}", short(best / skew.seconds_near), skew.theta)
            })
            .collect::<Vec<_>>()
            .join(", "),
        "no other system is faster at any of them",
        skews.iter().all(|skew| skew.seconds.iter().all(|seconds| *seconds > skew.seconds_near)),
    )
    .because(
        "where skew is high, few buckets have nearly all lookups; Memtis finds their pages in the standard layout, while M2T has TPP, which \
         is slow to. What the paper's M2T has ahead even there is nothing that a model of pages knows",
    );
    rows.claim(
        "the benefit falls with skew",
        "3.5–3.9× at low, 2.4–2.7× at high skew",
        format!("{}× and {}×", short(speed(low)), short(speed(high))),
        "it is 5 % less at high skew",
        speed(high) < 0.95 * speed(low),
    )
    .because("with long chains most misses are of keys that are passed, as many whichever key is looked up");
    for (skew, [tpp, m2t], tlb) in [(low, PAPERS_MISSES[0], 9.25), (usual, PAPERS_MISSES[1], 9.51)]
    {
        let theta = skew.theta;
        let metric = format!("last-level misses a lookup, TPP, θ = {theta} (Table I)");
        if theta == usual.theta {
            // From which the chains' length was inferred.
            rows.beside(metric, "", tpp / LOOKUPS, each(skew.standard.misses));
        } else {
            rows.number(metric, "", tpp / LOOKUPS, each(skew.standard.misses), 0.2).because(
                "its lookups at low skew must pass more keys than those at high skew, as if popular ones came first in their chains",
            );
        }
        rows.number(
            format!("last-level misses, TPP over M2T, θ = {theta} (Table I)"),
            "×",
            tpp / m2t,
            ratio(|row| row.misses, skew),
            0.2,
        )
        .because(&*lines);
        let misses = format!("TLB misses, TPP over M2T, θ = {theta} (Table I)");
        rows.number(misses, "×", tlb, ratio(|row| row.tlb_misses, skew), 0.2).because(
            "the direction and its order of magnitude come from the chains' length; the factor is that of records to a page, and the \
             paper's are larger (109 GB / 85 million = 1.3 KB; here 0.3)",
        );
        let walks = |row: &Row| (row.misses + row.tlb_misses) as f64;
        let walked = walks(&skew.standard) / walks(&skew.near);
        rows.ours(
            format!(
                "accesses to memory if each TLB miss is one, standard over NextTo, θ = {theta}"
            ),
            "×",
            walked,
        );
    }
    let tlb = [low, usual].map(|skew| ratio(|row| row.tlb_misses, skew));
    rows.claim(
        "NextTo \"maintains better TLB performance\" (Table I)",
        "9.25 and 9.51 times fewer misses",
        format!("{} and {} times", short(tlb[0]), short(tlb[1])),
        "4 times fewer or less",
        tlb.iter().all(|ratio| *ratio >= 4.0),
    )
    .because("chains are too short for it");
    for skew in usual_chains {
        let theta = skew.theta;
        rows.ours(
            format!("two keys to a bucket: throughput, M2T over TPP, θ = {theta}"),
            "×",
            speed(skew),
        );
        rows.ours(
            format!("two keys to a bucket: last-level misses, TPP over M2T, θ = {theta}"),
            "×",
            ratio(|row| row.misses, skew),
        );
        rows.ours(
            format!("two keys to a bucket: TLB misses, TPP over M2T, θ = {theta}"),
            "×",
            ratio(|row| row.tlb_misses, skew),
        );
    }
    rows.unjudged(
        "L1 and L2 misses (Table I)",
        "2.16× and 3× fewer at θ = 0.25",
        "the model has one cache of lines",
    );
    rows.ours(
        "memory, NextTo over standard (pages)",
        "×",
        usual.near.pages as f64 / usual.standard.pages as f64,
    );
    let line = |of: &dyn Fn(&Skew) -> f64| {
        skews.iter().map(|skew| (skew.theta, of(skew))).collect::<Vec<_>>()
    };
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = SYSTEMS
        .iter()
        .enumerate()
        .map(|(number, name)| {
            (format!("M2T over {name}"), line(&|skew| skew.seconds[number] / skew.seconds_near))
        })
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
        note: "What makes this paper's factors is the length of its chains, which it does not name: its own Table I has 2,460 last-level \
               misses and 2,400 TLB misses for each lookup, so that a lookup must pass hundreds of keys, and a hash table with usual \
               chains gains a tenth from NextTo (the rows of two keys to a bucket). What a model of pages cannot carry: the processor's first \
               caches and prefetchers, walks of page tables, false sharing between 32 threads, the time of instructions. Throughput here \
               is that of last-level misses alone."
            .into(),
    })
}

fn figure_5(options: &Options) -> Result<Figure> {
    let id = "m2t-fig5";
    let theta = 0.99;
    let runs = [Run::of("tpp", FAST_GB), Run::of("first-touch", FAST_GB)];
    let both = [long(options), short_chains(options)];
    let name = |chains: &Chains| format!("{id} {} keys a bucket", chains.keys_a_bucket);
    let done = parallel(&both, name, |chains| {
        let (standard, scale) = policies(*chains, Kind::Time, theta, &runs, None, options)?;
        let (near, _) = policies(*chains, Kind::Near, theta, &runs, Some(scale), options)?;
        Ok((standard, near, scale.1))
    })?;
    let [(standard, near, stands_for), (usual_standard, usual_near, _)] = &done[..] else {
        unreachable!("there are two")
    };
    let counts = |done: &[Done]| {
        [done[0].outcome.total.promoted as f64, done[0].outcome.total.demoted as f64]
    };
    let ([up, down], [near_up, near_down]) = (counts(standard), counts(near));
    let time = |done: &Done| done.outcome.total.time_ns;
    let mut rows = Rows::of(id);
    let fewer = "the factor hangs on how many pages a lookup passes and on how long it runs, and the paper counts pages of 4 KiB, where units of \
                 2 MiB are moved here; the direction is the next row's";
    rows.number("promotions, TPP over M2T", "×", 244.0, up / near_up.max(1.0), 0.2).because(fewer);
    rows.number("demotions, TPP over M2T", "×", 211.0, down / near_down.max(1.0), 0.2)
        .because(fewer);
    rows.claim(
        "M2T moves fewer pages",
        "thousands of moves instead of hundreds of thousands",
        format!("{} moves instead of {}", short(near_up + near_down), short(up + down)),
        "ten times fewer, or less",
        10.0 * (near_up + near_down) <= up + down,
    )
    .because("what TPP moves follows how often pages are touched, and chains are too short for NextTo to make that less");
    let gain = |a: &Done, b: &Done| (time(a) / time(b) - 1.0) * 100.0;
    let tiering = gain(&standard[1], &standard[0]);
    rows.claim(
        "TPP over first touch, standard layout (Figure 4)",
        "+2.3 to +14 %",
        format!("{tiering:+.1} %"),
        "between these",
        (2.3..=14.0).contains(&tiering),
    )
    .because(format!(
        "every lookup passes hundreds of keys that chance has put together, so that pages differ little in heat, and TPP's pages in the \
         fast tier meet {} of the accesses instead of {}. Its baseline may have had all memory far at first",
        percent(standard[0].hit_rate),
        percent(standard[1].hit_rate)
    ));
    let layout = time(&standard[1]) / time(&near[1]);
    rows.number("NextTo alone over the baseline (Figure 4; 3.86 to 4.14)", "×", 3.86, layout, 0.2)
        .because("as Figure 3's: only last-level misses cost time here, and NextTo has not three times fewer of them");
    let both = gain(&near[1], &near[0]);
    rows.claim(
        "TPP on top of NextTo (Figure 4)",
        "+0.05 to +0.41 %",
        format!("{both:+.2} %"),
        "within 0.5 % of none",
        both.abs() <= 0.5,
    )
    .because("TPP's moves cost more here than they bring");
    rows.claim(
        "the benefit comes from the layout, not from moving pages",
        "yes",
        format!("layout {}×, moving pages {tiering:+.1} %", short(layout)),
        "the layout brings 5 % at least, and twice what moving does",
        layout > 1.05 && layout - 1.0 > 2.0 * tiering / 100.0,
    )
    .because("chains are too short for the layout to matter");
    for (done, layout) in [(standard, "standard layout"), (near, "NextTo")] {
        rows.ours(format!("hit rate of TPP, {layout}"), "%", done[0].hit_rate * 100.0);
        rows.ours(format!("hit rate of first touch, {layout}"), "%", done[1].hit_rate * 100.0);
    }
    let ([usual_up, usual_down], [usual_near_up, usual_near_down]) =
        (counts(usual_standard), counts(usual_near));
    rows.ours(
        "two keys to a bucket: promotions, TPP over M2T",
        "×",
        usual_up / usual_near_up.max(1.0),
    );
    rows.ours(
        "two keys to a bucket: demotions, TPP over M2T",
        "×",
        usual_down / usual_near_down.max(1.0),
    );
    rows.ours(
        "two keys to a bucket: NextTo alone over the baseline",
        "×",
        time(&usual_standard[1]) / time(&usual_near[1]),
    );
    let bars =
        vec![("TPP".to_owned(), vec![up, down]), ("M2T".to_owned(), vec![near_up, near_down])];
    Ok(Figure {
        id,
        title: "Promotions and demotions of TPP and M2T",
        claim: "M2T's tiering, which is TPP under another layout, promotes 244 times and demotes 211 times less. Most of the benefit is \
                the allocator's (Figure 4).",
        run_with: format!(
            "{} θ = {theta}. A page of 4 KiB plays a unit of 2 MiB of the footprint. The whole of the memory is there at first, the part \
             that was made first in the fast tier. Each access stands for {} real ones, a tenth of the paper's 170 million lookups in \
             all.",
            about(options),
            short(*stands_for)
        ),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Pages moved (model's units)".into(),
            axes: ["", "moves"],
            drawing: Drawing::Bars(vec!["promoted".into(), "demoted".into()], bars),
        }],
        note: "TPP moves what is touched on two scans. In the standard layout a lookup touches a page for nearly each key that it passes, \
               with NextTo one for a dozen of them: so fewer pages are seen twice, as the paper explains it. With usual chains there is \
               no such difference. Migration rates in bytes a second (Figure 6) follow the same counts."
            .into(),
    })
}
