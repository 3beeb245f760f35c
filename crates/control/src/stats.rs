//! The statistics page: one file per process in the run directory. `terrace run` reads it while the
//! program lives and after its end, however it ended (`_exit` and SIGKILL included).
//!
//! The process itself works on a private copy, which the kernel copies to the file and back
//! (`stats_file.rs`). A file can be truncated, or have no room, and SIGBUS would end a thread that
//! touched a mapping of it.
//!
//! Two fields go the other way: `terrace run` writes there how much of the budget the process may
//! have. A process believes only a page that it made itself; one that it inherited in a fork is let
//! go of.
//!
//! Samples come that way, too: `terrace run` sees where the program waits for memory, and writes it
//! into a ring behind the page. Two more rings hold what is too much for a page: where timers
//! interrupted the process, and each move, where those are wanted.
//!
//! Every field is an atomic of its own. A reader sees each field whole but not all of one instant.
//! The writer finishes an update within microseconds, so the difference is below what the figures
//! mean.

use crate::moves::MOVE_WORDS;
use crate::settings::MAX_TIERS;
use crate::windows::{ROW_SLOTS, ROW_WORDS};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use terrace_policy::eviction::victims::Reason;

/// First field of a valid page; its last byte counts layouts.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TERRACE\x10");
/// Longest note, in bytes.
pub const NOTE_BYTES: usize = 256;

/// A file of this name is in the run directory if a process found no place there for its page.
pub const NO_PLACE: &str = "no-place";

/// What a process's Terrace is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    #[default]
    /// Loaded; the program has not yet touched enough memory to be worth managing.
    Idle = 0,
    /// `--observe`, or no budget: measuring, moving nothing.
    Observing = 1,
    /// Moving pages.
    Active = 2,
    /// Something is missing (see the note); all memory stays in DRAM.
    Unmanaged = 3,
    /// An internal check failed (see the note): nothing more is evicted, what is out is still
    /// restored.
    Frozen = 4,
}

impl State {
    /// The state with this number; an unknown number reads as [`State::Unmanaged`].
    pub fn from_number(number: u32) -> State {
        [State::Idle, State::Observing, State::Active, State::Unmanaged, State::Frozen]
            .into_iter()
            .find(|s| *s as u32 == number)
            .unwrap_or(State::Unmanaged)
    }
}

/// A count, or a count for each of several reasons.
pub trait Count {
    /// Type of the count's value.
    type Number;
    /// Reads the count.
    fn number(&self) -> Self::Number;
    /// Sets the count.
    fn set(&self, number: &Self::Number);
}

impl Count for AtomicU64 {
    type Number = u64;

    fn number(&self) -> u64 {
        self.load(Relaxed)
    }

    fn set(&self, number: &u64) {
        self.store(*number, Relaxed);
    }
}

impl<const N: usize> Count for [AtomicU64; N] {
    type Number = [u64; N];

    fn number(&self) -> [u64; N] {
        self.each_ref().map(Count::number)
    }

    fn set(&self, numbers: &[u64; N]) {
        self.iter().zip(numbers).for_each(|(count, number)| count.set(number));
    }
}

/// A count that the report of a run has among its `moves`, as it is.
pub struct Reported {
    /// Key of the count in the JSON.
    pub key: &'static str,
    /// What it counts, for the report's reference and schema.
    pub about: &'static str,
    /// Value of the count.
    pub of: fn(&Counted) -> u64,
}

/// Bytes of a tier's name that the page has room for.
pub const TIER_NAME_BYTES: usize = 64;

/// Steps of a fault that are timed where faults are traced: waiting for room, claim, decode, copy,
/// and what follows.
pub const FAULT_STEPS: usize = 5;

/// Steps of an eviction that are timed where faults are traced: scan, move, compress, store, empty.
pub const EVICTION_STEPS: usize = 5;

/// A row is `NAME: TYPE` after its documentation. The count is zero in a forked child, published in
/// the statistics page, and read into the figures of `terrace run`. With `report KEY EXPLANATION`
/// the report has it, too. The order of the rows is that of the page. Where one is added, moved or
/// taken away, the last byte of [`MAGIC`] counts one more.
macro_rules! counters {
    ($(
        $(#[$about:meta])*
        $name:ident: $type:ty $(, report $key:literal $explanation:literal)?;
    )*) => {
        /// What is counted from the start of a process, or from the fork that made it. Lies like
        /// this in the statistics page.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct Counts {
            $($(#[$about])* pub $name: $type,)*
        }

        /// [`Counts`] as plain numbers.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Counted {
            $($(#[$about])* pub $name: <$type as Count>::Number,)*
        }

        impl Counts {
            /// Reads all counts. A count is read whole, but not all are of one instant.
            pub fn read(&self) -> Counted {
                Counted { $($name: self.$name.number(),)* }
            }

            /// Sets all counts.
            pub fn write(&self, counted: &Counted) {
                $(self.$name.set(&counted.$name);)*
            }
        }

        /// The counts that the report has as they are, in its order.
        pub const REPORTED: &[Reported] = &[$($(
            Reported { key: $key, about: $explanation, of: |counted| counted.$name },
        )?)*];
    };
}

counters! {
    /// Pages restored to DRAM, by faults or ahead of them.
    promoted_pages: AtomicU64;
    /// Pages moved out of DRAM or to a denser tier.
    demoted_pages: AtomicU64;
    /// Pages moved out of DRAM or to a denser tier, by [`Reason`].
    demoted_for: [AtomicU64; Reason::ALL.len()];
    /// Pages moved out that had not changed since they were restored, and so were not compressed
    /// again.
    unchanged_pages: AtomicU64, report "unchanged_pages"
        "Number of pages evicted again as they had come back, and so not compressed again.";
    /// Moves that the kernel refused (shared with a child, pinned, locked).
    failed_moves: AtomicU64, report "failed" "Refused by the kernel.";
    /// The last error (errno) with which a move out of the page table ended; 0 if none did.
    move_error: AtomicU64;
    /// Regions that became huge pages because they stayed hot.
    huge_made: AtomicU64, report "huge_made"
        "Regions of 2 MiB that became huge pages because they stayed hot.";
    /// Huge pages that were split again, for a page to leave or because the program changed a part
    /// of them.
    huge_split: AtomicU64, report "huge_split"
        "Number of regions of 2 MiB that became huge pages and were split again.";
    /// Times that a codec changed the dictionary that it compresses with.
    dictionary_changes: AtomicU64, report "dictionary_changes"
        "Times that a codec changed the dictionary that it compresses with.";
    /// Pages found shared with a forked child and therefore left alone, at the last scan.
    shared_pages: AtomicU64;
    /// Nanoseconds the program's threads waited for restores and for room, estimated.
    stall_ns: AtomicU64;
    /// Nanoseconds the program lost by these waits (`lost_ns` in pager/src/time_lost.rs).
    lost_ns: AtomicU64;
    /// CPU time of our own threads, ns, when it was published last.
    cpu_ns: AtomicU64;
    /// Pages restored by `terrace_touch` and `terrace_prefetch`, without a fault.
    ahead_pages: AtomicU64;
    /// Pages that were restored from far memory because they are hot.
    hot_pages: AtomicU64;
    /// Pages that were restored because there is room for them.
    room_pages: AtomicU64;
    /// Times that a thread of the program, or one that serves its fault, waited for the mover to
    /// make room.
    room_waits: AtomicU64, report "room_waits"
        "Times that the program waited for room within the budget, at a fault or for new memory.";
}

/// Figures of one tier. Means are over the page's `mean_window_ms`.
#[repr(C)]
pub struct TierPage {
    /// The tier as the user wrote it, zero-padded UTF-8 (`dram`, `lz4`, `zstd:1`).
    pub name: [AtomicU64; TIER_NAME_BYTES / 8],
    /// Mean bytes of program data in the tier.
    pub mean_logical_bytes: AtomicU64,
    /// Mean bytes of DRAM that the tier's program data takes.
    pub mean_physical_bytes: AtomicU64,
    /// Pages in the tier now.
    pub pages: AtomicU64,
    /// Pages restored from the tier so far because they were touched.
    pub faults: AtomicU64,
    /// Median time of a restore, in ns, from the fault's message to the page in place.
    pub fault_p50_ns: AtomicU64,
    /// 99th percentile of the time of a restore, in ns.
    pub fault_p99_ns: AtomicU64,
    /// Pages that did not compress in this tier.
    pub rejected: AtomicU64,
    /// Bytes in this tier's files now; `u64::MAX` if it is not in files.
    pub file_bytes: AtomicU64,
    /// Bytes of `file_bytes` in which nothing of this process is any more: kept for forked
    /// children, or about to be given back.
    pub held_bytes: AtomicU64,
}

/// The whole page. All integers are native-endian; reader and writer run on one machine.
#[repr(C)]
pub struct StatsPage {
    /// [`MAGIC`], written last at creation.
    pub magic: AtomicU64,
    /// The process.
    pub pid: AtomicU32,
    /// A [`State`].
    pub state: AtomicU32,
    /// CLOCK_MONOTONIC in ns when this program image started.
    pub started_ns: AtomicU64,
    /// When the process started, as field 22 of its /proc stat has it: with `pid`, the same
    /// process for certain. 0 if unknown.
    pub start_ticks: AtomicU64,
    /// CLOCK_MONOTONIC in ns of the last update.
    pub updated_ns: AtomicU64,
    /// The PID namespace that `pid` is a number of, by its inode; 0 if unknown.
    pub pid_namespace: AtomicU64,
    /// CLOCK_MONOTONIC in ns when Terrace ended in the process, which went on; 0: it did not. From
    /// then on nothing here is measured.
    pub measured_until_ns: AtomicU64,
    /// The budget now, bytes; `u64::MAX` without one.
    pub budget_bytes: AtomicU64,
    /// 1 while (or if, at the end) the budget was kept
    /// ([`BudgetStatus`](crate::budget_status::BudgetStatus)); 0 where it was not.
    pub budget_met: AtomicU32,
    /// Number of tiers in use, from the first of `tiers` on.
    pub tier_count: AtomicU32,
    /// Mean physical bytes while nothing more could be evicted, where the budget was not kept; 0
    /// otherwise.
    pub floor_bytes: AtomicU64,
    /// 1 while nothing more can be evicted although memory is above the budget.
    pub at_floor: AtomicU32,
    /// 1 if the process was made by a fork and so may share pages with others.
    pub forked: AtomicU32,
    /// Bytes under management, touched or not; kept before there is anything to measure with, too.
    pub committed_bytes: AtomicU64,
    /// Milliseconds over which the means are taken.
    pub mean_window_ms: AtomicU64,
    /// Mean bytes of program data in all tiers.
    pub mean_logical_bytes: AtomicU64,
    /// Mean of resident managed pages + pools + overhead, bytes.
    pub mean_physical_bytes: AtomicU64,
    /// Mean of our own metadata, stacks and buffers, bytes (part of physical).
    pub mean_overhead_bytes: AtomicU64,
    /// Mean of the process's other anonymous memory (libraries' data, stacks, small mappings),
    /// bytes: not managed, not in physical.
    pub mean_unmanaged_bytes: AtomicU64,
    /// Program data now, bytes.
    pub logical_bytes: AtomicU64,
    /// Physical now, bytes.
    pub physical_bytes: AtomicU64,
    /// Highest overhead seen, bytes.
    pub peak_overhead_bytes: AtomicU64,
    /// Highest physical seen, bytes.
    pub peak_physical_bytes: AtomicU64,
    /// Highest logical seen, bytes.
    pub peak_logical_bytes: AtomicU64,
    /// Milliseconds during which physical exceeded the budget.
    pub over_budget_ms: AtomicU64,
    /// Milliseconds during which physical exceeded the budget by more than 2 %.
    pub far_over_budget_ms: AtomicU64,
    /// The part of `far_over_budget_ms` during which nothing more could be evicted.
    pub floor_ms: AtomicU64,
    /// What is counted.
    pub counts: Counts,
    /// Length of the last minute, ns; less than a minute where less has passed.
    pub last_minute_ns: AtomicU64,
    /// Growth of [`Counts::lost_ns`] in the last minute.
    pub last_minute_lost_ns: AtomicU64,
    /// Faults whose steps were measured (`TERRACE_TRACE_FAULTS`).
    pub traced_faults: AtomicU64,
    /// Evicted pages whose steps were measured (`TERRACE_TRACE_FAULTS`).
    pub traced_evictions: AtomicU64,
    /// Median and 99th percentile of a fault's steps: waiting for room, claim, decompression,
    /// copy, what comes after.
    pub fault_step_ns: [[AtomicU64; 2]; FAULT_STEPS],
    /// Mean for a page of an eviction's steps: scan, move, compress, store, empty.
    pub eviction_step_ns: [AtomicU64; EVICTION_STEPS],
    /// How much sampling of this process would be worth while, percent of the usual; 0: not known
    /// yet.
    pub samples_percent: AtomicU64,
    /// Why the state is Unmanaged or Frozen, or a warning; zero-padded UTF-8.
    pub note: [AtomicU64; NOTE_BYTES / 8],
    /// The program (`argv[0]`'s last part), zero-padded UTF-8.
    pub program: [AtomicU64; 8],
    /// The tiers, fastest first.
    pub tiers: [TierPage; MAX_TIERS],
    // The last five are written by `terrace run`, and by nothing else.
    /// The process's share of the run's budget, bytes; 0: none assigned yet.
    pub share_bytes: AtomicU64,
    /// The `peak_logical_bytes` that the share was made from.
    pub share_for_bytes: AtomicU64,
    /// The placement model's knob in millionths, plus 1; 0: as it was set at the start.
    pub knob_told: AtomicU64,
    /// The placement model's window, ms; 0: as it was set at the start.
    pub window_told_ms: AtomicU64,
    /// The tiers that take pages, a bit for each by its number; 0: all of them.
    pub tiers_told: AtomicU64,
}

/// Bytes of a page that the process writes, from its beginning. `terrace run` writes the rest.
pub const TOLD_BYTES: usize = std::mem::offset_of!(StatsPage, share_bytes);
const _: () = assert!(
    size_of::<StatsPage>() == TOLD_BYTES + 40 && size_of::<StatsPage>() <= terrace_os::PAGE
);

/// Samples on their way from `terrace run` to the mover. There is one writer and one reader, and
/// neither waits: what was not read in time is lost.
#[repr(C)]
pub struct SampleRing {
    /// Number of entries written so far.
    pub sent: AtomicU64,
    /// The last entries, each in the place of its number.
    pub slots: [AtomicU64; SAMPLE_SLOTS],
}

/// Slots of [`SampleRing`].
pub const SAMPLE_SLOTS: usize = 4096;
/// Least weight of an entry.
const WEIGHT_UNIT: f32 = 1.0 / 256.0;
/// Bits of an entry's weight, below those of the address, of which 48 are in use.
const WEIGHT_BITS: u32 = 20;

impl SampleRing {
    /// Samples of this weight met the 16 bytes at `address`.
    pub fn entry(address: u64, weight: f32) -> u64 {
        (address >> 4) << WEIGHT_BITS
            | u64::from(((weight / WEIGHT_UNIT) as u32).min((1 << WEIGHT_BITS) - 1))
    }

    /// Takes out the entries behind number `taken`, and sets `taken` to the last number.
    pub fn take(&self, taken: &mut u64, mut each: impl FnMut(usize, f32)) {
        let sent = self.sent.load(Acquire);
        let from = (*taken).max(sent.saturating_sub(SAMPLE_SLOTS as u64)).min(sent);
        for number in from..sent {
            let entry = self.slots[(number % SAMPLE_SLOTS as u64) as usize].load(Relaxed);
            each(
                (entry >> WEIGHT_BITS << 4) as usize,
                (entry & ((1 << WEIGHT_BITS) - 1)) as f32 * WEIGHT_UNIT,
            );
        }
        *taken = sent;
    }
}

/// Where threads were when their timers interrupted them (`timers.rs`), on the way to `terrace
/// run`.
#[repr(C)]
pub struct InterruptRing {
    /// Written by `terrace run`: processor time between two interrupts of a thread, ns; 0: none
    /// are wanted.
    pub period_ns: AtomicU64,
    /// Time until which interrupts are wanted if that is not said again, CLOCK_MONOTONIC in ns.
    pub until_ns: AtomicU64,
    /// Entries of the interrupts: thread, instruction, flags, and registers in the order of
    /// `ucontext_t`.
    pub ring: Ring<INTERRUPT_SLOTS, INTERRUPT_WORDS>,
}

/// Slots of the ring of interrupts: of eight threads at 250 a second, half a second.
pub const INTERRUPT_SLOTS: usize = 1024;
/// Words of a slot of the ring of interrupts.
pub const INTERRUPT_WORDS: usize = 19;

/// Slots of the ring of moves: a mover makes some thousand decisions a second, and many times as
/// many where pages leave one by one.
pub const MOVE_SLOTS: usize = 8192;

/// Notes of any threads of the process for `terrace run`. No thread waits: what was not read in
/// time is lost.
#[repr(C)]
pub struct Ring<const SLOTS: usize, const WORDS: usize> {
    /// Number of notes that were written, or are just being written.
    pub begun: AtomicU64,
    /// The last notes, each in the place of its number.
    pub slots: [Slot<WORDS>; SLOTS],
}

/// A slot of a [`Ring`].
#[repr(C)]
pub struct Slot<const WORDS: usize> {
    /// Number of the note, from 1, once all of it is there; 0 while it is written.
    pub number: AtomicU64,
    /// Words of the note.
    pub words: [AtomicU64; WORDS],
}

impl<const SLOTS: usize, const WORDS: usize> Ring<SLOTS, WORDS> {
    /// Writes a note. It makes nothing but stores: for a signal's handler.
    pub fn write(&self, words: &[u64; WORDS]) {
        let begun = self.begun.fetch_add(1, Relaxed);
        let slot = &self.slots[(begun % SLOTS as u64) as usize];
        slot.number.store(0, Relaxed);
        std::sync::atomic::fence(Release);
        slot.words.iter().zip(words).for_each(|(to, word)| to.store(*word, Relaxed));
        slot.number.store(begun + 1, Release);
    }
}

/// The whole file.
#[repr(C)]
pub struct StatsFile {
    /// Statistics that the process tells.
    pub page: StatsPage,
    /// Samples that `terrace run` tells the process.
    pub samples: SampleRing,
    /// Interrupts of the process's threads.
    pub interrupts: InterruptRing,
    /// Moves that the process's mover made, and why (`moves.rs`).
    pub moves: Ring<MOVE_SLOTS, MOVE_WORDS>,
    /// What the process's placement model wanted, and what came of it (`windows.rs`).
    pub windows: Ring<ROW_SLOTS, ROW_WORDS>,
}

/// Writes `text`, cut at a character border where it is too long, into a zero-padded field.
pub fn set_text(field: &[AtomicU64], text: &str) {
    let mut end = text.len().min(field.len() * 8);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = &text.as_bytes()[..end];
    for (i, word) in field.iter().enumerate() {
        let mut chunk = [0u8; 8];
        let from = (i * 8).min(end);
        let part = &bytes[from..(from + 8).min(end)];
        chunk[..part.len()].copy_from_slice(part);
        word.store(u64::from_ne_bytes(chunk), Relaxed);
    }
}

/// Reads a zero-padded field; bytes that are not UTF-8 become replacement characters.
pub fn get_text(field: &[AtomicU64]) -> String {
    let bytes: Vec<u8> =
        field.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_come_once_and_the_oldest_are_lost() {
        let ring = SampleRing {
            sent: AtomicU64::new(0),
            slots: [const { AtomicU64::new(0) }; SAMPLE_SLOTS],
        };
        let write = |from: u64, to: u64| {
            (from..to).for_each(|n| {
                ring.slots[n as usize % SAMPLE_SLOTS]
                    .store(SampleRing::entry(n << 30, n as f32 / 4.0), Relaxed)
            });
            ring.sent.store(to, Release);
        };
        let taken = std::cell::Cell::new(0);
        let take = || {
            let (mut all, mut number) = (Vec::new(), taken.get());
            ring.take(&mut number, |address, weight| all.push((address >> 30, weight)));
            taken.set(number);
            all
        };
        write(0, 3);
        assert_eq!(take(), [(0, 0.0), (1, 0.25), (2, 0.5)]);
        assert_eq!(take(), []);
        write(3, 3 + 6000);
        let last: Vec<usize> = take().iter().map(|(number, _)| *number).collect();
        assert_eq!(last, (6003 - SAMPLE_SLOTS..6003).collect::<Vec<_>>());
        // A weight too large for its bits is the largest.
        let most = SampleRing::entry(u64::MAX >> 16, 1e9);
        assert_eq!((most >> WEIGHT_BITS << 4, most & 0xf_ffff), (u64::MAX >> 16 & !15, 0xf_ffff));
        // A page that another process wrote into.
        ring.sent.store(1, Release);
        assert_eq!(take(), []);
        ring.sent.store(u64::MAX, Release);
        assert_eq!(take().len(), SAMPLE_SLOTS);
    }

    /// Numbers of the layout: a reader of another layout would take one field for another.
    #[test]
    fn each_layout_has_a_number_of_its_own() {
        let counts = std::mem::offset_of!(StatsPage, counts);
        let layout = [counts, size_of::<Counts>(), size_of::<StatsPage>()];
        assert_eq!((MAGIC.to_le_bytes()[7], layout), (16, [200, 192, 2000]));
    }

    #[test]
    fn text_fields_keep_what_fits() {
        let field: [AtomicU64; 2] = Default::default();
        set_text(&field, "zstd:1");
        assert_eq!(get_text(&field), "zstd:1");
        set_text(&field, "123456789012345é");
        assert_eq!(get_text(&field), "123456789012345");
    }
}
