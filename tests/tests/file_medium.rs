//! Pages in files are as safe as pages in memory, whatever is forked and however full or broken the
//! disk. No other process sees them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;
use terrace_testkit::process::{self, threads};
use terrace_tests::{Cases, Finished, Program, Running, Terrace, cases, compiled, skip};

/// A directory on disk. Direct I/O is used, unless the file system of the target directory has
/// none.
static DISK: LazyLock<TempDir> = LazyLock::new(|| {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the target directory can be written")
});
/// A directory in memory.
const MEMORY: &str = "/dev/shm";

/// Adds tiers with which all that leaves DRAM goes to files in `directory`.
fn in_files(terrace: Terrace, directory: &Path) -> Terrace {
    terrace.and("--tiers").and(&format!("dram,lz4@file:{}", directory.display()))
}

/// Random evictions to pools of two kinds, whose blocks in files are written more than once.
fn in_shared_pools() -> Terrace {
    let file = format!("file:{}", DISK.path().display());
    let tiers = format!("dram,lz4/zbud@{file},lz4/zsmalloc@{file}");
    Terrace::stressed().and("--tiers").and(&tiers)
}

/// A budget that nothing is evicted for: what a case evicts stays out until it is touched.
fn on_disk() -> Terrace {
    in_files(Terrace::within("4G"), DISK.path())
}

fn in_memory() -> Terrace {
    in_files(Terrace::within("4G"), Path::new(MEMORY))
}

static FILES: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("file_medium.c", &[]),
    arguments: Vec::new(),
    ways: vec![on_disk(), in_memory()],
});

/// The cases of forking that pages in memory have too, here with evicted pages in files on disk.
static FORKS: LazyLock<Cases> = LazyLock::new(|| {
    let library = compiled("atfork_library.c", &["-shared", "-fPIC"]);
    let library = library.to_str().expect("the target directory's name is text");
    Cases {
        program: compiled("forked_children_see_their_parents_data.c", &[library]),
        arguments: Vec::new(),
        ways: vec![on_disk(), in_files(Terrace::stressed(), DISK.path()), in_shared_pools()],
    }
});

cases! { FILES.hold:
    space_comes_back
    a_child_has_nothing_in_its_parents_file
    a_child_reads_what_its_parent_gave_up
    a_child_executes_another_program
}

cases! { FORKS.hold:
    several_children_at_a_time
    threads_fault_while_one_forks
    threads_fork_at_the_same_time
    everything_closed
    descriptor_numbers_are_the_programs
    fork_without_handlers
    parent_writes_while_child_reads
    a_closed_pipe_ends
}

/// A fork without free descriptors: the child has none to be managed with either.
#[test]
fn a_fork_without_descriptors() {
    FILES.hold_managed_or_not("a_fork_without_descriptors");
}

#[test]
fn privileges_dropped_between() {
    FORKS.hold_managed_or_not("privileges_dropped_between");
}

#[test]
fn jailed_between() {
    FORKS.hold_managed_or_not("jailed_between");
}

/// The stress test for lost updates, with pages going to memory and to a file.
#[test]
fn no_update_is_lost_in_a_file() {
    let tiers = format!("dram,lz4,zstd:1@file:{}", DISK.path().display());
    let finished = Program::new(compiled("no_update_is_lost.c", &[]))
        .arg("5")
        .under(Terrace::stressed().and("--tiers").and(&tiers))
        .succeed();
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    assert!(stdout.contains(" 0 lost"), "{}", finished.account("lost updates"));
    finished.report().expect_moves(1000, 1000);
    assert!(finished.report().number("/tiers/2/faults") > 100.0, "{}", finished.report());
}

/// DRAM is what the report counts: none where I/O is direct, all of the file in a tmpfs.
#[test]
fn the_report_counts_files_in_memory_as_memory() {
    for (terrace, memory) in [(on_disk(), false), (in_memory(), true)] {
        let running = start_holding(terrace);
        // Averages are over the whole run: until pages are out, there is nothing to see.
        std::thread::sleep(Duration::from_secs(1));
        let cached = files_of(&running).values().all(|file| is_cached(file));
        check_after_signal(&running);
        let finished = running.wait();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        let report = finished.report();
        let (physical, logical) =
            (report.number("/tiers/1/physical_bytes"), report.number("/tiers/1/logical_bytes"));
        assert!(
            report.at("/tiers/0/file_bytes").is_null() && report.at("/tiers/1/file_bytes").is_u64(),
            "{report}"
        );
        assert!(logical > f64::from(2 << 20), "{report}");
        if memory {
            assert!(physical > logical / 4.0, "{report}");
        } else if cached {
            skip("direct I/O leaves nothing in memory", "this file system has no direct I/O");
        } else {
            assert!(physical == 0.0, "{report}");
        }
    }
}

/// Whether some of a file is in the page cache.
fn is_cached(file: &Path) -> bool {
    const CACHESTAT: libc::c_long = 451;
    let file = File::open(file).expect("root may open a file of its process");
    let (range, mut answer) = ([0u64, 0], [0u64; 5]);
    // SAFETY: struct cachestat_range is read and struct cachestat written.
    let result = unsafe {
        libc::syscall(
            CACHESTAT,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            range.as_ptr(),
            answer.as_mut_ptr(),
            0,
        )
    };
    result != 0 || answer[0] > 0
}

/// The file has no name, no other user can read it, and the program cannot reach it by a
/// descriptor.
#[test]
fn nobody_else_sees_the_file() {
    let directory = TempDir::new_in(DISK.path()).expect("a directory can be made");
    let running = start_holding(in_files(Terrace::within("4G"), directory.path()));
    let files = files_of(&running);
    assert!(!files.is_empty(), "no file in use was found");
    for file in files.values() {
        let found = fs::metadata(file).expect("a descriptor's file can be looked at");
        assert_eq!((found.mode() & 0o7777, found.nlink()), (0o600, 0), "{}", file.display());
    }
    assert_eq!(fs::read_dir(directory.path()).expect("the directory is there").count(), 0);
    let pid = running.program_pid();
    let programs =
        fs::read_dir(format!("/proc/{pid}/fd")).expect("a process has descriptors").flatten();
    for descriptor in programs {
        let target = fs::read_link(descriptor.path()).unwrap_or_default();
        assert!(
            !target.starts_with(directory.path()),
            "{} is {}",
            descriptor.path().display(),
            target.display()
        );
    }
    check_after_signal(&running);
    let finished = running.wait();
    assert!(finished.status.success(), "{}", finished.account("failed"));
}

/// The bytes of evicted pages are gone. The program is ended, and told which page, before it can
/// read anything else in their place.
#[test]
fn unreadable_pages_end_the_program() {
    let running = start_holding(on_disk());
    for file in files_of(&running).values() {
        File::options()
            .write(true)
            .open(file)
            .and_then(|file| file.set_len(0))
            .expect("root may cut a file of its process");
    }
    expect_end_for(running, "cannot read a file in");
}

/// Expects that the program ends before it reads a page that cannot be restored, and that a message
/// names such a page and the cause.
fn expect_end_for(running: Running, why: &str) {
    check_after_signal(&running);
    let finished = running.wait();
    assert_eq!(
        finished.status.signal(),
        Some(libc::SIGKILL),
        "{}",
        finished.account("was not ended")
    );
    assert!(
        !String::from_utf8_lossy(&finished.stdout).contains("checked"),
        "{}",
        finished.account("read something")
    );
    let line = finished
        .stderr
        .lines()
        .find(|line| line.contains("cannot be restored"))
        .unwrap_or_default();
    assert!(
        line.starts_with("terrace: page 0x") && line.contains(why),
        "{}",
        finished.account("did not say why")
    );
}

/// One bit of the file is flipped.
#[test]
fn a_damaged_file_ends_the_program() {
    for terrace in [on_disk(), in_memory()] {
        let running = start_holding(terrace);
        // Of the first page stored, behind its checksum: in the literal that it begins with.
        const AT: u64 = 7;
        for file in files_of(&running).values() {
            let file = File::options()
                .read(true)
                .write(true)
                .open(file)
                .expect("root may open a file of its process");
            let mut byte = [0];
            file.read_exact_at(&mut byte, AT)
                .and_then(|()| file.write_all_at(&[byte[0] ^ 0x10], AT))
                .expect("it can be changed");
            file.sync_all().expect("it can be written");
        }
        expect_end_for(running, "its checksum is");
    }
}

/// A write error is none to the program.
#[test]
fn what_cannot_be_written_stays_in_memory() {
    for terrace in [on_disk(), in_memory()] {
        let finished = Program::new(&FILES.program).arg("writes_fail").under(terrace).succeed();
        expect_refusal(&finished, "File too large");
    }
}

#[test]
fn a_full_memory_file_system() {
    if let Some(finished) =
        on_small_file_system("mount -t tmpfs -o size=4m none \"$0\"", "no_space")
    {
        expect_refusal(&finished, "No space left on device");
    }
}

#[test]
fn a_full_disk() {
    if let Some(finished) = on_small_disk("no_space") {
        expect_refusal(&finished, "No space left on device");
    }
}

/// An extent that was begun has its space.
#[test]
fn a_disk_that_others_fill() {
    if let Some(finished) = on_small_disk("space_taken_by_another") {
        finished.report().expect_managed();
    }
}

fn on_small_disk(case: &str) -> Option<Finished> {
    let image = DISK.path().join(format!("{case}.ext4"));
    File::create(&image)
        .and_then(|image| image.set_len(16 << 20))
        .expect("the disk has room for a small image");
    let made = Command::new("mkfs.ext4").arg("-qF").arg(&image).status();
    if !made.is_ok_and(|status| status.success()) {
        skip("a full disk", "mkfs.ext4 does not run here");
        return None;
    }
    on_small_file_system(&format!("mount -o loop {} \"$0\"", image.display()), case)
}

/// Runs a case for full disks in a mount namespace of its own. There `mount` mounts something small
/// on the directory `$0`, in which the case runs. Whatever happens, the mount ends with the
/// program.
fn on_small_file_system(mount: &str, case: &str) -> Option<Finished> {
    let directory = TempDir::new_in(DISK.path()).expect("a directory can be made");
    let alone =
        Command::new("unshare").args(["-m", "sh", "-c", mount]).arg(directory.path()).output();
    if !alone.is_ok_and(|output| output.status.success()) {
        skip("a full disk", "no right to mount, or no loop device");
        return None;
    }
    let finished = Program::new("unshare")
        .args(["-m", "sh", "-c", &format!("{mount} && cd \"$0\" && exec \"$@\"")])
        .arg(directory.path())
        .arg(&FILES.program)
        .arg(case)
        .under(in_files(Terrace::within("4G"), directory.path()))
        .succeed();
    Some(finished)
}

/// Expects that the tier was used as far as possible, and that the cause of the limit was said
/// once.
#[track_caller]
fn expect_refusal(finished: &Finished, why: &str) {
    finished.report().expect_moves(100, 100);
    let said = finished
        .stderr
        .lines()
        .filter(|line| line.starts_with("terrace: the medium under tier") && line.contains(why))
        .count();
    assert_eq!(said, 1, "{}", finished.account("did not say once why"));
    assert!(
        finished
            .report()
            .at("/note")
            .as_str()
            .is_some_and(|note| note.contains("the medium under tier")),
        "{}",
        finished.report()
    );
}

/// Starts the case that holds evicted pages until it gets a signal, and waits for them to be out.
fn start_holding(terrace: Terrace) -> Running {
    let running = Program::new(&FILES.program).arg("holds").under(terrace).start();
    running.wait_for_output("holds");
    running
}

fn check_after_signal(running: &Running) {
    process::signal(running.program_pid(), libc::SIGUSR1);
}

/// The unlinked files that any thread of Terrace's has open in a directory of these tests, by
/// inode, as paths to a descriptor.
fn files_of(running: &Running) -> BTreeMap<u64, PathBuf> {
    let threads = threads(running.companion_pid()).expect("a process has threads").into_iter();
    let descriptors =
        threads.flat_map(|thread| fs::read_dir(thread.join("fd")).into_iter().flatten().flatten());
    descriptors
        .map(|descriptor| descriptor.path())
        .filter(|path| {
            let target = fs::read_link(path).unwrap_or_default();
            let here = target.starts_with(DISK.path()) || target.starts_with(MEMORY);
            here && target.to_string_lossy().ends_with(" (deleted)")
        })
        .filter_map(|path| Some((fs::metadata(&path).ok()?.ino(), path)))
        .collect()
}
