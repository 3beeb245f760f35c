//! `terrace top` in a terminal of 80 × 24 that knows no colours.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use support::{Scratch, pseudo_terminal};
use terrace_control::stats::{self, State, StatsPage};
use terrace_os as sys;

/// A run's directory with `processes` processes of another PID namespace, as they leave pages
/// there. It lives for as long as the file is open.
fn run(scratch: &Scratch, processes: u32) -> File {
    let directory = scratch.path("runs").join(format!("terrace-{:032x}", 7));
    fs::create_dir(&directory).unwrap();
    for pid in 1..=processes {
        let page = scratch.page(|page: &StatsPage| {
            page.pid.store(pid, Relaxed);
            page.pid_namespace.store(1, Relaxed);
            page.state.store(State::Active as u32, Relaxed);
            page.updated_ns.store(sys::now_ns() + 600_000_000_000, Relaxed);
            // More than any other run on this machine has.
            page.physical_bytes.store(u64::from(pid) << 34, Relaxed);
            stats::set_text(&page.program, &format!("program-{pid}"));
        });
        // Without what is for samples.
        File::options()
            .write(true)
            .open(&page)
            .unwrap()
            .set_len(size_of::<StatsPage>() as u64)
            .unwrap();
        fs::rename(page, directory.join(format!("{pid}-1.stats"))).unwrap();
    }
    lock(&directory)
}

fn lock(directory: &Path) -> File {
    let file = File::create(directory.join("run")).unwrap();
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    file
}

/// What `terrace top` draws until this text comes, and from there to its end by `q`.
fn shown(scratch: &Scratch, awaited: &str) -> String {
    let (mut ours, theirs) = pseudo_terminal();
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: reads one structure.
    assert_eq!(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    let mut command = scratch.terrace(&["top"]);
    command.env("TERM", "vt100").env("LC_ALL", "C").env_remove("COLORTERM");
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs);
    let mut child = command.spawn().unwrap();
    // It has the only other end.
    drop(command);
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    let mut asked = false;
    // The terminal's last reader is told of its end by an error.
    while let Ok(bytes @ 1..) = ours.read(&mut buffer) {
        text.extend_from_slice(&buffer[..bytes]);
        if !asked && String::from_utf8_lossy(&text).contains(awaited) {
            ours.write_all(b"q").unwrap();
            asked = true;
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(asked && child.wait().unwrap().success(), "{text:?}");
    text
}

#[test]
fn no_process_and_three_hundred_are_shown_without_colours() {
    let Some(scratch) = Scratch::new() else { return };
    let none = shown(&scratch, "quit");
    let _run = run(&scratch, 300);
    let many = shown(&scratch, "quit");
    assert!(many.contains("program-300") && !many.contains("program-200"), "{many:?}");
    for text in [none, many] {
        assert!(text.contains("terrace top: "), "{text:?}");
        let colours = ["\u{1b}[3", "\u{1b}[4", "\u{1b}[9"];
        let sequences = text.match_indices('m').filter(|(end, _)| {
            let begin = text[..*end].rfind('\u{1b}').unwrap_or(*end);
            colours.iter().any(|colour| text[begin..*end].starts_with(colour))
                && text[begin + 2..*end].bytes().all(|byte| byte.is_ascii_digit() || byte == b';')
                && !matches!(&text[begin + 2..*end], "39" | "49")
        });
        assert_eq!(sequences.count(), 0, "{text:?}");
    }
}
