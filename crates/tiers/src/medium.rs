//! The memory under the pools, in extents of 512 KiB. (Files, which are read and written and not
//! mapped, are in [`crate::file`].)
//!
//! Invariants: an extent belongs to one owner from `allocate` to `release`. Memory comes and goes
//! by raw system calls (libc's `mmap` is interposed by the library this runs in). What is released
//! goes back to the system at once.

use std::io;
use std::ptr::NonNull;
use syscalls::{Errno, Sysno, syscall};
use terrace_os::lock::{Lock, LockGuard};

use crate::page::PAGE_BYTES;

/// Bytes in an extent: what a 16-bit offset in 8-byte units reaches.
pub const EXTENT_BYTES: usize = 8 << 16;

/// Why a medium gave no memory.
#[derive(Debug, thiserror::Error)]
pub enum MediumError {
    /// The reservation could not be made.
    #[error(
        "cannot reserve {bytes} bytes of address space: {source}; reserve less, or raise `ulimit -v`"
    )]
    Reserve {
        /// How much was asked for.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A reservation of nothing, or of more than there are addresses.
    #[error(
        "a medium of {bytes} bytes is not possible: reserve at least one byte and at most 2^47"
    )]
    Size {
        /// How much was asked for.
        bytes: usize,
    },
    /// Every extent is taken.
    #[error(
        "all {reserved_bytes} reserved bytes are in use: reserve more, or restore or repack pages first"
    )]
    Exhausted {
        /// The size of the reservation.
        reserved_bytes: usize,
    },
    /// Something cannot be done with a file of the file medium.
    #[error("cannot {doing} a file in {directory}: {source}{}", remedy(.source))]
    File {
        /// What failed: `make`, `write`, `read`, …
        doing: &'static str,
        /// Where the file is.
        directory: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused to make an extent accessible.
    #[error(
        "the kernel gives no memory for another extent: {source}; see vm.overcommit_memory and vm.max_map_count"
    )]
    Commit {
        /// What the kernel said.
        source: io::Error,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => "; name a directory that exists",
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            "; name a directory that this user can write to"
        }
        Some(libc::ENOSPC | libc::EDQUOT) => {
            "; free some space there, or name a directory on a larger file system"
        }
        Some(libc::EFBIG) => "; see `ulimit -f`",
        Some(libc::EOPNOTSUPP) => {
            "; name a directory on another file system, such as ext4, xfs or tmpfs"
        }
        _ => "",
    }
}

/// Gives and takes extents of memory.
///
/// # Safety
/// From `allocate` until `release` of the same extent (or until the medium is dropped),
/// [`EXTENT_BYTES`] at the returned address must be:
/// - readable and writable;
/// - private to this process and given to no other caller;
/// - kept as written, except for a range given to `release_part`.
///
/// Pools read and write there without further checks.
pub unsafe trait Medium: Send + Sync {
    /// An extent of [`EXTENT_BYTES`], aligned to 4096, that costs no memory until touched. It reads
    /// as zeros, unless the system refused to take its memory back at an earlier `release`.
    ///
    /// # Errors
    /// [`MediumError`] if there is no extent left or the kernel refuses. Nothing has changed then.
    fn allocate(&self) -> Result<NonNull<u8>, MediumError>;

    /// Takes a whole extent back: its memory goes to the system and the extent can be allocated
    /// again. The caller uses it no more. An address that is no allocated extent is ignored: to
    /// leak is better than to free what is another's.
    fn release(&self, extent: NonNull<u8>);

    /// Gives the memory of bytes `from..to` of an allocated extent to the system; they read as
    /// zeros later and may be written again. Both page-aligned and within the extent, `from <=
    /// to`; otherwise the call is ignored.
    fn release_part(&self, extent: NonNull<u8>, from: usize, to: usize);
}

/// Plain private memory: one range of addresses, carved into extents. A fork copies it on write.
pub struct DramMedium {
    base: NonNull<u8>,
    slots: usize,
    /// Makes a part of the range accessible.
    open: Open,
    /// Whether the range is the medium's own, to be unmapped with it.
    owned: bool,
    state: Lock<Slots>,
}

/// Makes a part of a medium's range readable and writable that was not so far: first address and
/// bytes.
pub type Open = Box<dyn Fn(usize, usize) -> Result<(), Errno> + Send + Sync>;

/// The extents in use. The lowest is taken first, so that the accessible ones stay together: the
/// reservation costs two mappings.
struct Slots {
    /// Bits of the extents, one each, set while the extent is allocated.
    used: Vec<u64>,
    /// No word of `used` below this one has a clear bit.
    first_free_word: usize,
    /// Extents below this one have been made accessible, and stay so.
    opened: usize,
    allocated: usize,
}

// SAFETY: `base` is the address of a range that is the medium's and that it never itself reads or
// writes. All that changes is behind the mutex.
unsafe impl Send for DramMedium {}
// SAFETY: as for Send.
unsafe impl Sync for DramMedium {}

impl DramMedium {
    /// Reserves address space, without memory, for `reserve_bytes` (rounded up to whole extents).
    ///
    /// # Errors
    /// [`MediumError::Size`] for 0 or more than 2^47. [`MediumError::Reserve`] if the kernel
    /// refuses.
    pub fn new(reserve_bytes: usize) -> Result<Self, MediumError> {
        if reserve_bytes == 0 || reserve_bytes > 1 << 47 {
            return Err(MediumError::Size { bytes: reserve_bytes });
        }
        let slots = reserve_bytes.div_ceil(EXTENT_BYTES);
        let bytes = slots * EXTENT_BYTES;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that
        // exists.
        let address = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            syscall!(Sysno::mmap, 0, bytes, libc::PROT_NONE, flags, -1isize, 0)
        };
        let address =
            address.map_err(|errno| MediumError::Reserve { bytes, source: from_errno(errno) })?;
        let Some(base) = NonNull::new(address as *mut u8) else {
            return Err(MediumError::Reserve { bytes, source: io::ErrorKind::OutOfMemory.into() });
        };
        let open: Open = Box::new(|start, bytes| {
            // SAFETY: only called for extents of the reservation made here that are not in use.
            unsafe { syscall!(Sysno::mprotect, start, bytes, libc::PROT_READ | libc::PROT_WRITE) }
                .map(drop)
        });
        Ok(DramMedium::of(base, slots, open, true))
    }

    /// A medium over `bytes` (whole extents) of addresses from `start` on. `open` makes them
    /// accessible, front to back.
    ///
    /// # Errors
    /// [`MediumError::Size`] for no address, or for less than an extent.
    ///
    /// # Safety
    /// Nothing else uses the range for as long as the medium lives. What `open` was called for and
    /// made accessible is private memory of zeros.
    pub unsafe fn over(start: usize, bytes: usize, open: Open) -> Result<Self, MediumError> {
        let (base, slots) = (NonNull::new(start as *mut u8), bytes / EXTENT_BYTES);
        let base = base.filter(|_| slots > 0).ok_or(MediumError::Size { bytes })?;
        Ok(DramMedium::of(base, slots, open, false))
    }

    fn of(base: NonNull<u8>, slots: usize, open: Open, owned: bool) -> Self {
        let state = Slots {
            used: vec![0; slots.div_ceil(64)],
            first_free_word: 0,
            opened: 0,
            allocated: 0,
        };
        DramMedium { base, slots, open, owned, state: Lock::new(state) }
    }

    /// First address of the reservation and the address after its last.
    pub fn range(&self) -> (usize, usize) {
        let start = self.base.as_ptr().addr();
        (start, start + self.reserved_bytes())
    }

    /// The size of the reservation in bytes.
    pub fn reserved_bytes(&self) -> usize {
        self.slots * EXTENT_BYTES
    }

    /// The extents in use, in bytes; how much of them is touched is the pools' knowledge.
    pub fn allocated_bytes(&self) -> usize {
        self.lock().allocated * EXTENT_BYTES
    }

    /// Locks the state. Every path below leaves it whole before anything that could panic.
    fn lock(&self) -> LockGuard<'_, Slots> {
        self.state.lock()
    }

    fn slot_address(&self, slot: usize) -> NonNull<u8> {
        debug_assert!(slot < self.slots);
        // SAFETY: `slot < self.slots`, so the result lies within the reservation.
        unsafe { self.base.add(slot * EXTENT_BYTES) }
    }

    /// The slot that starts at `extent`, if there is one.
    fn slot_of(&self, extent: NonNull<u8>) -> Option<usize> {
        let offset = extent.as_ptr().addr().checked_sub(self.base.as_ptr().addr())?;
        let slot = offset / EXTENT_BYTES;
        (offset.is_multiple_of(EXTENT_BYTES) && slot < self.slots).then_some(slot)
    }
}

impl Slots {
    fn lowest_free(&self, slots: usize) -> Option<usize> {
        let word =
            (self.first_free_word..self.used.len()).find(|&word| self.used[word] != u64::MAX)?;
        let slot = word * 64 + self.used[word].trailing_ones() as usize;
        (slot < slots).then_some(slot)
    }

    fn is_used(&self, slot: usize) -> bool {
        self.used[slot / 64] >> (slot % 64) & 1 == 1
    }

    fn take(&mut self, slot: usize) {
        self.used[slot / 64] |= 1 << (slot % 64);
        // `slot` was the lowest free one.
        self.first_free_word = slot / 64;
        self.allocated += 1;
    }

    /// Takes a slot for ever: it belongs to no pool.
    fn lose(&mut self, slot: usize) {
        self.used[slot / 64] |= 1 << (slot % 64);
    }

    fn give(&mut self, slot: usize) {
        self.used[slot / 64] &= !(1 << (slot % 64));
        self.first_free_word = self.first_free_word.min(slot / 64);
        self.allocated -= 1;
    }
}

// SAFETY: a slot is handed out while its bit is clear, under the lock, and its bit stays set until
// `release`. It is made readable and writable before, in a private mapping that lives as long as
// the medium. Memory is dropped only for a slot whose bit is set, at its owner's request.
unsafe impl Medium for DramMedium {
    fn allocate(&self) -> Result<NonNull<u8>, MediumError> {
        let mut state = self.lock();
        let exhausted = MediumError::Exhausted { reserved_bytes: self.reserved_bytes() };
        let Some(mut slot) = state.lowest_free(self.slots) else { return Err(exhausted) };
        // Every slot below `opened` was opened before (lowest first), so one that was not is the
        // next.
        while slot >= state.opened {
            debug_assert_eq!(slot, state.opened);
            let extent = self.slot_address(slot);
            match (self.open)(extent.as_ptr().addr(), EXTENT_BYTES) {
                Ok(()) => {
                    // A huge page would back 2 MiB where a few pages are packed, and
                    // `physical_bytes` would be wrong. Kernels without huge pages say EINVAL, which
                    // is as good.
                    advise(extent, EXTENT_BYTES, libc::MADV_NOHUGEPAGE);
                    state.opened = slot + 1;
                }
                // Other code has mapped something in the range: what it covers is never used.
                Err(Errno::EEXIST) => {
                    state.opened = slot + 1;
                    state.lose(slot);
                    let Some(next) = state.lowest_free(self.slots) else { return Err(exhausted) };
                    slot = next;
                }
                Err(errno) => return Err(MediumError::Commit { source: from_errno(errno) }),
            }
        }
        state.take(slot);
        Ok(self.slot_address(slot))
    }

    fn release(&self, extent: NonNull<u8>) {
        let Some(slot) = self.slot_of(extent) else { return };
        if !self.lock().is_used(slot) {
            return;
        }
        // Outside the lock, since it takes a while, and before the slot can be given to another.
        drop_memory(extent, EXTENT_BYTES);
        self.lock().give(slot);
    }

    fn release_part(&self, extent: NonNull<u8>, from: usize, to: usize) {
        let aligned = from.is_multiple_of(PAGE_BYTES) && to.is_multiple_of(PAGE_BYTES);
        let Some(slot) = self.slot_of(extent) else { return };
        if !aligned || from >= to || to > EXTENT_BYTES || !self.lock().is_used(slot) {
            return;
        }
        // SAFETY: `from < to <= EXTENT_BYTES`: within the extent.
        drop_memory(unsafe { extent.add(from) }, to - from);
    }
}

impl Drop for DramMedium {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // SAFETY: the reservation is ours, and any holder of an extent holds the medium too (its
        // contract).
        let _ = unsafe { syscall!(Sysno::munmap, self.base.as_ptr(), self.reserved_bytes()) };
    }
}

/// `MADV_DONTNEED_LOCKED`, since Linux 5.18; libc has no name for it on every target.
const MADV_DONTNEED_LOCKED: i32 = 24;

/// Gives memory to the system. A range locked by the program's `mlockall` refuses the plain request
/// with EINVAL. Where both are refused the memory stays, which costs memory and nothing else.
fn drop_memory(start: NonNull<u8>, bytes: usize) {
    if !advise(start, bytes, libc::MADV_DONTNEED) {
        advise(start, bytes, MADV_DONTNEED_LOCKED);
    }
}

fn advise(start: NonNull<u8>, bytes: usize, advice: i32) -> bool {
    // SAFETY: only called for page-aligned ranges of our own reservation whose content is not
    // needed (MADV_DONTNEED*), or with advice that does not change content.
    unsafe { syscall!(Sysno::madvise, start.as_ptr(), bytes, advice) }.is_ok()
}

pub(crate) fn from_errno(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.into_raw())
}
