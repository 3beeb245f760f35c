//! Which segments are emptied: by cost and benefit, or as ObjecTier (§4.2) chooses.
//!
//! Pure: takes the metadata of a segment, and returns a decision.

use crate::marks::HEATS;
use crate::segment::Kind;

/// How victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Victims are those with the highest ratio of gain to cost.
    CostBenefit,
    /// Victims are drawn at random from those in which hot and cold are mixed. That is the paper's
    /// choice: counts are sampled at random until the hot share is near neither 0 nor 1.
    RandomMixed,
    /// Victims are the most mixed ones.
    Greedy,
}

/// A segment is mixed if the smaller of its hot and its cold share is at least this.
const MIXED_FROM: f64 = 0.02;
/// Factor by which a gain must exceed the cost.
const MUST_GAIN: f64 = 2.0;
/// Age at which half of the gain is credited, s: the heat of a new segment may yet change.
const HALF_BELIEVED_S: f64 = 30.0;
/// Time to copy an object and change one reference, ns, where all is in memory.
const MOVE_NS: f64 = 300.0;
/// Time to copy a byte, ns.
const COPY_NS: f64 = 0.1;
/// Share of dead bytes in a segment's used ones from which on it is rewritten, so that memory is
/// given back. Hot memory is the dearer.
const DEAD_HOT: f64 = 0.25;
const DEAD_OTHER: f64 = 0.35;
/// Share of the smaller part of a segment below which only that part leaves.
const FEW: f64 = 0.25;

/// Touches that a heat stands for, by [`Clock`](crate::marks::Clock).
const TOUCHES: [f64; HEATS] = [0.0, 1.0, 3.0, 7.0];

/// Live objects of a segment, by heat.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Contents {
    /// Bytes of the objects, by heat.
    pub bytes: [u32; HEATS],
    /// Number of objects, by heat.
    pub objects: [u32; HEATS],
}

/// What a heat means now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Heat from which on an object is hot.
    pub hot_from: u8,
    /// Seconds in which heats were counted.
    pub window_s: f64,
    /// Average bytes of an object.
    pub object_bytes: f64,
    /// Cost of a touch where the page is not in fast memory, ns.
    pub fault_ns: f64,
    /// Seconds for which a gain is counted.
    pub horizon_s: f64,
}

/// What is to be done with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// All objects leave, also those that are not resident, and the memory is given back.
    Rewrite,
    /// Hot and resident objects leave; the rest is cold.
    TakeHot,
    /// Cold and resident objects leave; the rest is hot.
    TakeCold,
}

/// A segment that may be emptied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Number of the segment.
    pub segment: u32,
    /// What is to be done with the segment.
    pub plan: Plan,
    /// Order of candidates: the largest comes first.
    pub order: f64,
}

impl Contents {
    /// Bytes of objects of at least a heat.
    pub fn from(&self, heat: u8) -> u64 {
        self.bytes[usize::from(heat)..].iter().map(|bytes| u64::from(*bytes)).sum()
    }

    /// Rate of touches of objects of the given heats, 1/s.
    fn rate(&self, heats: std::ops::Range<usize>, scale: &Scale) -> f64 {
        let touches: f64 = heats.map(|heat| TOUCHES[heat] * f64::from(self.objects[heat])).sum();
        touches / scale.window_s
    }
}

/// Metadata of a segment besides its contents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situation {
    /// Number of the segment.
    pub segment: u32,
    /// Kind of objects that the segment holds.
    pub kind: Kind,
    /// Bytes taken of the segment.
    pub used: usize,
    /// Time since the segment was sealed, s.
    pub age_s: f64,
    /// Number of the segment's pages that are not in memory.
    pub missing_pages: u32,
}

/// Whether and how a segment is to be emptied. `chance` is a random number, 0 to 1.
pub fn judge(
    choice: Choice,
    situation: &Situation,
    contents: &Contents,
    scale: &Scale,
    chance: f64,
) -> Option<Candidate> {
    // To free memory, whatever the heat.
    if let Some(candidate) = mostly_dead(situation, contents) {
        return Some(candidate);
    }
    let live = contents.from(0) as f64;
    let hot = contents.from(hot_from(situation.kind, scale)) as f64;
    let mix = if live > 0.0 { (hot / live).min(1.0 - hot / live) } else { 0.0 };
    let segment = situation.segment;
    if mix < MIXED_FROM {
        return None;
    }
    let plan = plan(situation, hot / live);
    let order = match choice {
        Choice::RandomMixed => chance,
        Choice::Greedy => mix,
        Choice::CostBenefit => {
            let worth = gain(situation, contents, scale) / cost(plan, situation, contents, scale);
            if worth < MUST_GAIN {
                return None;
            }
            worth
        }
    };
    Some(Candidate { segment, plan, order })
}

/// Decides to rewrite a segment if enough of it is dead, so that memory is given back. The more is
/// dead, the sooner.
pub fn mostly_dead(situation: &Situation, contents: &Contents) -> Option<Candidate> {
    let dead = 1.0 - contents.from(0) as f64 / (situation.used as f64).max(1.0);
    let most_dead = if situation.kind == Kind::Hot { DEAD_HOT } else { DEAD_OTHER };
    let candidate = Candidate { segment: situation.segment, plan: Plan::Rewrite, order: dead };
    (dead >= most_dead).then_some(candidate)
}

/// Heat from which on objects count as hot in a segment of a kind. Hot objects stay hot down to
/// half of the heat at which others become hot.
pub fn hot_from(kind: Kind, scale: &Scale) -> u8 {
    if kind == Kind::Hot { scale.hot_from.div_ceil(2) } else { scale.hot_from }
}

/// Whether next to nothing of a segment of hot objects is hot any more.
pub fn has_cooled(contents: &Contents, scale: &Scale) -> bool {
    let hot = contents.from(hot_from(Kind::Hot, scale)) as f64;
    hot < MIXED_FROM * contents.from(0) as f64
}

fn plan(situation: &Situation, hot: f64) -> Plan {
    match () {
        () if hot < FEW || (situation.missing_pages > 0 && hot < 0.5) => Plan::TakeHot,
        () if hot > 1.0 - FEW || situation.missing_pages > 0 => Plan::TakeCold,
        () => Plan::Rewrite,
    }
}

/// Time saved within the horizon, ns. A byte of fast memory is worth the heat that objects at the
/// boundary would have on it.
fn gain(situation: &Situation, contents: &Contents, scale: &Scale) -> f64 {
    let from = usize::from(hot_from(situation.kind, scale));
    let boundary = boundary_touches(scale) / scale.window_s / scale.object_bytes;
    let hot_bytes = contents.from(from as u8) as f64;
    let cold_bytes = contents.from(0) as f64 - hot_bytes;
    let is_fast = situation.kind == Kind::Hot || hot_bytes > cold_bytes;
    let each_s = if is_fast {
        boundary * cold_bytes - contents.rate(0..from, scale)
    } else {
        contents.rate(from..HEATS, scale) - boundary * hot_bytes
    };
    let believed = situation.age_s / (situation.age_s + HALF_BELIEVED_S);
    each_s * scale.fault_ns * scale.horizon_s * believed
}

/// Number of touches at the boundary between hot and cold.
fn boundary_touches(scale: &Scale) -> f64 {
    let from = usize::from(scale.hot_from).clamp(1, HEATS - 1);
    f64::midpoint(TOUCHES[from - 1], TOUCHES[from])
}

/// Whether it pays to move one object of that heat from among cold ones.
pub fn pays(heat: u8, scale: &Scale) -> bool {
    let above = TOUCHES[usize::from(heat).min(HEATS - 1)] - boundary_touches(scale);
    let gain = above / scale.window_s * scale.fault_ns * scale.horizon_s;
    gain > MUST_GAIN * (MOVE_NS + scale.object_bytes * COPY_NS)
}

/// Time that emptying takes, ns.
fn cost(plan: Plan, situation: &Situation, contents: &Contents, scale: &Scale) -> f64 {
    let from = usize::from(hot_from(situation.kind, scale));
    let moved = match plan {
        Plan::Rewrite => 0..HEATS,
        Plan::TakeHot => from..HEATS,
        Plan::TakeCold => 0..from,
    };
    let sum = |of: &[u32; HEATS]| of[moved.clone()].iter().map(|n| f64::from(*n)).sum::<f64>();
    let faults = if plan == Plan::Rewrite { f64::from(situation.missing_pages) } else { 0.0 };
    (sum(&contents.objects) * MOVE_NS + sum(&contents.bytes) * COPY_NS + faults * scale.fault_ns)
        .max(1.0)
}

/// Least heat that may count as hot. A few touches may be by chance: where less than this is hot, a
/// third of what moves moves in vain and leaves holes (simulated: Zipf 0.99, a million objects, a
/// fifth fast).
const LEAST_HOT: usize = 3;

/// Heat from which on objects are hot, and whether heats are to decay by one first, so that hot
/// objects fit into `hot_bytes`. `bytes` are those of all objects, by heat.
///
/// Heats decay once hot objects fill the fast memory, so that counts last for as long as they can.
pub fn boundary(bytes: &[u64; HEATS], hot_bytes: u64) -> (u8, bool) {
    let from = |heat: usize| bytes[heat..].iter().sum::<u64>();
    (LEAST_HOT as u8, from(LEAST_HOT) > hot_bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SCALE: Scale = Scale {
        hot_from: 1,
        window_s: 10.0,
        object_bytes: 128.0,
        fault_ns: 16_000.0,
        horizon_s: 60.0,
    };

    fn situation(kind: Kind) -> Situation {
        Situation { segment: 7, kind, used: 65_536, age_s: 30.0, missing_pages: 0 }
    }

    /// Contents of 512 objects of 128 bytes, by heat.
    fn of(objects: [u32; HEATS]) -> Contents {
        Contents { bytes: objects.map(|n| n * 128), objects }
    }

    fn plan_of(kind: Kind, objects: [u32; HEATS]) -> Option<Plan> {
        judge(Choice::CostBenefit, &situation(kind), &of(objects), &SCALE, 0.5).map(|c| c.plan)
    }

    #[test]
    fn the_smaller_part_leaves_where_it_is_small() {
        assert_eq!(plan_of(Kind::Fresh, [460, 20, 20, 12]), Some(Plan::TakeHot));
        assert_eq!(plan_of(Kind::Hot, [60, 20, 20, 412]), Some(Plan::TakeCold));
        assert_eq!(plan_of(Kind::Fresh, [256, 100, 100, 56]), Some(Plan::Rewrite));
    }

    #[test]
    fn what_is_not_mixed_or_does_not_pay_stays() {
        assert_eq!(plan_of(Kind::Cold, [510, 2, 0, 0]), None);
        assert_eq!(plan_of(Kind::Hot, [2, 10, 100, 400]), None);
        let poor = Scale { fault_ns: 1.0, ..SCALE };
        let found = judge(
            Choice::CostBenefit,
            &situation(Kind::Fresh),
            &of([256, 100, 100, 56]),
            &poor,
            0.5,
        );
        assert_eq!(found, None);
        // The paper's choices do not ask what it costs.
        for choice in [Choice::RandomMixed, Choice::Greedy] {
            let contents = of([256, 100, 100, 56]);
            assert!(judge(choice, &situation(Kind::Fresh), &contents, &poor, 0.5).is_some());
        }
    }

    #[test]
    fn pages_that_are_out_stay_out_unless_most_of_the_segment_is_dead() {
        let out = Situation { missing_pages: 8, ..situation(Kind::Cold) };
        let mixed = judge(Choice::CostBenefit, &out, &of([380, 60, 60, 12]), &SCALE, 0.5);
        assert_eq!(mixed.unwrap().plan, Plan::TakeHot);
        let dead = judge(Choice::CostBenefit, &out, &of([250, 0, 0, 0]), &SCALE, 0.5);
        assert_eq!(dead.unwrap().plan, Plan::Rewrite);
    }

    #[test]
    fn what_is_young_must_gain_more() {
        let young = Situation { age_s: 0.05, ..situation(Kind::Fresh) };
        let found = judge(Choice::CostBenefit, &young, &of([200, 312, 0, 0]), &SCALE, 0.5);
        assert_eq!(found, None);
        assert!(plan_of(Kind::Fresh, [200, 312, 0, 0]).is_some());
    }

    #[test]
    fn heats_decay_when_what_is_hot_no_longer_fits() {
        assert_eq!(boundary(&[1000, 100, 50, 50], 200), (3, false));
        assert_eq!(boundary(&[1000, 300, 900, 200], 200), (3, false));
        assert_eq!(boundary(&[1000, 300, 150, 201], 200), (3, true));
    }
}
