//! `--outside`: processes that are neither stopped nor entered. The kernel's swap or a slow node
//! takes pages that we choose ([`crate::paging`]), also of memory that is shared.

use crate::channel::{Channel, Request};
use crate::limit::{Limit, SET, Sample};
use crate::paging::{Paged, Route};
use crate::process::{self, Mapping};
use crate::stats::AttachedStats;
use crate::sys::{self, PAGE};
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use terrace_os::{Errno, advise_process, nodes_of_pages};
use terrace_tiers::{Nodes, SwapKind, SwapView};

const POLL_MS: i32 = 100;
/// Bytes that the CLOCK hand passes at a time.
const REGION: u64 = 2 << 20;
/// How many pages are evicted between two polls of the requests.
const STEP_PAGES: u64 = 4096;
/// Time that it costs a thread to have a page back from swap in memory, us.
const FROM_MEMORY_US: u64 = 15;
/// Time that it costs a thread to have a page back from swap on a disk, us.
const FROM_DISK_US: u64 = 100;

/// Time that it costs a thread to have a page back from swap, us.
pub fn cost_us(kind: SwapKind) -> u64 {
    if kind.is_memory() { FROM_MEMORY_US } else { FROM_DISK_US }
}

/// Why nothing is paged out though there is swap.
pub const NO_ROOM: &str = "swap is full but for the quarter that is left to others: add some";

/// What is said instead of a time when a process is left from outside.
pub const STAYS: &str = "stays";

impl Limit {
    /// Where pages of processes go that are not entered: to swap, or to a node.
    pub fn route(&self) -> Route {
        self.node.map_or(Route::Swap, Route::Node)
    }
}

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

/// Checks whether pages of these processes can be paged out.
///
/// # Errors
/// Why nothing can be paged out; nothing is changed then.
pub fn check(whom: &Whom, route: Route) -> Result<()> {
    match route {
        Route::Node(node) => check_node(node)?,
        Route::Swap if SwapView::of_machine().kind == SwapKind::None => {
            bail!("there is no swap for --outside to page out to: set up zram, or swapon a device")
        }
        Route::Swap => {}
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
        let may_move = match route {
            Route::Swap => advise_process(pidfd.as_raw_fd(), &[], libc::MADV_PAGEOUT).map(drop),
            Route::Node(_) => nodes_of_pages(pid, &[], None).map(drop),
        };
        match may_move {
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(Errno::EPERM) => bail!("paging {pid} out needs CAP_SYS_PTRACE and CAP_SYS_NICE"),
            Err(errno) => bail!("the kernel moves no pages of {pid} (errno {})", errno.into_raw()),
        }
    }
    Ok(())
}

/// Whether pages can be moved to a node and back.
fn check_node(node: u32) -> Result<()> {
    let nodes = Nodes::of_machine();
    if nodes.node(node).is_none_or(|view| view.total_bytes == 0) {
        bail!("there is no node {node} with memory; `terrace doctor` names those that there are");
    }
    let balancing = fs::read_to_string("/proc/sys/kernel/numa_balancing").unwrap_or_default();
    if ["", "0"].contains(&balancing.trim()) {
        bail!(
            "the kernel would bring nothing back from node {node}: \
             sysctl kernel.numa_balancing=1 first, or 2 where the node is of slower memory"
        );
    }
    Ok(())
}

/// The process that pages others out, and what it knows.
pub struct Outside {
    whom: Whom,
    route: Route,
    members: HashMap<i32, Paged>,
    channel: Channel,
    limit: Limit,
    figures: AttachedStats,
    listed_ms: u64,
}

/// Whether a mapping is data that swap may take.
fn may_be_swapped(mapping: &Mapping) -> bool {
    mapping.is_data || mapping.is_shared
}

impl Outside {
    pub fn new(whom: Whom, limit: Limit, channel: Channel) -> Self {
        let own = std::process::id() as i32;
        let (pid, program) = match &whom {
            Whom::Process(pid) => (*pid, process::name(*pid)),
            Whom::Group(path) => (own, path.display().to_string()),
        };
        let figures = AttachedStats {
            pid,
            program,
            keeper: own,
            budget_bytes: limit.budget.dram_bytes.unwrap_or(u64::MAX),
            limit: limit.budget.text.clone(),
            tier: limit.tier.clone(),
            ..AttachedStats::default()
        };
        let (route, members) = (limit.route(), HashMap::new());
        let mut outside = Outside { whom, route, members, channel, limit, figures, listed_ms: 0 };
        outside.list();
        outside
    }

    /// How many processes there are.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Pages out until told to leave, or until no process is left.
    pub fn run(&mut self) {
        loop {
            sys::wait_for_any(self.channel.descriptors(), POLL_MS);
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

    /// Answers a request. Returns whether it was to leave.
    fn answer(&mut self, request: &mut Request) -> bool {
        match request.text.as_str() {
            "detach" => request.answer(&format!("ok {STAYS}")),
            "status" => {
                self.measure();
                request.answer(&serde_json::to_string(&self.figures).unwrap_or_default());
            }
            text if text.starts_with(SET) => {
                let said = self.limit.change(&text[SET.len()..], |_, _| Ok(()));
                self.figures.limit = self.limit.budget.text.clone();
                request.answer(&said.unwrap_or_else(|error| format!("error {error:#}")));
            }
            other => request.answer(&format!("error what is {other}?")),
        }
        request.text == "detach"
    }

    fn report(&self) {
        if let Some(file) = &self.limit.report {
            let text = serde_json::to_string_pretty(&self.figures).unwrap_or_default();
            // There is no client to be told.
            let _ = fs::write(file, text + "\n");
        }
    }

    /// Lists the processes that are there now, once a second.
    fn list(&mut self) {
        self.members.retain(|_, member| !member.has_ended());
        let now_ms = sys::now_ms();
        if now_ms - self.listed_ms < 1000 {
            return;
        }
        self.listed_ms = now_ms;
        let pids = self.whom.pids();
        self.members.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            if !self.members.contains_key(&pid) {
                let member = Paged::open(pid, self.route, may_be_swapped, REGION);
                self.members.extend(member.map(|member| (pid, member)));
            }
        }
    }

    fn measure(&mut self) {
        let swap = SwapView::of_machine();
        let cost_us = cost_us(swap.kind);
        let among = self.members.len();
        let (mut resident, mut shared, mut kept) = (0, 0, 0);
        let (mut swapped, mut far) = (0, 0);
        for member in self.members.values_mut() {
            let all = member.measure(among);
            // Memory that a process shares with others that are not asked for counts whole.
            let its = if among > 1 { member.part_of(all) } else { all };
            resident += (its.anonymous + its.shared).saturating_sub(its.far);
            shared += its.shared;
            match self.route {
                Route::Swap => swapped += its.anonymous_out + its.shared_out,
                Route::Node(_) => far += its.far,
            }
            kept += its.kept.iter().sum::<u64>();
            let more = member.new_faults();
            self.figures.faults += more;
            self.figures.waited_us += more * cost_us;
        }
        let figures = &mut self.figures;
        figures.resident_bytes = resident;
        figures.shared_bytes = shared;
        figures.kept_bytes = kept;
        figures.out_bytes = swapped + far;
        figures.store_bytes = (swapped as f64 * swap.ratio()) as u64;
        figures.overhead_bytes = self.members.values().map(Paged::record_bytes).sum();
        figures.children = among.saturating_sub(1);
        figures.peak_bytes = figures.peak_bytes.max(figures.physical_bytes());
        let is_full = self.route == Route::Swap && swap.room_bytes() < PAGE;
        figures.note = if is_full { NO_ROOM.into() } else { String::new() };
    }

    fn follow(&mut self) {
        let figures = &self.figures;
        let sample = Sample {
            now_s: sys::now_ns() as f64 / 1e9,
            data: figures.data_bytes(),
            physical: figures.physical_bytes(),
            waited_s: figures.waited_us as f64 / 1e6,
        };
        self.figures.budget_bytes = self.limit.budget.now(sample);
    }

    fn keep_budget(&mut self) {
        if self.figures.note == NO_ROOM {
            return;
        }
        let over = self.figures.physical_bytes().saturating_sub(self.figures.budget_bytes) / PAGE;
        let (mut wanted, mut left_some) = ((over * 3 / 2).min(STEP_PAGES), over > 0);
        // A part of each in turn, until all rest.
        while wanted > 0 && left_some {
            left_some = false;
            for member in self.members.values_mut() {
                let Some(step) = member.step(wanted) else { continue };
                wanted = wanted.saturating_sub(step.left);
                self.figures.evicted_pages += step.left;
                self.figures.restored_pages += step.back;
                self.figures.cold_pages += step.cold;
                left_some = true;
            }
        }
    }
}
