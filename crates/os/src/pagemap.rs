//! Page maps: which pages are present, written, swapped or shared.

use crate::answers::{PAGE_IS_SWAPPED, PAGE_IS_WRITTEN, Run};
use crate::files::read_at;
use crate::injection;
use crate::injection::Call;
use crate::simulated::simulated;
use crate::time::sleep;
use crate::types::{Errno, Fd, PAGE, Result};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use syscalls::{Sysno, syscall};

/// Lists pages by what they are: an ioctl of a page map (Linux 6.7).
pub const PAGEMAP_SCAN: u64 = 3 << 30 | 96 << 16 | (b'f' as u64) << 8 | 16;
const PAGE_IS_WPALLOWED: u64 = 1;
pub(crate) const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;

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
pub fn scan_writes(
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
/// [`FEATURE_WP_ASYNC`] has them. Then [`scan_writes`] tells which are written from now on.
///
/// It is done by one walk, and so with one flush of the CPUs' TLBs for all of the pages.
/// UFFDIO_WRITEPROTECT has one for each call, and would mark missing pages.
pub fn track_writes(pagemap: Fd, start: usize, end: usize, runs: &mut [Run]) -> Result<()> {
    simulated!(kernel => kernel.track_writes(start, end));
    const WP_MATCHING: u64 = 1;
    let all_of = PAGE_IS_PRESENT | PAGE_IS_WRITTEN;
    scan_with(pagemap, (start, end), runs, WP_MATCHING, [0, all_of, 0, all_of]).map(drop)
}

/// Lists what is mapped in `start..end`, its pages present or not, and not registered with a
/// userfaultfd of [`FEATURE_WP_ASYNC`]. What is registered with one is not walked through.
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
/// [`FEATURE_WP_ASYNC`]. False where the kernel does not say.
pub fn is_registered_nowhere(pagemap: Fd, start: usize, end: usize) -> bool {
    simulated!(_kernel => false);
    let categories = [0, PAGE_IS_WPALLOWED, 0, PAGE_IS_WPALLOWED];
    scan_with(pagemap, (start, end), &mut [Run::default()], 0, categories)
        .is_ok_and(|(count, _)| count == 0)
}

/// How many bytes of a range up to 16 MiB are in huge pages that are mapped as such.
pub fn huge_bytes(pagemap: Fd, start: usize, end: usize) -> Result<usize> {
    let mut runs = [Run::default(); 8];
    let (count, _) = scan(pagemap, start, end, &mut runs, PAGE_IS_HUGE, 0)?;
    // Without PAGEMAP_SCAN the kernel does not say.
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
    // Not that one, and one of those. Whether a page is a file's is not asked. To know, the kernel
    // would read a record of each page, for 35 ns instead of 8. Managed memory has none, and what a
    // program maps there past the C library is not registered: nothing is moved out of it.
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
/// keeps runs in a buffer of 512 of its own. If the walk came to its end after that was last
/// emptied, `said` is where it was emptied. A walk that went on from there would see pages twice.
fn walk_end(runs: &[Run], full: bool, said: usize, end: usize) -> usize {
    if full { runs.last().map_or(said, |last| said.max(last.end as usize)) } else { end }
}

/// The kernel has no PAGEMAP_SCAN (before Linux 6.7).
static PLAIN_PAGEMAP: AtomicBool = AtomicBool::new(false);

/// Lists runs as [`scan`] does, but entry by entry: slower, and the shared zero page looks like any
/// other.
pub(crate) fn read_entries(
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

/// Whether the page table holds a page at `address`. It is in memory (bit 63 of its pagemap entry;
/// the shared zero page too) or swapped out (bit 62). Waits until the kernel answers: with a guess,
/// a page could be lost.
pub fn is_mapped(pagemap: Fd, address: usize) -> bool {
    loop {
        match pagemap_entry(pagemap, address) {
            Ok(entry) => return entry >> 62 != 0,
            Err(_) => sleep(Duration::from_millis(1)),
        }
    }
}
