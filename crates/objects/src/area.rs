//! Reserved address ranges: of the objects, whose pages a tiering system may move out; and of their
//! metadata, which stays in memory.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// An anonymous private mapping. The kernel allocates its memory as it is touched.
pub struct Area {
    start: NonNull<u8>,
    len: usize,
    mapped: (NonNull<u8>, usize),
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Area {}
// SAFETY: its methods hand out addresses and words that are atomic.
unsafe impl Sync for Area {}

impl Area {
    /// Reserves `len` bytes that begin at a multiple of `alignment`, a power of two of at least a
    /// page.
    pub fn reserve(len: usize, alignment: usize) -> io::Result<Area> {
        let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
        let whole = len.checked_add(alignment).ok_or_else(too_large)?;
        // SAFETY: a new mapping wherever the kernel has room: no memory in use changes.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = NonNull::new(mapped.cast::<u8>()).ok_or_else(too_large)?;
        let skipped = mapped.as_ptr().align_offset(alignment);
        // SAFETY: `skipped` is below `alignment`, by which the mapping is longer than `len`.
        let start = unsafe { mapped.add(skipped) };
        Ok(Area { start, len, mapped: (mapped, whole) })
    }

    /// Reserves `count` words, all zero, and asks the kernel to keep those in memory that are used.
    /// It may refuse (RLIMIT_MEMLOCK); then they can be swapped like all memory.
    pub fn words(count: usize) -> io::Result<Area> {
        let area = Area::reserve(count * size_of::<u64>(), PAGE)?;
        // SAFETY: locks pages of our own mapping as they come; changes no contents.
        unsafe {
            libc::syscall(libc::SYS_mlock2, area.start.as_ptr(), area.len, libc::MLOCK_ONFAULT)
        };
        Ok(area)
    }

    /// Address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The area as words, if it was made by [`Area::words`].
    pub fn as_words(&self) -> &[AtomicU64] {
        // SAFETY: mapped for as long as `self`, aligned to a page, initialised with zeros by the
        // kernel, and accessed as atomic words only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }

    /// Says whether pages of the area should be huge.
    pub fn huge(&self, wanted: bool) {
        let advice = if wanted { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: advice about our own mapping; contents stay.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, advice) };
    }

    /// Gives the memory of a part, of whole pages, back. The part reads as zeros then.
    ///
    /// # Safety
    /// No thread reads or writes that part meanwhile, or needs what it holds.
    pub unsafe fn discard(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "beyond the area");
        // SAFETY: within our mapping, as checked; the caller lets the contents go.
        unsafe { libc::madvise(self.start.as_ptr().add(offset).cast(), len, libc::MADV_DONTNEED) };
    }

    /// Sets one byte for each page of a part: bit 0 says whether the page is in memory. Where the
    /// kernel does not say, all pages count as in memory.
    pub fn residency(&self, offset: usize, pages: &mut [u8]) {
        assert!(offset + pages.len() * PAGE <= self.len, "beyond the area");
        // SAFETY: the range is ours, as checked, and `pages` has a byte for each of its pages.
        let status = unsafe {
            libc::mincore(
                self.start.as_ptr().add(offset).cast(),
                pages.len() * PAGE,
                pages.as_mut_ptr(),
            )
        };
        if status != 0 {
            pages.fill(1);
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping that `reserve` made, which no thread uses once this is dropped.
        unsafe { libc::munmap(self.mapped.0.as_ptr().cast(), self.mapped.1) };
    }
}
