//! PAGEMAP_SCAN: the cheap way to ask which pages of a range are present. Layout and numbers are
//! those of the kernel's `include/uapi/linux/fs.h` (6.7).

use super::row::{Row, Status};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

const IOC_SCAN: u64 = 0xC060_6610; // _IOWR('f', 16, 96 bytes)
const PAGE_IS_PRESENT: u64 = 1 << 3;

#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    found: u64,
    found_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    start: u64,
    end: u64,
    categories: u64,
}

/// Row: PAGEMAP_SCAN.
pub fn rows() -> Vec<Row> {
    let name = "PAGEMAP_SCAN";
    vec![match (scan_own_stack(), read_own_entry()) {
        (Ok(()), _) => Row::ok(
            name,
            "works: a page known to be present was found",
            "what is present can be asked cheaply",
        ),
        (Err(error), Ok(())) => Row::new(
            name,
            Status::Warn,
            format!("does not work: {error}; /proc/self/pagemap can be read"),
            "which pages are present is read page by page, which takes longer",
            "boot Linux 6.7 or later",
        ),
        (Err(_), Err(error)) => Row::new(
            name,
            Status::Missing,
            format!("/proc/self/pagemap cannot be read: {error}"),
            "which pages are present is not known, so nothing is evicted",
            "mount /proc, and see to it that a process may open its own pagemap",
        )
        .required(),
    }]
}

/// The way of older kernels: one entry of eight bytes for each page.
fn read_own_entry() -> io::Result<()> {
    File::open("/proc/self/pagemap")?.read_exact(&mut [0; 8])
}

/// Asks about the page under a variable that has just been written, which is present for certain.
fn scan_own_stack() -> io::Result<()> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let page = terrace_os::page_bytes() as u64;
    let witness = std::hint::black_box([1u8; 8]);
    let start = witness.as_ptr() as u64 & !(page - 1);
    let mut found = [Found::default(); 1];
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        start,
        end: start + page,
        found: found.as_mut_ptr() as u64,
        found_length: found.len() as u64,
        category_mask: PAGE_IS_PRESENT,
        return_mask: PAGE_IS_PRESENT,
        ..Default::default()
    };
    // SAFETY: the request encodes the size of the argument; the kernel writes at most
    // `found_length` entries to `found`, which lives through the call, and only reads the page
    // table of the range.
    let count = unsafe { terrace_os::ioctl(pagemap.as_raw_fd(), IOC_SCAN, &mut argument) }
        .map_err(terrace_os::io_error)?;
    let [first] = std::hint::black_box(found);
    if count != 1
        || first.start != start
        || first.end != start + page
        || first.categories != PAGE_IS_PRESENT
    {
        return Err(io::Error::other("it does not see a page that is present"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_encodes_the_size_of_its_argument() {
        assert_eq!((IOC_SCAN >> 16 & 0x3FFF) as usize, size_of::<ScanArgument>());
    }
}
