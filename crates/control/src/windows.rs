//! What `terrace run` is told of each window of the placement model: what it recommended, beside
//! where pages are at the window's end.
//!
//! Rows go through a ring in the statistics file ([`Ring`](crate::stats::Ring)), at each window's
//! end. There is one of the window, one of each tier, and one of each region. Without `--placement`
//! nothing is written, and the ring takes no memory.

use crate::settings::MAX_TIERS;

/// Words of a row.
pub const ROW_WORDS: usize = 5;
/// Rows of the ring: a window of 7,000 regions, 14 GiB. `terrace run` reads it some times a second.
pub const ROW_SLOTS: usize = 8192;

/// A row of the ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Row {
    /// A window has ended.
    Window {
        /// Number of the window, from 1.
        number: u32,
        /// Time of the window's end, CLOCK_MONOTONIC, ns.
        at_ns: u64,
        /// The knob, 0 to 1.
        knob: f32,
        /// Number of regions of which rows follow.
        regions: u32,
        /// Pages that the mover had still to move at the window's end.
        left: u32,
        /// The most that the new plan may cost, in pages of DRAM; 0 where the model has no bound.
        bound: f32,
        /// Time that the model and its measuring took, µs.
        spent_us: u32,
        /// How urgently room was needed, at most: 0 to 12.
        pressure: u8,
    },
    /// A tier in the window.
    Tier {
        /// Number of the window.
        number: u32,
        /// The tier, by its number in the list of tiers (0: DRAM).
        tier: u8,
        /// Pages that were to be in the tier.
        recommended: u32,
        /// Pages that are in the tier.
        actual: u32,
        /// Pages that were to be in the tier and are in DRAM: they were touched, and restored.
        leaked: u32,
        /// Faults on the tier's pages in the window.
        faults: u32,
        /// What the tier's pages cost, in pages of DRAM.
        cost: f32,
        /// Bytes of the medium for each byte of data, as measured.
        stored: f32,
    },
    /// A region in the window.
    Region {
        /// Number of the window.
        number: u32,
        /// Where the region begins.
        address: usize,
        /// The tier in which the region was to be.
        recommended: u8,
        /// Pages of the region in each tier (0 to 512).
        pages: [u16; MAX_TIERS],
        /// Pages that were touched, as estimated.
        touched: u16,
        /// Accesses, by samples and faults.
        accesses: f32,
    },
}

const WINDOW: u8 = 1;
const TIER: u8 = 2;
const REGION: u8 = 3;

/// The tier of most of a region's pages, the fastest of several.
pub fn main_tier(pages: &[u16; MAX_TIERS]) -> u8 {
    (0..MAX_TIERS).rev().max_by_key(|tier| pages[*tier]).unwrap_or(0) as u8
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn head(kind: u8, small: u8, half: u16, number: u32) -> u64 {
    u64::from(kind) | u64::from(small) << 8 | u64::from(half) << 16 | u64::from(number) << 32
}

fn four(pages: &[u16]) -> u64 {
    pages.iter().rev().fold(0, |word, pages| word << 16 | u64::from(*pages))
}

impl Row {
    /// The row as words of the ring.
    pub fn to_words(self) -> [u64; ROW_WORDS] {
        match self {
            Row::Window { number, at_ns, knob, regions, left, bound, spent_us, pressure } => [
                head(WINDOW, pressure, 0, number),
                at_ns,
                pair(regions, left),
                pair(knob.to_bits(), bound.to_bits()),
                u64::from(spent_us),
            ],
            Row::Tier { number, tier, recommended, actual, leaked, faults, cost, stored } => [
                head(TIER, tier, 0, number),
                pair(recommended, actual),
                pair(leaked, faults),
                pair(cost.to_bits(), stored.to_bits()),
                0,
            ],
            Row::Region { number, address, recommended, pages, touched, accesses } => [
                head(REGION, recommended, touched, number),
                address as u64,
                four(&pages[..4]),
                four(&pages[4..]),
                u64::from(accesses.to_bits()),
            ],
        }
    }

    /// The row that these words tell of; `None` if they tell of none.
    pub fn from_words(words: &[u64; ROW_WORDS]) -> Option<Row> {
        let [kind, small, low, high, ..] = words[0].to_le_bytes();
        let number = halves(words[0]).1;
        let float = |bits: u32| Some(f32::from_bits(bits)).filter(|float| float.is_finite());
        let ((a, b), (c, d), (e, f)) = (halves(words[1]), halves(words[2]), halves(words[3]));
        Some(match kind {
            WINDOW => Row::Window {
                number,
                at_ns: words[1],
                regions: c,
                left: d,
                knob: float(e)?,
                bound: float(f)?,
                spent_us: words[4] as u32,
                pressure: small,
            },
            TIER if usize::from(small) < MAX_TIERS => Row::Tier {
                number,
                tier: small,
                recommended: a,
                actual: b,
                leaked: c,
                faults: d,
                cost: float(e)?,
                stored: float(f)?,
            },
            REGION if usize::from(small) < MAX_TIERS => Row::Region {
                number,
                address: words[1] as usize,
                recommended: small,
                pages: std::array::from_fn(|tier| {
                    (words[2 + tier / 4] >> (16 * (tier % 4))) as u16
                }),
                touched: u16::from_le_bytes([low, high]),
                accesses: float(words[4] as u32)?,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let rows = [
            Row::Window {
                number: u32::MAX,
                at_ns: u64::MAX,
                knob: 0.1,
                regions: 7,
                left: 9,
                bound: 1e9,
                spent_us: 12,
                pressure: 11,
            },
            Row::Tier {
                number: 3,
                tier: 7,
                recommended: 1,
                actual: 2,
                leaked: 3,
                faults: 4,
                cost: 0.5,
                stored: 0.25,
            },
            Row::Region {
                number: 4,
                address: 0x7fff_ffe0_0000,
                recommended: 2,
                pages: [1, 2, 3, 4, 5, 6, 7, 512],
                touched: 300,
                accesses: 1.5,
            },
        ];
        for row in rows {
            assert_eq!(Row::from_words(&row.to_words()), Some(row));
        }
        assert_eq!(Row::from_words(&[0; ROW_WORDS]), None);
        assert_eq!(Row::from_words(&[u64::MAX; ROW_WORDS]), None);
    }
}
