//! The low watermark: how far below the budget memory is kept, so that first touches find room.
//!
//! Eviction starts when less than half of it is free (kswapd's low watermark), and stops when all
//! of it is (its high watermark).

use super::state::Mover;

/// Bounds of the low watermark, bytes.
pub(super) const WATERMARK_MIN: u64 = 2 << 20;
const WATERMARK_MAX: u64 = 64 << 20;
/// First touches of this many seconds find room, at their fastest recent rate.
pub(super) const REACTION_S: f64 = 0.2;
/// Time until the mover knows what the kernel swapped in, s.
const SWAP_IN_LAG_S: f64 = 0.02;
/// Time in which a burst of first touches is half forgotten, s.
const BURST_HALF_LIFE_S: f64 = 2.0;
/// Time without a growing burst (ns) after which a burst's half-life changes (s). DRAM kept free
/// for nothing costs refaults.
const CALM_AFTER_NS: u64 = 1_000_000_000;
const CALM_HALF_LIFE_S: f64 = 0.2;

impl Mover {
    /// The bytes kept free for first touches, which cannot be made to wait (refaults wait for
    /// room). It is as much as was touched in [`REACTION_S`] at the fastest recent rate. They also
    /// serve for swap-ins by the kernel, which do not wait either.
    pub(super) fn low_watermark(&mut self, budget: u64, now_ns: u64) -> u64 {
        let seconds = (now_ns - self.decayed_ns) as f64 / 1e9;
        self.decayed_ns = now_ns;
        if self.measure.growth * REACTION_S > WATERMARK_MIN as f64 {
            self.grew_ns = now_ns;
        }
        let half_life_s = if now_ns - self.grew_ns < CALM_AFTER_NS {
            BURST_HALF_LIFE_S
        } else {
            CALM_HALF_LIFE_S
        };
        self.growth = (self.growth * (-seconds / half_life_s).exp2()).max(self.measure.growth);
        ((self.growth * REACTION_S + self.measure.swap_in_rate * SWAP_IN_LAG_S) as u64)
            .clamp(WATERMARK_MIN, WATERMARK_MAX)
            .min(budget / 4)
    }
}
