//! What the kernel swaps to. It is known how much of it is free, what of it is memory all the same,
//! and what a process may still put there.
//!
//! Nothing is stored through here: pages are evicted by `madvise(MADV_PAGEOUT)` and restored by the
//! kernel's own faults. A [`Swap`] is what a tier over it must know. That is whether there is one,
//! whether it has room, and how much memory a page takes in it.
//!
//! Swap belongs to the whole machine. A quarter of it is left to others, whichever process fills
//! the rest ([`KEEP_FREE`]). How much is free is polled after [`PAGES_PER_POLL`] pages at the
//! latest, so each process is wrong by no more than that.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::page::PAGE_BYTES;

/// All swap divided by this stays free.
pub const KEEP_FREE: u64 = 4;
/// Pages after which the next poll is due: 16 MiB.
pub const PAGES_PER_POLL: u64 = 4096;
/// Room for fewer pages is none: a poll costs as much as some of them.
const LEAST_ROOM: u64 = 64;
/// If none of this many pages in a row left, the kernel takes none at present. Fewer may be on the
/// way to its lists, on other processors.
const TAKES_NONE: u64 = 256;
/// What a page takes of memory, as a share of itself, where little is swapped or nothing can be
/// read: zram with lz4 or lzo-rle.
pub const RATIO_ASSUMED: f64 = 0.45;
/// Swapped bytes from which on the ratio is measured: below, zram's own tables and half empty
/// blocks are most of what it takes.
const MEASURED_FROM: u64 = 4 << 20;
/// Value for memory of swap that cannot be read.
const UNKNOWN: u64 = u64::MAX;

/// What is under the kernel's swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum SwapKind {
    /// The machine has no swap.
    #[default]
    None = 0,
    /// Compressed memory: the zram device that is filled first.
    Zram = 1,
    /// Compressed memory in front of a device or file.
    Zswap = 2,
    /// A disk: what is there takes no memory, and a thread that needs it waits for the disk.
    Disk = 3,
}

impl SwapKind {
    /// Whether a page is restored from such swap without a disk.
    pub fn is_memory(self) -> bool {
        matches!(self, SwapKind::Zram | SwapKind::Zswap)
    }

    fn from_number(number: u32) -> SwapKind {
        [SwapKind::Zram, SwapKind::Zswap, SwapKind::Disk]
            .into_iter()
            .find(|kind| *kind as u32 == number)
            .unwrap_or(SwapKind::None)
    }
}

/// The machine's swap at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SwapView {
    /// What the kernel fills first.
    pub kind: SwapKind,
    /// Name of the first device or file, and what compresses there, such as `/dev/zram0 (lz4)`.
    pub name: String,
    /// Bytes of all swap.
    pub total_bytes: u64,
    /// Bytes of swap that are free.
    pub free_bytes: u64,
    /// Memory that the used bytes take: of zram devices and of zswap's pool. `None` if that cannot
    /// be read.
    pub memory_bytes: Option<u64>,
}

impl SwapView {
    /// The swap of this machine.
    pub fn of_machine() -> SwapView {
        SwapView::below(Path::new("/"))
    }

    /// The swap according to a directory tree that has `proc` and `sys` in it. What cannot be read
    /// is taken for absent.
    pub fn below(root: &Path) -> SwapView {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let swaps = read("proc/swaps");
        let meminfo = read("proc/meminfo");
        let bytes = |name: &str| meminfo_bytes(&meminfo, "", name);
        let devices: Vec<SwapDevice> = swap_devices(&swaps).collect();
        // The kernel fills the highest priority first.
        let Some(first) =
            devices.iter().max_by_key(|device| device.priority).map(|device| device.path)
        else {
            return SwapView::default();
        };
        let zram_of = |path: &str| {
            let name = path.rsplit('/').next().filter(|name| name.starts_with("zram"))?;
            root.join("sys/block").join(name).is_dir().then(|| format!("sys/block/{name}"))
        };
        let zswap = read("sys/module/zswap/parameters/enabled").trim() == "Y";
        let chosen = |text: String| {
            text.split_whitespace()
                .find_map(|word| Some(word.strip_prefix('[')?.strip_suffix(']')?.to_owned()))
        };
        let (kind, codec) = match zram_of(first) {
            Some(directory) => (
                SwapKind::Zram,
                chosen(read(&format!("{directory}/comp_algorithm"))).unwrap_or_default(),
            ),
            None if zswap => (
                SwapKind::Zswap,
                format!("zswap, {}", read("sys/module/zswap/parameters/compressor").trim()),
            ),
            None => (SwapKind::Disk, String::new()),
        };
        // mm_stat: original size, compressed size, memory used in all, …
        let zrams = devices.iter().filter_map(|device| zram_of(device.path));
        let used: Option<u64> = zrams
            .map(|directory| {
                read(&format!("{directory}/mm_stat")).split_whitespace().nth(2)?.parse::<u64>().ok()
            })
            .sum();
        SwapView {
            kind,
            name: if codec.is_empty() { first.to_owned() } else { format!("{first} ({codec})") },
            total_bytes: bytes("SwapTotal").unwrap_or(0),
            free_bytes: bytes("SwapFree").unwrap_or(0),
            memory_bytes: used.map(|used| used + bytes("Zswap").unwrap_or(0)),
        }
    }

    /// Bytes that may still be put into swap.
    pub fn room_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.total_bytes.div_ceil(KEEP_FREE))
    }

    fn used_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }

    /// What a swapped page takes of memory, as a share of itself. Whose pages they are is not told
    /// apart: all are taken to compress alike.
    pub fn ratio(&self) -> f64 {
        match self.memory_bytes {
            Some(memory) if self.used_bytes() >= MEASURED_FROM => {
                (memory as f64 / self.used_bytes() as f64).min(1.25)
            }
            _ if self.kind.is_memory() => RATIO_ASSUMED,
            _ => 0.0,
        }
    }
}

/// A quantity in the text of `/proc/meminfo`, or of a node's, where `before` stands before each
/// name, such as `Node 1 `.
pub fn meminfo_bytes(text: &str, before: &str, name: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix(before)?.strip_prefix(name)?.strip_prefix(':'))?;
    // "kB" are units of 1024.
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A line of `/proc/swaps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapDevice<'a> {
    /// Device or file, as the kernel writes it.
    pub path: &'a str,
    /// Bytes in all.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// The highest is filled first.
    pub priority: i64,
}

/// What is in the text of `/proc/swaps`.
pub fn swap_devices(text: &str) -> impl Iterator<Item = SwapDevice<'_>> {
    text.lines().skip(1).filter_map(|line| {
        // From the right: a file's name may have blanks.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [path, .., size, used, priority] = fields[..] else { return None };
        // In units of 1024 bytes.
        let bytes = |text: &str| text.parse::<u64>().ok().map(|units| units * 1024);
        Some(SwapDevice {
            path,
            size_bytes: bytes(size)?,
            used_bytes: bytes(used)?,
            priority: priority.parse().ok()?,
        })
    })
}

/// What a tier over the kernel's swap knows of it. It is polled by one thread; any may read.
#[derive(Default)]
pub struct Swap {
    kind: AtomicU32,
    /// Value of [`SwapView::ratio`], times 2^16.
    ratio: AtomicU32,
    /// At the last poll: pages in swap of all processes, those of them that are ours, and what
    /// memory all take; [`UNKNOWN`] where that cannot be read.
    used_pages: AtomicU64,
    own_pages: AtomicU64,
    memory_bytes: AtomicU64,
    /// Pages that may still be put there, at the last poll, less those that were since.
    room_pages: AtomicU64,
    /// Pages after which the next poll is due.
    poll_in: AtomicU64,
    /// Pages that stayed, since the last that left.
    stayed: AtomicU64,
    /// Whether the kernel takes no pages at present.
    refused: AtomicBool,
    /// Whether the swap is to take no pages.
    disabled: AtomicBool,
}

impl Swap {
    /// Polls the machine's swap, in which `own_pages` pages are ours. Some 0.1 ms.
    pub fn poll(&self, own_pages: u64) {
        self.seen(&SwapView::of_machine(), own_pages);
    }

    /// Takes note of what a poll saw.
    pub fn seen(&self, view: &SwapView, own_pages: u64) {
        let room = Some(view.room_bytes() / PAGE_BYTES as u64)
            .filter(|room| *room >= LEAST_ROOM)
            .unwrap_or(0);
        self.kind.store(view.kind as u32, Relaxed);
        self.ratio.store((view.ratio() * 65536.0) as u32, Relaxed);
        let used = view.used_bytes() / PAGE_BYTES as u64;
        self.used_pages.store(used, Relaxed);
        self.own_pages.store(own_pages.min(used), Relaxed);
        self.memory_bytes.store(view.memory_bytes.unwrap_or(UNKNOWN), Relaxed);
        self.room_pages.store(room, Relaxed);
        // Others poll the same room: a quarter of it each, where it is small.
        self.poll_in.store(PAGES_PER_POLL.min(room / 4).max(LEAST_ROOM / 4), Relaxed);
    }

    /// What is under the kernel's swap.
    pub fn kind(&self) -> SwapKind {
        SwapKind::from_number(self.kind.load(Relaxed))
    }

    /// What a swapped page takes of memory, as a share of itself.
    pub fn ratio(&self) -> f64 {
        f64::from(self.ratio.load(Relaxed)) / 65536.0
    }

    /// What `pages` pages of ours take of memory. zram gives a block of memory back when all of it
    /// is empty. Where most pages were restored, the others still hold much more than they need. So
    /// what all take is shared out by pages, as of the last poll. Pages that came since count as
    /// they would in full blocks.
    pub fn held_bytes(&self, pages: u64) -> u64 {
        let own = self.own_pages.load(Relaxed).min(pages);
        let fresh = |pages: u64, ratio: f64| (pages as f64 * PAGE_BYTES as f64 * ratio) as u64;
        match (self.memory_bytes.load(Relaxed), self.used_pages.load(Relaxed)) {
            (UNKNOWN, _) | (_, 0) => fresh(pages, self.ratio()),
            (memory, used) => {
                (u128::from(memory) * u128::from(own) / u128::from(used)) as u64
                    + fresh(pages - own, self.ratio().min(RATIO_ASSUMED))
            }
        }
    }

    /// Whether it is worth while to try to put pages there.
    pub fn accepts(&self) -> bool {
        self.has_room() && !self.disabled.load(Relaxed)
    }

    /// Whether the kernel would take some pages.
    pub fn has_room(&self) -> bool {
        self.room_pages.load(Relaxed) > 0 && !self.refused.load(Relaxed)
    }

    /// Says that nothing is to be put there from now on, or that something is again.
    pub fn set_disabled(&self, disabled: bool) {
        self.disabled.store(disabled, Relaxed);
    }

    /// Notes that pages were put there. True if it is time to poll again.
    pub fn took(&self, pages: u64) -> bool {
        let less =
            |field: &AtomicU64| field.store(field.load(Relaxed).saturating_sub(pages), Relaxed);
        less(&self.room_pages);
        less(&self.poll_in);
        self.stayed.store(0, Relaxed);
        self.poll_in.load(Relaxed) == 0
    }

    /// Notes that the kernel left all of `pages` pages where they were, though there is room: a
    /// control group's limit, perhaps. True if it is not to be asked again for a while.
    pub fn stayed(&self, pages: u64) -> bool {
        let refuses = self.stayed.fetch_add(pages, Relaxed) + pages >= TAKES_NONE;
        if refuses {
            self.refused.store(true, Relaxed);
        }
        refuses
    }

    /// Lets the kernel be asked again.
    pub fn try_again(&self) {
        self.stayed.store(0, Relaxed);
        self.refused.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(swaps: &str, meminfo: &str, zswap: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/swaps", &format!("Filename\tType\tSize\tUsed\tPriority\n{swaps}"));
        write("proc/meminfo", meminfo);
        write("sys/block/zram3/comp_algorithm", "lzo [lz4] zstd\n");
        write("sys/block/zram3/mm_stat", " 8192 100 12582912 0 0 0 0 0 0\n");
        write("sys/module/zswap/parameters/enabled", zswap);
        write("sys/module/zswap/parameters/compressor", "lzo\n");
        root
    }

    const MEMINFO: &str = "MemTotal: 99 kB\nSwapCached: 0 kB\nSwapTotal: 131072 kB\nSwapFree: 98304 kB\nZswap: 4096 kB\n";

    #[test]
    fn the_device_that_is_filled_first_says_what_it_is() {
        let zram = "/dev/zram3 partition 131072 0 100\n";
        let disk = "/a\\040file file 1048576 0 -2\n";
        let both = machine(&format!("{disk}{zram}"), MEMINFO, "Y\n");
        let view = SwapView::below(both.path());
        assert_eq!((view.kind, view.name.as_str()), (SwapKind::Zram, "/dev/zram3 (lz4)"));
        // 12 MiB and 4 MiB for 32 MiB.
        assert_eq!((view.ratio(), view.room_bytes()), (0.5, 64 << 20));
        let zswap = SwapView::below(machine(disk, MEMINFO, "Y\n").path());
        assert_eq!(
            (zswap.kind, zswap.name.as_str(), zswap.ratio()),
            (SwapKind::Zswap, "/a\\040file (zswap, lzo)", 0.125)
        );
        let plain =
            SwapView::below(machine(disk, "SwapTotal: 131072 kB\nSwapFree: 0 kB\n", "N\n").path());
        assert_eq!((plain.kind, plain.ratio(), plain.room_bytes()), (SwapKind::Disk, 0.0, 0));
        assert_eq!(SwapView::below(machine("", MEMINFO, "Y\n").path()), SwapView::default());
        assert_eq!(SwapView::below(Path::new("/nowhere")).kind, SwapKind::None);
    }

    #[test]
    fn little_in_it_says_nothing_of_its_ratio() {
        let root = machine(
            "/dev/zram3 partition 131072 0 100\n",
            "SwapTotal: 131072 kB\nSwapFree: 131000 kB\n",
            "N\n",
        );
        assert_eq!(SwapView::below(root.path()).ratio(), RATIO_ASSUMED);
    }

    #[test]
    fn what_zram_keeps_of_pages_that_came_back_counts() {
        let swap = Swap::default();
        let view = |used: u64, memory_bytes| SwapView {
            kind: SwapKind::Zram,
            total_bytes: 100_000 << 12,
            free_bytes: (100_000 - used) << 12,
            memory_bytes,
            ..SwapView::default()
        };
        swap.seen(&view(10_000, Some(4_000 << 12)), 10_000);
        assert_eq!([0, 5_000, 10_000].map(|pages| swap.held_bytes(pages) >> 12), [0, 2_000, 4_000]);
        assert_eq!(swap.held_bytes(11_000) >> 12, 4_399);
        // Nearly all are back, and half of the memory is not; a part of it is ours, and what comes
        // now finds room in it.
        swap.seen(&view(100, Some(2_000 << 12)), 50);
        assert_eq!([25, 50, 150].map(|pages| swap.held_bytes(pages) >> 12), [500, 1_000, 1_044]);
        swap.seen(&view(10_000, None), 500);
        assert_eq!(swap.held_bytes(1_000), (1_000.0 * 4096.0 * swap.ratio()) as u64);
        swap.seen(&view(0, Some(1 << 20)), 0);
        assert_eq!(swap.held_bytes(0), 0);
    }

    #[test]
    fn a_quarter_is_left_to_others() {
        let swap = Swap::default();
        assert!(!swap.accepts());
        let view = |free: u64| SwapView {
            kind: SwapKind::Zram,
            total_bytes: 1000 << 12,
            free_bytes: free << 12,
            ..SwapView::default()
        };
        swap.seen(&view(330), 0);
        assert!(
            swap.accepts() && !swap.took(19) && swap.took(1),
            "20 of 80 may go before another poll"
        );
        assert!(swap.accepts());
        assert!(swap.took(60) && !swap.accepts());
        swap.seen(&view(313), 0);
        assert!(!swap.accepts());
        swap.seen(&view(314), 0);
        assert!(!swap.stayed(TAKES_NONE - 1) && swap.accepts());
        swap.took(1);
        assert!(!swap.stayed(1) && swap.accepts());
        assert!(swap.stayed(TAKES_NONE) && !swap.accepts());
        swap.try_again();
        assert!(swap.accepts());
    }
}
