//! Numbers that the kernel tells in /proc and of the machine.

use crate::files::{close, open, read_at};
use crate::ids::{process_id, program_id};
use crate::task::VMSTAT;
use crate::types::{Errno, Fd, PAGE, Result};
use std::sync::atomic::Ordering::Relaxed;
use syscalls::{Sysno, syscall};

/// How many huge pages the kernel could not split so far, of all processes; `None` if it does not
/// say. In the companion.
pub fn failed_splits() -> Option<u64> {
    let fd = VMSTAT.load(Relaxed);
    let mut text = [0u8; 16 << 10];
    let len = read_at(fd, &mut text, 0);
    let text = std::str::from_utf8(&text[..len.ok()?]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("thp_split_page_failed "))?.parse().ok()
}

/// Whether the machine has any swap; if it does not say, that counts as yes.
pub fn has_swap() -> bool {
    let mut told = std::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills in a struct sysinfo, for which all zeros are valid too.
    let (asked, told) =
        unsafe { (syscall!(Sysno::sysinfo, told.as_mut_ptr()), told.assume_init()) };
    asked.is_err() || told.totalswap > 0
}

/// Bytes of a page of the kernel that runs. On AArch64 they may be more than [`PAGE`], with which
/// alone the pager works.
pub fn page_bytes() -> usize {
    // SAFETY: the C library reads what the kernel gave it at the start; no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(PAGE)
}

/// Fills `bytes`, 256 at most, with random ones, getrandom(2). Soon after the machine's start it
/// waits until the kernel has some. EINVAL: too many bytes.
pub fn fill_randomly(bytes: &mut [u8]) -> Result<()> {
    /// Bytes that the kernel always gives as a whole.
    const MOST: usize = 256;
    if bytes.len() > MOST {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the kernel writes at most the buffer's length, and it is exclusively ours.
    let got = unsafe { syscall!(Sysno::getrandom, bytes.as_mut_ptr(), bytes.len(), 0) }?;
    if got == bytes.len() { Ok(()) } else { Err(Errno::EINTR) }
}

/// Bytes of this process in the kernel's swap, from an open /proc/thread-self/status; `None` where
/// the kernel has no swap.
pub fn swapped_bytes(status: Fd) -> Option<u64> {
    Some(field_of(status, b"VmSwap:")? << 10)
}

/// How often the program's first thread has given up the CPU by itself, from the open file
/// /proc/PID/status of the program.
pub fn times_given_up(status: Fd) -> Option<u64> {
    field_of(status, b"voluntary_ctxt_switches:")
}

/// Opens /proc/PID/`name` of the program; `None` where /proc numbers processes otherwise than they
/// do themselves.
pub fn open_of_program(name: &str) -> Option<Fd> {
    let own = open("/proc/self/status\0", libc::O_RDONLY, 0).ok()?;
    let number = field_of(own, b"Pid:");
    close(own);
    if number != Some(process_id() as u64) {
        return None;
    }
    open(&format!("/proc/{}/{name}\0", program_id()), libc::O_RDONLY, 0).ok()
}

/// A number after `name` in the text of an open `status` file.
fn field_of(status: Fd, name: &[u8]) -> Option<u64> {
    let mut text = [0u8; 4096];
    let len = read_at(status, &mut text, 0).ok()?;
    // A line that is cut off says something else.
    let whole = text[..len].iter().rposition(|byte| *byte == b'\n')?;
    let line =
        text[..whole].split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    let digits = line.iter().filter(|byte| byte.is_ascii_digit());
    Some(digits.fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// How long a thread has run so far, and been ready without a processor, ns, from its open
/// schedstat file.
pub fn ran_and_waited_ns(schedstat: Fd) -> Option<(u64, u64)> {
    let mut text = [0u8; 64];
    let len = read_at(schedstat, &mut text, 0).ok()?;
    let mut numbers = std::str::from_utf8(&text[..len]).ok()?.split(' ').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// How long all CPUs of the machine together have been busy so far, ns, from an open /proc/stat. In
/// units of 10 ms.
pub fn busy_ns(stat: Fd) -> Option<u64> {
    const TICK_NS: u64 = 10_000_000;
    /// Fields of the first line: idle, waiting for a device, and what guests took, which is in the
    /// first two as well.
    const NOT_BUSY: [usize; 4] = [3, 4, 8, 9];
    let mut text = [0u8; 256];
    let len = read_at(stat, &mut text, 0).ok()?;
    let line = std::str::from_utf8(&text[..len]).ok()?.lines().next()?.strip_prefix("cpu ")?;
    let fields = line.split_ascii_whitespace().enumerate();
    let busy = fields.filter(|(number, _)| !NOT_BUSY.contains(number));
    busy.map(|(_, field)| field.parse::<u64>().ok()).sum::<Option<u64>>().map(|n| n * TICK_NS)
}

/// Anonymous resident bytes of this process, from an open /proc/self/statm. Cheap (about 1 µs),
/// approximate by some pages a CPU.
pub fn anonymous_bytes(statm: Fd) -> Result<u64> {
    let mut text = [0u8; 128];
    let len = read_at(statm, &mut text, 0)?;
    let mut fields = text[..len].split(|b| *b == b' ').map(|field| {
        field.iter().filter(|b| b.is_ascii_digit()).fold(0u64, |n, b| n * 10 + u64::from(b - b'0'))
    });
    let resident = fields.nth(1).unwrap_or(0);
    let shared = fields.next().unwrap_or(0);
    Ok(resident.saturating_sub(shared) * PAGE as u64)
}
