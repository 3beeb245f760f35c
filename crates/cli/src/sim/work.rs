//! Runs cases on several threads: those of one stream together, as far as that leaves all threads
//! something to do.

use super::cases::Run;
use super::results::{Results, Row};
use crate::say;
use anyhow::{Context as _, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use terrace_policy::registry::simulated;
use terrace_sim::ahead::Ahead;
use terrace_sim::pass;
use terrace_sim::simulation::Simulation;

/// Cases that go over a stream together at most: their memory is there at the same time.
const TOGETHER: usize = 16;
/// Time between messages of progress, on a terminal and elsewhere.
const TOLD_EVERY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(20)];

/// Runs what is not finished, on `threads` threads; says on standard error how far it is. Returns
/// how many cases could not be run; for each it was said why.
pub fn run(cases: &[Run], results: &Results, threads: usize) -> usize {
    let mut streams: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, case) in cases.iter().enumerate().filter(|(number, _)| !results.has(*number)) {
        streams.entry(case.stream).or_default().push(number);
    }
    let (skipped, open) = (results.finished(), streams.values().map(Vec::len).sum::<usize>());
    if skipped > 0 {
        say(&format!("{skipped} of {} cases are finished already", cases.len()));
    }
    let repeated = results.to_be_repeated();
    if repeated > 0 {
        say(&format!(
            "{repeated} of {} cases are run again: their recordings were not whole",
            cases.len()
        ));
    }
    if open == 0 {
        return 0;
    }
    let parts = threads.div_ceil(streams.len());
    let groups: Vec<Vec<usize>> = streams
        .into_values()
        .flat_map(|numbers| {
            let size = numbers.len().div_ceil(parts).min(TOGETHER);
            numbers.chunks(size).map(<[usize]>::to_vec).collect::<Vec<_>>()
        })
        .collect();
    // Where there are CPUs to spare, they read ahead.
    let ahead = groups.len() * 2 <= threads;
    let progress = Progress {
        begun: Instant::now(),
        open,
        done: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        said: Mutex::default(),
    };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(groups.len()))
            .map(|_| {
                scope.spawn(|| {
                    while let Some(group) = groups.get(next.fetch_add(1, Relaxed)) {
                        if let Err(error) = together(cases, group, results, &progress, ahead) {
                            let first = &cases[group[0]].case;
                            progress.say(format!(
                                "{} (seed {}): {error:#}",
                                first.workload, first.seed
                            ));
                        }
                    }
                })
            })
            .collect();
        let teller = scope.spawn(|| progress.tell(results, skipped));
        workers.into_iter().for_each(|worker| worker.join().expect("workers do not panic"));
        progress.ended.store(true, Relaxed);
        teller.thread().unpark();
    });
    cases.len() - results.finished()
}

/// Cases of one stream, which is made by a thread of its own if `ahead`.
fn together(
    cases: &[Run],
    group: &[usize],
    results: &Results,
    progress: &Progress,
    ahead: bool,
) -> Result<()> {
    let first = &cases[group[0]];
    let opened = first.workload.open(first.case.seed, first.layout, first.filter(), first.pages)?;
    if let Some(note) = opened.note {
        progress.say(format!("{}: {note}; what is there is simulated", first.case.workload));
    }
    let not_whole = || {
        if let Some(why) = opened.ends_early.why() {
            progress.say(format!(
                "{}: {why}; what comes before is simulated, and results are marked as incomplete: copy the file again, or record again, for the rest",
                first.case.workload
            ));
        }
    };
    not_whole();
    let mut source = if ahead { Box::new(Ahead::new(opened.source)) } else { opened.source };
    let (units, sizes, accesses) = (source.units(), source.sizes(), source.accesses());
    let (mut numbers, mut simulations) =
        (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
    for number in group {
        let run = &cases[*number];
        match run.settings(units, &sizes, accesses, opened.period) {
            Ok((settings, parameters)) => {
                let policy = simulated::policy(&run.case.policy, &parameters)
                    .context("its name was looked at before")?;
                simulations.push(Simulation::sized(settings, sizes.clone(), policy));
                numbers.push(*number);
            }
            Err(error) => progress.say(format!("{}: {error:#}", run.case.workload)),
        }
    }
    if simulations.is_empty() {
        return Ok(());
    }
    // In millionths of a case.
    let share = |accesses_done: u64| {
        accesses.map_or(0, |all| {
            (accesses_done as f64 / all.max(1) as f64 * 1e6 * group.len() as f64) as u64
        })
    };
    let (mut done, mut told) = (0, 0);
    pass::run(source.as_mut(), &mut simulations, &mut |accesses| {
        done += accesses;
        progress.done.fetch_add(share(done).saturating_sub(told), Relaxed);
        told = told.max(share(done));
    })?;
    not_whole();
    if done == 0 {
        bail!(
            "no access can be read{}",
            opened.ends_early.why().map(|why| format!(": {why}")).unwrap_or_default()
        );
    }
    for (number, simulation) in numbers.into_iter().zip(simulations) {
        let settings = *simulation.settings();
        let base_units = cases[number].is_mixed().then(|| sizes.iter().sum());
        let outcome = simulation.finish();
        if outcome.ticks == 0 {
            progress.say(format!(
                "{}: over before the first tick, so that no policy could move anything (--stands-for: how many accesses of a program each one stands for)",
                first.case.workload
            ));
        }
        let row =
            Row::new(&cases[number].case, &settings, base_units, opened.ends_early.why(), &outcome);
        results.add(number, row)?;
    }
    Ok(())
}

struct Progress {
    begun: Instant,
    /// Cases to be run.
    open: usize,
    /// Work done so far, in millionths of a case, summed over the cases to be run.
    done: AtomicU64,
    ended: AtomicBool,
    said: Mutex<BTreeSet<String>>,
}

impl Progress {
    /// Tells progress until the work has ended.
    fn tell(&self, results: &Results, skipped: usize) {
        let terminal = std::io::stderr().is_terminal();
        let every = TOLD_EVERY[usize::from(!terminal)];
        loop {
            std::thread::park_timeout(every);
            if self.ended.load(Relaxed) {
                break;
            }
            let share = self.done.load(Relaxed) as f64 / 1e6 / self.open as f64;
            let seconds = self.begun.elapsed().as_secs_f64();
            let left = if share > 0.01 {
                format!(", about {:.0} s more", seconds / share - seconds)
            } else {
                String::new()
            };
            let text = format!(
                "{} of {} cases, {:.0} %{left}",
                results.finished() - skipped,
                self.open,
                share * 100.0
            );
            if terminal {
                let _ = write!(std::io::stderr(), "\r\x1b[Kterrace: {text}");
            } else {
                say(&text);
            }
        }
        if terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// Something else than progress; once, for however many cases.
    fn say(&self, message: String) {
        let mut said = self.said.lock().expect("nobody panics with it");
        if !said.contains(&message) {
            if std::io::stderr().is_terminal() {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
            say(&message);
            said.insert(message);
        }
    }
}
