//! The processes of a run, and the budget that they have together: `terrace run` looks at their
//! statistics pages while the program lives and writes into each what its process may have.
//!
//! A process that ends in any way is noticed, and what it had is the others' at the next poll. If
//! `terrace run` itself ends, all keep what they have. The pages are files, read and written and
//! never mapped here: whatever a program does to its own, nothing of ours breaks.

use crate::processes::growth::{self, Growth};
use crate::processes::process::{self, cpu_time};
use crate::processes::statistics::{self, Image, PageFile};
use crate::processes::{belief, room};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use terrace_control::backoff::Backoff;
use terrace_control::budget_status::BudgetStatus;
use terrace_control::settings::{Dram, MIN_BUDGET_BYTES, NO_BUDGET};
use terrace_control::stats::State;
use terrace_policy::budget_split::{Need, shares};
use terrace_policy::slowdown::{Sample, Slowdown, Target};

/// Time between polls, and the greatest share of it that a poll may take of a CPU. (On a busy
/// machine it may take much longer by the clock.)
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const POLL_SHARE: u32 = 32;
/// Longest time between polls while no process comes and nothing changes.
const QUIET_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The directory's time of change is that of a clock that ticks this often at least.
const CLOCK_TICK: Duration = Duration::from_millis(20);
/// Time between polls until the program is there.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// After this time without a word, a process may be executing something that Terrace is not in, ns.
const SILENT_NS: u64 = 2_000_000_000;
/// Least time between counts of shared pages while no process comes or goes. Counting takes at most
/// one part in `SHARING_SHARE_CHANGED` of the time when one did, else one in `SHARING_SHARE`.
const SHARING_EVERY: Duration = Duration::from_millis(200);
const SHARING_SHARE_CHANGED: u32 = 8;
const SHARING_SHARE: u32 = 32;
/// Factor by which a floor that a process came to fades with each poll after that: it is believed
/// for a while.
const FLOOR_FADES: f64 = 0.95;

/// What limits the memory of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// A limit that must be kept.
    pub dram: Dram,
    /// What may be lost, beside it.
    pub slowdown: Option<Target>,
}

impl Limits {
    /// Whether anything limits it.
    pub fn any(&self) -> bool {
        self.dram != Dram::Unlimited || self.slowdown.is_some()
    }
}

/// The processes of one run.
#[derive(Debug)]
pub struct Tree {
    run_dir: PathBuf,
    limits: Limits,
    /// Whether it began with a limit, which may be lifted and set again.
    limited: bool,
    /// Whether the limits were changed; and from how much memory comes down to them, since when.
    changed: bool,
    comes_down: Option<(u64, Instant)>,
    /// What the tiers may take outside the processes.
    elsewhere: u64,
    /// How many processes have no page, and their memory.
    apart: (usize, u64),
    members: HashMap<String, Member>,
    touched_max: u64,
    growth: Growth,
    /// The model of `--slowdown`, if there is one; and how much time was lost to waits for memory,
    /// s.
    slowdown: Option<Slowdown>,
    lost_s: f64,
    budget_status: BudgetStatus,
    together: Together,
    logical_byte_s: f64,
    physical_byte_s: f64,
    /// What all had at the last poll.
    physical: u64,
    seconds: f64,
    polled: Option<Instant>,
    begun: Instant,
    /// When the directory last changed, as far as all of its files are known.
    taken_in: Option<SystemTime>,
    /// No poll before this time unless a process came.
    quiet_until: Instant,
    backoff: Backoff,
    /// The processes whose shared pages were counted last, when, and the CPU time that it took.
    sharers: HashSet<u32>,
    sharing_polled: Option<Instant>,
    sharing_cost: Duration,
}

/// A page: one program image of one process.
#[derive(Debug)]
struct Member {
    file: PageFile,
    /// Whether it will never speak again.
    gone: bool,
    image: Image,
    /// Whether it was there under its number at some poll; and at the last.
    seen: bool,
    same: bool,
    /// How much of its memory is its own, where others share it; `None` until that was counted.
    own: Option<f64>,
    floor: f64,
    /// The highest `peak_physical_bytes` it told of, at earlier polls.
    peak: u64,
    /// `peak_logical_bytes` as it told it.
    told_logical: u64,
    /// [`Image::lost_ns`](crate::processes::statistics::Image) at the last poll.
    lost_ns: u64,
    written: Option<(u64, u64)>,
}

impl Member {
    /// How much of its memory counts in sums. What a child has just inherited is its parent's,
    /// until it is counted.
    fn part(&self) -> f64 {
        self.own.unwrap_or(if self.image.forked { 0.0 } else { 1.0 })
    }

    /// Takes the process's memory from the kernel once Terrace has ended in it: what the process
    /// says of it is over then.
    fn see_from_outside(&mut self) {
        let image = &mut self.image;
        let bytes = if image.ended_early { process::anonymous_bytes(image.pid) } else { 0 };
        if bytes > 0 {
            (image.logical_bytes, image.physical_bytes) = (bytes, bytes);
            image.peak_logical_bytes = image.peak_logical_bytes.max(bytes);
            image.peak_physical_bytes = image.peak_physical_bytes.max(bytes);
        }
    }

    /// Believes what it says of its memory as far as /proc bears it out (see [`belief`]). How much
    /// data it has had is told back to it as it is.
    fn believe(&mut self, elsewhere: u64) {
        let image = &mut self.image;
        self.told_logical = image.peak_logical_bytes;
        if !self.same || !image.counts() {
            return;
        }
        let Some(mut bytes) = process::resident_bytes(image.pid) else { return };
        let mut peak = bytes;
        // Little happens that takes a longer poll.
        if image.peak_physical_bytes > bytes
            && let Some(resident) = process::resident(image.pid)
        {
            bytes = bytes.saturating_add(resident.swapped_bytes);
            peak = bytes.max(resident.peak_bytes.saturating_add(resident.swapped_bytes));
        }
        let (bytes, peak) = (bytes.saturating_add(elsewhere), peak.saturating_add(elsewhere));
        let most = |field: &mut u64, most: u64| *field = most.min(*field);
        most(&mut image.physical_bytes, belief::memory(bytes));
        most(&mut image.peak_physical_bytes, belief::memory(peak));
        most(&mut image.peak_overhead_bytes, belief::memory(peak));
        most(&mut image.logical_bytes, belief::demand(bytes));
        most(&mut image.peak_logical_bytes, belief::demand(peak));
    }

    /// Whether it has memory that may be another's too. A child that was just forked is idle for a
    /// moment, with all that its parent has.
    fn shares_pages(&self) -> bool {
        self.image.counts() || self.image.state == State::Idle && self.image.forked
    }
}

/// What all processes had together. A page shared by several counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Together {
    /// Most processes with memory under management at a time.
    pub processes: usize,
    /// The budget at the end, as it is held to; `u64::MAX` where there is none (yet).
    pub budget_bytes: u64,
    /// The most data at a time.
    pub peak_logical_bytes: u64,
    /// How long a share was not held to, because memory grew: see [`Growth`].
    pub growing_s: f64,
    /// Whether the budget was kept: exceeded by more than 2 % for at most 1 % of the time.
    pub budget_met: bool,
    /// The share of the time in which the budget was not exceeded by more than 2 %.
    pub kept_fraction: f64,
    /// Where the budget was not kept, what there was on average while nothing more could be
    /// evicted; otherwise 0.
    pub floor_bytes: u64,
    /// Time at the floor, s.
    pub floor_s: f64,
    /// Time above the budget, s.
    pub over_budget_s: f64,
    /// Time above the budget by more than 2 %, s.
    pub far_over_budget_s: f64,
    /// Average data.
    pub mean_logical_bytes: u64,
    /// Average DRAM for it.
    pub mean_physical_bytes: u64,
    /// The most DRAM, between polls too: then as if what each process saw as its most had been at
    /// one time.
    pub peak_physical_bytes: u64,
}

impl Tree {
    /// The processes that put their pages into `run_dir`.
    pub fn new(run_dir: &Path, limits: Limits, tiers: &str) -> Self {
        Tree {
            run_dir: run_dir.to_owned(),
            limits,
            limited: limits.any(),
            changed: false,
            comes_down: None,
            elsewhere: belief::elsewhere(tiers),
            apart: (0, 0),
            members: HashMap::new(),
            touched_max: 0,
            growth: Growth::new(),
            slowdown: limits.slowdown.map(Slowdown::new),
            lost_s: 0.0,
            budget_status: BudgetStatus::default(),
            together: Together::default(),
            logical_byte_s: 0.0,
            physical_byte_s: 0.0,
            physical: 0,
            seconds: 0.0,
            polled: None,
            begun: Instant::now(),
            taken_in: None,
            quiet_until: Instant::now(),
            backoff: Backoff::new(POLL_INTERVAL, QUIET_POLL_INTERVAL),
            sharers: HashSet::new(),
            sharing_polled: None,
            sharing_cost: Duration::ZERO,
        }
    }

    /// What limits the run now.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets other limits, which hold from the next poll on. Memory comes down to lower ones over
    /// some seconds.
    pub fn set(&mut self, limits: Limits) {
        self.slowdown = match (limits.slowdown, self.slowdown.take()) {
            (Some(target), Some(mut slowdown)) => {
                slowdown.follow(target);
                Some(slowdown)
            }
            (target, _) => target.map(Slowdown::new),
        };
        self.limits = limits;
        self.changed = true;
        self.comes_down = Some((self.physical, Instant::now()));
        self.quiet_until = Instant::now();
    }

    /// Notes how many processes have no page, and their memory in bytes. It is counted, and nothing
    /// can be assigned to them.
    pub fn set_apart(&mut self, apart: (usize, u64)) {
        self.apart = apart;
    }

    /// Looks at all processes and assigns what each may have. Returns when to poll again.
    pub fn poll(&mut self) -> Duration {
        if !self.limits.any() && !self.changed {
            return if self.limited { QUIET_POLL_INTERVAL } else { Duration::MAX };
        }
        let now = Instant::now();
        let begun = cpu_time();
        let came = self.take_in();
        if !came && now < self.quiet_until {
            return POLL_INTERVAL;
        }
        self.read_pages();
        self.see_who_is_gone();
        let elsewhere = self.elsewhere;
        self.live().for_each(|member| member.believe(elsewhere));
        let counting = self.count_sharing(now);
        let room = self.assign(now);
        if self.members.is_empty() {
            return FIRST_POLL_INTERVAL;
        }
        self.rest(now, came, room);
        // What counting shared pages cost has a limit of its own.
        POLL_INTERVAL.max((cpu_time() - begun).saturating_sub(counting) * POLL_SHARE)
    }

    /// Puts off the next poll, longer each time while nothing changes.
    fn rest(&mut self, now: Instant, came: bool, room: u64) {
        let bytes = self
            .members
            .values()
            .filter(|member| !member.gone)
            .map(|member| member.image.physical_bytes + member.image.committed_bytes)
            .sum();
        let sleep = self.backoff.sleep(
            bytes,
            room,
            came || self.growth.is_changing() || self.comes_down.is_some(),
        );
        // The last of the polls meanwhile, each of which may come a little early, is one.
        self.quiet_until = now + sleep - POLL_INTERVAL / 2;
    }

    /// What is known at the end; `None` if no process was ever looked at, or without a budget.
    pub fn together(&self) -> Option<Together> {
        (self.together.processes > 0).then_some(self.together)
    }

    /// True if there is a process that was not there before.
    fn take_in(&mut self) -> bool {
        let changed =
            std::fs::metadata(&self.run_dir).and_then(|directory| directory.modified()).ok();
        if changed.is_some() && changed == self.taken_in {
            return false;
        }
        // What is made within the same tick of the clock as the last change leaves the time as it
        // is.
        let settled =
            |changed: &SystemTime| changed.elapsed().is_ok_and(|since| since > CLOCK_TICK);
        self.taken_in = changed.filter(settled);
        let files: Vec<statistics::PageFile> = statistics::page_files(&self.run_dir).collect();
        // Of those that ended and were taken out (`ended.rs`) nothing is needed any more.
        let there: HashSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
        self.members.retain(|name, member| !member.gone || there.contains(name.as_str()));
        let before = self.members.len();
        for file in files {
            self.members.entry(file.name.clone()).or_insert_with(|| Member {
                file,
                gone: false,
                image: Image::default(),
                seen: false,
                same: false,
                own: None,
                floor: 0.0,
                peak: 0,
                told_logical: 0,
                lost_ns: 0,
                written: None,
            });
        }
        self.members.len() > before
    }

    fn live(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.values_mut().filter(|member| !member.gone && member.image.pid != 0)
    }

    fn read_pages(&mut self) {
        for member in self.members.values_mut().filter(|member| !member.gone) {
            // One that is being made is read at the next poll.
            if let Some(image) = statistics::read_image(&member.file) {
                member.image = image;
                member.see_from_outside();
            }
        }
    }

    fn see_who_is_gone(&mut self) {
        let now_ns = terrace_os::now_ns();
        // Of several images of one process the last one lives.
        let mut last: HashMap<(u32, u64), u64> = HashMap::new();
        for member in self.live() {
            let started = last.entry((member.image.pid, member.image.start_ticks)).or_default();
            *started = (*started).max(member.image.started_ns);
        }
        for member in self.live() {
            let image = &member.image;
            let silent = now_ns.saturating_sub(image.updated_ns) > SILENT_NS;
            let same = image.process();
            member.seen |= same.is_some();
            member.same = same.is_some_and(|stat| !stat.ended);
            member.gone = match same {
                Some(stat) if stat.ended => true,
                Some(_) if image.started_ns < last[&(image.pid, image.start_ticks)] => true,
                // It may be stopped, or have executed a program that the library cannot come into.
                Some(_) => {
                    let idle = image.state == State::Idle || image.state == State::Unmanaged;
                    !idle && silent && !process::maps(image.pid, &member.file.name)
                }
                // Ended; or its number means nothing here (a namespace of its own), and then its
                // silence tells.
                None => member.seen || silent,
            };
        }
    }

    /// Only forks make processes share pages; without one, or with one process, nothing is looked
    /// at. Returns the CPU time that it took.
    fn count_sharing(&mut self, now: Instant) -> Duration {
        let sharing = self.live().count() > 1 && self.live().any(|member| member.image.forked);
        if !sharing {
            self.live().for_each(|member| member.own = Some(1.0));
            return Duration::ZERO;
        }
        let since = self.sharing_polled.map_or(Duration::MAX, |polled| now - polled);
        let sharers: Vec<u32> = self
            .live()
            .filter(|member| member.shares_pages())
            .map(|member| member.image.pid)
            .collect();
        let changed = sharers.len() != self.sharers.len()
            || sharers.iter().any(|pid| !self.sharers.contains(pid));
        let rest = if changed {
            self.sharing_cost * SHARING_SHARE_CHANGED
        } else {
            SHARING_EVERY.max(self.sharing_cost * SHARING_SHARE)
        };
        if since < rest {
            return Duration::ZERO;
        }
        self.sharers = sharers.into_iter().collect();
        let begun = cpu_time();
        for member in self.live().filter(|member| member.shares_pages()) {
            // No process's share of a page is so small that what is assigned for it could run away.
            // Of another user's process it may not be asked: then all of it counts.
            let own = process::own_fraction(member.image.pid).map(|own| own.max(1.0 / 64.0));
            member.own = own.or(member.own).or(Some(1.0));
        }
        self.sharing_polled = Some(now);
        self.sharing_cost = cpu_time() - begun;
        self.sharing_cost
    }

    /// Assigns what each may have. Returns the least room that is left, to one of them or to all.
    fn assign(&mut self, now: Instant) -> u64 {
        let dram = self.limits.dram;
        let mut members: Vec<&mut Member> = self
            .members
            .values_mut()
            .filter(|member| !member.gone && member.image.pid != 0)
            .collect();
        members.sort_by_key(|member| (member.image.started_ns, member.image.pid));
        let (apart, mut idle_bytes) = self.apart;
        let (mut logical, mut physical, mut peak, mut at_floor) = (0u64, 0u64, 0u64, true);
        let mut needs = Vec::new();
        for member in &mut members {
            let image = &member.image;
            if image.state == State::Idle {
                // Nothing of it can be evicted yet, so it comes first.
                let bytes = image.committed_bytes.min(process::anonymous_bytes(image.pid));
                idle_bytes += (bytes as f64 * member.part()) as u64;
                continue;
            }
            if !image.counts() {
                continue;
            }
            let (of_sum, of_need) = (member.part(), member.own.unwrap_or(1.0));
            let part = |bytes: u64| (bytes as f64 * of_sum) as u64;
            let own = |bytes: u64| (bytes as f64 * of_need) as u64;
            let lost_ns = image.lost_ns.saturating_sub(member.lost_ns);
            self.lost_s += lost_ns as f64 / 1e9;
            // What is waited of late counts in full until it is judged.
            member.lost_ns = member.lost_ns.max(image.lost_ns);
            let stuck = image.at_floor || image.state == State::Frozen;
            at_floor &= stuck;
            member.floor =
                if stuck { own(image.physical_bytes) as f64 } else { member.floor * FLOOR_FADES };
            logical += part(image.logical_bytes);
            physical += part(image.physical_bytes);
            // A burst between two polls is over at the second, but the process saw it.
            let burst = image.peak_physical_bytes > member.peak;
            peak += part(if burst { image.peak_physical_bytes } else { image.physical_bytes });
            // What came before it was counted is looked at once more when it is.
            if member.own.is_some() || !image.forked {
                member.peak = image.peak_physical_bytes;
            }
            needs.push(Need {
                demand: own(image.logical_bytes + image.peak_overhead_bytes),
                floor: member.floor as u64,
            });
        }
        logical += idle_bytes;
        physical += idle_bytes;
        self.together.peak_physical_bytes =
            self.together.peak_physical_bytes.max(peak + idle_bytes);
        self.touched_max = self.touched_max.max(logical);
        let share = dram.budget_bytes(self.touched_max);
        let sample = Sample {
            now_s: (now - self.begun).as_secs_f64(),
            most: self.touched_max,
            data: logical,
            physical,
            lost_s: self.lost_s,
        };
        let budget = match dram {
            Dram::Share(_) => self.growth.limit(sample, share, room::after),
            Dram::Bytes(_) | Dram::Unlimited => share,
        };
        let advised =
            self.slowdown.as_mut().map(|slowdown| slowdown.limit(sample, MIN_BUDGET_BYTES));
        let budget = budget.min(advised.unwrap_or(u64::MAX));
        let told = share.min(advised.unwrap_or(u64::MAX));
        let budget = come_down(&mut self.comes_down, now, budget);
        let to_share = budget.saturating_sub(idle_bytes);
        // What an idle process may begin with: as much as if all of them began now.
        let beginning = to_share / members.len().max(1) as u64;
        let processes = needs.len() + apart;
        let mut room = budget.saturating_sub(physical);
        let mut shares = shares(to_share, &needs).into_iter();
        for member in members {
            let share = if member.image.state == State::Idle && member.image.forked {
                // It knows better what it may begin with: what it inherited, and some room.
                continue;
            } else if member.image.state == State::Idle {
                beginning
            } else if member.image.counts() {
                // Its own account has shared pages in full.
                ((shares.next().expect("one share for each need") as f64
                    / member.own.unwrap_or(1.0)) as u64)
                    .min(budget)
            } else {
                continue;
            };
            if budget == u64::MAX && !self.changed {
                // There is no limit to divide yet.
                continue;
            }
            // What was assigned before is taken back.
            let share = if budget == u64::MAX { NO_BUDGET } else { share };
            room = room.min(share.saturating_sub(member.image.physical_bytes));
            let assigned = (share.max(1), member.told_logical);
            if member.written != Some(assigned)
                && statistics::write_share(&member.file.path, assigned.0, assigned.1).is_ok()
            {
                member.written = Some(assigned);
            }
        }
        self.record(
            now,
            (budget, told),
            logical,
            physical,
            at_floor && !needs.is_empty() && physical > budget,
            processes,
        );
        room
    }

    fn record(
        &mut self,
        now: Instant,
        (budget, told): (u64, u64),
        logical: u64,
        physical: u64,
        at_floor: bool,
        processes: usize,
    ) {
        let seconds = self.polled.map_or(0.0, |polled| (now - polled).as_secs_f64());
        self.polled = Some(now);
        self.physical = physical;
        self.seconds += seconds;
        self.logical_byte_s += logical as f64 * seconds;
        self.physical_byte_s += physical as f64 * seconds;
        self.budget_status.add(physical, budget, at_floor, seconds);
        let mean =
            |integral: f64| if self.seconds > 0.0 { (integral / self.seconds) as u64 } else { 0 };
        let budget_met = self.budget_status.is_kept();
        self.together = Together {
            processes: self.together.processes.max(processes),
            budget_bytes: told,
            peak_logical_bytes: self.touched_max,
            growing_s: self.growth.waited_s(),
            budget_met,
            kept_fraction: self.budget_status.kept_fraction(),
            floor_bytes: if budget_met { 0 } else { self.budget_status.floor_bytes() },
            floor_s: self.budget_status.floor_s(),
            over_budget_s: self.budget_status.over_s(),
            far_over_budget_s: self.budget_status.far_over_s(),
            mean_logical_bytes: mean(self.logical_byte_s),
            mean_physical_bytes: mean(self.physical_byte_s),
            peak_physical_bytes: self.together.peak_physical_bytes,
        };
    }
}

/// The limit on the way to one that was set; the way ends there.
fn come_down(way: &mut Option<(u64, Instant)>, now: Instant, budget: u64) -> u64 {
    let Some((from, since)) = *way else { return budget };
    let limit = growth::coming_down(from, budget, now.duration_since(since).as_secs_f64());
    *way = way.filter(|_| limit > budget);
    limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::statistics::samples::page_of;
    use std::mem::offset_of;
    use std::process::{Child, Command};
    use terrace_control::stats::StatsPage;
    use terrace_os as sys;

    const MIB: u64 = 1 << 20;

    const LONG: Duration = Duration::from_secs(60);

    /// A process that sleeps; killed when dropped.
    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Puts down a page of a process that is there, with this much data and memory.
    fn put(directory: &Path, pid: u32, logical: u64, physical: u64) -> PathBuf {
        let ticks = process::stat(pid).expect("it lives").start_ticks;
        let mut page = page_of(pid, sys::now_ns(), ticks, sys::pid_namespace());
        let mut set = |offset: usize, value: u64| {
            page[offset..offset + 8].copy_from_slice(&value.to_ne_bytes())
        };
        for offset in
            [offset_of!(StatsPage, logical_bytes), offset_of!(StatsPage, peak_logical_bytes)]
        {
            set(offset, logical);
        }
        for offset in
            [offset_of!(StatsPage, physical_bytes), offset_of!(StatsPage, peak_physical_bytes)]
        {
            set(offset, physical);
        }
        page[offset_of!(StatsPage, state)..][..4]
            .copy_from_slice(&(State::Active as u32).to_ne_bytes());
        let path = directory.join(format!("{pid}-1.stats"));
        std::fs::write(&path, page).unwrap();
        path
    }

    fn share(path: &Path) -> u64 {
        let page = std::fs::read(path).unwrap();
        u64::from_ne_bytes(page[offset_of!(StatsPage, share_bytes)..][..8].try_into().unwrap())
    }

    const LIMITS: Limits = Limits { dram: Dram::Bytes(100 * MIB), slowdown: None };

    #[test]
    fn other_limits_are_come_down_to_and_lifted() {
        let scratch = tempfile::tempdir().unwrap();
        let memory = vec![1u8; 64 << 20];
        std::hint::black_box(&memory);
        let own = put(scratch.path(), std::process::id(), 60 * MIB, 60 * MIB);
        let mut tree = Tree::new(scratch.path(), LIMITS, "dram,lz4");
        tree.poll();
        assert_eq!(share(&own), 100 * MIB);
        let limits = Limits { dram: Dram::Bytes(40 * MIB), slowdown: None };
        tree.set(limits);
        tree.poll();
        assert!((59 * MIB..=60 * MIB).contains(&share(&own)), "it begins where memory is");
        tree.comes_down = tree.comes_down.map(|(from, since)| (from, since - LONG));
        (tree.quiet_until, tree.polled) = (Instant::now(), None);
        tree.poll();
        assert_eq!((share(&own), tree.limits()), (40 * MIB, limits));
        tree.set(Limits { dram: Dram::Unlimited, slowdown: None });
        tree.poll();
        assert_eq!(share(&own), NO_BUDGET);
    }

    /// A process that lies in its page gets no more of the budget by it, the others get no less,
    /// and no sum is wrong.
    #[test]
    fn the_budget_is_divided_by_what_proc_says() {
        let scratch = tempfile::tempdir().unwrap();
        let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
        // What this process has: it is an honest one.
        let memory = vec![1u8; 64 << 20];
        std::hint::black_box(&memory);
        let honest = put(scratch.path(), std::process::id(), 200 * MIB, 60 * MIB);
        let liar = put(scratch.path(), sleeper.0.id(), 1 << 50, 1 << 50);
        let mut tree = Tree::new(scratch.path(), LIMITS, "dram,lz4");
        tree.poll();
        let (honest, liar) = (share(&honest), share(&liar));
        assert!(honest > 45 * MIB && honest + liar == 100 * MIB, "{honest} and {liar}");
        let together = tree.together().unwrap();
        assert!(together.peak_physical_bytes < 100 * MIB, "{together:?}");
        assert!(together.budget_met, "{together:?}");
    }

    /// A process without a page has what it has, and the others the rest.
    #[test]
    fn who_has_no_page_is_counted() {
        let scratch = tempfile::tempdir().unwrap();
        let own = put(scratch.path(), std::process::id(), 200 * MIB, 10 * MIB);
        let mut tree = Tree::new(scratch.path(), LIMITS, "dram,lz4");
        tree.set_apart((1, 70 * MIB));
        tree.poll();
        assert_eq!(share(&own), 30 * MIB);
        assert_eq!(tree.together().map(|all| all.processes), Some(2));
    }
}
