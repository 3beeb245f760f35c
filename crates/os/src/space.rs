//! Where in the address space the library's own memory is.
//!
//! A mapping without an address goes where the kernel likes: into the highest hole. The program may
//! have made that hole a moment ago, and may be about to map over it (`MAP_FIXED`): whatever lies
//! there then is replaced. So all memory of the library lies in one *area* far from there. Its
//! addresses are given out front to back, to ranges that are reserved in part. The rest of a range
//! is mapped as it is used, and only where nothing is (`MAP_FIXED_NOREPLACE`). What is not mapped
//! counts nowhere: not in the program's virtual size, nor against a limit.
//!
//! The area begins at random, by the kernel's own choice for this process, and at the same place
//! wherever that choice is switched off. Where there is no such area (address spaces of 39 bits),
//! ranges are reserved as a whole, where the kernel likes.

use crate::maps::{
    allow_access, map_anywhere, map_exactly, map_shared_anywhere, map_where_nothing_is,
    unlock_memory, unmap,
};
use crate::types::{Errno, Fd, PAGE, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use syscalls::{Sysno, syscall};

/// Between what address sanitizers and collectors lay out by themselves (below 40 TiB) and programs
/// that are loaded anywhere (from 84 TiB on).
const LOWEST: usize = 40 << 40;
const END: usize = 84 << 40;
/// Places where the area may begin, [`BLOCK`] apart: 8 TiB.
const PLACES: usize = 1 << 22;
/// Ranges of this size and more are aligned to it.
const BLOCK: usize = 2 << 20;

/// Where the area begins; 0: not chosen yet.
static BEGIN: AtomicUsize = AtomicUsize::new(0);
/// Where the next range of the area begins; 0: the area is not chosen yet.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Value of [`BEGIN`] and [`NEXT`] where there is no area.
const KERNEL_CHOOSES: usize = usize::MAX;

/// Ranges that lie elsewhere, with their ends; those that there is no room for are taken for the
/// program's.
static ELSEWHERE: [(AtomicUsize, AtomicUsize); 32] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 32];
static ELSEWHERE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A range of addresses of the library's own.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First byte of the range.
    pub start: usize,
    /// Bytes from `start` on that are mapped, without access. The rest is not mapped.
    pub reserved: usize,
}

impl Span {
    /// A range of `len` bytes, of which the first `reserved` are reserved at once, or as many as
    /// the address space is limited to. Where there is no area, all of it is reserved.
    pub fn new(len: usize, reserved: usize) -> Result<Span, Errno> {
        let len = whole_pages(len)?;
        for _ in 0..TRIES {
            let start = match addresses(len) {
                Ok(start) => start,
                Err(Lack::Room) => return Err(Errno::ENOMEM),
                Err(Lack::Area) => break,
            };
            let mut wanted = reserved.min(len).next_multiple_of(PAGE);
            loop {
                match (wanted > 0).then(|| map_where_nothing_is(start, wanted, libc::PROT_NONE)) {
                    None | Some(Ok(())) => return Ok(Span { start, reserved: wanted }),
                    Some(Err(Errno::EEXIST)) => break,
                    Some(Err(_)) => wanted = wanted / 4 / PAGE * PAGE,
                }
            }
        }
        let start = elsewhere(len, libc::PROT_NONE)?;
        Ok(Span { start, reserved: len })
    }

    /// Makes a part readable and writable that was not yet. Nothing has changed where that fails.
    /// [`Errno::EEXIST`] says that the program has mapped something there.
    ///
    /// # Safety
    /// The part lies in the range, begins and ends at pages, and was never opened.
    pub unsafe fn open(&self, start: usize, len: usize) -> Result<(), Errno> {
        let (end, border) = (start + len, self.start + self.reserved);
        let beyond = end.saturating_sub(border.max(start));
        if beyond > 0 {
            map_where_nothing_is(end - beyond, beyond, libc::PROT_READ | libc::PROT_WRITE)?;
            do_not_lock(end - beyond, beyond);
        }
        if len > beyond {
            // SAFETY: inside what is reserved of our own range, by the caller's promise.
            let allowed = unsafe { allow_access(start, len - beyond) };
            if allowed.is_err() && beyond > 0 {
                // SAFETY: mapped above, and used nowhere else.
                unsafe { unmap(end - beyond, beyond) };
            }
            return allowed;
        }
        Ok(())
    }

    /// Takes back an opening that was not used.
    ///
    /// # Safety
    /// The part was opened as a whole, and is not touched before it is opened again.
    pub unsafe fn shut(&self, start: usize, len: usize) {
        let beyond = (start + len).saturating_sub((self.start + self.reserved).max(start));
        if beyond > 0 {
            // SAFETY: the caller's promise. (What is reserved may be opened twice.)
            unsafe { unmap(start + len - beyond, beyond) };
        }
    }
}

/// How often other addresses are tried where something is mapped already.
const TRIES: usize = 8;

/// Whether the program has all new mappings locked in memory (MCL_FUTURE); ours need not be.
pub static LOCKS_NEW_MAPPINGS: AtomicBool = AtomicBool::new(false);

/// Maps `len` bytes of our own; `map` does it, at an address where it must not replace anything, or
/// anywhere (0).
pub fn map(len: usize, map: impl Fn(usize) -> Result<usize, Errno>) -> Result<usize, Errno> {
    let len = whole_pages(len)?;
    for _ in 0..TRIES {
        let Ok(start) = addresses(len) else { break };
        match map(start) {
            Err(Errno::EEXIST) => {}
            result => return result.inspect(|start| do_not_lock(*start, len)),
        }
    }
    map(0).inspect(|start| {
        do_not_lock(*start, len);
        note_elsewhere(*start, len);
    })
}

/// Unlocks a mapping of ours that was just made, where new mappings are locked.
fn do_not_lock(start: usize, len: usize) {
    if LOCKS_NEW_MAPPINGS.load(Relaxed) {
        unlock_memory(start, len);
    }
}

fn elsewhere(len: usize, prot: i32) -> Result<usize, Errno> {
    map_anywhere(len, prot).inspect(|start| note_elsewhere(*start, len))
}

fn note_elsewhere(start: usize, len: usize) {
    if let Some((from, to)) = ELSEWHERE.get(ELSEWHERE_COUNT.fetch_add(1, Relaxed)) {
        to.store(start + len, Relaxed);
        from.store(start, Release);
    }
}

fn whole_pages(len: usize) -> Result<usize, Errno> {
    len.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)
}

/// Why no addresses are given out: there is no area, or no room in it.
enum Lack {
    Area,
    Room,
}

/// Addresses that were not given out before.
fn addresses(len: usize) -> Result<usize, Lack> {
    let mut next = NEXT.load(Acquire);
    if next == 0 {
        let chosen = choose().unwrap_or(KERNEL_CHOOSES);
        // Before the first thread of the program, mostly. The first thread to get here decides.
        if BEGIN.compare_exchange(0, chosen, AcqRel, Acquire).is_ok() {
            NEXT.store(chosen, Release);
        }
        while NEXT.load(Acquire) == 0 {
            std::hint::spin_loop();
        }
        next = NEXT.load(Acquire);
    }
    loop {
        if next == KERNEL_CHOOSES {
            return Err(Lack::Area);
        }
        // Large ones are never next to another: the kernel would make one mapping of both.
        let start = if len >= BLOCK { (next + PAGE).next_multiple_of(BLOCK) } else { next };
        let end = start.checked_add(len).filter(|end| *end <= END).ok_or(Lack::Room)?;
        match NEXT.compare_exchange_weak(next, end, AcqRel, Acquire) {
            Ok(_) => return Ok(start),
            Err(seen) => next = seen,
        }
    }
}

/// Where the area begins; `None` if it cannot be had.
fn choose() -> Option<usize> {
    let probe = map_anywhere(PAGE, libc::PROT_NONE).ok()?;
    // SAFETY: mapped here, and used nowhere else.
    unsafe { unmap(probe, PAGE) };
    let begin = LOWEST + probe / PAGE % PLACES * BLOCK;
    map_where_nothing_is(begin, PAGE, libc::PROT_NONE).ok()?;
    // SAFETY: as above.
    unsafe { unmap(begin, PAGE) };
    Some(begin)
}

/// The ranges in which nothing is the program's but what the allocator has given it.
pub fn ours() -> Vec<(usize, usize)> {
    let area = (BEGIN.load(Acquire), NEXT.load(Acquire));
    let elsewhere = ELSEWHERE.iter().map(|(start, end)| (start.load(Acquire), end.load(Relaxed)));
    std::iter::once(area)
        .chain(elsewhere)
        .filter(|(start, end)| *start != 0 && *start < *end)
        .collect()
}

/// Reserves `len` bytes of private address space, readable and writable, that cost nothing until
/// touched. Not where the program may map next: see [`crate::space`].
pub fn reserve(len: usize) -> Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    map(len, |at| {
        if at == 0 {
            map_anywhere(len, prot)
        } else {
            map_where_nothing_is(at, len, prot).map(|()| at)
        }
    })
}

/// Reserves address space without access; see [`allow_access`].
pub fn reserve_without_access(len: usize) -> Result<usize> {
    Span::new(len, len).and_then(|span| {
        if span.reserved >= len {
            return Ok(span.start);
        }
        // SAFETY: reserved here, and used nowhere else.
        unsafe { unmap(span.start, span.reserved) };
        Err(Errno::ENOMEM)
    })
}

/// Maps `len` bytes of the open file `fd`, shared.
pub fn map_shared(fd: Fd, len: usize) -> Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    map(len, |at| match at {
        0 => map_shared_anywhere(fd, len),
        at => map_exactly(at, len, prot, libc::MAP_SHARED, fd),
    })
}

/// Maps `len` bytes of zeros that forked children share.
pub fn share_with_children(len: usize) -> Result<usize> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    map(len, |at| match at {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        0 => unsafe { syscall!(Sysno::mmap, 0, len, prot, flags, -1isize, 0) },
        at => map_exactly(at, len, prot, flags, -1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: usize) {
        // SAFETY: an open byte of a range of the test's own.
        unsafe { (at as *mut u8).write_volatile(7) };
    }

    #[test]
    fn a_range_is_opened_within_beyond_and_across_what_is_reserved() {
        let span = Span::new(8 * BLOCK, BLOCK).unwrap();
        assert_eq!(span.reserved, BLOCK);
        // SAFETY: parts of the range, each opened once.
        unsafe {
            span.open(span.start, PAGE).unwrap();
            span.open(span.start + BLOCK - PAGE, 2 * PAGE).unwrap();
            span.open(span.start + 4 * BLOCK, BLOCK).unwrap();
        }
        [0, BLOCK - PAGE, BLOCK, 4 * BLOCK, 5 * BLOCK - 1]
            .into_iter()
            .for_each(|offset| write(span.start + offset));
        // SAFETY: the part is not in use.
        unsafe {
            span.shut(span.start + BLOCK - PAGE, 2 * PAGE);
            span.open(span.start + BLOCK - PAGE, 2 * PAGE).unwrap();
        }
        write(span.start + BLOCK);
    }

    #[test]
    fn what_somebody_else_has_mapped_is_never_replaced() {
        let span = Span::new(4 * BLOCK, BLOCK).unwrap();
        let theirs = span.start + 2 * BLOCK;
        map_where_nothing_is(theirs, PAGE, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        write(theirs);
        // SAFETY: a part of the range; it fails.
        let opened = unsafe { span.open(span.start + BLOCK - PAGE, 2 * BLOCK) };
        assert_eq!(opened, Err(Errno::EEXIST));
        // SAFETY: mapped above.
        assert_eq!(unsafe { (theirs as *const u8).read_volatile() }, 7);
    }

    #[test]
    fn nothing_lies_where_the_kernel_puts_what_has_no_address() {
        let own = reserve(PAGE).unwrap();
        let hole = map_anywhere(64 * BLOCK, libc::PROT_NONE).unwrap();
        assert!(ours().iter().any(|(start, end)| (*start..*end).contains(&own)));
        assert!(own.abs_diff(hole) > 1 << 40, "{own:#x} {hole:#x}");
    }
}
