//! memcached and redis-server of which nothing is evicted: alone, under Terrace, and under Terrace
//! with samples. Told is what that costs them: CPU time of an operation, and memory. The bar is for
//! the side with samples: 2 % and 1 %.
//!
//! The servers of all sides are there at once and serve in turn, a sixth of a second each. On a
//! machine whose speed changes from second to second, only neighbours can be compared. Samples are
//! taken of all that runs on the machine. So they are taken only while their own side serves, and
//! there as often as `terrace run` wants them.

use super::measure::{self, Data, ITEM_OVERHEAD_BYTES, Load};
use super::server::{self, Running, Server};
use super::{CLIENT_CPU, SETTLE, process};
use crate::interrupt;
use crate::results::{self, median, median_interval};
use crate::side::Side;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Sides of the comparison. Alone is first: the others are compared with it.
const SIDES: [Side; 3] = [Side::Alone, Side::Terrace, Side::Sampled];
const SERVERS: [Server; 2] = [Server::Memcached, Server::Redis];
const VALUE_BYTES: usize = 1000;
/// Approximate bytes that the servers hold. What Terrace takes is a few MiB, and the rest in
/// proportion.
const HELD_BYTES: [u64; 2] = [400 << 20, 1000 << 20];
const LOAD: Load = Load { get_percent: 100, connections: 32, depth: 1 };
/// Number of operations in one turn.
const OPERATIONS: u64 = 20_000;
/// Turns of each side in one round, whose sums are compared.
const TURNS: usize = 8;
/// Rounds after which the servers are started anew: where their pages lie is a matter of chance.
const ROUNDS_A_START: usize = 10;
/// Pairs of turns that do not count: caches fill.
const WARM_UP_TURNS: usize = 10;

/// Figures of one side.
#[derive(Default)]
struct Found {
    /// CPU time of an operation in each round, µs: of the server with all its threads, and of
    /// `terrace run`.
    cpu_us: Vec<f64>,
    /// Memory of the server at the end of each start, bytes. Shared pages count in part (Pss), and
    /// page tables count too.
    memory: Vec<f64>,
    /// Memory of the server and `terrace run` together at the end of each start, bytes.
    memory_with_run: Vec<f64>,
}

/// Reads one kind of figure of a side.
type Figure = fn(&Found) -> &[f64];
/// Figures that are compared, by name; less is better.
const FIGURES: [(&str, Figure); 3] = [
    ("CPU time of an operation", |found| &found.cpu_us),
    ("memory of the server", |found| &found.memory),
    ("memory with `terrace run`", |found| &found.memory_with_run),
];

/// Runs this many rounds of each server; prints and writes.
pub fn run(rounds: usize) -> anyhow::Result<()> {
    interrupt::watch()?;
    server::pin(CLIENT_CPU)
        .context("two CPUs are needed: one for the server, one for the client")?;
    let all = SERVERS.into_iter().flat_map(|server| HELD_BYTES.map(|held| (server, held)));
    let compared: Vec<Value> =
        all.map(|(server, held)| compare(server, held, rounds)).collect::<anyhow::Result<_>>()?;
    let how = json!({
        "rounds": rounds, "rounds_a_start": ROUNDS_A_START, "turns_a_round": TURNS,
        "operations_a_turn": OPERATIONS,
    });
    results::write(
        "idle-servers",
        json!({ "how": how, "value_bytes": VALUE_BYTES, "servers": compared }),
    )
}

fn compare(server: Server, held_bytes: u64, rounds: usize) -> anyhow::Result<Value> {
    let items = held_bytes / (VALUE_BYTES as u64 + ITEM_OVERHEAD_BYTES);
    let data = Data { server, items, value_bytes: VALUE_BYTES };
    println!(
        "{}, {items} items of {VALUE_BYTES} bytes, GETs over 32 connections, {rounds} rounds, nothing evicted:\n",
        server.name()
    );
    let mut found: [Found; SIDES.len()] = Default::default();
    while found[0].cpu_us.len() < rounds {
        let left = rounds - found[0].cpu_us.len();
        one_start(data, left.min(ROUNDS_A_START), &mut found)?;
    }
    let [alone, with @ ..] = &found;
    let mut rows = Vec::new();
    for (side, with) in SIDES[1..].iter().zip(with) {
        for (name, figure) in FIGURES {
            let ratios: Vec<f64> =
                figure(with).iter().zip(figure(alone)).map(|(with, alone)| with / alone).collect();
            let (ratio, (low, high)) = (median(&ratios), median_interval(&ratios));
            println!(
                "{:>9} / alone   {name:<28} {ratio:.4}   95 % interval {low:.4} to {high:.4}",
                side.name()
            );
            rows.push(json!({
                "side": side.name(), "against": "alone", "figure": name, "ratio_median": ratio,
                "ratio_95": [low, high],
            }));
        }
    }
    println!();
    let samples: serde_json::Map<String, Value> = SIDES
        .iter()
        .zip(&found)
        .map(|(side, found)| {
            let Found { cpu_us, memory, memory_with_run } = found;
            let figures = json!({
                "cpu_us_per_op": cpu_us, "memory_bytes": memory,
                "memory_with_run_bytes": memory_with_run,
            });
            (side.name().to_owned(), figures)
        })
        .collect();
    Ok(json!({
        "server": server.name(), "version": server.version()?, "items": items, "ratios": rows,
        "samples": samples,
    }))
}

/// Starts and fills a server for each side, and has them serve in turn. All servers of a turn have
/// the same accesses.
fn one_start(data: Data, rounds: usize, found: &mut [Found; SIDES.len()]) -> anyhow::Result<()> {
    let mut running = Vec::new();
    for side in SIDES {
        running.push(
            start(data, side).with_context(|| format!("{} {}", data.server.name(), side.name()))?,
        );
    }
    let sampled = SIDES.iter().position(|side| *side == Side::Sampled).expect("it is a side");
    let mut sampling =
        Sampling::of(running[sampled].terrace_run().context("it is under terrace run")?)?;
    let mut turn = |number: usize, took: &mut [f64; SIDES.len()]| {
        // From `sampled` to `alone` one turn, back the next: what drifts meets all alike.
        let mut order: Vec<usize> = (0..SIDES.len()).collect();
        if number.is_multiple_of(2) {
            order.reverse();
        }
        order.into_iter().try_for_each(|side| {
            sampling.set(side == sampled)?;
            took[side] += measure::cpu_us_per_operation(
                &mut running[side],
                data,
                LOAD,
                OPERATIONS,
                number as u64,
            )?;
            anyhow::Ok(())
        })
    };
    (0..WARM_UP_TURNS).try_for_each(|number| turn(number, &mut [0.0; SIDES.len()]))?;
    for round in 0..rounds {
        let mut took = [0.0; SIDES.len()];
        (0..TURNS)
            .try_for_each(|number| turn(WARM_UP_TURNS + round * TURNS + number, &mut took))?;
        for (found, took) in found.iter_mut().zip(took) {
            found.cpu_us.push(took / TURNS as f64);
        }
    }
    sampling.set(true)?;
    for (found, running) in found.iter_mut().zip(&running) {
        let server = process::memory(running.pid)?;
        found.memory.push(server);
        found
            .memory_with_run
            .push(server + running.terrace_run().map_or(Ok(0.0), process::memory)?);
    }
    Ok(())
}

fn start(data: Data, side: Side) -> anyhow::Result<Running> {
    let flags: Option<Vec<String>> =
        side.terrace_flags().map(|flags| flags.iter().map(|flag| (*flag).to_owned()).collect());
    let mut running = Running::start(data, flags.as_deref())?;
    measure::fill(&mut running, data)?;
    interrupt::sleep(SETTLE)?;
    if let Some(page) = &running.page {
        page.expect_managed()?;
    }
    Ok(running)
}

/// The perf events of a `terrace run`, which is stopped while they are off: otherwise it would
/// switch them on.
struct Sampling {
    run: u32,
    events: Vec<File>,
    /// Whether `terrace run` goes on, and whether it had its events on when it was stopped.
    goes_on: bool,
    were_on: bool,
}

impl Sampling {
    fn of(run: u32) -> anyhow::Result<Sampling> {
        // SAFETY: no pointers.
        let process =
            owned(unsafe { libc::syscall(libc::SYS_pidfd_open, run, 0) }).context("pidfd_open")?;
        let mut events = Vec::new();
        for entry in fs::read_dir(format!("/proc/{run}/fd"))?.flatten() {
            if !fs::read_link(entry.path())
                .is_ok_and(|path| path.to_string_lossy().contains("perf_event"))
            {
                continue;
            }
            let number: i32 = entry.file_name().to_string_lossy().parse()?;
            // SAFETY: no pointers.
            let event =
                unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
            events.push(File::from(owned(event).context("pidfd_getfd, which needs to be root")?));
        }
        if events.is_empty() {
            bail!("terrace run has no perf events: it does not sample");
        }
        Ok(Sampling { run, events, goes_on: true, were_on: true })
    }

    /// Has `terrace run` sample as it likes from now on, or not at all.
    fn set(&mut self, goes_on: bool) -> anyhow::Result<()> {
        if goes_on == self.goes_on {
            return Ok(());
        }
        if !goes_on {
            self.signal(libc::SIGSTOP)?;
            // Such a clock counts while it is on.
            let before = self.counted()?;
            interrupt::sleep(Duration::from_millis(2))?;
            self.were_on = self.counted()? > before;
        }
        if self.were_on {
            self.switch(goes_on)?;
        }
        if goes_on {
            self.signal(libc::SIGCONT)?;
        }
        self.goes_on = goes_on;
        Ok(())
    }

    fn counted(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for mut event in &self.events {
            let mut count = [0; 8];
            event.read_exact(&mut count).context("reading a perf event")?;
            sum += u64::from_ne_bytes(count);
        }
        Ok(sum)
    }

    fn switch(&self, on: bool) -> anyhow::Result<()> {
        /// `_IO('$', 0)` and `_IO('$', 1)`.
        const PERF_EVENT_IOC: u64 = 0x2400;
        for event in &self.events {
            // SAFETY: no memory is involved.
            if unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC + u64::from(!on), 0) } != 0 {
                return Err(io::Error::last_os_error()).context("switching perf events");
            }
        }
        Ok(())
    }

    fn signal(&self, signal: i32) -> anyhow::Result<()> {
        // SAFETY: no pointers. It is a child of this process that has not been waited for.
        match unsafe { libc::kill(self.run as i32, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()).context("signalling terrace run"),
        }
    }
}

impl Drop for Sampling {
    /// Lets `terrace run` go on: a stopped one would not end when told to.
    fn drop(&mut self) {
        let _ = self.signal(libc::SIGCONT);
    }
}

fn owned(descriptor: i64) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made by the system call that returned it, and without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}
