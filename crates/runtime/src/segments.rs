//! Memory that no mapping of the program's own makes: variables of the program that begin as zeros
//! (`.bss`), and what `brk` and `sbrk` hand out. It is private and anonymous as any other, and
//! managed as any other.
//!
//! Not `.data`: those pages are copies of a file's, for which no userfaultfd reports a fault. Nor
//! the data of libraries: their constructors run before this library's, so what they did to their
//! memory is not known. And nothing tells when the loader unmaps it.

use crate::mappings::{kernel, pager, pointer, status};
use crate::next::Next;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use terrace_os::{Errno, PAGE};
use terrace_pager::Pager;
use terrace_pager::table::REGION;

/// Bytes at both ends of a program's zeros that stay unmanaged. The linker puts variables of the C
/// library there that the program names (copy relocations: `environ`, `stdout`). GNU ld puts them
/// at the beginning, gold and lld at the end. They are read where no page may be missing, and take
/// a page or two.
const COPIED_BYTES: usize = 64 << 10;

/// Where the break was when the program began. Memory below is none of ours.
static FIRST_BREAK: AtomicUsize = AtomicUsize::new(0);
/// Whether a thread is moving the break.
static MOVING: AtomicBool = AtomicBool::new(false);

/// Takes the program's zeros under management. Called before the program's first instruction.
pub fn manage_static(pager: &'static Pager) {
    FIRST_BREAK.store(break_now(), Relaxed);
    // SAFETY: the callback has this signature, and the pager lives as long as the process.
    unsafe { libc::dl_iterate_phdr(Some(of_program), std::ptr::from_ref(pager) as *mut c_void) };
}

/// Load address of the file that has this function or variable; 0 if there is none.
pub fn base_of(address: *const c_void) -> usize {
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader looks the address up, and writes the description, for which zeros are
    // valid too.
    unsafe {
        libc::dladdr(address, about.as_mut_ptr());
        about.assume_init().dli_fbase as usize
    }
}

/// Called by the loader for the program first, and for nothing more if this returns 1.
unsafe extern "C" fn of_program(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    pager: *mut c_void,
) -> c_int {
    // SAFETY: the loader's description of one file, and what `manage_static` passed.
    let (info, pager) = unsafe { (&*info, &*pager.cast::<Pager>()) };
    // Functions that the handlers call may be the program's own, and use its variables.
    let called =
        [libc::memcpy as *const c_void, libc::memset as _, libc::memmove as _, libc::memcmp as _];
    let program = base_of(info.dlpi_phdr.cast());
    if info.dlpi_phdr.is_null() || called.into_iter().any(|function| base_of(function) == program) {
        return 1;
    }
    // SAFETY: as many headers are there as the loader says.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        if let Some((start, end)) = zeros_of(header, info.dlpi_addr as usize) {
            pager.manage(start, end - start, true);
        }
    }
    1
}

/// The whole regions among the zeros of a part that is loaded at `base`, except those at both ends.
/// A region that the loader has written to may have become a huge page, of which nothing is known.
/// The end of what it wrote is rounded up to the alignment of the part.
fn zeros_of(header: &libc::Elf64_Phdr, base: usize) -> Option<(usize, usize)> {
    const RIGHTS: u32 = libc::PF_R | libc::PF_W | libc::PF_X;
    let [address, in_file, size, align] =
        [header.p_vaddr, header.p_filesz, header.p_memsz, header.p_align]
            .map(|field| field as usize);
    let address = base.wrapping_add(address);
    let first = address.checked_add(in_file)?.checked_next_multiple_of(align.max(PAGE))?;
    let start = first.checked_add(COPIED_BYTES)?.checked_next_multiple_of(REGION)?;
    let end = address.checked_add(size)?.checked_sub(COPIED_BYTES)? / REGION * REGION;
    let is_written = header.p_flags & RIGHTS == libc::PF_R | libc::PF_W;
    (is_written && end > start).then_some((start, end))
}

static BRK: Next = Next::new(c"brk");
static SBRK: Next = Next::new(c"sbrk");

/// `brk`.
#[unsafe(no_mangle)]
extern "C" fn brk(end: *mut c_void) -> c_int {
    let real = BRK.get();
    if real.is_null() {
        return status(Err(Errno::ENOSYS));
    }
    // SAFETY: the C library's function of this name has this signature.
    let real: extern "C" fn(*mut c_void) -> c_int = unsafe { std::mem::transmute(real) };
    moving(Some(end as usize), || real(end))
}

/// `sbrk`.
#[unsafe(no_mangle)]
extern "C" fn sbrk(by: isize) -> *mut c_void {
    let Some(real) = next_sbrk() else { return pointer(Err(Errno::ENOSYS)) };
    match by {
        0 => real(0),
        _ => moving((real(0) as usize).checked_add_signed(by), || real(by)),
    }
}

fn next_sbrk() -> Option<extern "C" fn(isize) -> *mut c_void> {
    let real = SBRK.get();
    // SAFETY: the C library's function of this name has this signature.
    (!real.is_null()).then(|| unsafe { std::mem::transmute(real) })
}

/// Handles `SYS_brk` made by number, through `syscall`. Moves the break to `end`, or tells where it
/// is if `end` is 0.
pub fn by_number(end: usize) -> Result<usize, Errno> {
    let act = || kernel(libc::SYS_brk, [end, 0, 0, 0, 0, 0]);
    // 0 asks for the break.
    if end == 0 { act() } else { moving(Some(end), act) }
}

/// Where the kernel has the break.
fn break_now() -> usize {
    kernel(libc::SYS_brk, [0; 6]).unwrap_or(0)
}

/// Moves the program's break to `to`, by `act`. Afterwards the kernel is asked where it is: to the
/// C library a break that could not be lowered is one that is high enough.
fn moving<R>(to: Option<usize>, act: impl FnOnce() -> R) -> R {
    let whole_pages = |end: usize| end.checked_next_multiple_of(PAGE);
    let (Some(pager), Some(to)) = (pager(), to) else { return act() };
    let (Some(from), Some(until)) = (whole_pages(break_now()), whole_pages(to)) else {
        return act();
    };
    if until < from {
        let first = FIRST_BREAK.load(Relaxed).next_multiple_of(PAGE);
        let until = until.max(first).min(from);
        let mut answer = None;
        let _ = pager.unmap(until, from - until, || {
            answer = Some(act());
            if break_now() == to { Ok(()) } else { Err(Errno::ENOMEM) }
        });
        return answer.expect("what is to be done is done once");
    }
    pager.make_room(until - from);
    // If two threads move it at a time, it is not known which got what.
    let alone = !MOVING.swap(true, AcqRel);
    let from = whole_pages(break_now()).unwrap_or(from);
    let answer = act();
    if alone && until > from && break_now() == to {
        pager.manage(from, until - from, true);
        terrace_alloc::poll();
    }
    if alone {
        MOVING.store(false, Release);
    }
    answer
}

/// `sbrk` inside the library (see build.rs). jemalloc may take memory this way when there is no
/// other, and manages it itself.
#[unsafe(no_mangle)]
extern "C" fn __wrap_sbrk(by: isize) -> *mut c_void {
    next_sbrk().map_or(libc::MAP_FAILED, |real| real(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u32, in_file: usize, size: usize, align: usize) -> libc::Elf64_Phdr {
        libc::Elf64_Phdr {
            p_type: libc::PT_LOAD,
            p_flags: flags,
            p_offset: 0,
            p_vaddr: 0x3010,
            p_paddr: 0,
            p_filesz: in_file as u64,
            p_memsz: size as u64,
            p_align: align as u64,
        }
    }

    #[test]
    fn whole_regions_of_the_programs_zeros_are_managed() {
        const BASE: usize = 64 * REGION;
        let written = libc::PF_R | libc::PF_W;
        let found = |flags, size, align| {
            zeros_of(&header(flags, 0x100, size, align), BASE)
                .map(|(start, end)| ((start - BASE) / REGION, (end - BASE) / REGION))
        };
        assert_eq!(found(written, 5 * REGION, PAGE), Some((1, 4)));
        // The end lies in the last region, and less than what may be copied is in it.
        assert_eq!(found(written, 5 * REGION - 0x3010, PAGE), Some((1, 4)));
        assert_eq!(found(written, 5 * REGION - 0x3010 + COPIED_BYTES, PAGE), Some((1, 5)));
        // Aligned, the first of them begins a region, which stays.
        assert_eq!(found(written, 5 * REGION, REGION), Some((2, 4)));
        assert_eq!(found(written, REGION, PAGE), None);
        assert_eq!(found(written | libc::PF_X, 5 * REGION, PAGE), None);
        assert_eq!(found(libc::PF_R, 5 * REGION, PAGE), None);
        assert_eq!(found(written, usize::MAX, PAGE), None);
    }
}
