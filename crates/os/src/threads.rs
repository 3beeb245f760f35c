//! Threads: their numbers, priorities and CPUs.

use crate::ids::program_id;
use std::ops::RangeInclusive;
use syscalls::{Sysno, syscall};

/// The kernel's letter for a thread of the program (`S` asleep, `Z` gone but not forgotten); `None`
/// if there is no such thread.
pub fn thread_state(thread: i32) -> Option<char> {
    let stat =
        std::fs::read_to_string(format!("/proc/{}/task/{thread}/stat", program_id())).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// All threads of this process.
pub fn own_threads() -> std::io::Result<Vec<i32>> {
    let tasks = std::fs::read_dir("/proc/self/task")?.flatten();
    Ok(tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
}

/// Makes a thread of the program that is never joined; false where there can be none.
///
/// # Safety
/// `main` may be called with `argument` in another thread.
pub unsafe fn detached_thread(
    main: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    argument: *mut libc::c_void,
) -> bool {
    // SAFETY: plain POSIX; the attributes are initialised before they are used; the rest is the
    // caller's promise.
    unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        // The program's thread-local variables are in every stack.
        libc::pthread_attr_setstacksize(&mut attributes, (512 << 10) + thread_locals_bytes());
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread = std::mem::zeroed();
        let error = libc::pthread_create(&mut thread, &attributes, main, argument);
        libc::pthread_attr_destroy(&mut attributes);
        error == 0
    }
}

/// Bytes between the C library's thread-local variables and its description of the thread. All
/// thread-local variables of the program itself lie between them.
pub fn thread_locals_bytes() -> usize {
    // SAFETY: no arguments; on Linux the first is the address of the thread's description.
    unsafe { (libc::pthread_self() as usize).abs_diff(libc::__errno_location() as usize) }
}

/// Asks for a nice value for the calling thread; false where the privilege is missing.
pub fn set_thread_nice(nice: i32) -> bool {
    // SAFETY: concerns this thread only.
    unsafe { syscall!(Sysno::setpriority, libc::PRIO_PROCESS, 0, nice) }.is_ok()
}

/// The calling thread's nice value.
pub fn nice_of_thread() -> i32 {
    nice_of(0)
}

/// Nice value of the program's first thread.
pub fn nice_of_program() -> i32 {
    nice_of(program_id())
}

fn nice_of(thread: i32) -> i32 {
    // SAFETY: only asks. The kernel's answer is 20 less the value, so that it is no error.
    unsafe { syscall!(Sysno::getpriority, libc::PRIO_PROCESS, thread) }
        .map_or(0, |answer| 20 - answer as i32)
}

/// Time for which a background thread has a processor at a time, ns. A thread that gives it up
/// early loses the rest of its turn, so a short turn makes `sched_yield` cheap. Of the ordinary 1.4
/// to 3 ms the mover used 0.2 and fell behind.
pub(crate) const TURN_NS: u64 = 200_000;

/// Makes the calling thread a background thread, if it is an ordinary one. Under `SCHED_BATCH` it
/// preempts no other thread when it wakes. From Linux 6.12 on it has the processor for [`TURN_NS`]
/// at a time; before, as long as any thread.
pub fn set_thread_background() {
    // SAFETY: concerns this thread only. The kernel writes and reads no more than the size it is
    // told; a static priority is 0 for both policies.
    unsafe {
        if syscall!(Sysno::sched_getscheduler, 0) != Ok(libc::SCHED_OTHER as usize) {
            return;
        }
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        // With what it has: its nice value stays.
        let known = syscall!(
            Sysno::sched_getattr,
            0,
            &raw mut attributes,
            size_of::<libc::sched_attr>(),
            0
        );
        attributes.sched_policy = libc::SCHED_BATCH as u32;
        attributes.sched_runtime = TURN_NS;
        if known.is_err() || syscall!(Sysno::sched_setattr, 0, &raw const attributes, 0).is_err() {
            let priority = 0i32;
            let _ = syscall!(Sysno::sched_setscheduler, 0, libc::SCHED_BATCH, &raw const priority);
        }
    }
}

/// A set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMask([u64; 16]);

impl CpuMask {
    /// Number of CPUs that a set has room for: CPU numbers from this on are never in one.
    pub const CPUS: u32 = 16 * 64;

    /// The set of one CPU, less than [`CpuMask::CPUS`].
    pub fn of(cpu: u32) -> CpuMask {
        let mut mask = [0; 16];
        mask[cpu as usize / 64] = 1 << (cpu % 64);
        CpuMask(mask)
    }
}

/// The CPUs that the calling thread may run on; `None` if the kernel does not say, or has more than
/// a set can hold.
pub fn own_cpus() -> Option<CpuMask> {
    let mut mask = [0u64; 16];
    // SAFETY: the kernel writes at most the mask's 128 bytes.
    let bytes =
        unsafe { syscall!(Sysno::sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) };
    bytes.is_ok().then_some(CpuMask(mask))
}

/// Has the calling thread run on these CPUs only. False if it may not.
pub fn set_own_cpus(cpus: &CpuMask) -> bool {
    // SAFETY: the kernel reads the mask.
    unsafe { syscall!(Sysno::sched_setaffinity, 0, size_of_val(&cpus.0), cpus.0.as_ptr()) }.is_ok()
}

/// The CPU that the calling thread runs on; `None` if the kernel does not say.
pub fn current_cpu() -> Option<u32> {
    let mut cpu = 0u32;
    // SAFETY: the kernel writes one number; a null node is none.
    let done = unsafe { syscall!(Sysno::getcpu, &raw mut cpu, 0, 0) };
    done.is_ok().then_some(cpu)
}

/// CPUs that this process may run on, at least 1. Unlike the standard library's answer it opens no
/// file.
pub fn cpu_count() -> usize {
    own_cpus().map_or(1, |CpuMask(mask)| {
        mask.iter().map(|word| word.count_ones() as usize).sum::<usize>().max(1)
    })
}

/// CPUs of the machine that are online, at least 1; where /sys is not there, those that this process
/// may run on.
///
/// The C library is not asked: up to glibc 2.31 its answer needs tables of character classes that
/// threads which it did not make do not have, and such a thread died of it.
pub fn online_cpus() -> usize {
    cpus_in("/sys/devices/system/cpu/online\0").map_or_else(cpu_count, |(count, _)| count)
}

/// CPUs that the machine may have, online or not: their numbers are lower.
pub fn configured_cpus() -> usize {
    cpus_in("/sys/devices/system/cpu/possible\0").map_or_else(cpu_count, |(_, end)| end)
}

/// How many CPUs a file of /sys names, and the highest number plus 1. The path ends in a NUL.
fn cpus_in(path: &str) -> Option<(usize, usize)> {
    let fd = crate::open(path, libc::O_RDONLY, 0).ok()?;
    let mut text = [0u8; 1024];
    let len = crate::read_at(fd, &mut text, 0);
    crate::close(fd);
    cpus_of(str::from_utf8(&text[..len.ok()?]).ok()?)
}

/// What [`cpus_in`] returns, of a list such as `0-3,8`.
fn cpus_of(list: &str) -> Option<(usize, usize)> {
    let (mut count, mut end) = (0, 0);
    for range in ranges_of(list) {
        let range = range?;
        end = end.max(*range.end() as usize + 1);
        count += range.count();
    }
    Some((count, end))
}

/// The ranges of a list such as `0-3,8`, as files of /sys have them; `None` for a part that is no
/// range.
pub fn ranges_of(list: &str) -> impl Iterator<Item = Option<RangeInclusive<u32>>> {
    list.trim().split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range: RangeInclusive<u32> = first.parse().ok()?..=last.parse().ok()?;
        (!range.is_empty()).then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(cpus_of("0\n"), Some((1, 1)));
        assert_eq!(cpus_of("0-3,8,10-11\n"), Some((7, 12)));
        assert_eq!((cpus_of("\n"), cpus_of("3-1\n")), (None, None));
        let std = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(std <= online_cpus() && online_cpus() <= configured_cpus());
    }
}
