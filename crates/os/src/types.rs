//! What all calls share: a page, a descriptor, an error.

pub use syscalls::Errno;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Bytes of a region, aligned: what a huge page is on x86-64 and AArch64.
pub const REGION: usize = 2 << 20;

/// What a call answers.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// An error of the kernel's as the standard library has it, with the same number.
pub fn io_error(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.into_raw())
}

/// The address that the kernel takes, in calls that manage memory, where a program passes this one.
/// On AArch64 the highest eight bits are the program's (tags of MTE or of a sanitizer), and are
/// ignored.
pub fn untagged(address: usize) -> usize {
    without_tag(address, cfg!(target_arch = "aarch64"))
}

/// Removes the tag of an address as the kernel does it. The ignored bits of a user's address (bit
/// 55 is 0) are cleared; any other address stays as it is.
pub(crate) fn without_tag(address: usize, has_tags: bool) -> usize {
    const TAG_BITS: u32 = 8;
    let extended = ((address << TAG_BITS) as isize >> TAG_BITS) as usize;
    if has_tags { address & extended } else { address }
}

/// A file descriptor by number. Ours live in a descriptor table that only our threads share, which
/// a program's `close_range` does not reach. So they are never owned by a value that a thread of
/// the program could drop.
pub type Fd = i32;
