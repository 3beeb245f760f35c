//! Mappings: made, protected, locked and looked up.

use crate::files::{close, open};
use crate::types::{Errno, Fd, PAGE, Result};
use syscalls::{Sysno, syscall};

/// Whether nothing is mapped in `start..end`; false if that cannot be known.
pub fn is_nothing_mapped(start: usize, end: usize) -> bool {
    let mapped = map_where_nothing_is(start, end - start, libc::PROT_NONE).is_ok();
    if mapped {
        // SAFETY: mapped here, where nothing was, and used nowhere else.
        unsafe { unmap(start, end - start) };
    }
    mapped
}

const RESERVATION: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps private memory where the kernel likes.
pub fn map_anywhere(len: usize, prot: i32) -> Result<usize> {
    // SAFETY: a new private mapping at an address of the kernel's choice disturbs nothing.
    unsafe { syscall!(Sysno::mmap, 0, len, prot, RESERVATION, -1isize, 0) }
}

/// Maps the first `len` bytes of the open file `fd` where the kernel likes: shared, readable and
/// writable. The errors are mmap(2)'s.
pub fn map_shared_anywhere(fd: Fd, len: usize) -> Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    unsafe { syscall!(Sysno::mmap, 0, len, prot, libc::MAP_SHARED, fd, 0) }
}

/// Maps private memory at an address, if nothing is there: EEXIST otherwise.
pub fn map_where_nothing_is(start: usize, len: usize, prot: i32) -> Result<()> {
    map_exactly(start, len, prot, RESERVATION, -1).map(drop)
}

pub(crate) fn map_exactly(
    start: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: Fd,
) -> Result<usize> {
    // SAFETY: a new mapping where nothing is disturbs nothing.
    let mapped = unsafe {
        syscall!(Sysno::mmap, start, len, prot, flags | libc::MAP_FIXED_NOREPLACE, fd as isize, 0)
    }?;
    if mapped != start {
        // A kernel that does not know the flag (before 4.17). SAFETY: mapped above, and used
        // nowhere else.
        unsafe { unmap(mapped, len) };
        return Err(Errno::EEXIST);
    }
    Ok(mapped)
}

/// Unmaps an own mapping.
///
/// # Safety
/// Nothing touches the mapping any more.
pub unsafe fn unmap(start: usize, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { syscall!(Sysno::munmap, start, len) };
}

/// Whether an own reservation reads as zeros in every forked child from now on.
pub fn wipe_in_children(start: usize, len: usize) -> bool {
    // SAFETY: an own reservation; its contents stay in this process.
    unsafe { syscall!(Sysno::madvise, start, len, libc::MADV_WIPEONFORK) }.is_ok()
}

/// Locks memory: what is there now and what comes, or what comes only. ENOMEM: beyond the limit,
/// not mapped, or not to be had.
pub fn lock_memory(start: usize, len: usize, on_fault: bool) -> Result<()> {
    const MLOCK_ONFAULT: usize = 1;
    // SAFETY: changes whether the range may leave memory, nothing else.
    unsafe { syscall!(Sysno::mlock2, start, len, if on_fault { MLOCK_ONFAULT } else { 0 }) }
        .map(drop)
}

/// `munlockall`.
pub fn unlock_all_memory() {
    // SAFETY: as above.
    let _ = unsafe { syscall!(Sysno::munlockall) };
}

/// Whether all of a range is mapped.
pub fn is_mapping(start: usize, len: usize) -> bool {
    let mut told = [0u8; 64];
    (start..start + len).step_by(told.len() * PAGE).all(|from| {
        let bytes = (start + len - from).min(told.len() * PAGE);
        // SAFETY: the kernel writes a byte for each page.
        unsafe { syscall!(Sysno::mincore, from, bytes, told.as_mut_ptr()) }.is_ok()
    })
}

/// Whether the page at `start`, a multiple of [`PAGE`], is mapped and in memory. The pages of files
/// count that the page cache has.
pub fn is_in_memory(start: usize) -> bool {
    let mut told = 0u8;
    // SAFETY: the kernel writes one byte, for the one page; where none is mapped, it fails.
    unsafe { syscall!(Sysno::mincore, start, PAGE, &raw mut told) }.is_ok() && told & 1 == 1
}

/// All mappings of this process, from /proc/self/maps; none where that cannot be read.
pub fn own_mappings() -> Vec<(usize, usize)> {
    let mut text = Vec::new();
    let Ok(fd) = open("/proc/self/maps\0", libc::O_RDONLY, 0) else { return Vec::new() };
    loop {
        let old = text.len();
        text.resize(old + (64 << 10), 0u8);
        // SAFETY: the kernel writes into the part that was added.
        match unsafe { syscall!(Sysno::read, fd, text.as_mut_ptr().add(old), text.len() - old) } {
            Ok(bytes) if bytes > 0 => text.truncate(old + bytes),
            _ => {
                text.truncate(old);
                break;
            }
        }
    }
    close(fd);
    let number = |text: &[u8]| usize::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok();
    let lines = text.split(|byte| *byte == b'\n');
    let mapping = |line: &[u8]| {
        // The last one is the kernel's on some machines, and none of the process's.
        let dash = line
            .iter()
            .position(|byte| *byte == b'-')
            .filter(|_| !line.ends_with(b"[vsyscall]"))?;
        let space = line.iter().position(|byte| *byte == b' ')?;
        Some((number(&line[..dash])?, number(line.get(dash + 1..space)?)?))
    };
    lines.filter_map(mapping).collect()
}

/// Undoes `mlockall` for an own reservation.
pub fn unlock_memory(start: usize, len: usize) {
    // SAFETY: changes whether the range may leave memory, nothing else.
    let _ = unsafe { syscall!(Sysno::munlock, start, len) };
}

/// Makes a part of an own reservation readable and writable.
///
/// # Safety
/// The range must lie in a reservation of ours.
pub unsafe fn allow_access(start: usize, len: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::mprotect, start, len, libc::PROT_READ | libc::PROT_WRITE) }.map(drop)
}

/// How a page of this process is protected (PROT_READ, PROT_WRITE, PROT_EXEC), from
/// /proc/self/maps; `None` where nothing is mapped.
pub fn protection_of(address: usize) -> Option<i32> {
    let maps = std::fs::read_to_string("/proc/thread-self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let within = usize::from_str_radix(start, 16).ok()? <= address
            && address < usize::from_str_radix(end, 16).ok()?;
        let bits = [(b'r', libc::PROT_READ), (b'w', libc::PROT_WRITE), (b'x', libc::PROT_EXEC)];
        let set = rest.bytes().zip(bits).filter(|(found, (letter, _))| found == letter);
        within.then(|| set.map(|(_, (_, bit))| bit).sum())
    })
}

/// Protects a page of the program's otherwise.
///
/// # Safety
/// The program must not notice.
pub unsafe fn protect_page(address: usize, protection: i32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::mprotect, address, PAGE, protection) }.is_ok()
}
