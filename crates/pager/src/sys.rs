//! The operating system: the only place in the pager that makes system calls.
//!
//! All calls are raw: they neither touch `errno` (which belongs to the program) nor pass through
//! the library's own interposed `mmap` family. Constants and layouts are the kernel's
//! (`linux/userfaultfd.h`, `linux/fs.h`); they are written out here because Debian 12's headers
//! (6.1) lack UFFDIO_MOVE and PAGEMAP_SCAN.

mod confine;
mod task;

use crate::dma;
use crate::injection::{self, Call};
use crate::space::{self, Span};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

pub use confine::*;
pub use syscalls::Errno;
use syscalls::{Sysno, syscall};
pub use task::*;

/// Bytes of a page.
pub const PAGE: usize = 4096;

type Result<T> = std::result::Result<T, Errno>;

/// The address that the kernel takes, in calls that manage memory, where a program passes this one.
/// On AArch64 the highest eight bits are the program's (tags of MTE or of a sanitizer), and are
/// ignored.
pub fn untagged(address: usize) -> usize {
    without_tag(address, cfg!(target_arch = "aarch64"))
}

/// As the kernel does it: the bits that are ignored become those that bit 55 stands for, if that is
/// a user's address.
fn without_tag(address: usize, has_tags: bool) -> usize {
    const TAG_BITS: u32 = 8;
    let extended = ((address << TAG_BITS) as isize >> TAG_BITS) as usize;
    if has_tags { address & extended } else { address }
}

/// A file descriptor by number. Ours live in a descriptor table that only our threads share
/// (`facts/traps.md`), so they are never owned by a value that a thread of the program could drop.
pub type Fd = i32;

/// Asks the simulation's kernel instead, on a thread that runs one.
macro_rules! simulated {
    ($kernel:ident => $answer:expr) => {
        #[cfg(test)]
        #[allow(clippy::unused_unit)] // Reason: some calls have no answer.
        if let Some($kernel) = crate::simulation::kernel() {
            return $answer;
        }
    };
}

/// Takes the code and constants of the program or library that this is part of out of the page
/// table. What is needed again is mapped again from the page cache, 64 KiB at a time; most of it
/// was needed to start. What somebody changed there (a debugger's breakpoints) stays, with all
/// around it.
pub fn forget_own_code(pagemap: Fd) {
    let (base, headers) = own_headers();
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    for header in loaded.filter(|header| header.p_flags & libc::PF_W == 0) {
        let start = base.wrapping_add(header.p_vaddr as usize);
        let (from, to) =
            (start & !(PAGE - 1), (start + header.p_memsz as usize).next_multiple_of(PAGE));
        let changed = read_entries(
            pagemap,
            from,
            to,
            &mut [Run::default()],
            PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        );
        if changed == Ok((0, to)) {
            // SAFETY: these are pages of the file, so the page cache has them as they are. (Where
            // they are locked it fails, and they stay.)
            let _ = unsafe { syscall!(Sysno::madvise, from, to - from, libc::MADV_DONTNEED) };
        }
    }
}

/// What is to be added to the addresses in the file of the program or library that this is part of,
/// and its program headers.
fn own_headers() -> (usize, &'static [libc::Elf64_Phdr]) {
    unsafe extern "C" {
        /// Where this program or library is mapped, by its linker.
        static __ehdr_start: libc::Elf64_Ehdr;
    }
    let file = &raw const __ehdr_start;
    // SAFETY: the linker puts both headers into the first mapping of the file, which is readable
    // and never changes.
    let headers = unsafe {
        let offset = (*file).e_phoff as usize;
        std::slice::from_raw_parts(
            file.byte_add(offset).cast::<libc::Elf64_Phdr>(),
            (*file).e_phnum.into(),
        )
    };
    let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD);
    (first.map_or(0, |first| (file as usize).wrapping_sub(first.p_vaddr as usize)), headers)
}

/// Reserves `len` bytes of private address space, readable and writable, that cost nothing until
/// touched. Not where the program may map next: see [`crate::space`].
pub fn reserve(len: usize) -> Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    space::map(len, |at| {
        if at == 0 {
            map_anywhere(len, prot)
        } else {
            map_where_nothing_is(at, len, prot).map(|()| at)
        }
    })
}

/// Whether nothing is mapped in `start..end`; false if that cannot be known.
pub fn is_nothing_mapped(start: usize, end: usize) -> bool {
    let mapped = map_where_nothing_is(start, end - start, libc::PROT_NONE).is_ok();
    if mapped {
        // SAFETY: mapped here, where nothing was, and nobody knows of it.
        unsafe { unmap(start, end - start) };
    }
    mapped
}

/// Reserves address space without access; see [`allow_access`].
pub fn reserve_without_access(len: usize) -> Result<usize> {
    Span::new(len, len).and_then(|span| {
        if span.reserved >= len {
            return Ok(span.start);
        }
        // SAFETY: reserved here, and nobody knows of it.
        unsafe { unmap(span.start, span.reserved) };
        Err(Errno::ENOMEM)
    })
}

const RESERVATION: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps private memory where the kernel likes.
pub(crate) fn map_anywhere(len: usize, prot: i32) -> Result<usize> {
    // SAFETY: a new private mapping at an address of the kernel's choice disturbs nothing.
    unsafe { syscall!(Sysno::mmap, 0, len, prot, RESERVATION, -1isize, 0) }
}

/// Maps private memory at an address, if nothing is there: EEXIST otherwise.
pub(crate) fn map_where_nothing_is(start: usize, len: usize, prot: i32) -> Result<()> {
    map_exactly(start, len, prot, RESERVATION, -1).map(drop)
}

fn map_exactly(start: usize, len: usize, prot: i32, flags: i32, fd: Fd) -> Result<usize> {
    // SAFETY: a new mapping where nothing is disturbs nothing.
    let mapped = unsafe {
        syscall!(Sysno::mmap, start, len, prot, flags | libc::MAP_FIXED_NOREPLACE, fd as isize, 0)
    }?;
    if mapped != start {
        // A kernel that does not know the flag (before 4.17). SAFETY: mapped above, and nobody
        // knows of it.
        unsafe { unmap(mapped, len) };
        return Err(Errno::EEXIST);
    }
    Ok(mapped)
}

/// Maps `len` bytes of the open file `fd`, shared.
pub fn map_shared(fd: Fd, len: usize) -> Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    space::map(len, |at| match at {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        0 => unsafe { syscall!(Sysno::mmap, 0, len, prot, libc::MAP_SHARED, fd, 0) },
        at => map_exactly(at, len, prot, libc::MAP_SHARED, fd),
    })
}

/// Maps `len` bytes of zeros that forked children share.
pub fn share_with_children(len: usize) -> Result<usize> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    space::map(len, |at| match at {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        0 => unsafe { syscall!(Sysno::mmap, 0, len, prot, flags, -1isize, 0) },
        at => map_exactly(at, len, prot, flags, -1),
    })
}

/// Unmaps an own mapping.
///
/// # Safety
/// Nobody may touch it any more.
pub unsafe fn unmap(start: usize, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { syscall!(Sysno::munmap, start, len) };
}

/// Lets go of the contents of an own reservation, locked in memory or not. They read as zeros
/// afterwards.
///
/// # Safety
/// Nobody may need them.
pub unsafe fn empty(start: usize, len: usize) {
    const MADV_DONTNEED_LOCKED: i32 = 24;
    for attempt in 0u32.. {
        let advice = if attempt % 2 == 0 { libc::MADV_DONTNEED } else { MADV_DONTNEED_LOCKED };
        // SAFETY: the caller's promise.
        if unsafe { advise_or_strike(Call::Empty, start, len, advice) }.is_ok() {
            return;
        }
        // Short of memory for the kernel's bookkeeping: nothing may go on as if the slots were
        // empty.
        if attempt > 2 {
            sleep(Duration::from_millis(1));
        }
    }
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

/// How much this process may lock, bytes.
pub fn lock_limit() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the limit.
    let asked = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_MEMLOCK, 0, &raw mut limit) };
    if asked.is_ok() { limit.rlim_cur } else { 0 }
}

/// How long a file may become (RLIMIT_FSIZE); 0 if that is unknown.
pub fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the limit.
    let asked = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit) };
    if asked.is_ok() { limit.rlim_cur } else { 0 }
}

/// How many tasks this user may have (RLIMIT_NPROC); `None` without a limit, or where the kernel
/// lets this process exceed it.
pub fn user_task_limit() -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the limit; no arguments.
    let (asked, user) = unsafe {
        (
            syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NPROC, 0, &raw mut limit),
            syscall!(Sysno::getuid),
        )
    };
    // Root of the first user namespace, whose map of users is the identity.
    let is_root = user == Ok(0) && small_file("/proc/self/uid_map\0").contains("4294967295");
    (asked.is_ok() && limit.rlim_cur != libc::RLIM64_INFINITY && !is_root).then_some(limit.rlim_cur)
}

/// The directories of the control groups that may limit this process's tasks: version 1's `pids`,
/// or version 2's; its own and those above it.
pub fn task_groups() -> Vec<String> {
    let text = small_file("/proc/self/cgroup\0");
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            "pids" => "/sys/fs/cgroup/pids",
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        groups.push(format!("{root}{path}"));
        while let Some((above, _)) = path.rsplit_once('/') {
            path = above;
            groups.push(format!("{root}{path}"));
        }
    }
    groups
}

/// The first 4 KiB of a file; empty if it cannot be read.
fn small_file(path: &str) -> String {
    let mut text = vec![0u8; PAGE];
    let Ok(fd) = open(path, libc::O_RDONLY, 0) else { return String::new() };
    let len = read_at(fd, &mut text, 0).unwrap_or(0);
    close(fd);
    String::from_utf8_lossy(&text[..len]).into_owned()
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

/// Where the program or library that this is part of is mapped.
pub fn own_image() -> (usize, usize) {
    let (base, headers) = own_headers();
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let end = loaded
        .map(|header| {
            base.wrapping_add((header.p_vaddr + header.p_memsz) as usize).next_multiple_of(PAGE)
        })
        .max();
    (base / PAGE * PAGE, end.unwrap_or(base))
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

/// Forwards a call of the program's own to the kernel, untouched.
///
/// # Safety
/// The program asked for it: its arguments are its responsibility, as without us.
pub unsafe fn forward(number: i64, args: [usize; 6]) -> Result<usize> {
    let number = Sysno::from(number as i32);
    // SAFETY: the caller's promise.
    unsafe { syscall!(number, args[0], args[1], args[2], args[3], args[4], args[5]) }
}

/// `madvise`.
///
/// # Safety
/// The advice may destroy contents (MADV_DONTNEED): the caller must own them or act for the
/// program.
pub unsafe fn advise(start: usize, len: usize, advice: i32) -> Result<()> {
    simulated!(kernel => kernel.advise(start, len, advice));
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::madvise, start, len, advice) }.map(drop)
}

/// A forked child does not get these pages from now on (MADV_DONTFORK): a fork made past the C
/// library, which nobody sees, must not read zeros where pages are evicted. It is ended by SIGSEGV
/// there. An error is no reason to do otherwise: where parts are not mapped, the kernel says so
/// when the others are done.
pub fn keep_from_children(start: usize, len: usize) {
    // SAFETY: changes no contents.
    let _ = unsafe { advise(start, len, libc::MADV_DONTFORK) };
}

/// Undoes [`keep_from_children`].
pub fn give_to_children(start: usize, len: usize) {
    // SAFETY: changes no contents.
    let _ = unsafe { advise(start, len, libc::MADV_DOFORK) };
}

/// `madvise` for a purpose of ours.
///
/// # Safety
/// As for [`advise`].
unsafe fn advise_or_strike(call: Call, start: usize, len: usize, advice: i32) -> Result<()> {
    match injection::strike(call) {
        Some(errno) => Err(errno),
        // SAFETY: the caller's promise.
        None => unsafe { advise(start, len, advice) },
    }
}

/// Takes pages out of the page table whose contents have been copied. An error may come when part
/// of them is gone.
///
/// # Safety
/// The pages are claimed and write-protected, and their contents are ours.
pub unsafe fn drop_copied(start: usize, len: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { advise_or_strike(Call::Drop, start, len, libc::MADV_DONTNEED) }
}

/// Faults pages in for writing (Linux 5.14): what a fork left shared becomes our own. `Err` where a
/// write would end in SIGBUS, too.
pub fn populate_for_writing(start: usize, len: usize) -> Result<()> {
    // SAFETY: contents stay.
    unsafe { advise_or_strike(Call::Populate, start, len, libc::MADV_POPULATE_WRITE) }
}

/// Has the kernel put runs of pages (start and length) into its swap (Linux 5.4): all in one call
/// if it takes that of `own_process`, which may be −1. What it does not take stays, mostly without
/// an error; false if there was one.
pub fn page_out(own_process: Fd, runs: &[(usize, usize)]) -> bool {
    let parts: Vec<libc::iovec> = runs
        .iter()
        .map(|(start, len)| libc::iovec { iov_base: *start as *mut _, iov_len: *len })
        .collect();
    let (mut rest, mut answered) = (&parts[..], true);
    while !rest.is_empty() {
        let all = match injection::strike(Call::PageOut) {
            Some(errno) => Err(errno),
            // SAFETY: contents stay, and the kernel reads the parts.
            None => unsafe {
                syscall!(
                    Sysno::process_madvise,
                    own_process,
                    rest.as_ptr(),
                    rest.len(),
                    libc::MADV_PAGEOUT,
                    0
                )
            },
        };
        let mut done = match all {
            Ok(bytes) => bytes,
            Err(_) => {
                // Not even the first: perhaps the call is forbidden (before Linux 6.13 without
                // privilege), perhaps this part is.
                let (start, len) = (rest[0].iov_base as usize, rest[0].iov_len);
                // SAFETY: contents stay.
                answered &=
                    unsafe { advise_or_strike(Call::PageOut, start, len, libc::MADV_PAGEOUT) }
                        .is_ok();
                len
            }
        };
        let whole = rest
            .iter()
            .take_while(|part| {
                done >= part.iov_len && {
                    done -= part.iov_len;
                    true
                }
            })
            .count();
        rest = &rest[whole..];
        if done > 0 {
            // It stopped within a part.
            answered = false;
            rest = &rest[1..];
        }
    }
    answered
}

/// From now on the kernel does not balance memory between NUMA nodes for the calling thread and
/// those that it makes: it allocates as before, in the node of the thread's CPU, but by a policy
/// that says so, which balancing leaves alone. Whoever has a policy already keeps it.
pub fn leave_pages_in_their_nodes() {
    const MPOL_DEFAULT: i32 = 0;
    const MPOL_LOCAL: usize = 4;
    let mut mode = MPOL_DEFAULT;
    // SAFETY: the kernel writes one number.
    let asked = unsafe { syscall!(Sysno::get_mempolicy, &raw mut mode, 0, 0, 0, 0) };
    if asked.is_ok() && mode == MPOL_DEFAULT {
        // SAFETY: no memory is involved. Where it is refused, the kernel moves pages, too.
        let _ = unsafe { syscall!(Sysno::set_mempolicy, MPOL_LOCAL, 0, 0) };
    }
}

/// In which NUMA node each page is, or a negative errno: −ENOENT if it is not present.
pub fn locate_pages(pages: &[usize], status: &mut [i32]) -> Result<()> {
    debug_assert_eq!(pages.len(), status.len());
    // SAFETY: the kernel reads that many addresses, which may be any, and writes that many numbers.
    unsafe {
        syscall!(Sysno::move_pages, 0, pages.len(), pages.as_ptr(), 0, status.as_mut_ptr(), 0)
    }
    .map(drop)
}

/// Moves pages of this process alone to NUMA nodes. Which of them went is not said: after one that
/// cannot, those behind it may not have been tried ([`locate_pages`] tells).
pub fn move_pages(pages: &[usize], nodes: &[i32], status: &mut [i32]) -> Result<()> {
    debug_assert!(pages.len() == status.len() && pages.len() == nodes.len());
    const MPOL_MF_MOVE: usize = 1 << 1;
    if let Some(errno) = injection::strike(Call::Nodes) {
        return Err(errno);
    }
    // SAFETY: contents stay; the kernel reads that many addresses and nodes, and writes that many
    // numbers.
    unsafe {
        syscall!(
            Sysno::move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            MPOL_MF_MOVE
        )
    }
    .map(drop)
}

/// New pages of a range come from this node as long as it has room.
pub fn prefer_node(start: usize, len: usize, node: u32) -> Result<()> {
    const MPOL_PREFERRED: usize = 1;
    let mut nodes = [0usize; 16];
    let Some(word) = nodes.get_mut(node as usize / usize::BITS as usize) else {
        return Err(Errno::EINVAL);
    };
    *word = 1 << (node % usize::BITS);
    // (The kernel takes one bit less than it is told.)
    // SAFETY: changes no contents; the kernel reads that many bits.
    unsafe {
        syscall!(
            Sysno::mbind,
            start,
            len,
            MPOL_PREFERRED,
            nodes.as_ptr(),
            nodes.len() * usize::BITS as usize + 1,
            0
        )
    }
    .map(drop)
}

/// A descriptor of this process, in the calling thread's table.
pub fn own_process() -> Result<Fd> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::pidfd_open, process_id(), 0) }.map(|fd| fd as Fd)
}

/// Closes a descriptor of the calling thread's table.
pub fn close(fd: Fd) {
    simulated!(kernel => kernel.close(fd));
    // SAFETY: callers pass descriptors that they opened.
    let _ = unsafe { syscall!(Sysno::close, fd) };
}

/// The flag of close_range (Linux 5.9) that unshares the descriptor table first. It stands in for
/// unshare(2), which containers forbid.
const CLOSE_RANGE_UNSHARE: u32 = 1 << 1;

/// Gives the calling thread a descriptor table of its own and empties it, so that neither side's
/// `close` reaches the other, and no pipe of the program is kept open by us. Those in `keep` stay
/// open.
pub fn leave_descriptor_table(mut keep: Vec<Fd>) -> Result<()> {
    keep.sort_unstable();
    let mut first = 0;
    for end in keep.into_iter().map(|fd| fd as u32).chain([u32::MAX]) {
        if first < end {
            // SAFETY: gets this thread a table of its own, if it has none yet, and closes what is
            // in that one.
            unsafe {
                syscall!(
                    Sysno::close_range,
                    first,
                    if end == u32::MAX { end } else { end - 1 },
                    CLOSE_RANGE_UNSHARE
                )
            }?;
        }
        first = end.saturating_add(1);
    }
    // 0, 1 and 2 lead nowhere: whatever the C library writes there from one of our threads must not
    // reach a descriptor of ours. In a chroot without /dev they stay closed, and nothing of
    // ours is opened there either.
    while open("/dev/null\0", libc::O_RDWR, 0).is_ok_and(|fd| fd < 2) {}
    Ok(())
}

/// Opens a file; `path` ends with a NUL.
pub fn open(path: &str, flags: i32, mode: u32) -> Result<Fd> {
    debug_assert!(path.ends_with('\0'));
    simulated!(_kernel => Err(Errno::ENOENT));
    // SAFETY: the path is NUL-terminated and outlives the call.
    unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, mode) }
        .map(|fd| fd as Fd)
}

/// Sets a file's length.
pub fn truncate(fd: Fd, len: usize) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::ftruncate, fd, len) }.map(drop)
}

/// Writes all of it.
pub fn write_all(fd: Fd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the buffer outlives the call.
        match unsafe { syscall!(Sysno::write, fd, bytes.as_ptr(), bytes.len()) } {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes at an offset, all or nothing of use.
///
/// # Safety
/// `len` bytes at `from` are readable.
pub unsafe fn write_at(fd: Fd, from: usize, len: usize, offset: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    let written = unsafe { syscall!(Sysno::pwrite64, fd, from, len, offset) }?;
    if written == len { Ok(()) } else { Err(Errno::ENOSPC) }
}

/// Reads at an offset into memory that others may look at meanwhile, all or nothing of use.
///
/// # Safety
/// `len` bytes at `to` are writable, and nobody minds what is written there.
pub unsafe fn read_into(fd: Fd, to: usize, len: usize, offset: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    let read = unsafe { syscall!(Sysno::pread64, fd, to, len, offset) }?;
    if read == len { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Runs `act`, which writes. Neither signal arrives that ends a process for that: of a file that
/// would become longer than RLIMIT_FSIZE allows (SIGXFSZ), of a pipe that nobody reads (SIGPIPE).
/// `act` also gives the error that it met.
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
            // It waits for the thread that wrote. (Where it is ignored there is none.)
            let _ = syscall!(Sysno::rt_sigtimedwait, &raw const sent, 0, &raw const no_wait, 8);
        }
        let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, 8);
        result
    }
}

/// The PID namespace of this process, by its inode; 0 if that cannot be known.
pub fn pid_namespace() -> u64 {
    let mut text = [0u8; 64];
    // SAFETY: the path is NUL-terminated; the kernel writes at most the buffer's length.
    let len = unsafe {
        syscall!(
            Sysno::readlinkat,
            libc::AT_FDCWD,
            c"/proc/self/ns/pid".as_ptr(),
            text.as_mut_ptr(),
            text.len()
        )
    };
    // pid:[4026531836]
    let digits = text[..len.unwrap_or(0)].iter().filter(|byte| byte.is_ascii_digit());
    digits
        .fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

/// Renames a file. Both paths end in a NUL.
pub fn rename(from: &str, to: &str) -> Result<()> {
    debug_assert!(from.ends_with('\0') && to.ends_with('\0'));
    // SAFETY: the paths are NUL-terminated and outlive the call.
    unsafe {
        syscall!(Sysno::renameat2, libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), 0)
    }
    .map(drop)
}

/// Removes a file. The path ends in a NUL.
pub fn unlink(path: &str) {
    debug_assert!(path.ends_with('\0'));
    // SAFETY: as above.
    let _ = unsafe { syscall!(Sysno::unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
}

/// Reads at an offset.
pub fn read_at(fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    // SAFETY: the buffer is exclusively ours for the call.
    unsafe { syscall!(Sysno::pread64, fd, buffer.as_mut_ptr(), buffer.len(), offset) }
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

/// From now on, for as long as this process executes no other program, [`complain`] speaks to the
/// file that is standard error now, and to no other that may get its number.
pub fn learn_standard_error() {
    let _ = STANDARD_ERROR.set(file_of(2));
}

/// One line to the program's standard error; errors are nobody's to handle. From any thread: the
/// descriptor is fetched out of the program's table, because in our own threads' table 2 is
/// something else.
pub fn complain(line: &str) {
    simulated!(kernel => kernel.complain(line));
    say(format!("terrace: {line}\n").as_bytes());
}

/// Writes any text to the program's standard error, from any thread. Errors are ignored.
pub fn say(text: &[u8]) {
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
    /// CPUCLOCK_SCHED of a process, as the C library's clock_getcpuclockid makes such a number.
    const PROCESS_CLOCK: i32 = 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = !program_id() << 3 | PROCESS_CLOCK;
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

/// The kernel's letter for a thread of the program (`S` asleep, `Z` gone but not forgotten); `None`
/// if there is no such thread.
pub fn thread_state(thread: i32) -> Option<char> {
    let stat =
        std::fs::read_to_string(format!("/proc/{}/task/{thread}/stat", program_id())).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Whether the calling thread may be in a signal handler: it has signals blocked, or is on its
/// alternate stack. (A handler that blocks nothing, not even its own signal, is not seen; nor,
/// under a filter of system calls, is that stack.)
pub fn may_be_in_handler() -> bool {
    let mut blocked = 0u64;
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: changes nothing; the kernel writes the mask and the description.
    let told = unsafe {
        let mask = syscall!(
            Sysno::rt_sigprocmask,
            libc::SIG_BLOCK,
            0,
            &raw mut blocked,
            size_of_val(&blocked)
        );
        // A filter may end who asks for that.
        if is_filtered() {
            mask
        } else {
            mask.and_then(|_| syscall!(Sysno::sigaltstack, 0, &raw mut stack))
        }
    };
    told.is_err() || blocked != 0 || stack.ss_flags & libc::SS_ONSTACK != 0
}

/// All threads of this process.
pub fn own_threads() -> std::io::Result<Vec<i32>> {
    let tasks = std::fs::read_dir("/proc/self/task")?.flatten();
    Ok(tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
}

/// A timer that sends a thread of this process SIGURG whenever that has run for so long. Not
/// inherited by children.
#[derive(Debug)]
pub struct Timer(i32);

impl Timer {
    /// Starts one. `None` if the kernel refuses (RLIMIT_SIGPENDING), or there is no such thread any
    /// more.
    pub fn of_thread(thread: i32, period_ns: u64) -> Option<Timer> {
        // A thread's clock of running time, as the kernel numbers them (MAKE_THREAD_CPUCLOCK,
        // CPUCLOCK_SCHED).
        let clock = (!thread).wrapping_shl(3) | 4 | 2;
        // SAFETY: zeros are a value of it.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_signo = TIMER_SIGNAL;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_notify_thread_id = thread;
        // The handler learns from it whose the signal is, without a system call.
        event.sigev_value = libc::sigval { sival_ptr: thread as usize as *mut _ };
        let mut id = 0i32;
        // SAFETY: the kernel reads the event and writes the number.
        unsafe { syscall!(Sysno::timer_create, clock, &raw const event, &raw mut id) }.ok()?;
        let timer = Timer(id);
        let time = libc::timespec {
            tv_sec: (period_ns / 1_000_000_000) as i64,
            tv_nsec: (period_ns % 1_000_000_000) as i64,
        };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the kernel reads the times.
        if unsafe { syscall!(Sysno::timer_settime, id, 0, &raw const times, 0) }.is_err() {
            timer.delete();
            return None;
        }
        Some(timer)
    }

    /// Ends it.
    pub fn delete(&self) {
        // SAFETY: a timer of ours; its number is not used again.
        let _ = unsafe { syscall!(Sysno::timer_delete, self.0) };
    }
}

/// See [`Timer`].
const TIMER_SIGNAL: i32 = libc::SIGURG;

/// What [`handle_timers`] calls: thread, instruction, flags, and registers in the order of
/// `ucontext_t`.
pub type OnTimer = fn(i32, u64, u64, &[u64; 16]);

static ON_TIMER: OnceLock<OnTimer> = OnceLock::new();

/// From now on a timer's signal calls `each` in the thread that it came to, which may be anywhere:
/// nothing but stores is allowed. False if the program handles the signal itself. There is one
/// `each`, which the first call names.
pub fn handle_timers(each: OnTimer) -> bool {
    ON_TIMER.get_or_init(|| each);
    // SAFETY: zeros are a value of it.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_timer as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler may run anywhere (see there); the C library writes into `before`.
    if unsafe { libc::sigaction(TIMER_SIGNAL, &raw const action, &raw mut before) } != 0 {
        return false;
    }
    // Ours, in a fork's child.
    let free = [libc::SIG_DFL, libc::SIG_IGN, action.sa_sigaction].contains(&before.sa_sigaction);
    if !free {
        // SAFETY: as it was.
        unsafe { libc::sigaction(TIMER_SIGNAL, &raw const before, std::ptr::null_mut()) };
    }
    free
}

/// Whether that is still so.
pub fn handles_timers() -> bool {
    handler_of_timers() == Some(on_timer as *const () as usize)
}

/// The signal has its default again, which is to be ignored, if the handler is ours: so much for
/// one that is on its way.
pub fn ignore_timers() {
    if handles_timers() {
        // SAFETY: zeros are SIG_DFL without flags.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(TIMER_SIGNAL, &raw const default, std::ptr::null_mut());
        }
    }
}

/// Whether a thread of this process takes a timer's signal at present: somebody else may read it
/// where it is blocked.
pub fn takes_timers(thread: i32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")) else {
        return false;
    };
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    blocked
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (TIMER_SIGNAL - 1) & 1 == 0)
}

fn handler_of_timers() -> Option<usize> {
    // SAFETY: zeros are a value of it.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the C library writes into `now`.
    (unsafe { libc::sigaction(TIMER_SIGNAL, std::ptr::null(), &raw mut now) } == 0)
        .then_some(now.sa_sigaction)
}

#[cfg(target_arch = "x86_64")]
extern "C" fn on_timer(_signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes both, and nobody else sees them.
    let (info, context) = unsafe { (&*info, &*context.cast::<libc::ucontext_t>()) };
    // Other than a timer's is of out-of-band data, for whoever waits for it: nothing of ours.
    let Some(each) = ON_TIMER.get().filter(|_| info.si_code == libc::SI_TIMER) else { return };
    let registers = &context.uc_mcontext.gregs;
    let mut general = [0; 16];
    general.iter_mut().zip(registers).for_each(|(to, register)| *to = *register as u64);
    // SAFETY: of a timer's signal.
    let thread = unsafe { info.si_value() }.sival_ptr as usize as i32;
    each(
        thread,
        registers[libc::REG_RIP as usize] as u64,
        registers[libc::REG_EFL as usize] as u64,
        &general,
    );
}

/// Only x86-64's registers are understood.
#[cfg(not(target_arch = "x86_64"))]
extern "C" fn on_timer(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}

/// Makes a thread of the program that nobody waits for; false where there can be none.
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

/// The calling thread's id.
pub fn thread_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::gettid) }.unwrap_or(0) as i32
}

/// How far the C library's thread-local variables are from its description of the thread: all that
/// the program itself has lies between.
pub fn thread_locals_bytes() -> usize {
    // SAFETY: no arguments; on Linux the first is the address of the thread's description.
    unsafe { (libc::pthread_self() as usize).abs_diff(libc::__errno_location() as usize) }
}

/// The id of the process's parent.
pub fn parent_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getppid) }.unwrap_or(0) as i32
}

/// The process's id.
pub fn process_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getpid) }.unwrap_or(0) as i32
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

/// That of the program's first thread.
pub fn nice_of_program() -> i32 {
    nice_of(program_id())
}

fn nice_of(thread: i32) -> i32 {
    // SAFETY: only asks. The kernel's answer is 20 less the value, so that it is no error.
    unsafe { syscall!(Sysno::getpriority, libc::PRIO_PROCESS, thread) }
        .map_or(0, |answer| 20 - answer as i32)
}

/// What a thread in the background takes of a processor at a time, ns. Who gives it up early loses
/// the rest of his turn, so a short one is what makes `sched_yield` cheap: of the ordinary 1.4 to 3
/// ms the mover used 0.2 and fell behind.
const TURN_NS: u64 = 200_000;

/// From now on the calling thread takes the processor from nobody when it wakes, if it is an
/// ordinary one (`SCHED_BATCH`), and has it for [`TURN_NS`] at a time (from Linux 6.12 on; before,
/// as long as everybody).
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

/// Sleeps on `word` while it holds `expected`, at most for `timeout`. Wakes spuriously.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    simulated!(kernel => kernel.wait(timeout));
    let time = timeout
        .map(|t| libc::timespec { tv_sec: t.as_secs() as _, tv_nsec: t.subsec_nanos() as _ });
    let pointer = time.as_ref().map_or(std::ptr::null(), |t| t as *const libc::timespec);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives through the call; the timespec too.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), op, expected, pointer) };
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    simulated!(_kernel => ());
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only the address is used.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), op, count) };
}

/// A set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMask([u64; 16]);

impl CpuMask {
    /// CPUs from this on are never in one.
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

/// CPUs that this process may run on, at least 1. Unlike the standard library's answer it opens no
/// file.
pub fn cpu_count() -> usize {
    own_cpus().map_or(1, |CpuMask(mask)| {
        mask.iter().map(|word| word.count_ones() as usize).sum::<usize>().max(1)
    })
}

/// Sleeps so long.
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

/// Blocks every signal for the calling thread but glibc's 32 and 33, which cancel threads and
/// change user ids. Returns what was blocked.
pub fn block_signals() -> u64 {
    simulated!(_kernel => 0);
    let mask: u64 = !(1 << 31 | 1 << 32);
    let mut before = 0u64;
    // SAFETY: the kernel reads 8 bytes of mask and writes 8.
    let _ = unsafe {
        syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, 8)
    };
    before
}

/// Blocks exactly these signals.
pub fn restore_signals(mask: u64) {
    simulated!(_kernel => ());
    // SAFETY: as above.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// While it lives, no signal handler of the program runs on this thread.
///
/// For every stretch in which a thread of the program holds a lock of ours: a handler that touched
/// an evicted page there would wait for a fault handler, which may wait for that lock; and one that
/// forks or maps memory would wait for itself.
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks them.
    #[allow(clippy::new_without_default)] // Reason: a default that acts on the thread would surprise.
    pub fn new() -> Self {
        SignalsBlocked { before: block_signals() }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        restore_signals(self.before);
    }
}

/// While it lives, whatever becomes of this thread's `errno` is undone at its end: for code of ours
/// that the program did not ask for an answer.
pub struct ErrnoKept {
    before: i32,
}

impl ErrnoKept {
    /// Remembers it.
    #[allow(clippy::new_without_default)] // Reason: a default that reads the thread's state would surprise.
    pub fn new() -> Self {
        // SAFETY: the C library's thread-local errno.
        ErrnoKept { before: unsafe { *libc::__errno_location() } }
    }
}

impl Drop for ErrnoKept {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.before };
    }
}

/// A copy of a descriptor with the first free number from `first` on.
pub fn duplicate_from(fd: Fd, first: Fd) -> Result<Fd> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_DUPFD_CLOEXEC, first) }.map(|fd| fd as Fd)
}

/// A descriptor of another process, which the caller must be allowed to trace.
pub fn descriptor_of(process: i32, fd: Fd) -> Result<Fd> {
    let pidfd = process_descriptor(process)?;
    let result = descriptor_behind(pidfd, fd);
    close(pidfd);
    result
}

fn descriptor_of_program(fd: Fd) -> Result<Fd> {
    match PROGRAM_DESCRIPTOR.load(Relaxed) {
        known if known >= 0 && is_companion() => descriptor_behind(known, fd),
        _ => descriptor_of(process_id(), fd),
    }
}

fn descriptor_behind(pidfd: Fd, fd: Fd) -> Result<Fd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { syscall!(Sysno::pidfd_getfd, pidfd, fd, 0) }? as Fd;
    if fd > 2 {
        return Ok(fd);
    }
    // Not where somebody would take it for standard input or output.
    let above = duplicate_from(fd, 3);
    close(fd);
    above
}

/// Writes into this process's own memory through the kernel; false where nothing is mapped, or
/// nothing may be written.
///
/// # Safety
/// The memory must be the caller's to change.
pub unsafe fn poke(address: usize, bytes: &[u8]) -> bool {
    simulated!(_kernel => true);
    // SAFETY: the caller's promise; the bytes outlive the call.
    unsafe { copy_to(bytes.as_ptr() as usize, address, bytes.len()) }
}

/// Copies memory of this process through the kernel, which answers with an error (false) where a
/// store would end in a signal.
///
/// # Safety
/// `from` is readable, and nobody minds what is written at `to`.
pub unsafe fn copy_to(from: usize, to: usize, len: usize) -> bool {
    let local = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: len };
    let remote = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: len };
    // SAFETY: the caller's promise.
    let copied = unsafe {
        syscall!(Sysno::process_vm_writev, own_task(), &raw const local, 1, &raw const remote, 1, 0)
    };
    copied == Ok(len)
}

/// Copies `len` bytes through the kernel; false where not all were copied. It is for places where a
/// load at `from` would end in a signal.
///
/// # Safety
/// `to` is writable, and nobody minds what is written there.
pub unsafe fn copy_from(from: usize, to: usize, len: usize) -> bool {
    let local = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: len };
    let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: len };
    // SAFETY: the caller's promise.
    let copied = unsafe {
        syscall!(Sysno::process_vm_readv, own_task(), &raw const local, 1, &raw const remote, 1, 0)
    };
    copied == Ok(len)
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

/// Reads this process's own memory through the kernel (by this thread's id: the main thread may
/// have left); false where nothing is mapped. Faults are taken as by any system call.
pub fn peek(address: usize, buffer: &mut [u8]) -> bool {
    look_at(address, buffer).is_ok()
}

/// Reads this process's own memory through the kernel. The error says why that failed: EFAULT where
/// not all of it is mapped.
pub fn look_at(address: usize, buffer: &mut [u8]) -> Result<()> {
    simulated!(_kernel => Ok(()));
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: the kernel checks `remote`; `local` is ours for the call.
    let copied = unsafe {
        syscall!(Sysno::process_vm_readv, own_task(), &raw const local, 1, &raw const remote, 1, 0)
    }?;
    if copied == buffer.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// By which number the kernel finds the calling process's memory: in the program the calling
/// thread's, whose main thread may have left; in the companion the process's, which is all that its
/// filter allows.
fn own_task() -> i32 {
    let process = process_id();
    if process == program_id() { thread_id() } else { process }
}

/// See [`dma::sign`].
pub fn pins_pages() -> Option<&'static str> {
    simulated!(_kernel => None);
    dma::sign()
}

/// Copies claimed pages of the program into staging slots; returns how many. Through the kernel,
/// which answers with an error where the program has meanwhile forbidden to read.
pub fn copy_pages(from: usize, to: usize, pages: usize) -> usize {
    if injection::strike(Call::Read).is_some() {
        return 0;
    }
    let len = injection::shorten(pages * PAGE);
    simulated!(kernel => kernel.copy_pages(from, to, len / PAGE));
    let local = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: len };
    let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: len };
    // SAFETY: the kernel checks `remote`; `local` is free slots of staging.
    let copied = unsafe {
        syscall!(Sysno::process_vm_readv, own_task(), &raw const local, 1, &raw const remote, 1, 0)
    };
    copied.unwrap_or(0) / PAGE
}

/// Whether a seccomp filter is in force for this thread.
pub fn is_filtered() -> bool {
    simulated!(_kernel => false);
    // SAFETY: no memory is involved.
    let mode = unsafe { syscall!(Sysno::prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    mode == Ok(libc::SECCOMP_MODE_FILTER as usize)
}

/// Whether a child that does this comes to its end. It is a copy of this thread alone, of which the
/// program learns nothing: it sends no signal at its end, and only a wait for clones sees it. `act`
/// must make raw system calls only: in a copy of a process with many threads every lock may be
/// held.
pub fn survives(act: impl FnOnce()) -> Result<bool> {
    // SAFETY: a fork without a signal. The child leaves by exit_group, so nothing of this frame is
    // used twice.
    let child = unsafe { syscall!(Sysno::clone, 0, 0, 0, 0, 0) }?;
    if child == 0 {
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit lives through the call, and concerns the child only.
        let _ = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_CORE, &raw const no_core, 0) };
        act();
        loop {
            // SAFETY: ends the child.
            let _ = unsafe { syscall!(Sysno::exit_group, 0) };
        }
    }
    let mut status = 0i32;
    loop {
        // SAFETY: the kernel writes the status.
        match unsafe { syscall!(Sysno::wait4, child, &raw mut status, libc::__WALL, 0) } {
            Ok(_) => return Ok(status == 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether a process descriptor, or one of the kernel's numbers below zero for it, stands for this
/// process (any of its threads).
pub fn is_this_process(pidfd: Fd) -> bool {
    if pidfd < 0 {
        return true;
    }
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).unwrap_or_default();
    let task = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    task.is_some_and(|task| {
        std::path::Path::new(&format!("/proc/self/task/{}", task.trim())).exists()
    })
}

/// Ends the process by SIGABRT, but not through the program's handler of it: that could touch pages
/// that nobody will restore.
pub fn abort() -> ! {
    // struct sigaction as the kernel has it: SIG_DFL and nothing else.
    let default = [0usize; 4];
    let mask = 1u64 << (libc::SIGABRT - 1);
    // SAFETY: the kernel reads the two structures, which are as large as it expects.
    unsafe {
        let _ = syscall!(Sysno::rt_sigaction, libc::SIGABRT, default.as_ptr(), 0, 8);
        let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, 0, 8);
        let _ = syscall!(Sysno::tgkill, process_id(), thread_id(), libc::SIGABRT);
    }
    std::process::abort()
}

// ---- userfaultfd ----

/// Faults say whether they are writes to write-protected pages, which can be had (Linux 5.7). With
/// the id of the thread that faults.
pub const FEATURE_WRITE_PROTECT: u64 = 1 | FEATURE_THREAD_ID;
/// Fault messages carry the id of the faulting thread (Linux 4.14).
const FEATURE_THREAD_ID: u64 = 1 << 8;
/// UFFDIO_MOVE is there (Linux 6.8). With the id of the thread that faults.
pub const FEATURE_MOVE: u64 = 1 << 16 | FEATURE_THREAD_ID;
/// A thread that writes to a write-protected page does not wait: the kernel takes the protection
/// off by itself (Linux 6.7).
pub const FEATURE_WATCH_WRITES: u64 = 1 << 15;
/// The kernel tells of ranges that are moved, discarded and unmapped, and has the caller wait until
/// that was read (Linux 4.11).
pub const FEATURE_EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const UFFD_API: u64 = 0xAA;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 2;
const fn ioc(dir: u64, number: u64, size: u64) -> u64 {
    dir << 30 | size << 16 | 0xAA << 8 | number
}
const UFFDIO_API: u64 = ioc(3, 0x3F, 24);
pub(crate) const UFFDIO_REGISTER: u64 = ioc(3, 0x00, 32);
pub(crate) const UFFDIO_UNREGISTER: u64 = ioc(2, 0x01, 16);
pub(crate) const UFFDIO_WAKE: u64 = ioc(2, 0x02, 16);
pub(crate) const UFFDIO_COPY: u64 = ioc(3, 0x03, 40);
pub(crate) const UFFDIO_ZEROPAGE: u64 = ioc(3, 0x04, 32);
pub(crate) const UFFDIO_MOVE: u64 = ioc(3, 0x05, 40);
pub(crate) const UFFDIO_WRITEPROTECT: u64 = ioc(3, 0x06, 24);
const USERFAULTFD_IOC_NEW: u64 = 0xAA00;

/// The range that an ioctl of the program is about to register with its own userfaultfd,
/// unregister, or move pages out of. `None` for any other ioctl.
pub fn range_of_uffd_call(request: u64, argument: usize) -> Option<(usize, usize)> {
    let mut words = [[0u8; 8]; 3];
    let (UFFDIO_REGISTER | UFFDIO_UNREGISTER | UFFDIO_MOVE) = request else { return None };
    let len = if request == UFFDIO_MOVE { 24 } else { 16 };
    if !peek(argument, &mut words.as_flattened_mut()[..len]) {
        return None;
    }
    let [first, second, third] = words.map(usize::from_ne_bytes);
    Some(if request == UFFDIO_MOVE { (second, third) } else { (first, second) })
}

/// Opens a userfaultfd that also sees faults in the kernel. Tries `device` (an open
/// /dev/userfaultfd) first, then the system call. Never user-mode only: with that, `read(2)` into
/// an evicted page would fail.
pub fn userfaultfd(device: Option<Fd>) -> Result<Fd> {
    simulated!(kernel => Ok(kernel.userfaultfd()));
    if let Some(device) = device {
        // SAFETY: the ioctl takes flags by value.
        let made = unsafe { syscall!(Sysno::ioctl, device, USERFAULTFD_IOC_NEW, libc::O_CLOEXEC) };
        if let Ok(fd) = made {
            return Ok(fd as Fd);
        }
    }
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::userfaultfd, libc::O_CLOEXEC) }.map(|fd| fd as Fd)
}

/// Agrees on the interface; returns the kernel's features. A descriptor can be asked once only.
pub fn uffd_api(fd: Fd, features: u64) -> Result<u64> {
    let mut args = [UFFD_API, features, 0];
    // SAFETY: struct uffdio_api, 24 bytes, written back.
    unsafe { uffd_ioctl(None, fd, UFFDIO_API, &mut args) }?;
    Ok(args[1])
}

/// From now on, missing pages in the range are `fd`'s to fill; and present ones may be
/// write-protected.
pub fn uffd_register(fd: Fd, start: usize, len: usize, write_protect: bool) -> Result<()> {
    let mode = REGISTER_MODE_MISSING | if write_protect { REGISTER_MODE_WP } else { 0 };
    let mut args = [start as u64, len as u64, mode, 0];
    // SAFETY: struct uffdio_register, 32 bytes; registration changes no contents.
    unsafe { uffd_ioctl(Some(Call::Register), fd, UFFDIO_REGISTER, &mut args) }
}

/// From now on the kernel fills missing pages in the range itself again. Fails where `fd` has
/// nothing registered.
pub fn uffd_unregister(fd: Fd, start: usize, len: usize) -> Result<()> {
    let mut args = [start as u64, len as u64];
    // SAFETY: struct uffdio_range, 16 bytes; callers have nothing evicted in the range.
    unsafe { uffd_ioctl(Some(Call::Unregister), fd, UFFDIO_UNREGISTER, &mut args) }
}

/// Wakes threads that wait for the range.
pub fn uffd_wake(fd: Fd, start: usize, len: usize) {
    let mut args = [start as u64, len as u64];
    // SAFETY: struct uffdio_range, 16 bytes.
    let _ = unsafe { uffd_ioctl(None, fd, UFFDIO_WAKE, &mut args) };
}

/// One ioctl of a userfaultfd. `call`: as which it may be made to fail.
///
/// # Safety
/// `args` is the request's structure; what the request does to memory is the caller's to answer
/// for.
unsafe fn uffd_ioctl(call: Option<Call>, fd: Fd, request: u64, args: &mut [u64]) -> Result<()> {
    if let Some(errno) = call.and_then(injection::strike) {
        return Err(errno);
    }
    simulated!(kernel => kernel.uffd_ioctl(fd, request, args));
    // SAFETY: the caller's promise; the kernel writes within the structure.
    unsafe { syscall!(Sysno::ioctl, fd, request, args.as_mut_ptr()) }.map(drop)
}

/// Has writes to the range's pages wait (`on`), or lets them go on; with [`FEATURE_WATCH_WRITES`]
/// none waits, and [`scan_watched`] tells which pages were written. Pages that are missing are
/// passed over.
pub fn uffd_write_protect(fd: Fd, start: usize, len: usize, on: bool) -> Result<()> {
    loop {
        let mut args = [start as u64, len as u64, u64::from(on)];
        // SAFETY: struct uffdio_writeprotect, 24 bytes; no contents change.
        match unsafe { uffd_ioctl(Some(Call::Protect), fd, UFFDIO_WRITEPROTECT, &mut args) } {
            Err(Errno::EAGAIN) => yield_now(),
            result => return result,
        }
    }
}

/// Fills the missing page at `dst` with a copy of `src` and wakes the waiting. EAGAIN while an
/// event of `fd` is pending.
///
/// # Safety
/// `src` must be readable memory of ours. `dst` must be claimed (or a fork keeps its state from
/// changing).
pub unsafe fn uffd_copy(fd: Fd, dst: usize, src: usize) -> Result<()> {
    let mut args = [dst as u64, src as u64, PAGE as u64, 0, 0];
    // SAFETY: struct uffdio_copy, 40 bytes; the rest is the caller's promise.
    unsafe { uffd_ioctl(Some(Call::Copy), fd, UFFDIO_COPY, &mut args) }
}

/// Fills missing pages from `dst` on with copies of those at `src`, as far as that goes; returns
/// how many bytes. Only what a userfaultfd counted as copied counts: `fd` may have become anything.
///
/// # Safety
/// As for [`uffd_copy`], for every page.
pub unsafe fn uffd_copy_run(fd: Fd, dst: usize, src: usize, len: usize) -> usize {
    const TRIES: u32 = 100;
    let mut done = 0;
    for _ in 0..TRIES {
        let part = injection::shorten(len - done);
        let mut args = [(dst + done) as u64, (src + done) as u64, part as u64, 0, 0];
        // SAFETY: struct uffdio_copy, 40 bytes; the rest is the caller's promise.
        let result = unsafe { uffd_ioctl(Some(Call::Copy), fd, UFFDIO_COPY, &mut args) };
        let copied = args[4] as i64;
        if copied > 0 {
            done += (copied as usize).min(len - done) / PAGE * PAGE;
        }
        match result {
            // A part of it, or busy.
            Err(Errno::EAGAIN) => yield_now(),
            Ok(()) if copied > 0 => {}
            _ => break,
        }
        if done == len {
            break;
        }
    }
    done
}

/// Fills a missing page with the kernel's zero page and wakes the waiting.
///
/// # Safety
/// As for [`uffd_copy`].
pub unsafe fn uffd_zero(fd: Fd, dst: usize) -> Result<()> {
    let mut args = [dst as u64, PAGE as u64, 0, 0];
    // SAFETY: struct uffdio_zeropage, 32 bytes; the rest is the caller's promise.
    unsafe { uffd_ioctl(Some(Call::Zero), fd, UFFDIO_ZEROPAGE, &mut args) }
}

/// Whether a range, whose first page is there, lies in one mapping that is registered with a
/// userfaultfd. Filling a page that is there with zeros says so and does nothing. Of whose
/// userfaultfd it is, the kernel says nothing.
pub fn uffd_has(fd: Fd, start: usize, len: usize) -> Result<bool> {
    loop {
        let mut args = [start as u64, len as u64, 0, 0];
        // SAFETY: struct uffdio_zeropage, 32 bytes. The pages are claimed: one that is missing
        // after all was given up past us, and is zeros.
        match unsafe { uffd_ioctl(Some(Call::Zero), fd, UFFDIO_ZEROPAGE, &mut args) } {
            Err(Errno::EAGAIN) => yield_now(),
            Ok(()) | Err(Errno::EEXIST) => return Ok(true),
            Err(Errno::ENOENT) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
}

/// Moves present pages from `src` to missing ones at `dst`, which must be registered with `fd`.
/// Returns how many bytes went, and what stopped it before `len`.
///
/// Linux 6.18 counts wrongly: once a page had to be retried inside the kernel (its accessed or
/// dirty bit changed under the call), what is moved next is not counted (`move_pages` keeps its
/// −EAGAIN) but tried again, and that fails, mostly with EEXIST. A caller that believed the
/// count would empty slots with live data in them. So every failure is looked into: what is at
/// `dst`, and no longer at `src`, has been moved.
///
/// # Safety
/// Both ranges must be ours to change, and nobody else may change them meanwhile: claimed pages of
/// the program and free staging slots.
pub unsafe fn uffd_move(
    fd: Fd,
    pagemap: Fd,
    dst: usize,
    src: usize,
    len: usize,
) -> (usize, Option<Errno>) {
    const TRIES: u32 = 1000;
    let (mut moved, mut tries) = (0, 0);
    while moved < len {
        let part = injection::shorten(len - moved);
        let mut args = [(dst + moved) as u64, (src + moved) as u64, part as u64, 0, 0];
        // SAFETY: struct uffdio_move, 40 bytes; the rest is the caller's promise.
        let result = unsafe { uffd_ioctl(Some(Call::Move), fd, UFFDIO_MOVE, &mut args) };
        let part = args[4] as i64;
        if part > 0 {
            moved += part as usize;
        }
        match result {
            Ok(_) => {}
            Err(Errno::EAGAIN) if tries < TRIES => tries += 1,
            Err(errno) => {
                let counted = moved;
                while moved < len
                    && !is_mapped(pagemap, src + moved)
                    && is_mapped(pagemap, dst + moved)
                {
                    moved += PAGE;
                }
                if moved == counted {
                    return (moved, Some(errno));
                }
            }
        }
    }
    (moved, None)
}

/// One message of a userfaultfd.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    event: u8,
    _reserved: [u8; 7],
    flags: u64,
    address: u64,
    third: u64,
}

/// What a message tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Reason: addresses and lengths in bytes, as their names say.
pub enum Event {
    /// A thread waits for a page, to write to it or only to read. Its id, as its own PID namespace
    /// has it, or 0.
    Fault { address: usize, write: bool, thread: i32 },
    /// A range is about to be discarded.
    Removed { start: usize, end: usize },
    /// A range has been unmapped.
    Unmapped { start: usize, end: usize },
    /// A range has been moved to another address.
    Moved { from: usize, to: usize, len: usize },
    /// What we do not ask for.
    Other,
}

impl Message {
    /// What it tells.
    pub fn event(&self) -> Event {
        const FLAG_WRITE: u64 = 1;
        // Three words, whose names are those of a fault's.
        let (first, second, third) =
            (self.flags as usize, self.address as usize, self.third as usize);
        match self.event {
            0x12 => Event::Fault {
                address: second,
                write: self.flags & FLAG_WRITE != 0,
                thread: third as i32,
            },
            0x14 => Event::Moved { from: first, to: second, len: third },
            0x15 => Event::Removed { start: first, end: second },
            0x16 => Event::Unmapped { start: first, end: second },
            _ => Event::Other,
        }
    }
}

/// Waits for messages; returns how many came.
pub fn uffd_read(fd: Fd, messages: &mut [Message]) -> Result<usize> {
    let bytes = std::mem::size_of_val(messages);
    // SAFETY: the buffer is ours for the call, and any bytes make valid messages.
    unsafe { syscall!(Sysno::read, fd, messages.as_mut_ptr(), bytes) }
        .map(|n| n / size_of::<Message>())
}

/// Messages that are there now: EAGAIN if there are none. Fails in other ways where the kernel
/// cannot read this without waiting (before Linux 6.10).
pub fn uffd_read_now(fd: Fd, messages: &mut [Message]) -> Result<usize> {
    simulated!(kernel => kernel.read_now());
    const RWF_NOWAIT: i32 = 8;
    let buffer =
        libc::iovec { iov_base: messages.as_mut_ptr().cast(), iov_len: size_of_val(messages) };
    // SAFETY: as for `uffd_read`; the offset of −1 is that of `read`.
    unsafe { syscall!(Sysno::preadv2, fd, &raw const buffer, 1, -1isize, -1isize, RWF_NOWAIT) }
        .map(|n| n / size_of::<Message>())
}

// ---- page maps ----

/// A run of pages of one kind, as PAGEMAP_SCAN reports it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Run {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    categories: u64,
}

pub(crate) const PAGEMAP_SCAN: u64 = 3 << 30 | 96 << 16 | (b'f' as u64) << 8 | 16;
const PAGE_IS_WPALLOWED: u64 = 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;

impl Run {
    /// A run of one page.
    pub fn of(address: usize, written: bool) -> Run {
        Run {
            start: address as u64,
            end: (address + PAGE) as u64,
            categories: if written { PAGE_IS_WRITTEN } else { 0 },
        }
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// After [`scan_watched`]: the pages have been written since they were last write-protected, or
    /// never were.
    pub fn is_written(&self) -> bool {
        self.categories & PAGE_IS_WRITTEN != 0
    }

    /// Whether these pages are in the kernel's swap; of runs of [`scan_held`].
    pub fn is_swapped(&self) -> bool {
        self.categories & PAGE_IS_SWAPPED != 0
    }
}

/// Lists runs of present anonymous pages (not the shared zero page) in `start..end`. Returns how
/// many runs were written and where the walk ended; it ended early if the runs ran out.
pub fn scan_present(
    pagemap: Fd,
    start: usize,
    end: usize,
    runs: &mut [Run],
) -> Result<(usize, usize)> {
    scan(pagemap, start, end, runs, PAGE_IS_PRESENT, 0)
}

/// Lists runs of present anonymous pages as [`scan_present`] does, and says of each run whether it
/// was [written](Run::is_written). Without PAGEMAP_SCAN all seem to be written.
pub fn scan_watched(
    pagemap: Fd,
    start: usize,
    end: usize,
    runs: &mut [Run],
) -> Result<(usize, usize)> {
    scan(pagemap, start, end, runs, PAGE_IS_PRESENT, PAGE_IS_WRITTEN)
}

/// Lists runs of anonymous pages that are present or in the kernel's swap, which have runs of their
/// own. Otherwise as [`scan_present`].
pub fn scan_held(
    pagemap: Fd,
    start: usize,
    end: usize,
    runs: &mut [Run],
) -> Result<(usize, usize)> {
    scan(pagemap, start, end, runs, PAGE_IS_PRESENT | PAGE_IS_SWAPPED, 0)
}

/// Write-protects the present pages of `start..end` that were written, where a userfaultfd of
/// [`FEATURE_WATCH_WRITES`] has them, so that [`scan_watched`] tells which are written from now on.
///
/// By one walk, and so with one flush of the CPUs' TLBs for all of them; UFFDIO_WRITEPROTECT has
/// one for each call, and would mark what is missing.
pub fn watch_writes(pagemap: Fd, start: usize, end: usize, runs: &mut [Run]) -> Result<()> {
    simulated!(kernel => kernel.watch_writes(start, end));
    const WP_MATCHING: u64 = 1;
    let all_of = PAGE_IS_PRESENT | PAGE_IS_WRITTEN;
    scan_with(pagemap, (start, end), runs, WP_MATCHING, [0, all_of, 0, all_of]).map(drop)
}

/// Lists what is mapped in `start..end`, its pages present or not, and not registered with a
/// userfaultfd of [`FEATURE_WATCH_WRITES`]. What is registered with one is not walked through.
pub fn scan_unregistered(
    pagemap: Fd,
    start: usize,
    end: usize,
    runs: &mut [Run],
) -> Result<(usize, usize)> {
    simulated!(_kernel => Ok((0, end)));
    scan_with(
        pagemap,
        (start, end),
        runs,
        0,
        [PAGE_IS_WPALLOWED, PAGE_IS_WPALLOWED, 0, PAGE_IS_WPALLOWED],
    )
}

/// Whether no page of a range lies in memory that is registered with a userfaultfd of
/// [`FEATURE_WATCH_WRITES`]. False where the kernel does not say.
pub fn is_registered_nowhere(pagemap: Fd, start: usize, end: usize) -> bool {
    simulated!(_kernel => false);
    let categories = [0, PAGE_IS_WPALLOWED, 0, PAGE_IS_WPALLOWED];
    scan_with(pagemap, (start, end), &mut [Run::default()], 0, categories)
        .is_ok_and(|(count, _)| count == 0)
}

/// Advice to make huge pages now (Linux 6.1).
pub const MADV_COLLAPSE: i32 = 25;

/// How many huge pages the kernel could not split so far, of all processes; `None` if it does not
/// say. In the companion.
pub fn failed_splits() -> Option<u64> {
    let fd = VMSTAT.load(Relaxed);
    let mut text = [0u8; 16 << 10];
    let len = read_at(fd, &mut text, 0);
    let text = std::str::from_utf8(&text[..len.ok()?]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("thp_split_page_failed "))?.parse().ok()
}

/// How many bytes of a range up to 16 MiB are in huge pages that are mapped as such.
pub fn huge_bytes(pagemap: Fd, start: usize, end: usize) -> Result<usize> {
    let mut runs = [Run::default(); 8];
    let (count, _) = scan(pagemap, start, end, &mut runs, PAGE_IS_HUGE, 0)?;
    // Without PAGEMAP_SCAN nobody tells.
    if PLAIN_PAGEMAP.load(Relaxed) {
        return Err(Errno::ENOSYS);
    }
    Ok(runs[..count].iter().map(Run::bytes).sum())
}

fn scan(
    pagemap: Fd,
    start: usize,
    end: usize,
    runs: &mut [Run],
    kinds: u64,
    tell: u64,
) -> Result<(usize, usize)> {
    if let Some(errno) = injection::strike(Call::Scan) {
        return Err(errno);
    }
    simulated!(kernel => kernel.scan_present(start, end, runs, tell != 0));
    if PLAIN_PAGEMAP.load(Relaxed) {
        return read_entries(pagemap, start, end, runs, kinds);
    }
    // Not that one, and one of those. Whether a page is a file's is not asked: to know, the kernel
    // would read a record of each page, for 35 ns instead of 8. Managed memory has none, and
    // what a program maps there past the C library is not registered: nothing is moved out of it.
    match scan_with(
        pagemap,
        (start, end),
        runs,
        0,
        [PAGE_IS_PFNZERO, PAGE_IS_PFNZERO, kinds, kinds | tell],
    ) {
        Err(Errno::ENOTTY) => {
            PLAIN_PAGEMAP.store(true, Relaxed);
            read_entries(pagemap, start, end, runs, kinds)
        }
        result => result,
    }
}

/// PAGEMAP_SCAN with these flags and categories: inverted, all of, any of, told.
fn scan_with(
    pagemap: Fd,
    (start, end): (usize, usize),
    runs: &mut [Run],
    flags: u64,
    categories: [u64; 4],
) -> Result<(usize, usize)> {
    let mut args = [0u64; 12];
    args[0] = 96;
    args[1] = flags;
    args[2] = start as u64;
    args[3] = end as u64;
    args[5] = runs.as_mut_ptr() as u64;
    args[6] = runs.len() as u64;
    args[8..].copy_from_slice(&categories);
    // SAFETY: struct pm_scan_arg, 96 bytes; the kernel writes at most `runs.len()` runs.
    let count = unsafe { syscall!(Sysno::ioctl, pagemap, PAGEMAP_SCAN, args.as_mut_ptr()) }?;
    Ok((count, walk_end(&runs[..count], count == runs.len(), args[4] as usize, end)))
}

/// Where a walk ended of which the kernel says that it ended at `said`. The kernel (seen on 6.18)
/// keeps runs in a buffer of 512 of its own, and what it says is where it last emptied that one, if
/// the walk came to its end after: who went on from there would see pages twice.
fn walk_end(runs: &[Run], full: bool, said: usize, end: usize) -> usize {
    if full { runs.last().map_or(said, |last| said.max(last.end as usize)) } else { end }
}

/// The kernel has no PAGEMAP_SCAN (before Linux 6.7).
static PLAIN_PAGEMAP: AtomicBool = AtomicBool::new(false);

/// As [`scan`], entry by entry: slower, and the shared zero page looks like any other.
fn read_entries(
    pagemap: Fd,
    start: usize,
    end: usize,
    runs: &mut [Run],
    kinds: u64,
) -> Result<(usize, usize)> {
    const FILE_OR_SHARED: u64 = 1 << 61;
    let mut entries = [0u64; 512];
    let (mut count, mut address) = (0, start);
    while address < end {
        let wanted = ((end - address) / PAGE).min(entries.len());
        // SAFETY: plain integers, as bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), wanted * 8)
        };
        let read = read_at(pagemap, bytes, (address / PAGE * 8) as u64)? / 8;
        if read == 0 {
            break;
        }
        for entry in &entries[..read] {
            let at = address as u64;
            address += PAGE;
            // Bit 63: present; bit 62: swapped.
            let categories = match entry >> 62 {
                2 | 3 => PAGE_IS_PRESENT,
                1 => PAGE_IS_SWAPPED,
                _ => 0,
            } & kinds;
            if entry & FILE_OR_SHARED != 0 || categories == 0 {
                continue;
            }
            if let Some(run) =
                runs[..count].last_mut().filter(|run| run.end == at && run.categories == categories)
            {
                run.end += PAGE as u64;
                continue;
            }
            let Some(run) = runs.get_mut(count) else { return Ok((count, at as usize)) };
            *run =
                Run { start: at, end: at + PAGE as u64, categories: categories | PAGE_IS_WRITTEN };
            count += 1;
        }
    }
    Ok((count, address))
}

/// The pagemap entry of a page.
fn pagemap_entry(pagemap: Fd, address: usize) -> Result<u64> {
    if let Some(errno) = injection::strike(Call::Entry) {
        return Err(errno);
    }
    simulated!(kernel => kernel.pagemap_entry(address));
    let mut entry = [0u8; 8];
    match read_at(pagemap, &mut entry, (address / PAGE * 8) as u64)? {
        8 => Ok(u64::from_ne_bytes(entry)),
        _ => Err(Errno::EIO),
    }
}

/// Whether the pagemap can be read.
pub fn tells_of(pagemap: Fd, address: usize) -> bool {
    (0..10).any(|_| pagemap_entry(pagemap, address).is_ok())
}

/// Whether exactly one process maps the present page at `address` (bit 56 of its pagemap entry).
/// False if that cannot be known now.
pub fn mapped_exclusively(pagemap: Fd, address: usize) -> bool {
    pagemap_entry(pagemap, address).is_ok_and(|entry| entry >> 56 & 1 == 1)
}

/// Whether there is a page at `address`, in memory (bit 63 of its pagemap entry). True if that
/// cannot be known now.
pub fn is_present(pagemap: Fd, address: usize) -> bool {
    pagemap_entry(pagemap, address).map_or(true, |entry| entry >> 63 == 1)
}

/// Whether the machine has any swap; if it does not say, that counts as yes.
pub fn has_swap() -> bool {
    let mut told = std::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills in a struct sysinfo, for which all zeros are valid too.
    let (asked, told) =
        unsafe { (syscall!(Sysno::sysinfo, told.as_mut_ptr()), told.assume_init()) };
    asked.is_err() || told.totalswap > 0
}

/// Whether the page table holds a page at `address`, in memory (bit 63 of its pagemap entry; the
/// shared zero page too) or swapped out (bit 62). Waits until the kernel answers: with a guess, a
/// page could be lost.
pub fn is_mapped(pagemap: Fd, address: usize) -> bool {
    loop {
        match pagemap_entry(pagemap, address) {
            Ok(entry) => return entry >> 62 != 0,
            Err(_) => sleep(Duration::from_millis(1)),
        }
    }
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

/// Opens that file; `None` where /proc numbers processes otherwise than they do themselves.
pub fn open_status_of_program() -> Option<Fd> {
    let own = open("/proc/self/status\0", libc::O_RDONLY, 0).ok()?;
    let number = field_of(own, b"Pid:");
    close(own);
    if number != Some(process_id() as u64) {
        return None;
    }
    open(&format!("/proc/{}/status\0", program_id()), libc::O_RDONLY, 0).ok()
}

/// A number in a file of that kind.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_the_background_takes_short_turns() {
        // SAFETY: concerns this thread only; the kernel writes no more than the size it is told.
        let attributes = || unsafe {
            let mut attributes: libc::sched_attr = std::mem::zeroed();
            let asked = syscall!(
                Sysno::sched_getattr,
                0,
                &raw mut attributes,
                size_of::<libc::sched_attr>(),
                0
            );
            asked.expect("the kernel tells how a thread is scheduled");
            attributes
        };
        let before = attributes();
        if before.sched_policy != libc::SCHED_OTHER as u32 {
            println!("skipped: the test itself is not scheduled as an ordinary thread");
            return;
        }
        assert!(set_thread_nice(before.sched_nice + 1));
        set_thread_background();
        let after = attributes();
        assert_eq!(
            (after.sched_policy, after.sched_nice),
            (libc::SCHED_BATCH as u32, before.sched_nice + 1)
        );
        // Before Linux 6.12 the kernel says nothing of turns.
        assert!(
            after.sched_runtime == TURN_NS || before.sched_runtime == 0,
            "{}",
            after.sched_runtime
        );
    }

    #[test]
    fn a_tag_is_no_part_of_an_address_where_there_are_tags() {
        let address = 0x7f12_3456_7000;
        for tag in [0, 1, 0x0f, 0x80, 0xff_usize] {
            assert_eq!(without_tag(address | tag << 56, true), address);
            assert_eq!(without_tag(address | tag << 56, false), address | tag << 56);
        }
        // What is beyond all user addresses stays there.
        assert_eq!(without_tag(address | 1 << 48, true), address | 1 << 48);
        assert_eq!(without_tag(usize::MAX, true), usize::MAX);
        assert_eq!(untagged(address), address);
    }

    /// Nothing else reads it, and the kernel maps 64 KiB around what is read.
    static CONSTANT: [u8; 256 << 10] = [7; 256 << 10];

    #[test]
    fn own_code_is_mapped_again_when_it_is_needed_and_stays_where_somebody_changed_it() {
        use std::os::unix::fs::FileExt;
        let middle = &raw const CONSTANT[CONSTANT.len() / 2];
        // SAFETY: inside a constant; volatile, as a debugger may have changed it.
        let read = || unsafe { middle.read_volatile() };
        let pagemap = open("/proc/thread-self/pagemap\0", libc::O_RDONLY, 0).unwrap();
        assert_eq!(read(), 7);
        assert!(is_present(pagemap, middle as usize));
        forget_own_code(pagemap);
        assert!(!is_present(pagemap, middle as usize));
        assert_eq!(read(), 7);
        let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
        memory.write_at(&[8], middle as u64).unwrap();
        forget_own_code(pagemap);
        assert!(is_present(pagemap, middle as usize));
        assert_eq!(read(), 8);
        close(pagemap);
    }
}
