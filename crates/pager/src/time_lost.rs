//! How much of its time a program lost to waits for memory.

use crate::counters::Account;
use crate::fault::fault_cost::{FaultCost, interruption_ns};
use crate::first_thread::{FirstThread, Times};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;
use terrace_control::stats::Counted;
use terrace_os as sys;

/// The CPU time of other programs counts in full from where a program's threads want one CPU and
/// one part in this many of another.
const FULL_FROM: u64 = 4;

/// The time that a program lost within `elapsed_ns`, in ns.
///
/// `stall_ns` is how long its threads were held up by memory, of which they spent `stall_cpu_ns` on
/// a CPU. `ran_ns` is how long they had a CPU in all. Each is summed over the threads. Running and
/// waiting together are what the threads wanted. Where that is more than one thread can want, the
/// program lost only the part of the time that is held up of it. So two threads that each wait half
/// of the time cost half of it, not all of it. A thread that waits beside idle ones, or for
/// requests as well, costs what it waits. More threads than `cpus` could not all have run. While
/// one of them waits for memory another one has its CPU, and nothing is lost.
///
/// Other programs had CPUs for `others_ns`. What they would have had is not known where the program
/// wants more than is left. If they have nothing to do with it, they keep that. If they are its
/// clients, they would have had more as it did more. The mean of the two answers is given. Up to
/// one CPU that the program wants, none of this matters; from there the answer goes over
/// (`FULL_FROM`).
///
/// The first thread's waits for a CPU that Terrace has are in `stall_ns` (`FirstThread`). Those of
/// other threads are not known.
pub fn lost_ns(elapsed_ns: u64, threads: Threads, cpus: u64, others_ns: u64) -> u64 {
    let Threads { stall_ns, stall_cpu_ns, ran_ns } = threads;
    let part = |of_ns: u64, part_ns: u64, whole_ns: u64| {
        (u128::from(of_ns) * u128::from(part_ns) / u128::from(whole_ns.max(1))) as u64
    };
    let wanted_ns = elapsed_ns.max(threads.wanted_ns());
    let all_ns = elapsed_ns.saturating_mul(cpus.max(1));
    // CPU time for the program itself, and not for its faults.
    let useful_ns = ran_ns.saturating_sub(stall_cpu_ns);
    let lost_of = |left_ns: u64| {
        let possible_ns = wanted_ns.min(left_ns.max(useful_ns)).max(1);
        let held_up_ns = stall_ns.saturating_sub(wanted_ns.saturating_sub(possible_ns));
        part(elapsed_ns, held_up_ns, possible_ns)
    };
    let alone_ns = lost_of(all_ns);
    let beside_ns = lost_of(all_ns.saturating_sub(others_ns));
    // CPU time that was of use to the program and its clients: the rest was lost.
    let used_ns = useful_ns.saturating_add(others_ns).min(all_ns);
    let with_clients_ns = (elapsed_ns - part(elapsed_ns, used_ns, all_ns)).min(alone_ns);
    // The weight is less, the nearer to one thread, which others keep from no CPU for long.
    let weight_ns = (wanted_ns - elapsed_ns).saturating_mul(FULL_FROM).min(elapsed_ns);
    let shared_ns = beside_ns.midpoint(with_clients_ns);
    part(alone_ns, elapsed_ns - weight_ns, elapsed_ns) + part(shared_ns, weight_ns, elapsed_ns)
}

/// Times of a program's threads within some time, ns, each summed over them.
#[derive(Clone, Copy, Default)]
pub struct Threads {
    /// Time that the threads were held up by memory.
    pub stall_ns: u64,
    /// The part of `stall_ns` that the threads spent on a CPU.
    pub stall_cpu_ns: u64,
    /// Time that the threads had a CPU.
    pub ran_ns: u64,
}

impl Threads {
    /// Time that the threads would have run if they had not been held up and there were CPUs for
    /// all, ns.
    fn wanted_ns(&self) -> u64 {
        let waited_ns = self.stall_ns.saturating_sub(self.stall_cpu_ns);
        waited_ns.saturating_add(self.ran_ns.max(self.stall_cpu_ns))
    }
}

/// How far back the last minute goes.
const MINUTE_NS: u64 = 60_000_000_000;
/// How far apart the measurements are that are kept for the last minute.
const SECOND_NS: u64 = 1_000_000_000;

/// Earlier measurements of a program's times. Owned by the mover's thread.
pub(crate) struct LostTime {
    /// Time of the last measurement, ns, and the CPU time of the program then; `None` where the
    /// kernel does not say.
    last: (u64, Option<u64>),
    /// Times of some measurements of the last minute, and the time lost until then, ns; the oldest
    /// first. Has all its room from the start.
    minute: VecDeque<(u64, u64)>,
    /// How many CPUs the program may run on.
    cpus: u64,
    /// Whether `cpus` are all that there are.
    has_all_cpus: bool,
    /// How long all CPUs had been busy at the last measurement, ns; `None` if it did not matter
    /// then.
    busy_ns: Option<u64>,
    /// CPU time of Terrace's threads at the last measurement, ns.
    terrace_ns: u64,
    first_thread: FirstThread,
}

impl LostTime {
    /// Begins now, with the first measurement.
    pub fn new(cost: &FaultCost) -> LostTime {
        let cpus = sys::cpu_count();
        LostTime {
            last: (sys::now_ns(), sys::program_cpu_ns()),
            minute: VecDeque::with_capacity((MINUTE_NS / SECOND_NS) as usize + 2),
            cpus: cpus as u64,
            has_all_cpus: cpus >= sys::online_cpus(),
            busy_ns: None,
            terrace_ns: 0,
            first_thread: FirstThread::new(cost),
        }
    }

    /// Counts what was lost since the last measurement. Returns how long the last minute was (or
    /// all time where that is less), and what was lost in it, ns.
    pub fn add_lost(&mut self, account: &Account, cost: &FaultCost, now_ns: u64) -> (u64, u64) {
        let (then_ns, ran_then_ns) = self.last;
        let ran_ns = sys::program_cpu_ns();
        let since = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let ran_since_ns = since(ran_ns, ran_then_ns).unwrap_or(0);
        let newly = |all: &AtomicU64, judged: &AtomicU64| {
            let now = all.load(Relaxed);
            now.saturating_sub(judged.swap(now, Relaxed))
        };
        let stall_cpu_ns = newly(&account.stall_cpu_ns, &account.judged_stall_cpu_ns);
        let mut stall_ns = newly(&account.stall_ns, &account.judged_stall_ns);
        let unseen_ns = self.first_thread.held_up_ns(
            cost,
            stall_ns.saturating_sub(stall_cpu_ns),
            Times {
                at_ns: now_ns,
                of_program_ns: ran_ns.unwrap_or(0),
                of_terrace_ns: account.cpu_ns.load(Relaxed),
                ..Times::default()
            },
        );
        stall_ns += unseen_ns;
        account.stall_ns.fetch_add(unseen_ns, Relaxed);
        account.judged_stall_ns.fetch_add(unseen_ns, Relaxed);
        let lost_before_ns = account.lost_ns.load(Relaxed);
        let elapsed_ns = now_ns.saturating_sub(then_ns);
        let threads = Threads { stall_ns, stall_cpu_ns, ran_ns: ran_since_ns };
        // Reading what the machine did costs more the more CPUs it has.
        let matters = self.has_all_cpus && threads.wanted_ns() > elapsed_ns;
        let busy_ns = if matters { self.first_thread.machine_busy_ns() } else { None };
        let busy_since_ns = since(busy_ns, std::mem::replace(&mut self.busy_ns, busy_ns));
        let terrace_ns = account.cpu_ns.load(Relaxed);
        let own_ns = ran_since_ns
            + terrace_ns.saturating_sub(std::mem::replace(&mut self.terrace_ns, terrace_ns));
        let others_ns = busy_since_ns.unwrap_or(0).saturating_sub(own_ns);
        let lost_ns = lost_before_ns + lost_ns(elapsed_ns, threads, self.cpus, others_ns);
        account.lost_ns.store(lost_ns, Relaxed);
        account.judged_ns.store(now_ns, Relaxed);
        if self.minute.back().is_none_or(|(at_ns, _)| then_ns.saturating_sub(*at_ns) >= SECOND_NS) {
            self.minute.push_back((then_ns, lost_before_ns));
        }
        // The next one is a minute old, too.
        while self
            .minute
            .get(1)
            .is_some_and(|(at_ns, _)| now_ns.saturating_sub(*at_ns) >= MINUTE_NS)
        {
            self.minute.pop_front();
        }
        self.last = (now_ns, ran_ns);
        let (from_ns, lost_until_ns) = self.minute.front().copied().unwrap_or((now_ns, lost_ns));
        (now_ns.saturating_sub(from_ns), lost_ns.saturating_sub(lost_until_ns))
    }
}

impl Account {
    /// Counts the stall by a call that took `call_ns` and has taken `pages` out of page tables.
    pub fn add_interruption(&self, call_ns: u64, pages: u64) {
        self.add_stall(0, interruption_ns(call_ns, pages));
    }

    /// Counts that threads of the program were held up: `waited_ns` without a CPU and `ran_ns` on
    /// one.
    pub fn add_stall(&self, waited_ns: u64, ran_ns: u64) {
        self.stall_ns.fetch_add(waited_ns + ran_ns, Relaxed);
        self.stall_cpu_ns.fetch_add(ran_ns, Relaxed);
    }

    /// All counts now, of a process that began at `started_ns`. What was waited since they were
    /// judged last counts as lost, since nothing is known of other threads; makes no system call.
    pub fn read_counts(&self, started_ns: u64) -> Counted {
        let mut counted = self.counts.read();
        let waited_ns = counted.stall_ns.saturating_sub(self.judged_stall_ns.load(Relaxed));
        let judged_ns = self.judged_ns.load(Relaxed).max(started_ns);
        counted.lost_ns += waited_ns.min(sys::now_ns().saturating_sub(judged_ns));
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(
        elapsed_ns: u64,
        (stall_ns, stall_cpu_ns, ran_ns): (u64, u64, u64),
        cpus: u64,
        others_ns: u64,
    ) -> u64 {
        super::lost_ns(elapsed_ns, Threads { stall_ns, stall_cpu_ns, ran_ns }, cpus, others_ns)
    }

    #[test]
    fn what_one_thread_waits_is_lost() {
        assert_eq!(lost(1_000, (300, 0, 700), 2, 0), 300);
        // A third of that is its own CPU time.
        assert_eq!(lost(1_000, (300, 100, 800), 1, 0), 300);
        // It waits for requests as well.
        assert_eq!(lost(1_000, (300, 0, 100), 2, 0), 300);
        assert_eq!(lost(1_000, (0, 0, 700), 2, 0), 0);
        assert_eq!(lost(0, (0, 0, 0), 0, 0), 0);
    }

    #[test]
    fn waits_of_several_threads_are_not_added_up() {
        // Two threads, each of which waits for half of the time.
        assert_eq!(lost(1_000, (1_000, 0, 1_000), 2, 0), 500);
        // One waits all the time while three compute.
        assert_eq!(lost(1_000, (1_000, 0, 3_000), 4, 0), 250);
        // All of eight wait and do nothing else.
        assert_eq!(lost(1_000, (8_000, 0, 0), 8, 0), 1_000);
        assert_eq!(lost(u64::MAX, (u64::MAX, 0, u64::MAX), 1, 0), u64::MAX);
    }

    #[test]
    fn while_one_waits_another_one_has_its_cpu() {
        // Four threads wait for three quarters of the time, and use half of two CPUs.
        assert_eq!(lost(1_000, (3_000, 0, 1_000), 2, 0), 500);
        // They use both.
        assert_eq!(lost(1_000, (2_000, 0, 2_000), 2, 0), 0);
        // All of eight wait and do nothing else.
        assert_eq!(lost(1_000, (8_000, 0, 0), 2, 0), 1_000);
        // A quarter of what both do is their faults.
        assert_eq!(lost(1_000, (2_500, 500, 2_000), 2, 0), 250);
    }

    #[test]
    fn what_other_programs_have_of_the_cpus_was_not_to_be_had() {
        // Four threads wait nearly always. Others have 300: 1,700 are left, of which 200 were
        // used. If they are clients, they would have had 1,200 of 2,000.
        let (beside, clients) = (882, 750);
        assert_eq!(lost(1_000, (3_600, 0, 200), 2, 300), (beside + clients) / 2);
        // One thread, and a program that has nothing to do with it on the other CPU.
        assert_eq!(lost(1_000, (300, 0, 700), 2, 1_000), 300);
        // Enough is left.
        assert_eq!(lost(1_000, (900, 0, 600), 4, 500), 600);
        // A thread more than one, by a measurement's error, changes next to nothing.
        assert!((490..=510).contains(&lost(1_000, (501, 0, 500), 2, 1_000)));
        assert!((490..=510).contains(&lost(1_000, (505, 0, 500), 1, 400)));
        // Nor does it whether next to nothing was of use, or nothing.
        let little = lost(1_000_000, (3_000_000, 0, 1), 2, 1_000_000);
        assert!(little.abs_diff(lost(1_000_000, (3_000_000, 0, 0), 2, 1_000_000)) < 10, "{little}");
        assert_eq!(lost(1_000, (3_000, 0, 0), 2, u64::MAX), 500);
    }

    #[test]
    fn the_last_minute_is_told_beside_all_time() {
        let account = Account::new();
        let cost = FaultCost::default();
        let first_thread = FirstThread::unknown();
        let mut lost_time = LostTime {
            last: (0, None),
            minute: VecDeque::new(),
            cpus: 1,
            has_all_cpus: true,
            busy_ns: None,
            terrace_ns: 0,
            first_thread,
        };
        let mut told = (0, 0);
        // A tenth is lost for two minutes, and then nothing for half of one.
        for tenth in 1..=1_500 {
            let waited_ns = if tenth <= 1_200 { 10_000_000 } else { 0 };
            account.stall_ns.fetch_add(waited_ns, Relaxed);
            told = lost_time.add_lost(&account, &cost, tenth * 100_000_000);
            if tenth == 100 {
                assert_eq!(told, (10_000_000_000, 1_000_000_000));
            }
        }
        assert_eq!(account.lost_ns.load(Relaxed), 12_000_000_000);
        assert!((60_000_000_000..=61_000_000_000).contains(&told.0), "{told:?}");
        assert!((3_000_000_000..=3_100_000_000).contains(&told.1), "{told:?}");
        assert!(lost_time.minute.len() <= 62);
    }
}
