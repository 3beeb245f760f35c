//! What the kernel is asked of other processes, by [`terrace_os`]: addresses have 64 bits, and
//! errors are numbers, which messages name.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use terrace_os::{Errno, limit_of_process, set_limit_of_process};
pub use terrace_os::{
    UFFDIO_API, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE,
    UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE, USERFAULTFD_IOC_NEW, have_one_memory as shares_memory,
    io_error, now_ns, signal_process as pidfd_signal, wait_for_any, wait_readable, yield_now,
};

/// Bytes in a page.
pub const PAGE: u64 = 4096;

/// Features that the userfaultfd of a process is asked for, beside [`FEATURE_MOVE`].
pub const FEATURES: u64 = (1 << 1) | (1 << 2) | (1 << 3) | (1 << 6);
/// UFFD_FEATURE_PAGEFAULT_FLAG_WP and UFFD_FEATURE_WP_UNPOPULATED: absent pages can be marked.
pub const FEATURE_MARKS: u64 = 1 | (1 << 13);
/// UFFD_FEATURE_MOVE: pages can be moved (kernel 6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;

const PAGEMAP_SCAN: u64 = 0xc060_6610;

pub const EVENT_PAGEFAULT: u8 = 0x12;
/// Flag of a fault: UFFD_PAGEFAULT_FLAG_WP.
pub const FAULT_PROTECTED: u64 = 2;
pub const EVENT_FORK: u8 = 0x13;
pub const EVENT_REMAP: u8 = 0x14;
pub const EVENT_REMOVE: u8 = 0x15;
pub const EVENT_UNMAP: u8 = 0x16;

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    pub event: u8,
    _reserved: [u8; 7],
    /// What the event is about: flags and address of a fault, start and end, from, to and length.
    pub words: [u64; 3],
}
const _: () = assert!(size_of::<Message>() == 32);

/// A run of pages that a scan of a range found: one entry of PAGEMAP_SCAN's answer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Run {
    pub start: u64,
    pub end: u64,
    _categories: u64,
}

/// The monotonic clock, ms.
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// An ioctl with a structure of words.
pub fn ioctl<const N: usize>(fd: i32, request: u64, words: &mut [u64; N]) -> Result<i64, i32> {
    // SAFETY: every request used here reads and writes a structure of exactly these words. Runs of
    // pages that it names are the caller's to write. Pages change in other processes only.
    let answer = unsafe { terrace_os::ioctl(fd, request, words) };
    answer.map(|answer| answer as i64).map_err(Errno::into_raw)
}

/// Registers memory for missing pages, and for marks where those can be had.
pub fn register(uffd: i32, start: u64, end: u64, marks: bool) -> Result<i64, i32> {
    let mode = if marks { 3 } else { 1 };
    ioctl(uffd, UFFDIO_REGISTER, &mut [start, end - start, mode, 0])
}

pub fn unregister(uffd: i32, start: u64, end: u64) -> Result<i64, i32> {
    ioctl(uffd, UFFDIO_UNREGISTER, &mut [start, end - start])
}

pub fn wake(uffd: i32, start: u64, end: u64) -> Result<i64, i32> {
    ioctl(uffd, UFFDIO_WAKE, &mut [start, end - start])
}

pub fn zero_page(uffd: i32, at: u64) -> Result<i64, i32> {
    ioctl(uffd, UFFDIO_ZEROPAGE, &mut [at, PAGE, 0, 0])
}

/// Whether no process has the memory of a userfaultfd any more. Nothing is put there by asking: no
/// program has a page of its own at this address.
pub fn memory_is_gone(uffd: i32) -> bool {
    zero_page(uffd, PAGE) == Err(libc::ESRCH)
}

/// Marks absent pages in the page table: nothing but a discard, an unmap or a page that is put
/// there takes the mark away.
pub fn mark_absent(uffd: i32, start: u64, end: u64) -> Result<i64, i32> {
    ioctl(uffd, UFFDIO_WRITEPROTECT, &mut [start, end - start, 1])
}

/// Takes a write protection away, and wakes the threads that wait for that.
pub fn unprotect(uffd: i32, start: u64, end: u64) -> Result<i64, i32> {
    ioctl(uffd, UFFDIO_WRITEPROTECT, &mut [start, end - start, 0])
}

/// Puts a page where none is.
pub fn copy_page(uffd: i32, at: u64, page: &[u8; PAGE as usize]) -> Result<i64, i32> {
    ioctl(uffd, UFFDIO_COPY, &mut [at, page.as_ptr() as u64, PAGE, 0, 0])
}

/// Reads messages without waiting; empty where there are none.
pub fn read_messages(uffd: i32, messages: &mut [Message]) -> usize {
    let (to, len) = (messages.as_mut_ptr() as usize, size_of_val(messages));
    // SAFETY: the buffer is exclusively ours for the call, and any bytes are messages.
    let got = unsafe { terrace_os::read_to(uffd, to, len) };
    got.unwrap_or(0) / size_of::<Message>()
}

/// Finds where resident anonymous pages are between two addresses, by a descriptor of
/// `/proc/PID/pagemap`. Returns how many runs were found and where the scan ended.
pub fn resident(pagemap: i32, start: u64, end: u64, runs: &mut [Run]) -> Result<(usize, u64), i32> {
    scan(pagemap, start, end, runs, [FILE | PFNZERO, FILE | PRESENT | PFNZERO, 0])
}

/// Finds where pages are in memory, also those of shared memory; else as [`resident`].
pub fn in_memory(
    pagemap: i32,
    start: u64,
    end: u64,
    runs: &mut [Run],
) -> Result<(usize, u64), i32> {
    scan(pagemap, start, end, runs, [PFNZERO, PRESENT | PFNZERO, 0])
}

/// Finds where the page table has anything; else as [`resident`].
pub fn present(pagemap: i32, start: u64, end: u64, runs: &mut [Run]) -> Result<(usize, u64), i32> {
    scan(pagemap, start, end, runs, [0, 0, PRESENT | SWAPPED])
}

const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PFNZERO: u64 = 1 << 5;

fn scan(
    pagemap: i32,
    start: u64,
    end: u64,
    runs: &mut [Run],
    [inverted, all, any]: [u64; 3],
) -> Result<(usize, u64), i32> {
    let at = runs.as_mut_ptr() as u64;
    let mut words =
        [96, 0, start, end, 0, at, runs.len() as u64, 0, inverted, all, any, PRESENT | SWAPPED];
    let found = ioctl(pagemap, PAGEMAP_SCAN, &mut words)?;
    Ok((found as usize, words[4]))
}

/// Whether an absent page has a mark ([`mark_absent`]), by a descriptor of `/proc/PID/pagemap`.
pub fn has_mark(pagemap: i32, page: u64) -> bool {
    let mut entry = [0u8; 8];
    let got = terrace_os::read_at(pagemap, &mut entry, page / PAGE * 8);
    // Bits 57 and 63: write-protected by userfaultfd, present.
    let entry = u64::from_ne_bytes(entry);
    got == Ok(8) && entry >> 57 & 1 == 1 && entry >> 63 == 0
}

pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    terrace_os::open_process(pid).map_err(io_error)
}

/// A copy of another process's descriptor.
pub fn pidfd_getfd(pidfd: i32, fd: i32) -> io::Result<OwnedFd> {
    terrace_os::copy_of_descriptor(pidfd, fd).map_err(io_error)
}

/// Blocks the signals that ask a process to end, in this process and in those that it forks. The
/// descriptor (signalfd(2)) can be read once such a signal has come.
pub fn block_termination() -> io::Result<OwnedFd> {
    let signals = terrace_os::mask_of(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT]);
    terrace_os::block_also(signals);
    terrace_os::descriptor_of_signals(signals).map_err(io_error)
}

/// Blocks no signal any more: commands inherit what is blocked.
pub fn unblock_signals() {
    terrace_os::restore_signals(0);
}

/// A file in memory, sparse, of this length.
pub fn memory_file(name: &CStr, bytes: u64) -> io::Result<OwnedFd> {
    terrace_os::memory_file(name, bytes as usize).map_err(io_error)
}

/// Makes another descriptor of a file. Programs that this process executes inherit it.
pub fn inherited(fd: i32) -> io::Result<OwnedFd> {
    terrace_os::duplicate_to_inherit(fd).map_err(io_error)
}

/// The length of a file, bytes.
pub fn length(fd: i32) -> io::Result<u64> {
    terrace_os::file_status(fd).map(|about| about.st_size as u64).map_err(io_error)
}

/// Maps a file in memory, shared with processes that fork from this one.
pub fn map_shared(fd: i32, bytes: u64) -> io::Result<*mut u8> {
    let at = terrace_os::map_shared_anywhere(fd, bytes as usize);
    at.map(|at| at as *mut u8).map_err(io_error)
}

/// Reads another process's memory. Returns the number of bytes read from the start.
pub fn read_memory(pid: i32, at: u64, buffer: &mut [u8]) -> Result<usize, i32> {
    terrace_os::read_memory_of(pid, at, buffer).map_err(Errno::into_raw)
}

/// Writes another process's memory, all of the bytes or an error.
pub fn write_memory(pid: i32, at: u64, bytes: &[u8]) -> Result<(), i32> {
    // SAFETY: the callers name processes that are attached to, and their stubs, never this one.
    unsafe { terrace_os::write_memory_of(pid, at, bytes) }.map_err(Errno::into_raw)
}

/// Lets a process have many descriptors, or as many as it may.
pub fn raise_descriptors(pid: i32) {
    const MANY: u64 = 1 << 16;
    let Ok((_, hard)) = limit_of_process(pid, libc::RLIMIT_NOFILE) else { return };
    for most in [hard.max(MANY), hard] {
        if set_limit_of_process(pid, libc::RLIMIT_NOFILE, most, most).is_ok() {
            return;
        }
    }
}

/// Keeps a process from leaving a core dump: with a limit of one byte there is none, neither in a
/// file nor in a pipe.
pub fn forbid_core(pid: i32) {
    let _ = set_limit_of_process(pid, libc::RLIMIT_CORE, 1, 1);
}
