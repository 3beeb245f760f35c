//! What the kernel says of a run's memory, looked at from outside, a few times a second:
//!
//! - how much there is that Terrace does not manage, and of which kind;
//! - how much there was after Terrace ended in a process that went on.
//!
//! Processes that never had anything to manage are looked at too: nothing runs in them that could
//! tell. Memory by kind is known from /proc/PID/smaps. That takes a look at every page, so it is
//! read only as memory grows.

use crate::processes::belief::{self, Bounds};
use crate::processes::process::{self, cpu_time, kib_of};
use crate::processes::statistics::{self, PageFile};
use crate::quantity::bytes;
use crate::run::reach;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_control::MANAGED_FROM;
use terrace_control::settings::{Eviction, MIN_BUDGET_BYTES, Settings};
use terrace_control::stats::State;
use terrace_os as sys;

/// Time between polls, and the greatest share of it that a poll may take of a CPU.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const POLL_SHARE: u32 = 64;
/// Greatest share of a CPU that polls by kind may take: one part in this many. Such polls are few.
const BY_KIND_SHARE: u32 = 8;
/// Time between polls until the program is there.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Unmanaged memory from which on it is looked at by kind, bytes; and again when it has grown by a
/// quarter, or has come to rest. From the second size of a process's anonymous memory on, a poll
/// takes too long.
const BY_KIND_FROM: u64 = 16 << 20;
const BY_KIND_MOST: u64 = 4 << 30;
/// Least memory of a kind that is worth a word, bytes.
const WORTH_TELLING: u64 = 4 << 20;

/// A process that has no page after this time has none.
const APART_AFTER: Duration = Duration::from_secs(1);
/// Most processes without a statistics page that are reported although they are gone.
const APART_KEPT: usize = 100;
/// Processes of Terrace's own among the descendants.
const OUR_OWN: [&str; 3] = ["terrace-pager", "terrace-keeper", "signal-witness"];

/// Memory out of Terrace's reach, by kind: the most that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OtherMemory {
    /// Shared memory (anonymous, memfd, System V, files in memory) of all processes of the run; a
    /// page that several of them map, or one maps several times, counts once.
    pub shared_bytes: u64,
    /// Variables of the program and its libraries that are not managed: what was written to of
    /// `.data`, and `.bss` of libraries.
    pub static_bytes: u64,
    /// The heap of `brk` and `sbrk` that Terrace was not told of (moved by an instruction of the
    /// program's own, or inside the C library).
    pub break_bytes: u64,
    /// Private mappings below 256 KiB.
    pub small_bytes: u64,
    /// Private memory that may be executed.
    pub executable_bytes: u64,
    /// Private memory that is locked.
    pub locked_bytes: u64,
    /// Huge pages of hugetlbfs.
    pub huge_bytes: u64,
}

impl OtherMemory {
    /// The kinds, with words for people, and how memory of that kind is made one that is managed:
    /// the largest first.
    fn kinds(&self) -> Vec<(u64, &'static str, &'static str)> {
        let mut kinds = vec![
            (
                self.shared_bytes,
                "shared (several processes may have its pages)",
                "settings by which the program has it private or smaller (shared_buffers; -XX:+UseG1GC for ZGC)",
            ),
            (
                self.static_bytes,
                "static data (.bss and .data)",
                "malloc instead of large variables",
            ),
            (self.break_bytes, "of brk and sbrk", "the C library's malloc, or a newer allocator"),
            (self.small_bytes, "in mappings below 256K", "malloc, or mappings of 256K and more"),
            (
                self.executable_bytes,
                "executable",
                "settings without compiled code (-Xint, --jitless)",
            ),
            (self.locked_bytes, "locked", "the program's settings without mlock"),
            (
                self.huge_bytes,
                "in huge pages of hugetlbfs",
                "the program's settings without huge pages",
            ),
        ];
        kinds.retain(|(bytes, ..)| *bytes >= WORTH_TELLING);
        kinds.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
        kinds
    }

    /// All of it that is worth telling.
    pub fn bytes(&self) -> u64 {
        self.kinds().iter().map(|(bytes, ..)| bytes).sum()
    }

    /// What there is, as a list; empty if that is little.
    pub fn text(&self) -> String {
        self.kinds()
            .iter()
            .map(|(size, what, _)| format!("{} {what}", bytes(*size)))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// What would make the largest part of it managed, if that is as much as a budget.
    pub fn remedy(&self) -> Option<&'static str> {
        let (size, _, remedy) = *self.kinds().first()?;
        (size >= MIN_BUDGET_BYTES).then_some(remedy)
    }

    /// What a process has now, by a look at all of its pages; static data and the break are taken
    /// as managed. `None` where that cannot be looked at, or would take too long.
    pub fn of_process(pid: u32) -> Option<OtherMemory> {
        let resident = process::resident(pid)?;
        if resident.anonymous_bytes >= BY_KIND_MOST {
            return None;
        }
        let smaps = File::open(format!("/proc/{pid}/smaps")).ok()?;
        let other = by_kind(BufReader::new(smaps), Managed::All);
        Some(OtherMemory { shared_bytes: resident.shared_bytes, ..other })
    }

    fn add(&mut self, other: &OtherMemory) {
        let most = |mine: &mut u64, others: u64| *mine = (*mine).max(others);
        most(&mut self.shared_bytes, other.shared_bytes);
        most(&mut self.static_bytes, other.static_bytes);
        most(&mut self.break_bytes, other.break_bytes);
        most(&mut self.small_bytes, other.small_bytes);
        most(&mut self.executable_bytes, other.executable_bytes);
        most(&mut self.locked_bytes, other.locked_bytes);
        most(&mut self.huge_bytes, other.huge_bytes);
    }
}

/// Anonymous memory of a process after Terrace ended in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Afterwards {
    /// How long memory was looked at.
    pub seconds: f64,
    /// Mean over that time.
    pub mean_anonymous_bytes: u64,
    /// The most that was seen.
    pub peak_anonymous_bytes: u64,
}

/// What was seen of one program image of one process, at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Known {
    /// The process's id.
    pub pid: u32,
    /// When the image was started.
    pub started_ns: u64,
    /// What Terrace does not manage of it.
    pub other: OtherMemory,
    /// Memory since Terrace ended in it.
    pub afterwards: Option<Afterwards>,
    /// The memory that it held, managed and other, evicted or not, summed up over time:
    /// byte-seconds.
    pub held_byte_s: f64,
    /// What is believed of its page; `None` if it was never seen to live.
    pub bounds: Option<Bounds>,
}

/// A process of the run that has no page: it may not write into the run's directory, there was no
/// place, or Terrace is not in it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Apart {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub program: String,
    /// The most anonymous memory that it was seen with.
    pub peak_anonymous_bytes: u64,
    /// Whether Terrace is in it. Where it is not, it was started without the library, though that
    /// could be loaded: LD_PRELOAD was replaced or cleared, or a program out of reach started it.
    #[serde(skip)]
    pub has_library: bool,
}

/// What is known of a descendant.
#[derive(Debug)]
struct Descendant {
    file: String,
    /// Time since which it seems to have no page; `None` if it has one, or needs none.
    apart_since: Option<Instant>,
    /// Anonymous memory of the process, bytes; of pages that it shares, its part.
    own_bytes: u64,
    /// Shared memory of the process, bytes, with all that other processes map.
    shared_bytes: u64,
    /// What is reported of it, once it was counted.
    told: Option<Apart>,
}

/// What is known of one program image of one process.
#[derive(Debug, Default)]
struct Seen {
    pid: u32,
    started_ns: u64,
    gone: bool,
    /// What it held at the last poll, when that was, and the sum over time.
    held_bytes: u64,
    held_ns: u64,
    held_byte_s: f64,
    /// See [`Bounds`]. `gone_ns`: when it was first seen not to be there.
    most_bytes: u64,
    most_swapped_bytes: u64,
    most_threads: u64,
    lied: bool,
    gone_ns: u64,
    /// Shared memory in its page table at the last poll: all mappings of a page count.
    shared_bytes: u64,
    other: OtherMemory,
    /// Unmanaged memory when it was last looked at by kind, bytes.
    by_kind_bytes: u64,
    /// Unmanaged memory at the last poll, bytes.
    unmanaged_bytes: u64,
    /// Memory since Terrace ended in it.
    afterwards: Option<Afterwards>,
    byte_seconds: f64,
    polled: Option<Instant>,
}

/// The processes of one run, from outside.
#[derive(Debug)]
pub struct Outside {
    run_dir: PathBuf,
    seen: HashMap<String, Seen>,
    /// When the run began.
    begun_ns: u64,
    /// Whether all processes of the run have a page (or should have).
    all_have_pages: bool,
    /// What the run's tiers may take outside its processes, bytes.
    elsewhere: u64,
    shared: Shared,
    /// How static data and the break can be told from what is managed of them.
    managed: Managed,
    descendants: HashMap<u32, Descendant>,
    /// Processes that had no page and are gone.
    apart: Vec<Apart>,
}

impl Outside {
    /// Watches the processes that put their statistics pages into `run_dir`.
    pub fn new(run_dir: &Path, settings: &Settings) -> Self {
        Outside {
            run_dir: run_dir.to_owned(),
            seen: HashMap::new(),
            begun_ns: sys::now_ns(),
            all_have_pages: settings.children,
            elsewhere: belief::elsewhere(&settings.tiers),
            shared: Shared::default(),
            managed: if settings.evict == Eviction::Move
                && !settings.observe
                && belief::takes_single_pages(&settings.tiers)
            {
                Managed::Marked
            } else {
                Managed::All
            },
            descendants: HashMap::new(),
            apart: Vec::new(),
        }
    }

    /// Looks at all processes. Returns when to poll again.
    pub fn poll(&mut self) -> Duration {
        let begun = cpu_time();
        let mut by_kind = Duration::ZERO;
        for (pid, file) in statistics::newest_pages(&self.run_dir) {
            let (name, started_ns) = (file.name.clone(), file.started_ns);
            let seen = self.seen.entry(name).or_insert_with(|| Seen {
                pid,
                started_ns,
                ..Seen::default()
            });
            if !seen.gone {
                by_kind += seen.poll(&file, self.elsewhere, self.managed);
            }
        }
        if self.all_have_pages {
            self.poll_detached();
        }
        let managed = self.seen.values().filter(|seen| !seen.gone);
        let apart = self.descendants.iter();
        let live: Vec<(u32, u64)> = managed
            .map(|seen| (seen.pid, seen.shared_bytes))
            .chain(apart.map(|(pid, descendant)| (*pid, descendant.shared_bytes)))
            .collect();
        by_kind += self.shared.poll(&live);
        if self.seen.is_empty() {
            return FIRST_POLL_INTERVAL;
        }
        let rest = (cpu_time() - begun).saturating_sub(by_kind);
        POLL_INTERVAL.max(rest * POLL_SHARE).max(by_kind * BY_KIND_SHARE)
    }

    /// What was seen of all processes. Memory that is shared counts for each.
    pub fn known(&self) -> Vec<Known> {
        let now_ns = sys::now_ns();
        let begun_ns = self.begun_ns;
        let bounds = |seen: &Seen| Bounds {
            bytes: seen.most_bytes.saturating_add(seen.most_swapped_bytes),
            seconds: seen.held_ns.saturating_sub(seen.started_ns.max(begun_ns)) as f64 / 1e9,
            threads: seen.most_threads,
            lied: seen.lied,
            unseen_s: if seen.gone_ns == 0 { now_ns } else { seen.gone_ns }
                .saturating_sub(seen.held_ns) as f64
                / 1e9,
        };
        let shared_bytes = self.shared.bytes();
        let known = |seen: &Seen| Known {
            pid: seen.pid,
            started_ns: seen.started_ns,
            other: OtherMemory { shared_bytes, ..seen.other },
            afterwards: seen.afterwards,
            held_byte_s: seen.held_byte_s,
            bounds: (seen.held_ns > 0).then(|| bounds(seen)),
        };
        self.seen.values().map(known).collect()
    }

    /// The shared memory of all of them: the most that was seen.
    pub fn shared_bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// The processes that have no page, so far.
    pub fn apart(&self) -> Vec<Apart> {
        let there = self.descendants.values().filter_map(|descendant| descendant.told.clone());
        let mut all: Vec<Apart> = self.apart.iter().cloned().chain(there).collect();
        all.sort_by_key(|apart| (std::cmp::Reverse(apart.peak_anonymous_bytes), apart.pid));
        all
    }

    /// How many processes without a page have Terrace now, and their part of the memory that they
    /// have.
    pub fn apart_now(&self) -> (usize, u64) {
        let has_library = |told: &Apart| told.has_library;
        let there = self
            .descendants
            .values()
            .filter(|descendant| descendant.told.as_ref().is_some_and(has_library));
        there.fold((0, 0), |(count, bytes), descendant| (count + 1, bytes + descendant.own_bytes))
    }

    /// Looks among all descendants for those that have the library and no page. Other descendants
    /// need a second look only once they executed something.
    fn poll_detached(&mut self) {
        let there = process::descendants();
        let now = Instant::now();
        for pid in &there {
            let Some((name, file)) = process::name_and_file(*pid) else { continue };
            let known = self.descendants.get(pid).filter(|known| known.file == file);
            if known.is_some_and(|known| known.apart_since.is_none()) {
                continue;
            }
            let found = pages_of(*pid, &self.run_dir).filter(|_| !OUR_OWN.contains(&name.as_str()));
            let is_apart = found.is_some_and(|found| found != Found::HasPage);
            let since = known.and_then(|known| known.apart_since).unwrap_or(now);
            let anonymous_bytes = if is_apart { process::anonymous_bytes(*pid) } else { 0 };
            let own = if is_apart { process::own_fraction(*pid).unwrap_or(1.0) } else { 0.0 };
            // Small programs without it are of no interest.
            let has_library = found == Some(Found::HasLibrary);
            let counts = has_library || is_apart && anonymous_bytes >= BY_KIND_FROM;
            let told = self
                .descendants
                .remove(pid)
                .and_then(|known| if known.file == file { known.told } else { self.leave(known) })
                // On a busy machine a program may take longer than that to make its page.
                .filter(|_| found != Some(Found::HasPage));
            let told = match told {
                Some(told) => Some(Apart {
                    peak_anonymous_bytes: told.peak_anonymous_bytes.max(anonymous_bytes),
                    ..told
                }),
                None if counts && now - since >= APART_AFTER => Some(Apart {
                    pid: *pid,
                    program: name,
                    peak_anonymous_bytes: anonymous_bytes,
                    has_library,
                }),
                None => None,
            };
            self.descendants.insert(
                *pid,
                Descendant {
                    file,
                    apart_since: is_apart.then_some(since),
                    own_bytes: (anonymous_bytes as f64 * own) as u64,
                    shared_bytes: if is_apart {
                        process::resident(*pid).map_or(0, |resident| resident.shared_bytes)
                    } else {
                        0
                    },
                    told,
                },
            );
        }
        let gone: Vec<u32> =
            self.descendants.keys().filter(|pid| !there.contains(pid)).copied().collect();
        for pid in gone {
            if let Some(known) = self.descendants.remove(&pid) {
                self.leave(known);
            }
        }
    }

    /// Keeps what is to be reported of a program image that is gone, for at most `APART_KEPT` of
    /// them.
    fn leave(&mut self, known: Descendant) -> Option<Apart> {
        if self.apart.len() < APART_KEPT {
            self.apart.extend(known.told);
        }
        None
    }
}

/// The shared memory of a run.
#[derive(Debug, Default)]
struct Shared {
    /// The most that one process had in its page table.
    mapped_bytes: u64,
    /// Most bytes that one process had mapped when the shared pages were last counted.
    counted_at: u64,
    /// Most bytes of shared pages that were counted at a time.
    counted_bytes: u64,
}

impl Shared {
    /// Counts the pages again where one process has a quarter more than then. `live` are processes
    /// with what is in their page tables. Returns what that took.
    fn poll(&mut self, live: &[(u32, u64)]) -> Duration {
        let mapped = live.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        self.mapped_bytes = self.mapped_bytes.max(mapped);
        if mapped < BY_KIND_FROM || mapped <= self.counted_at + self.counted_at / 4 {
            return Duration::ZERO;
        }
        let begun = cpu_time();
        self.counted_at = mapped;
        let has_some = live.iter().filter(|(_, bytes)| *bytes > 0);
        let counted = has_some.filter_map(|(pid, _)| process::own_shared_bytes(*pid)).sum();
        self.counted_bytes = self.counted_bytes.max(counted);
        cpu_time() - begun
    }

    /// Shared memory of the run, bytes; what is shared with processes outside of it counts in part.
    fn bytes(&self) -> u64 {
        match self.counted_bytes {
            0 => self.mapped_bytes,
            // What has come since then is in the same proportion.
            counted => (self.mapped_bytes as f64 * counted as f64 / self.counted_at as f64) as u64,
        }
    }
}

/// What of static data and of what came of the break is managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Managed {
    /// What is advised against huge pages, or registered with a userfaultfd.
    Marked,
    /// All of it is managed, as far as is known.
    All,
    /// Nothing of it is managed: Terrace does not manage this process, or no longer.
    None,
}

/// Whether a process has a page, and why it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The process has a page.
    HasPage,
    /// The process made no page so far, though the library is in it.
    HasLibrary,
    /// The library is not in it, and could be loaded.
    StartedWithout,
}

/// Whether a process has a page; `None` where it needs none, and where that cannot be known.
fn pages_of(pid: u32, run_dir: &Path) -> Option<Found> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok().filter(|maps| !maps.is_empty())?;
    let directory = run_dir.as_os_str().as_encoded_bytes();
    let has = |part: &[u8]| maps.windows(part.len().max(1)).any(|window| window == part);
    if has(b"/libterrace.so") {
        Some(if has(directory) { Found::HasPage } else { Found::HasLibrary })
    } else {
        let file = PathBuf::from(format!("/proc/{pid}/exe"));
        reach::out_of_reach(&file).is_none().then_some(Found::StartedWithout)
    }
}

impl Seen {
    /// Looks at the page's process. Returns what looking by kind took.
    fn poll(&mut self, file: &PageFile, elsewhere: u64, managed_by: Managed) -> Duration {
        // One that is being made is read at the next poll.
        let Some(image) = statistics::read_image(file) else { return Duration::ZERO };
        self.gone = image.process().is_none_or(|stat| stat.ended);
        if self.gone {
            self.gone_ns = sys::now_ns();
        }
        let Some(resident) = process::resident(self.pid).filter(|_| !self.gone) else {
            return Duration::ZERO;
        };
        self.most_bytes = self.most_bytes.max(resident.peak_bytes.saturating_add(elsewhere));
        self.most_swapped_bytes = self.most_swapped_bytes.max(resident.swapped_bytes);
        self.most_threads = self.most_threads.max(resident.threads);
        let most = self.most_bytes + self.most_swapped_bytes;
        self.lied |= image.counts()
            && image.peak_physical_bytes.max(image.physical_bytes) > belief::memory(most);
        self.shared_bytes = resident.shared_bytes;
        if image.ended_early {
            self.add_afterwards(resident.anonymous_bytes);
        }
        let (managed, data) =
            if image.counts() { (image.physical_bytes, image.logical_bytes) } else { (0, 0) };
        let unmanaged = resident.anonymous_bytes.saturating_sub(managed);
        let own = (resident.anonymous_bytes + resident.swapped_bytes)
            .max((data + unmanaged).min(belief::demand(most)));
        self.add_held(own + resident.shared_bytes, sys::now_ns());
        let grown_by = |part: u64| unmanaged > self.by_kind_bytes + self.by_kind_bytes / part;
        // What grows no longer is looked at once more.
        let settled = unmanaged.abs_diff(self.unmanaged_bytes) <= unmanaged / 64;
        let due = unmanaged >= BY_KIND_FROM && (grown_by(4) || settled && grown_by(32));
        self.unmanaged_bytes = unmanaged;
        if !due || resident.anonymous_bytes >= BY_KIND_MOST {
            return Duration::ZERO;
        }
        let begun = cpu_time();
        self.by_kind_bytes = unmanaged;
        if let Ok(smaps) = File::open(format!("/proc/{}/smaps", self.pid)) {
            let ended = image.ended_early || image.state == State::Unmanaged;
            let here = if ended { Managed::None } else { managed_by };
            self.other.add(&by_kind(BufReader::new(smaps), here));
        }
        cpu_time() - begun
    }

    /// Adds what it held since the last poll. At its start it held nothing, and between two polls
    /// it changed steadily.
    fn add_held(&mut self, bytes: u64, now_ns: u64) {
        let since_ns = if self.held_ns == 0 { self.started_ns } else { self.held_ns };
        let seconds = now_ns.saturating_sub(since_ns) as f64 / 1e9;
        self.held_byte_s += (self.held_bytes as f64 + bytes as f64) / 2.0 * seconds;
        (self.held_bytes, self.held_ns) = (bytes, now_ns);
    }

    fn add_afterwards(&mut self, bytes: u64) {
        let now = Instant::now();
        let afterwards = self.afterwards.get_or_insert_default();
        let seconds = self.polled.map_or(0.0, |polled| (now - polled).as_secs_f64());
        self.polled = Some(now);
        self.byte_seconds += bytes as f64 * seconds;
        afterwards.seconds += seconds;
        afterwards.peak_anonymous_bytes = afterwards.peak_anonymous_bytes.max(bytes);
        let mean = if afterwards.seconds > 0.0 {
            self.byte_seconds / afterwards.seconds
        } else {
            bytes as f64
        };
        afterwards.mean_anonymous_bytes = mean as u64;
    }
}

/// A mapping, as far as smaps has told of it.
#[derive(Default)]
struct Mapping {
    start: usize,
    end: usize,
    is_shared: bool,
    is_executable: bool,
    path: String,
    anonymous: u64,
    huge: u64,
    is_locked: bool,
    /// Advised against huge pages, or registered with a userfaultfd: that is what Terrace does with
    /// memory that it manages and compresses.
    is_marked: bool,
}

impl Mapping {
    /// The mapping that a line of smaps begins; `None` if the line begins none.
    fn of(line: &str) -> Option<Mapping> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) =
            (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        let rights = words.next()?.as_bytes();
        let (is_shared, is_executable) =
            (rights.get(3) == Some(&b's'), rights.get(2) == Some(&b'x'));
        let path = words.nth(3).unwrap_or_default().to_string();
        Some(Mapping { start, end, is_shared, is_executable, path, ..Mapping::default() })
    }

    /// Whether it holds a program's, library's or other file's private pages.
    fn is_of_a_file(&self) -> bool {
        self.path.starts_with('/') && !self.is_shared
    }

    fn count(&self, before: &Mapping, is_managed: bool, other: &mut OtherMemory) {
        other.huge_bytes += self.huge;
        // Shared memory is counted by the kernel itself.
        let kind = match self.path.as_str() {
            _ if self.is_shared => return,
            "[heap]" if is_managed => return,
            "[heap]" => &mut other.break_bytes,
            _ if self.is_of_a_file() => &mut other.static_bytes,
            path if path.starts_with('[') && !path.starts_with("[anon:") => return,
            _ if self.is_executable => &mut other.executable_bytes,
            _ if self.is_locked => &mut other.locked_bytes,
            // The loader maps .bss right behind the file's last part.
            _ if before.end == self.start && before.is_of_a_file() && !is_managed => {
                &mut other.static_bytes
            }
            _ if self.end - self.start < MANAGED_FROM => &mut other.small_bytes,
            _ => return,
        };
        *kind += self.anonymous;
    }
}

/// Sums up smaps.
fn by_kind(smaps: impl BufRead, managed: Managed) -> OtherMemory {
    let mut other = OtherMemory::default();
    let (mut before, mut mapping) = (Mapping::default(), Mapping::default());
    let is_managed = |mapping: &Mapping| {
        managed == Managed::All || mapping.is_marked && managed == Managed::Marked
    };
    for line in smaps.lines().map_while(Result::ok) {
        if let Some(next) = Mapping::of(&line) {
            mapping.count(&before, is_managed(&mapping), &mut other);
            before = std::mem::replace(&mut mapping, next);
        } else if let Some(kib) = kib_of(&line, "Anonymous") {
            mapping.anonymous = kib << 10;
        } else if let Some(kib) =
            kib_of(&line, "Private_Hugetlb").or_else(|| kib_of(&line, "Shared_Hugetlb"))
        {
            mapping.huge += kib << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag: &str| flags.split_ascii_whitespace().any(|found| found == flag);
            mapping.is_locked = has("lo");
            mapping.is_marked = has("nh") || has("um");
        }
    }
    mapping.count(&before, is_managed(&mapping), &mut other);
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping as smaps has it, in short.
    fn mapping(range: &str, rights: &str, path: &str, anonymous_kib: u64, flags: &str) -> String {
        format!(
            "{range} {rights} 00000000 00:00 0 {path}\nSize: 9 kB\nRss: 9 kB\nAnonymous: {anonymous_kib} kB\n\
             Private_Hugetlb: 0 kB\nVmFlags: rd wr {flags}\n"
        )
    }

    #[test]
    fn memory_is_told_by_kind() {
        let smaps = [
            mapping("400000-401000", "r-xp", "/bin/x", 0, ""),
            mapping("401000-402000", "rw-p", "/bin/x", 4, ""),
            mapping("402000-13002000", "rw-p", "", 300 << 10, ""),
            mapping("20000000-30000000", "rw-p", "[heap]", 20 << 10, ""),
            mapping("30000000-38000000", "rw-p", "[heap]", 70 << 10, "nh"),
            mapping("40000000-40010000", "rw-p", "", 64, ""),
            mapping("50000000-60000000", "rw-p", "", 9 << 10, ""),
            mapping("60000000-70000000", "rwxp", "", 70 << 10, ""),
            mapping("70000000-80000000", "rw-p", "[anon:buffers]", 5 << 10, "lo"),
            mapping("7f0000000000-7f0010000000", "rw-s", "/memfd:heap (deleted)", 0, ""),
            mapping("7ffc00000000-7ffc00020000", "rw-p", "[stack]", 100, ""),
        ];
        let expected = OtherMemory {
            static_bytes: (300 << 20) + 4096,
            break_bytes: 20 << 20,
            small_bytes: 64 << 10,
            executable_bytes: 70 << 20,
            locked_bytes: 5 << 20,
            ..OtherMemory::default()
        };
        let told = by_kind(smaps.concat().as_bytes(), Managed::Marked);
        assert_eq!(told, expected);
        let unmarked = by_kind(smaps.concat().as_bytes(), Managed::All);
        assert_eq!((unmarked.static_bytes, unmarked.break_bytes), (4096, 0));
        let unmanaged = by_kind(smaps.concat().as_bytes(), Managed::None);
        assert_eq!((unmanaged.static_bytes, unmanaged.break_bytes), ((300 << 20) + 4096, 90 << 20));
        assert_eq!(
            told.text(),
            "300.0M static data (.bss and .data), 70.0M executable, 20.0M of brk and sbrk, 5.0M locked"
        );
        assert_eq!(by_kind(&b"nonsense\n: - kB\n"[..], Managed::None), OtherMemory::default());
        assert_eq!(OtherMemory::default().text(), "");
    }
}
