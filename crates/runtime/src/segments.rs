//! Memory that no mapping of the program's own makes: variables that begin as zeros (`.bss`), of
//! the program and of the libraries that are loaded with it, and what `brk` and `sbrk` hand out.
//! It is private and anonymous as any other, and managed as any other.
//!
//! Not `.data`: those pages are copies of a file's, for which no userfaultfd tells of a fault. Nor
//! what libraries have that are loaded after this one's constructor.

use crate::mappings::{kernel, pager, pointer, status};
use crate::processes::Next;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use terrace_pager::Pager;
use terrace_pager::ranges::MANAGED_FROM;
use terrace_pager::sys::{Errno, PAGE};

/// At the beginning of a program's zeros (GNU ld), or at their end (gold, lld), its linker puts the C
/// library's variables that the program names (copy relocations: `environ`, `stdout`). They are read
/// where no page may be missing, and take a page or two.
const COPIED_BYTES: usize = 64 << 10;

/// Where the break was when the program began. What is below is none of ours.
static FIRST_BREAK: AtomicUsize = AtomicUsize::new(0);

/// Takes the zeros of everything that is loaded under management, but not those of this library, of
/// the C library and of the loader: what they hold is read where no page may be missing. Called
/// before the program's first instruction.
pub fn manage_static(pager: &'static Pager) {
    FIRST_BREAK.store(break_now(), Relaxed);
    let mut found = Found { pager, ours: [0; 3] };
    // SAFETY: asks what the kernel told this process; a function of the C library's, and of ours.
    found.ours = unsafe {
        [
            libc::getauxval(libc::AT_BASE) as usize,
            base_of(libc::getauxval as *const c_void),
            base_of(manage_static as *const c_void),
        ]
    };
    // SAFETY: the callback has this signature, and gets what is alive until the call is over.
    unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut found).cast()) };
}

struct Found {
    pager: &'static Pager,
    /// Where those are loaded of which nothing is managed.
    ours: [usize; 3],
}

/// Where the file is loaded that has this function; 0 if there is none.
///
/// # Safety
/// `function` is one, or null.
pub unsafe fn base_of(function: *const c_void) -> usize {
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader writes the description, for which zeros are valid too.
    unsafe {
        libc::dladdr(function, about.as_mut_ptr());
        about.assume_init().dli_fbase as usize
    }
}

unsafe extern "C" fn look_at(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader's description of one file, and what `manage_static` passed.
    let (info, found) = unsafe { (&*info, &*found.cast::<Found>()) };
    let base = info.dlpi_addr as usize;
    if found.ours.contains(&base) || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: so many headers are there, as the loader says.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        if let Some((start, end)) = zeros_of(header) {
            found.pager.manage(base.wrapping_add(start), end - start, true);
        }
    }
    0
}

/// The pages of a part of a file, as addresses in that file, that begin as zeros and can be
/// managed: those behind its last page in the file, but for both ends.
fn zeros_of(header: &libc::Elf64_Phdr) -> Option<(usize, usize)> {
    const RIGHTS: u32 = libc::PF_R | libc::PF_W | libc::PF_X;
    let (address, in_file, size) =
        (header.p_vaddr as usize, header.p_filesz as usize, header.p_memsz as usize);
    let end =
        address.checked_add(size)?.checked_next_multiple_of(PAGE)?.checked_sub(COPIED_BYTES)?;
    let start = address.checked_add(in_file)?.checked_next_multiple_of(PAGE)? + COPIED_BYTES;
    let is_written = header.p_flags & RIGHTS == libc::PF_R | libc::PF_W;
    (is_written && end.saturating_sub(start) >= MANAGED_FROM).then_some((start, end))
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
        _ => moving(break_now().checked_add_signed(by), || real(by)),
    }
}

fn next_sbrk() -> Option<extern "C" fn(isize) -> *mut c_void> {
    let real = SBRK.get();
    // SAFETY: the C library's function of this name has this signature.
    (!real.is_null()).then(|| unsafe { std::mem::transmute(real) })
}

/// The same by number.
pub fn by_number(end: usize) -> Result<usize, Errno> {
    let act = || kernel(libc::SYS_brk, [end, 0, 0, 0, 0, 0]);
    // That is how it is asked for.
    if end == 0 { act() } else { moving(Some(end), act) }
}

/// Where the kernel has the break.
fn break_now() -> usize {
    kernel(libc::SYS_brk, [0; 6]).unwrap_or(0)
}

/// The program moves its break `to` there, by `act`. Whether it did is for the kernel to say: to
/// the C library a break that could not be lowered is one that is high enough.
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
    let answer = act();
    if until > from && break_now() == to {
        pager.manage(from, until - from, true);
        terrace_alloc::poll();
    }
    answer
}

/// What `sbrk` means inside the library (see build.rs): jemalloc may take memory so when there is
/// no other, and manages it itself.
#[unsafe(no_mangle)]
extern "C" fn __wrap_sbrk(by: isize) -> *mut c_void {
    next_sbrk().map_or(libc::MAP_FAILED, |real| real(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u32, address: usize, in_file: usize, size: usize) -> libc::Elf64_Phdr {
        libc::Elf64_Phdr {
            p_type: libc::PT_LOAD,
            p_flags: flags,
            p_offset: 0,
            p_vaddr: address as u64,
            p_paddr: 0,
            p_filesz: in_file as u64,
            p_memsz: size as u64,
            p_align: PAGE as u64,
        }
    }

    #[test]
    fn zeros_behind_the_file_are_managed_where_they_are_many() {
        let written = libc::PF_R | libc::PF_W;
        let found = |flags, size| zeros_of(&header(flags, 0x3010, 0x100, size));
        assert_eq!(
            found(written, 1 << 20),
            Some((0x4000 + COPIED_BYTES, 0x4000 + (1 << 20) - COPIED_BYTES))
        );
        assert_eq!(found(written, 2 * COPIED_BYTES + MANAGED_FROM - PAGE), None);
        assert_eq!(found(written | libc::PF_X, 1 << 20), None);
        assert_eq!(found(libc::PF_R, 1 << 20), None);
        assert_eq!(found(written, usize::MAX), None);
    }
}
