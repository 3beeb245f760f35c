//! Costs of a program's own calls about memory: munmap, madvise, mremap and fork. They are made
//! through the C library and by an instruction of the program's own. The memory is resident or
//! evicted.
//!
//! Beside them, what a thousand processes cost, as `ps` and a memory control group show it.

use crate::machine::pinned_to;
use crate::probe::{self, MIB, PAGE, REGION};
use crate::results::{self, median};
use crate::servers::group::Group;
use crate::servers::process;
use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};
use syscalls::{Sysno, syscall};
use terrace_testkit::process::threads;
use terrace_testkit::zram::Zram;

/// What is timed. A child by an instruction of the program's own is not known to the C library, so
/// there is nothing to compare.
const CALLS: [&str; 4] = ["munmap", "madvise(MADV_DONTNEED)", "mremap", "fork"];
const BY_INSTRUCTION: &str = ", by instruction";
/// Bytes that one call is about.
const PIECE: usize = MIB;
const FLAGS: [&str; 4] = ["--dram", "16G", "--tiers", "dram,lz4"];
/// Rounds over the region. Each kind of call is made once for each piece of the region in each
/// round.
const ROUNDS: usize = 4;
const FORKS: usize = 40;
/// Bytes of the inherited region that each of the forked processes writes.
const WRITTEN: usize = MIB;
/// Wait after all processes have started: Terrace's processes beside them may still be starting.
const SETTLE: Duration = Duration::from_secs(3);

/// How much is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats of each side
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// How many processes are forked and held
    #[arg(long, default_value_t = 1000)]
    processes: usize,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let calls = time_calls(options.repeats)?;
    let processes = hold_many(options.processes)?;
    results::write("calls", json!({ "calls": calls, "processes": processes }))
}

/// Sides of the comparison: name, whether under Terrace, and whether the pages are resident or
/// evicted. Evicted pages are kept by the kernel on zram, or by Terrace.
const SIDES: [(&str, bool, &str); 4] = [
    ("alone", false, "resident"),
    ("zram", false, "out"),
    ("terrace", true, "resident"),
    ("terrace", true, "out"),
];

fn time_calls(repeats: usize) -> anyhow::Result<Value> {
    let own = std::env::current_exe()?;
    let own = own.to_string_lossy();
    let mut found: Vec<Vec<Value>> = vec![Vec::new(); SIDES.len()];
    for _ in 0..repeats {
        for ((side, under_terrace, pages), found) in SIDES.iter().zip(&mut found) {
            let _zram = match *side {
                "zram" => match Zram::for_measuring(1 << 30, "lz4") {
                    Ok(zram) => Some(zram),
                    Err(e) => {
                        println!("no zram side: {e:#}");
                        continue;
                    }
                },
                _ => None,
            };
            let flags = under_terrace.then_some(&FLAGS[..]);
            let output = pinned_to("0,1", flags, &[&own, "time-calls", pages])?.output()?;
            if !output.status.success() {
                bail!("the measured program failed: {}", String::from_utf8_lossy(&output.stderr));
            }
            found.push(serde_json::from_slice(&output.stdout).context("figures that are no JSON")?);
        }
    }
    println!(
        "Calls about {} KiB, and fork of a process with {} MiB, µs, median / p99, medians of {repeats} interleaved runs:\n",
        PIECE >> 10,
        REGION / MIB
    );
    print!("{:28}", "");
    SIDES.iter().for_each(|(side, _, pages)| print!("{:>20}", format!("{side}, {pages}")));
    println!();
    let mut rows = Vec::new();
    for name in
        CALLS.iter().flat_map(|call| [(*call).to_owned(), format!("{call}{BY_INSTRUCTION}")])
    {
        if found[0].iter().all(|run| run[&name].is_null()) {
            continue;
        }
        print!("{name:28}");
        let mut row = json!({ "call": name });
        for ((side, _, pages), found) in SIDES.iter().zip(&found) {
            let of = |figure: &str| {
                let values = found.iter().filter_map(|run| run[&name][figure].as_f64());
                median(&values.collect::<Vec<_>>())
            };
            let (p50, p99, out) = (of("p50_us"), of("p99_us"), of("out_share"));
            print!("{:>20}", format!("{p50:.1} / {p99:.1}"));
            row[format!("{side}, {pages}")] =
                json!({ "p50_us": p50, "p99_us": p99, "out_share": out });
        }
        println!();
        rows.push(row);
    }
    println!();
    Ok(json!({ "repeats": repeats, "rows": rows, "samples": found }))
}

/// The program that is measured: makes each call many times, of `resident` pages or of pages that
/// are `out`; prints figures by call as JSON.
pub fn time_them(pages: &str) -> anyhow::Result<()> {
    let is_out = pages == "out";
    let contents = probe::map(REGION);
    probe::fill(contents, REGION);
    // Enough managed memory for Terrace to start beside it.
    std::thread::sleep(Duration::from_millis(300));
    let mut figures = json!({});
    for name in CALLS {
        for (way, by_instruction) in [("", false), (BY_INSTRUCTION, true)] {
            let figure = match (name, by_instruction) {
                ("fork", true) => continue,
                ("fork", false) => time_forks(contents, is_out)?,
                _ => time_call(name, by_instruction, contents, is_out)?,
            };
            figures[format!("{name}{way}")] = figure;
        }
    }
    println!("{figures}");
    Ok(())
}

fn figure(times: &Histogram<u64>, out_share: f64) -> Value {
    let us = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    json!({ "p50_us": us(0.5), "p99_us": us(0.99), "out_share": out_share })
}

/// Share of the region that is evicted, after paging it out where `is_out` asks for that.
fn out_share(memory: *mut u8, is_out: bool) -> f64 {
    if is_out {
        probe::page_out_in_batches(memory);
    }
    1.0 - probe::present_pages(memory, REGION) as f64 / (REGION / PAGE) as f64
}

fn time_call(
    name: &str,
    by_instruction: bool,
    contents: *mut u8,
    is_out: bool,
) -> anyhow::Result<Value> {
    let mut times = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    let mut least_out = 1.0f64;
    for _ in 0..ROUNDS {
        let (memory, target) = (probe::map(REGION), probe::map(REGION));
        // SAFETY: two mappings of that size.
        unsafe { std::ptr::copy_nonoverlapping(contents, memory, REGION) };
        least_out = least_out.min(out_share(memory, is_out));
        for at in (0..REGION).step_by(PIECE) {
            // SAFETY: inside the mappings.
            let (piece, to) = unsafe { (memory.add(at), target.add(at)) };
            let start = Instant::now();
            // SAFETY: both are this program's, and nothing refers to what is there.
            unsafe { call(name, by_instruction, piece, to) }
                .with_context(|| format!("{name} failed"))?;
            times.record(start.elapsed().as_nanos() as u64)?;
        }
        for rest in [memory, target] {
            // SAFETY: what is left of this program's own mappings.
            unsafe { libc::munmap(rest.cast(), REGION) };
        }
    }
    Ok(figure(&times, least_out))
}

/// # Safety
///
/// `piece` and `to` are [`PIECE`] bytes each, of a mapping each, and nothing refers to their
/// contents.
unsafe fn call(name: &str, by_instruction: bool, piece: *mut u8, to: *mut u8) -> io::Result<()> {
    const REMAP: libc::c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if by_instruction {
        // SAFETY: as the caller says.
        let done = unsafe {
            match name {
                "munmap" => syscall!(Sysno::munmap, piece, PIECE),
                "mremap" => syscall!(Sysno::mremap, piece, PIECE, PIECE, REMAP, to),
                _ => syscall!(Sysno::madvise, piece, PIECE, libc::MADV_DONTNEED),
            }
        };
        return done.map(drop).map_err(|error| io::Error::from_raw_os_error(error.into_raw()));
    }
    let memory = piece.cast();
    // SAFETY: as the caller says.
    let failed = unsafe {
        match name {
            "munmap" => libc::munmap(memory, PIECE) != 0,
            "mremap" => {
                libc::mremap(memory, PIECE, PIECE, REMAP, to.cast::<libc::c_void>())
                    == libc::MAP_FAILED
            }
            _ => libc::madvise(memory, PIECE, libc::MADV_DONTNEED) != 0,
        }
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How long the parent is in fork.
fn time_forks(memory: *mut u8, is_out: bool) -> anyhow::Result<Value> {
    let mut times = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    let least_out = out_share(memory, is_out);
    for _ in 0..FORKS {
        let start = Instant::now();
        // SAFETY: the child does nothing but end.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            0 => unsafe { libc::_exit(0) },
            -1 => return Err(io::Error::last_os_error()).context("fork failed"),
            child => {
                times.record(start.elapsed().as_nanos() as u64)?;
                wait_for(child)?;
            }
        }
    }
    Ok(figure(&times, least_out))
}

fn wait_for(child: i32) -> anyhow::Result<()> {
    let mut status = 0;
    // SAFETY: writes one number.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
        bail!("a child ended with {status}");
    }
    Ok(())
}

/// What a run with many processes shows from outside.
#[derive(Clone, Copy)]
struct Shown {
    /// Lines of `ps`, and threads of all these processes.
    processes: usize,
    threads: usize,
    /// Memory in bytes: what `ps` adds up to (RSS), what is there (shared pages in part: Pss), and
    /// what the memory group is charged.
    rss: f64,
    pss: f64,
    group: f64,
}

fn hold_many(processes: usize) -> anyhow::Result<Value> {
    println!(
        "{processes} processes forked by one with {} MiB, each of which wrote {} MiB of it, a process, KiB:\n",
        REGION / MIB,
        WRITTEN / MIB
    );
    println!(
        "{:10}{:>12}{:>12}{:>12}{:>12}{:>16}",
        "", "lines of ps", "threads", "RSS of ps", "Pss", "memory group"
    );
    let mut rows = Vec::new();
    for (side, flags) in [("alone", None), ("terrace", Some(&FLAGS[..]))] {
        let shown = shown_of(flags, processes)?;
        let each = |bytes: f64| bytes / processes as f64 / 1024.0;
        println!(
            "{side:10}{:>12}{:>12}{:>12.0}{:>12.0}{:>16.0}",
            shown.processes,
            shown.threads,
            each(shown.rss),
            each(shown.pss),
            each(shown.group)
        );
        rows.push(json!({
            "side": side, "processes": shown.processes, "threads": shown.threads,
            "rss_bytes": shown.rss, "pss_bytes": shown.pss, "group_bytes": shown.group,
        }));
    }
    println!();
    Ok(json!({ "held": processes, "rows": rows }))
}

fn shown_of(flags: Option<&[&str]>, processes: usize) -> anyhow::Result<Shown> {
    let own = std::env::current_exe()?;
    let group = Group::create()?;
    let joins = group.processes_file();
    let mut command = pinned_to(
        "0,1",
        flags,
        &[&own.to_string_lossy(), "hold-processes", &processes.to_string()],
    )?;
    // SAFETY: opens and writes a file.
    unsafe { command.pre_exec(move || fs::write(&joins, "0")) };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    std::thread::sleep(SETTLE);
    let shown = (|| {
        let mut shown = Shown {
            processes: 0,
            threads: 0,
            rss: 0.0,
            pss: 0.0,
            group: group.meter().usage_bytes()? as f64,
        };
        for pid in fs::read_to_string(group.processes_file())?.lines() {
            let pid: u32 = pid.parse()?;
            let all = process::rollup(pid)?;
            shown.processes += 1;
            shown.threads += threads(pid)?.len();
            shown.rss += all("Rss");
            shown.pss += all("Pss");
        }
        anyhow::Ok(shown)
    })();
    drop(child.stdin.take());
    let status = child.wait()?;
    if line.trim() != "ready" || !status.success() {
        bail!("the program with {processes} processes failed ({status})");
    }
    shown
}

/// The program that is looked at: forks this many processes, which stay until the input ends.
pub fn hold_processes(processes: usize) -> anyhow::Result<()> {
    let memory = probe::map(REGION);
    probe::fill(memory, REGION);
    std::thread::sleep(Duration::from_millis(300));
    let (mut ready, tells) = io::pipe()?;
    let (waits, until) = io::pipe()?;
    let mut children = Vec::new();
    for number in 0..processes {
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            0 => {
                drop(until);
                let at = number * WRITTEN % REGION;
                for page in (0..WRITTEN).step_by(PAGE) {
                    // SAFETY: inside the mapping.
                    unsafe { memory.add(at + page).write_volatile(1) };
                }
                (&tells).write_all(&[1])?;
                let _ = (&waits).read(&mut [0])?;
                // SAFETY: nothing of this process is needed any more.
                unsafe { libc::_exit(0) };
            }
            -1 => return Err(io::Error::last_os_error()).context("fork failed"),
            child => children.push(child),
        }
    }
    ready.read_exact(&mut vec![0; processes])?;
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new())?;
    drop(until);
    children.into_iter().try_for_each(wait_for)
}
