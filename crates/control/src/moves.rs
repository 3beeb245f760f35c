//! The list of moves (`terrace run --moves`): what moved, from where to where, and why.
//!
//! An entry is one decision:
//! - pages of one region that left together;
//! - a region that was moved to a node or from it;
//! - what was restored of a region within a fifth of a second because it was touched, or because
//!   there is room.
//!
//! Entries go through a ring in the statistics file ([`Ring`](crate::stats::Ring)). Without
//! `--moves` nothing is written, and the ring takes no memory.

use terrace_os::REGION;
use terrace_policy::eviction::victims;
use terrace_policy::placement;

/// Words of an entry in the ring: when, where, what, and what belongs to the reason.
pub const MOVE_WORDS: usize = 4;

/// A move of pages of one region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// CLOCK_MONOTONIC, ns.
    pub at_ns: u64,
    /// Where the region begins.
    pub address: usize,
    /// How many of its pages went (1–512; more, where some went and came several times).
    pub pages: u16,
    /// The tier that they left, by its number in the list of tiers (0: DRAM); `None` where they
    /// came from several.
    pub from: Option<u8>,
    /// The tier that they were to go to; a page that does not compress there goes on to a denser
    /// one.
    pub to: u8,
    /// Why.
    pub why: MoveReason,
}

/// Why pages were moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MoveReason {
    /// Room was needed, or the program said that it does not need the pages.
    Victim {
        /// What the hand saw in the pages.
        reason: victims::Reason,
        /// How hot samples say that the region is, as a multiple of the average; `None` without
        /// samples.
        heat: Option<f32>,
        /// See [`victims::Pressure`].
        pressure: victims::Pressure,
    },
    /// The policy that places regions in DRAM and in a node wants it there. A unit is the region at
    /// that number times [`REGION`].
    Placed(placement::Reason),
    /// The program touched the region, is about to, or announced it.
    Touched,
    /// Room was there for the pages, and nothing else wants it.
    Room,
}

const VICTIM: u8 = 0;
const PLACED: u8 = 1;
const TOUCHED: u8 = 2;
const ROOM: u8 = 3;
const SEVERAL_TIERS: u8 = u8::MAX;

impl Moved {
    /// The move as words of the ring.
    pub fn to_words(self) -> [u64; MOVE_WORDS] {
        let (class, kind, detail) = match self.why {
            MoveReason::Victim { reason, heat, pressure } => {
                (VICTIM, reason as u8, [heat.unwrap_or(f32::NAN).to_bits(), pressure])
            }
            MoveReason::Placed(reason) => {
                let (kind, detail) = reason.to_numbers();
                (PLACED, kind, detail)
            }
            MoveReason::Touched => (TOUCHED, 0, [0; 2]),
            MoveReason::Room => (ROOM, 0, [0; 2]),
        };
        let [low, high] = self.pages.to_le_bytes();
        let what = u64::from_le_bytes([
            low,
            high,
            self.from.unwrap_or(SEVERAL_TIERS),
            self.to,
            class,
            kind,
            0,
            0,
        ]);
        [self.at_ns, self.address as u64, what, u64::from(detail[0]) | u64::from(detail[1]) << 32]
    }

    /// The move that these words tell of; `None` if they tell of none.
    pub fn from_words([at_ns, address, what, detail]: &[u64; MOVE_WORDS]) -> Option<Moved> {
        let [low, high, from, to, class, kind, 0, 0] = what.to_le_bytes() else { return None };
        let detail = [*detail as u32, (detail >> 32) as u32];
        let why = match class {
            VICTIM => {
                let heat = f32::from_bits(detail[0]);
                let reason = *victims::Reason::ALL.get(usize::from(kind))?;
                MoveReason::Victim {
                    reason,
                    heat: (!heat.is_nan()).then_some(heat),
                    pressure: detail[1],
                }
            }
            PLACED => MoveReason::Placed(placement::Reason::from_numbers(kind, detail)?),
            TOUCHED => MoveReason::Touched,
            ROOM => MoveReason::Room,
            _ => return None,
        };
        let from = (from != SEVERAL_TIERS).then_some(from);
        Some(Moved {
            at_ns: *at_ns,
            address: *address as usize,
            pages: u16::from_le_bytes([low, high]),
            from,
            to,
            why,
        })
    }
}

/// The region at an address, as a unit of [`MoveReason::Placed`].
pub fn unit_of(address: usize) -> placement::UnitId {
    (address / REGION) as placement::UnitId
}

/// Where the region of a unit begins.
pub fn address_of(unit: placement::UnitId) -> usize {
    unit as usize * REGION
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_move_is_read_as_it_was_written() {
        let heats = [None, Some(0.0), Some(12.5)];
        let victims = victims::Reason::ALL
            .into_iter()
            .zip(heats.into_iter().cycle())
            .map(|(reason, heat)| MoveReason::Victim { reason, heat, pressure: 12 });
        let placed = [
            placement::Reason::Hot { bin: 15, hot: 9 },
            placement::Reason::Cold { bin: 1, warm: 7 },
            placement::Reason::Pays { hundredths: 131 },
            placement::Reason::SwappedFor { unit: unit_of(0x7fff_ffe0_0000) },
            placement::Reason::Coldest,
            placement::Reason::Counted { count: u32::MAX, threshold: 3 },
            placement::Reason::Hinted,
            placement::Reason::Idle,
            placement::Reason::Foretold { accesses: 7 },
        ];
        for why in victims
            .chain(placed.map(MoveReason::Placed))
            .chain([MoveReason::Touched, MoveReason::Room])
        {
            for (from, to) in [(None, 0), (Some(0), 2), (Some(7), 1)] {
                let moved =
                    Moved { at_ns: u64::MAX, address: 0x7fff_ffe0_0000, pages: 512, from, to, why };
                assert_eq!(Moved::from_words(&moved.to_words()), Some(moved));
            }
        }
        assert_eq!(address_of(unit_of(0x7fff_ffe0_0000)), 0x7fff_ffe0_0000);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::with_cases(512)
        })]

        /// Words of any origin are a move that is written the same again, or none.
        #[test]
        fn any_words_are_a_move_or_none(
            at in any::<u64>(),
            address in any::<u64>(),
            what in any::<u64>(),
            narrow in any::<bool>(),
            detail in any::<u64>(),
        ) {
            let what = if narrow { what & 0x0f03_ffff_ffff } else { what };
            if let Some(moved) = Moved::from_words(&[at, address, what, detail]) {
                let again = Moved::from_words(&moved.to_words()).expect("a move");
                prop_assert_eq!(again, moved);
            }
        }
    }
}
