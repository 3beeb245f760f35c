//! Memory of other processes that the kernel moves on request, also of memory that is shared. It
//! goes to the kernel's swap, by process_madvise(MADV_PAGEOUT), or to a slow node, by move_pages.
//!
//! Victims are chosen by CLOCK, as for what the keeper compresses ([`crate::evict`]). Whether a
//! page that was paged out has been touched is told by the page table, in which it is present
//! again. From a node the kernel itself brings back what is touched often (kernel.numa_balancing),
//! and tells where a page is. A page that is spared for the last time is advised as cold
//! (MADV_COLD). Where the kernel must free memory by itself before the CLOCK hand is back, it takes
//! that page first. What several processes have in their page tables the kernel does not page out:
//! it is told how much that is.

use crate::process::{self, Mapping};
use crate::sys::{self, PAGE, Run};
use crate::table::{State, Table};
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use terrace_os::{advise_process, nodes_of_pages};

/// How often the CLOCK hand goes round at most, ms.
const ROUND_MS: u64 = 500;
/// Shortest interval between scans of a part, ms. A scan walks page tables.
const PARTS_MS: u64 = 1000;
/// Looks at parts take at most one in this many parts of the time.
const PARTS_SHARE: u64 = 20;

/// Where pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Swap,
    /// The node of this number.
    Node(u32),
}

/// A process whose memory is paged out, and where the CLOCK hand is in it.
pub struct Paged {
    pid: i32,
    pidfd: OwnedFd,
    pagemap: File,
    table: Table,
    route: Route,
    is_wanted: fn(&Mapping) -> bool,
    /// Bytes that the CLOCK hand passes at a time.
    region: u64,
    mappings: Vec<Mapping>,
    at: u64,
    round_ms: u64,
    faults: u64,
    /// The process's own shares of its anonymous, shared and swapped memory. Memory that several
    /// processes have is told of each of them, and counts in parts.
    own: [f64; 3],
    /// Shared memory that is in swap, bytes.
    shared_out: u64,
    /// Memory on the node that pages go to, bytes.
    far: u64,
    parts_ms: u64,
    /// Pages that stayed though they were to be evicted, in the last whole round of the CLOCK hand:
    /// private ones, and of shared memory.
    kept: [u64; 2],
    /// Pages that stayed so far in the current round, as in `kept`.
    keeping: [u64; 2],
}

/// The lines of `smaps_rollup` that tell a part, and those of `status` that tell the whole.
const PARTS: [(&str, &str); 3] =
    [("Pss_Anon", "RssAnon"), ("Pss_Shmem", "RssShmem"), ("SwapPss", "VmSwap")];

/// Memory of one process, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub anonymous: u64,
    pub shared: u64,
    /// Anonymous memory in swap, without shared memory.
    pub anonymous_out: u64,
    pub shared_out: u64,
    /// Memory on the node that pages go to: part of `anonymous` and `shared`.
    pub far: u64,
    /// Memory that stayed though it was to be evicted: private, and shared.
    pub kept: [u64; 2],
}

/// What one step of the CLOCK hand has done, pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Pages that were evicted.
    pub left: u64,
    /// Pages that were found to have been restored.
    pub back: u64,
    /// Pages that the kernel was advised of as cold.
    pub cold: u64,
}

impl Paged {
    /// Opens a process. The CLOCK hand goes over those of its mappings that are wanted, `region`
    /// bytes at a time. `None` if it has ended, or there is no memory for the record of its pages.
    pub fn open(
        pid: i32,
        route: Route,
        is_wanted: fn(&Mapping) -> bool,
        region: u64,
    ) -> Option<Self> {
        Some(Paged {
            pid,
            pidfd: sys::pidfd_open(pid).ok()?,
            pagemap: File::open(format!("/proc/{}/pagemap", process::with_memory(pid))).ok()?,
            table: Table::new().ok()?,
            route,
            is_wanted,
            region,
            mappings: Vec::new(),
            at: 0,
            round_ms: 0,
            faults: major_faults(pid),
            own: [1.0; 3],
            shared_out: 0,
            far: 0,
            parts_ms: 0,
            kept: [0; 2],
            keeping: [0; 2],
        })
    }

    pub fn has_ended(&self) -> bool {
        sys::wait_readable(self.pidfd.as_raw_fd(), 0)
    }

    /// How many bytes of memory the record of the process's pages takes.
    pub fn record_bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Faults that waited for swap since this was asked last.
    pub fn new_faults(&mut self) -> u64 {
        let faults = major_faults(self.pid);
        faults.saturating_sub(std::mem::replace(&mut self.faults, faults))
    }

    /// Measures the process, one of `among` processes whose parts are looked up in turn.
    pub fn measure(&mut self, among: usize) -> Amounts {
        self.look_up_parts(among);
        let [anonymous, shared, anonymous_out] =
            PARTS.map(|(_, line)| process::status_kib(self.pid, line).unwrap_or(0) << 10);
        let kept = self.kept.map(|pages| pages * PAGE);
        let (shared_out, far) = (self.shared_out, self.far);
        Amounts { anonymous, shared, anonymous_out, shared_out, far, kept }
    }

    /// What is the process's own of these amounts.
    pub fn part_of(&self, all: Amounts) -> Amounts {
        let part = |bytes: u64, own: f64| (bytes as f64 * own) as u64;
        let [anonymous, shared, out] = self.own;
        Amounts {
            anonymous: part(all.anonymous, anonymous),
            shared: part(all.shared, shared),
            anonymous_out: part(all.anonymous_out, out),
            shared_out: part(all.shared_out, shared),
            far: part(all.far, anonymous),
            kept: [part(all.kept[0], anonymous), part(all.kept[1], shared)],
        }
    }

    /// Looks up what is the process's own, where that is due.
    fn look_up_parts(&mut self, among: usize) {
        let now_ms = sys::now_ms();
        if now_ms < self.parts_ms {
            return;
        }
        let Some(rollup) = process::rollup(self.pid) else { return };
        let part = |name: &str| Some(rollup.iter().find(|(line, _)| line == name)?.1);
        for (own, (name, whole)) in self.own.iter_mut().zip(PARTS) {
            let whole = process::status_kib(self.pid, whole).unwrap_or(0);
            // Where all of it is in swap, what is known of it holds.
            if whole > 0 {
                *own = (part(name).unwrap_or(whole) as f64 / whole as f64).min(1.0);
            }
        }
        // The line of `status` is without shared memory.
        let of_both = part("Swap").unwrap_or(0);
        let private = process::status_kib(self.pid, "VmSwap").unwrap_or(0);
        self.shared_out = of_both.saturating_sub(private) << 10;
        if let Route::Node(node) = self.route {
            self.far = process::on_node(self.pid, node);
        }
        let took_ms = sys::now_ms() - now_ms;
        self.parts_ms = now_ms + PARTS_MS.max(took_ms * PARTS_SHARE * among as u64);
    }

    /// Pages out what may be evicted of the part that the CLOCK hand passes next, at most `most`
    /// pages. `None` while the hand rests.
    pub fn step(&mut self, most: u64) -> Option<Step> {
        let (start, end) = self.next_region()?;
        Some(self.page_out(start, end, most))
    }

    fn next_region(&mut self) -> Option<(u64, u64)> {
        let next = self.mappings.iter().find(|mapping| mapping.end > self.at);
        let Some(mapping) = next else {
            let now_ms = sys::now_ms();
            if now_ms - self.round_ms < ROUND_MS {
                return None;
            }
            let all = process::mappings(self.pid).ok()?.into_iter();
            self.mappings = all.filter(self.is_wanted).collect();
            (self.at, self.round_ms) = (0, now_ms);
            self.kept = std::mem::take(&mut self.keeping);
            return self.mappings.first().map(|first| (first.start, first.start));
        };
        let start = mapping.start.max(self.at);
        let end = (start / self.region * self.region + self.region).min(mapping.end);
        self.at = end;
        Some((start, end))
    }

    /// Pages of a part that are in memory, and not on the node that they go to.
    fn resident(&self, start: u64, end: u64) -> Vec<u64> {
        let mut runs = [Run::default(); 512];
        let Ok((found, _)) = sys::in_memory(self.pagemap.as_raw_fd(), start, end, &mut runs) else {
            return Vec::new();
        };
        let runs = &runs[..found];
        let pages = runs.iter().flat_map(|run| (run.start..run.end).step_by(PAGE as usize));
        let pages: Vec<u64> = pages.collect();
        let Route::Node(node) = self.route else { return pages };
        let Ok(nodes) = nodes_of_pages(self.pid, &pages, None) else { return Vec::new() };
        let is_here = |of: &i32| *of >= 0 && *of != node as i32;
        let here = pages.iter().zip(&nodes).filter(|(_, of)| is_here(of));
        here.map(|(page, _)| *page).collect()
    }

    fn page_out(&mut self, start: u64, end: u64, most: u64) -> Step {
        let now_ms = sys::now_ms();
        let (mut victims, mut cold, mut kept_before) = (Vec::new(), Vec::new(), 0);
        let mut step = Step::default();
        for page in self.resident(start, end) {
            let word = self.table.get(page);
            if word.is_marked() {
                step.back += 1;
                self.table.set(page, word.back(now_ms));
            } else if word.uses() > 0 {
                self.table.set(page, word.with_uses(word.uses() - 1));
                if word.state() == State::Gone {
                    // It stayed when it was tried last.
                    kept_before += 1;
                } else if word.uses() == 1 {
                    cold.push(page);
                }
            } else if (victims.len() as u64) < most {
                victims.push(page);
            }
        }
        step.cold = self.advise(&cold, libc::MADV_COLD);
        self.send(&victims);
        let stayed: HashSet<u64> = match victims.is_empty() {
            true => HashSet::new(),
            false => self.resident(start, end).into_iter().collect(),
        };
        let mapping = self.mappings.iter().find(|mapping| mapping.end > start);
        let kept = &mut self.keeping[usize::from(mapping.is_some_and(|of| of.is_shared))];
        *kept += kept_before;
        for page in victims {
            let word = self.table.get(page);
            if stayed.contains(&page) {
                // In another process's page table too, locked, or pinned: not tried for a while.
                self.table.set(page, word.gone().with_uses(7));
                *kept += 1;
            } else {
                step.left += 1;
                self.table.set(page, word.none().marked());
            }
        }
        if let Route::Node(_) = self.route {
            // Until it is looked up again.
            self.far = (self.far + step.left * PAGE).saturating_sub(step.back * PAGE);
        }
        step
    }

    /// Evicts pages. Which of them were evicted is looked up afterwards.
    fn send(&self, pages: &[u64]) {
        match self.route {
            Route::Swap => {
                self.advise(pages, libc::MADV_PAGEOUT);
            }
            Route::Node(node) => {
                let to = vec![node as i32; pages.len()];
                let _ = nodes_of_pages(self.pid, pages, Some(&to));
            }
        }
    }

    /// Advises the kernel of pages. Returns for how many it took the advice.
    fn advise(&self, pages: &[u64], advice: i32) -> u64 {
        let ranges: Vec<(u64, u64)> = pages.iter().map(|page| (*page, PAGE)).collect();
        let advised = ranges
            .chunks(512)
            .filter_map(|ranges| advise_process(self.pidfd.as_raw_fd(), ranges, advice).ok());
        advised.sum::<usize>() as u64 / PAGE
    }
}

/// The part of an attached process that goes to the kernel's swap: its shared memory.
#[derive(Default)]
pub struct InSwap {
    /// `None` without shared memory, or without swap.
    pub paged: Option<Paged>,
    /// What a page in swap takes of memory, as a share of itself.
    pub ratio: f64,
    /// What a fault on such a page costs, us.
    pub cost_us: u64,
}

impl InSwap {
    /// Memory that this many bytes of data in swap take.
    pub fn memory_of(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.ratio) as u64
    }

    /// How many bytes of memory the record of the pages takes.
    pub fn record_bytes(&self) -> u64 {
        self.paged.as_ref().map_or(0, Paged::record_bytes)
    }
}

fn major_faults(pid: i32) -> u64 {
    process::stat_field(pid, 12).and_then(|text| text.parse().ok()).unwrap_or(0)
}
