//! Lines for the user, on the program's standard error.

use crate::files::close;
use crate::ids::process_id;
use crate::process::{descriptor_behind, descriptor_of};
use crate::simulated::simulated;
use crate::task::{PROGRAM_DESCRIPTOR, is_companion};
use crate::types::{Errno, Fd, Result};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use syscalls::{Sysno, syscall};

/// Runs `act`, which writes, without the signals that end a process for a write. They are SIGXFSZ,
/// where a file would become longer than RLIMIT_FSIZE allows, and SIGPIPE, for a pipe without a
/// reader. `act` also gives the error that it met.
pub fn without_write_signals<T>(act: impl FnOnce() -> (T, Option<Errno>)) -> T {
    let both: u64 = 1 << (libc::SIGXFSZ - 1) | 1 << (libc::SIGPIPE - 1);
    let mut before = 0u64;
    let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel reads and writes masks of 8 bytes of this frame; the signals are this
    // thread's.
    unsafe {
        let _ =
            syscall!(Sysno::rt_sigprocmask, libc::SIG_BLOCK, &raw const both, &raw mut before, 8);
        let (result, met) = act();
        let sent = match met {
            Some(Errno::EFBIG) => 1u64 << (libc::SIGXFSZ - 1),
            Some(Errno::EPIPE) => 1u64 << (libc::SIGPIPE - 1),
            _ => 0,
        };
        if sent != 0 {
            // The signal waits for the thread that wrote. (Where it is ignored there is none.)
            let _ = syscall!(Sysno::rt_sigtimedwait, &raw const sent, 0, &raw const no_wait, 8);
        }
        let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, 8);
        result
    }
}

/// A file: its device, its number there, and of a device file which device it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum File {
    /// [`learn_standard_error`] was not called.
    Unknown,
    Closed,
    Open(u64, u64, u64),
}

static STANDARD_ERROR: OnceLock<File> = OnceLock::new();

fn file_of(fd: Fd) -> File {
    let mut found = std::mem::MaybeUninit::<libc::stat64>::zeroed();
    // SAFETY: the kernel fills in the structure, for which all zeros are valid too.
    let (asked, found) =
        unsafe { (syscall!(Sysno::fstat, fd, found.as_mut_ptr()), found.assume_init()) };
    if asked.is_ok() { File::Open(found.st_dev, found.st_ino, found.st_rdev) } else { File::Closed }
}

/// From now on [`warn`] writes to the file that is standard error now, and to no other that may get
/// its number. This holds for as long as the process executes no other program.
pub fn learn_standard_error() {
    let _ = STANDARD_ERROR.set(file_of(2));
}

/// Writes a line to the program's standard error, from any thread. Errors are ignored. The
/// descriptor is fetched out of the program's table, because in our own threads' table 2 is
/// something else.
pub fn warn(line: &str) {
    simulated!(kernel => kernel.warn(line));
    write_to_standard_error(format!("terrace: {line}\n").as_bytes());
}

/// Writes any text to the program's standard error, from any thread. Errors are ignored.
pub fn write_to_standard_error(text: &[u8]) {
    if let Ok(stderr) = descriptor_of_program(2) {
        let learnt = *STANDARD_ERROR.get().unwrap_or(&File::Unknown);
        if learnt == File::Unknown || learnt != File::Closed && learnt == file_of(stderr) {
            without_write_signals(|| {
                // SAFETY: the buffer outlives the call.
                let written = unsafe { syscall!(Sysno::write, stderr, text.as_ptr(), text.len()) };
                ((), written.err())
            });
        }
        close(stderr);
    }
}

fn descriptor_of_program(fd: Fd) -> Result<Fd> {
    match PROGRAM_DESCRIPTOR.load(Relaxed) {
        known if known >= 0 && is_companion() => descriptor_behind(known, fd),
        _ => descriptor_of(process_id(), fd),
    }
}
