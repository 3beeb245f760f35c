//! Whether a handler runs before the program's threads, or waits until they have run.
//!
//! At raised priority a handler gets the processor as soon as a thread faults. That is two switches
//! for each fault, into caches that other threads have filled. A *coalescing* handler has the
//! priority of the program's threads. Where several threads share a processor, it runs when others
//! have faulted too or have nothing to do. It then serves several faults at once. Memcached with
//! four threads on one CPU, at half of its memory, takes 0.93 to 0.97 times the CPU time for a GET.
//! Its tails are no longer (`docs/notes/2026-11-27-benchmarks.md`, *Patience*). But a thread that
//! faults alone would wait behind those that are busy there (same note, *Threads that touch evicted
//! memory*). So a handler coalesces for a few reads now and then. It goes on while that gathers
//! faults and does not keep them waiting.

use std::ops::RangeInclusive;
use terrace_os::{self as sys, Fd};

/// Nice value of a handler that runs first.
const RAISED: i32 = -20;
/// Reads after which a coalescing handler checks whether faults are gathered. Each
/// `READS_PER_CHECK` it checks how long it has waited.
const READS: u32 = 128;
const READS_PER_CHECK: u32 = 32;
/// Pages that [`READS`] must have found for the handler to go on coalescing. Where it is more, the
/// kernel walks past dozens of waiting threads to wake one: there it is better to serve each at
/// once. (Random faulters on one CPU, pages a second without → with coalescing: 8 threads 98,000 →
/// 114,000, 16 98,000 → 111,000, 32 100,000 → 97,000, 64 114,000 → 95,000.)
const PAGES: RangeInclusive<u32> = READS * 5 / 4..=READS * 20;
/// The longest that the handler may have waited for the processor for each page, ns.
const WAIT_MOST_NS: u64 = 200_000;
/// Backoff after unsuccessful coalescing: this multiple of the time waited, and at least
/// `REST_MIN_NS`.
const REST: u64 = 64;
const REST_MIN_NS: u64 = 20_000_000;

/// The state of the calling thread, a handler.
pub(crate) struct Coalescer {
    /// The nice value that it has without us; `None` if it may not have another.
    own_nice: Option<i32>,
    /// The thread's schedstat; -1 without one, and then faults are not coalesced.
    times: Fd,
    policy: CoalescePolicy,
}

/// Decides whether the handler coalesces faults. It gets the time and how long the thread has
/// waited for a processor so far, in ns.
struct CoalescePolicy {
    coalescing: bool,
    reads: u32,
    pages: u32,
    /// When the present reads began.
    waited_ns: Option<u64>,
    rest_until_ns: u64,
}

impl Coalescer {
    /// The state for the calling thread, a handler, whose priority it raises where it may.
    pub fn new() -> Coalescer {
        // If a thread in the background starts us, the program's value.
        let own_nice = sys::nice_of_thread().min(sys::nice_of_program());
        let own_nice = sys::set_thread_nice(RAISED).then_some(own_nice);
        let times = sys::open("/proc/thread-self/schedstat\0", libc::O_RDONLY, 0).unwrap_or(-1);
        Coalescer { own_nice, times, policy: CoalescePolicy::new() }
    }

    /// Records that the thread has served a read that found `pages` pages. Repeated faults on one
    /// page and faults of a stream do not count: coalescing them saves nothing.
    pub fn read(&mut self, pages: usize) {
        let Some(own_nice) = self.own_nice else { return };
        let times = self.times;
        let poll = || {
            (
                sys::now_ns(),
                sys::ran_and_waited_ns(times)
                    .filter(|(ran_ns, _)| *ran_ns > 0)
                    .map(|(_, waited_ns)| waited_ns),
            )
        };
        let became = match self.policy.read(pages as u32, poll) {
            // A thread that may not raise its priority again keeps it. Only lowering and raising it
            // shows that: setting it unchanged is never refused.
            Some(true) => {
                sys::set_thread_nice(RAISED + 1)
                    && sys::set_thread_nice(RAISED)
                    && sys::set_thread_nice(own_nice)
            }
            Some(false) => sys::set_thread_nice(RAISED),
            None => true,
        };
        if !became {
            // The program has given up the right to change it: it stays unchanged.
            self.own_nice = None;
        }
    }
}

impl CoalescePolicy {
    fn new() -> CoalescePolicy {
        CoalescePolicy { coalescing: false, reads: 0, pages: 0, waited_ns: None, rest_until_ns: 0 }
    }

    /// Counts a read that found `pages` pages. `poll` gives the time and, if that is known, the
    /// time waited. Returns whether the thread is to coalesce from now on, if that changes.
    fn read(&mut self, pages: u32, poll: impl FnOnce() -> (u64, Option<u64>)) -> Option<bool> {
        self.reads += 1;
        self.pages += pages;
        if !self.reads.is_multiple_of(READS_PER_CHECK) {
            return None;
        }
        let (before, is_whole) = (self.coalescing, self.reads == READS);
        if !self.coalescing && !is_whole {
            return None;
        }
        let (now_ns, waited_ns) = poll();
        if !self.coalescing {
            let are_streams = self.pages < READS / 2;
            self.coalescing = waited_ns.is_some() && now_ns >= self.rest_until_ns && !are_streams;
        } else {
            let waited = waited_ns
                .zip(self.waited_ns)
                .map_or(u64::MAX, |(now, before)| now.saturating_sub(before));
            let in_vain = waited > WAIT_MOST_NS * u64::from(self.pages)
                || is_whole && !PAGES.contains(&self.pages);
            if !in_vain && !is_whole {
                return None;
            }
            if in_vain {
                self.coalescing = false;
                self.rest_until_ns =
                    now_ns.saturating_add(waited.saturating_mul(REST).max(REST_MIN_NS));
            }
        }
        (self.reads, self.pages, self.waited_ns) = (0, 0, waited_ns);
        (self.coalescing != before).then_some(self.coalescing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handler's life: its time, and its reads.
    struct Life {
        policy: CoalescePolicy,
        now_ns: u64,
        waited_ns: u64,
        coalescing_reads: u32,
        reads: u32,
    }

    impl Life {
        fn new() -> Life {
            Life {
                policy: CoalescePolicy::new(),
                now_ns: 1 << 40,
                waited_ns: 1 << 30,
                coalescing_reads: 0,
                reads: 0,
            }
        }

        /// For some seconds each read comes 50 µs after the last. A coalescing one finds `pages`
        /// and waits `wait_ns` for the processor; another one finds one page.
        fn live(&mut self, seconds: u64, pages: u32, wait_ns: u64) -> f64 {
            self.live_with(seconds, 1, pages, wait_ns)
        }

        /// For some seconds each read comes 50 µs after the last. A coalescing one finds `pages`
        /// and waits `wait_ns` for the processor; another one finds `eager_pages` and does not
        /// wait.
        fn live_with(&mut self, seconds: u64, eager_pages: u32, pages: u32, wait_ns: u64) -> f64 {
            (self.reads, self.coalescing_reads) = (0, 0);
            let end_ns = self.now_ns + seconds * 1_000_000_000;
            while self.now_ns < end_ns {
                let wait_ns = if self.policy.coalescing { wait_ns } else { 0 };
                self.now_ns += 50_000 + wait_ns;
                self.waited_ns += wait_ns;
                self.reads += 1;
                self.coalescing_reads += u32::from(self.policy.coalescing);
                self.policy.read(if self.policy.coalescing { pages } else { eager_pages }, || {
                    (self.now_ns, Some(self.waited_ns))
                });
            }
            f64::from(self.coalescing_reads) / f64::from(self.reads)
        }
    }

    #[test]
    fn patience_stays_where_it_gathers_faults() {
        assert!(Life::new().live(10, 2, 100_000) > 0.99);
    }

    #[test]
    fn patience_that_gathers_nothing_costs_next_to_nothing() {
        let mut life = Life::new();
        let share = life.live(100, 1, 10_000);
        let lost_ns = f64::from(life.coalescing_reads) * 10_000.0;
        assert!(share > 0.0 && lost_ns < 0.02 * 100e9, "{share}");
        // And it is coalescing again soon after others have come.
        assert!(life.live(1, 2, 100_000) > 0.8);
    }

    #[test]
    fn streams_are_restored_ahead_of_at_once() {
        assert!(Life::new().live_with(10, 0, 0, 750_000) == 0.0);
        // Some that came while it was coalescing.
        let mut life = Life::new();
        life.live(1, 2, 100_000);
        assert!(life.live_with(10, 0, 0, 750_000) < 0.001);
    }

    #[test]
    fn dozens_are_served_at_once() {
        assert!(Life::new().live(10, 30, 100_000) < 0.2);
    }

    #[test]
    fn nobody_waits_behind_who_is_busy() {
        let mut life = Life::new();
        life.live(10, 2, 100_000);
        life.live(100, 2, 3_000_000);
        let lost_ns = u64::from(life.coalescing_reads) * 3_000_000;
        assert!((1..2_000_000_000).contains(&lost_ns), "{lost_ns} of 100 s");
    }

    #[test]
    fn who_does_not_know_how_long_it_waits_is_not_patient() {
        let mut policy = CoalescePolicy::new();
        assert!((0..10_000).all(|n| policy.read(2, || (n << 30, None)).is_none()));
    }
}
