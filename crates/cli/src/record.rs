//! `terrace record`: runs a program and writes down which parts of its memory it touches when, for `terrace report` and for whoever wants to know
//! before anything is moved. The program runs as without us: nothing is preloaded, nothing managed.

use crate::args::RecordArguments;
use crate::child::{self, End};
use crate::run::not_started;
use crate::{OUR_FAULT, command_path, say};
use anyhow::{Context, Result, bail};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use terrace_sampler::Tally;
use terrace_sampler::clock::Clock;
use terrace_sampler::events::Whose;
use terrace_trace::counts::{Header, PARTS, Place, Window, Writer};

/// Bytes of a region.
const REGION_BYTES: u64 = 2 << 20;
/// Half of a ring is this many samples: it is emptied before it is full.
const SAMPLES_A_LOOK: u64 = 170;
/// Processes whose mappings are kept.
const PROCESSES_MAX: usize = 64;

/// Runs the command; the result is the exit status. Does not return if a signal killed the program: it kills us too.
pub fn run(arguments: &RecordArguments) -> Result<u8> {
    let name = &arguments.command[0];
    let program = match command_path::resolve(name, std::env::var_os("PATH").as_deref()) {
        Ok(program) => program,
        Err(error) => {
            say(&error.to_string());
            return Ok(error.exit_status());
        }
    };
    if !cfg!(target_arch = "x86_64") {
        bail!("recording needs x86-64: what an interrupted instruction touches is read from its operands");
    }
    let header = Header {
        terrace: env!("CARGO_PKG_VERSION").into(),
        command: arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        source: "clock".into(),
        rate_hz: arguments.rate,
        region_bytes: REGION_BYTES,
    };
    // Inherited by what is started next.
    let clock = Clock::open(Whose::Children, arguments.rate)?;
    let shown = arguments.output.display();
    let writer = Writer::create(&arguments.output, &header, arguments.limit).with_context(|| format!("cannot write {shown}"))?;
    let mut recorder = Recorder {
        clock,
        writer: Some(writer),
        mappings: RefCell::default(),
        begun: Instant::now(),
        window: Window::default(),
        window_ms: arguments.window,
        look_ms: (SAMPLES_A_LOOK * 1000 / u64::from(arguments.rate)).clamp(5, 100),
        tally: Tally::default(),
    };
    let mut command = Command::new(&program);
    command.arg0(name).args(&arguments.command[1..]);
    let ended = match child::run(command, || recorder.look()) {
        Ok(ended) => ended,
        Err(error) => return Ok(not_started(name, &program, &error)),
    };
    recorder.finish(&shown.to_string());
    match ended.end {
        End::Exited(status) => Ok(status),
        End::Killed(signal) => {
            child::die_of(signal);
            Ok(ended.end.exit_status().try_into().unwrap_or(OUR_FAULT))
        }
    }
}

/// Mappings of one process that hold its data.
#[derive(Default)]
struct Mappings {
    /// Read in this look already.
    read: bool,
    ranges: Vec<Range<u64>>,
}

struct Recorder {
    clock: Clock,
    /// Until it fails.
    writer: Option<Writer>,
    mappings: RefCell<HashMap<u32, Mappings>>,
    begun: Instant,
    window: Window,
    window_ms: u64,
    look_ms: u64,
    tally: Tally,
}

impl Recorder {
    /// Takes out what was sampled since the last look.
    fn look(&mut self) -> Duration {
        self.mappings.get_mut().values_mut().for_each(|mappings| mappings.read = false);
        let (mappings, window) = (&self.mappings, &mut self.window);
        let tally = self.clock.drain(
            |process, address| is_data(&mut mappings.borrow_mut(), process, address),
            |sample| window.add(Place { process: sample.process, region: sample.address / REGION_BYTES }, sample.weight),
        );
        window.elsewhere = window.elsewhere.saturating_add((tally.samples - tally.located) as u32 * PARTS as u32);
        self.tally.samples += tally.samples;
        self.tally.located += tally.located;
        self.tally.lost += tally.lost + tally.damaged;
        let now_ms = self.begun.elapsed().as_millis() as u64;
        if now_ms >= self.window.start_ms + self.window_ms {
            let next = Window { start_ms: now_ms, ..Window::default() };
            let done = Window { end_ms: now_ms, ..std::mem::replace(&mut self.window, next) };
            self.write(|writer| writer.append(done));
        }
        let left_ms = (self.window.start_ms + self.window_ms).saturating_sub(now_ms).max(1);
        Duration::from_millis(left_ms.min(self.look_ms))
    }

    /// What cannot be written costs the recording, not the program.
    fn write(&mut self, what: impl FnOnce(&mut Writer) -> std::io::Result<()>) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = what(writer)
        {
            say(&format!("the recording ends here, it cannot be written: {error}"));
            self.writer = None;
        }
    }

    fn finish(mut self, shown: &str) {
        self.look();
        let end_ms = self.begun.elapsed().as_millis() as u64;
        let last = Window { end_ms, ..std::mem::take(&mut self.window) };
        self.write(|writer| writer.append(last));
        let Some(writer) = self.writer else { return };
        if let Err(error) = writer.finish() {
            say(&format!("the recording is not whole, it cannot be written: {error}"));
            return;
        }
        let Tally { samples, located, lost, .. } = self.tally;
        say(&format!(
            "{samples} samples, {located} of them accesses to the program's data{}: {shown}",
            match lost {
                0 => String::new(),
                lost => format!("; {lost} more were lost"),
            }
        ));
        if located == 0 {
            say("nothing was seen: the program ran too shortly, or waits for no memory (a higher --rate sees more)");
        }
    }
}

/// Whether an address is in private anonymous memory that can be written, and not the first thread's stack.
fn is_data(all: &mut HashMap<u32, Mappings>, process: u32, address: u64) -> bool {
    if all.len() >= PROCESSES_MAX && !all.contains_key(&process) {
        all.clear();
    }
    let known = all.entry(process).or_default();
    let inside = |known: &Mappings| known.ranges.iter().any(|range| range.contains(&address));
    if !inside(known) && !known.read {
        known.read = true;
        // Of a process that has ended nothing can be read, and what is known of it stands.
        let ranges = mappings(process);
        if !ranges.is_empty() {
            known.ranges = ranges;
        }
    }
    inside(known)
}

fn mappings(process: u32) -> Vec<Range<u64>> {
    // It may be gone.
    let text = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    text.lines().filter_map(data_range).collect()
}

/// The range of a line of `maps`, if it is one of the program's data.
fn data_range(line: &str) -> Option<Range<u64>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let writable = fields.next()?.starts_with("rw-p");
    let name = fields.nth(3);
    let data = writable && name.is_none_or(|name| name == "[heap]" || name.starts_with("[anon"));
    let number = |text| u64::from_str_radix(text, 16).ok();
    data.then_some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_private_anonymous_memory() {
        let heap = "5581c0a00000-5581c0a21000 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(data_range(heap), Some(0x5581_c0a0_0000..0x5581_c0a2_1000));
        assert!(data_range("7f00aa000000-7f00bb000000 rw-p 00000000 00:00 0 ").is_some());
        assert!(data_range("7f00aa000000-7f00bb000000 rw-p 00000000 00:00 0 [anon:jemalloc]").is_some());
        for line in [
            "7f00aa000000-7f00bb000000 r--p 00000000 00:00 0 ",
            "7f00aa000000-7f00bb000000 rw-s 00000000 00:00 0 ",
            "7f00aa000000-7f00bb000000 rw-p 00001000 fe:00 77 /usr/lib/libc.so.6",
            "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]",
            "",
        ] {
            assert_eq!(data_range(line), None, "{line}");
        }
    }
}
