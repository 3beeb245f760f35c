//! Benchmarks of Terrace, side by side with its peers in one run on one machine.
//!
//! `make bench` runs all; each prints a table with ratios and writes JSON to bench/results/.
//! Figures are medians of interleaved repeats; nothing here passes or fails, it only tells.

mod accuracy;
mod adapt;
mod buckets;
mod calls;
mod consolidate;
mod contexts;
mod fault_steps;
mod faulters;
mod huge;
mod idle;
mod interrupt;
mod kv;
mod load;
mod machine;
mod malloc;
mod metadata;
mod objects;
mod pages;
mod picture;
mod place;
mod placement_sim;
mod policies;
mod probe;
mod programs;
mod results;
mod sampled;
mod servers;
mod side;
mod sim;
mod solver;
mod start;
mod threads;
mod victims;
mod zswap;

use clap::{Parser, Subcommand};

/// The allocator of the measured programs: it places what they say.
#[global_allocator]
static ALLOCATOR: terrace_api::Global = terrace_api::Global;

#[derive(Parser)]
#[command(about = "Benchmarks of Terrace against its peers")]
struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    /// Restore, fault and eviction of one page, against zram lz4
    Pages {
        /// Interleaved repeats of each side
        #[arg(long, default_value_t = 5)]
        repeats: usize,
    },
    /// 1 to 64 threads that touch evicted memory, on one CPU and on two, against zram lz4
    Faulters {
        /// Interleaved repeats of each side
        #[arg(long, default_value_t = 5)]
        repeats: usize,
        /// Numbers of threads
        #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8, 64])]
        threads: Vec<usize>,
        /// More flags for `terrace run`
        #[arg(long, default_value = "", allow_hyphen_values = true)]
        terrace_flags: String,
        /// Set up zram swap for Terrace's runs too, as on a machine that has it
        #[arg(long)]
        swap: bool,
    },
    /// Where the time of a fault and of an eviction goes, step by step
    FaultSteps {
        /// Interleaved repeats of each side
        #[arg(long, default_value_t = 5)]
        repeats: usize,
    },
    /// A program's own calls about memory, and what a thousand processes cost (as root)
    Calls(calls::Options),
    /// What Terrace costs a program of which nothing is evicted
    Idle {
        /// Interleaved rounds for CPU time
        #[arg(long, default_value_t = 30)]
        pairs: usize,
        /// What the program does in a round for CPU time: the default takes some two seconds
        #[arg(long, default_value_t = idle::CHANGES_SHORT)]
        changes: u32,
        /// Interleaved repeats for memory
        #[arg(long, default_value_t = 3)]
        repeats: usize,
        /// Only one of them; servers not without being asked for
        #[arg(long)]
        only: Option<idle::Part>,
    },
    /// What 1, 64 and 1,000 threads that do next to nothing cost
    Threads {
        /// Interleaved repeats of each side
        #[arg(long, default_value_t = 5)]
        repeats: usize,
    },
    /// memcached and redis-server at equal memory, against a control group over zram or zswap (as
    /// root)
    ZramServers(Box<servers::Options>),
    /// Whole programs at a share of their memory, on all CPUs, against a control group over zram
    /// (as root)
    Programs(programs::Options),
    /// Programs that grow to a share of their peak, against zram held to the same from the start
    /// (as root)
    Fill(programs::Options),
    /// The time that reports tell was lost, against what was, on whole programs (as root)
    Honesty(programs::Options),
    /// `terrace run` with nothing said of memory, beside a group whose limit follows pressure
    Slowdown(programs::slowdown::Options),
    /// What `terrace plan` expects of its settings, against what they do, on whole programs (as
    /// root)
    Plans(programs::plans::Options),
    /// Models that place regions of whole programs: lost time, memory and its cost at three settings
    /// (as root)
    Placement(programs::placement::Options),
    /// How policies, or the limit of `--slowdown`, follow a load that changes: throughput over time,
    /// time to recover, moves
    Adapt(adapt::Options),
    /// What sampling costs a program whose memory stays where it is
    Sampled(sampled::Options),
    /// What huge pages for hot memory bring
    Huge(huge::Options),
    /// What samples know of where memory is hot, against the truth
    Accuracy(accuracy::Options),
    /// terrace-kv beside memcached, redis and a server that keeps nothing: one CPU for the server,
    /// one for the client
    Kv(kv::Options),
    /// terrace-kv at a share of memcached's memory, beside memcached and redis over zram and
    /// memcached under Terrace, all at equal memory (as root)
    KvMemory(kv::memory::Options),
    /// Hit ratios of memcached, terrace-kv and Segcache's published way, with the same accesses and
    /// bytes
    KvHits(kv::hits::Options),
    /// (internal) the server of `kv` that keeps nothing
    #[command(hide = true)]
    KvCeiling {
        /// HOST:PORT, or a path
        listen: String,
        /// Bytes of every value
        value_bytes: usize,
    },
    /// Programs of small objects, by where allocators put them: pages that hold the misses, and
    /// lookups a second where memory is short (as root)
    Objects(objects::Options),
    /// (internal) a measured program of `objects`
    #[command(hide = true)]
    ObjectsProgram {
        /// tree or store
        kind: String,
        /// uniform or zipf
        distribution: String,
        /// How many
        keys: u64,
        /// 0: pages
        seconds: u64,
        /// With placements
        #[arg(long)]
        placed: bool,
    },
    /// A hash table whose entries move, over zram: scattered, consolidated while it runs, and laid
    /// out by an oracle (as root)
    Consolidate(consolidate::Options),
    /// (internal) the measured program of `consolidate`
    #[command(hide = true)]
    ConsolidateProgram(consolidate::Task),
    /// How well context numbers tell true calling contexts apart, on real programs
    Contexts,
    /// A chained hash table whose buckets are arenas, against one of malloc's objects: YCSB, skews,
    /// shares of memory
    Buckets(buckets::Options),
    /// (internal) the measured program of `buckets`
    #[command(hide = true)]
    BucketsProgram(buckets::Task),
    /// Allocators side by side: time and memory with glibc's, jemalloc, mimalloc, tcmalloc, and
    /// Terrace's by size and by context
    Malloc(malloc::Options),
    /// (internal) the measured program of `malloc`
    #[command(hide = true)]
    MallocProgram {
        /// The test
        test: malloc::Test,
        /// How much of it
        scale: f64,
    },
    /// (internal) starts and measures another program for `malloc`
    #[command(hide = true)]
    MallocLaunch {
        /// What it reads
        #[arg(long)]
        input: Option<std::path::PathBuf>,
        /// The program and its arguments
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// The simulator's speed, against a bare loop that counts accesses
    Sim(sim::Options),
    /// Tiering policies, simulated: ours against all others, on generated accesses, on programs it
    /// was tuned on, and on programs kept aside
    Policies(policies::Options),
    /// Placement models, simulated: what each saves and what the program loses by it, over
    /// generated and recorded accesses
    PlacementSim(placement_sim::Options),
    /// The placement solver: time, memory, and distance from the best, by regions and tiers
    Solver(solver::Options),
    /// Metadata per managed byte, at 1 and 8 GiB
    Metadata,
    /// Faults by choice of victims: ours, random, the kernel's lists, LRU and two oracles,
    /// simulated
    Victims {
        /// Percent of the pages that are resident
        #[arg(long, value_delimiter = ',', default_values_t = victims::RESIDENT, value_parser = clap::value_parser!(u32).range(5..=95))]
        resident: Vec<u32>,
    },
    /// (internal) the measured program of `pages`
    #[command(hide = true)]
    TouchPages,
    /// (internal) another of `pages`: it says what it is about to touch
    #[command(hide = true)]
    TouchAhead,
    /// (internal) a measured program of `calls`
    #[command(hide = true)]
    TimeCalls {
        /// resident or out
        pages: String,
    },
    /// (internal) another of `calls`
    #[command(hide = true)]
    HoldProcesses {
        /// How many
        processes: usize,
    },
    /// (internal) the measured program of `fault-steps`
    #[command(hide = true)]
    TimeTouches,
    /// (internal) a measured program of `idle`
    #[command(hide = true)]
    HoldHeap {
        /// MiB of objects to hold
        mib: usize,
    },
    /// (internal) the measured program of `threads`
    #[command(hide = true)]
    HoldThreads {
        /// Threads beside the first
        threads: usize,
    },
    /// (internal) the measured program of `faulters`
    #[command(hide = true)]
    TouchFromThreads {
        /// Numbers of threads
        #[arg(value_delimiter = ',')]
        threads: Vec<usize>,
    },
    /// (internal) the measured program of `metadata`
    #[command(hide = true)]
    FillMemory {
        /// GiB to fill
        gib: usize,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        Some(What::Pages { repeats }) => pages::run(repeats),
        Some(What::FaultSteps { repeats }) => fault_steps::run(repeats),
        Some(What::Idle { pairs, changes, repeats, only }) => {
            idle::run(pairs, changes, repeats, only)
        }
        Some(What::Threads { repeats }) => threads::run(repeats),
        Some(What::Faulters { repeats, threads, terrace_flags, swap }) => {
            faulters::run(repeats, &threads, &terrace_flags, swap)
        }
        Some(What::Calls(options)) => calls::run(&options),
        Some(What::TimeCalls { pages }) => calls::time_them(&pages),
        Some(What::HoldProcesses { processes }) => calls::hold_processes(processes),
        Some(What::ZramServers(options)) => servers::run(&options),
        Some(What::Programs(options)) => programs::run(&options),
        Some(What::Fill(options)) => programs::fill(&options),
        Some(What::Honesty(options)) => programs::honesty(&options),
        Some(What::Slowdown(options)) => programs::slowdown::run(&options),
        Some(What::Plans(options)) => programs::plans::run(&options),
        Some(What::Placement(options)) => programs::placement::run(&options),
        Some(What::Adapt(options)) => adapt::run(&options),
        Some(What::Sampled(options)) => sampled::run(&options),
        Some(What::Huge(options)) => huge::run(&options),
        Some(What::Accuracy(options)) => accuracy::run(&options),
        Some(What::Objects(options)) => objects::run(&options),
        Some(What::ObjectsProgram { kind, distribution, keys, seconds, placed }) => {
            place::set(placed);
            objects::run_program(&kind, &distribution, keys, seconds)
        }
        Some(What::Kv(options)) => kv::run(&options),
        Some(What::KvMemory(options)) => kv::memory::run(&options),
        Some(What::KvHits(options)) => kv::hits::run(&options),
        Some(What::KvCeiling { listen, value_bytes }) => kv::ceiling::serve(&listen, value_bytes),
        Some(What::Consolidate(options)) => consolidate::run(&options),
        Some(What::ConsolidateProgram(task)) => consolidate::run_program(&task),
        Some(What::Contexts) => contexts::run(),
        Some(What::Buckets(options)) => buckets::run(&options),
        Some(What::BucketsProgram(task)) => buckets::run_program(&task),
        Some(What::Malloc(options)) => malloc::run(&options),
        Some(What::MallocProgram { test, scale }) => malloc::run_program(test, scale),
        Some(What::MallocLaunch { input, words }) => malloc::launch(input, &words),
        Some(What::Sim(options)) => sim::run(&options),
        Some(What::Policies(options)) => policies::run(&options),
        Some(What::PlacementSim(options)) => placement_sim::run(&options),
        Some(What::Solver(options)) => solver::run(&options),
        Some(What::Metadata) => metadata::run(),
        Some(What::Victims { resident }) => victims::run(&resident),
        Some(What::HoldHeap { mib }) => probe::hold_heap(mib),
        Some(What::HoldThreads { threads }) => probe::hold_threads(threads),
        Some(What::TouchPages) => probe::touch_pages(),
        Some(What::TouchAhead) => probe::touch_ahead(),
        Some(What::TimeTouches) => probe::time_touches(),
        Some(What::TouchFromThreads { threads }) => probe::touch_from_threads(&threads),
        Some(What::FillMemory { gib }) => probe::fill_memory(gib),
        None => {
            pages::run(5)?;
            fault_steps::run(5)?;
            metadata::run()?;
            victims::run(&victims::RESIDENT)?;
            threads::run(5)?;
            idle::run(30, idle::CHANGES_SHORT, 3, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::Parser as _;
    use std::fs;
    use std::path::{Path, PathBuf};

    const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// All pages below a directory but dated notes, which stay as they are.
    fn pages(directory: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).expect("there is such a directory").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("notes") {
                found.extend(pages(&path));
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
        found
    }

    /// What stands behind each of some words in a text, up to one of the characters that end it.
    fn behind<'a>(text: &'a str, words: &'a str, end: &'a [char]) -> impl Iterator<Item = String> {
        text.split(words)
            .skip(1)
            .map(move |rest| rest.split(end).next().unwrap_or_default().to_owned())
    }

    /// Arguments of this program by commands of its own, and by those of `make bench-NAME`.
    fn commands(pages: &[PathBuf]) -> Vec<String> {
        let makefile = read(&Path::new(REPOSITORY).join("Makefile"));
        let mut commands = Vec::new();
        for text in pages.iter().map(|page| read(page)) {
            commands.extend(behind(&text, "-p terrace-bench -- ", &['\n', '#']));
            commands.extend(behind(&text, "`terrace-bench ", &['`']));
            for made in behind(&text, "make bench-", &['\n', '#', '`']) {
                let (name, options) = made.split_once(' ').unwrap_or((&made, ""));
                let options = options.trim().strip_prefix("OPTIONS=").unwrap_or_default();
                let rule = makefile.split_once(&format!("\nbench-{name}:\n"));
                let (_, rule) = rule.unwrap_or_else(|| panic!("the Makefile has no bench-{name}"));
                let command = behind(rule, "-p terrace-bench -- ", &['\n']).next();
                let command = command.expect("the rule runs this program");
                commands.push(command.replace("$(OPTIONS)", options));
            }
        }
        commands
    }

    /// The words of a command, as a shell takes them: what single quotes hold is one.
    fn words(command: &str) -> Vec<String> {
        let parts = command.split('\'').enumerate();
        let words = parts.flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    #[test]
    fn the_commands_of_the_pages_are_understood() {
        let mut pages = pages(&Path::new(REPOSITORY).join("docs"));
        pages.push(Path::new(REPOSITORY).join("README.md"));
        let commands = commands(&pages);
        assert!(commands.len() > 30, "{commands:?}");
        for command in commands {
            let words = std::iter::once("terrace-bench".to_owned()).chain(words(&command));
            let understood = Arguments::try_parse_from(words).map(drop);
            assert!(understood.is_ok(), "{command}: {}", understood.unwrap_err());
        }
    }

    /// Scripts of benchmarks that the pages name are there.
    #[test]
    fn the_scripts_of_the_pages_are_there() {
        let pages = pages(&Path::new(REPOSITORY).join("docs/benchmarks"));
        let mut scripts = 0;
        for script in pages.iter().flat_map(|page| {
            behind(&read(page), "bench/", &[' ', '\n', '`', ')']).collect::<Vec<_>>()
        }) {
            if script.ends_with(".py") {
                let path = Path::new(REPOSITORY).join("bench").join(&script);
                assert!(path.is_file(), "{}", path.display());
                scripts += 1;
            }
        }
        assert!(scripts >= 3, "{scripts} scripts");
    }
}
