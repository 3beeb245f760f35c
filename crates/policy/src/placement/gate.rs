//! The policy `terrace` over two tiers of memory: our model of hotness, and a gate that lets
//! through those moves which pay.
//!
//! A unit of the slow tier takes the place of one in the fast tier (or free room there) if
//!
//! - **it pays back**: the time that accesses will be faster before the *horizon* is more than the
//!   moves take. Samples are time spent waiting, so both are counted in samples. At the speed of
//!   the fast tier a unit is met n times before the horizon. In the slow one it waits for n ·
//!   (slowness − 1) more;
//! - **it is no chance**: if another has to go, the two differ by more than [1.4](Config::sigmas)
//!   standard deviations of what is known of them.
//!
//! Each alone was measured to be needed: exact order without a gate thrashes on noise, with 25
//! times the moves on scattered Zipf accesses. How the policy does beside others:
//! `docs/notes/2026-11-27-benchmarks.md`, "Tiering policies in the simulator".
//!
//! Units are ranked once an epoch of the model, and decisions go down that list.
//!
//! Where sizes differ, units are ranked by heat for their size, and one or several go where one or
//! several come. As many of the coldest go as the hottest one needs for room. If that is more than
//! it needs, units that follow it come too. All together must pay.

use crate::eviction::regions::Model;
use crate::placement::terrace::{Evidence, Terrace};
use crate::placement::{Move, Place, PlacementPolicy, Reason, Room, UnitId};
use crate::settings::{Kind, Knob, Setting};
use std::cmp::Ordering;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Number of times that each unit has been met, on average, before a move must pay back. It is
    /// a time only together with the rate of samples.
    pub horizon: f64,
    /// Cost of a move, in the time that a sample stands for in the fast tier.
    pub move_samples: f64,
    /// Standard deviations by which two units must differ. It is the hottest of many and the
    /// coldest of many that are compared, which differ by chance alone. But what is known of a unit
    /// is drawn towards the average already.
    pub sigmas: f64,
    /// How many times as long an access takes in the slow tier, at least 1.
    pub slowness: f64,
}

/// Parameters of a live program, but for the slowness. A move of 2 MiB takes a sample of 1 ms, as
/// it is copied at 2 GB/s and more.
pub const CONFIG: Config = Config { horizon: 32.0, move_samples: 1.0, sigmas: 1.4, slowness: 1.0 };

/// What is seen is expected to last for this multiple of the time in which units were observed.
const BELIEVED: f64 = 4.0;
/// Units ranked in each tier in an epoch, as a multiple of the moves allowed in one decision.
const RANKED: usize = 16;

/// Parameters that can be set.
pub const SETTINGS: &[Setting<Config>] = &[
    Setting {
        knob: Knob {
            name: "horizon",
            about: "a move must pay before each unit was met so often",
            kind: Kind::Count,
        },
        get: |config| config.horizon,
        set: |config, value| config.horizon = value,
    },
    Setting {
        knob: Knob {
            name: "sigmas",
            about: "standard deviations by which two units must differ",
            kind: Kind::Count,
        },
        get: |config| config.sigmas,
        set: |config, value| config.sigmas = value,
    },
    Setting {
        knob: Knob {
            name: "move",
            about: "what a move takes, in the time that a sample stands for",
            kind: Kind::Count,
        },
        get: |config| config.move_samples,
        set: |config, value| config.move_samples = value,
    },
];

/// Units that come or go together, all multiplied by their sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Together {
    /// Size of the units, base units.
    size: f64,
    heat: f64,
    /// Sum of the standard deviations, not the root of the sum of variances. The units were chosen
    /// because they look hot, or cold, and so err the same way.
    deviation: f64,
}

/// Units with their heat, the next to move last.
type Ranking = Vec<(f32, UnitId)>;

/// Units taken from the rankings, in the order in which they were taken: those that would come up,
/// and those that would go for them.
#[derive(Debug, Default)]
struct Exchange {
    up: Ranking,
    down: Ranking,
    /// Sizes of `up` and of `down`, base units.
    up_size: u32,
    down_size: u32,
}

impl Exchange {
    fn clear(&mut self) {
        self.up.clear();
        self.down.clear();
        (self.up_size, self.down_size) = (0, 0);
    }
}

/// The policy named `terrace`.
pub struct Gated {
    model: Terrace,
    places: Vec<Option<Place>>,
    config: Config,
    /// What an access gains by a move to the fast tier, as a multiple of what it costs there.
    gain: f64,
    /// Epoch in which units were ranked last.
    ranked: u32,
    /// The coldest units of the fast tier and the hottest of the slow one, the next to move last.
    fast: Ranking,
    slow: Ranking,
    /// The exchange looked at last, kept for its memory.
    exchange: Exchange,
}

impl Gated {
    /// Makes the policy over a slow tier that takes `slowness` times as long, at least 1.
    pub fn new(slowness: f64) -> Gated {
        Gated::with(Config { slowness, ..CONFIG })
    }

    /// Makes the policy with the given parameters.
    pub fn with(config: Config) -> Gated {
        let gain = (config.slowness - 1.0).max(0.0);
        Gated {
            model: Terrace::default(),
            places: Vec::new(),
            config,
            gain,
            ranked: 0,
            fast: Vec::new(),
            slow: Vec::new(),
            exchange: Exchange::default(),
        }
    }

    /// Gain before the horizon if the units `up` come up and the units `down` go. It is a multiple
    /// of what the moves cost; `None` if they may well be equal.
    fn pays(&self, up: &[(f32, UnitId)], down: &[(f32, UnitId)]) -> Option<f64> {
        let (up, down) = (self.together(up), self.together(down));
        let more = up.heat - down.heat;
        // What is promoted into free room displaces no unit.
        let noise = if down.size > 0.0 { up.deviation.hypot(down.deviation) } else { 0.0 };
        // What has not been observed for long may not last for long.
        let horizon = self.config.horizon.min(f64::from(self.model.elapsed()) * BELIEVED);
        let cost = (up.size + down.size) * self.config.move_samples;
        (more > self.config.sigmas * noise)
            .then_some(more / f64::from(self.model.mean_size()) * horizon * self.gain / cost)
    }

    fn together(&self, units: &[(f32, UnitId)]) -> Together {
        let mut together = Together::default();
        for (_, unit) in units {
            let Evidence { heat, variance } = self.model.evidence(*unit).unwrap_or_default();
            let size = f64::from(self.size(*unit));
            together.size += size;
            together.heat += f64::from(heat) * size;
            together.deviation += f64::from(variance).sqrt() * size;
        }
        together
    }

    fn size(&self, unit: UnitId) -> u32 {
        self.model.sizes().of(unit)
    }

    fn place(&mut self, unit: UnitId) -> &mut Option<Place> {
        let index = unit as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        &mut self.places[index]
    }

    /// Takes an exchange from the rankings. The hottest unit of the slow tier comes, and as many of
    /// the coldest go as it needs for room. More that pay come into the rest of that room. False if
    /// there is none, or no room, or more would move than may.
    fn propose(&mut self, room: Room, exchange: &mut Exchange) -> bool {
        exchange.clear();
        let free = room.capacity.saturating_sub(room.used);
        let Some(hottest) = next(&mut self.slow, &self.places, Place::Slow) else { return false };
        exchange.up_size = self.size(hottest.1);
        while free + exchange.down_size < exchange.up_size {
            let Some(coldest) = next(&mut self.fast, &self.places, Place::Fast) else { break };
            self.fast.pop();
            exchange.down.push(coldest);
            exchange.down_size += self.size(coldest.1);
        }
        let made = free + exchange.down_size;
        if made < exchange.up_size || exchange.up_size + exchange.down_size > room.moves_max {
            self.fast.extend(exchange.down.drain(..).rev());
            return false;
        }
        self.slow.pop();
        exchange.up.push(hottest);
        while !exchange.down.is_empty() {
            let Some(unit) = next(&mut self.slow, &self.places, Place::Slow) else { break };
            let up_size = exchange.up_size + self.size(unit.1);
            let fits = up_size <= made && up_size + exchange.down_size <= room.moves_max;
            if !fits || self.pays(&[unit], &[]).is_none_or(|pays| pays <= 1.0) {
                break;
            }
            self.slow.pop();
            exchange.up.push(unit);
            exchange.up_size = up_size;
        }
        true
    }

    /// After an exchange that does not pay: puts back what may pay otherwise. False if nothing may.
    fn pass_over(&mut self, exchange: &mut Exchange) -> bool {
        if self.model.sizes().are_all_one() {
            // Those that follow are colder, and would take the place of hotter ones.
            self.slow.clear();
            return false;
        }
        let size = self.size(exchange.up[0].1);
        // A huge page need not go for a small one, if a small one can. Small ones may pay where a
        // huge one does not.
        let too_large = exchange.down.iter().any(|(_, unit)| self.size(*unit) > size);
        let (up, down) = if too_large { (0, size) } else { (1, u32::MAX) };
        self.slow.extend(exchange.up.drain(up..).rev());
        let sizes = self.model.sizes();
        self.fast.extend(exchange.down.drain(..).rev().filter(|(_, unit)| sizes.of(*unit) <= down));
        true
    }

    /// The first of each tier by heat, for some decisions.
    fn rank(&mut self, count: usize) {
        let (mut fast, mut slow) = (std::mem::take(&mut self.fast), std::mem::take(&mut self.slow));
        fast.clear();
        slow.clear();
        for (unit, heat) in self.model.heats() {
            match self.places[unit as usize] {
                Some(Place::Fast) => fast.push((heat, unit)),
                Some(Place::Slow) => slow.push((heat, unit)),
                None => {}
            }
        }
        last_by(&mut fast, count, |a, b| b.total_cmp(a));
        last_by(&mut slow, count, f32::total_cmp);
        (self.fast, self.slow, self.ranked) = (fast, slow, self.model.epoch());
    }
}

/// The last unit of a ranking that is still there.
fn next(ranking: &mut Ranking, places: &[Option<Place>], place: Place) -> Option<(f32, UnitId)> {
    while let Some((heat, unit)) = ranking.last().copied() {
        if places[unit as usize] == Some(place) {
            return Some((heat, unit));
        }
        ranking.pop();
    }
    None
}

/// Keeps only the last `count` units by this order, in order.
fn last_by(units: &mut Ranking, count: usize, order: impl Fn(&f32, &f32) -> Ordering) {
    let by = |a: &(f32, UnitId), b: &(f32, UnitId)| order(&a.0, &b.0).then(b.1.cmp(&a.1));
    if count == 0 {
        units.clear();
    } else if count < units.len() {
        let first = units.len() - count;
        units.select_nth_unstable_by(first, by);
        units.drain(..first);
    }
    units.sort_unstable_by(by);
}

impl PlacementPolicy for Gated {
    fn name(&self) -> &'static str {
        self.model.name()
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        self.model.arrived_with_size(unit, size);
        *self.place(unit) = Some(place);
    }

    fn gone(&mut self, unit: UnitId) {
        self.model.gone(unit);
        *self.place(unit) = None;
    }

    fn sampled(&mut self, unit: UnitId, weight: u32) {
        self.model.sampled(unit, weight as f32);
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        self.model.settle(room.capacity);
        let mut excess = room.used.saturating_sub(room.capacity);
        if self.ranked != self.model.epoch() || excess > 0 {
            self.rank(excess as usize + RANKED * room.moves_max as usize);
        }
        let mut room = room;
        while excess > 0 {
            let Some((_, unit)) = next(&mut self.fast, &self.places, Place::Fast)
                .filter(|(_, unit)| self.size(*unit) <= room.moves_max)
            else {
                break;
            };
            self.fast.pop();
            moves.push(Move { unit, to: Place::Slow, reason: Reason::Coldest });
            let size = self.size(unit);
            excess = excess.saturating_sub(size);
            room.used -= size;
            room.moves_max -= size;
        }
        let mut exchange = std::mem::take(&mut self.exchange);
        while self.propose(room, &mut exchange) {
            if let Some(pays) = self.pays(&exchange.up, &exchange.down).filter(|pays| *pays > 1.0) {
                let reason = Reason::SwappedFor { unit: exchange.up[0].1 };
                moves.extend(exchange.down.iter().map(|(_, unit)| Move {
                    unit: *unit,
                    to: Place::Slow,
                    reason,
                }));
                let reason = Reason::Pays { hundredths: (pays * 100.0) as u32 };
                moves.extend(exchange.up.iter().map(|(_, unit)| Move {
                    unit: *unit,
                    to: Place::Fast,
                    reason,
                }));
                room.used = room.used + exchange.up_size - exchange.down_size;
                room.moves_max -= exchange.up_size + exchange.down_size;
            } else if !self.pass_over(&mut exchange) {
                break;
            }
        }
        self.exchange = exchange;
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        if let Some(place) = self.places.get_mut(unit as usize).filter(|place| place.is_some()) {
            *place = Some(to);
        }
    }

    fn heat(&self, unit: UnitId) -> f32 {
        self.model.heat(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNITS: u32 = 200;

    /// A fast tier with room for half of the units, and a load of which 90 % meets `hot` units.
    struct Load {
        policy: Gated,
        fast: Vec<bool>,
        random: u64,
        moves: u32,
    }

    impl Load {
        fn new(slowness: f64) -> Load {
            let mut policy = Gated::new(slowness);
            let fast: Vec<bool> = (0..UNITS).map(|unit| unit < UNITS / 2).collect();
            (0..UNITS).for_each(|unit| {
                policy.arrived(unit, if fast[unit as usize] { Place::Fast } else { Place::Slow }, 1)
            });
            Load { policy, fast, random: 88_172_645_463_325_252, moves: 0 }
        }

        fn next(&mut self, below: u32) -> u32 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            ((self.random >> 11) % u64::from(below)) as u32
        }

        fn run(&mut self, samples: u32, hot: std::ops::Range<u32>) {
            let mut moves = Vec::new();
            for n in 0..samples {
                let unit = if self.next(10) == 0 {
                    self.next(UNITS)
                } else {
                    hot.start + self.next(hot.end - hot.start)
                };
                self.policy.sampled(unit, 1);
                if n % 100 == 0 {
                    let used = self.fast.iter().filter(|fast| **fast).count() as u32;
                    self.policy
                        .decide(Room { capacity: UNITS / 2, used, moves_max: 16 }, &mut moves);
                    for step in &moves {
                        self.fast[step.unit as usize] = step.to == Place::Fast;
                        self.policy.moved(step.unit, step.to);
                        self.moves += 1;
                    }
                }
            }
        }

        /// The share of a range that is in the fast tier.
        fn share(&self, range: std::ops::Range<u32>) -> f64 {
            range.clone().filter(|unit| self.fast[*unit as usize]).count() as f64
                / range.len() as f64
        }
    }

    #[test]
    fn what_is_hot_comes_into_the_fast_tier_and_then_nothing_moves() {
        let mut load = Load::new(2.0);
        load.run(20 * UNITS, 120..160);
        assert!(load.share(120..160) > 0.95, "{}", load.share(120..160));
        let moves = std::mem::take(&mut load.moves);
        assert!(moves >= 80, "{moves}");
        load.run(100 * UNITS, 120..160);
        assert!(load.moves <= 16, "{} moves that change nothing", load.moves);
    }

    #[test]
    fn a_jump_is_followed() {
        let mut load = Load::new(2.0);
        load.run(50 * UNITS, 120..160);
        load.run(10 * UNITS, 20..60);
        assert!(load.share(20..60) > 0.9, "{}", load.share(20..60));
    }

    #[test]
    fn where_all_are_alike_moves_take_next_to_no_time() {
        let mut load = Load::new(2.0);
        load.run(200 * UNITS, 0..UNITS);
        // A move takes a sample's time. An exact order without a gate would use all sixteen moves
        // of each decision: 16 %.
        assert!(load.moves < 200 * UNITS / 50, "{}", load.moves);
    }

    #[test]
    fn nothing_pays_where_nothing_is_slower() {
        let mut load = Load::new(1.0);
        load.run(50 * UNITS, 120..160);
        assert_eq!(load.moves, 0);
    }

    #[test]
    fn the_coldest_go_where_there_is_too_much() {
        let mut load = Load::new(2.0);
        load.run(20 * UNITS, 0..40);
        let mut moves = Vec::new();
        load.policy.decide(Room { capacity: 60, used: 100, moves_max: 1000 }, &mut moves);
        let out: Vec<UnitId> = moves
            .iter()
            .filter(|step| step.reason == Reason::Coldest)
            .map(|step| step.unit)
            .collect();
        assert_eq!(out.len(), 40);
        assert!(out.iter().all(|unit| *unit >= 40), "{out:?}");
    }

    /// Half of 200 pages of one base unit and six huge ones of 64 fits the fast tier. Eight of ten
    /// samples meet 40 pages and two huge ones, none of which is in the fast tier at first.
    #[test]
    fn huge_ones_and_small_ones_take_each_others_places() {
        let size = |unit: u32| if unit < 200 { 1 } else { 64 };
        let is_hot = |unit: u32| unit < 40 || (200..202).contains(&unit);
        let mut load = Load::new(2.0);
        load.policy = Gated::new(2.0);
        load.fast = (0..206).map(|unit| (70..200).contains(&unit) || unit >= 204).collect();
        (0..206).for_each(|unit| {
            load.policy.arrived(
                unit,
                if load.fast[unit as usize] { Place::Fast } else { Place::Slow },
                size(unit),
            )
        });
        let (capacity, mut moves) = (292, Vec::new());
        for _ in 0..1500 {
            for _ in 0..100 {
                let page = if load.next(10) < 8 {
                    load.next(40 + 128)
                } else {
                    load.next(200 + 6 * 64) + 168
                };
                // Hot pages, hot huge ones; then all.
                let unit = match page {
                    0..40 => page,
                    40..168 => 200 + (page - 40) / 64,
                    168..368 => page - 168,
                    _ => 200 + (page - 368) / 64,
                };
                load.policy.sampled(unit, 1);
            }
            let used = (0..206).filter(|unit| load.fast[*unit as usize]).map(size).sum();
            load.policy.decide(Room { capacity, used, moves_max: 192 }, &mut moves);
            let mut now = used;
            for step in &moves {
                load.fast[step.unit as usize] = step.to == Place::Fast;
                now = if step.to == Place::Fast {
                    now + size(step.unit)
                } else {
                    now - size(step.unit)
                };
                assert!(now <= capacity, "{moves:?}");
                load.policy.moved(step.unit, step.to);
            }
            load.moves += moves.iter().map(|step| size(step.unit)).sum::<u32>();
        }
        let there = (0..206)
            .filter(|unit| is_hot(*unit) && load.fast[*unit as usize])
            .map(size)
            .sum::<u32>();
        assert!(there >= 160, "{there} of 168");
        // Once what is hot is there, others come and go, which are alike: a move of a base unit
        // takes as long as a sample.
        assert!(load.moves < 150_000 / 50, "{}", load.moves);
    }

    proptest! {
        /// Whatever happens, moves are possible ones and fit, whatever the units' sizes.
        #[test]
        fn moves_keep_to_the_room(
            steps in prop::collection::vec((0u32..24, 0u32..24, 0u32..20, 0u32..8), 1..300),
            capacity in 0u32..20,
            largest in 1u32..5,
        ) {
            let mut policy = Gated::new(3.0);
            let mut places = [None; 24];
            let mut moves = Vec::new();
            let size = |unit: u32| 1 + unit % largest;
            for (a, b, what, moves_max) in steps {
                match what {
                    0 => {
                        let place = if b % 2 == 0 { Place::Fast } else { Place::Slow };
                        places[a as usize] = Some(place);
                        policy.arrived(a, place, size(a));
                    }
                    1 => {
                        places[a as usize] = None;
                        policy.gone(a);
                    }
                    2 => {
                        let used = (0..24)
                            .filter(|unit| places[*unit as usize] == Some(Place::Fast))
                            .map(size)
                            .sum();
                        policy.decide(
                            Room { capacity, used, moves_max: moves_max * largest }, &mut moves
                        );
                        let moved: u32 = moves.iter().map(|step| size(step.unit)).sum();
                        prop_assert!(moved <= moves_max * largest);
                        let mut now = used;
                        for step in &moves {
                            prop_assert!(
                                places[step.unit as usize].is_some_and(|place| place != step.to),
                                "{step:?}",
                            );
                            let of = size(step.unit);
                            now = if step.to == Place::Fast { now + of } else { now - of };
                            prop_assert!(now <= capacity.max(used), "{moves:?}");
                            places[step.unit as usize] = Some(step.to);
                            policy.moved(step.unit, step.to);
                        }
                    }
                    _ => (0..40).for_each(|_| policy.sampled(a.min(b), 1)),
                }
            }
        }
    }
}
