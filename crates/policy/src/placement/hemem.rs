//! HeMem (Raybuck et al., SOSP 2021): pages are hot by fixed numbers of samples, and all cool when
//! one of them is met very often.
//!
//! Each tier has a list of hot pages and one of cold ones, in the order in which they became so. A
//! page is hot from 8 sampled reads or 4 sampled writes on. When the count of any page passes 18, a
//! *cooling clock* ticks. Each page's counts are halved once for each tick that it missed, when it
//! is next looked at. Then the lists of hot pages are gone through for those that are hot no more.
//! Hot pages of the slow tier come into free room. Where there is none they take the place of the
//! page that has been cold longest. Where no page is cold, nothing moves.
//!
//! From the published code: these rules, the thresholds 8, 4 and 18, 8192 pages cooled at a time,
//! 10 GB/s of moves at most. Its versions disagree: reads 8, 4 or 2, cooling at 18, 10 or 22, with
//! one sample of 5003, 10007 or 19997 accesses. Jenga's paper says that cooling comes at 1024
//! accesses (§2.2.2), which is the policy `hemem-1024`. Earlier versions judge a page by counts
//! that missed ticks of the clock have not been taken off yet: [`Config::late_shift`].
//!
//! It has pages of one size. Where units differ, counts are of samples of a page whatever its size,
//! as there. A page comes into as much free room as it needs, or into the places of as many cold
//! pages.
//!
//! Choices: it decides when it is asked to, not every 10 ms. Pages change lists at once, not
//! through rings between two threads. Reads from either tier are one count. Cooling goes on while
//! no page moves (an early version skips it then).

use crate::placement::lists::Lists;
use crate::placement::sizes::Sizes;
use crate::placement::{Move, Place, PlacementPolicy, Reason, Room, UnitId};
use crate::settings::{Kind, Knob, Setting};

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The policy's name.
    pub name: &'static str,
    /// Sampled reads that make a page hot, at least 1.
    pub hot_reads: u32,
    /// Sampled writes that make a page hot, at least 1.
    pub hot_writes: u32,
    /// All pages cool when the reads or the writes of one are more than this.
    pub cooling: u32,
    /// Pages of each tier that are gone through at a time when they cool.
    pub cooling_pages: u32,
    /// What comes up at most, bytes a second.
    pub bytes_per_s: f64,
    /// Bytes that a base unit stands for.
    pub unit_bytes: f64,
    /// A page that is met is judged by its counts before they are halved for the ticks that it
    /// missed.
    pub late_shift: bool,
}

/// The policy named `hemem`.
pub const CONFIG: Config = Config {
    name: "hemem",
    hot_reads: 8,
    hot_writes: 4,
    cooling: 18,
    cooling_pages: 8192,
    bytes_per_s: 10.0 * (1u64 << 30) as f64,
    unit_bytes: (2u64 << 20) as f64,
    late_shift: false,
};

/// The policy named `hemem-1024`: with the cooling that Jenga's paper gives (§2.2.2).
pub const SLOW_COOLING: Config = Config { name: "hemem-1024", cooling: 1024, ..CONFIG };

/// Parameters that can be set.
pub const SETTINGS: &[Setting<Config>] = &[
    Setting {
        knob: Knob {
            name: "hot-reads",
            about: "sampled reads that make a page hot",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.hot_reads),
        set: |config, value| config.hot_reads = value as u32,
    },
    Setting {
        knob: Knob {
            name: "hot-writes",
            about: "sampled writes that make a page hot",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.hot_writes),
        set: |config, value| config.hot_writes = value as u32,
    },
    Setting {
        knob: Knob {
            name: "cooling",
            about: "all pages cool when one is met more often",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.cooling),
        set: |config, value| config.cooling = value as u32,
    },
    Setting {
        knob: Knob { name: "rate", about: "what comes up at most", kind: Kind::Rate },
        get: |config| config.bytes_per_s,
        set: |config, value| config.bytes_per_s = value,
    },
    Setting {
        knob: Knob {
            name: "late-shift",
            about: "judge by counts that are still to be halved, as earlier versions",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.late_shift)),
        set: |config, value| config.late_shift = value != 0.0,
    },
];

const FAST_HOT: usize = 0;
const FAST_COLD: usize = 1;
const SLOW_HOT: usize = 2;
const SLOW_COLD: usize = 3;

/// Sampled reads and writes, and the cooling clock when they were last halved.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reads: u16,
    writes: u16,
    clock: u32,
}

impl Counts {
    fn at(self, clock: u32) -> Counts {
        let age = clock.wrapping_sub(self.clock);
        Counts {
            reads: self.reads.checked_shr(age).unwrap_or(0),
            writes: self.writes.checked_shr(age).unwrap_or(0),
            clock,
        }
    }
}

/// The policy: 17 bytes a unit.
#[derive(Debug)]
pub struct HeMem {
    config: Config,
    counts: Vec<Counts>,
    sizes: Sizes,
    lists: Lists<4>,
    clock: u32,
    /// For the fast tier and the slow one: whether hot pages are to be gone through, and where
    /// that goes on.
    cools: [bool; 2],
    cursor: [Option<UnitId>; 2],
    now_ns: u64,
    decided_ns: u64,
    /// Base units that may come up now. The last one that does may be larger, which then is made
    /// up for.
    allowance: f64,
}

impl HeMem {
    /// Makes the policy with no units yet.
    pub fn new(config: Config) -> HeMem {
        HeMem {
            counts: Vec::new(),
            sizes: Sizes::default(),
            lists: Lists::default(),
            clock: 0,
            cools: [false; 2],
            cursor: [None; 2],
            now_ns: 0,
            decided_ns: 0,
            allowance: config.bytes_per_s / config.unit_bytes,
            config,
        }
    }

    /// What a present unit is judged by.
    fn judged(&self, unit: UnitId) -> Counts {
        let counts = self.counts[unit as usize];
        if self.config.late_shift { counts } else { counts.at(self.clock) }
    }

    fn is_hot(&self, counts: Counts) -> bool {
        u32::from(counts.reads) >= self.config.hot_reads
            || u32::from(counts.writes) >= self.config.hot_writes
    }

    fn met(&mut self, unit: UnitId, weight: u32, write: bool) {
        let Some(list) = self.lists.list_of(unit) else { return };
        let mut counts = self.judged(unit);
        let count = if write { &mut counts.writes } else { &mut counts.reads };
        *count = count.saturating_add(weight.min(u32::from(u16::MAX)) as u16);
        let to = match (list, self.is_hot(counts)) {
            (FAST_HOT | FAST_COLD, true) => FAST_HOT,
            (FAST_HOT | FAST_COLD, false) => FAST_COLD,
            (_, true) => SLOW_HOT,
            (_, false) => SLOW_COLD,
        };
        if list != to {
            self.lists.push(to, unit);
        }
        let counts = counts.at(self.clock);
        self.counts[unit as usize] = counts;
        if u32::from(if write { counts.writes } else { counts.reads }) > self.config.cooling {
            self.clock = self.clock.wrapping_add(1);
            self.cools = [true; 2];
        }
    }

    /// Goes on through the hot pages of a tier, from the one that has been hot longest.
    fn cool(&mut self, tier: usize) {
        let (hot, cold) = [(FAST_HOT, FAST_COLD), (SLOW_HOT, SLOW_COLD)][tier];
        let mut next = self.cursor[tier]
            .filter(|unit| self.lists.list_of(*unit) == Some(hot))
            .or(self.lists.first(hot));
        for _ in 0..self.config.cooling_pages {
            let Some(unit) = next else { break };
            next = self.lists.after(unit);
            if !self.is_hot(self.counts[unit as usize].at(self.clock)) {
                self.lists.push(cold, unit);
            }
        }
        self.cursor[tier] = next;
        self.cools[tier] = next.is_some();
    }
}

impl PlacementPolicy for HeMem {
    fn name(&self) -> &'static str {
        self.config.name
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        let index = unit as usize;
        if index >= self.counts.len() {
            self.counts.resize(index + 1, Counts::default());
        }
        self.counts[index] = Counts { clock: self.clock, ..Counts::default() };
        self.sizes.set(unit, size);
        self.lists.push(if place == Place::Fast { FAST_COLD } else { SLOW_COLD }, unit);
    }

    fn gone(&mut self, unit: UnitId) {
        self.lists.remove(unit);
    }

    fn sampled(&mut self, unit: UnitId, weight: u32) {
        self.met(unit, weight, false);
    }

    fn sampled_write(&mut self, unit: UnitId, weight: u32) {
        self.met(unit, weight, true);
    }

    fn at(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        let a_second = self.config.bytes_per_s / self.config.unit_bytes;
        self.allowance = (self.allowance + (self.now_ns - self.decided_ns) as f64 / 1e9 * a_second)
            .min(a_second.max(1.0));
        self.decided_ns = self.now_ns;
        // What may still be moved.
        let mut left = room.moves_max;
        let mut free = room.capacity.saturating_sub(room.used);
        let mut coldest = self.lists.first(FAST_COLD);
        let (mut next, last) = (self.lists.first(SLOW_HOT), self.lists.last(SLOW_HOT));
        while let Some(unit) = next.filter(|_| left > 0 && self.allowance >= 1.0) {
            next = if last == Some(unit) { None } else { self.lists.after(unit) };
            let counts = self.judged(unit);
            if !self.is_hot(counts) {
                self.lists.push(SLOW_COLD, unit);
                continue;
            }
            let size = self.sizes.of(unit);
            let before = moves.len();
            let (mut after, mut made) = (coldest, 0);
            while let Some(other) = after.filter(|_| free + made < size) {
                after = self.lists.after(other);
                made += self.sizes.of(other);
                moves.push(Move {
                    unit: other,
                    to: Place::Slow,
                    reason: Reason::SwappedFor { unit },
                });
            }
            if free + made < size {
                // All that is there else is hot: it waits behind the others.
                moves.truncate(before);
                self.lists.push(SLOW_HOT, unit);
                break;
            }
            if left < made || left - made < size {
                moves.truncate(before);
                break;
            }
            (coldest, free, left) = (after, free + made - size, left - made - size);
            let reads = u32::from(counts.reads) >= self.config.hot_reads;
            let (count, threshold) = if reads {
                (counts.reads, self.config.hot_reads)
            } else {
                (counts.writes, self.config.hot_writes)
            };
            moves.push(Move {
                unit,
                to: Place::Fast,
                reason: Reason::Counted { count: u32::from(count), threshold },
            });
            self.allowance -= f64::from(size);
        }
        for tier in [0, 1] {
            if self.cools[tier] {
                self.cool(tier);
            }
        }
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        let Some(list) = self.lists.list_of(unit) else { return };
        let hot = matches!(list, FAST_HOT | SLOW_HOT);
        let to = match (to, hot) {
            (Place::Fast, true) => FAST_HOT,
            (Place::Fast, false) => FAST_COLD,
            (Place::Slow, true) => SLOW_HOT,
            (Place::Slow, false) => SLOW_COLD,
        };
        self.lists.push(to, unit);
    }

    fn heat(&self, unit: UnitId) -> f32 {
        let counts = self
            .lists
            .list_of(unit)
            .map_or(Counts::default(), |_| self.counts[unit as usize].at(self.clock));
        f32::from(counts.reads) + f32::from(counts.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units 0 and 1 in the fast tier, 2 to 5 in the slow one.
    fn six(config: Config) -> HeMem {
        let mut hemem = HeMem::new(config);
        (0..6).for_each(|unit| {
            hemem.arrived(unit, if unit < 2 { Place::Fast } else { Place::Slow }, 1)
        });
        hemem
    }

    fn read(hemem: &mut HeMem, unit: UnitId, times: u32) {
        (0..times).for_each(|_| hemem.sampled(unit, 1));
    }

    fn decide(hemem: &mut HeMem, used: u32, moves_max: u32) -> Vec<(UnitId, Place)> {
        let mut moves = Vec::new();
        hemem.decide(Room { capacity: 2, used, moves_max }, &mut moves);
        moves.iter().for_each(|step| hemem.moved(step.unit, step.to));
        moves.into_iter().map(|step| (step.unit, step.to)).collect()
    }

    #[test]
    fn eight_reads_or_four_writes_are_hot_and_take_the_place_of_what_has_been_cold_longest() {
        let mut hemem = six(CONFIG);
        read(&mut hemem, 2, 7);
        assert_eq!(decide(&mut hemem, 2, 10), []);
        read(&mut hemem, 2, 1);
        (0..4).for_each(|_| hemem.sampled_write(3, 1));
        // In the order in which they became hot; 0 came before 1.
        assert_eq!(
            decide(&mut hemem, 2, 10),
            [(0, Place::Slow), (2, Place::Fast), (1, Place::Slow), (3, Place::Fast)]
        );
        // All that is in the fast tier is hot now: nothing moves.
        read(&mut hemem, 4, 8);
        assert_eq!(decide(&mut hemem, 2, 10), []);
    }

    #[test]
    fn free_room_is_used_first_and_no_half_of_a_swap_is_asked_for() {
        let mut hemem = six(CONFIG);
        hemem.gone(1);
        (2..5).for_each(|unit| read(&mut hemem, unit, 8));
        assert_eq!(decide(&mut hemem, 1, 2), [(2, Place::Fast)]);
        assert_eq!(decide(&mut hemem, 2, 2), [(0, Place::Slow), (3, Place::Fast)]);
    }

    #[test]
    fn a_large_page_takes_the_places_of_as_many_cold_ones_as_it_needs() {
        let five = || {
            let mut hemem = HeMem::new(Config { bytes_per_s: 6.0, unit_bytes: 1.0, ..CONFIG });
            (0..4).for_each(|unit| hemem.arrived(unit, Place::Fast, 1));
            (4..6).for_each(|unit| hemem.arrived(unit, Place::Slow, 4));
            read(&mut hemem, 4, 8);
            hemem
        };
        let decide = |hemem: &mut HeMem, moves_max: u32| {
            let mut moves = Vec::new();
            hemem.decide(Room { capacity: 5, used: 4, moves_max }, &mut moves);
            moves.into_iter().map(|step| (step.unit, step.to)).collect::<Vec<_>>()
        };
        // One is free: three go.
        let mut hemem = five();
        assert_eq!(decide(&mut hemem, 6), []);
        assert_eq!(
            decide(&mut hemem, 7),
            [(0, Place::Slow), (1, Place::Slow), (2, Place::Slow), (4, Place::Fast)]
        );
        // 2 of 6 are left in this second.
        assert_eq!(hemem.allowance, 2.0);
        // Two are hot, so that too few would go.
        let mut hemem = five();
        (0..2).for_each(|unit| read(&mut hemem, unit, 8));
        assert_eq!(decide(&mut hemem, 10), []);
    }

    #[test]
    fn the_nineteenth_sample_cools_all() {
        let mut hemem = six(CONFIG);
        read(&mut hemem, 2, 15);
        read(&mut hemem, 3, 16);
        read(&mut hemem, 0, 18);
        assert_eq!((hemem.clock, hemem.heat(0)), (0, 18.0));
        read(&mut hemem, 0, 1);
        // 19 is more than 18. Halved: 9 of 19, 7 of 15, 8 of 16.
        assert_eq!(hemem.clock, 1);
        assert_eq!((hemem.heat(0), hemem.heat(2), hemem.heat(3)), (9.0, 7.0, 8.0));
        // 2 is not hot any more; 1 has been cold all the time.
        assert_eq!(decide(&mut hemem, 2, 10), [(1, Place::Slow), (3, Place::Fast)]);
        // Two ticks missed are two halvings: 8 → 2.
        read(&mut hemem, 0, 10);
        read(&mut hemem, 0, 10);
        assert_eq!((hemem.clock, hemem.heat(3)), (3, 2.0));
        // 3 was hot in the fast tier, and is found to be no more; then there is a cold one to swap
        // with.
        read(&mut hemem, 4, 8);
        assert_eq!(decide(&mut hemem, 2, 10), []);
        assert_eq!(decide(&mut hemem, 2, 10), [(3, Place::Slow), (4, Place::Fast)]);
    }

    #[test]
    fn cooling_goes_on_where_it_stopped() {
        let mut hemem = six(Config { cooling_pages: 1, ..CONFIG });
        (2..5).for_each(|unit| read(&mut hemem, unit, 8));
        read(&mut hemem, 0, 19);
        let hot = |hemem: &HeMem| {
            (2..5).filter(|unit| hemem.lists.list_of(*unit) == Some(SLOW_HOT)).count()
        };
        for left in [2, 1, 0] {
            decide(&mut hemem, 2, 0);
            assert_eq!(hot(&hemem), left);
        }
    }

    #[test]
    fn earlier_versions_believe_counts_that_are_still_to_be_halved() {
        for (late_shift, hot) in [(false, false), (true, true)] {
            let mut hemem = six(Config { late_shift, cooling: 8, ..CONFIG });
            read(&mut hemem, 2, 7);
            // 9 is more than 8: a tick, that unit 2 misses.
            read(&mut hemem, 0, 9);
            // 7 / 2 + 1, or 7 + 1 and halved after that.
            read(&mut hemem, 2, 1);
            assert_eq!(hemem.lists.list_of(2) == Some(SLOW_HOT), hot);
            assert_eq!(hemem.heat(2), 4.0);
        }
    }

    #[test]
    fn what_comes_up_keeps_to_the_rate() {
        let config = Config { bytes_per_s: 20.0, unit_bytes: 1.0, ..CONFIG };
        let mut hemem = HeMem::new(config);
        (0..60).for_each(|unit| hemem.arrived(unit, Place::Slow, 1));
        (0..60).for_each(|unit| read(&mut hemem, unit, 8));
        let mut decide = |now_ms: u64| {
            hemem.at(now_ms * 1_000_000);
            let mut moves = Vec::new();
            hemem.decide(Room { capacity: 1000, used: 0, moves_max: 1000 }, &mut moves);
            moves.iter().for_each(|step| hemem.moved(step.unit, step.to));
            moves.len()
        };
        // One second's worth at first, then what time allows.
        assert_eq!((decide(0), decide(100), decide(150), decide(1150)), (20, 2, 1, 20));
    }
}
