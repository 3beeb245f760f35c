//! Clocks and sleep.

use crate::ids::program_id;
use crate::simulated::simulated;
use std::time::Duration;
use syscalls::{Sysno, syscall};

/// CLOCK_MONOTONIC in ns.
pub fn now_ns() -> u64 {
    simulated!(kernel => kernel.now_ns());
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the vDSO function writes one timespec; it does not touch errno for a valid clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of the program's process in ns, also for its companion; `None` if the kernel does not
/// say.
pub fn program_cpu_ns() -> Option<u64> {
    process_cpu_ns(program_id())
}

/// CPU time of a process, of all its threads together, in ns; `None` if there is no such process.
pub fn process_cpu_ns(process: i32) -> Option<u64> {
    /// CPUCLOCK_SCHED of a process, as the C library's clock_getcpuclockid makes such a number.
    const PROCESS_CLOCK: i32 = 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = !process << 3 | PROCESS_CLOCK;
    // SAFETY: the kernel writes one timespec.
    unsafe { syscall!(Sysno::clock_gettime, clock, &raw mut time) }.ok()?;
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CPU time of the calling thread in ns.
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of this process so far, of all its threads: outside of the kernel, and in it
/// (getrusage(2)).
pub fn own_cpu_times() -> (Duration, Duration) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure, for which all zeros are valid too.
    let usage = unsafe {
        let _ = syscall!(Sysno::getrusage, libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let duration =
        |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    (duration(usage.ru_utime), duration(usage.ru_stime))
}

/// Sleeps for `time`.
pub fn sleep(time: Duration) {
    simulated!(kernel => kernel.wait(Some(time)));
    std::thread::sleep(time);
}

/// Gives the CPU away for a moment.
pub fn yield_now() {
    simulated!(kernel => kernel.wait(Some(Duration::ZERO)));
    // SAFETY: no arguments.
    let _ = unsafe { syscall!(Sysno::sched_yield) };
}
