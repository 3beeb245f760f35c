//! `terrace record`: runs a program and writes down which parts of its memory it touches when. The
//! recording is for `terrace report`, and for a look before anything is moved. The program runs as
//! without us: nothing is preloaded, nothing managed.

use crate::processes::data::{Data, REGION_BYTES};
use crate::run::{child, command_path};
use crate::say;
use anyhow::{Context, Result, bail};
use clap::Args;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use terrace_sampler::clock::Clock;
use terrace_sampler::events::Whose;
use terrace_sampler::{Sample, Tally, trial};
use terrace_trace::accesses;
use terrace_trace::counts::{Header, PARTS, Place, Window, Writer};

/// Printed below the options of `--help`.
pub const HELP: &str = "\
What is seen:
  Each running thread is interrupted --rate times a second, and the address that it waited for is computed from its code and registers. Who waits
  longer is met more often: cache misses rather than accesses. The kernel's accesses, thread-local ones and gathers are not
  seen. It costs some 0.5 % of a CPU for each running thread at 1000 a second, and needs perf events (kernel.perf_event_paranoid at most 2).

Exit status:
  as of `terrace run`

Example:
  terrace record -o app.rec -- ./app && terrace report heatmap app.rec --svg app.svg";

/// `terrace record`.
#[derive(Args, Debug)]
pub struct RecordArguments {
    /// The file to write; one that exists is replaced
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Write the sampled accesses themselves, one by one by page, instead of counting them by
    /// region and time
    #[arg(long, conflicts_with = "window")]
    pub accesses: bool,
    /// With --accesses: the bytes by which they are written, a power of two from 64 to 4K; with 64,
    /// `terrace report utilisation` tells how much of a page is hot [default: 4K]
    #[arg(long, value_name = "SIZE", requires = "accesses", value_parser = unit_size)]
    pub unit: Option<u64>,
    /// Samples a second of each running thread, from 1 to 20000
    #[arg(
        long,
        value_name = "HZ",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=20_000)
    )]
    pub rate: u32,
    /// Milliseconds that are counted together, at least 10; longer ones where the file would grow
    /// beyond --limit
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(10..=3_600_000)
    )]
    pub window: u64,
    /// How large the file may grow (64K, 16M: powers of 1024). With --accesses it then ends, which
    /// costs some 3 bytes for each sample, or up to 8 with --unit 64
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = recording_size)]
    pub limit: u64,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// A recording's size: less than a header and a few windows is none.
fn recording_size(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 64 << 10;
    match terrace_control::settings::parse_size(text) {
        Ok(size) if size >= LEAST => Ok(size),
        Ok(_) => Err("at least 64K".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// The bytes by which accesses are written: a line of the caches, a page, or between them.
fn unit_size(text: &str) -> Result<u64, String> {
    match terrace_control::settings::parse_size(text) {
        Ok(size) if size.is_power_of_two() && (LINE_BYTES..=PAGE_BYTES).contains(&size) => Ok(size),
        Ok(_) => Err("a power of two from 64 to 4K".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Half of a ring is this many samples: it is emptied before it is full.
const SAMPLES_A_LOOK: u64 = 170;
/// Bytes by which accesses are written: of a page, if nothing else is said.
const PAGE_BYTES: u64 = 4096;
/// Least bytes by which accesses are written: those of a line of the caches.
const LINE_BYTES: u64 = 64;
/// Accesses are written out after this time, so that the file can be read while it grows.
const FLUSH_EVERY_US: u64 = 1_000_000;

/// Runs the command; the result is the exit status. Does not return if a signal killed the program:
/// it kills us too.
pub fn run(arguments: &RecordArguments) -> Result<u8> {
    let name = &arguments.command[0];
    let program = match command_path::of_command(name) {
        Ok(program) => program,
        Err(status) => return Ok(status),
    };
    if !cfg!(target_arch = "x86_64") {
        bail!(
            "recording needs x86-64: what an interrupted instruction touches is read from its operands"
        );
    }
    trial::clock()?;
    // Inherited by what is started next.
    let clock = Clock::open(Whose::Children, arguments.rate)?;
    let shown = arguments.output.display();
    let output = Output::create(arguments).with_context(|| format!("cannot write {shown}"))?;
    let mut recorder = Recorder {
        clock,
        output: Some(output),
        data: RefCell::new(if arguments.accesses { Data::default() } else { Data::with_names() }),
        begun: Instant::now(),
        poll_ms: (SAMPLES_A_LOOK * 1000 / u64::from(arguments.rate)).clamp(5, 100),
        tally: Tally::default(),
    };
    let mut command = Command::new(&program);
    command.arg0(name).args(&arguments.command[1..]);
    let ended = match child::run(command, |_, _| recorder.poll()) {
        Ok(ended) => ended,
        Err(error) => return Ok(command_path::not_started(name, &program, &error)),
    };
    recorder.finish(&shown.to_string());
    Ok(ended.end.pass_on())
}

struct Recorder {
    clock: Clock,
    /// Where samples go, until that fails.
    output: Option<Output>,
    data: RefCell<Data>,
    begun: Instant,
    poll_ms: u64,
    tally: Tally,
}

impl Recorder {
    /// Takes out what was sampled since the last poll.
    fn poll(&mut self) -> Duration {
        let (data, output) = (&self.data, &mut self.output);
        let mut written = Ok(());
        let tally = self.clock.drain(
            |_| true,
            |process, address| data.borrow_mut().contains(process, address),
            |sample| {
                if let Some(output) = output {
                    output.add(&sample);
                }
            },
        );
        self.tally += tally;
        let now_ms = self.begun.elapsed().as_millis() as u64;
        let mut left_ms = self.poll_ms;
        if let Some(output) = output {
            written = output.looked(&tally, now_ms);
            left_ms = output.left_ms(now_ms).min(self.poll_ms);
        }
        self.check(written);
        Duration::from_millis(left_ms)
    }

    /// What cannot be written costs the recording, not the program.
    fn check(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            say(&format!("the recording ends here, it cannot be written: {error}"));
            self.output = None;
        }
    }

    fn finish(mut self, shown: &str) {
        self.poll();
        let end_ms = self.begun.elapsed().as_millis() as u64;
        let Some(output) = self.output else { return };
        let left_out = match output.finish(end_ms, &self.data.borrow()) {
            Ok(left_out) => left_out,
            Err(error) => {
                return say(&format!("the recording is not whole, it cannot be written: {error}"));
            }
        };
        let Tally { samples, located, lost, damaged, .. } = self.tally;
        say(&format!(
            "{samples} samples, {located} of them accesses to the program's data{}: {shown}",
            match lost + damaged {
                0 => String::new(),
                lost => format!("; {lost} more were lost"),
            }
        ));
        if left_out > 0 {
            say(&format!(
                "the file was full: the last {left_out} accesses are not in it (a larger --limit holds more)"
            ));
        }
        if located == 0 {
            say(
                "nothing was seen: the program ran too shortly, or waits for no memory (a higher --rate sees more)",
            );
        }
    }
}

/// What becomes of samples.
enum Output {
    /// Samples are counted by region and time.
    Counts { writer: Writer, window: Window, window_ms: u64 },
    /// Samples are written one by one.
    Accesses(Accesses),
}

/// Samples since the last poll, and where they go.
struct Accesses {
    writer: accesses::Writer,
    /// Bytes by which accesses are written.
    unit: u64,
    begun_ns: u64,
    waiting: Vec<Sample>,
    flushed_us: u64,
    random: SmallRng,
}

impl Output {
    fn create(arguments: &RecordArguments) -> io::Result<Output> {
        let terrace = env!("CARGO_PKG_VERSION").to_owned();
        let command =
            arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let (source, rate_hz) = ("clock".to_owned(), arguments.rate);
        if !arguments.accesses {
            let header = Header { terrace, command, source, rate_hz, region_bytes: REGION_BYTES };
            let writer = Writer::create(&arguments.output, &header, arguments.limit)?;
            return Ok(Output::Counts {
                writer,
                window: Window::default(),
                window_ms: arguments.window,
            });
        }
        let unit = arguments.unit.unwrap_or(PAGE_BYTES);
        let header = accesses::Header {
            terrace,
            command,
            source,
            clock: accesses::Clock::Us,
            period: 1,
            rate_hz,
            writes: true,
            cache: None,
            page_bytes: unit,
        };
        Ok(Output::Accesses(Accesses {
            writer: accesses::Writer::create(&arguments.output, &header, arguments.limit)?,
            unit,
            begun_ns: terrace_os::now_ns(),
            waiting: Vec::new(),
            flushed_us: 0,
            random: SmallRng::seed_from_u64(1),
        }))
    }

    fn add(&mut self, sample: &Sample) {
        match self {
            Output::Counts { window, .. } => {
                window.add(
                    Place { process: sample.process, region: sample.address / REGION_BYTES },
                    sample.weight,
                );
            }
            // Where any of several addresses may have been touched, each is written as often as its
            // weight says.
            Output::Accesses(accesses) => {
                if sample.weight >= 1.0 || accesses.random.random::<f32>() < sample.weight {
                    accesses.waiting.push(*sample);
                }
            }
        }
    }

    /// Notes that all samples of a poll were added.
    fn looked(&mut self, tally: &Tally, now_ms: u64) -> io::Result<()> {
        match self {
            Output::Counts { writer, window, window_ms } => {
                window.elsewhere = window
                    .elsewhere
                    .saturating_add((tally.samples - tally.located) as u32 * PARTS as u32);
                if now_ms < window.start_ms + *window_ms {
                    return Ok(());
                }
                let next = Window { start_ms: now_ms, ..Window::default() };
                writer.append(Window { end_ms: now_ms, ..std::mem::replace(window, next) })
            }
            Output::Accesses(accesses) => accesses.write(),
        }
    }

    /// Time until something is to be written, ms.
    fn left_ms(&self, now_ms: u64) -> u64 {
        match self {
            Output::Counts { window, window_ms, .. } => {
                (window.start_ms + window_ms).saturating_sub(now_ms).max(1)
            }
            Output::Accesses(_) => u64::MAX,
        }
    }

    /// Writes what is left; how many accesses had no room.
    fn finish(self, end_ms: u64, data: &Data) -> io::Result<u64> {
        match self {
            Output::Counts { mut writer, window, .. } => {
                writer.append(Window { end_ms, ..window })?;
                writer.finish(&data.names())?;
                Ok(0)
            }
            Output::Accesses(accesses) => Ok(accesses.writer.finish(end_ms * 1000)?.left_out),
        }
    }
}

impl Accesses {
    /// Writes the accesses in the order of time: each CPU has its own ring.
    fn write(&mut self) -> io::Result<()> {
        self.waiting.sort_by_key(|sample| sample.time_ns);
        for sample in self.waiting.drain(..) {
            let us = sample.time_ns.saturating_sub(self.begun_ns) / 1000;
            self.writer.append(
                accesses::Page { process: sample.process, number: sample.address / self.unit },
                sample.kind.writes(),
                us,
            )?;
            if us >= self.flushed_us + FLUSH_EVERY_US {
                self.writer.flush()?;
                self.flushed_us = us;
            }
        }
        Ok(())
    }
}
