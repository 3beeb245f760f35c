//! Damaged bytes in a pool end the program before it sees them, and the page is named. One byte is
//! flipped from outside, as a failing memory chip or a stray write would. The program ends likewise
//! where a tracer closes the userfaultfd through which pages come back.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use terrace_tests::{Finished, Program, Running, Terrace, compiled};

const PAGE: u64 = 4096;
const SIGKILL: i32 = 9;

/// What the program said of itself.
struct Victim {
    area: std::ops::Range<u64>,
    address: String,
    word: u64,
}

impl Victim {
    fn of(running: &mut Running) -> Victim {
        while !running.stdout_so_far().contains('\n') && running.is_running() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let said = running.stdout_so_far();
        let words: Vec<&str> = said.split_whitespace().collect();
        let [area, bytes, address, word] = words[..] else { panic!("the program said {said:?}") };
        let area = u64::from_str_radix(area.trim_start_matches("0x"), 16).unwrap();
        Victim {
            area: area..area + bytes.parse::<u64>().unwrap(),
            address: address.into(),
            word: word.parse().unwrap(),
        }
    }
}

/// Flips one bit wherever the process holds the victim's word, except in the program's own `area`.
/// Returns the number of places.
fn damage(pid: i32, victim: &Victim) -> usize {
    let memory =
        OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut places = 0;
    for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines() {
        // Private and anonymous, and not the program's stack: only there is anything stored.
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields[1] != "rw-p" || fields.len() > 5 {
            continue;
        }
        let (start, end) = fields[0].split_once('-').unwrap();
        let (start, end) =
            (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
        let mut present = vec![0; ((end - start) / PAGE * 8) as usize];
        pagemap.read_exact_at(&mut present, start / PAGE * 8).unwrap();
        let is_present = |page: usize| present[page * 8 + 7] >> 7 == 1;
        let mut page = 0;
        while page * 8 < present.len() {
            let run = (page..present.len() / 8).take_while(|page| is_present(*page)).count();
            let from = start + page as u64 * PAGE;
            page += run.max(1);
            if run == 0 || victim.area.contains(&from) {
                continue;
            }
            let mut bytes = vec![0; run * PAGE as usize];
            memory.read_exact_at(&mut bytes, from).unwrap();
            for at in bytes
                .windows(8)
                .enumerate()
                .filter(|(_, window)| *window == victim.word.to_ne_bytes())
                .map(|(at, _)| at + 3)
            {
                memory.write_all_at(&[bytes[at] ^ 0x10], from + at as u64).unwrap();
                places += 1;
            }
        }
    }
    places
}

/// Runs a case, and damages what is stored of its victim before the case touches it.
fn run_damaged(case: &str, terrace: Terrace) -> (Victim, Finished) {
    let scratch = tempfile::tempdir().unwrap();
    let go = scratch.path().join("go");
    let mut running =
        Program::new(compiled("damaged_memory.c", &[])).arg(case).arg(&go).under(terrace).start();
    let victim = Victim::of(&mut running);
    assert!(
        damage(running.program_pid(), &victim) > 0,
        "the page's bytes are nowhere: was it evicted?"
    );
    File::create(&go).unwrap();
    (victim, running.wait())
}

#[track_caller]
fn ends_before_it_is_read(case: &str, tiers: &str) {
    let (victim, finished) = run_damaged(case, Terrace::within("4G").and("--tiers").and(tiers));
    let account = finished.account("was to be ended");
    assert_eq!(finished.status.signal(), Some(SIGKILL), "{account}");
    let lines = finished.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines, 1, "nothing of the page was given out: {account}");
    let said = format!("terrace: page {} cannot be restored: its checksum is ", victim.address);
    assert!(
        finished.stderr.contains(&said)
            && finished.stderr.contains("Ending the program rather than giving it wrong data"),
        "{account}"
    );
    // The report names it too, for people and for programs.
    assert!(
        finished
            .stderr
            .contains(&format!("  FROZEN: nothing more was evicted: page {}", victim.address)),
        "{account}"
    );
    let report = finished.report();
    assert_eq!((report.at("/state"), report.at("/signal")), (&"frozen".into(), &SIGKILL.into()));
    assert!(
        report.at("/note").as_str().is_some_and(|note| note.contains(&victim.address)),
        "{report}"
    );
}

#[test]
fn a_read() {
    ends_before_it_is_read("a_read", "dram,lz4");
}

#[test]
fn a_write() {
    ends_before_it_is_read("a_write", "dram,lz4");
}

#[test]
fn a_same_filled_page() {
    ends_before_it_is_read("a_same_filled_page", "dram,zstd");
}

/// Nothing of the program runs after the page was found damaged.
#[test]
fn a_handler_of_the_end() {
    ends_before_it_is_read("a_handler_of_the_end", "dram,lz4");
}

#[test]
fn a_discarded_page() {
    let (_, finished) =
        run_damaged("a_discarded_page", Terrace::within("4G").and("--tiers").and("dram,lz4"));
    assert!(finished.status.success(), "{}", finished.account("was to go on"));
    finished.report().expect_managed();
}

/// A page that `--verify` checked and that is damaged later still ends the program.
#[test]
fn a_read_of_a_verified_page() {
    let (_, finished) =
        run_damaged("a_read", Terrace::within("4G").and("--tiers").and("dram,lz4").and("--verify"));
    assert_eq!(
        finished.status.signal(),
        Some(SIGKILL),
        "damaged later: {}",
        finished.account("was to be ended")
    );
}

/// A thread stopped by ptrace while it waits in a read of a userfaultfd. It is made to close that
/// descriptor, and then continues with the read.
#[cfg(target_arch = "x86_64")]
struct Traced {
    thread: i32,
    waits: libc::user_regs_struct,
}

#[cfg(target_arch = "x86_64")]
impl Traced {
    fn request(&self, request: libc::c_uint, registers: *const libc::user_regs_struct) {
        // SAFETY: the thread is one that this one traces; requests that read or write registers are
        // given some.
        let result = unsafe { libc::ptrace(request, self.thread, 0, registers) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    fn await_stop(&self) {
        // SAFETY: a null pointer, so the status is not stored.
        let stopped = unsafe { libc::waitpid(self.thread, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(stopped, self.thread);
    }

    fn stop(thread: i32) -> Traced {
        // SAFETY: plain integers.
        let mut traced = Traced { thread, waits: unsafe { std::mem::zeroed() } };
        traced.request(libc::PTRACE_ATTACH, std::ptr::null());
        traced.await_stop();
        let registers = &raw mut traced.waits;
        traced.request(libc::PTRACE_GETREGS, registers);
        assert_eq!(traced.waits.orig_rax, libc::SYS_read as u64, "a handler waits in read");
        traced
    }

    fn close_what_it_reads(&self) {
        let mut registers = self.waits;
        // Behind a `syscall` instruction, whose first argument is still there.
        registers.rip -= 2;
        (registers.rax, registers.orig_rax) = (libc::SYS_close as u64, u64::MAX);
        self.request(libc::PTRACE_SETREGS, &raw const registers);
        self.request(libc::PTRACE_SINGLESTEP, std::ptr::null());
        self.await_stop();
        self.request(libc::PTRACE_GETREGS, &raw mut registers);
        assert_eq!(registers.rax, 0, "the close failed");
        // When it goes on, it reads again.
        registers.rip = self.waits.rip - 2;
        (registers.rax, registers.orig_rax) = (libc::SYS_read as u64, u64::MAX);
        self.request(libc::PTRACE_SETREGS, &raw const registers);
    }

    fn go_on(self) {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: as above.
        if unsafe { libc::ptrace(libc::PTRACE_DETACH, self.thread, nothing, nothing) } != 0 {
            // The first that went on has ended the program: the end of this one is for its tracer
            // to see.
            self.await_stop();
        }
    }
}

/// All userfaultfds are closed at once: the kernel would give zeros for what is out.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_closed_userfaultfd() {
    let scratch = tempfile::tempdir().unwrap();
    let go = scratch.path().join("go");
    let terrace = Terrace::within("4G").and("--tiers").and("dram,lz4");
    let mut running = Program::new(compiled("damaged_memory.c", &[]))
        .arg("a_read")
        .arg(&go)
        .under(terrace)
        .start();
    Victim::of(&mut running);
    let threads = terrace_testkit::process::threads(running.companion_pid()).unwrap();
    let handlers: Vec<_> = threads
        .into_iter()
        .filter(|task| {
            fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "terrace-fault\n")
        })
        .collect();
    let waits = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("syscall"))
            .unwrap()
            .starts_with(&format!("{} ", libc::SYS_read))
    };
    while !handlers.iter().all(waits) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let threads = handlers
        .iter()
        .map(|task| task.file_name().unwrap().to_str().unwrap().parse::<i32>().unwrap());
    let traced: Vec<Traced> = threads.map(Traced::stop).collect();
    assert!(!traced.is_empty());
    traced.iter().for_each(Traced::close_what_it_reads);
    traced.into_iter().for_each(Traced::go_on);
    // Its end comes by itself. Where Terrace goes on instead, the program reads the page.
    while running.is_running() {
        if running.stderr_so_far().contains("frozen") {
            File::create(&go).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let finished = running.wait();
    assert_eq!(finished.status.signal(), Some(SIGKILL), "{}", finished.account("was to be ended"));
    let said = "terrace: a userfaultfd was closed, so evicted pages would read as zeros. Ending the program";
    assert!(finished.stderr.contains(said), "{}", finished.account("said something else"));
}
