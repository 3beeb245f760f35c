//! How much of its time a program lost to waits for memory.

use crate::account::Account;
use crate::stats::Counted;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;
use terrace_os as sys;

/// The time that a program lost within `elapsed_ns`, in ns.
///
/// `waited_ns` is how long its threads waited for memory, and `ran_ns` how long they had a CPU,
/// each summed over its threads. Their sum is what the threads wanted; where it is more than one
/// thread can want, the program lost only the part of it that was waited. So two threads that each
/// wait half of the time cost half of it, not all of it, and a thread that waits beside idle
/// ones, or for requests as well, costs what it waits. A thread that waits for a CPU wants it
/// too and is not seen: more threads than CPUs lose less than this says.
pub fn lost_ns(elapsed_ns: u64, waited_ns: u64, ran_ns: u64) -> u64 {
    let wanted_ns = elapsed_ns.max(waited_ns.saturating_add(ran_ns));
    if wanted_ns == 0 {
        return 0;
    }
    (u128::from(elapsed_ns) * u128::from(waited_ns) / u128::from(wanted_ns)) as u64
}

/// So far back goes the last minute, and so far apart are the looks that are kept for it.
const MINUTE_NS: u64 = 60_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// What was known of a program at earlier looks at it. Owned by the mover's thread.
pub(crate) struct Looks {
    /// When the last one was, and the CPU time of the program then; `None` where the kernel does
    /// not say.
    last: (u64, Option<u64>),
    /// When some of the last minute were, and what was lost until then, the oldest first. Has all
    /// its room from the start.
    minute: VecDeque<(u64, u64)>,
}

impl Looks {
    /// From now on.
    pub fn new() -> Looks {
        Looks {
            last: (sys::now_ns(), sys::program_cpu_ns()),
            minute: VecDeque::with_capacity((MINUTE_NS / SECOND_NS) as usize + 2),
        }
    }

    /// Counts what was lost since the last look. Returns how long the last minute was, or all time
    /// where that is less, and what was lost in it, ns.
    pub fn add_lost(&mut self, account: &Account, now_ns: u64) -> (u64, u64) {
        let (then_ns, ran_then_ns) = self.last;
        let ran_ns = sys::program_cpu_ns();
        let since = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let ran_since_ns = since(ran_ns, ran_then_ns).unwrap_or(0);
        let stall_ns = account.stall_ns.load(Relaxed);
        let waited_ns = stall_ns.saturating_sub(account.judged_stall_ns.swap(stall_ns, Relaxed));
        let lost_before_ns = account.lost_ns.load(Relaxed);
        let elapsed_ns = now_ns.saturating_sub(then_ns);
        let lost_ns = lost_before_ns + lost_ns(elapsed_ns, waited_ns, ran_since_ns);
        account.lost_ns.store(lost_ns, Relaxed);
        if self.minute.back().is_none_or(|(at_ns, _)| then_ns.saturating_sub(*at_ns) >= SECOND_NS) {
            self.minute.push_back((then_ns, lost_before_ns));
        }
        // The next one is a minute old, too.
        while self.minute.get(1).is_some_and(|(at_ns, _)| now_ns.saturating_sub(*at_ns) >= MINUTE_NS)
        {
            self.minute.pop_front();
        }
        self.last = (now_ns, ran_ns);
        let (from_ns, lost_until_ns) = self.minute.front().copied().unwrap_or((now_ns, lost_ns));
        (now_ns.saturating_sub(from_ns), lost_ns.saturating_sub(lost_until_ns))
    }
}

impl Account {
    /// All counts now. What was waited since the last look, which was no sooner than `looked_ns`,
    /// counts as lost, since nothing is known of other threads; makes no system call.
    pub fn read_counts(&self, looked_ns: u64) -> Counted {
        let mut counted = self.counts.read();
        let waited_ns = counted.stall_ns.saturating_sub(self.judged_stall_ns.load(Relaxed));
        counted.lost_ns += waited_ns.min(sys::now_ns().saturating_sub(looked_ns));
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_waits_is_lost() {
        assert_eq!(lost_ns(1_000, 300, 700), 300);
        // It waits for requests as well.
        assert_eq!(lost_ns(1_000, 300, 100), 300);
        assert_eq!(lost_ns(1_000, 0, 700), 0);
        assert_eq!(lost_ns(0, 0, 0), 0);
    }

    #[test]
    fn waits_of_several_threads_are_not_added_up() {
        // Two threads, each of which waits for half of the time.
        assert_eq!(lost_ns(1_000, 1_000, 1_000), 500);
        // One waits all the time while three compute.
        assert_eq!(lost_ns(1_000, 1_000, 3_000), 250);
        // All of eight wait and do nothing else.
        assert_eq!(lost_ns(1_000, 8_000, 0), 1_000);
        assert_eq!(lost_ns(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn the_last_minute_is_told_beside_all_time() {
        let account = Account::new();
        let mut looks = Looks { last: (0, None), minute: VecDeque::new() };
        let mut told = (0, 0);
        // A tenth is lost for two minutes, and then nothing for half of one.
        for tenth in 1..=1_500 {
            let waited_ns = if tenth <= 1_200 { 10_000_000 } else { 0 };
            account.stall_ns.fetch_add(waited_ns, Relaxed);
            told = looks.add_lost(&account, tenth * 100_000_000);
            if tenth == 100 {
                assert_eq!(told, (10_000_000_000, 1_000_000_000));
            }
        }
        assert_eq!(account.lost_ns.load(Relaxed), 12_000_000_000);
        assert!((60_000_000_000..=61_000_000_000).contains(&told.0), "{told:?}");
        assert!((3_000_000_000..=3_100_000_000).contains(&told.1), "{told:?}");
        assert!(looks.minute.len() <= 62);
    }
}
