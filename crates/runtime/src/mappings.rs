//! The interposed `mmap` family: private anonymous mappings of 256 KiB and more are managed like
//! the heap.
//!
//! The exported names only forward to functions of this module: inside the library the names
//! themselves mean the kernel's calls (`--wrap`). Each function does exactly what the kernel's does
//! and keeps the pager's view in step. `__wrap_` names are what the library's own code calls
//! instead (see build.rs): straight to the kernel.

use crate::segments;
use std::ffi::c_void;
use terrace_control::MANAGED_FROM;
use terrace_os::{self as sys, Errno, PAGE, untagged};
use terrace_pager::Pager;
use terrace_pager::ranges::Range;

/// Advice that is newer than Debian 12's headers.
const MADV_DONTNEED_LOCKED: i32 = 24;
const MADV_GUARD_INSTALL: i32 = 102;

fn failed<T>(errno: Errno, value: T) -> T {
    sys::set_thread_errno(errno);
    value
}

pub(crate) fn status(result: Result<usize, Errno>) -> i32 {
    match result {
        Ok(value) => value as i32,
        Err(errno) => failed(errno, -1),
    }
}

fn signed(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => failed(errno, -1),
    }
}

pub(crate) fn pointer(result: Result<usize, Errno>) -> *mut c_void {
    match result {
        Ok(address) => address as *mut c_void,
        Err(errno) => failed(errno, libc::MAP_FAILED),
    }
}

fn whole_pages(len: usize) -> usize {
    len.checked_next_multiple_of(PAGE).unwrap_or(0)
}

pub(crate) fn kernel(number: libc::c_long, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the program's own call, passed on as it was made.
    unsafe { sys::forward(number, args) }
}

/// The pager, in the process whose memory it manages. A process that shares the memory (a child of
/// `vfork`, or of clone with CLONE_VM) may be killed at any time. It would leave our locks taken.
/// The kernel's events tell us what such a process does.
pub(crate) fn pager() -> Option<&'static Pager> {
    crate::current::pager().filter(|pager| pager.serves_this_process())
}

/// The pager, if it manages any of a range. `None` for a range that does not begin at a page: the
/// kernel refuses it.
fn manager_of(start: usize, len: usize) -> Option<&'static Pager> {
    pager().filter(|pager| len > 0 && start.is_multiple_of(PAGE) && pager.manages(start, len))
}

fn readable_and_writable(prot: i32) -> bool {
    prot & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)
        == libc::PROT_READ | libc::PROT_WRITE
}

fn to_be_managed(len: usize, prot: i32, flags: i32) -> bool {
    const NEVER: i32 = libc::MAP_SHARED
        | libc::MAP_STACK
        | libc::MAP_GROWSDOWN
        | libc::MAP_HUGETLB
        | libc::MAP_LOCKED;
    len >= MANAGED_FROM
        && flags & (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
            == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
        && flags & NEVER == 0
        && prot & libc::PROT_EXEC == 0
}

/// `mmap`.
#[unsafe(no_mangle)]
extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: libc::off_t,
) -> *mut c_void {
    map(address, len, prot, flags, fd, offset)
}

fn map(
    address: *mut c_void,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: libc::off_t,
) -> *mut c_void {
    let start = address as usize;
    let args = [start, len, prot as usize, flags as usize, fd as usize, offset as usize];
    let size = whole_pages(len);
    let manage = to_be_managed(size, prot, flags);
    if manage
        && readable_and_writable(prot)
        && let Some(pager) = pager()
    {
        pager.make_room(size);
    }
    let replaces = flags & libc::MAP_FIXED != 0
        && flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE;
    let result = match replaces.then(|| manager_of(start, size)).flatten() {
        Some(pager) => pager.unmap(start, size, || kernel(libc::SYS_mmap, args)),
        None => kernel(libc::SYS_mmap, args),
    };
    if manage && let (Ok(start), Some(pager)) = (result, pager()) {
        pager.manage(start, size, readable_and_writable(prot));
        terrace_alloc::poll();
    } else if let Ok(start) = result
        && !replaces
    {
        forget(start, size);
    }
    pointer(result)
}

/// Stops managing a range in which the kernel placed a mapping by itself. If it was managed, it was
/// unmapped past us (by an instruction of the program's own), and holds something else now.
fn forget(start: usize, len: usize) {
    if let Some(pager) = manager_of(start, len) {
        pager.forget(start, len);
    }
}

/// `shmat`. With SHM_REMAP it replaces what is mapped there.
#[unsafe(no_mangle)]
extern "C" fn shmat(segment: i32, address: *const c_void, flags: i32) -> *mut c_void {
    attach(segment, address as usize, flags)
}

fn attach(segment: i32, address: usize, flags: i32) -> *mut c_void {
    let act = || kernel(libc::SYS_shmat, [segment as usize, address, flags as usize, 0, 0, 0]);
    // A process that may not ask may not attach it either.
    let Some(len) = pager().and_then(|_| segment_bytes(segment)) else { return pointer(act()) };
    let start = if flags & libc::SHM_RND != 0 { address & !(PAGE - 1) } else { address };
    let replaced = (flags & libc::SHM_REMAP != 0).then(|| manager_of(start, len)).flatten();
    let result = match replaced {
        Some(pager) => pager.unmap(start, len, act),
        None => act(),
    };
    if let Ok(start) = result {
        forget(start, len);
    }
    pointer(result)
}

/// Bytes that a segment of shared memory takes where it is attached.
fn segment_bytes(segment: i32) -> Option<usize> {
    let mut told = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    kernel(
        libc::SYS_shmctl,
        [segment as usize, libc::IPC_STAT as usize, told.as_mut_ptr() as usize, 0, 0, 0],
    )
    .ok()?;
    // SAFETY: all zeros are valid, and the kernel wrote no more than this structure, which is its
    // own.
    Some(whole_pages(unsafe { told.assume_init() }.shm_segsz))
}

/// `mmap64`: the same on 64-bit machines.
#[unsafe(no_mangle)]
extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: libc::off_t,
) -> *mut c_void {
    map(address, len, prot, flags, fd, offset)
}

/// `munmap`.
#[unsafe(no_mangle)]
extern "C" fn munmap(address: *mut c_void, len: usize) -> i32 {
    unmap(address, len)
}

fn unmap(address: *mut c_void, len: usize) -> i32 {
    let (start, size) = (untagged(address as usize), whole_pages(len));
    let act = || kernel(libc::SYS_munmap, [address as usize, len, 0, 0, 0, 0]);
    status(match manager_of(start, size) {
        Some(pager) => pager.unmap(start, size, act),
        None => act(),
    })
}

/// `mremap`. The fifth argument is variadic in C; it is passed in the same register.
#[unsafe(no_mangle)]
extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: i32,
    new: *mut c_void,
) -> *mut c_void {
    let (start, size) = (untagged(old as usize), whole_pages(old_len));
    let act = || {
        kernel(libc::SYS_mremap, [old as usize, old_len, new_len, flags as usize, new as usize, 0])
    };
    // The target is overwritten; should the call fail after all, its contents must still be there.
    let target = manager_of(new as usize, whole_pages(new_len))
        .filter(|_| flags & libc::MREMAP_FIXED != 0)
        .map(|pager| (pager, pager.unmanage(new as usize, whole_pages(new_len))));
    let source = manager_of(start, size);
    let result = match source {
        Some(pager) => pager.restore_then(start, size, act),
        None => act().map(|moved| (moved, Vec::new())),
    };
    if result.is_err()
        && let Some((pager, pieces)) = target
    {
        pager.manage_again(pieces);
    }
    let result = result.map(|(moved, pieces)| {
        // Where there was room, or where it grew.
        forget(moved, whole_pages(new_len));
        if let Some(pager) = source {
            manage_remapped(pager, &pieces, start, size, moved, whole_pages(new_len));
            if flags & libc::MREMAP_DONTUNMAP != 0 {
                pager.manage_again(pieces);
            }
        }
        moved
    });
    pointer(result)
}

/// Manages what came of `pieces` of a mapping, now at `moved`, as before, and no more. What it grew
/// by is managed like its end.
fn manage_remapped(
    pager: &Pager,
    pieces: &[Range],
    start: usize,
    size: usize,
    moved: usize,
    new_size: usize,
) {
    if new_size < MANAGED_FROM {
        return;
    }
    pager.make_room(new_size.saturating_sub(size));
    for piece in pieces {
        let (from, to) = (piece.start - start, piece.end - start);
        let to = if to == size { new_size } else { to.min(new_size) };
        if from < to {
            pager.manage_as(moved + from, to - from, piece.attributes);
        }
    }
}

/// `mprotect`.
#[unsafe(no_mangle)]
extern "C" fn mprotect(address: *mut c_void, len: usize, prot: i32) -> i32 {
    protect(address, len, prot)
}

fn protect(address: *mut c_void, len: usize, prot: i32) -> i32 {
    let start = untagged(address as usize);
    let act = || kernel(libc::SYS_mprotect, [address as usize, len, prot as usize, 0, 0, 0]);
    status(match manager_of(start, whole_pages(len)) {
        Some(pager) => pager.protect(start, whole_pages(len), readable_and_writable(prot), act),
        None => act(),
    })
}

/// `pkey_mprotect`: ranges with a protection key stay in DRAM; our threads may not have the key's
/// rights.
#[unsafe(no_mangle)]
extern "C" fn pkey_mprotect(address: *mut c_void, len: usize, prot: i32, key: i32) -> i32 {
    let start = untagged(address as usize);
    if let Some(pager) = manager_of(start, whole_pages(len)) {
        pager.unmanage(start, whole_pages(len));
    }
    status(kernel(
        libc::SYS_pkey_mprotect,
        [address as usize, len, prot as usize, key as usize, 0, 0],
    ))
}

/// `madvise`.
#[unsafe(no_mangle)]
extern "C" fn madvise(address: *mut c_void, len: usize, advice: i32) -> i32 {
    advise(address, len, advice)
}

fn advise(address: *mut c_void, len: usize, advice: i32) -> i32 {
    let act =
        |start, len, advice| kernel(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]);
    status(advise_with(address as usize, len, advice, act))
}

/// Gives advice to the kernel by `act`, and updates page states accordingly.
fn advise_with(
    start: usize,
    len: usize,
    advice: i32,
    act: impl Fn(usize, usize, i32) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let (given, start, size) = (start, untagged(start), whole_pages(len));
    let Some(pager) = manager_of(start, size) else { return act(given, len, advice) };
    match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED => {
            pager.discard(start, size, |start, len| act(start, len, advice))
        }
        libc::MADV_FREE => free(pager, start, size, act),
        libc::MADV_PAGEOUT if pager.page_out(start, size) => Ok(0),
        libc::MADV_DONTFORK | libc::MADV_DOFORK => {
            pager.inherit(start, size, advice == libc::MADV_DOFORK, || act(given, len, advice))
        }
        // What a child sees, or what the kernel does to single pages, would no longer be known to
        // us. (A child could not tell whether its zeros are the kernel's.)
        libc::MADV_WIPEONFORK | libc::MADV_REMOVE | libc::MADV_HWPOISON | MADV_GUARD_INSTALL => {
            pager.unmanage(start, size);
            act(given, len, advice)
        }
        _ => act(given, len, advice),
    }
}

/// MADV_FREE. A page that the kernel may free at any time could vanish from staging, where no
/// thread would answer its fault. So managed memory is discarded at once, by one call. A second
/// call would discard what is written after the first.
fn free(
    pager: &Pager,
    start: usize,
    len: usize,
    act: impl Fn(usize, usize, i32) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let (mut from, mut has_holes) = (start, false);
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    let mut note = |result| match result {
        Err(Errno::ENOMEM) => {
            has_holes = true;
            Ok(())
        }
        result => result.map(drop),
    };
    for range in pager.ranges_within(start, end) {
        if from < range.start {
            note(act(from, range.start - from, libc::MADV_FREE))?;
        }
        note(pager.discard(range.start, range.end - range.start, |start, len| {
            act(start, len, libc::MADV_DONTNEED)
        }))?;
        from = range.end;
    }
    if from < end {
        note(act(from, end - from, libc::MADV_FREE))?;
    }
    if has_holes { Err(Errno::ENOMEM) } else { Ok(0) }
}

/// `process_madvise`. The kernel takes advice that destroys contents for the calling process only
/// (Linux 6.13).
#[unsafe(no_mangle)]
extern "C" fn process_madvise(
    pidfd: i32,
    parts: *const libc::iovec,
    count: usize,
    advice: i32,
    flags: u32,
) -> isize {
    let whole = [pidfd as usize, parts as usize, count, advice as usize, flags as usize, 0];
    let harmless = matches!(
        advice,
        libc::MADV_COLD | libc::MADV_PAGEOUT | libc::MADV_WILLNEED | sys::MADV_COLLAPSE
    );
    if harmless
        || count > libc::UIO_MAXIOV as usize
        || pager().is_none()
        || !sys::is_this_process(pidfd)
    {
        return signed(kernel(libc::SYS_process_madvise, whole));
    }
    let mut done = 0;
    for index in 0..count {
        let mut part = [[0u8; 8]; 2];
        if !sys::peek(parts as usize + index * size_of_val(&part), part.as_flattened_mut()) {
            return if done > 0 { done } else { failed(Errno::EFAULT, -1) };
        }
        let [start, len] = part.map(usize::from_ne_bytes);
        let act = |start: usize, len: usize, advice: i32| {
            let part = [start, len];
            kernel(
                libc::SYS_process_madvise,
                [pidfd as usize, part.as_ptr() as usize, 1, advice as usize, flags as usize, 0],
            )
        };
        match advise_with(start, len, advice, act) {
            Ok(_) => done += len as isize,
            Err(_) if done > 0 => return done,
            Err(errno) => return failed(errno, -1),
        }
    }
    done
}

/// `ioctl`. Memory that a program gives to a userfaultfd of its own, or moves with one, is its own
/// to manage from then on. (A range has room for one userfaultfd, and pages that we had evicted
/// would be missing to it.)
#[unsafe(no_mangle)]
extern "C" fn ioctl(fd: i32, request: libc::c_ulong, argument: usize) -> i32 {
    if let Some((start, len)) = sys::range_of_uffd_call(request, argument)
        && let Some(pager) = manager_of(start, len)
    {
        pager.unmanage(start, len);
    }
    status(kernel(libc::SYS_ioctl, [fd as usize, request as usize, argument, 0, 0, 0]))
}

/// Handles memory calls that the program makes by number, through `syscall`.
pub fn by_number(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> libc::c_long {
    let address = a as *mut c_void;
    match number {
        libc::SYS_mmap => {
            map(address, b, c as i32, d as i32, e as i32, f as libc::off_t) as libc::c_long
        }
        libc::SYS_munmap => unmap(address, b).into(),
        libc::SYS_mremap => mremap(address, b, c, d as i32, e as *mut c_void) as libc::c_long,
        libc::SYS_mprotect => protect(address, b, c as i32).into(),
        libc::SYS_pkey_mprotect => pkey_mprotect(address, b, c as i32, d as i32).into(),
        libc::SYS_process_madvise => {
            process_madvise(a as i32, b as *const libc::iovec, c, d as i32, e as u32)
                as libc::c_long
        }
        libc::SYS_shmat => attach(a as i32, b, c as i32) as libc::c_long,
        libc::SYS_ioctl => ioctl(a as i32, b as libc::c_ulong, c).into(),
        libc::SYS_brk => pointer(segments::by_number(a)) as libc::c_long,
        _ => advise(address, b, c as i32).into(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_mmap(
    address: *mut c_void,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: libc::off_t,
) -> *mut c_void {
    const PLAIN: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if address.is_null()
        && flags & !libc::MAP_NORESERVE == PLAIN
        && readable_and_writable(prot)
        && let Some(mapped) = metadata::map(whole_pages(len))
    {
        return pointer(mapped);
    }
    pointer(kernel(
        libc::SYS_mmap,
        [address as usize, len, prot as usize, flags as usize, fd as usize, offset as usize],
    ))
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_munmap(address: *mut c_void, len: usize) -> i32 {
    status(kernel(libc::SYS_munmap, [address as usize, len, 0, 0, 0, 0]))
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_madvise(address: *mut c_void, len: usize, advice: i32) -> i32 {
    status(kernel(libc::SYS_madvise, [address as usize, len, advice as usize, 0, 0, 0]))
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_mprotect(address: *mut c_void, len: usize, prot: i32) -> i32 {
    status(kernel(libc::SYS_mprotect, [address as usize, len, prot as usize, 0, 0, 0]))
}

/// A range of ours for what jemalloc maps for itself, above all its metadata: see
/// `terrace_os::space`.
mod metadata {
    use std::sync::atomic::{AtomicUsize, Ordering::*};
    use terrace_os::Errno;
    use terrace_os::space::Span;

    const RANGE: usize = 1 << 40;
    const RESERVED: usize = 64 << 20;
    /// Size and alignment of jemalloc's blocks, bytes. It maps more than it needs where a block is
    /// not aligned.
    const BLOCK: usize = 2 << 20;
    /// Maximum number of attempts, where the program has mapped something in the range.
    const TRIES: usize = 8;

    static START: AtomicUsize = AtomicUsize::new(0);
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    /// Bytes handed out; [`NOT_YET`] before the first.
    static USED: AtomicUsize = AtomicUsize::new(NOT_YET);
    const NOT_YET: usize = usize::MAX;
    const BEING_MADE: usize = usize::MAX - 1;
    const NONE: usize = usize::MAX - 2;

    /// Maps `len` bytes of the range. Takes no lock, for a fork may come at any time. `None`: there
    /// is no range, or it is used up.
    pub fn map(len: usize) -> Option<Result<usize, Errno>> {
        begin();
        let mut result = Err(Errno::ENOMEM);
        for _ in 0..TRIES {
            let offset = take(len)?;
            let span = Span { start: START.load(Relaxed), reserved: FIRST.load(Relaxed) };
            let start = span.start + offset;
            // SAFETY: this part was given to no other caller.
            result = unsafe { span.open(start, len) }.map(|()| start);
            if result != Err(Errno::EEXIST) {
                break;
            }
        }
        Some(result)
    }

    /// Makes the range. The first allocation of all gets here, before the program has a second
    /// thread.
    fn begin() {
        if USED.compare_exchange(NOT_YET, BEING_MADE, AcqRel, Acquire).is_err() {
            return;
        }
        let span = Span::new(RANGE, RESERVED).ok();
        if let Some(span) = span {
            START.store(span.start, Relaxed);
            FIRST.store(span.reserved, Relaxed);
        }
        USED.store(if span.is_some() { 0 } else { NONE }, Release);
    }

    /// Takes `len` bytes of the range; returns where they are.
    fn take(len: usize) -> Option<usize> {
        let mut used = USED.load(Acquire);
        loop {
            if used >= NONE {
                return None;
            }
            let offset = if len >= BLOCK { used.next_multiple_of(BLOCK) } else { used };
            let end = offset.checked_add(len).filter(|end| *end <= RANGE)?;
            match USED.compare_exchange_weak(used, end, AcqRel, Acquire) {
                Ok(_) => return Some(offset),
                Err(seen) => used = seen,
            }
        }
    }
}
