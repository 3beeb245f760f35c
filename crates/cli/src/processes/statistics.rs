//! What each process left in the run directory: statistics pages, read into plain numbers.
//!
//! The files are written by the program's own processes, so nothing in them is believed unseen. A
//! file of another name is not a page. One of another size or magic, or with something in it that
//! no Terrace writes, is damaged. Nothing is shown of a damaged page but that.

use crate::processes::process::{self, Stat};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use terrace_control::moves::{MOVE_WORDS, Moved};
use terrace_control::settings::{Knob, NO_BUDGET, Window};
use terrace_control::stats::{
    self, Counted, INTERRUPT_SLOTS, INTERRUPT_WORDS, InterruptRing, MAGIC, MOVE_SLOTS, Ring,
    SAMPLE_SLOTS, SampleRing, Slot, StatsFile, StatsPage,
};
use terrace_control::unreached::{self, Unreached};
use terrace_control::windows::{ROW_SLOTS, ROW_WORDS, Row};
use terrace_os as sys;

/// One tier of a process.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Tier {
    /// The tier as the user wrote it.
    pub name: String,
    /// Mean program data in it.
    pub logical_bytes: u64,
    /// Mean DRAM that takes.
    pub physical_bytes: u64,
    /// Pages in it at the end.
    pub pages: u64,
    /// Pages restored from it.
    pub faults: u64,
    /// Median restore; `None` without a restore.
    pub fault_p50_us: Option<f64>,
    /// 99th percentile.
    pub fault_p99_us: Option<f64>,
    /// Pages that did not compress in it.
    pub rejected: u64,
    /// Bytes in its files at the end; `None` if it is not in files.
    pub file_bytes: Option<u64>,
    /// Bytes in files that are given up, and kept for forked children.
    pub held_bytes: Option<u64>,
}

/// A step of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct StepTimes {
    /// Median, µs.
    pub p50_us: f64,
    /// 99th percentile, µs.
    pub p99_us: f64,
}

/// The steps of a fault, as its handler sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct FaultSteps {
    /// Faults measured.
    pub faults: u64,
    /// Waiting for room.
    pub room: StepTimes,
    /// Until the page is claimed.
    pub claim: StepTimes,
    /// Decompressing it.
    pub decompress: StepTimes,
    /// Putting the page in place, which wakes the threads that wait for it.
    pub copy: StepTimes,
    /// What comes after that.
    pub after: StepTimes,
}

/// The steps of evictions, µs a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct EvictionSteps {
    /// Pages measured.
    pub pages: u64,
    /// Finding pages that are present.
    pub scan_us: f64,
    /// Moving them out of the page table.
    pub move_us: f64,
    /// Compressing them.
    pub compress_us: f64,
    /// Putting them into their tier.
    pub store_us: f64,
    /// Giving their memory back.
    pub empty_us: f64,
}

/// Times of the steps of faults and evictions, measured with `TERRACE_TRACE_FAULTS=1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Steps {
    /// Steps of a fault.
    pub fault: FaultSteps,
    /// Steps of an eviction.
    pub eviction: EvictionSteps,
}

/// A process that measures writes ten times a second; after this time without a write its figures
/// are old, ns.
pub const SILENT_NS: u64 = 5_000_000_000;
/// After this time without a first measurement, none is to be expected, ns.
const FIRST_NS: u64 = 2_000_000_000;

/// A statistics page: one program image in one process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessStats {
    pub pid: u32,
    pub program: String,
    pub state: stats::State,
    pub note: String,
    pub started_ns: u64,
    pub updated_ns: u64,
    /// When Terrace ended in the process, which went on; `None` if it did not.
    pub measured_until_ns: Option<u64>,
    /// Budget in bytes; `None` without one.
    pub budget_bytes: Option<u64>,
    pub budget_met: bool,
    pub floor_bytes: u64,
    pub mean_window_ms: u64,
    pub mean_logical_bytes: u64,
    pub mean_physical_bytes: u64,
    pub mean_overhead_bytes: u64,
    pub peak_overhead_bytes: u64,
    pub mean_unmanaged_bytes: u64,
    pub peak_logical_bytes: u64,
    pub peak_physical_bytes: u64,
    pub over_budget_ms: u64,
    pub far_over_budget_ms: u64,
    pub floor_ms: u64,
    /// What is counted.
    pub counts: Counted,
    /// How long the last minute was, which is less where there was less, ns.
    pub last_minute_ns: u64,
    /// Time that was lost in the last minute, ns.
    pub last_minute_lost_ns: u64,
    /// Times of the steps; `None` without anything traced.
    pub steps: Option<Steps>,
    pub tiers: Vec<Tier>,
}

impl ProcessStats {
    /// Pages restored, over all tiers.
    pub fn faults(&self) -> u64 {
        self.tiers.iter().fold(0, |sum, tier| sum.saturating_add(tier.faults))
    }

    /// Bytes of DRAM saved on average, net of overhead; negative where Terrace cost more than it
    /// saved.
    pub fn saved_bytes(&self) -> i64 {
        (i128::from(self.mean_logical_bytes) - i128::from(self.mean_physical_bytes))
            .clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// The share of the time, as far as it was measured, in which memory was not above the budget
    /// by more than 2 %.
    pub fn kept_fraction(&self) -> f64 {
        if self.mean_window_ms == 0 {
            1.0
        } else {
            (1.0 - self.far_over_budget_ms as f64 / self.mean_window_ms as f64).max(0.0)
        }
    }

    /// Seconds from the start of the image to its last update.
    pub fn elapsed_s(&self) -> f64 {
        self.updated_ns.saturating_sub(self.started_ns) as f64 / 1e9
    }

    /// Time that was lost to waits for memory in the last minute, or in all where that was less,
    /// per elapsed time.
    pub fn slowdown_last_minute(&self) -> f64 {
        // A process that ends within its first tenth of a second has published no minute.
        let (lost_ns, ns) = match self.last_minute_ns {
            0 => (self.counts.lost_ns, self.updated_ns.saturating_sub(self.started_ns)),
            ns => (self.last_minute_lost_ns, ns),
        };
        if ns > 0 { (lost_ns as f64 / ns as f64).min(1.0) } else { 0.0 }
    }

    /// Whether it had too little to be managed, for all that it told.
    pub fn is_idle(&self) -> bool {
        self.state == stats::State::Idle
    }

    /// Whether it never had memory to manage.
    pub fn has_seen_nothing(&self) -> bool {
        self.is_idle() && self.mean_logical_bytes == 0 && self.peak_logical_bytes == 0
    }

    /// Seconds from the start of the image to the end of what is known of it, if that is not the
    /// image's own end.
    pub fn measured_until_s(&self) -> Option<f64> {
        self.measured_until_ns.map(|until| until.saturating_sub(self.started_ns) as f64 / 1e9)
    }

    /// The process has just ended. If its Terrace measured and fell silent long before, it was
    /// gone: killed, or with the program that was there before another one was executed.
    pub fn notice_silence(&mut self, ended_ns: u64) {
        let measured = matches!(
            self.state,
            stats::State::Observing | stats::State::Active | stats::State::Frozen
        );
        let has_measured = self.updated_ns > self.started_ns;
        let most_ns = if has_measured { SILENT_NS } else { FIRST_NS };
        if measured && self.updated_ns > 0 && ended_ns.saturating_sub(self.updated_ns) > most_ns {
            self.measured_until_ns.get_or_insert(self.updated_ns);
        }
    }
}

/// What a run directory holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pages {
    /// Pages that can be used, by time of start.
    pub good: Vec<ProcessStats>,
    /// Pages that cannot, by process.
    pub damaged: Vec<Damaged>,
}

/// A page of which nothing can be used: damaged, or left before it was finished.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damaged {
    /// The process, by the file's name.
    pub pid: u32,
    /// What is wrong with it.
    pub why: String,
}

/// All pages in a run directory.
pub fn read_all(run_dir: &Path) -> Pages {
    let mut pages = Pages::default();
    for PageFile { path, pid, started_ns, .. } in page_files(run_dir) {
        match read_page(&path, pid, figures_of) {
            // By the file's name, as everywhere: the page is the process' own to write.
            Ok(figures) => pages.good.push(ProcessStats { started_ns, ..figures }),
            Err(why) => pages.damaged.push(Damaged { pid, why }),
        }
    }
    pages.good.sort_by_key(|figures| (figures.started_ns, figures.pid));
    pages.damaged.sort();
    pages
}

/// What the processes of a run executed without the library.
pub fn read_unreached(run_dir: &Path) -> Vec<Unreached> {
    let mut all: Vec<Unreached> = Vec::new();
    let Ok(file) = open_page(&run_dir.join(unreached::FILE_NAME), false) else { return all };
    let mut entry = [0; unreached::ENTRY_BYTES];
    for number in 0..unreached::MOST_ENTRIES {
        if file.read_exact_at(&mut entry, (number * unreached::ENTRY_BYTES) as u64).is_err() {
            break;
        }
        all.push(Unreached::read(&entry));
    }
    all
}

/// Reads a page; `None` if it cannot be used.
pub fn read_one(file: &PageFile) -> Option<ProcessStats> {
    read_page(&file.path, file.pid, figures_of).ok()
}

/// The page that speaks for process `pid`, as an index into `all` (which [`read_all`] sorted). A
/// chain of execs leaves several: the image started last counts, unless it has seen nothing at all
/// and one before it has.
pub fn of_process(all: &[ProcessStats], pid: u32) -> Option<usize> {
    let mut of_pid = (0..all.len()).rev().filter(|i| all[*i].pid == pid);
    of_pid.clone().find(|i| !all[*i].has_seen_nothing()).or_else(|| of_pid.next())
}

/// What `terrace run` needs of a page while its process lives: how things are now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Image {
    pub pid: u32,
    pub pid_namespace: u64,
    pub start_ticks: u64,
    pub started_ns: u64,
    pub updated_ns: u64,
    pub state: stats::State,
    /// Whether Terrace ended in the process, which went on: [`ProcessStats::measured_until_ns`].
    pub ended_early: bool,
    pub forked: bool,
    pub at_floor: bool,
    pub committed_bytes: u64,
    pub logical_bytes: u64,
    pub physical_bytes: u64,
    pub peak_physical_bytes: u64,
    pub peak_logical_bytes: u64,
    pub peak_overhead_bytes: u64,
    /// Time that was lost to waits for memory, ns: [`Counted::lost_ns`].
    pub lost_ns: u64,
    /// Faults that a thread of its Terrace served: not the kernel's own in its swap, nor pages
    /// that the program asked for or that came ahead of a stream.
    pub served_faults: u64,
}

impl Image {
    /// The page's process, if there is one with its number that began at its time. A process that
    /// cannot know when it began is taken at its number.
    pub fn process(&self) -> Option<Stat> {
        process::stat(self.pid)
            .filter(|stat| self.start_ticks == 0 || stat.start_ticks == self.start_ticks)
    }

    /// Whether the page's process lives. One whose number means nothing here lives as long as it
    /// speaks.
    pub fn lives(&self) -> bool {
        if self.pid_namespace != sys::pid_namespace() {
            return sys::now_ns().saturating_sub(self.updated_ns) < SILENT_NS;
        }
        self.process().is_some_and(|stat| !stat.ended)
    }

    /// Whether its memory is measured, and so has a share of the budget.
    pub fn counts(&self) -> bool {
        matches!(self.state, stats::State::Observing | stats::State::Active | stats::State::Frozen)
    }
}

/// Reads a page for its present state. `None` for what is no page, or not one yet.
pub fn read_image(file: &PageFile) -> Option<Image> {
    read_page(&file.path, file.pid, image_of).ok()
}

/// What [`read_image`] and [`read_all`] tell of one page, by one look at it.
pub fn read_now(file: &PageFile) -> Option<(Image, ProcessStats)> {
    read_page(&file.path, file.pid, |page| (image_of(page), figures_of(page))).ok()
}

fn image_of(page: &StatsPage) -> Image {
    // No machine has as much memory; sums of such numbers do not overflow.
    let bytes = |field: &AtomicU64| field.load(Relaxed).min(1 << 50);
    Image {
        pid: page.pid.load(Relaxed),
        pid_namespace: page.pid_namespace.load(Relaxed),
        start_ticks: page.start_ticks.load(Relaxed),
        started_ns: page.started_ns.load(Relaxed),
        updated_ns: page.updated_ns.load(Relaxed),
        state: stats::State::from_number(page.state.load(Relaxed)),
        ended_early: page.measured_until_ns.load(Relaxed) != 0,
        forked: page.forked.load(Relaxed) != 0,
        at_floor: page.at_floor.load(Relaxed) != 0,
        committed_bytes: bytes(&page.committed_bytes),
        logical_bytes: bytes(&page.logical_bytes),
        physical_bytes: bytes(&page.physical_bytes),
        peak_physical_bytes: bytes(&page.peak_physical_bytes),
        peak_logical_bytes: bytes(&page.peak_logical_bytes),
        peak_overhead_bytes: bytes(&page.peak_overhead_bytes),
        lost_ns: page.counts.lost_ns.load(Relaxed),
        served_faults: served_faults(page),
    }
}

fn served_faults(page: &StatsPage) -> u64 {
    let count = page.tier_count.load(Relaxed) as usize;
    let ours = page.tiers[..count].iter().filter(|tier| stats::get_text(&tier.name) != "swap");
    let faults = ours.fold(0, |sum: u64, tier| sum.saturating_add(tier.faults.load(Relaxed)));
    faults.saturating_sub(page.counts.ahead_pages.load(Relaxed)).min(1 << 50)
}

/// The names of a process's tiers, DRAM first. `None` for what is no page, or not one yet.
pub fn tier_names(file: &PageFile) -> Option<Vec<String>> {
    let names = |page: &StatsPage| {
        let count = page.tier_count.load(Relaxed) as usize;
        page.tiers[..count].iter().map(|tier| text_of(&tier.name)).collect()
    };
    read_page(&file.path, file.pid, names).ok()
}

/// Tells a process what it may have, made from the `peak_logical_bytes` that it had. A write of
/// these few bytes is seen whole or, at worst, for one tick of the process's mover in parts. That
/// is a wrong budget for some milliseconds.
pub fn write_share(file: &Path, share_bytes: u64, for_bytes: u64) -> io::Result<()> {
    const OFFSET: usize = std::mem::offset_of!(StatsPage, share_bytes);
    const { assert!(std::mem::offset_of!(StatsPage, share_for_bytes) == OFFSET + 8) };
    let file = open_page(file, true)?;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&share_bytes.to_ne_bytes());
    bytes[8..].copy_from_slice(&for_bytes.to_ne_bytes());
    file.write_all_at(&bytes, OFFSET as u64)
}

/// Tells a process the knob and the window of its placement model.
pub fn write_model(file: &Path, knob: Knob, window: Window) -> io::Result<()> {
    const OFFSET: usize = std::mem::offset_of!(StatsPage, knob_told);
    const { assert!(std::mem::offset_of!(StatsPage, window_told_ms) == OFFSET + 8) };
    let millionths = (knob.0 * 1e6).round() as u64 + 1;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&millionths.to_ne_bytes());
    bytes[8..].copy_from_slice(&window.0.to_ne_bytes());
    open_page(file, true)?.write_all_at(&bytes, OFFSET as u64)
}

/// Tells a process which of its tiers take pages, a bit for each by its number.
pub fn write_tiers(file: &Path, tiers: u64) -> io::Result<()> {
    const OFFSET: usize = std::mem::offset_of!(StatsPage, tiers_told);
    open_page(file, true)?.write_all_at(&tiers.to_ne_bytes(), OFFSET as u64)
}

/// Where samples for one process are written.
pub struct SampleFile {
    file: File,
    /// The page's file.
    pub name: String,
    sent: u64,
    interrupts: RingReader<INTERRUPT_SLOTS, INTERRUPT_WORDS>,
}

impl SampleFile {
    const PERIOD: u64 = (std::mem::offset_of!(StatsFile, interrupts)
        + std::mem::offset_of!(InterruptRing, period_ns)) as u64;
    const UNTIL: u64 = (std::mem::offset_of!(StatsFile, interrupts)
        + std::mem::offset_of!(InterruptRing, until_ns)) as u64;
    const INTERRUPTS: u64 = (std::mem::offset_of!(StatsFile, interrupts)
        + std::mem::offset_of!(InterruptRing, ring)) as u64;
    const SENT: u64 =
        (std::mem::offset_of!(StatsFile, samples) + std::mem::offset_of!(SampleRing, sent)) as u64;
    const SLOTS: u64 =
        (std::mem::offset_of!(StatsFile, samples) + std::mem::offset_of!(SampleRing, slots)) as u64;

    /// After this time without a word it is not believed how much sampling a process wants, ns.
    const SILENT_NS: u64 = 2_000_000_000;

    /// Opens a page for samples; `None` if it is not one.
    pub fn open(page: &PageFile) -> Option<SampleFile> {
        let file = open_whole(page, true)?;
        let mut interrupts = RingReader { at: Self::INTERRUPTS, taken: 0 };
        interrupts.taken = interrupts.begun(&file)?;
        let sent = number(&file, Self::SENT)?;
        Some(SampleFile { file, name: page.name.clone(), sent, interrupts })
    }

    /// How much sampling the process thinks worth while (1 is the usual); `None` if it does not
    /// say, or not any more.
    pub fn wanted(&self) -> Option<f64> {
        const PAGE: usize = std::mem::offset_of!(StatsFile, page);
        let updated_ns =
            number(&self.file, (PAGE + std::mem::offset_of!(StatsPage, updated_ns)) as u64)?;
        let percent =
            number(&self.file, (PAGE + std::mem::offset_of!(StatsPage, samples_percent)) as u64)?;
        let speaks = terrace_os::now_ns().saturating_sub(updated_ns) < Self::SILENT_NS;
        Some(percent.min(1_000) as f64 / 100.0).filter(|wanted| speaks && *wanted > 0.0)
    }

    /// Has the process's threads interrupted each time that they have run for `period_ns`; 0 ends
    /// that. It has to be said again within [`SampleFile::SILENT_NS`].
    pub fn set_period(&self, period_ns: u64) -> io::Result<()> {
        let until_ns = terrace_os::now_ns() + Self::SILENT_NS;
        self.file.write_all_at(&until_ns.to_ne_bytes(), Self::UNTIL)?;
        self.file.write_all_at(&period_ns.to_ne_bytes(), Self::PERIOD)
    }

    /// Takes out where threads were interrupted: thread, instruction, flags, registers. Returns how
    /// many were lost.
    pub fn interrupts(&mut self, each: impl FnMut(&[u64; INTERRUPT_WORDS])) -> u64 {
        self.interrupts.take(&self.file, each)
    }

    /// Writes entries, and then that they are there; of too many, the first.
    pub fn send(&mut self, entries: &[u64]) -> io::Result<()> {
        let entries = &entries[..entries.len().min(SAMPLE_SLOTS)];
        let first = (self.sent % SAMPLE_SLOTS as u64) as usize;
        // Around the end of the ring.
        let (before, after) = entries.split_at(entries.len().min(SAMPLE_SLOTS - first));
        for (slot, part) in [(first, before), (0, after)] {
            let bytes: Vec<u8> = part.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
            self.file.write_all_at(&bytes, Self::SLOTS + slot as u64 * 8)?;
        }
        self.sent = self.sent.wrapping_add(entries.len() as u64);
        self.file.write_all_at(&self.sent.to_ne_bytes(), Self::SENT)
    }
}

/// What has been read of a process's ring.
#[derive(Debug)]
struct RingReader<const SLOTS: usize, const WORDS: usize> {
    /// Where the ring begins in the file.
    at: u64,
    /// Notes that have been read, or lost.
    taken: u64,
}

impl<const SLOTS: usize, const WORDS: usize> RingReader<SLOTS, WORDS> {
    fn begun(&self, file: &File) -> Option<u64> {
        number(file, self.at + std::mem::offset_of!(Ring<SLOTS, WORDS>, begun) as u64)
    }

    /// Takes out what came since. Returns how many were lost; what is being written is lost, too.
    fn take(&mut self, file: &File, mut each: impl FnMut(&[u64; WORDS])) -> u64 {
        let Some(begun) = self.begun(file) else { return 0 };
        let from = self.taken.max(begun.saturating_sub(SLOTS as u64)).min(begun);
        let mut lost = begun.saturating_sub(self.taken).min(u64::from(u32::MAX));
        self.taken = begun;
        let mut slot = vec![0; size_of::<Slot<WORDS>>()];
        let slots = self.at + std::mem::offset_of!(Ring<SLOTS, WORDS>, slots) as u64;
        for note in from..begun {
            let at = slots + note % SLOTS as u64 * slot.len() as u64;
            // Its number, all of it, and its number again: it may be written over meanwhile.
            let (before, read) = (number(file, at), file.read_exact_at(&mut slot, at));
            if read.is_err() || before != Some(note + 1) || number(file, at) != before {
                continue;
            }
            let mut words = slot
                .chunks_exact(8)
                .skip(1)
                .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
            lost -= 1;
            each(&std::array::from_fn(|_| words.next().unwrap_or(0)));
        }
        lost
    }
}

/// Where a process lists its moves.
#[derive(Debug)]
pub struct MoveFile {
    file: File,
    ring: RingReader<MOVE_SLOTS, MOVE_WORDS>,
}

impl MoveFile {
    /// Opens a page for reading; `None` if it is not one.
    pub fn open(page: &PageFile) -> Option<MoveFile> {
        let ring = RingReader { at: std::mem::offset_of!(StatsFile, moves) as u64, taken: 0 };
        Some(MoveFile { file: open_whole(page, false)?, ring })
    }

    /// Takes out what moved since. Returns how many moves were lost, with those that no Terrace
    /// lists.
    pub fn take(&mut self, mut each: impl FnMut(Moved)) -> u64 {
        let mut nonsense = 0;
        let lost = self.ring.take(&self.file, |words| match Moved::from_words(words) {
            Some(moved) => each(moved),
            None => nonsense += 1,
        });
        lost + nonsense
    }
}

/// Where a process tells of the windows of its placement model.
#[derive(Debug)]
pub struct WindowFile {
    file: File,
    ring: RingReader<ROW_SLOTS, ROW_WORDS>,
}

impl WindowFile {
    /// Opens a page for reading; `None` if it is not one.
    pub fn open(page: &PageFile) -> Option<WindowFile> {
        let ring = RingReader { at: std::mem::offset_of!(StatsFile, windows) as u64, taken: 0 };
        Some(WindowFile { file: open_whole(page, false)?, ring })
    }

    /// Takes out the rows that are new. Returns how many were lost, with those that no Terrace
    /// writes.
    pub fn take(&mut self, mut each: impl FnMut(Row)) -> u64 {
        let mut nonsense = 0;
        let lost = self.ring.take(&self.file, |words| match Row::from_words(words) {
            Some(row) => each(row),
            None => nonsense += 1,
        });
        lost + nonsense
    }
}

fn number(file: &File, offset: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// Opens a page and what is behind it. A shorter file is not one of ours, or not one yet: writing
/// would make it longer.
fn open_whole(page: &PageFile, write: bool) -> Option<File> {
    let file = open_page(&page.path, write).ok()?;
    (file.metadata().ok()?.len() == size_of::<StatsFile>() as u64).then_some(file)
}

/// The newest page of each process.
pub fn newest_pages(run_dir: &Path) -> HashMap<u32, PageFile> {
    let mut newest: HashMap<u32, PageFile> = HashMap::new();
    for file in page_files(run_dir) {
        if newest.get(&file.pid).is_none_or(|known| known.started_ns < file.started_ns) {
            newest.insert(file.pid, file);
        }
    }
    newest
}

/// A file in a run directory that may be a page.
#[derive(Clone, Debug)]
pub struct PageFile {
    pub name: String,
    pub path: PathBuf,
    /// The process, by the file's name.
    pub pid: u32,
    /// When the page was made, by the file's name.
    pub started_ns: u64,
}

/// The files in a run directory that may be pages.
pub fn page_files(run_dir: &Path) -> impl Iterator<Item = PageFile> + use<> {
    let entries = fs::read_dir(run_dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (pid, started_ns) = page_name(&name)?;
        Some(PageFile { pid, started_ns, path: entry.path(), name })
    })
}

/// The process of a page's file, which is called `<pid>-<started_ns>.stats`, and that time.
fn page_name(name: &str) -> Option<(u32, u64)> {
    let (pid, started) = name.strip_suffix(".stats")?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // A time that no clock shows is before all others.
    (is_number(pid) && is_number(started))
        .then(|| Some((pid.parse().ok()?, started.parse().unwrap_or(0))))?
}

/// Opens a page, which may have become anything: through no link, and without waiting.
fn open_page(file: &Path, write: bool) -> io::Result<File> {
    File::options()
        .read(true)
        .write(write)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(file)
}

/// What `take` makes of the page in a file; `Err` says what is wrong with it.
fn read_page<T>(file: &Path, pid: u32, take: impl FnOnce(&StatsPage) -> T) -> Result<T, String> {
    const BYTES: usize = size_of::<StatsPage>();
    const FILE_BYTES: usize = size_of::<StatsFile>();
    let opened = open_page(file, false).map_err(|e| e.to_string())?;
    let len = opened.metadata().map_err(|e| e.to_string())?.len();
    // Where the size of files is limited there are no rings behind it.
    if len != FILE_BYTES as u64 && len != BYTES as u64 {
        return Err(format!("it has {len} bytes instead of {FILE_BYTES}"));
    }
    let mut content = vec![0; BYTES];
    opened.read_exact_at(&mut content, 0).map_err(|e| e.to_string())?;
    // Words, for their alignment.
    let words: Vec<u64> = content
        .chunks_exact(8)
        .map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("chunks of 8")))
        .collect();
    const { assert!(BYTES.is_multiple_of(8) && align_of::<StatsPage>() == 8) };
    // SAFETY: `words` holds exactly size_of::<StatsPage>() bytes at alignment 8 and outlives the
    // reference; the struct is repr(C) and made of atomic integers only, for which every bit
    // pattern is valid.
    let page = unsafe { &*words.as_ptr().cast::<StatsPage>() };
    if page.magic.load(Relaxed) != MAGIC {
        return Err("it is unfinished, or another version's".into());
    }
    implausible(page, pid).map_or_else(|| Ok(take(page)), Err)
}

/// What no Terrace writes, if the page has such a thing.
fn implausible(page: &StatsPage, pid: u32) -> Option<String> {
    let tier_count = page.tier_count.load(Relaxed) as usize;
    let state = page.state.load(Relaxed);
    let wrong = |what: &str, value: &dyn std::fmt::Display| Some(format!("its {what} is {value}"));
    if page.pid.load(Relaxed) != pid {
        return wrong("process", &page.pid.load(Relaxed));
    }
    if stats::State::from_number(state) as u32 != state {
        return wrong("state", &state);
    }
    if tier_count > page.tiers.len() {
        return wrong("number of tiers", &tier_count);
    }
    if page.budget_met.load(Relaxed) > 1 {
        return wrong("budget_met", &page.budget_met.load(Relaxed));
    }
    let updated_early = page.updated_ns.load(Relaxed) < page.started_ns.load(Relaxed);
    updated_early.then(|| "it was updated before it was started".into())
}

/// A text for people: a program's name may have anything in it, a terminal's escapes too.
fn text_of(field: &[AtomicU64]) -> String {
    stats::get_text(field).replace(char::is_control, "\u{fffd}")
}

fn figures_of(page: &StatsPage) -> ProcessStats {
    let long = |field: &AtomicU64| field.load(Relaxed);
    let short = |field: &AtomicU32| field.load(Relaxed);
    let tier_count = short(&page.tier_count) as usize;
    let tiers = page.tiers[..tier_count].iter().map(|tier| {
        let faults = long(&tier.faults);
        let in_files =
            |field: &AtomicU64| (long(&tier.file_bytes) != u64::MAX).then(|| long(field));
        // The kernel's own faults are not timed.
        let us = |field: &AtomicU64| {
            Some(long(field)).filter(|ns| faults > 0 && *ns > 0).map(|ns| ns as f64 / 1e3)
        };
        Tier {
            name: text_of(&tier.name),
            logical_bytes: long(&tier.mean_logical_bytes),
            physical_bytes: long(&tier.mean_physical_bytes),
            pages: long(&tier.pages),
            faults,
            fault_p50_us: us(&tier.fault_p50_ns),
            fault_p99_us: us(&tier.fault_p99_ns),
            rejected: long(&tier.rejected),
            file_bytes: in_files(&tier.file_bytes),
            held_bytes: in_files(&tier.held_bytes),
        }
    });
    ProcessStats {
        pid: short(&page.pid),
        program: text_of(&page.program),
        state: stats::State::from_number(short(&page.state)),
        note: text_of(&page.note),
        started_ns: long(&page.started_ns),
        updated_ns: long(&page.updated_ns),
        measured_until_ns: Some(long(&page.measured_until_ns)).filter(|until| *until != 0),
        budget_bytes: Some(long(&page.budget_bytes)).filter(|budget| *budget < NO_BUDGET),
        budget_met: short(&page.budget_met) != 0,
        floor_bytes: long(&page.floor_bytes),
        mean_window_ms: long(&page.mean_window_ms),
        mean_logical_bytes: long(&page.mean_logical_bytes),
        mean_physical_bytes: long(&page.mean_physical_bytes),
        mean_overhead_bytes: long(&page.mean_overhead_bytes),
        peak_overhead_bytes: long(&page.peak_overhead_bytes),
        mean_unmanaged_bytes: long(&page.mean_unmanaged_bytes),
        peak_logical_bytes: long(&page.peak_logical_bytes),
        peak_physical_bytes: long(&page.peak_physical_bytes),
        over_budget_ms: long(&page.over_budget_ms),
        far_over_budget_ms: long(&page.far_over_budget_ms),
        floor_ms: long(&page.floor_ms),
        counts: page.counts.read(),
        last_minute_ns: long(&page.last_minute_ns),
        last_minute_lost_ns: long(&page.last_minute_lost_ns),
        steps: steps_of(page),
        tiers: tiers.collect(),
    }
}

fn steps_of(page: &StatsPage) -> Option<Steps> {
    let us = |field: &AtomicU64| field.load(Relaxed) as f64 / 1e3;
    let [room, claim, decompress, copy, after] = page
        .fault_step_ns
        .each_ref()
        .map(|[p50, p99]| StepTimes { p50_us: us(p50), p99_us: us(p99) });
    let [scan_us, move_us, compress_us, store_us, empty_us] =
        page.eviction_step_ns.each_ref().map(us);
    let (faults, pages) = (page.traced_faults.load(Relaxed), page.traced_evictions.load(Relaxed));
    (faults > 0 || pages > 0).then_some(Steps {
        fault: FaultSteps { faults, room, claim, decompress, copy, after },
        eviction: EvictionSteps { pages, scan_us, move_us, compress_us, store_us, empty_us },
    })
}

/// Figures of tests, for the modules that turn them into reports.
#[cfg(test)]
pub mod samples {
    use super::*;

    /// The file of an idle process's page.
    pub fn page_of(pid: u32, started_ns: u64, start_ticks: u64, pid_namespace: u64) -> Vec<u8> {
        let words = vec![0u64; size_of::<StatsFile>() / 8];
        // SAFETY: as in read_page: large enough, the right alignment, and atomics only; the vector
        // is not used meanwhile.
        let page = unsafe { &*words.as_ptr().cast::<StatsPage>() };
        page.magic.store(MAGIC, Relaxed);
        page.pid.store(pid, Relaxed);
        page.pid_namespace.store(pid_namespace, Relaxed);
        page.start_ticks.store(start_ticks, Relaxed);
        page.started_ns.store(started_ns, Relaxed);
        page.updated_ns.store(started_ns, Relaxed);
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// A process in the middle of a good day: 3.3 GiB in 1.9 GiB.
    pub fn active(pid: u32) -> ProcessStats {
        let tier = |name: &str, logical: u64, physical: u64, faults: u64| Tier {
            name: name.into(),
            logical_bytes: logical,
            physical_bytes: physical,
            pages: logical / 4096,
            faults,
            fault_p50_us: (faults > 0).then_some(9.2),
            fault_p99_us: (faults > 0).then_some(31.0),
            rejected: 3,
            file_bytes: None,
            held_bytes: None,
        };
        ProcessStats {
            pid,
            program: "redis-server".into(),
            state: stats::State::Active,
            note: String::new(),
            started_ns: 1_000_000_000,
            updated_ns: 62_000_000_000,
            measured_until_ns: None,
            budget_bytes: Some(2 << 30),
            budget_met: true,
            floor_bytes: 0,
            mean_window_ms: 60_000,
            mean_logical_bytes: 3_543_348_020,
            mean_physical_bytes: 2_040_109_466,
            mean_overhead_bytes: 38 << 20,
            peak_overhead_bytes: 40 << 20,
            mean_unmanaged_bytes: 12 << 20,
            peak_logical_bytes: 3_643_348_020,
            peak_physical_bytes: 2_100_000_000,
            over_budget_ms: 300,
            far_over_budget_ms: 100,
            floor_ms: 0,
            counts: Counted {
                promoted_pages: 812_345,
                demoted_pages: 1_200_000,
                demoted_for: [700_000, 1_000, 400_000, 99_000, 0, 0, 0, 0],
                unchanged_pages: 301_222,
                failed_moves: 17,
                move_error: 16,
                shared_pages: 512,
                stall_ns: 1_900_000_000,
                lost_ns: 1_900_000_000,
                cpu_ns: 730_000_000,
                ..Counted::default()
            },
            last_minute_ns: 60_000_000_000,
            last_minute_lost_ns: 600_000_000,
            steps: None,
            tiers: vec![
                tier("dram", 1 << 30, 1 << 30, 0),
                tier("lz4", 2_469_606_196, 751_619_276, 812_345),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(pid: u32, started: u64) -> Vec<u64> {
        let words = vec![0u64; size_of::<StatsFile>() / 8];
        // SAFETY: as in read_page: large enough, the right alignment, and atomics only; the vector
        // is not used meanwhile.
        let page = unsafe { &*words.as_ptr().cast::<StatsPage>() };
        page.magic.store(MAGIC, Relaxed);
        page.pid.store(pid, Relaxed);
        page.state.store(stats::State::Active as u32, Relaxed);
        page.started_ns.store(started, Relaxed);
        page.updated_ns.store(started, Relaxed);
        page.budget_bytes.store(u64::MAX, Relaxed);
        page.tier_count.store(2, Relaxed);
        page.mean_logical_bytes.store(100, Relaxed);
        page.mean_physical_bytes.store(120, Relaxed);
        stats::set_text(&page.note, "a note");
        stats::set_text(&page.tiers[1].name, "lz4");
        page.tiers[1].faults.store(7, Relaxed);
        page.tiers[1].fault_p50_ns.store(9_200, Relaxed);
        words
    }

    fn write(directory: &Path, name: &str, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        fs::write(directory.join(name), bytes).unwrap();
    }

    #[test]
    fn pages_are_read_and_everything_else_is_left_out() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        write(at, "12-50.stats", &page(12, 50));
        write(at, "13-40.stats", &page(13, 40));
        let mut other_magic = page(14, 1);
        other_magic[0] += 1;
        write(at, "14-1.stats", &other_magic);
        write(at, "15-1.stats", &page(15, 1)[1..]);
        write(at, "16-1.stats", &[page(16, 1), vec![0]].concat());
        write(at, "notes.txt", &page(17, 1));
        write(at, "-1.stats", &page(18, 1));
        fs::create_dir(at.join("19-1.stats")).unwrap();
        std::os::unix::fs::symlink(at.join("12-50.stats"), at.join("20-1.stats")).unwrap();
        let Pages { good: all, damaged } = read_all(at);
        assert_eq!(damaged.iter().map(|damaged| damaged.pid).collect::<Vec<_>>(), [14, 15, 16]);
        assert!(
            damaged[1..].iter().all(|damaged| damaged.why.starts_with("it has ")),
            "{damaged:?}"
        );
        assert_eq!(all.iter().map(|figures| figures.pid).collect::<Vec<_>>(), [13, 12]);
        let figures = &all[1];
        assert_eq!(
            (figures.budget_bytes, figures.saved_bytes(), figures.note.as_str()),
            (None, -20, "a note")
        );
        assert_eq!((figures.tiers.len(), figures.faults()), (2, 7));
        assert_eq!(
            (figures.tiers[0].fault_p50_us, figures.tiers[1].fault_p50_us),
            (None, Some(9.2))
        );
        assert_eq!(read_all(&at.join("nowhere")), Pages::default());
    }

    #[test]
    fn what_no_terrace_writes_is_damage() {
        let scratch = tempfile::tempdir().unwrap();
        for (offset, value, why) in [
            (
                std::mem::offset_of!(StatsPage, tier_count),
                0xFFFF << 32,
                "its number of tiers is 65535",
            ),
            (std::mem::offset_of!(StatsPage, pid), 9 << 32 | 1, "its state is 9"),
            (std::mem::offset_of!(StatsPage, pid), 2, "its process is 2"),
            (
                std::mem::offset_of!(StatsPage, started_ns),
                2,
                "it was updated before it was started",
            ),
        ] {
            let mut words = page(1, 1);
            words[offset / 8] = value;
            write(scratch.path(), "1-1.stats", &words);
            let pages = read_all(scratch.path());
            assert!(
                pages.good.is_empty()
                    && pages.damaged.len() == 1
                    && pages.damaged[0].why.starts_with(why),
                "{pages:?}"
            );
        }
    }

    #[test]
    fn a_share_is_put_where_the_process_looks_and_nowhere_else() {
        let scratch = tempfile::tempdir().unwrap();
        let (words, name) = (page(12, 50), scratch.path().join("12-50.stats"));
        write(scratch.path(), "12-50.stats", &words);
        write_share(&name, 300, 400).unwrap();
        let shares =
            |page: &StatsPage| (page.share_bytes.load(Relaxed), page.share_for_bytes.load(Relaxed));
        assert_eq!(read_page(&name, 12, shares), Ok((300, 400)));
        write_share(&name, 0, 0).unwrap();
        assert_eq!(
            fs::read(&name).unwrap(),
            words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>()
        );
        assert!(write_share(&scratch.path().join("13-1.stats"), 1, 1).is_err());
    }

    #[test]
    fn samples_are_put_into_the_newest_page_and_read_there() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        for name in ["12-50.stats", "12-9.stats", "13-60.stats"] {
            write(at, name, &page(12, 50));
        }
        write(at, "14-1.stats", &page(14, 1)[1..]);
        let open = |pid: u32| SampleFile::open(newest_pages(at).get(&pid)?);
        assert!(open(14).is_none() && open(15).is_none());
        assert_eq!(open(12).unwrap().name, "12-50.stats");
        let mut taken = 0;
        let mut read = || {
            let bytes = fs::read(at.join("12-50.stats")).unwrap();
            let words: Vec<u64> = bytes
                .chunks_exact(8)
                .map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap()))
                .collect();
            assert_eq!(words.len() * 8, size_of::<StatsFile>());
            // SAFETY: the right size and alignment, and atomics only; the vector outlives the
            // reference.
            let file = unsafe { &*words.as_ptr().cast::<StatsFile>() };
            let mut all = Vec::new();
            file.samples.take(&mut taken, |address, weight| all.push((address as u64, weight)));
            all
        };
        let mut next = 0;
        // Around the end of the ring, by a process that opens it again each time.
        for count in [3, 2_500, 2_500, 0, 1] {
            let sent: Vec<(u64, f32)> =
                (next..next + count).map(|n| (n << 33, 0.5 * n as f32 % 4096.0)).collect();
            next += count;
            let entries: Vec<u64> =
                sent.iter().map(|(address, weight)| SampleRing::entry(*address, *weight)).collect();
            open(12).unwrap().send(&entries).unwrap();
            assert_eq!(read(), sent);
        }
        open(12).unwrap().send(&vec![7; 5000]).unwrap();
        assert_eq!(read().len(), SAMPLE_SLOTS);
    }

    #[test]
    fn interrupts_come_once_and_the_oldest_are_lost() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        let path = at.join("12-50.stats");
        write(at, "12-50.stats", &page(12, 50));
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        // SAFETY: a whole file of atomics, not unmapped in this test.
        let shared = unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                size_of::<StatsFile>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            );
            assert_ne!(memory, libc::MAP_FAILED);
            &*memory.cast::<StatsFile>()
        };
        let mut reader = SampleFile::open(&newest_pages(at)[&12]).unwrap();
        reader.set_period(4_000_000).unwrap();
        assert_eq!(shared.interrupts.period_ns.load(Relaxed), 4_000_000);
        assert!(shared.interrupts.until_ns.load(Relaxed) > terrace_os::now_ns());
        let mut next = 0;
        let mut interrupt = |count: u64| {
            (next..next + count).for_each(|n| {
                shared.interrupts.ring.write(&std::array::from_fn(|word| n + word as u64))
            });
            next += count;
        };
        let mut read = || {
            let mut seen = Vec::new();
            let lost = reader.interrupts(|words| {
                assert!(
                    words.iter().zip(words[0]..).all(|(word, expected)| *word == expected),
                    "{words:?}"
                );
                seen.push(words[0]);
            });
            (seen, lost)
        };
        interrupt(3);
        assert_eq!(read(), (vec![0, 1, 2], 0));
        assert_eq!(read(), (vec![], 0));
        interrupt(INTERRUPT_SLOTS as u64 + 5);
        assert_eq!(read(), ((8..8 + INTERRUPT_SLOTS as u64).collect(), 5));
        // One that is being written.
        interrupt(2);
        shared.interrupts.ring.slots[(next as usize - 1) % INTERRUPT_SLOTS]
            .number
            .store(0, Relaxed);
        assert_eq!(read(), (vec![next - 2], 1));
    }

    #[test]
    fn a_texts_escapes_do_not_reach_the_terminal() {
        let scratch = tempfile::tempdir().unwrap();
        let mut words = page(1, 1);
        words[std::mem::offset_of!(StatsPage, program) / 8] = u64::from_ne_bytes(*b"a\x1b[2J\nbc");
        write(scratch.path(), "1-1.stats", &words);
        assert_eq!(read_all(scratch.path()).good[0].program, "a\u{fffd}[2J\u{fffd}bc");
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::with_cases(256) })]
        /// Whatever is in a page, the report says something printable of it, and its JSON holds the
        /// same numbers.
        #[test]
        fn any_page_makes_a_report(
            damage in proptest::collection::vec((0..size_of::<StatsPage>() / 8, proptest::prelude::any::<u64>()), 0..200),
            cut in proptest::option::of(0..size_of::<StatsPage>()),
        ) {
            let scratch = tempfile::tempdir().unwrap();
            let mut words = page(7, 1);
            // The first two words make it a page of this process; without them it is refused at
            // once.
            damage.iter().filter(|(at, _)| *at > 1).for_each(|(at, value)| words[*at] = *value);
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.truncate(cut.unwrap_or(bytes.len()));
            fs::write(scratch.path().join("7-1.stats"), &bytes).unwrap();
            let pages = read_all(scratch.path());
            proptest::prop_assert_eq!(pages.good.len() + pages.damaged.len(), 1);
            let settings = terrace_control::settings::Settings::default();
            let mut run = crate::run_report::samples::run(&settings);
            run.unusable_page = pages.damaged.first().map(|damaged| damaged.why.clone());
            let report = crate::run_report::Report::new(&run, &pages.good);
            let text = crate::run_report::text::text(&report, &settings);
            proptest::prop_assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{:?}", text);
            proptest::prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{:?}", text);
            let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
            proptest::prop_assert_eq!(json["managed"].as_bool(), Some(report.managed));
            proptest::prop_assert_eq!(json["logical_bytes"].as_u64(), report.logical_bytes);
            proptest::prop_assert_eq!(json["saved_bytes"].as_i64(), report.saved_bytes);
            proptest::prop_assert_eq!(json["note"].as_str(), report.note.as_deref());
            // serde_json reads numbers with a fraction to the last bit but one.
            let close = |a: f64, b: f64| (a - b).abs() <= b.abs() * 1e-12;
            proptest::prop_assert!(report.stall_s.is_none_or(|stall| json["stall_s"].as_f64().is_some_and(|told| close(told, stall))));
            proptest::prop_assert_eq!(json["tiers"].as_array().map(Vec::len), Some(report.tiers.len()));
            for (told, tier) in json["tiers"].as_array().unwrap().iter().zip(&report.tiers) {
                proptest::prop_assert_eq!((told["pages"].as_u64(), told["faults"].as_u64()), (Some(tier.pages), Some(tier.faults)));
            }
            if let Some(damaged) = pages.damaged.first() {
                proptest::prop_assert!(text.contains(&damaged.why) && !report.managed, "{}", text);
            }
        }
    }

    #[test]
    fn the_last_image_of_an_exec_chain_counts_unless_it_saw_nothing() {
        let image = |pid, started_ns| ProcessStats { started_ns, ..samples::active(pid) };
        let idle = |pid, started_ns| ProcessStats {
            state: stats::State::Idle,
            mean_logical_bytes: 0,
            peak_logical_bytes: 0,
            ..image(pid, started_ns)
        };
        assert_eq!(of_process(&[image(1, 1), image(2, 2), image(1, 3)], 1), Some(2));
        assert_eq!(of_process(&[image(1, 1), idle(1, 3)], 1), Some(0));
        assert_eq!(of_process(&[idle(1, 1), idle(1, 3)], 1), Some(1));
        assert_eq!(of_process(&[image(2, 1)], 1), None);
    }
}
