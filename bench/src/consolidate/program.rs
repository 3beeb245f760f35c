//! The measured program: fills a map, looks keys up for some seconds, checks every byte, and says
//! how fast it was second by second.

use clap::ValueEnum;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand_distr::{Distribution as _, Zipf};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_objects::structures::{Chained, Index, Map, Open, Tree};
use terrace_objects::{Consolidator, Heap, Progress, Reader, Rules, Settings};

/// Time that a step may take.
const SLICE: Duration = Duration::from_micros(300);
/// Lookups between two steps.
const LOOKUPS_A_STEP: u64 = 64;
const PAGE: usize = 4096;

/// Where entries lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// As they came, in an order that has nothing to do with how popular they are
    Scattered,
    /// Scattered, and moved while it runs
    Consolidated,
    /// By popularity from the beginning
    Oracle,
}

/// What holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Structure {
    /// A chained hash
    Chained,
    /// An open hash
    Open,
    /// A B+-tree
    Tree,
}

/// What the program does.
#[derive(Clone, clap::Args)]
pub struct Task {
    /// Where entries lie
    #[arg(long)]
    pub layout: Layout,
    /// What holds them
    #[arg(long)]
    pub structure: Structure,
    /// How many
    #[arg(long)]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long)]
    pub value: usize,
    /// Exponent of Zipf's law
    #[arg(long)]
    pub theta: f64,
    /// Seconds of lookups
    #[arg(long)]
    pub seconds: u64,
    /// Most of the thread's time that consolidation may take, percent
    #[arg(long)]
    pub cpu_percent: f64,
}

/// Runs it: says `ready`, begins when its input ends, and prints one line of JSON.
pub fn run(task: &Task) -> anyhow::Result<()> {
    let keys = task.keys as usize;
    match task.structure {
        Structure::Chained => measure(task, Chained::for_keys(keys)),
        Structure::Open => measure(task, Open::for_keys(keys)),
        Structure::Tree => measure(task, Tree::default()),
    }
}

/// Bytes of a key: half of them by chance, half alike, so that they compress to about half.
fn fill(key: u64, value: &mut [u8]) {
    let mut state = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in value.chunks_mut(16) {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (chance, alike) = word.split_at_mut(word.len().min(8));
        chance.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..chance.len()]);
        alike.fill(b' ');
    }
}

struct Program<I> {
    map: Map<I>,
    reader: Reader,
    value: usize,
    wanted: Vec<u8>,
}

impl<I: Index> Program<I> {
    fn look_up(&mut self, key: u64) {
        fill(key, &mut self.wanted);
        let found = self.map.read(&self.reader, key, |bytes| bytes == self.wanted);
        assert_eq!(found, Some(true), "the value of {key} is wrong");
    }

    /// Hot bytes ÷ bytes of hot pages, where the keys below `hot` are.
    fn utilisation(&self, hot: u64) -> f64 {
        let mut pages = HashSet::new();
        let mut bytes = 0;
        for key in 0..hot {
            let Some(object) = self.map.locate(&self.reader, key) else { continue };
            let start = object.start.as_ptr() as usize;
            pages.extend(start / PAGE..=(start + object.bytes - 1) / PAGE);
            bytes += object.bytes.next_multiple_of(16);
        }
        bytes as f64 / (pages.len() * PAGE) as f64
    }
}

fn measure<I: Index>(task: &Task, index: I) -> anyhow::Result<()> {
    let bytes = task.keys as usize * (task.value + 32);
    let heap = Heap::new(Settings { capacity: bytes * 3 + (16 << 20), ..Settings::default() })?;
    let heap = Arc::new(heap);
    let rules = Rules { cpu_share: task.cpu_percent / 100.0, ..Rules::default() };
    let mut consolidator = Consolidator::new(heap.clone(), rules);
    let mut program = Program {
        reader: heap.reader(),
        map: Map::new(heap.clone(), index),
        value: task.value,
        wanted: vec![0; task.value],
    };
    load(task, &mut program)?;
    let tenth_before = program.utilisation(task.keys / 10);
    let fifth_before = program.utilisation(task.keys / 5);
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;

    let faults = || {
        // SAFETY: writes one rusage.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage.ru_majflt
        }
    };
    let mut random = SmallRng::seed_from_u64(7);
    let zipf = Zipf::new(task.keys as f64, task.theta)?;
    let mut seconds: Vec<Value> = Vec::new();
    let (mut working, begun) = (0.0, Instant::now());
    for second in 1..=task.seconds {
        let (from, faults_before) = (Instant::now(), faults());
        let (mut done, mut steps_worked) = (0u64, 0u64);
        while begun.elapsed() < Duration::from_secs(second) {
            for _ in 0..LOOKUPS_A_STEP {
                let rank = zipf.sample(&mut random) as u64 - 1;
                program.look_up(rank);
            }
            done += LOOKUPS_A_STEP;
            if task.layout == Layout::Consolidated {
                let stepped = Instant::now();
                if consolidator.step(&mut &program.map, SLICE) == Progress::Working {
                    steps_worked += 1;
                }
                working += stepped.elapsed().as_secs_f64();
            }
        }
        let passed = from.elapsed().as_secs_f64();
        seconds.push(json!({
            "per_s": done as f64 / passed,
            "faults_per_lookup": (faults() - faults_before) as f64 / done as f64,
            "moved_bytes": consolidator.counters().moved_bytes,
            "steps": steps_worked,
        }));
    }
    let counters = *consolidator.counters();
    // What follows touches all popular entries, and is not measured.
    let usage = heap.usage();
    println!(
        "{}",
        json!({
            "seconds": seconds,
            "utilisation_of_tenth": [tenth_before, program.utilisation(task.keys / 10)],
            "utilisation_of_fifth": [fifth_before, program.utilisation(task.keys / 5)],
            "live_bytes": usage.live_bytes,
            "segment_bytes": usage.segment_bytes,
            "consolidation_s": working,
            "moved": counters.moved,
            "moved_bytes": counters.moved_bytes,
            "not_resident": counters.not_resident,
            "busy": counters.busy,
            "dead": counters.dead,
            "scans": counters.scans,
            "emptied_segments": counters.emptied_segments,
            "sorted_segments": counters.sorted_segments,
        })
    );
    std::io::stdout().flush()?;
    // Its memory is read now.
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

/// Fills the map; keys are numbered by popularity, the most popular first.
fn load<I: Index>(task: &Task, program: &mut Program<I>) -> anyhow::Result<()> {
    let mut order: Vec<u64> = (0..task.keys).collect();
    if task.layout != Layout::Oracle {
        order.shuffle(&mut SmallRng::seed_from_u64(3));
    }
    let mut value = vec![0; program.value];
    for key in order {
        fill(key, &mut value);
        program.map.set(&program.reader, key, &value)?;
    }
    Ok(())
}
