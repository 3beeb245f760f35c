//! `terrace record`: runs a program and writes down which parts of its memory it touches when, for `terrace report` and for whoever wants to know
//! before anything is moved. The program runs as without us: nothing is preloaded, nothing managed.

use crate::args::RecordArguments;
use crate::data::{Data, REGION_BYTES};
use crate::{child, command_path, say};
use anyhow::{Context, Result, bail};
use std::cell::RefCell;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use terrace_sampler::Tally;
use terrace_sampler::clock::Clock;
use terrace_sampler::events::Whose;
use terrace_trace::counts::{Header, PARTS, Place, Window, Writer};

/// Half of a ring is this many samples: it is emptied before it is full.
const SAMPLES_A_LOOK: u64 = 170;

/// Runs the command; the result is the exit status. Does not return if a signal killed the program: it kills us too.
pub fn run(arguments: &RecordArguments) -> Result<u8> {
    let name = &arguments.command[0];
    let program = match command_path::of_command(name) {
        Ok(program) => program,
        Err(status) => return Ok(status),
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
        data: RefCell::default(),
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
        Err(error) => return Ok(command_path::not_started(name, &program, &error)),
    };
    recorder.finish(&shown.to_string());
    Ok(ended.end.pass_on())
}

struct Recorder {
    clock: Clock,
    /// Until it fails.
    writer: Option<Writer>,
    data: RefCell<Data>,
    begun: Instant,
    window: Window,
    window_ms: u64,
    look_ms: u64,
    tally: Tally,
}

impl Recorder {
    /// Takes out what was sampled since the last look.
    fn look(&mut self) -> Duration {
        let (data, window) = (&self.data, &mut self.window);
        let tally = self.clock.drain(
            |_| true,
            |process, address| data.borrow_mut().contains(process, address),
            |sample| window.add(Place { process: sample.process, region: sample.address / REGION_BYTES }, sample.weight),
        );
        window.elsewhere = window.elsewhere.saturating_add((tally.samples - tally.located) as u32 * PARTS as u32);
        self.tally += tally;
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
        let Tally { samples, located, lost, damaged, .. } = self.tally;
        say(&format!(
            "{samples} samples, {located} of them accesses to the program's data{}: {shown}",
            match lost + damaged {
                0 => String::new(),
                lost => format!("; {lost} more were lost"),
            }
        ));
        if located == 0 {
            say("nothing was seen: the program ran too shortly, or waits for no memory (a higher --rate sees more)");
        }
    }
}
