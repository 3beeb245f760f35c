//! What TPP, Nomad and the kernel's own tiering have in common. They learn of accesses to the slow
//! tier by *hint faults* on what a *scan* armed. They make room in the fast one by *reclaim*.
//!
//! - **Scan** (`task_numa_work` in `kernel/sched/fair.c`). Once a second the next 256 MB of the
//!   program are armed, for the first time a second after the program began. They come in the order
//!   of addresses (here of units, which come into being in about that order). A stretch in which
//!   nothing could be armed does not count, but for no more than eight of them. At the end of
//!   memory it begins again with the next second. In the tiering modes the fast tier is left out.
//!   There the second is never adapted, because faults on the slow tier do not enter the statistics
//!   that adapt it.
//! - **Reclaim** (`mm/vmscan.c` since Linux 5.9). Pages of the fast tier are in an *inactive* and
//!   an *active* list, new ones in the first. The page that has been inactive longest is evicted if
//!   it was not touched since it was scanned last. One that was goes to the list's end, and becomes
//!   active the second time. While there are fewer inactive pages than 1 in √(10 · GB) active ones,
//!   the one that has been active longest becomes inactive, touched or not.
//!
//! Reclaim runs beside the program, and makes room while faults come. Here it does so when it is
//! asked for moves. So a promotion which finds no room waits for the next time, as if that room had
//! come at once: [`Config::waits`]. Without it, such a page has to fault again. In the kernel that
//! is so for a page that comes faster than room is made.
//!
//! Huge pages are units of 512 base units beside base pages of one. There is one fault for all of
//! it, and one look of reclaim. Scans, lists and room count base pages, as the kernel's do. A
//! promotion needs as much room above the watermark as its page takes.
//!
//! Choices:
//!
//! - reclaim looks at pages one at a time, where the kernel isolates 32;
//! - it goes round twice at most each time it is asked for room, where the kernel gives up by
//!   priorities;
//! - the slow tier has no reclaim, as there is room for all;
//! - the multi-generation LRU, which some distributions turn on, is not here.

pub mod autonuma;
pub mod nomad;
pub mod tpp;

use crate::placement::lists::Lists;
use crate::placement::sizes::Sizes;
use crate::placement::{Move, Place, Reason, Room, UnitId};
use std::collections::VecDeque;

/// Stretches without anything to arm that a scan passes over in one go.
const SCAN_PATIENCE: u32 = 8;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Bytes that a base unit stands for.
    pub unit_bytes: f64,
    /// What one scan arms, bytes.
    pub scan_bytes: f64,
    /// Time from one scan to the next, ns.
    pub scan_ns: u64,
    /// Units of the fast tier are armed as well.
    pub scan_fast: bool,
    /// What is demoted is armed at once.
    pub arm_demoted: bool,
    /// A promotion that finds no room is made when reclaim has made some.
    pub waits: bool,
}

/// The kernel's defaults: 256 MB a second.
pub const CONFIG: Config = Config {
    unit_bytes: (2u64 << 20) as f64,
    scan_bytes: (256u64 << 20) as f64,
    scan_ns: 1_000_000_000,
    scan_fast: false,
    arm_demoted: false,
    waits: true,
};

const PRESENT: u8 = 1;
const FAST: u8 = 2;
/// Bit: the unit was met once while inactive.
const REFERENCED: u8 = 4;
const ACTIVE: u8 = 8;
/// Bit: the unit's next access is going to be told.
const ARMED: u8 = 16;
/// Bit: the unit is to come up when there is room.
const WAITS: u8 = 32;

const INACTIVE_LIST: usize = 0;
const ACTIVE_LIST: usize = 1;
/// List of units to be demoted, and asked for in the last decision.
const ASKED_LIST: usize = 2;

/// Where units are, which of the fast tier were used of late, and which are armed: 10 bytes and a
/// bit a unit.
#[derive(Debug)]
pub struct Kernel {
    config: Config,
    marks: Vec<u8>,
    sizes: Sizes,
    lists: Lists<3>,
    /// Base units in each list.
    listed: [u32; 3],
    /// Accessed bits, until they are read.
    touched: Vec<u64>,
    /// Base units in the fast tier.
    fast: u32,
    capacity: u32,
    now_ns: u64,
    next_scan_ns: u64,
    scan_at: UnitId,
    demoted: Vec<UnitId>,
    waiting: VecDeque<UnitId>,
}

/// The high watermark of the kernel's defaults: promotions leave this share of the fast tier free,
/// besides the minimum.
pub const HIGH: f64 = 0.002;

/// Base units of a share of a tier, rounded up.
pub fn part(capacity: u32, share: f64) -> u32 {
    (f64::from(capacity) * share).ceil() as u32
}

impl Kernel {
    /// Makes the kernel's lists with no units yet.
    pub fn new(config: Config) -> Kernel {
        Kernel {
            marks: Vec::new(),
            sizes: Sizes::default(),
            lists: Lists::default(),
            listed: [0; 3],
            touched: Vec::new(),
            fast: 0,
            capacity: 0,
            now_ns: 0,
            next_scan_ns: config.scan_ns,
            scan_at: 0,
            demoted: Vec::new(),
            waiting: VecDeque::new(),
            config,
        }
    }

    fn marks(&self, unit: UnitId) -> u8 {
        self.marks.get(unit as usize).copied().unwrap_or(0)
    }

    fn is(&self, unit: UnitId, mark: u8) -> bool {
        self.marks(unit) & mark != 0
    }

    fn set(&mut self, unit: UnitId, mark: u8, to: bool) {
        let marks = &mut self.marks[unit as usize];
        if to { *marks |= mark } else { *marks &= !mark }
    }

    fn set_touched(&mut self, unit: UnitId, to: bool) -> bool {
        let (word, bit) = (&mut self.touched[unit as usize / 64], 1 << (unit % 64));
        let before = *word & bit != 0;
        if to {
            *word |= bit
        } else {
            *word &= !bit
        }
        before
    }

    /// A unit came into being.
    pub fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        self.gone(unit);
        let index = unit as usize;
        if index >= self.marks.len() {
            self.marks.resize(index + 1, 0);
            self.touched.resize(index / 64 + 1, 0);
        }
        self.marks[index] = PRESENT;
        self.sizes.set(unit, size);
        // A thread that maps a page touches it.
        self.set_touched(unit, true);
        if place == Place::Fast {
            self.enter(unit);
        }
    }

    /// A unit is gone.
    pub fn gone(&mut self, unit: UnitId) {
        if self.is(unit, PRESENT) {
            self.leave(unit);
            self.waits_no_more(unit);
            self.marks[unit as usize] = 0;
        }
    }

    /// A unit moved.
    pub fn moved(&mut self, unit: UnitId, to: Place) {
        if !self.is(unit, PRESENT) {
            return;
        }
        self.leave(unit);
        self.waits_no_more(unit);
        // What is mapped anew is mapped plainly.
        self.set(unit, ARMED, false);
        match to {
            Place::Fast => {
                self.set_touched(unit, true);
                self.enter(unit);
            }
            Place::Slow if self.config.arm_demoted => self.demoted.push(unit),
            Place::Slow => {}
        }
    }

    fn waits_no_more(&mut self, unit: UnitId) {
        if self.is(unit, WAITS) {
            self.set(unit, WAITS, false);
            self.waiting.retain(|other| *other != unit);
        }
    }

    fn enter(&mut self, unit: UnitId) {
        self.set(unit, FAST, true);
        self.fast += self.size(unit);
        self.list(if self.is(unit, ACTIVE) { ACTIVE_LIST } else { INACTIVE_LIST }, unit);
    }

    /// Puts a unit at a list's end, from wherever it is.
    fn list(&mut self, list: usize, unit: UnitId) {
        self.unlist(unit);
        self.listed[list] += self.size(unit);
        self.lists.push(list, unit);
    }

    fn unlist(&mut self, unit: UnitId) {
        if let Some(list) = self.lists.list_of(unit) {
            self.listed[list] -= self.size(unit);
            self.lists.remove(unit);
        }
    }

    fn leave(&mut self, unit: UnitId) {
        if self.is(unit, FAST) {
            self.set(unit, FAST, false);
            self.fast -= self.size(unit);
            self.unlist(unit);
        }
    }

    /// Tells the time, ns since the beginning.
    pub fn at(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// How late it is, ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Accessed bits, as [`referenced`](crate::placement::PlacementPolicy::referenced) has them.
    pub fn referenced(&mut self, touched: &[u64]) {
        self.touched.iter_mut().zip(touched).for_each(|(known, new)| *known |= new);
    }

    /// Where a unit is.
    pub fn place(&self, unit: UnitId) -> Option<Place> {
        let marks = self.marks(unit);
        (marks & PRESENT != 0).then_some(if marks & FAST != 0 { Place::Fast } else { Place::Slow })
    }

    /// Size of a unit, base units.
    pub fn size(&self, unit: UnitId) -> u32 {
        self.sizes.of(unit)
    }

    /// Whether a unit counts as in use.
    pub fn is_active(&self, unit: UnitId) -> bool {
        self.is(unit, ACTIVE)
    }

    /// Room in the fast tier, base units, by the capacity of the last decision.
    pub fn free(&self) -> u32 {
        self.capacity.saturating_sub(self.fast)
    }

    /// Whether a unit can come up and leave `high` base units free.
    pub fn has_room(&self, unit: UnitId, high: u32) -> bool {
        self.free().checked_sub(high).is_some_and(|room| room >= self.size(unit))
    }

    /// Base units that the fast tier has room for.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// A unit of the slow tier becomes active.
    pub fn activate(&mut self, unit: UnitId) {
        if self.place(unit) == Some(Place::Slow) {
            self.set(unit, ACTIVE, true);
            self.set(unit, REFERENCED, false);
        }
    }

    /// Marks a unit of the slow tier. It becomes active the second time (`mark_page_accessed`).
    pub fn mark_accessed(&mut self, unit: UnitId) {
        if self.is(unit, REFERENCED) {
            self.activate(unit);
        } else if self.place(unit) == Some(Place::Slow) {
            self.set(unit, REFERENCED, true);
        }
    }

    /// The access to a unit that was armed came.
    pub fn hinted(&mut self, unit: UnitId) {
        if self.is(unit, ARMED) {
            self.set(unit, ARMED, false);
        }
    }

    /// A unit of the slow tier is to come up, and leave `high` base units free. True if it can;
    /// otherwise it may wait.
    pub fn promotes(&mut self, unit: UnitId, high: u32) -> bool {
        let room = self.has_room(unit, high);
        if !room && self.config.waits && !self.is(unit, WAITS) {
            self.set(unit, WAITS, true);
            self.waiting.push_back(unit);
        }
        room
    }

    /// Whether a promotion waits for room.
    pub fn anyone_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Clears `units` and fills it with those to arm now.
    pub fn arm(&mut self, units: &mut Vec<UnitId>) {
        units.clear();
        for unit in std::mem::take(&mut self.demoted) {
            if self.place(unit) == Some(Place::Slow) && !self.is(unit, ARMED) {
                self.set(unit, ARMED, true);
                units.push(unit);
            }
        }
        if self.now_ns < self.next_scan_ns {
            return;
        }
        self.next_scan_ns = self.now_ns + self.config.scan_ns;
        let stretch = (self.config.scan_bytes / self.config.unit_bytes).round().max(1.0) as u32;
        for _ in 0..SCAN_PATIENCE {
            let (mut looked_at, armed_before) = (0, units.len());
            while looked_at < stretch {
                let unit = self.scan_at;
                if unit as usize >= self.marks.len() {
                    self.scan_at = 0;
                    return;
                }
                self.scan_at += 1;
                let Some(place) = self.place(unit) else { continue };
                looked_at += self.size(unit);
                if (self.config.scan_fast || place == Place::Slow) && !self.is(unit, ARMED) {
                    self.set(unit, ARMED, true);
                    units.push(unit);
                }
            }
            if units.len() > armed_before {
                return;
            }
        }
    }

    /// Takes note of the room, and of moves that were asked for and not made. To be called first in
    /// each decision.
    pub fn decide(&mut self, room: Room) {
        self.capacity = room.capacity;
        while let Some(unit) = self.lists.last(ASKED_LIST) {
            self.unlist(unit);
            self.listed[INACTIVE_LIST] += self.size(unit);
            self.lists.push_first(INACTIVE_LIST, unit);
        }
    }

    fn inactive_is_low(&self) -> bool {
        let (inactive, active) = (self.listed[INACTIVE_LIST], self.listed[ACTIVE_LIST]);
        let gigabytes =
            (f64::from(inactive + active) * self.config.unit_bytes / (1u64 << 30) as f64).floor();
        let ratio = (10.0 * gigabytes).sqrt().floor().max(1.0);
        f64::from(inactive) * ratio < f64::from(active)
    }

    /// Base units that TPP keeps free: the share `demotion`, and twice what promotions leave free
    /// (`high`).
    pub fn kept_free(&self, demotion: f64, high: f64) -> u32 {
        part(self.capacity, demotion).max(2 * part(self.capacity, high)).min(self.capacity)
    }

    /// Units that wait and come up first, with at most `at_most` base units together: how many, and
    /// how large together.
    fn first_waiting(&self, at_most: u32) -> (usize, u32) {
        let (mut count, mut together) = (0, 0);
        for unit in &self.waiting {
            let size = self.size(*unit);
            if size > at_most - together {
                break;
            }
            count += 1;
            together += size;
        }
        (count, together)
    }

    /// Asks for demotions until `target` base units are free. Asks for the promotion of units that
    /// wait, with room made for each.
    pub fn make_room(&mut self, target: u32, room: Room, moves: &mut Vec<Move>) {
        let free = room.capacity.saturating_sub(room.used);
        let missing = (room.used + target).saturating_sub(room.capacity);
        // Each takes two moves once what is free above the target is used up.
        let at_most = room.moves_max.saturating_sub(missing);
        let above = free.saturating_sub(target).min(at_most);
        let (_, coming) = self.first_waiting(above + (at_most - above) / 2);
        let wanted = (room.used + target + coming).saturating_sub(room.capacity);
        let made = self.reclaim(wanted, room.moves_max, moves);
        // Where nothing more could be reclaimed, what is kept free stays free.
        let (come, _) = self.first_waiting(
            coming.min((free + made).saturating_sub(target)).min(room.moves_max - made),
        );
        for _ in 0..come {
            let Some(unit) = self.waiting.pop_front() else { break };
            self.set(unit, WAITS, false);
            moves.push(Move { unit, to: Place::Fast, reason: Reason::Hinted });
        }
    }

    /// Asks for the demotion of `wanted` base units, of `at_most` in all, as far as they are found.
    /// The number that it asks for: the last unit may be larger than what was wanted still.
    fn reclaim(&mut self, wanted: u32, at_most: u32, moves: &mut Vec<Move>) -> u32 {
        let wanted = wanted.min(at_most);
        let mut asked = 0;
        let mut looks = 2 * (self.lists.len(INACTIVE_LIST) + self.lists.len(ACTIVE_LIST));
        while asked < wanted && looks > 0 {
            looks -= 1;
            if self.inactive_is_low() {
                let Some(unit) = self.lists.first(ACTIVE_LIST) else { break };
                self.set_touched(unit, false);
                self.set(unit, ACTIVE, false);
                self.list(INACTIVE_LIST, unit);
                continue;
            }
            let Some(unit) = self.lists.first(INACTIVE_LIST) else { break };
            let was_referenced = self.is(unit, REFERENCED);
            if !self.set_touched(unit, false) {
                let size = self.size(unit);
                if size > at_most - asked {
                    break;
                }
                self.set(unit, REFERENCED, false);
                self.list(ASKED_LIST, unit);
                moves.push(Move { unit, to: Place::Slow, reason: Reason::Idle });
                asked += size;
            } else if was_referenced {
                self.set(unit, ACTIVE, true);
                self.list(ACTIVE_LIST, unit);
            } else {
                self.set(unit, REFERENCED, true);
                self.list(INACTIVE_LIST, unit);
            }
        }
        asked
    }

    /// 2 for active, 1 for met once, and half a step more in the fast tier.
    pub fn heat(&self, unit: UnitId) -> f32 {
        let marks = self.marks(unit);
        let use_of_late =
            if marks & ACTIVE != 0 { 2.0 } else { f32::from(u8::from(marks & REFERENCED != 0)) };
        use_of_late + if marks & FAST != 0 { 0.5 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// The given number of units, of which the first `fast` are in the fast tier; a scan arms 4.
    fn kernel(units: u32, fast: u32) -> Kernel {
        let mut kernel = Kernel::new(Config { unit_bytes: 1.0, scan_bytes: 4.0, ..CONFIG });
        (0..units).for_each(|unit| {
            kernel.arrived(unit, if unit < fast { Place::Fast } else { Place::Slow }, 1)
        });
        kernel
    }

    fn armed(kernel: &mut Kernel, now_ns: u64) -> Vec<UnitId> {
        kernel.at(now_ns);
        let mut units = vec![77];
        kernel.arm(&mut units);
        units
    }

    #[test]
    fn a_scan_arms_256_mb_a_second_of_the_slow_tier() {
        let mut kernel = kernel(50, 10);
        assert_eq!(armed(&mut kernel, 0), []);
        assert_eq!(armed(&mut kernel, SECOND - 1), []);
        // Units 0 to 7 are two stretches of the fast tier alone; 8 to 11 are half of it.
        assert_eq!(armed(&mut kernel, SECOND), [10, 11]);
        assert_eq!(armed(&mut kernel, SECOND + 1), []);
        assert_eq!(armed(&mut kernel, 2 * SECOND), [12, 13, 14, 15]);
        // What is gone is no memory.
        kernel.gone(17);
        assert_eq!(armed(&mut kernel, 3 * SECOND), [16, 18, 19, 20]);
        // No more than eight stretches: 21 to 52, but the end comes first.
        (21..50).for_each(|unit| kernel.moved(unit, Place::Fast));
        assert_eq!(armed(&mut kernel, 4 * SECOND), []);
        assert_eq!(kernel.scan_at, 0);
        // What is armed already cannot be armed: 10 to 16 and 18 to 20 are. 10 was met.
        kernel.hinted(10);
        assert_eq!(armed(&mut kernel, 5 * SECOND), [10]);
        assert_eq!(kernel.scan_at, 12);
    }

    #[test]
    fn a_scan_gives_up_after_eight_stretches() {
        let mut kernel = kernel(100, 100);
        assert_eq!(armed(&mut kernel, SECOND), []);
        assert_eq!(kernel.scan_at, 32);
    }

    #[test]
    fn the_fast_tier_is_scanned_where_it_is_asked_for() {
        let mut kernel =
            Kernel::new(Config { unit_bytes: 1.0, scan_bytes: 4.0, scan_fast: true, ..CONFIG });
        (0..8).for_each(|unit| {
            kernel.arrived(unit, if unit < 2 { Place::Fast } else { Place::Slow }, 1)
        });
        assert_eq!(armed(&mut kernel, SECOND), [0, 1, 2, 3]);
    }

    #[test]
    fn what_is_demoted_may_be_armed_at_once() {
        let mut kernel = Kernel::new(Config { unit_bytes: 1.0, arm_demoted: true, ..CONFIG });
        (0..2).for_each(|unit| kernel.arrived(unit, Place::Fast, 1));
        kernel.moved(1, Place::Slow);
        assert_eq!(armed(&mut kernel, 0), [1]);
        assert_eq!(armed(&mut kernel, 1), []);
    }

    fn demoted(kernel: &mut Kernel, wanted: u32) -> Vec<UnitId> {
        let mut moves = Vec::new();
        kernel.decide(Room { capacity: 6, used: 6, moves_max: 10 });
        kernel.reclaim(wanted, 10, &mut moves);
        moves.iter().for_each(|step| kernel.moved(step.unit, step.to));
        moves.into_iter().map(|step| step.unit).collect()
    }

    #[test]
    fn what_is_inactive_longest_and_untouched_leaves_first() {
        let mut kernel = kernel(6, 6);
        // All were touched when they came: once round, and then those that have not been touched
        // again.
        assert_eq!(demoted(&mut kernel, 1), [0]);
        // Now all others have been seen once. 1 is touched again and becomes active, 2 is not and
        // leaves.
        kernel.referenced(&[0b10]);
        assert_eq!(demoted(&mut kernel, 1), [2]);
        assert!(kernel.is_active(1) && !kernel.is_active(3));
        assert_eq!(demoted(&mut kernel, 2), [3, 4]);
        // One active and one inactive: as many as there must be. Then none inactive: 1 becomes so,
        // and its touch is forgotten.
        kernel.referenced(&[0b10]);
        assert_eq!(demoted(&mut kernel, 2), [5, 1]);
        assert_eq!(kernel.free(), 6);
    }

    #[test]
    fn a_demotion_that_is_not_made_is_asked_for_again() {
        let mut kernel = kernel(3, 3);
        kernel.decide(Room { capacity: 3, used: 3, moves_max: 10 });
        for _ in 0..2 {
            let mut moves = Vec::new();
            kernel.reclaim(2, 10, &mut moves);
            assert_eq!(moves.iter().map(|step| step.unit).collect::<Vec<_>>(), [0, 1]);
            kernel.decide(Room { capacity: 3, used: 3, moves_max: 10 });
        }
    }

    #[test]
    fn active_ones_become_inactive_by_the_kernels_ratio() {
        // 4 GB: 1 inactive for √40 = 6 active ones.
        let mut kernel = Kernel::new(Config { unit_bytes: (1u64 << 30) as f64 / 8.0, ..CONFIG });
        (0..32).for_each(|unit| kernel.arrived(unit, Place::Fast, 1));
        let mut all_touched = || {
            kernel.referenced(&[u64::MAX]);
            let mut moves = Vec::new();
            kernel.decide(Room { capacity: 32, used: 32, moves_max: 10 });
            kernel.reclaim(1, 10, &mut moves);
            (
                moves.first().map(|step| step.unit),
                kernel.lists.len(INACTIVE_LIST),
                kernel.lists.len(ACTIVE_LIST),
            )
        };
        // Once round all are marked, and then 0 is found untouched.
        assert_eq!(all_touched(), (Some(0), 31, 0));
        // 0 has its mark no more, and is marked; 1 to 27 become active. 5 · 6 is not less than 27;
        // 4 · 6 is less than 28, so that 28 being active 1 becomes inactive again. Then 29
        // becomes active and 2 inactive, and so on, until the untouched 0 comes.
        let (first, inactive, active) = all_touched();
        assert_eq!((inactive + active, first), (31, Some(0)));
        assert!(inactive * 6 + 6 >= active && active > 20, "{inactive} and {active}");
    }

    #[test]
    fn a_promotion_that_finds_no_room_waits_until_it_is_made() {
        for (moves_max, expected) in
            [(10, vec![0, 1, 2, 6, 7]), (4, vec![0, 1, 6]), (2, vec![0]), (1, vec![0])]
        {
            let mut kernel = kernel(9, 6);
            kernel.decide(Room { capacity: 6, used: 6, moves_max });
            assert!(
                !kernel.promotes(6, 0)
                    && !kernel.promotes(7, 0)
                    && !kernel.promotes(6, 0)
                    && !kernel.promotes(8, 0)
            );
            kernel.gone(8);
            // One is to be free in the end.
            let mut moves = Vec::new();
            kernel.make_room(1, Room { capacity: 6, used: 6, moves_max }, &mut moves);
            assert_eq!(moves.iter().map(|step| step.unit).collect::<Vec<_>>(), expected);
            moves.iter().for_each(|step| kernel.moved(step.unit, step.to));
            assert_eq!(
                (kernel.free(), kernel.waiting.len()),
                (1, 2 - moves.iter().filter(|step| step.to == Place::Fast).count())
            );
        }
    }

    #[test]
    fn sizes_are_what_room_scans_and_lists_count() {
        let mut kernel = Kernel::new(Config { unit_bytes: 1.0, scan_bytes: 4.0, ..CONFIG });
        // 3 of 9 are free.
        kernel.arrived(0, Place::Fast, 4);
        kernel.arrived(1, Place::Fast, 1);
        kernel.arrived(2, Place::Fast, 1);
        (3..6).for_each(|unit| kernel.arrived(unit, Place::Slow, 3));
        kernel.decide(Room { capacity: 9, used: 6, moves_max: 20 });
        assert_eq!((kernel.free(), kernel.listed), (3, [6, 0, 0]));
        assert!(kernel.has_room(3, 0) && !kernel.has_room(3, 1));
        // 4 of unit 0, then 1, 1 and 3 of the next three, of which the last is in the slow tier.
        assert_eq!(armed(&mut kernel, SECOND), [3]);
        // With 1 free in the end unit 3 needs 4, and the one that has been inactive longest makes
        // as much. Unit 4 would need more moves.
        assert!(!kernel.promotes(3, 1) && !kernel.promotes(4, 1));
        let mut moves = Vec::new();
        kernel.make_room(1, Room { capacity: 9, used: 6, moves_max: 9 }, &mut moves);
        assert_eq!(moves.iter().map(|step| step.unit).collect::<Vec<_>>(), [0, 3]);
        moves.iter().for_each(|step| kernel.moved(step.unit, step.to));
        assert_eq!((kernel.free(), kernel.listed, kernel.waiting.len()), (4, [5, 0, 0], 1));
    }

    #[test]
    fn a_second_access_activates() {
        let mut kernel = kernel(2, 1);
        kernel.mark_accessed(1);
        assert!(!kernel.is_active(1));
        kernel.mark_accessed(1);
        assert!(kernel.is_active(1));
        // It stays so when it comes up.
        kernel.moved(1, Place::Fast);
        assert_eq!(kernel.lists.list_of(1), Some(ACTIVE_LIST));
    }
}
