//! When a share of memory (`--dram 60%`) is held to.
//!
//! It is a share of the most data that there will be at a time, which is not known while a program
//! grows. A share of what there is until then would squeeze whatever grows, for memory that it will
//! soon have anyway. So while memory grows, and the machine and its memory groups have room, the
//! share waits. Once growth has ended, it is a share of the most data that was seen. Memory is then
//! brought down to it evenly over some seconds. No I/O, no clock: the same polls give the same
//! limits.

use std::collections::VecDeque;
pub use terrace_policy::slowdown::Sample;

/// Memory grows while more than the fraction `GROWS` of what there is was touched for the first
/// time within this time, s.
const WINDOW_S: f64 = 2.0;
const GROWS: f64 = 0.02;
/// How long it takes to come down to a lower limit.
const COME_DOWN_S: f64 = 5.0;
/// Fraction of the memory of a machine or memory group that stays free, if more than `FREE_BYTES`.
const FREE_SHARE: f64 = 0.1;
/// Bytes of a machine or memory group that stay free, if more than the share `FREE_SHARE`.
const FREE_BYTES: u64 = 512 << 20;

/// What a machine, or a memory group, has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// All of its memory, or its limit.
    pub total: u64,
    /// What can still be had of it without swapping.
    pub available: u64,
}

impl Room {
    /// What may still be taken, if `growth` bytes more are taken before the next poll; 0 if that is
    /// too much.
    pub fn after(&self, growth: u64) -> u64 {
        let free = FREE_BYTES.max((self.total as f64 * FREE_SHARE) as u64);
        self.available.saturating_sub(growth).saturating_sub(free)
    }
}

/// The limit `since_s` seconds after it began to come down evenly from one size to another.
pub fn coming_down(from: u64, to: u64, since_s: f64) -> u64 {
    let left = (1.0 - since_s / COME_DOWN_S).clamp(0.0, 1.0);
    to + (from.saturating_sub(to) as f64 * left) as u64
}

/// Whether the share is held to at the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    /// Coming down from this limit, in bytes, since this time, in s.
    ComingDown(u64, f64),
    Held,
}

/// The growth of a run's memory.
#[derive(Debug)]
pub struct Growth {
    state: State,
    /// The most data, and when it was seen, within the window, and the last before it.
    seen: VecDeque<(f64, u64)>,
    last_s: Option<f64>,
    waited_s: f64,
}

impl Growth {
    /// Growth of a run that begins: no data was seen yet, and the limit is held.
    pub fn new() -> Self {
        Growth { state: State::Held, seen: VecDeque::new(), last_s: None, waited_s: 0.0 }
    }

    /// How long the share was not held to, or not yet in full.
    pub fn waited_s(&self) -> f64 {
        self.waited_s
    }

    /// Whether the limit will change though memory does not.
    pub fn is_changing(&self) -> bool {
        self.state != State::Held
    }

    /// The limit from this sample on, which is at least `share`, in bytes: that of the most data.
    /// `room` is only asked for while memory grows or comes down.
    pub fn limit(&mut self, sample: Sample, share: u64, room: impl Fn(u64) -> u64) -> u64 {
        if self.is_changing() {
            self.waited_s += self.last_s.map_or(0.0, |last_s| sample.now_s - last_s);
        }
        self.last_s = Some(sample.now_s);
        let grown = self.grown(sample);
        let grows = grown as f64 > sample.data as f64 * GROWS;
        let room = match (grows, self.is_changing()) {
            (true, _) => room(grown),
            (false, true) => room(0),
            (false, false) => 0,
        };
        self.state = match self.state {
            _ if room == 0 => State::Held,
            _ if grows => State::Waiting,
            State::Waiting => State::ComingDown(sample.physical, sample.now_s),
            State::ComingDown(from, since_s) if sample.now_s - since_s < COME_DOWN_S => {
                State::ComingDown(from, since_s)
            }
            State::ComingDown(..) | State::Held => State::Held,
        };
        match self.state {
            State::Held => share,
            State::Waiting => share.max(sample.physical.saturating_add(room)),
            State::ComingDown(from, since_s) => coming_down(from, share, sample.now_s - since_s),
        }
    }

    /// The data touched for the first time within the window. A run begins with nothing.
    fn grown(&mut self, sample: Sample) -> u64 {
        if self.seen.is_empty() {
            self.seen.push_back((sample.now_s, 0));
        }
        self.seen.push_back((sample.now_s, sample.most));
        while self.seen.get(1).is_some_and(|(seen_s, _)| sample.now_s - seen_s >= WINDOW_S) {
            self.seen.pop_front();
        }
        sample.most - self.seen[0].1.min(sample.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Looks ten times a second at `data` MiB of data, all of it in DRAM until the limit is lower;
    /// gives the limits in MiB.
    fn run(data: impl Fn(f64) -> u64, seconds: u32, room: u64) -> Vec<u64> {
        let mut growth = Growth::new();
        let mut most = 0;
        let mut physical = 0;
        (0..seconds * 10)
            .map(|tenth| {
                let now_s = f64::from(tenth) / 10.0;
                let data = data(now_s) * MIB;
                most = data.max(most);
                let share = (most as f64 * 0.6) as u64;
                let limit = growth.limit(
                    Sample { now_s, most, data, physical: data.min(physical), lost_s: 0.0 },
                    share,
                    |_| room * MIB,
                );
                physical = data.min(limit);
                limit / MIB
            })
            .collect()
    }

    #[test]
    fn what_grows_is_not_squeezed_and_then_comes_down_evenly() {
        let limits = run(|now_s| (now_s * 100.0).min(1000.0) as u64, 25, 8000);
        assert!(limits[1..100].iter().all(|limit| *limit >= 8000), "{limits:?}");
        // Two seconds after the last growth it comes down: 1000 to 600 MiB in five.
        assert!((900..=1000).contains(&limits[125]), "{limits:?}");
        assert!((750..850).contains(&limits[145]), "{limits:?}");
        assert!(limits[180..].iter().all(|limit| *limit == 600), "{limits:?}");
    }

    #[test]
    fn without_room_a_share_is_held_to_at_once() {
        assert!(
            run(|now_s| (now_s * 100.0) as u64, 10, 0)
                .iter()
                .enumerate()
                .all(|(tenth, limit)| *limit <= 6 * tenth as u64)
        );
        let room = Room { total: 10 << 30, available: 3 << 30 };
        assert_eq!(
            (room.after(0), room.after(1 << 30), room.after(2 << 30)),
            (2 << 30, 1 << 30, 0)
        );
        let small = Room { total: 600 * MIB, available: 590 * MIB };
        assert_eq!((small.after(0), small.after(100 * MIB)), (78 * MIB, 0));
    }

    #[test]
    fn slow_growth_and_what_comes_and_goes_is_not_growth() {
        // Less than 2 % in two seconds, and the same again and again.
        let slow = run(|now_s| 1000 + (now_s * 9.0) as u64, 30, 8000);
        assert!(slow[120..].iter().all(|limit| *limit < 1000), "{slow:?}");
        let sways =
            run(|now_s| if (now_s as u64).is_multiple_of(2) { 1000 } else { 500 }, 30, 8000);
        assert!(sways[120..].iter().all(|limit| *limit == 600), "{sways:?}");
    }

    #[test]
    fn how_long_it_waited_is_known() {
        let mut growth = Growth::new();
        let mut waited_s = |second: u32| {
            let data = if second == 0 { 0 } else { 100 };
            let sample =
                Sample { now_s: f64::from(second), most: data, data, physical: data, lost_s: 0.0 };
            growth.limit(sample, data * 6 / 10, |_| 1 << 40);
            growth.waited_s()
        };
        let waited: Vec<f64> = (0..12).map(&mut waited_s).collect();
        assert_eq!(waited, [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 7.0, 7.0, 7.0]);
    }
}
