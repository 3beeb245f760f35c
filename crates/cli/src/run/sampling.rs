//! Samples for a program that `terrace run` manages: taken here, outside of it, and written into
//! the statistics page of each process, where its mover reads them. Nothing of it runs in the
//! program but the interrupts.
//!
//! What sampling costs, our reading and the interrupts, is held under a share of one CPU, by
//! sampling only a part of the time ([`Control`]).

use crate::processes::data::Data;
use crate::processes::process::{self, cpu_time};
use crate::processes::statistics::{self, SampleFile};
use crate::say;
use anyhow::{Result, bail};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};
use terrace_control::settings::{Allocator, Dram, HugePages, SettingError, Settings};
use terrace_control::stats::SampleRing;
use terrace_sampler::decoder::{Decoder, Interrupt};
use terrace_sampler::events::{OpenError, Whose};
use terrace_sampler::hardware::{Kind, Pace};
use terrace_sampler::operand::Registers;
use terrace_sampler::source::Source;
use terrace_sampler::{Sample, Tally, trial};
use terrace_tiers::{TierKind, parse_tiers};

/// What tells where the program waits for memory (`--sampler`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The best there is on this machine, where the policy or a tier needs it.
    #[default]
    Auto,
    /// Intel's, which samples accesses.
    Pebs,
    /// AMD's.
    Ibs,
    /// The clock: each running thread is interrupted now and then.
    Clock,
    /// Samples by timer signals in the program's own threads, where perf events are forbidden.
    Timer,
    /// No samples: nothing but faults tells what is used.
    None,
}

impl Choice {
    const ALL: [Choice; 6] =
        [Choice::Auto, Choice::Pebs, Choice::Ibs, Choice::Clock, Choice::Timer, Choice::None];
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::Auto => "auto",
            Choice::Pebs => "pebs",
            Choice::Ibs => "ibs",
            Choice::Clock => "clock",
            Choice::Timer => "timer",
            Choice::None => "none",
        })
    }
}

impl FromStr for Choice {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let known = Choice::ALL.into_iter().find(|source| source.to_string() == text.trim());
        known.ok_or_else(|| {
            SettingError(format!(
                "`{text}` is no source of samples: write auto, pebs, ibs, clock, timer or none"
            ))
        })
    }
}

/// The share of a CPU that sampling may cost in all (`--sampler-cost`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost(f64);

impl Default for Cost {
    fn default() -> Self {
        Cost(0.01)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

impl FromStr for Cost {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let percent =
            text.trim().strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok());
        let known = percent
            .filter(|percent| (0.01..=100.0).contains(percent))
            .map(|percent| Cost(percent / 100.0));
        known.ok_or_else(|| {
            SettingError(format!("`{text}` is no share of a CPU: write 0.01% to 100%, such as 1%"))
        })
    }
}

/// Samples a second of each running thread (0.4 % of its time, at 3.9 µs each), while the
/// control allows it.
const RATE_HZ: u32 = 1_000;
/// Period of the sampling timer in ns. The kernel looks at the timer in its ticks, some 250 a
/// second.
const TIMER_PERIOD_NS: u64 = 4_000_000;
/// Where only the run's own threads can be sampled, each of their switches costs more while they
/// are: less of the time, then.
const DUTY_OF_CHILDREN: f64 = 0.1;
/// Time between polls: a ring holds a third of a second.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// What an interrupt costs the program: the median gap that a spinning thread saw in its clock.
const INTERRUPT: Duration = Duration::from_nanos(3_900);
/// What a tick of the clock costs on a CPU where no program runs.
const IDLE_TICK: Duration = Duration::from_nanos(1_000);
/// How long there is more sampling where a process says, after a change, that more would be worth
/// while.
const BOOSTED: Duration = Duration::from_secs(4);
/// How much sampling is wanted (1 is the usual) as long as no process says anything.
const WANTED_FIRST: f64 = 0.1;
/// How often it is looked up which processes there are.
const PROCESSES_EVERY: Duration = Duration::from_secs(1);
/// Processes that samples are passed on to, at most: each is an open file.
const PROCESSES_MAX: usize = 256;

/// How samples come.
enum Intake {
    /// Samples come by perf events.
    Events(Source),
    /// Processes of the run write down where their timers interrupted them.
    Timers(Decoder),
    /// Samples come no more: where they came from before.
    Nothing(&'static str),
}

impl Intake {
    /// Name of the source, as `--sampler` and reports have it.
    fn name(&self) -> &'static str {
        match self {
            Intake::Events(source) => source.name(),
            Intake::Timers(_) => "timer",
            Intake::Nothing(before) => before,
        }
    }
}

/// Opens what was asked for; the clock where the hardware was not, and cannot.
fn open(choice: Choice, whose: Whose) -> Result<Intake, OpenError> {
    if choice == Choice::Timer && cfg!(target_arch = "x86_64") {
        trial::reading()?;
        return Ok(Intake::Timers(Decoder::default()));
    }
    open_events(choice, whose).map(Intake::Events)
}

fn open_events(choice: Choice, whose: Whose) -> Result<Source, OpenError> {
    let machine = Kind::of_machine(Path::new("/sys/bus/event_source/devices"));
    let no_such = |what: &str| {
        Err(OpenError::Unsupported(std::io::Error::other(format!(
            "the processor has no {what}, or the machine hides it"
        ))))
    };
    match (choice, machine.first()) {
        (Choice::Pebs, Some(Kind::Pebs(_))) | (Choice::Ibs, Some(Kind::Ibs { .. })) => {
            Source::hardware(&machine, whose)
        }
        (Choice::Pebs, _) => no_such("PEBS"),
        (Choice::Ibs, _) => no_such("IBS"),
        (Choice::Auto, Some(_)) => {
            Source::hardware(&machine, whose).or_else(|_| Source::clock(whose, RATE_HZ))
        }
        _ if cfg!(target_arch = "x86_64") => Source::clock(whose, RATE_HZ),
        _ => no_such("instructions of x86-64, from whose operands the clock learns addresses"),
    }
}

/// Whether pages may be where the program reads them without a fault: then nothing but samples
/// tells what is used.
fn has_node(settings: &Settings) -> bool {
    parse_tiers(&settings.tiers)
        .is_ok_and(|tiers| tiers.iter().any(|tier| matches!(tier.kind, TierKind::Node { .. })))
}

/// Takes out what processes wrote where their timers interrupted them.
fn interrupts(
    files: &mut HashMap<u32, SampleFile>,
    decoder: &mut Decoder,
    wanted: impl Fn(u32, u64) -> bool,
    mut each: impl FnMut(Sample),
) -> Tally {
    let mut tally = Tally::default();
    let time_ns = terrace_os::now_ns();
    for (process, file) in files {
        tally.lost += file.interrupts(|[thread, ip, flags, registers @ ..]| {
            let registers = Registers::from_context(registers, *flags);
            let at = Interrupt {
                process: *process,
                thread: *thread as u32,
                time_ns,
                ip: *ip,
                registers,
            };
            tally.samples += 1;
            tally.located += u64::from(decoder.decode(&at, &wanted, &mut each));
        });
    }
    tally
}

/// What became of sampling, for the report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The source.
    pub kind: &'static str,
    /// Accesses to the program's data that were seen.
    pub samples: u64,
    /// What it cost, interrupts included: CPU time per elapsed time.
    pub cpu_fraction: f64,
}

/// Sampling of one run.
pub struct Sampling {
    choice: Choice,
    intake: Intake,
    run_dir: PathBuf,
    data: RefCell<Data>,
    /// Pages of the processes that live. Others are not ours.
    files: HashMap<u32, SampleFile>,
    /// When the directory of pages last changed, and was last read.
    changed: Option<SystemTime>,
    files_from: Instant,
    /// Weight of the samples met in this poll, by process id and by address in steps of 16 bytes.
    met: HashMap<(u32, u64), f32>,
    control: Control,
    /// When the source's periods were checked last, and whether it was too quick since.
    paced: Instant,
    hurried: bool,
    begun: Instant,
    tally: Tally,
}

impl Sampling {
    /// Begins to sample what is started next, where that changes anything and can be done. What
    /// cannot is said.
    pub fn begin(
        choice: Choice,
        cost: Cost,
        settings: &Settings,
        run_dir: &Path,
    ) -> Result<Option<Sampling>> {
        // Which objects belong together is worth knowing where nothing moves, too.
        let by_context = settings.allocator == Allocator::Context;
        let places = settings.placement.model().is_some();
        let wanted = match choice {
            Choice::None => false,
            Choice::Auto => {
                by_context
                    || settings.policy.needs_samples()
                    || places
                    || settings.policy.uses_samples()
                        && (has_node(settings) || settings.huge_pages == HugePages::Hot)
            }
            _ => by_context || places || settings.policy.uses_samples(),
        };
        if settings.strict && !wanted && !matches!(choice, Choice::Auto | Choice::None) {
            bail!(
                "--sampler {choice} is of no use to --policy {}, which takes no samples",
                settings.policy
            );
        }
        let moves = !settings.observe && (places || settings.dram != Dram::Unlimited);
        if !wanted || !by_context && !moves {
            return Ok(None);
        }
        // Of all processes, where that is allowed: it costs no switch between threads anything.
        let opened = open(choice, Whose::Everybody).map(|intake| (intake, true));
        match opened.or_else(|_| open(choice, Whose::Children).map(|intake| (intake, false))) {
            Ok((intake, everybody)) => {
                let now = Instant::now();
                let control = Control::new(now, Ticks::of(&intake, everybody), cost);
                Ok(Some(Sampling {
                    choice,
                    intake,
                    run_dir: run_dir.to_owned(),
                    data: RefCell::default(),
                    files: HashMap::new(),
                    changed: None,
                    files_from: now,
                    met: HashMap::new(),
                    control,
                    paced: now,
                    hurried: false,
                    begun: now,
                    tally: Tally::default(),
                }))
            }
            Err(why)
                if settings.strict
                    && (choice != Choice::Auto || settings.huge_pages == HugePages::Hot) =>
            {
                bail!("--sampler {choice} is not possible: {why}")
            }
            Err(why) => {
                let cost = if has_node(settings) {
                    "so what is hot in the node's memory stays there"
                } else if by_context {
                    "so contexts are grouped by chance, not by how hot their objects are"
                } else if settings.huge_pages == HugePages::Hot {
                    "so nothing gets huge pages"
                } else {
                    "which finds what is hot later"
                };
                let timer_may = cfg!(target_arch = "x86_64")
                    && choice != Choice::Timer
                    && !matches!(why, OpenError::Blind(_));
                let other = if timer_may { "; --sampler timer needs no perf events" } else { "" };
                say(&format!(
                    "where the program waits for memory is learned from faults alone, {cost}: {why}{other}"
                ));
                Ok(None)
            }
        }
    }

    /// Takes out what was sampled, and passes it on. Returns when to poll again.
    pub fn poll(&mut self) -> Duration {
        let now = Instant::now();
        let cpu_before = cpu_time();
        self.find_processes(now);
        let (data, met) = (&self.data, &mut self.met);
        let files = &mut self.files;
        let wanted = |process, address| data.borrow_mut().contains(process, address);
        let count = |sample: Sample| {
            *met.entry((sample.process, sample.address & !15)).or_default() += sample.weight
        };
        let tally = match &mut self.intake {
            Intake::Timers(decoder) => interrupts(files, decoder, wanted, count),
            Intake::Events(source) => {
                source.drain(|process| files.contains_key(&process), wanted, count)
            }
            Intake::Nothing(_) => Tally::default(),
        };
        self.send();
        self.tally += tally;
        let wanted = self.files.values().filter_map(SampleFile::wanted).reduce(f64::max);
        let samples = tally.samples + tally.lost;
        // (Where it cannot be switched, it goes on.) What executes a program is sampled again,
        // whatever was said before.
        let comes_back = samples > 0 && !self.control.on;
        let switch = self
            .control
            .poll(now, samples, wanted.unwrap_or(WANTED_FIRST), || cpu_time() - cpu_before);
        let on = self.control.on;
        self.hurried |= tally.lost + tally.throttled > 0;
        if let Intake::Events(source) = &mut self.intake
            && now - self.paced >= Pace::EVERY
        {
            self.paced = now;
            let more = wanted.is_some_and(|wanted| wanted >= 1.0);
            // (Where periods cannot be changed, they stay.)
            let _ = source.pace(
                self.control.sampling,
                self.control.allowed,
                std::mem::take(&mut self.hurried),
                more,
            );
        }
        match &self.intake {
            Intake::Events(source) if switch.is_some() || comes_back && !on => {
                let _ = source.enable(on);
            }
            Intake::Events(_) | Intake::Nothing(_) => {}
            Intake::Timers(_) => {
                for file in self.files.values() {
                    // One that cannot be written is forgotten with the next samples.
                    let _ = file.set_period(if on { TIMER_PERIOD_NS } else { 0 });
                }
            }
        }
        POLL_INTERVAL
    }

    /// Finds the processes of the run and their pages; those that have ended go.
    fn find_processes(&mut self, now: Instant) {
        let changed =
            std::fs::metadata(&self.run_dir).and_then(|directory| directory.modified()).ok();
        if changed == self.changed && now - self.files_from < PROCESSES_EVERY {
            return;
        }
        (self.changed, self.files_from) = (changed, now);
        let mut before = std::mem::take(&mut self.files);
        for (pid, page) in statistics::newest_pages(&self.run_dir) {
            let known = before.remove(&pid).filter(|file| file.name == page.name);
            let lives = process::stat(pid).is_some_and(|stat| !stat.ended);
            if lives && self.files.len() < PROCESSES_MAX {
                self.files
                    .extend(known.or_else(|| SampleFile::open(&page)).map(|file| (pid, file)));
            }
        }
    }

    /// Writes what was met to the processes that it concerns.
    fn send(&mut self) {
        let mut all: Vec<((u32, u64), f32)> = self.met.drain().collect();
        // Of each process the most first: what is too much for its ring is the least.
        all.sort_unstable_by(|(a, more), (b, less)| {
            a.0.cmp(&b.0).then(less.total_cmp(more)).then(scattered(a.1).cmp(&scattered(b.1)))
        });
        for of_one in all.chunk_by(|a, b| a.0.0 == b.0.0) {
            let process = of_one[0].0.0;
            let Some(file) = self.files.get_mut(&process) else { continue };
            let entries: Vec<u64> = of_one
                .iter()
                .map(|((_, address), weight)| SampleRing::entry(*address, *weight))
                .collect();
            if file.send(&entries).is_err() {
                self.files.remove(&process);
            }
        }
    }

    /// In a forked process, which does not have the rings mapped: lets go of them, before anything
    /// else is mapped where they were. Nothing is sampled until [`Sampling::begin_again`].
    pub fn let_go_of_rings(&mut self) {
        if let Intake::Events(source) = &self.intake {
            self.intake = Intake::Nothing(source.name());
        }
    }

    /// Goes on, if all processes may be sampled: those that are there already cannot be, one by
    /// one.
    pub fn begin_again(&mut self) {
        if let Intake::Nothing(_) = self.intake
            && let Ok(intake) = open(self.choice, Whose::Everybody)
        {
            let control =
                Control::new(Instant::now(), Ticks::of(&intake, true), Cost(self.control.share));
            self.control = Control { cost_in_all: self.control.cost_in_all, ..control };
            self.intake = intake;
        }
    }

    /// What sampling came to until the last poll.
    pub fn so_far(&self) -> Sampled {
        let cost = self.control.cost_in_all;
        let elapsed = self.begun.elapsed().as_secs_f64();
        Sampled {
            kind: self.intake.name(),
            samples: self.tally.located,
            cpu_fraction: if elapsed > 0.0 { cost.as_secs_f64() / elapsed } else { 0.0 },
        }
    }
}

/// A number for an order that has nothing to do with addresses: else the highest would always be
/// too much.
fn scattered(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What sampling costs beside samples and their reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ticks {
    /// Nothing beside samples and their reading.
    None,
    /// Interrupts on CPUs where no program runs.
    OfAll,
    /// Something at each switch between the run's threads.
    OfSwitches,
}

impl Ticks {
    fn of(intake: &Intake, everybody: bool) -> Ticks {
        match intake {
            Intake::Timers(_) | Intake::Nothing(_) => Ticks::None,
            // It counts nothing where nothing runs.
            Intake::Events(Source::Hardware(_)) if everybody => Ticks::None,
            _ if everybody => Ticks::OfAll,
            _ => Ticks::OfSwitches,
        }
    }
}

/// Holds the cost of sampling under its share: samples are taken in a part of the looks only.
#[derive(Debug)]
struct Control {
    /// Share of a CPU that sampling may cost, 0 to 1.
    share: f64,
    /// Share of a CPU that sampling may cost now, 0 to 1: more for some seconds after a change.
    allowed: f64,
    polled: Instant,
    cost_in_all: Duration,
    /// CPU time per time, of late: while samples are taken, and while none are.
    sampling: f64,
    resting: f64,
    /// The most of the time, and what the clock's ticks cost that hit no program.
    duty_most: f64,
    ticks: f64,
    /// Time until which more is allowed, and how many times as much.
    boost: Option<(Instant, f64)>,
    /// What is left over of the time, and whether samples are taken now.
    due: f64,
    on: bool,
}

impl Control {
    /// Least part of the time in which samples are taken: with less it would not be known when it
    /// costs less.
    const DUTY_LEAST: f64 = 0.002;

    fn new(now: Instant, ticks: Ticks, share: Cost) -> Control {
        let cpus = std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64);
        Control {
            share: share.0,
            allowed: share.0,
            duty_most: if ticks == Ticks::OfSwitches { DUTY_OF_CHILDREN } else { 1.0 },
            ticks: if ticks == Ticks::OfAll {
                cpus * f64::from(RATE_HZ) * IDLE_TICK.as_secs_f64()
            } else {
                0.0
            },
            polled: now,
            cost_in_all: Duration::ZERO,
            sampling: 0.0,
            resting: 0.0,
            boost: None,
            due: 0.0,
            on: true,
        }
    }

    /// Notes that `samples` samples came and were dealt with, and how much sampling is `wanted` (1
    /// is the usual). Returns `Some` if sampling is to be switched.
    fn poll(
        &mut self,
        now: Instant,
        samples: u64,
        wanted: f64,
        reading: impl FnOnce() -> Duration,
    ) -> Option<bool> {
        let elapsed = (now - self.polled).as_secs_f64();
        self.polled = now;
        let cost = reading() + INTERRUPT * samples.min(u64::from(u32::MAX)) as u32;
        self.cost_in_all += cost;
        if elapsed > 0.0 {
            let of_late = if self.on { &mut self.sampling } else { &mut self.resting };
            *of_late += (cost.as_secs_f64() / elapsed - *of_late) * 0.2;
        }
        if wanted > 1.0 {
            self.boost = Some((now + BOOSTED, wanted));
        }
        self.boost = self.boost.filter(|(until, _)| now < *until);
        self.allowed = self.share * self.boost.map_or(1.0, |(_, times)| times);
        let affordable = ((self.allowed - self.resting)
            / (self.sampling + self.ticks - self.resting).max(f64::MIN_POSITIVE))
        .max(0.0);
        self.due += affordable.min(wanted).clamp(Self::DUTY_LEAST, self.duty_most);
        let on = self.due >= 1.0;
        if on {
            self.due -= 1.0;
        }
        let switch = on != self.on;
        self.on = on;
        switch.then_some(on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_names() {
        for source in Choice::ALL {
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        assert!(
            "pebbles"
                .parse::<Choice>()
                .unwrap_err()
                .to_string()
                .contains("auto, pebs, ibs, clock, timer or none")
        );
    }

    #[test]
    fn costs_are_shares() {
        assert_eq!(
            ("1%".parse(), "0.25%".parse(), Cost::default().to_string().as_str()),
            (Ok(Cost::default()), Ok(Cost(0.0025)), "1%")
        );
        for wrong in ["1", "0%", "101%", "-1%", "nan%", "", "%"] {
            assert!(
                wrong.parse::<Cost>().unwrap_err().to_string().contains("such as 1%"),
                "{wrong}"
            );
        }
    }

    /// What a machine with `threads` running threads costs in the end, and the share of the time in
    /// which it is sampled.
    fn settled(threads: u64, wanted: f64) -> (f64, f64) {
        let mut now = Instant::now();
        let mut control = Control::new(now, Ticks::OfAll, Cost::default());
        control.ticks = 0.0;
        let mut on = true;
        let (mut cost, mut looks, mut sampled) = (Duration::ZERO, 0.0, 0.0);
        for look in 0..2_000 {
            now += POLL_INTERVAL;
            let samples = if on { threads * u64::from(RATE_HZ) / 10 } else { 0 };
            let reading = Duration::from_micros(20 + samples * 3);
            on = control.poll(now, samples, wanted, || reading).unwrap_or(on);
            if look >= 400 {
                cost += reading + INTERRUPT * samples as u32;
                looks += 1.0;
                sampled += f64::from(u32::from(on));
            }
        }
        (cost.as_secs_f64() / (looks * POLL_INTERVAL.as_secs_f64()), sampled / looks)
    }

    #[test]
    fn many_threads_cost_no_more_than_the_share() {
        for threads in [0, 1, 2, 8, 64, 200] {
            let (cost, sampled) = settled(threads, 1.0);
            assert!(cost < Cost::default().0 * 1.15, "{threads} threads cost {cost}");
            assert!(
                threads > 1 || sampled == 1.0,
                "{threads} threads could be sampled all the time, not {sampled}"
            );
            assert!(
                threads < 2 || cost > Cost::default().0 * 0.5,
                "{threads} threads are sampled too little: {cost}"
            );
        }
    }

    #[test]
    fn no_more_is_sampled_than_is_wanted() {
        let (cost, sampled) = settled(1, 0.1);
        assert!(
            sampled > 0.08 && sampled < 0.12 && cost < Cost::default().0 * 0.12,
            "{sampled}: {cost}"
        );
        let (cost, _) = settled(64, 3.0);
        assert!(cost > Cost::default().0 * 1.5 && cost < Cost::default().0 * 3.4, "{cost}");
    }
}
