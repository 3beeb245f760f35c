//! The measured program: fills a map, looks keys up for some seconds, and checks every byte. It
//! says how fast it was second by second, and how long lookups took with the steps between them.

use super::followed::Followed;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand_distr::{Distribution as _, Zipf};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_objects::structures::{Chained, Index, Map, Open, Radix, SkipList, Tree};
use terrace_objects::{Consolidator, Heap, Progress, Reader, Rules, Settings};
use terrace_testkit::random::Congruential;

/// Time that a step may take.
const SLICE: Duration = Duration::from_micros(300);
/// Lookups between two steps.
const LOOKUPS_A_STEP: u64 = 64;
/// Share of all bytes that moves in a second, below which the second counts as one without moves:
/// the work is done.
const NEXT_TO_NOTHING: f64 = 0.001;
/// Share of the utilisation before a jump from which on pages are used as well as before it.
const BACK_FROM: f64 = 0.9;
/// Multiple of the first utilisation from which on pages count as used better than at first.
const GAINED_FROM: f64 = 1.5;

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
    /// A skip list
    SkipList,
    /// A radix tree
    Radix,
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
    /// Other keys become hot at half-time
    #[arg(long)]
    pub jump: bool,
}

/// Runs the task: says `ready`, begins when the input ends, and prints one line of JSON.
pub fn run(task: &Task) -> anyhow::Result<()> {
    let keys = task.keys as usize;
    match task.structure {
        Structure::Chained => measure(task, Chained::for_keys(keys)),
        Structure::Open => measure(task, Open::for_keys(keys)),
        Structure::Tree => measure(task, Tree::default()),
        Structure::SkipList => measure(task, SkipList::default()),
        Structure::Radix => measure(task, Radix::default()),
    }
}

/// Bytes of a key: half of them by chance, half alike, so that they compress to about half.
fn fill(key: u64, value: &mut [u8]) {
    let seed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = Congruential::with_increment(seed, 1_442_695_040_888_963_407);
    for word in value.chunks_mut(16) {
        let state = random.draw();
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
}

/// How long lookups took, each with the step before it, ns.
struct Times {
    working: Histogram<u64>,
    after: Histogram<u64>,
    /// Times of lookups in the current second.
    now: Histogram<u64>,
}

impl Times {
    fn new() -> anyhow::Result<Times> {
        let empty = || Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Ok(Times { working: empty()?, after: empty()?, now: empty()? })
    }

    /// Ends a second, in which objects moved or did not.
    fn end_second(&mut self, moved: bool) -> anyhow::Result<Value> {
        let told = figures(&self.now);
        if moved { &mut self.working } else { &mut self.after }.add(&self.now)?;
        self.now.reset();
        Ok(told)
    }
}

fn figures(times: &Histogram<u64>) -> Value {
    let us = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
    match times.len() {
        0 => Value::Null,
        lookups => json!({ "lookups": lookups, "p50_us": us(0.5), "p99_us": us(0.99),
            "p999_us": us(0.999), "max_us": times.max() as f64 / 1000.0 }),
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
    let mut at = load(task, &mut program)?;
    // Where each rank's key is; after a jump the ranks are those of other keys.
    let jump_at = if task.jump { task.seconds / 2 } else { u64::MAX };
    let key_of = |rank: u64, jumped: bool| match jumped {
        true => (rank + task.keys / 2) % task.keys,
        false => rank,
    };
    let utilisation = |at: &Followed, share: u64, jumped: bool| {
        at.utilisation((0..task.keys / share).map(|rank| key_of(rank, jumped)))
    };
    let tenth_before = utilisation(&at, 10, false);
    let fifth_before = utilisation(&at, 5, false);
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
    let live_bytes = heap.usage().live_bytes;
    let (mut seconds, mut times): (Vec<Value>, _) = (Vec::new(), Times::new()?);
    let (mut working, begun) = (0.0, Instant::now());
    for second in 1..=task.seconds {
        let jumped = second > jump_at;
        let moved_before = consolidator.counters().moved_bytes;
        let (from, faults_before) = (Instant::now(), faults());
        let (mut done, mut steps_worked, mut last) = (0u64, 0u64, from);
        while begun.elapsed() < Duration::from_secs(second) {
            for _ in 0..LOOKUPS_A_STEP {
                let rank = zipf.sample(&mut random) as u64 - 1;
                program.look_up(key_of(rank, jumped));
                let now = Instant::now();
                times.now.saturating_record((now - last).as_nanos() as u64);
                last = now;
            }
            done += LOOKUPS_A_STEP;
            if task.layout == Layout::Consolidated {
                let stepped = Instant::now();
                let mut moves = at.follow(&program.map);
                if consolidator.step(&mut moves, SLICE) == Progress::Working {
                    steps_worked += 1;
                }
                working += stepped.elapsed().as_secs_f64();
            }
        }
        let passed = from.elapsed().as_secs_f64();
        let moved_bytes = consolidator.counters().moved_bytes;
        let moved = (moved_bytes - moved_before) as f64;
        seconds.push(json!({
            "per_s": done as f64 / passed,
            "faults_per_lookup": (faults() - faults_before) as f64 / done as f64,
            "moved_bytes": moved_bytes,
            "steps": steps_worked,
            "times": times.end_second(moved >= live_bytes as f64 * NEXT_TO_NOTHING)?,
            "utilisation_of_tenth": utilisation(&at, 10, jumped),
        }));
    }
    let counters = *consolidator.counters();
    let usage = heap.usage();
    println!(
        "{}",
        json!({
            "seconds": seconds,
            "utilisation_of_tenth": [tenth_before, utilisation(&at, 10, task.jump)],
            "utilisation_of_fifth": [fifth_before, utilisation(&at, 5, task.jump)],
            "times": { "working": figures(&times.working), "after": figures(&times.after) },
            "jump": jumped(jump_at as usize, &seconds, tenth_before),
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

/// What became of a jump after `at` seconds: how long until pages were used as well as before it.
/// Also what moved until then and until the end. Where pages were used no better before the jump
/// than `scattered`, there is nothing to come back to.
fn jumped(at: usize, seconds: &[Value], scattered: f64) -> Value {
    let [before, .., last] = seconds.get(at.wrapping_sub(1)..).unwrap_or_default() else {
        return Value::Null;
    };
    let of = |second: &Value, name: &str| second[name].as_f64().unwrap_or(0.0);
    let (used, moved) = (of(before, "utilisation_of_tenth"), of(before, "moved_bytes"));
    let back = |second: &Value| {
        used >= GAINED_FROM * scattered && of(second, "utilisation_of_tenth") >= BACK_FROM * used
    };
    let back_after = seconds[at..].iter().position(back).map(|whole| whole + 1);
    json!({
        "after_s": at,
        "utilisation_before": used,
        "utilisation_just_after": of(&seconds[at], "utilisation_of_tenth"),
        "utilisation_at_the_end": of(last, "utilisation_of_tenth"),
        "back_after_s": back_after,
        "moved_bytes_until_back": back_after
            .map(|whole| of(&seconds[at + whole - 1], "moved_bytes") - moved),
        "moved_bytes": of(last, "moved_bytes") - moved,
    })
}

/// Fills the map, and says where each key's entry lies. Keys are numbered by popularity, the most
/// popular first.
fn load<I: Index>(task: &Task, program: &mut Program<I>) -> anyhow::Result<Followed> {
    let mut order: Vec<u64> = (0..task.keys).collect();
    if task.layout != Layout::Oracle {
        order.shuffle(&mut SmallRng::seed_from_u64(3));
    }
    let mut value = vec![0; program.value];
    let mut at = Followed::of(task.keys);
    for key in order {
        fill(key, &mut value);
        program.map.set(&program.reader, key, &value)?;
        at.note(key, program.map.locate(&program.reader, key));
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(utilisation: f64, moved_bytes: u64) -> Value {
        json!({ "utilisation_of_tenth": utilisation, "moved_bytes": moved_bytes })
    }

    #[test]
    fn a_jump_is_over_when_pages_are_used_as_before() {
        let seconds = [(0.2, 0), (0.5, 100), (0.1, 110), (0.3, 150), (0.46, 190), (0.5, 200)]
            .map(|s| second(s.0, s.1));
        let told = jumped(2, &seconds, 0.1);
        assert_eq!(told["back_after_s"], 3);
        assert_eq!(told["moved_bytes_until_back"], 90.0);
        assert_eq!(told["moved_bytes"], 100.0);
        assert_eq!(told["utilisation_just_after"], 0.1);
        assert_eq!(jumped(2, &seconds, 0.4)["back_after_s"], Value::Null, "little was gained");
        let never = jumped(2, &seconds[..4], 0.1);
        assert_eq!((&never["back_after_s"], &never["moved_bytes"]), (&Value::Null, &json!(50.0)));
        assert_eq!(jumped(u64::MAX as usize, &seconds, 0.1), Value::Null);
        assert_eq!(jumped(0, &seconds, 0.1), Value::Null);
        assert_eq!(jumped(6, &seconds, 0.1), Value::Null);
    }
}
