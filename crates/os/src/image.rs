//! The program or library that this code is part of, as it is mapped.

use crate::answers::{PAGE_IS_SWAPPED, Run};
use crate::pagemap::{PAGE_IS_PRESENT, read_entries};
use crate::types::{Fd, PAGE};
use syscalls::{Sysno, syscall};

/// Takes the code and constants of the program or library that this is part of out of the page
/// table. What is needed again is mapped again from the page cache, 64 KiB at a time; most of it
/// was needed to start. Pages that were changed (by a debugger's breakpoints) stay, with all around
/// them.
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
