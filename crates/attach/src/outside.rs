//! `--outside`: processes that are neither stopped nor entered. The kernel's swap takes pages that
//! we choose, by process_madvise(MADV_PAGEOUT), also of memory that is shared.
//!
//! Victims are chosen by CLOCK, as for the others ([`crate::evict`]); whether a page that was paged
//! out has been touched is told by the page table, in which it is present again. What several
//! processes have in their page tables the kernel does not page out: it is told how much that is.

use crate::channel::{Channel, Request};
use crate::figures::Figures;
use crate::limit::{Limit, Look};
use crate::process::{self, Mapping};
use crate::sys::{self, PAGE, Run};
use crate::table::{State, Table};
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use terrace_tiers::{SwapKind, SwapView};

const LOOK_MS: i32 = 100;
const REGION: u64 = 2 << 20;
/// How often the hand goes round at most, ms.
const ROUND_MS: u64 = 500;
/// How many pages leave between two looks at the requests.
const STEP_PAGES: u64 = 4096;
/// What it costs a thread to have a page back from swap in memory, or from a disk, us.
const FROM_MEMORY_US: u64 = 15;
const FROM_DISK_US: u64 = 100;

/// The processes whose memory is paged out.
pub enum Whom {
    Process(i32),
    /// All processes of a control group, a directory.
    Group(PathBuf),
}

impl Whom {
    fn pids(&self) -> Vec<i32> {
        match self {
            Whom::Process(pid) => vec![*pid],
            Whom::Group(path) => {
                let mut pids = Vec::new();
                pids_below(path, &mut pids);
                pids
            }
        }
    }
}

fn pids_below(path: &Path, pids: &mut Vec<i32>) {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            pids_below(&entry.path(), pids);
        }
    }
}

/// # Errors
/// Why nothing can be paged out; nothing is changed then.
pub fn check(whom: &Whom) -> Result<()> {
    if SwapView::of_machine().kind == SwapKind::None {
        bail!("there is no swap for --outside to page out to: set up zram, or swapon a device");
    }
    let pids = whom.pids();
    match whom {
        Whom::Group(path) if !path.join("cgroup.procs").exists() => {
            bail!("{} is no control group: it has no cgroup.procs", path.display())
        }
        Whom::Group(path) if pids.is_empty() => {
            bail!("{} has no process", path.display())
        }
        _ => {}
    }
    for pid in pids {
        let pidfd = sys::pidfd_open(pid).with_context(|| format!("there is no process {pid}"))?;
        if fs::read_link(format!("/proc/{pid}/exe")).is_err() {
            bail!("{pid} has no program: it is a thread of the kernel, or has ended");
        }
        match sys::page_out(pidfd.as_raw_fd(), &[]) {
            Ok(_) | Err(libc::EINVAL) => {}
            Err(libc::EPERM) => bail!("paging {pid} out needs CAP_SYS_PTRACE and CAP_SYS_NICE"),
            Err(errno) => bail!("{pid} cannot be paged out (process_madvise: errno {errno})"),
        }
    }
    Ok(())
}

/// One process, and where the hand is in it.
struct Member {
    pidfd: OwnedFd,
    pagemap: File,
    table: Table,
    mappings: Vec<Mapping>,
    at: u64,
    round_ms: u64,
    faults: u64,
    /// What is its own of its anonymous, shared and swapped memory, each: what several processes
    /// have is told of each of them, and counts in parts.
    own: [f64; 3],
    /// Pages that stayed where they were to leave: in the last whole round of the hand, and so far in
    /// this one; private ones, and of shared memory.
    kept: [u64; 2],
    keeping: [u64; 2],
}

/// The lines of `smaps_rollup` that tell a part, and those of `status` that tell the whole.
const PARTS: [(&str, &str); 3] =
    [("Pss_Anon", "RssAnon"), ("Pss_Shmem", "RssShmem"), ("SwapPss", "VmSwap")];
/// How often parts are looked up at most, and how much of the time that may take: it walks page
/// tables.
const PARTS_MS: u64 = 1000;
const PARTS_SHARE: u64 = 20;

impl Member {
    fn open(pid: i32) -> Option<Self> {
        Some(Member {
            pidfd: sys::pidfd_open(pid).ok()?,
            pagemap: File::open(format!("/proc/{pid}/pagemap")).ok()?,
            table: Table::new().ok()?,
            mappings: Vec::new(),
            at: 0,
            round_ms: 0,
            faults: major_faults(pid),
            own: [1.0; 3],
            kept: [0; 2],
            keeping: [0; 2],
        })
    }

    /// Looks up what is its own.
    fn look_up_parts(&mut self, pid: i32) {
        let Some(rollup) = process::rollup(pid) else { return };
        for (own, (part, whole)) in self.own.iter_mut().zip(PARTS) {
            let whole = process::status_kib(pid, whole).unwrap_or(0);
            let part = rollup.iter().find(|(name, _)| name == part).map_or(whole, |line| line.1);
            *own = if whole == 0 { 1.0 } else { (part as f64 / whole as f64).min(1.0) };
        }
    }

    /// The part that the hand passes next; `None` while it rests.
    fn next_region(&mut self, pid: i32) -> Option<(u64, u64)> {
        let next = self.mappings.iter().find(|mapping| mapping.end > self.at);
        let Some(mapping) = next else {
            let now_ms = sys::now_ns() / 1_000_000;
            if now_ms - self.round_ms < ROUND_MS {
                return None;
            }
            let all = process::mappings(pid).ok()?.into_iter();
            self.mappings = all.filter(|mapping| mapping.is_data || mapping.is_shared).collect();
            (self.at, self.round_ms) = (0, now_ms);
            self.kept = std::mem::take(&mut self.keeping);
            return self.mappings.first().map(|first| (first.start, first.start));
        };
        let start = mapping.start.max(self.at);
        let end = (start / REGION * REGION + REGION).min(mapping.end);
        self.at = end;
        Some((start, end))
    }

    fn resident(&self, start: u64, end: u64) -> Vec<u64> {
        let mut runs = [Run::default(); 512];
        let Ok((found, _)) = sys::in_memory(self.pagemap.as_raw_fd(), start, end, &mut runs) else {
            return Vec::new();
        };
        let runs = &runs[..found];
        runs.iter().flat_map(|run| (run.start..run.end).step_by(PAGE as usize)).collect()
    }

    /// Pages out what may leave of a part, at most so many pages. How many left, and came back.
    fn page_out(&mut self, start: u64, end: u64, most: u64) -> (u64, u64) {
        let now_ms = sys::now_ns() / 1_000_000;
        let (mut victims, mut back, mut kept_before) = (Vec::new(), 0, 0);
        for page in self.resident(start, end) {
            let word = self.table.get(page);
            if word.is_marked() {
                back += 1;
                self.table.set(page, word.back(now_ms));
            } else if word.uses() > 0 {
                self.table.set(page, word.with_uses(word.uses() - 1));
                // It stayed when it was tried last.
                kept_before += u64::from(word.state() == State::Gone);
            } else if (victims.len() as u64) < most {
                victims.push(page);
            }
        }
        let ranges: Vec<(u64, u64)> = victims.iter().map(|page| (*page, PAGE)).collect();
        for ranges in ranges.chunks(512) {
            let _ = sys::page_out(self.pidfd.as_raw_fd(), ranges);
        }
        let stayed: std::collections::HashSet<u64> = if victims.is_empty() {
            Default::default()
        } else {
            self.resident(start, end).into_iter().collect()
        };
        let mut left = 0;
        let shared = self.mappings.iter().find(|mapping| mapping.end > start);
        let kept = &mut self.keeping[usize::from(shared.is_some_and(|of| of.is_shared))];
        *kept += kept_before;
        for page in victims {
            let word = self.table.get(page);
            if stayed.contains(&page) {
                // In another process's page table too, locked, or pinned: not tried for a while.
                self.table.set(page, word.gone().with_uses(7));
                *kept += 1;
            } else {
                left += 1;
                self.table.set(page, word.none().marked());
            }
        }
        (left, back)
    }
}

fn major_faults(pid: i32) -> u64 {
    process::stat_field(pid, 12).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What part of what is swapped out takes memory: of zram its ratio, of a disk nothing.
fn in_memory_share() -> f64 {
    if SwapView::of_machine().kind != SwapKind::Zram {
        return 0.0;
    }
    let (mut original, mut used) = (0.0, 0.0);
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let text = fs::read_to_string(entry.path().join("mm_stat")).unwrap_or_default();
        let mut numbers = text.split_ascii_whitespace().filter_map(|word| word.parse::<f64>().ok());
        original += numbers.next().unwrap_or(0.0);
        used += numbers.nth(1).unwrap_or(0.0);
    }
    if original > 0.0 { used / original } else { 0.0 }
}

/// The process that pages others out, and what it knows.
pub struct Outside {
    whom: Whom,
    members: HashMap<i32, Member>,
    channel: Channel,
    limit: Limit,
    figures: Figures,
    listed_ms: u64,
    parts_ms: u64,
}

impl Outside {
    pub fn new(whom: Whom, limit: Limit, channel: Channel) -> Self {
        let own = std::process::id() as i32;
        let (pid, program) = match &whom {
            Whom::Process(pid) => (*pid, process::name(*pid)),
            Whom::Group(path) => (own, path.display().to_string()),
        };
        let figures = Figures {
            pid,
            program,
            keeper: own,
            budget_bytes: limit.dram_bytes.unwrap_or(u64::MAX),
            limit: limit.text.clone(),
            tier: "swap".into(),
            ..Figures::default()
        };
        let members = HashMap::new();
        let mut outside =
            Outside { whom, members, channel, limit, figures, listed_ms: 0, parts_ms: 0 };
        outside.list();
        outside
    }

    /// How many processes there are.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Pages out until told to leave, or until nobody is left.
    pub fn run(&mut self) {
        loop {
            sys::wait_for_any(self.channel.descriptors(), LOOK_MS);
            while let Some(mut request) = self.channel.next() {
                if self.answer(&mut request) {
                    return self.report();
                }
            }
            self.list();
            if self.members.is_empty() {
                return self.report();
            }
            self.measure();
            self.follow();
            self.keep_budget();
        }
    }

    /// Answers a request; whether it was to leave.
    fn answer(&mut self, request: &mut Request) -> bool {
        match request.text.as_str() {
            "detach" => request.answer("ok 0"),
            "status" => {
                self.measure();
                request.answer(&serde_json::to_string(&self.figures).unwrap_or_default());
            }
            other => request.answer(&format!("error what is {other}?")),
        }
        request.text == "detach"
    }

    fn report(&self) {
        if let Some(file) = &self.limit.report {
            let text = serde_json::to_string_pretty(&self.figures).unwrap_or_default();
            // Nobody is there who could be told.
            let _ = fs::write(file, text + "\n");
        }
    }

    /// Lists the processes that are there now, once a second.
    fn list(&mut self) {
        self.members.retain(|_, member| !sys::wait_readable(member.pidfd.as_raw_fd(), 0));
        let now_ms = sys::now_ns() / 1_000_000;
        if now_ms - self.listed_ms < 1000 {
            return;
        }
        self.listed_ms = now_ms;
        let pids = self.whom.pids();
        self.members.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            if !self.members.contains_key(&pid) {
                self.members.extend(Member::open(pid).map(|member| (pid, member)));
            }
        }
    }

    /// Looks up what each of several processes has for itself.
    fn look_up_parts(&mut self) {
        let now_ms = sys::now_ns() / 1_000_000;
        if self.members.len() < 2 || now_ms < self.parts_ms {
            return;
        }
        for (pid, member) in &mut self.members {
            member.look_up_parts(*pid);
        }
        let took_ms = sys::now_ns() / 1_000_000 - now_ms;
        self.parts_ms = now_ms + PARTS_MS.max(took_ms * PARTS_SHARE);
    }

    fn measure(&mut self) {
        let is_memory = in_memory_share() > 0.0;
        let cost_us = if is_memory { FROM_MEMORY_US } else { FROM_DISK_US };
        self.look_up_parts();
        let (mut resident, mut shared, mut swapped, mut kept) = (0, 0, 0, 0);
        for (pid, member) in &mut self.members {
            let [anonymous, of_shared, in_swap] = std::array::from_fn(|which| {
                let kib = process::status_kib(*pid, PARTS[which].1).unwrap_or(0);
                ((kib << 10) as f64 * member.own[which]) as u64
            });
            resident += anonymous + of_shared;
            shared += of_shared;
            swapped += in_swap;
            let parts = member.kept.iter().zip(member.own);
            kept += parts.map(|(pages, own)| ((pages * PAGE) as f64 * own) as u64).sum::<u64>();
            let faults = major_faults(*pid);
            let more = faults.saturating_sub(std::mem::replace(&mut member.faults, faults));
            self.figures.faults += more;
            self.figures.waited_us += more * cost_us;
        }
        let figures = &mut self.figures;
        figures.resident_bytes = resident;
        figures.shared_bytes = shared;
        figures.kept_bytes = kept;
        figures.out_bytes = swapped;
        figures.store_bytes = (swapped as f64 * in_memory_share()) as u64;
        figures.overhead_bytes = self.members.values().map(|member| member.table.bytes()).sum();
        figures.children = self.members.len().saturating_sub(1);
        figures.peak_bytes = figures.peak_bytes.max(figures.physical_bytes());
    }

    fn follow(&mut self) {
        let figures = &self.figures;
        let look = Look {
            now_s: sys::now_ns() as f64 / 1e9,
            data: figures.resident_bytes + figures.out_bytes,
            physical: figures.physical_bytes(),
            waited_s: figures.waited_us as f64 / 1e6,
        };
        self.figures.budget_bytes = self.limit.now(look);
    }

    fn keep_budget(&mut self) {
        let over = self.figures.physical_bytes().saturating_sub(self.figures.budget_bytes) / PAGE;
        let (mut wanted, mut left_some) = ((over * 3 / 2).min(STEP_PAGES), over > 0);
        // A part of each in turn, until all rest.
        while wanted > 0 && left_some {
            left_some = false;
            for (pid, member) in &mut self.members {
                let Some((start, end)) = member.next_region(*pid) else { continue };
                let (left, back) = member.page_out(start, end, wanted);
                wanted = wanted.saturating_sub(left);
                self.figures.evicted_pages += left;
                self.figures.restored_pages += back;
                left_some = true;
            }
        }
    }
}
