//! Figures that run policies on the ten programs: 1 (heatmaps), 3 (through a jump), 7 and 8 (all
//! systems), 9 (memory savings), 10 (ablation), 11 (cooling interval).

use super::programs::{ALL, Map, OTHER_PACE, Program, heatmap, program, size};
use crate::reproduce::figure::{Figure, Rows, percent, short};
use crate::reproduce::plot::{Drawing, Plot};
use crate::reproduce::study::{Done, Run, SAMPLE_PERIOD, WINDOWS};
use crate::reproduce::{Options, parallel};
use anyhow::Result;

/// Systems that the paper compares, Jenga first.
const PAPERS: [&str; 7] =
    ["jenga", "memtis-qc", "memtis", "hybridtier", "tpp", "nomad", "autonuma"];
/// Other systems, for the reader.
const OTHERS: [&str; 4] = ["hemem", "first-touch", "terrace", "oracle"];
/// Systems that learn from hint faults.
const HINTING: [&str; 3] = ["tpp", "nomad", "autonuma"];
/// The larger fast tier of §3.1.
const LARGE_GB: f64 = 16.0;
/// Share by which a number of the paper's may differ that depends on the applications.
const WITHIN: f64 = 0.2;
/// Ratio of run times from which a system counts as better than another. One that is behind by less
/// counts as equally good.
const CLEARLY: f64 = 1.02;

/// Conditions under which the headlines are looked at again: real accesses from one sample to the
/// next, and what a move costs.
const CONDITIONS: [(&str, f64, f64); 5] = [
    ("one sample in 1009", 1009.0, 1.0),
    ("one sample in 50,021", 50_021.0, 1.0),
    ("moves at no cost", SAMPLE_PERIOD, 0.0),
    ("moves at 10 times the cost", SAMPLE_PERIOD, 10.0),
    ("moves at 50 µs for each 4 KiB (§7.5)", SAMPLE_PERIOD, 64.0),
];
/// Systems that are run under `CONDITIONS`; all other systems are behind them.
const LEADING: [&str; 3] = ["jenga", "memtis-qc", "memtis"];

fn under((_, sample_period, move_cost): (&str, f64, f64), run: Run) -> Run {
    Run { sample_period, move_cost, ..run }
}

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
        let found = self
            .0
            .iter()
            .filter(|(name, context, _)| *name == program && *context == by_context)
            .flat_map(|(_, _, done)| done);
        found.into_iter().find(|done| done.run == *run).expect("it was asked for")
    }

    /// A system with its own allocator: Jenga's groups by context.
    fn system(&self, program: &Program, system: &'static str, fast_gb: f64) -> &Done {
        self.get(program.name, by_context(program, system), &Run::of(system, fast_gb))
    }

    /// Speed of a system over Jenga's.
    fn speed(&self, program: &Program, system: &'static str, fast_gb: f64) -> f64 {
        self.system(program, "jenga", fast_gb).seconds
            / self.system(program, system, fast_gb).seconds
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
    Run::of(policy, gb).with(format!("{policy}.cooling={interval}"))
}

/// Memtis-QC in other ways, to see what its figures hang on.
const VARIANTS: [(&str, &str); 2] = [
    ("without the module's one-way rule", "memtis-qc.one-way=off"),
    ("adapting each 30,000 samples", "memtis-qc.adapt=30K"),
];

fn variant(set: &str, gb: f64) -> Run {
    Run::of("memtis-qc", gb).with(set.to_owned())
}

/// Programs of large objects, on which alone policies differ.
fn large() -> impl Iterator<Item = &'static Program> {
    ALL.iter().filter(|program| !program.has_objects())
}

/// What the wanted figures need, each run once.
fn tasks(wanted: &[&'static str], own_gb: &[f64]) -> Vec<Task> {
    let wants = |figures: &[&str]| wanted.iter().any(|id| figures.contains(id));
    let mut tasks: Vec<Task> = Vec::new();
    let mut add = |program: &'static Program, by_context: bool, run: Run| {
        let known = tasks
            .iter_mut()
            .find(|task| task.program.name == program.name && task.by_context == by_context);
        match known {
            Some(task) if task.runs.contains(&run) => {}
            Some(task) => task.runs.push(run),
            None => tasks.push(Task { program, by_context, runs: vec![run] }),
        }
    };
    for (number, program) in ALL.iter().enumerate() {
        let flex = program.name == "FlexKVS";
        if wants(&["jenga-fig7", "jenga-fig8"]) || flex && wants(&["jenga-fig3"]) {
            for gb in [program.wss_gb, LARGE_GB] {
                systems().for_each(|system| {
                    add(program, by_context(program, system), Run::of(system, gb))
                });
            }
        }
        if let Some(own_gb) = own_gb.get(number) {
            PAPERS.into_iter().chain(["terrace"]).for_each(|system| {
                add(program, by_context(program, system), Run::of(system, *own_gb))
            });
        }
        if wants(&["jenga-fig3", "jenga-fig7", "jenga-fig8"]) {
            for condition in CONDITIONS {
                for system in LEADING {
                    for gb in [program.wss_gb, LARGE_GB] {
                        add(
                            program,
                            by_context(program, system),
                            under(condition, Run::of(system, gb)),
                        );
                    }
                }
                if program.name == "XSBench" {
                    add(program, false, under(condition, Run::of("hybridtier", program.wss_gb)));
                }
            }
        }
        if wants(&["jenga-fig8"]) {
            VARIANTS.iter().for_each(|(_, set)| add(program, false, variant(set, program.wss_gb)));
        }
        if SAVINGS.contains(&program.name) && wants(&["jenga-fig9"]) {
            add(program, by_context(program, "jenga"), Run::of("jenga", program.wss_gb));
            for system in PAPERS.into_iter().skip(1) {
                MULTIPLES
                    .iter()
                    .for_each(|times| add(program, false, Run::of(system, program.wss_gb * times)));
            }
        }
        if ABLATION.contains(&program.name) && wants(&["jenga-fig10"]) {
            for context in [false, program.has_objects()] {
                ["memtis-qc", "jenga"]
                    .into_iter()
                    .for_each(|system| add(program, context, Run::of(system, program.wss_gb)));
            }
        }
        if !program.has_objects() && wants(&["jenga-fig11"]) {
            for interval in INTERVALS {
                ["memtis", "jenga"].into_iter().for_each(|system| {
                    add(program, false, cooling(system, interval, program.wss_gb))
                });
            }
        }
    }
    if wants(&["jenga-fig7"]) {
        for (_, program) in &OTHER_PACE {
            tasks.push(Task {
                program,
                by_context: false,
                runs: LEADING.map(|system| Run::of(system, program.wss_gb)).to_vec(),
            });
        }
    }
    tasks
}

/// What each program touches.
fn maps(options: &Options) -> Result<Vec<Map>> {
    let columns = if options.quick { 24 } else { 48 };
    parallel(
        &ALL.iter().collect::<Vec<_>>(),
        |program| format!("heatmap of {}", program.name),
        |program| {
            let (memory, accesses) = program.prepare(true, options)?;
            heatmap(&memory, accesses.source().as_mut(), columns, columns)
        },
    )
}

/// The wanted figures that this file has.
pub fn figures(wanted: &[&'static str], options: &Options) -> Result<Vec<Figure>> {
    let maps = if ["jenga-fig1", "jenga-fig7"].iter().any(|id| wanted.contains(id)) {
        maps(options)?
    } else {
        Vec::new()
    };
    // To a hundredth; a fast tier of nothing there is not.
    let own_gb: Vec<f64> =
        maps.iter().map(|map| (map.wss_gb * 100.0).round().max(1.0) / 100.0).collect();
    let tasks = tasks(wanted, if wanted.contains(&"jenga-fig7") { &own_gb } else { &[] });
    let name = |task: &Task| format!("{}, {} runs", task.program.name, task.runs.len());
    let done =
        parallel(&tasks, name, |task| task.program.run(task.by_context, &task.runs, options))?;
    let results = Results(
        tasks
            .iter()
            .zip(done)
            .map(|(task, done)| (task.program.name, task.by_context, done))
            .collect(),
    );
    let mut figures = Vec::new();
    for id in wanted {
        match *id {
            "jenga-fig1" => figures.push(figure_1(&maps)),
            "jenga-fig3" => figures.push(figure_3(&results, options)),
            "jenga-fig7" => figures.push(figure_7(&results, &own_gb, options)),
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

fn figure_1(maps: &[Map]) -> Figure {
    let id = "jenga-fig1";
    let mut rows = Rows::of(id);
    for (program, map) in ALL.iter().zip(maps) {
        rows.beside(
            format!("{}: working set, pages of 4 KiB touched in 50 ms (§3.1)", program.name),
            "GB",
            program.wss_gb,
            map.wss_gb,
        );
        rows.ours(format!("{}: the same in regions of 2 MiB", program.name), "GB", map.regions_gb);
    }
    rows.unjudged(
        "which applications change their working set",
        "BC, PR, FlexKVS, Liblinear, 654.roms_s (Table 1)",
        "the stand-ins were made so; Figure 1's caption counts Graph500 among those that change and 654.roms_s among the stable ones, \
         against Table 1 and §7.1.6",
    );
    let stand_ins: Vec<String> =
        ALL.iter().map(|program| format!("{}: {}", program.name, program.about)).collect();
    Figure {
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
            drawing: Drawing::Heat(
                ALL.iter()
                    .zip(maps)
                    .map(|(program, map)| (program.name.to_owned(), map.cells.clone()))
                    .collect(),
            ),
        }],
        note: "By §3.1 the working set is what is touched in periods of 50 ms; the paper chose its inputs so that this is about 4 GB, and \
               sized the fast tier by it. Here the stand-ins have the paper's fast tiers, 8 and 4 GB, and their own working sets are shown \
               beside, at the speed of the fast tier. Figure 7 has the systems with those as fast tiers too. How large they are hangs on \
               the size of a page (the paper's programs have both), and on how fast the program is."
            .into(),
    }
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
    (values.iter().map(|value| (value - mean_of).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
        / mean_of
}

fn figure_3(results: &Results, options: &Options) -> Figure {
    let id = "jenga-fig3";
    let flex = program("FlexKVS");
    let of = |system| results.system(flex, system, flex.wss_gb);
    // The last quarter before the jump, and the last of the run.
    let steady = |done: &Done| mean(&rates(done, 0.25..0.5));
    let before = |system| rates(of(system), 0.25..0.5);
    let after = |system| mean(&rates(of(system), 0.75..1.0));
    let stable = |system| steady(of(system));
    let back = |system| after(system) / stable(system);
    // Windows after the jump until nine tenths of what it was.
    let slow_windows = |system| {
        rates(of(system), 0.5..1.0)
            .iter()
            .position(|rate| *rate >= 0.9 * stable(system))
            .unwrap_or(WINDOWS as usize / 2)
    };
    let mut rows = Rows::of(id);
    rows.claim(
        "Memtis never adapts to the change",
        "yes",
        format!(
            "{} M accesses/s before, {} in the last quarter",
            short(stable("memtis")),
            short(after("memtis"))
        ),
        "in the last quarter it is below 70 % of what it was before",
        back("memtis") < 0.7,
    )
    .because("its counters, halved each 2M samples, forgot sooner than the run ended");
    rows.claim(
        "Memtis-QC adapts",
        "yes",
        format!("back at {} after the change", percent(back("memtis-qc"))),
        "it is back at 90 %",
        back("memtis-qc") > 0.9,
    )
    .because("a cooling each 120,000 samples was not enough in this run");
    rows.claim(
        "Memtis-QC is less steady in the stable phase",
        "yes",
        format!(
            "spread {} of the mean, Jenga's {}",
            percent(spread(&before("memtis-qc"))),
            percent(spread(&before("jenga")))
        ),
        "throughput is spread twice as much as Jenga's",
        spread(&before("memtis-qc")) > 2.0 * spread(&before("jenga")),
    )
    .because("the hot fifth is so much hotter than the rest that no sampling noise takes a region of it across the threshold");
    let otherwise = CONDITIONS.map(|condition| {
        let steady = |system| {
            steady(results.get(flex.name, false, &under(condition, Run::of(system, flex.wss_gb))))
        };
        format!("{} {}", condition.0, percent(steady("memtis-qc") / steady("jenga")))
    });
    rows.claim(
        "and performs poorly there",
        "yes",
        format!("{} of Jenga's speed", percent(stable("memtis-qc") / stable("jenga"))),
        "it has less than 95 % of Jenga's speed",
        stable("memtis-qc") < 0.95 * stable("jenga"),
    )
    .because(format!(
        "the regions that its sawtooth moves over and over are few, and a move costs little here. It hangs on that: in other conditions it has \
         of Jenga's speed: {}",
        otherwise.join(", ")
    ));
    rows.claim(
        "HybridTier performs poorly in both phases",
        "yes",
        format!(
            "{} and {} of Jenga's speed",
            percent(stable("hybridtier") / stable("jenga")),
            percent(after("hybridtier") / after("jenga"))
        ),
        "it has less than 90 % of Jenga's speed in both",
        stable("hybridtier") < 0.9 * stable("jenga") && after("hybridtier") < 0.9 * after("jenga"),
    )
    .because("its thresholds tell this hot set from the rest");
    for system in ["tpp", "nomad"] {
        let share = stable(system) / stable("jenga");
        rows.claim(
            format!("{system} is slow even in the stable phase"),
            "yes",
            format!("{} of Jenga's speed", percent(share)),
            "it has less than 90 % of Jenga's speed",
            share < 0.9,
        )
        .because("its scans found the hot set before the second quarter of the run");
    }
    rows.claim(
        "Jenga is both fast when stable and quick to adapt",
        "the only one",
        format!(
            "stable {} of the fastest of the paper's systems; back at nine tenths after {} of {} windows (Memtis-QC {})",
            percent(
                stable("jenga") / PAPERS.iter().map(|system| stable(system)).fold(0.0, f64::max)
            ),
            slow_windows("jenga"),
            WINDOWS / 2,
            slow_windows("memtis-qc")
        ),
        "when stable no other is 2 % faster, it comes back to 90 %, and sooner than any other that does",
        PAPERS.iter().all(|system| stable(system) <= CLEARLY * stable("jenga"))
            && back("jenga") > 0.9
            && PAPERS.iter().skip(1).all(|system| {
                stable(system) < 0.9 * stable("jenga")
                    || slow_windows(system) > slow_windows("jenga")
            }),
    )
    .because("Memtis-QC, with the same interval, is as fast and adapts as soon here");
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
    geomean(ALL.iter().map(|program| {
        results.speed(program, system, if large { LARGE_GB } else { program.wss_gb })
    }))
}

/// The paper's system that is best but Jenga.
fn next_best(of: impl Fn(&'static str) -> f64) -> (&'static str, f64) {
    PAPERS
        .into_iter()
        .skip(1)
        .map(|system| (system, of(system)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("there are others")
}

fn large_programs_speed<'r>(
    results: &'r Results,
    system: &'static str,
    large_tier: bool,
) -> impl Iterator<Item = f64> + use<'r> {
    large().map(move |program| {
        results.speed(program, system, if large_tier { LARGE_GB } else { program.wss_gb })
    })
}

fn figure_7(results: &Results, own_gb: &[f64], options: &Options) -> Figure {
    let id = "jenga-fig7";
    let mut rows = Rows::of(id);
    let lead = |condition, large: bool| {
        let run = |program: &Program, system| {
            let run =
                under(condition, Run::of(system, if large { LARGE_GB } else { program.wss_gb }));
            results.get(program.name, by_context(program, system), &run).seconds
        };
        let over = |system| {
            geomean(ALL.iter().map(|program| run(program, system) / run(program, "jenga")))
        };
        over("memtis").min(over("memtis-qc"))
    };
    let leads = |large: bool| {
        CONDITIONS
            .map(|condition| format!("{} {}×", condition.0, short(lead(condition, large))))
            .join(", ")
    };
    for (large, paper, name) in [(false, 1.28, "fast tier = WSS"), (true, 1.15, "fast tier 16 GB")]
    {
        let (system, speed) = next_best(|system| overall(results, system, large));
        let why = format!(
            "where no hot set moves and no object is small, sampling policies find the same pages (rows by application), and their moves are \
             a small part of the time. Jenga over the better of Memtis and Memtis-QC in other conditions: {}",
            leads(large)
        );
        rows.number(
            format!("Jenga over the next best on average ({system} here), {name}"),
            "×",
            paper,
            1.0 / speed,
            0.05,
        )
        .because(&*why);
        rows.claim(
            format!("Jenga is the best on average, {name}"),
            "yes",
            PAPERS
                .into_iter()
                .skip(1)
                .map(|system| format!("{system} {}", short(overall(results, system, large))))
                .collect::<Vec<_>>()
                .join(", "),
            "it is 2 % faster than any other",
            speed * CLEARLY < 1.0,
        )
        .because(why);
    }
    let own = |program: &Program, system| {
        let at =
            ALL.iter().position(|other| other.name == program.name).expect("it is one of them");
        results.system(program, system, own_gb[at]).seconds
    };
    let (second, speed) = next_best(|system| {
        geomean(ALL.iter().map(|program| own(program, "jenga") / own(program, system)))
    });
    rows.ours(format!("Jenga over the next best ({second}), fast tier = the stand-in's own working set (Figure 1)"), "×", 1.0 / speed);
    let at = |name: &str, system| results.speed(program(name), system, program(name).wss_gb);
    let of = |name: &str, system| results.system(program(name), system, program(name).wss_gb);
    let hits = |name: &str, system| of(name, system).hit_rate * 100.0;
    let against = |name: &str| next_best(|system| at(name, system));
    let over = |name: &str| {
        let (system, speed) = against(name);
        format!("{} times {system}", short(1.0 / speed))
    };
    // What hits and moves make of both.
    let compared = |name: &str, system| {
        let of = |system| {
            let done = of(name, system);
            format!(
                "{system} has {} % hits and makes {} moves",
                short(done.hit_rate * 100.0),
                short(done.migrations)
            )
        };
        format!("{}, {}, at 0.4 ms each", of("jenga"), of(system))
    };
    let in_conditions = |name: &str| {
        let by = CONDITIONS.map(|condition| {
            let seconds = |system| {
                results
                    .get(
                        name,
                        by_context(program(name), system),
                        &under(condition, Run::of(system, program(name).wss_gb)),
                    )
                    .seconds
            };
            format!("{} {}×", condition.0, short(seconds("memtis-qc") / seconds("jenga")))
        });
        format!("Jenga over Memtis-QC in other conditions: {}", by.join(", "))
    };
    rows.at_least(
        "Btree: Jenga over the next best (\">50 %\")",
        "×",
        1.5,
        1.0 / against("Btree").1,
    )
    .because(
        "the hit rates are the paper's, and at 80 and 300 ns its 83 and 65 % make 157 / 117 ns = 1.34 times; for 1.5 the slow tier would have \
         to take 500 ns, or the other systems' moves be felt more",
    );
    rows.number("Btree: Jenga's hit rate", "%", 83.0, hits("Btree", "jenga"), WITHIN)
        .because("Figure 2's reasons");
    rows.number("Btree: Memtis's hit rate", "%", 65.0, hits("Btree", "memtis"), WITHIN)
        .because("Figure 2's reasons");
    rows.claim(
        "Silo: Jenga is the best",
        "yes",
        over("Silo"),
        "it is 2 % faster than any other",
        against("Silo").1 * CLEARLY < 1.0,
    )
    .because("contexts do not tell its popular records");
    for name in ["GAPBS-BC", "GAPBS-PR", "Graph500"] {
        rows.claim(
            format!("{name}: Jenga equals or surpasses the next best"),
            "yes",
            over(name),
            "no other is 2 % faster",
            against(name).1 < CLEARLY,
        )
        .because(format!(
            "who follows what is hot pays for the moves: {}",
            compared(name, against(name).0)
        ));
    }
    let worse = HINTING.iter().map(|system| hits("GAPBS-PR", system)).fold(0.0, f64::max);
    rows.claim(
        "GAPBS-PR: hinting systems have a poor hit rate",
        "yes",
        format!("at most {} %, Jenga {} %", short(worse), short(hits("GAPBS-PR", "jenga"))),
        "the best of them is below Jenga's",
        worse < hits("GAPBS-PR", "jenga"),
    )
    .because("scans found this hot set");
    rows.at_least(
        "FlexKVS: Jenga over the next best (\">30 %\")",
        "×",
        1.3,
        1.0 / against("FlexKVS").1,
    )
    .because(format!(
        "Memtis-QC neither thrashes nor is slow here (Figure 3), with the same cooling interval; {}",
        in_conditions("FlexKVS")
    ));
    let xsbench = against("XSBench");
    let best = xsbench.0;
    let metric = format!("XSBench: Jenga over the best ({best} here; the paper's is HybridTier)");
    rows.number(metric, "×", 0.93, 1.0 / xsbench.1, 0.05).because(format!(
        "what is hot is in the fast tier from the beginning, so that moves alone make a difference: {}",
        compared("XSBench", best)
    ));
    let low = PAPERS
        .into_iter()
        .min_by(|a, b| hits("XSBench", a).total_cmp(&hits("XSBench", b)))
        .expect("there are some");
    rows.claim(
        "XSBench: all hit rates are above 80 %",
        "yes",
        format!("the lowest is {} % ({low})", short(hits("XSBench", low))),
        "the lowest is",
        hits("XSBench", low) > 80.0,
    )
    .because(format!(
        "{} % hit if nothing is moved. {low} moves {} regions: it sees of a region whether it was touched between two polls, which all of this \
         stand-in's are; of pages of 4 KiB it would see more",
        short(hits("XSBench", "first-touch")),
        short(of("XSBench", low).migrations)
    ));
    let unmoved = |condition| {
        results.get("XSBench", false, &under(condition, Run::of("hybridtier", 4.0))).migrations
    };
    let moved = results.system(program("XSBench"), "hybridtier", 4.0).migrations;
    rows.claim(
        "XSBench: HybridTier moves nothing",
        "yes",
        format!("{} moves of 12 GB, which are 6144 regions", short(moved)),
        "fewer than 100",
        moved < 100.0,
    )
    .because(format!(
        "its thresholds count samples, so that it hangs on how many there are: {}; and it keeps a part of the fast tier free, for which it \
         must move something",
        CONDITIONS[..2]
            .iter()
            .map(|condition| format!("with {} it is {}", condition.0, short(unmoved(*condition))))
            .collect::<Vec<_>>()
            .join(", ")
    ));
    let worst = PAPERS
        .into_iter()
        .min_by(|a, b| at("XSBench", a).total_cmp(&at("XSBench", b)))
        .unwrap_or("jenga");
    rows.claim(
        "XSBench: Memtis-QC is the worst",
        "yes",
        format!(
            "{worst} is ({} of Jenga's speed; Memtis-QC {})",
            percent(at("XSBench", worst)),
            percent(at("XSBench", "memtis-qc"))
        ),
        "it is",
        worst == "memtis-qc",
    )
    .because(format!("Memtis-QC is not unstable here. {}", in_conditions("XSBench")));
    rows.claim(
        "603.bwaves_s: Jenga is the best",
        "yes",
        over("603.bwaves_s"),
        "it is 2 % faster than any other",
        against("603.bwaves_s").1 * CLEARLY < 1.0,
    )
    .because("the stand-in sweeps one third all the time, which all sampling systems find alike; what changes in 603.bwaves_s the paper does not say");
    rows.number(
        "654.roms_s: Jenga over Memtis-QC",
        "×",
        0.95,
        1.0 / at("654.roms_s", "memtis-qc"),
        0.05,
    )
    .because("it hangs on how its changes fall on the cooling interval: see the row with changes aligned to it");
    rows.number(
        "Liblinear: Jenga over Memtis-QC",
        "×",
        2.0,
        1.0 / at("Liblinear", "memtis-qc"),
        WITHIN,
    )
    .because(format!(
        "Memtis-QC does not move many times as much as Jenga ({}); {}",
        compared("Liblinear", "memtis-qc"),
        in_conditions("Liblinear")
    ));
    let similar = at("Liblinear", "memtis");
    rows.claim(
        "Liblinear: Memtis is similar to Jenga",
        "yes",
        format!("{} of its speed", percent(similar)),
        "it has 90 to 110 % of it",
        (0.9..=1.1).contains(&similar),
    )
    .because("the stand-in's hot set moves on faster than a cooling each 2M samples follows: see the row where it moves on more slowly");
    for (about, program) in &OTHER_PACE {
        let seconds =
            |system| results.get(program.name, false, &Run::of(system, program.wss_gb)).seconds;
        let name = program.name.split(',').next().unwrap_or_default();
        for system in ["memtis-qc", "memtis"] {
            rows.ours(
                format!("{name} {about}: Jenga over {system}"),
                "×",
                seconds(system) / seconds("jenga"),
            );
        }
    }
    let fits = ["XSBench", "654.roms_s", "603.bwaves_s"]
        .map(|name| results.system(program(name), "jenga", LARGE_GB).hit_rate);
    rows.unjudged(
        "16 GB hold all of XSBench, roms and bwaves",
        "hit rate 100 %, no moves",
        format!(
            "the stand-ins' 12 GB were chosen for it (hit rates {} %)",
            fits.map(|hit| short(hit * 100.0)).join(", ")
        ),
    );
    let hinting = HINTING.iter().map(|system| overall(results, system, false)).fold(0.0, f64::max);
    let sampling = ["memtis", "memtis-qc", "hybridtier"]
        .iter()
        .map(|system| overall(results, system, false))
        .fold(f64::MAX, f64::min);
    rows.claim(
        "hinting systems (Nomad, TPP, AutoNUMA) generally underperform sampling ones",
        "yes",
        format!(
            "the best of them {} of Jenga's speed, the worst sampling one {}",
            percent(hinting),
            percent(sampling)
        ),
        "the best of them is slower on average than the worst sampling one",
        hinting < sampling,
    )
    .because("HybridTier is slow here as well");
    let (small, big) = (overall(results, "memtis-qc", false), overall(results, "memtis-qc", true));
    rows.claim(
        "Memtis-QC falls back where the fast tier is larger",
        "yes",
        format!("{} and {} of Jenga's speed", percent(small), percent(big)),
        "it is further behind Jenga at 16 GB",
        big < small,
    )
    .because(format!(
        "with more room all are nearer to each other, unless moves cost more: Jenga over the better of Memtis and Memtis-QC at 16 GB: {}",
        leads(true)
    ));
    for condition in CONDITIONS {
        rows.ours(
            format!(
                "Jenga over the better of Memtis and Memtis-QC, fast tier = WSS, {}",
                condition.0
            ),
            "×",
            lead(condition, false),
        );
        rows.ours(
            format!("Jenga over the better of Memtis and Memtis-QC, 16 GB, {}", condition.0),
            "×",
            lead(condition, true),
        );
    }
    for system in OTHERS {
        rows.ours(
            format!("{system} over Jenga on average, fast tier = WSS"),
            "×",
            overall(results, system, false),
        );
        rows.ours(
            format!("{system} over Jenga on average, 16 GB"),
            "×",
            overall(results, system, true),
        );
        let alike = |large: bool| geomean(large_programs_speed(results, system, large));
        rows.ours(
            format!("{system} over Jenga, the eight without small objects, fast tier = WSS"),
            "×",
            alike(false),
        );
        rows.ours(
            format!("{system} over Jenga, the eight without small objects, 16 GB"),
            "×",
            alike(true),
        );
    }
    // Ours beside Jenga, where allocators do not matter.
    for program in large() {
        for (gb, name) in [(program.wss_gb, "fast tier = WSS"), (LARGE_GB, "16 GB")] {
            rows.ours(
                format!("{}: terrace over Jenga, {name}", program.name),
                "×",
                results.speed(program, "terrace", gb),
            );
            let (rival, best) = PAPERS
                .into_iter()
                .chain(["hemem"])
                .map(|system| (system, results.speed(program, system, gb)))
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .expect("there are rivals");
            let ours = results.speed(program, "terrace", gb) / best;
            rows.ours(
                format!(
                    "{}: terrace over the best of the published ({rival}), {name}",
                    program.name
                ),
                "×",
                ours,
            );
        }
    }
    let groups: Vec<String> =
        ALL.iter().map(|program| program.name.replace("GAPBS-", "").replace("_s", "")).collect();
    let bars = |large: bool| -> Vec<(String, Vec<f64>)> {
        let values = |system| {
            ALL.iter()
                .map(|program| {
                    results.speed(program, system, if large { LARGE_GB } else { program.wss_gb })
                })
                .collect()
        };
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
        note:
            "The averages are geometric, over the ten stand-ins; \"next best\" is the one other system with the best average. terrace is \
               our default policy: it has no allocator with it here, so that it is to be compared with Jenga on the eight without small \
               objects. Memtis-QC adapts its thresholds each 100,000 samples (the paper does not say when) and keeps its module's one-way \
               rule; Figure 8 has it without. A stand-in is not its application: what is said of an application is at most that the \
               mechanism would explain it."
                .into(),
    }
}

fn figure_8(results: &Results, options: &Options) -> Figure {
    let id = "jenga-fig8";
    let hit = |system| {
        mean(
            &ALL.iter()
                .map(|program| results.system(program, system, program.wss_gb).hit_rate * 100.0)
                .collect::<Vec<_>>(),
        )
    };
    let moves = |system| {
        mean(
            &ALL.iter()
                .map(|program| results.system(program, system, program.wss_gb).migrations)
                .collect::<Vec<_>>(),
        )
    };
    let mut rows = Rows::of(id);
    let (second, second_hit) = next_best(hit);
    rows.claim(
        "Jenga has the highest hit rate",
        "yes",
        format!("{} %; {second} has {} %", short(hit("jenga")), short(second_hit)),
        "no other has a higher one",
        hit("jenga") > second_hit,
    )
    .because("who follows each change hits more, whatever the moves cost");
    rows.claim(
        "Memtis-QC has the second highest",
        "yes",
        format!("{} %; the best but Jenga is {second}", short(hit("memtis-qc"))),
        "it has the highest but Jenga",
        second == "memtis-qc",
    )
    .because("how many samples there are decides between it and Memtis");
    let moved_under = |condition| {
        let moves = |system| {
            let of = |program: &'static Program| {
                results
                    .get(
                        program.name,
                        by_context(program, system),
                        &under(condition, Run::of(system, program.wss_gb)),
                    )
                    .migrations
            };
            ALL.iter().map(of).sum::<f64>()
        };
        moves("memtis-qc") / moves("jenga")
    };
    rows.number(
        "Memtis-QC's migrations over Jenga's",
        "×",
        8.0,
        moves("memtis-qc") / moves("jenga"),
        WITHIN,
    )
    .because(format!(
        "most moves here follow changes of the hot set, which both must make; the sawtooth's own, which come where pages lie at the threshold, make \
         it up to some four times on single applications (rows below). Tried: other rules of adaptation (rows below), and other conditions: {}",
        CONDITIONS
            .map(|condition| format!("{} {}×", condition.0, short(moved_under(condition))))
            .join(", ")
    ));
    rows.claim(
        "Jenga moves less than systems of comparable hit rate",
        "yes",
        format!(
            "Jenga {} moves, Memtis-QC {}, Memtis {}",
            short(moves("jenga")),
            short(moves("memtis-qc")),
            short(moves("memtis"))
        ),
        "fewer than Memtis-QC",
        moves("jenga") < moves("memtis-qc"),
    )
    .because("Jenga follows changes more closely, and pays for it");
    for program in &ALL {
        let of = |system| results.system(program, system, program.wss_gb).migrations;
        rows.ours(
            format!("{}: Memtis-QC's moves over Jenga's", program.name),
            "×",
            of("memtis-qc") / of("jenga").max(1.0),
        );
    }
    for condition in CONDITIONS {
        rows.ours(
            format!("Memtis-QC's moves over Jenga's, {}", condition.0),
            "×",
            moved_under(condition),
        );
    }
    let alone = |system, of: &dyn Fn(&Done) -> f64| {
        mean(
            &large()
                .map(|program| of(results.system(program, system, program.wss_gb)))
                .collect::<Vec<_>>(),
        )
    };
    for system in ["jenga", "memtis-qc", "terrace"] {
        rows.ours(
            format!("{system}: hit rate, the eight without small objects"),
            "%",
            alone(system, &|done| done.hit_rate * 100.0),
        );
        let moved = |done: &Done| done.migrations;
        rows.ours(
            format!("{system}: moves over Jenga's, the eight without small objects"),
            "×",
            alone(system, &moved) / alone("jenga", &moved),
        );
    }
    for system in systems() {
        rows.ours(format!("{system}: hit rate"), "%", hit(system));
        rows.ours(format!("{system}: moves over Jenga's"), "×", moves(system) / moves("jenga"));
    }
    for (about, set) in VARIANTS {
        let done: Vec<&Done> = ALL
            .iter()
            .map(|program| results.get(program.name, false, &variant(set, program.wss_gb)))
            .collect();
        rows.ours(
            format!("Memtis-QC {about}: hit rate"),
            "%",
            mean(&done.iter().map(|done| done.hit_rate * 100.0).collect::<Vec<_>>()),
        );
        let moved = mean(&done.iter().map(|done| done.migrations).collect::<Vec<_>>());
        rows.ours(format!("Memtis-QC {about}: moves over Jenga's"), "×", moved / moves("jenga"));
    }
    let points = systems()
        .map(|system| (system.to_owned(), (moves(system) / moves("jenga"), hit(system))))
        .collect();
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
        let speed = |system, times: f64| {
            jenga / results.get(name, false, &Run::of(system, program.wss_gb * times)).seconds
        };
        let best = |times: f64| next_best(|system| speed(system, times));
        // Between the two multiples where the best other system passes Jenga, in a straight line.
        let pairs =
            MULTIPLES.windows(2).map(|pair| (pair[0], best(pair[0]).1, pair[1], best(pair[1]).1));
        let crossing = pairs
            .into_iter()
            .find(|(_, below, _, above)| *below < 1.0 && *above >= 1.0)
            .map(|(from, below, to, above)| from + (to - from) * (1.0 - below) / (above - below));
        let savings = if best(1.0).1 >= 1.0 {
            1.0
        } else {
            crossing.unwrap_or(MULTIPLES[MULTIPLES.len() - 1])
        };
        let metric = format!(
            "{name}: fast tier of the next best system at Jenga's performance, over Jenga's"
        );
        rows.number(metric, "×", paper, savings, WITHIN)
            .because(match name {
                "Silo" => {
                    "contexts tell its keys and entries, which every search reads, from its values, but not popular records from others; and all of \
                     the stand-in is not three times its fast tier, which ends the curve"
                }
                "FlexKVS" => {
                    "Memtis-QC adapts as Jenga does here (Figure 3), so that less is saved; with room for both hot sets, twice as much, nobody \
                     needs to move"
                }
                _ => "what contexts save is how small the hot part of the index is (Figure 2)",
            });
        let (system, at_most) = best(MULTIPLES[MULTIPLES.len() - 1]);
        rows.claim(
            format!("{name}: others need more fast memory for Jenga's performance"),
            "yes",
            format!(
                "{}× ({system} at 4×: {} of Jenga's speed at 1×)",
                short(savings),
                percent(at_most)
            ),
            "1.1 times as much or more",
            savings > 1.1,
        )
        .because("another system is as fast with the same");
        let lines = PAPERS
            .into_iter()
            .skip(1)
            .map(|system| {
                (
                    system.to_owned(),
                    MULTIPLES.iter().map(|times| (*times, speed(system, *times))).collect(),
                )
            })
            .chain([("jenga at 1×".to_owned(), MULTIPLES.map(|times| (times, 1.0)).to_vec())])
            .collect();
        let name_of =
            if plots.is_empty() { id.to_owned() } else { format!("{id}-{}", name.to_lowercase()) };
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
        run_with: format!(
            "{} Other systems at {} times the working set.",
            about(options),
            MULTIPLES.map(short).join(", ")
        ),
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
    let steps = [
        ("Memtis-QC", "memtis-qc", false),
        ("+ smooth", "jenga", false),
        ("+ context", "memtis-qc", true),
        ("both", "jenga", true),
    ];
    let of = |name: &str, (_, system, context): (&str, &'static str, bool)| {
        let program = program(name);
        results.get(name, context && program.has_objects(), &Run::of(system, program.wss_gb))
    };
    let speed =
        |name: &str, step: usize| of(name, steps[0]).seconds / of(name, steps[step]).seconds;
    let moves = |name: &str, step: usize| {
        of(name, steps[step]).migrations / of(name, steps[0]).migrations.max(1.0)
    };
    let mut rows = Rows::of(id);
    for name in ["FlexKVS", "GAPBS-PR"] {
        rows.claim(
            format!("{name}: smooth hotness reduces migrations significantly"),
            "yes",
            format!(
                "{} times Memtis-QC's, speed {}×",
                short(moves(name, 1)),
                short(speed(name, 1))
            ),
            "by a fifth or more",
            moves(name, 1) < 0.8,
        )
        .because(
            "nearly all moves are those that the jump of the hot set asks for, which both make; in the stable phase neither moves much",
        );
    }
    rows.claim(
        "Btree: contexts on top improve performance significantly",
        "yes",
        format!("{}×, from {}×", short(speed("Btree", 3)), short(speed("Btree", 1))),
        "by 10 % or more",
        speed("Btree", 3) > 1.1 * speed("Btree", 1),
    )
    .because("Figure 2's reasons");
    rows.claim(
        "Btree: and reduce migrations further",
        "yes",
        format!("{}× instead of {}×", short(moves("Btree", 3)), short(moves("Btree", 1))),
        "they are fewer",
        moves("Btree", 3) < moves("Btree", 1),
    )
    .because("pages of one context differ more in heat, and so there is more to move");
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
            .map(|(step, (label, ..))| {
                ((*label).to_owned(), ABLATION.iter().map(|name| of(name, step)).collect())
            })
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
    let of = |program: &Program, system, interval: &str| {
        results.get(program.name, false, &cooling(system, interval, program.wss_gb))
    };
    let slowdown = |interval: &str| {
        geomean(large().map(|program| {
            of(program, "memtis", interval).seconds / of(program, "jenga", interval).seconds
        }))
    };
    let moves = |system, interval: &str| {
        mean(&large().map(|program| of(program, system, interval).migrations).collect::<Vec<_>>())
    };
    let ratio = |interval: &str| moves("memtis", interval) / moves("jenga", interval);
    let range = |system: &'static str| {
        let speeds = INTERVALS.map(|interval| {
            geomean(large().map(|program| 1.0 / of(program, system, interval).seconds))
        });
        speeds.iter().copied().fold(f64::MIN, f64::max)
            / speeds.iter().copied().fold(f64::MAX, f64::min)
    };
    let mut rows = Rows::of(id);
    let by_program = |interval: &str| {
        let ratio = |program: &'static Program| {
            of(program, "memtis", interval).migrations
                / of(program, "jenga", interval).migrations.max(1.0)
        };
        large()
            .map(|program| format!("{} {}", program.name, short(ratio(program))))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let most = |interval: &str| {
        large()
            .map(|program| {
                of(program, "memtis", interval).migrations
                    / of(program, "jenga", interval).migrations.max(1.0)
            })
            .fold(0.0, f64::max)
    };
    let mostly_changes = |interval: &str| {
        format!(
            "most moves here follow changes of the hot set, which both make, and Jenga those that a late Memtis does not; by application: {}",
            by_program(interval)
        )
    };
    rows.number("Memtis's migrations over Jenga's, 100K samples", "×", 4.0, ratio("100K"), WITHIN)
        .because(mostly_changes("100K"));
    rows.number(
        "Memtis's migrations over Jenga's, 2M samples (\"up to\": the most on one application)",
        "×",
        2.0,
        most("2M"),
        WITHIN,
    )
    .because(mostly_changes("2M"));
    rows.claim(
        "Jenga outperforms Memtis at 2M samples",
        "yes",
        format!("{}×", short(slowdown("2M"))),
        "it is 2 % faster on average",
        slowdown("2M") > CLEARLY,
    )
    .because("with cooling each 2M samples, 2.4M in the run, both keep nearly all that they ever counted, smooth or not");
    rows.claim(
        "Jenga outperforms Memtis at every interval",
        "yes",
        INTERVALS.map(|interval| format!("{interval} {}×", short(slowdown(interval)))).join(", "),
        "it is faster on average at each",
        INTERVALS.iter().all(|interval| slowdown(interval) > 1.0),
    )
    .because("at long intervals the two hardly differ; its order there is that of chance and of what few moves cost");
    rows.claim(
        "Jenga is less sensitive to the interval",
        "yes",
        format!(
            "its best average speed is {} times its worst, Memtis's {}",
            short(range("jenga")),
            short(range("memtis"))
        ),
        "best over worst is less than Memtis's",
        range("jenga") < range("memtis"),
    )
    .because(
        "it gains more than Memtis from short intervals, which is the better half of being sensitive; at long ones its counters are as slow to \
         forget",
    );
    let groups: Vec<String> = INTERVALS.map(str::to_owned).to_vec();
    let bars = vec![
        ("slowdown".to_owned(), INTERVALS.map(slowdown).to_vec()),
        ("moves".to_owned(), INTERVALS.map(ratio).to_vec()),
    ];
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
        let tasks = tasks(&["jenga-fig7", "jenga-fig9", "jenga-fig10", "jenga-fig11"], &[3.5; 10]);
        for task in &tasks {
            for (number, run) in task.runs.iter().enumerate() {
                assert!(!task.runs[..number].contains(run), "{} {run:?}", task.program.name);
            }
        }
        // Ten programs, of which two have their objects in either layout, and two at another pace.
        assert_eq!(tasks.len(), 14);
    }

    #[test]
    fn means_by_hand() {
        assert!((geomean([1.0, 4.0].into_iter()) - 2.0).abs() < 1e-12);
        assert!((spread(&[1.0, 3.0]) - 0.5).abs() < 1e-12);
    }
}
