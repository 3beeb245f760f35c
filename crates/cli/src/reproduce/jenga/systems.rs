//! Figures that run policies on the ten programs: 1 (heatmaps), 3 (through a jump), 7 and 8 (all systems), 9 (memory savings), 10 (ablation),
//! 11 (cooling interval).

use super::programs::{ALL, Program, heatmap, program, size};
use crate::reproduce::figure::{Figure, Rows, percent, short};
use crate::reproduce::plot::{Drawing, Plot};
use crate::reproduce::study::{Done, Run, SAMPLE_PERIOD, WINDOWS};
use crate::reproduce::{Options, parallel};
use anyhow::Result;

/// Those that the paper compares, Jenga first.
const PAPERS: [&str; 7] = ["jenga", "memtis-qc", "memtis", "hybridtier", "tpp", "nomad", "autonuma"];
/// Others, for the reader.
const OTHERS: [&str; 4] = ["hemem", "first-touch", "terrace", "oracle"];
/// Which learn from hint faults.
const HINTING: [&str; 3] = ["tpp", "nomad", "autonuma"];
/// The larger fast tier of §3.1.
const LARGE_GB: f64 = 16.0;
/// By so much a number of the paper's may differ that depends on the applications.
const WITHIN: f64 = 0.2;

fn systems() -> impl Iterator<Item = &'static str> {
    PAPERS.into_iter().chain(OTHERS)
}

/// What is run on a program, for which figures.
struct Task {
    program: &'static Program,
    by_context: bool,
    runs: Vec<Run>,
}

/// All that was run.
struct Results(Vec<(&'static str, bool, Vec<Done>)>);

impl Results {
    fn get(&self, program: &str, by_context: bool, run: &Run) -> &Done {
        let found = self.0.iter().filter(|(name, context, _)| *name == program && *context == by_context).flat_map(|(_, _, done)| done);
        found.into_iter().find(|done| done.run == *run).expect("it was asked for")
    }

    /// A system with its own allocator: Jenga's groups by context.
    fn system(&self, program: &Program, system: &'static str, fast_gb: f64) -> &Done {
        self.get(program.name, by_context(program, system), &Run::of(system, fast_gb))
    }

    /// Its speed over Jenga's.
    fn speed(&self, program: &Program, system: &'static str, fast_gb: f64) -> f64 {
        self.system(program, "jenga", fast_gb).seconds / self.system(program, system, fast_gb).seconds
    }
}

fn by_context(program: &Program, system: &str) -> bool {
    system == "jenga" && program.has_objects()
}

const SAVINGS: [&str; 3] = ["Btree", "Silo", "FlexKVS"];
const MULTIPLES: [f64; 7] = [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0];
const ABLATION: [&str; 3] = ["FlexKVS", "GAPBS-PR", "Btree"];
const INTERVALS: [&str; 5] = ["100K", "250K", "500K", "1M", "2M"];

fn cooling(policy: &'static str, interval: &str, gb: f64) -> Run {
    Run { set: vec![format!("{policy}.cooling={interval}")], ..Run::of(policy, gb) }
}

/// Memtis-QC in other ways, to see what its figures hang on.
const VARIANTS: [(&str, &str); 2] =
    [("without the module's one-way rule", "memtis-qc.one-way=off"), ("adapting each 30,000 samples", "memtis-qc.adapt=30K")];

fn variant(set: &str, gb: f64) -> Run {
    Run { set: vec![set.to_owned()], ..Run::of("memtis-qc", gb) }
}

/// Programs of large objects, on which alone policies differ.
fn large() -> impl Iterator<Item = &'static Program> {
    ALL.iter().filter(|program| !program.has_objects())
}

/// What the wanted figures need, each run once.
fn tasks(wanted: &[&'static str]) -> Vec<Task> {
    let wants = |figures: &[&str]| wanted.iter().any(|id| figures.contains(id));
    let mut tasks: Vec<Task> = Vec::new();
    let mut add = |program: &'static Program, by_context: bool, run: Run| {
        let known = tasks.iter_mut().find(|task| task.program.name == program.name && task.by_context == by_context);
        match known {
            Some(task) if task.runs.contains(&run) => {}
            Some(task) => task.runs.push(run),
            None => tasks.push(Task { program, by_context, runs: vec![run] }),
        }
    };
    for program in &ALL {
        let flex = program.name == "FlexKVS";
        if wants(&["jenga-fig7", "jenga-fig8"]) || flex && wants(&["jenga-fig3"]) {
            for gb in [program.wss_gb, LARGE_GB] {
                systems().for_each(|system| add(program, by_context(program, system), Run::of(system, gb)));
            }
        }
        if wants(&["jenga-fig8"]) {
            VARIANTS.iter().for_each(|(_, set)| add(program, false, variant(set, program.wss_gb)));
        }
        if SAVINGS.contains(&program.name) && wants(&["jenga-fig9"]) {
            add(program, by_context(program, "jenga"), Run::of("jenga", program.wss_gb));
            for system in PAPERS.into_iter().skip(1) {
                MULTIPLES.iter().for_each(|times| add(program, false, Run::of(system, program.wss_gb * times)));
            }
        }
        if ABLATION.contains(&program.name) && wants(&["jenga-fig10"]) {
            for context in [false, program.has_objects()] {
                ["memtis-qc", "jenga"].into_iter().for_each(|system| add(program, context, Run::of(system, program.wss_gb)));
            }
        }
        if !program.has_objects() && wants(&["jenga-fig11"]) {
            for interval in INTERVALS {
                ["memtis", "jenga"].into_iter().for_each(|system| add(program, false, cooling(system, interval, program.wss_gb)));
            }
        }
    }
    tasks
}

/// Those of the wanted ones that are here.
pub fn figures(wanted: &[&'static str], options: &Options) -> Result<Vec<Figure>> {
    let tasks = tasks(wanted);
    let name = |task: &Task| format!("{}, {} runs", task.program.name, task.runs.len());
    let done = parallel(&tasks, name, |task| task.program.run(task.by_context, &task.runs, options))?;
    let results = Results(tasks.iter().zip(done).map(|(task, done)| (task.program.name, task.by_context, done)).collect());
    let mut figures = Vec::new();
    for id in wanted {
        match *id {
            "jenga-fig1" => figures.push(figure_1(options)?),
            "jenga-fig3" => figures.push(figure_3(&results, options)),
            "jenga-fig7" => figures.push(figure_7(&results, options)),
            "jenga-fig8" => figures.push(figure_8(&results, options)),
            "jenga-fig9" => figures.push(figure_9(&results, options)),
            "jenga-fig10" => figures.push(figure_10(&results, options)),
            "jenga-fig11" => figures.push(figure_11(&results, options)),
            _ => {}
        }
    }
    Ok(figures)
}

fn about(options: &Options) -> String {
    let size = size(options);
    format!(
        "Stand-ins of Figure 1 at {} of the paper's size (small objects: {} and {} records, whose pages of 4 KiB play units of 2 MiB), \
         12·10⁹ accesses at full size, each of the stream standing for 100 or so; one sample in {SAMPLE_PERIOD}; policies' parameters as \
         published, in samples and time at the same scale. Jenga groups small objects by context; all others, and ours, have them by \
         time as with glibc. All memory is there at first, the lower addresses in the fast tier.",
        percent(size.scale),
        size.tree[0],
        size.store[0]
    )
}

fn figure_1(options: &Options) -> Result<Figure> {
    let id = "jenga-fig1";
    let columns = if options.quick { 24 } else { 48 };
    let measured = parallel(
        &ALL.iter().collect::<Vec<_>>(),
        |program| format!("{id} {}", program.name),
        |program| {
            let (memory, accesses) = program.prepare(true, options)?;
            let gb = f64::from(memory.units) / (512.0 * memory.scale);
            let (cells, wss) = heatmap(&memory, accesses.source().as_mut(), columns, columns)?;
            Ok((cells, wss, gb))
        },
    )?;
    let mut rows = Rows::of(id);
    let mut maps = Vec::new();
    for (program, (cells, wss, gb)) in ALL.iter().zip(measured) {
        rows.beside(
            format!("{}: working set, pages touched in 50 ms (§3.1), of {} GB", program.name, short(gb)),
            "GB",
            program.wss_gb,
            wss,
        );
        maps.push((program.name.to_owned(), cells));
    }
    rows.unjudged(
        "which applications change their working set",
        "BC, PR, FlexKVS, Liblinear, 654.roms_s (Table 1)",
        "the stand-ins were made so; Figure 1's caption counts Graph500 among those that change and 654.roms_s among the stable ones, \
         against Table 1 and §7.1.6",
    );
    let stand_ins: Vec<String> = ALL.iter().map(|program| format!("{}: {}", program.name, program.about)).collect();
    Ok(Figure {
        id,
        title: "The applications, and what stands for them here",
        claim: "Btree and Silo have small objects; GAPBS-BC, GAPBS-PR, FlexKVS, 654.roms_s and Liblinear change what is hot. Working \
                sets are 8 GB (Btree, Silo) and 4 GB (others).",
        run_with: format!(
            "{} Units of 2 MiB at full size. Btree and Silo are drawn with objects by context, as in the paper.",
            stand_ins.join(" ")
        ),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Address (up) × time, stronger: more accesses".into(),
            axes: ["", ""],
            drawing: Drawing::Heat(maps),
        }],
        note: "The fast tier of the figures below holds the paper's 8 and 4 GB, as a part of what is modelled, not what this definition \
               gives here. In units of 2 MiB, and at the speed of memory, 50 ms touch nearly all that is ever touched: of FlexKVS' \
               accesses, as the paper describes them, a tenth goes anywhere, which are about a million lines in 50 ms, so that by its \
               own definition the working set would be far above the 4 GB that it names. The paper's must be what was sampled, or what a \
               slower program touches."
            .into(),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len() as f64).max(1.0)
}

fn geomean(values: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    mean(&logs).exp()
}

fn rates(done: &Done, part: std::ops::Range<f64>) -> Vec<f64> {
    let all = done.rates();
    let at = |share: f64| (all.len() as f64 * share) as usize;
    all[at(part.start)..at(part.end)].iter().map(|(_, rate)| *rate).collect()
}

/// Standard deviation over mean.
fn spread(values: &[f64]) -> f64 {
    let mean_of = mean(values);
    (values.iter().map(|value| (value - mean_of).powi(2)).sum::<f64>() / values.len() as f64).sqrt() / mean_of
}

fn figure_3(results: &Results, options: &Options) -> Figure {
    let id = "jenga-fig3";
    let flex = program("FlexKVS");
    let of = |system| results.system(flex, system, flex.wss_gb);
    // The last quarter before the jump, and the last of the run.
    let before = |system| rates(of(system), 0.25..0.5);
    let after = |system| mean(&rates(of(system), 0.75..1.0));
    let stable = |system| mean(&before(system));
    let back = |system| after(system) / stable(system);
    // Windows after the jump until nine tenths of what it was.
    let slow_windows =
        |system| rates(of(system), 0.5..1.0).iter().position(|rate| *rate >= 0.9 * stable(system)).unwrap_or(WINDOWS as usize / 2);
    let mut rows = Rows::of(id);
    rows.claim(
        "Memtis never adapts to the change",
        "yes",
        format!("{} M accesses/s before, {} in the last quarter", short(stable("memtis")), short(after("memtis"))),
        back("memtis") < 0.7,
    );
    rows.claim("Memtis-QC adapts", "yes", format!("back at {} after the change", percent(back("memtis-qc"))), back("memtis-qc") > 0.9);
    rows.claim(
        "Memtis-QC is less steady in the stable phase",
        "yes",
        format!("spread {} of the mean, Jenga's {}", percent(spread(&before("memtis-qc"))), percent(spread(&before("jenga")))),
        spread(&before("memtis-qc")) > 2.0 * spread(&before("jenga")),
    );
    rows.claim(
        "and performs poorly there",
        "yes",
        format!("{} of Jenga's speed", percent(stable("memtis-qc") / stable("jenga"))),
        stable("memtis-qc") < 0.95 * stable("jenga"),
    );
    rows.claim(
        "HybridTier performs poorly in both phases",
        "yes",
        format!(
            "{} and {} of Jenga's speed",
            percent(stable("hybridtier") / stable("jenga")),
            percent(after("hybridtier") / after("jenga"))
        ),
        stable("hybridtier") < 0.9 * stable("jenga") && after("hybridtier") < 0.9 * after("jenga"),
    );
    for system in ["tpp", "nomad"] {
        let share = stable(system) / stable("jenga");
        rows.claim(
            format!("{system} is slow even in the stable phase"),
            "yes",
            format!("{} of Jenga's speed", percent(share)),
            share < 0.9,
        );
    }
    rows.claim(
        "Jenga is both fast when stable and quick to adapt",
        "the only one",
        format!(
            "stable {} of the fastest of the paper's systems; back at nine tenths after {} of {} windows (Memtis-QC {})",
            percent(stable("jenga") / PAPERS.iter().map(|system| stable(system)).fold(0.0, f64::max)),
            slow_windows("jenga"),
            WINDOWS / 2,
            slow_windows("memtis-qc")
        ),
        PAPERS.iter().all(|system| stable(system) <= 1.02 * stable("jenga")) && back("jenga") > 0.9,
    );
    let lines = systems().map(|system| (system.to_owned(), of(system).rates())).collect();
    Figure {
        id,
        title: "FlexKVS through a change of its hot set",
        claim: "No previous system achieves both high performance in a stable phase and timely adaptation: Memtis never adapts, \
                Memtis-QC is unstable, HybridTier poor in both, TPP and Nomad slow throughout.",
        run_with: about(options),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Throughput; the hot set changes in the middle of the run's accesses".into(),
            axes: ["s (at full size)", "M accesses/s"],
            drawing: Drawing::Lines(lines),
        }],
        note: "Each run has the same accesses, so a slower system's change comes later. Stable: the second quarter of the accesses; \
               after: the last. hemem, first-touch, terrace (ours) and oracle (which is told what comes, and does not ask what moves \
               cost) are not in the paper."
            .into(),
    }
}

/// Geometric mean over programs of a system's speed over Jenga's.
fn overall(results: &Results, system: &'static str, large: bool) -> f64 {
    geomean(ALL.iter().map(|program| results.speed(program, system, if large { LARGE_GB } else { program.wss_gb })))
}

/// The paper's system that is best but Jenga.
fn next_best(of: impl Fn(&'static str) -> f64) -> (&'static str, f64) {
    PAPERS.into_iter().skip(1).map(|system| (system, of(system))).max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are others")
}

fn figure_7(results: &Results, options: &Options) -> Figure {
    let id = "jenga-fig7";
    let mut rows = Rows::of(id);
    for (large, paper, name) in [(false, 1.28, "fast tier = WSS"), (true, 1.15, "fast tier 16 GB")] {
        let (system, speed) = next_best(|system| overall(results, system, large));
        rows.number(format!("Jenga over the next best on average ({system} here), {name}"), "×", paper, 1.0 / speed, 0.05);
        rows.claim(
            format!("Jenga is the best on average, {name}"),
            "yes",
            PAPERS
                .into_iter()
                .skip(1)
                .map(|system| format!("{system} {}", short(overall(results, system, large))))
                .collect::<Vec<_>>()
                .join(", "),
            speed < 1.0,
        );
    }
    let at = |name: &str, system| results.speed(program(name), system, program(name).wss_gb);
    let hits = |name: &str, system| results.system(program(name), system, program(name).wss_gb).hit_rate * 100.0;
    let against = |name: &str| next_best(|system| at(name, system));
    let over = |name: &str| {
        let (system, speed) = against(name);
        format!("{} times {system}", short(1.0 / speed))
    };
    rows.at_least("Btree: Jenga over the next best (\">50 %\")", "×", 1.5, 1.0 / against("Btree").1);
    rows.number("Btree: Jenga's hit rate", "%", 83.0, hits("Btree", "jenga"), WITHIN);
    rows.number("Btree: Memtis's hit rate", "%", 65.0, hits("Btree", "memtis"), WITHIN);
    rows.claim("Silo: Jenga is the best", "yes", over("Silo"), against("Silo").1 < 1.0);
    for name in ["GAPBS-BC", "GAPBS-PR", "Graph500"] {
        rows.claim(format!("{name}: Jenga equals or surpasses the next best"), "yes", over(name), against(name).1 < 1.02);
    }
    let worse = HINTING.iter().map(|system| hits("GAPBS-PR", system)).fold(0.0, f64::max);
    rows.claim(
        "GAPBS-PR: hinting systems have a poor hit rate",
        "yes",
        format!("at most {} %, Jenga {} %", short(worse), short(hits("GAPBS-PR", "jenga"))),
        worse < hits("GAPBS-PR", "jenga"),
    );
    rows.at_least("FlexKVS: Jenga over the next best (\">30 %\")", "×", 1.3, 1.0 / against("FlexKVS").1);
    let xsbench = against("XSBench");
    rows.number(format!("XSBench: Jenga over the best ({} here; the paper's is HybridTier)", xsbench.0), "×", 0.93, 1.0 / xsbench.1, 0.05);
    let low = PAPERS.iter().map(|system| hits("XSBench", system)).fold(f64::MAX, f64::min);
    rows.claim("XSBench: all hit rates are above 80 %", "yes", format!("the lowest is {} %", short(low)), low > 80.0);
    let unmoved = results.system(program("XSBench"), "hybridtier", 4.0).migrations;
    rows.claim("XSBench: HybridTier moves nothing", "yes", format!("{} moves at full size", short(unmoved)), unmoved < 100.0);
    let worst = PAPERS.into_iter().min_by(|a, b| at("XSBench", a).total_cmp(&at("XSBench", b))).unwrap_or("jenga");
    rows.claim(
        "XSBench: Memtis-QC is the worst",
        "yes",
        format!("{worst} is ({} of Jenga's speed)", percent(at("XSBench", worst))),
        worst == "memtis-qc",
    );
    rows.claim("603.bwaves_s: Jenga is the best", "yes", over("603.bwaves_s"), against("603.bwaves_s").1 < 1.0);
    rows.number("654.roms_s: Jenga over Memtis-QC", "×", 0.95, 1.0 / at("654.roms_s", "memtis-qc"), 0.05);
    rows.number("Liblinear: Jenga over Memtis-QC", "×", 2.0, 1.0 / at("Liblinear", "memtis-qc"), WITHIN);
    let similar = at("Liblinear", "memtis");
    rows.claim(
        "Liblinear: Memtis is similar to Jenga",
        "yes",
        format!("{} of its speed", percent(similar)),
        (0.9..=1.1).contains(&similar),
    );
    let fits = ["XSBench", "654.roms_s", "603.bwaves_s"].map(|name| results.system(program(name), "jenga", LARGE_GB).hit_rate);
    rows.unjudged(
        "16 GB hold all of XSBench, roms and bwaves",
        "hit rate 100 %, no moves",
        format!("the stand-ins' 12 GB were chosen for it (hit rates {} %)", fits.map(|hit| short(hit * 100.0)).join(", ")),
    );
    let hinting = HINTING.iter().map(|system| overall(results, system, false)).fold(0.0, f64::max);
    let sampling = ["memtis", "memtis-qc", "hybridtier"].iter().map(|system| overall(results, system, false)).fold(f64::MAX, f64::min);
    rows.claim(
        "hinting systems (Nomad, TPP, AutoNUMA) generally underperform sampling ones",
        "yes",
        format!("the best of them {} of Jenga's speed, the worst sampling one {}", percent(hinting), percent(sampling)),
        hinting < sampling,
    );
    let (small, big) = (overall(results, "memtis-qc", false), overall(results, "memtis-qc", true));
    rows.claim(
        "Memtis-QC falls back where the fast tier is larger",
        "yes",
        format!("{} and {} of Jenga's speed", percent(small), percent(big)),
        big < small,
    );
    for system in OTHERS {
        rows.ours(format!("{system} over Jenga on average, fast tier = WSS"), "×", overall(results, system, false));
        rows.ours(format!("{system} over Jenga on average, 16 GB"), "×", overall(results, system, true));
        let alike = geomean(large().map(|program| results.speed(program, system, program.wss_gb)));
        rows.ours(format!("{system} over Jenga, the eight without small objects, fast tier = WSS"), "×", alike);
    }
    let groups: Vec<String> = ALL.iter().map(|program| program.name.replace("GAPBS-", "").replace("_s", "")).collect();
    let bars = |large: bool| -> Vec<(String, Vec<f64>)> {
        let values =
            |system| ALL.iter().map(|program| results.speed(program, system, if large { LARGE_GB } else { program.wss_gb })).collect();
        systems().map(|system| (system.to_owned(), values(system))).collect()
    };
    let plot = |name: &str, title: &str, large| Plot {
        name: name.into(),
        title: title.into(),
        axes: ["", "speed over Jenga's"],
        drawing: Drawing::Bars(groups.clone(), bars(large)),
    };
    Figure {
        id,
        title: "Performance of all systems",
        claim: "Jenga outperforms the second best system by ∼28 % when the fast tier is the working set (8 GB for Btree and Silo, else 4 \
                GB) and by ∼15 % at 16 GB; it underperforms by 5 to 7 % on 654.roms_s and XSBench.",
        run_with: about(options),
        rows: rows.done(),
        plots: vec![
            plot(id, "Speed over Jenga's, fast tier = WSS", false),
            plot("jenga-fig7-16g", "Speed over Jenga's, fast tier 16 GB", true),
        ],
        note: "The averages are geometric, over the ten stand-ins; \"next best\" is the one other system with the best average. Where a \
               stand-in's hot set neither moves nor has small objects, sampling policies are close to each other: the paper's gains \
               there come from what this does not model, or from how unstable its Memtis-QC is, which adapts its thresholds each 100,000 \
               samples here (the paper does not say) and keeps its module's one-way rule. A stand-in is not its application: what is \
               said of an application is at most that the mechanism would explain it."
            .into(),
    }
}

fn figure_8(results: &Results, options: &Options) -> Figure {
    let id = "jenga-fig8";
    let hit =
        |system| mean(&ALL.iter().map(|program| results.system(program, system, program.wss_gb).hit_rate * 100.0).collect::<Vec<_>>());
    let moves = |system| mean(&ALL.iter().map(|program| results.system(program, system, program.wss_gb).migrations).collect::<Vec<_>>());
    let mut rows = Rows::of(id);
    let (second, second_hit) = next_best(hit);
    rows.claim(
        "Jenga has the highest hit rate",
        "yes",
        format!("{} %; {second} has {} %", short(hit("jenga")), short(second_hit)),
        hit("jenga") > second_hit,
    );
    rows.claim(
        "Memtis-QC has the second highest",
        "yes",
        format!("{} %; the best but Jenga is {second}", short(hit("memtis-qc"))),
        second == "memtis-qc",
    );
    rows.number("Memtis-QC's migrations over Jenga's", "×", 8.0, moves("memtis-qc") / moves("jenga"), WITHIN);
    rows.claim(
        "Jenga moves less than systems of comparable hit rate",
        "yes",
        format!("Jenga {} moves, Memtis-QC {}, Memtis {}", short(moves("jenga")), short(moves("memtis-qc")), short(moves("memtis"))),
        moves("jenga") < moves("memtis-qc"),
    );
    for system in systems() {
        rows.ours(format!("{system}: hit rate"), "%", hit(system));
        rows.ours(format!("{system}: moves over Jenga's"), "×", moves(system) / moves("jenga"));
    }
    for (about, set) in VARIANTS {
        let done: Vec<&Done> = ALL.iter().map(|program| results.get(program.name, false, &variant(set, program.wss_gb))).collect();
        rows.ours(format!("Memtis-QC {about}: hit rate"), "%", mean(&done.iter().map(|done| done.hit_rate * 100.0).collect::<Vec<_>>()));
        let moved = mean(&done.iter().map(|done| done.migrations).collect::<Vec<_>>());
        rows.ours(format!("Memtis-QC {about}: moves over Jenga's"), "×", moved / moves("jenga"));
    }
    let points = systems().map(|system| (system.to_owned(), (moves(system) / moves("jenga"), hit(system)))).collect();
    Figure {
        id,
        title: "Hit rate against migrations",
        claim: "Jenga has the highest hit rate of all systems; Memtis-QC has the second highest, with ∼8× more migrations.",
        run_with: about(options),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Averages over the ten stand-ins, fast tier = WSS".into(),
            axes: ["moves over Jenga's", "hit rate, %"],
            drawing: Drawing::Points(points),
        }],
        note: "Arithmetic means over the ten. How much Memtis-QC moves depends on when its thresholds adapt: with the module's rule (the \
               first adaptation after a cooling may only lower the hot threshold) and cooling each 120,000 samples the threshold rarely \
               rises, which holds moves down. Jenga's own moves follow what its stand-ins change."
            .into(),
    }
}

fn figure_9(results: &Results, options: &Options) -> Figure {
    let id = "jenga-fig9";
    let mut rows = Rows::of(id);
    let mut plots = Vec::new();
    for (name, paper) in SAVINGS.into_iter().zip([2.5, 4.0, 2.0]) {
        let program = program(name);
        let jenga = results.system(program, "jenga", program.wss_gb).seconds;
        let speed = |system, times: f64| jenga / results.get(name, false, &Run::of(system, program.wss_gb * times)).seconds;
        let best = |times: f64| next_best(|system| speed(system, times));
        // Between the two multiples where the best other system passes Jenga, in a straight line.
        let pairs = MULTIPLES.windows(2).map(|pair| (pair[0], best(pair[0]).1, pair[1], best(pair[1]).1));
        let crossing = pairs
            .into_iter()
            .find(|(_, below, _, above)| *below < 1.0 && *above >= 1.0)
            .map(|(from, below, to, above)| from + (to - from) * (1.0 - below) / (above - below));
        let savings = if best(1.0).1 >= 1.0 { 1.0 } else { crossing.unwrap_or(MULTIPLES[MULTIPLES.len() - 1]) };
        rows.number(format!("{name}: fast tier of the next best system at Jenga's performance, over Jenga's"), "×", paper, savings, WITHIN);
        let (system, at_most) = best(MULTIPLES[MULTIPLES.len() - 1]);
        rows.claim(
            format!("{name}: others need more fast memory for Jenga's performance"),
            "yes",
            format!("{}× ({system} at 4×: {} of Jenga's speed at 1×)", short(savings), percent(at_most)),
            savings > 1.1,
        );
        let lines = PAPERS
            .into_iter()
            .skip(1)
            .map(|system| (system.to_owned(), MULTIPLES.iter().map(|times| (*times, speed(system, *times))).collect()))
            .collect();
        let name_of = if plots.is_empty() { id.to_owned() } else { format!("{id}-{}", name.to_lowercase()) };
        plots.push(Plot {
            name: name_of,
            title: format!("{name}: speed over Jenga's with a fast tier of the working set"),
            axes: ["fast tier over the working set", ""],
            drawing: Drawing::Lines(lines),
        });
    }
    Figure {
        id,
        title: "Memory savings",
        claim: "With a fast tier of the working set Jenga matches others with 2.5 times as much on Btree, 4 times on Silo, and almost 2 \
                times on FlexKVS.",
        run_with: format!("{} Other systems at {} times the working set.", about(options), MULTIPLES.map(short).join(", ")),
        rows: rows.done(),
        plots,
        note: "What grouping by context saves depends on how much of the memory the hot part of the index is (Figure 2). Silo's stand-in \
               gains less than Silo: contexts tell its keys and entries, which every search reads, from its values, but not popular \
               records from others."
            .into(),
    }
}

fn figure_10(results: &Results, options: &Options) -> Figure {
    let id = "jenga-fig10";
    let steps =
        [("Memtis-QC", "memtis-qc", false), ("+ smooth", "jenga", false), ("+ context", "memtis-qc", true), ("both", "jenga", true)];
    let of = |name: &str, (_, system, context): (&str, &'static str, bool)| {
        let program = program(name);
        results.get(name, context && program.has_objects(), &Run::of(system, program.wss_gb))
    };
    let speed = |name: &str, step: usize| of(name, steps[0]).seconds / of(name, steps[step]).seconds;
    let moves = |name: &str, step: usize| of(name, steps[step]).migrations / of(name, steps[0]).migrations.max(1.0);
    let mut rows = Rows::of(id);
    for name in ["FlexKVS", "GAPBS-PR"] {
        rows.claim(
            format!("{name}: smooth hotness reduces migrations significantly"),
            "yes",
            format!("{} times Memtis-QC's, speed {}×", short(moves(name, 1)), short(speed(name, 1))),
            moves(name, 1) < 0.8,
        );
    }
    rows.claim(
        "Btree: contexts on top improve performance significantly",
        "yes",
        format!("{}×, from {}×", short(speed("Btree", 3)), short(speed("Btree", 1))),
        speed("Btree", 3) > 1.1 * speed("Btree", 1),
    );
    rows.claim(
        "Btree: and reduce migrations further",
        "yes",
        format!("{}× instead of {}×", short(moves("Btree", 3)), short(moves("Btree", 1))),
        moves("Btree", 3) < moves("Btree", 1),
    );
    for name in ABLATION {
        for (step, (label, ..)) in steps.iter().enumerate().skip(1) {
            rows.ours(format!("{name}, {label}: speed over Memtis-QC's"), "×", speed(name, step));
            rows.ours(format!("{name}, {label}: moves over Memtis-QC's"), "×", moves(name, step));
        }
    }
    let groups: Vec<String> = ABLATION.map(str::to_owned).to_vec();
    let bars = |of: &dyn Fn(&str, usize) -> f64| {
        steps
            .iter()
            .enumerate()
            .map(|(step, (label, ..))| ((*label).to_owned(), ABLATION.iter().map(|name| of(name, step)).collect()))
            .collect()
    };
    Figure {
        id,
        title: "Ablation",
        claim: "Smooth hotness tracking significantly reduces migrations for FlexKVS and GAPBS-PR; context-based allocation on top \
                improves Btree significantly and reduces migrations further.",
        run_with: about(options),
        rows: rows.done(),
        plots: vec![
            Plot {
                name: id.into(),
                title: "Speed over Memtis-QC's".into(),
                axes: ["", ""],
                drawing: Drawing::Bars(groups.clone(), bars(&speed)),
            },
            Plot {
                name: "jenga-fig10-moves".into(),
                title: "Moves over Memtis-QC's".into(),
                axes: ["", ""],
                drawing: Drawing::Bars(groups, bars(&moves)),
            },
        ],
        note: "Memtis-QC here keeps its module's rule by which the first adaptation after a cooling may only lower the hot threshold; \
               Jenga is run without that rule, which the paper's text does not have. So \"+ smooth\" is more than the decay alone."
            .into(),
    }
}

fn figure_11(results: &Results, options: &Options) -> Figure {
    let id = "jenga-fig11";
    let of = |program: &Program, system, interval: &str| results.get(program.name, false, &cooling(system, interval, program.wss_gb));
    let slowdown =
        |interval: &str| geomean(large().map(|program| of(program, "memtis", interval).seconds / of(program, "jenga", interval).seconds));
    let moves = |system, interval: &str| mean(&large().map(|program| of(program, system, interval).migrations).collect::<Vec<_>>());
    let ratio = |interval: &str| moves("memtis", interval) / moves("jenga", interval);
    let range = |system: &'static str| {
        let speeds = INTERVALS.map(|interval| geomean(large().map(|program| 1.0 / of(program, system, interval).seconds)));
        speeds.iter().copied().fold(f64::MIN, f64::max) / speeds.iter().copied().fold(f64::MAX, f64::min)
    };
    let mut rows = Rows::of(id);
    rows.number("Memtis's migrations over Jenga's, 100K samples", "×", 4.0, ratio("100K"), WITHIN);
    rows.number("Memtis's migrations over Jenga's, 2M samples (\"up to\")", "×", 2.0, ratio("2M"), WITHIN);
    rows.claim("Jenga outperforms Memtis at 2M samples", "yes", format!("{}×", short(slowdown("2M"))), slowdown("2M") > 1.0);
    rows.claim(
        "Jenga outperforms Memtis at every interval",
        "yes",
        INTERVALS.map(|interval| format!("{interval} {}×", short(slowdown(interval)))).join(", "),
        INTERVALS.iter().all(|interval| slowdown(interval) > 1.0),
    );
    rows.claim(
        "Jenga is less sensitive to the interval",
        "yes",
        format!("its best average speed is {} times its worst, Memtis's {}", short(range("jenga")), short(range("memtis"))),
        range("jenga") < range("memtis"),
    );
    let groups: Vec<String> = INTERVALS.map(str::to_owned).to_vec();
    let bars = vec![("slowdown".to_owned(), INTERVALS.map(slowdown).to_vec()), ("moves".to_owned(), INTERVALS.map(ratio).to_vec())];
    Figure {
        id,
        title: "Sensitivity to the cooling interval",
        claim: "Memtis is significantly more sensitive to the cooling interval: 4× the migrations at small intervals, and up to 2× at \
                its default of 2M samples, where Jenga outperforms it too.",
        run_with: format!(
            "{} The eight stand-ins without small objects, fast tier = WSS; moves are arithmetic means, slowdowns geometric.",
            about(options)
        ),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Memtis over Jenga with the same interval".into(),
            axes: ["samples in a cooling period", "×"],
            drawing: Drawing::Bars(groups, bars),
        }],
        note: "The paper does not say on which applications it varied the interval. Thresholds adapt each 100,000 samples in both, \
               whatever the interval."
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_made_once_and_all_that_figures_look_up_are_made() {
        let tasks = tasks(&["jenga-fig7", "jenga-fig9", "jenga-fig10", "jenga-fig11"]);
        for task in &tasks {
            for (number, run) in task.runs.iter().enumerate() {
                assert!(!task.runs[..number].contains(run), "{} {run:?}", task.program.name);
            }
        }
        // Ten programs, of which two have their objects in either layout.
        assert_eq!(tasks.len(), 12);
    }

    #[test]
    fn means_by_hand() {
        assert!((geomean([1.0, 4.0].into_iter()) - 2.0).abs() < 1e-12);
        assert!((spread(&[1.0, 3.0]) - 0.5).abs() < 1e-12);
    }
}
