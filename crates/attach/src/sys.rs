//! System calls that the C library has no function for, and their structures.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Bytes in a page.
pub const PAGE: u64 = 4096;

/// The userfaultfd of a process is asked for these, and for [`FEATURE_MOVE`].
pub const FEATURES: u64 = (1 << 1) | (1 << 2) | (1 << 3) | (1 << 6);
/// UFFD_FEATURE_MOVE: pages can be moved (kernel 6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;

pub const UFFDIO_API: u64 = 0xc018_aa3f;
pub const UFFDIO_REGISTER: u64 = 0xc020_aa00;
pub const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
pub const UFFDIO_WAKE: u64 = 0x8010_aa02;
pub const UFFDIO_COPY: u64 = 0xc028_aa03;
pub const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
pub const UFFDIO_MOVE: u64 = 0xc028_aa05;
/// USERFAULTFD_IOC_NEW, of /dev/userfaultfd.
pub const USERFAULTFD_NEW: u64 = 0xaa00;
const PAGEMAP_SCAN: u64 = 0xc060_6610;

pub const EVENT_PAGEFAULT: u8 = 0x12;
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

/// Where pages are in a range: one entry of PAGEMAP_SCAN's answer.
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

pub fn register(uffd: i32, start: u64, end: u64) -> Result<i64, i32> {
    ioctl(uffd, UFFDIO_REGISTER, &mut [start, end - start, 1, 0])
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

/// Where resident anonymous pages are between two addresses, by a descriptor of
/// `/proc/PID/pagemap`. Returns how many runs were found and where the look ended.
pub fn resident(pagemap: i32, start: u64, end: u64, runs: &mut [Run]) -> Result<(usize, u64), i32> {
    const FILE: u64 = 1 << 2;
    const PRESENT: u64 = 1 << 3;
    const PFNZERO: u64 = 1 << 5;
    let mut words = [
        96,
        0,
        start,
        end,
        0,
        runs.as_mut_ptr() as u64,
        runs.len() as u64,
        0,
        FILE | PFNZERO,
        FILE | PRESENT | PFNZERO,
        0,
        PRESENT,
    ];
    let found = ioctl(pagemap, PAGEMAP_SCAN, &mut words)?;
    Ok((found as usize, words[4]))
}

fn descriptor(value: i64) -> io::Result<OwnedFd> {
    let fd = result(value).map_err(io::Error::from_raw_os_error)?;
    // SAFETY: the kernel has just made it, for nobody else.
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

/// A file in memory, sparse, of this length.
pub fn memory_file(name: &std::ffi::CStr, bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with a NUL.
    let file =
        descriptor(i64::from(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) }))?;
    // SAFETY: no memory is involved.
    let sized = unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&file), bytes as i64) };
    if sized != 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
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

/// Reads another process's memory; the number of bytes read from the start.
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

/// CLOCK_MONOTONIC, ns.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn yield_now() {
    // SAFETY: no memory is involved.
    unsafe { libc::sched_yield() };
}

/// Waits until a descriptor can be read or `milliseconds` are over; whether it can.
pub fn wait_readable(fd: i32, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, writable.
    unsafe { libc::poll(&mut poll, 1, milliseconds) > 0 }
}

pub fn kill(pid: i32, signal: i32) -> Result<(), i32> {
    // SAFETY: no memory is involved; the callers check whom they signal.
    result(i64::from(unsafe { libc::kill(pid, signal) })).map(drop)
}
