//! System calls that the C library has no function for, and their structures.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
pub use terrace_os::{
    UFFDIO_API, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE,
    UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE, USERFAULTFD_IOC_NEW, now_ns, yield_now,
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

fn result(value: i64) -> Result<i64, i32> {
    if value < 0 { Err(errno()) } else { Ok(value) }
}

/// The calling thread's last error.
pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An ioctl with a structure of words.
pub fn ioctl<const N: usize>(fd: i32, request: u64, words: &mut [u64; N]) -> Result<i64, i32> {
    // SAFETY: every request used here reads and writes a structure of exactly these words.
    result(i64::from(unsafe { libc::ioctl(fd, request, words.as_mut_ptr()) }))
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
    // SAFETY: the buffer is writable for the length given, and any bytes are a message.
    let got = unsafe { libc::read(uffd, messages.as_mut_ptr().cast(), size_of_val(messages)) };
    usize::try_from(got).unwrap_or(0) / size_of::<Message>()
}

/// Finds where resident anonymous pages are between two addresses, by a descriptor of
/// `/proc/PID/pagemap`. Returns how many runs were found and where the look ended.
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
    let at = (page / PAGE * 8) as i64;
    // SAFETY: the buffer is writable for its length.
    let got = unsafe { libc::pread(pagemap, entry.as_mut_ptr().cast(), 8, at) };
    // Bits 57 and 63: write-protected by userfaultfd, present.
    let entry = u64::from_ne_bytes(entry);
    got == 8 && entry >> 57 & 1 == 1 && entry >> 63 == 0
}

fn descriptor(value: i64) -> io::Result<OwnedFd> {
    let fd = result(value).map_err(io::Error::from_raw_os_error)?;
    // SAFETY: the kernel has just made it, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    descriptor(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// A copy of another process's descriptor.
pub fn pidfd_getfd(pidfd: i32, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    descriptor(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) })
}

/// Blocks the signals that ask a process to end, in this process and in those that it forks. The
/// descriptor (signalfd(2)) can be read once such a signal has come.
pub fn block_termination() -> io::Result<OwnedFd> {
    // SAFETY: plain data, which the next calls fill.
    let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives until the calls are over; this process has one thread.
    let value = unsafe {
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        libc::signalfd(-1, &signals, libc::SFD_CLOEXEC)
    };
    descriptor(i64::from(value))
}

/// Blocks no signal any more: commands inherit what is blocked.
pub fn unblock_signals() {
    // SAFETY: plain data, which the next call fills; this process has one thread.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Sends a signal to a process, by its pidfd.
pub fn pidfd_signal(pidfd: i32, signal: i32) -> Result<(), i32> {
    // SAFETY: no memory is involved; without a siginfo the kernel makes one.
    result(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, 0, 0) }).map(drop)
}

/// A file in memory, sparse, of this length.
pub fn memory_file(name: &std::ffi::CStr, bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with a NUL.
    let file =
        descriptor(i64::from(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) }))?;
    // SAFETY: no memory is involved.
    let sized = unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&file), bytes as i64) };
    if sized != 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// Makes another descriptor of a file. Programs that this process executes inherit it.
pub fn inherited(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    descriptor(i64::from(unsafe { libc::fcntl(fd, libc::F_DUPFD, 3) }))
}

/// The length of a file, bytes.
pub fn length(fd: i32) -> io::Result<u64> {
    // SAFETY: a structure of numbers, of which all zero is a valid value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives until the call is over.
    let told = unsafe { libc::fstat(fd, &mut about) };
    if told != 0 { Err(io::Error::last_os_error()) } else { Ok(about.st_size as u64) }
}

/// Maps a file in memory, shared with processes that fork from this one.
pub fn map_shared(fd: i32, bytes: u64) -> io::Result<*mut u8> {
    // SAFETY: a new mapping where nothing is.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            fd,
            0,
        )
    };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

/// Gives the memory of a part of a file in memory back.
pub fn punch(fd: i32, offset: u64, bytes: u64) {
    const HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory of this process is involved but what the caller gives up.
    unsafe { libc::fallocate(fd, HOLE, offset as i64, bytes as i64) };
}

/// Reads another process's memory. Returns the number of bytes read from the start.
pub fn read_memory(pid: i32, at: u64, buffer: &mut [u8]) -> Result<usize, i32> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: buffer.len() };
    // SAFETY: the buffer is writable for the length given; the other side is the kernel's to check.
    result(unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) } as i64)
        .map(|n| n as usize)
}

/// Writes another process's memory, all of the bytes or an error.
pub fn write_memory(pid: i32, at: u64, bytes: &[u8]) -> Result<(), i32> {
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: bytes.len() };
    // SAFETY: the bytes are readable for the length given.
    let n = result(unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) } as i64)?;
    if n as usize == bytes.len() { Ok(()) } else { Err(libc::EFAULT) }
}

/// Whether two processes have one memory; `None` where that cannot be known.
pub fn shares_memory(a: i32, b: i32) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: no memory is involved.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) };
    (order >= 0).then_some(order == 0)
}

/// Gives the kernel advice (MADV_COLD, MADV_PAGEOUT) on ranges (start, bytes) of another process,
/// by its pidfd. Returns on how many bytes it took the advice.
pub fn advise_other(pidfd: i32, ranges: &[(u64, u64)], advice: i32) -> Result<i64, i32> {
    let vector: Vec<libc::iovec> = ranges
        .iter()
        .map(|(start, bytes)| libc::iovec { iov_base: *start as *mut _, iov_len: *bytes as usize })
        .collect();
    // SAFETY: the vector is readable for its length; what it names is another process's.
    result(unsafe {
        libc::syscall(libc::SYS_process_madvise, pidfd, vector.as_ptr(), vector.len(), advice, 0)
    })
}

/// The nodes that have pages of another process, by their numbers, or for each an error (negative).
pub fn nodes_of(pid: i32, pages: &[u64]) -> Result<Vec<i32>, i32> {
    move_pages(pid, pages, None)
}

/// Moves those pages of another process to a node that no other process has. Returns what holds for
/// each page then, as [`nodes_of`].
pub fn move_to_node(pid: i32, pages: &[u64], node: u32) -> Result<Vec<i32>, i32> {
    move_pages(pid, pages, Some(&vec![node as i32; pages.len()]))
}

fn move_pages(pid: i32, pages: &[u64], nodes: Option<&[i32]>) -> Result<Vec<i32>, i32> {
    const MPOL_MF_MOVE: i32 = 2;
    let mut status = vec![-libc::ENOENT; pages.len()];
    let nodes = nodes.map_or(std::ptr::null(), <[i32]>::as_ptr);
    // SAFETY: addresses and nodes are readable and the status is writable, as many as is said; the
    // addresses are another process's, whose contents stay.
    result(unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            nodes,
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    })?;
    Ok(status)
}

/// Waits until a descriptor can be read or `milliseconds` are over. Returns whether it can be.
pub fn wait_readable(fd: i32, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, writable.
    unsafe { libc::poll(&mut poll, 1, milliseconds) > 0 }
}

/// Waits until one of some descriptors can be read, or `milliseconds` are over.
pub fn wait_for_any(fds: impl Iterator<Item = i32>, milliseconds: i32) {
    let mut polls: Vec<libc::pollfd> =
        fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the structures are writable, and as many as is said.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, milliseconds) };
}

/// Lets a process have many descriptors, or as many as it may.
pub fn raise_descriptors(pid: i32) {
    const MANY: u64 = 1 << 16;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    let got = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &mut limit) };
    if got != 0 {
        return;
    }
    for most in [limit.rlim_max.max(MANY), limit.rlim_max] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the structure is readable.
        if unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) } == 0 {
            return;
        }
    }
}

/// Keeps a process from leaving a core dump: with a limit of one byte there is none, neither in a
/// file nor in a pipe.
pub fn forbid_core(pid: i32) {
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: the structure is readable.
    unsafe { libc::prlimit(pid, libc::RLIMIT_CORE, &limit, std::ptr::null_mut()) };
}

pub fn kill(pid: i32, signal: i32) -> Result<(), i32> {
    // SAFETY: no memory is involved; the callers check which process they signal.
    result(i64::from(unsafe { libc::kill(pid, signal) })).map(drop)
}
