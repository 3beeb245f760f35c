//! What has to move for a plan: ordered, filtered, and done over several windows if need be.
//!
//! Promotions go first, and of moves in one direction those that bring most for each page moved.
//! The filter is TierScape's (§6.7): it keeps what a tier holds within its capacity. It moves
//! nothing into a tier under pressure, and drops what does not pay.

use super::{Resend, Window};
use std::collections::VecDeque;

/// Pages of a region that are to go to a tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// Number of the region.
    pub region: u32,
    /// Tier of the region when the plan was made.
    pub from: u8,
    /// Tier that the pages go to; the same as `from` for pages that leaked.
    pub to: u8,
    /// Number of pages that are left to move.
    pub pages: u32,
    /// What moving a page brings, any unit: more is done earlier.
    pub gain: f32,
}

impl Move {
    /// Whether the move goes up.
    pub fn is_promotion(&self) -> bool {
        self.to < self.from
    }
}

/// Moves for a plan, in the order in which they are to be made. `gain` says what a region's move to
/// its new tier brings in all, and `resend` which of its pages go.
pub fn list(
    window: &Window<'_>,
    plan: &[u8],
    resend: impl Fn(usize) -> Resend,
    gain: impl Fn(usize, usize) -> f64,
) -> Vec<Move> {
    let mut moves: Vec<Move> = window
        .regions
        .iter()
        .zip(plan)
        .enumerate()
        .filter_map(|(number, (region, to))| {
            let (from, to) = (region.tier, *to);
            let resend = resend(number);
            let out = !window.tiers[usize::from(to)].is_bytes();
            // Pages in use would refault at once.
            let in_use = if resend == Resend::Idle && out { region.touched } else { 0 };
            let pages = if from != to {
                let there = if to == 0 { region.leaked } else { in_use };
                region.pages.saturating_sub(there)
            } else if out && resend != Resend::Never {
                region.leaked.saturating_sub(in_use)
            } else {
                0
            };
            let gain = (gain(number, to.into()) / f64::from(pages.max(1))) as f32;
            (pages > 0).then_some(Move { region: number as u32, from, to, pages, gain })
        })
        .collect();
    moves.sort_by(|a, b| {
        let up = b.is_promotion().cmp(&a.is_promotion());
        up.then(b.gain.total_cmp(&a.gain)).then(a.region.cmp(&b.region))
    });
    moves
}

/// Drops moves that their tier has no room for, or that do not pay; those that are left keep their
/// order. `room`: pages of each tier's medium that are free, which a move up from it makes more.
/// `pressed`: tiers that nothing is to move into. `least`: the gain by page that a move must bring.
pub fn filter(
    moves: &mut Vec<Move>,
    window: &Window<'_>,
    room: &mut [f64],
    pressed: &[bool],
    least: f32,
) {
    moves.retain(|step| {
        let (region, from, to) = (step.region as usize, step.from.into(), usize::from(step.to));
        let pages = f64::from(step.pages);
        let (takes, frees) =
            (pages * window.stored(region, to), pages * window.stored(region, from));
        let (into, out_of) = (window.tiers[to].medium, window.tiers[from].medium);
        let leaks = step.from == step.to;
        // What leaked is in DRAM.
        let (out_of, frees) = if leaks { (0, pages) } else { (out_of, frees) };
        let free = room[into] + if into == out_of { frees } else { 0.0 };
        if pressed.get(to) == Some(&true) || takes > free || step.gain < least {
            return false;
        }
        room[into] -= takes;
        room[out_of] += frees;
        true
    });
}

/// Moves under way. A window has time for some pages; the others follow in the next one, unless a
/// new plan has come.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    moves: VecDeque<Move>,
}

impl Queue {
    /// Begins anew: what was not moved yet is in the new list if it is still wanted, as that is
    /// made from where pages are.
    pub fn replace(&mut self, moves: Vec<Move>) {
        self.moves = moves.into();
    }

    /// The moves to make now, at most `pages` pages. A region's pages may be spread over several
    /// calls.
    pub fn take(&mut self, mut pages: u32) -> Vec<Move> {
        let mut taken = Vec::new();
        while let Some(next) = self.moves.front_mut().filter(|_| pages > 0) {
            let now = next.pages.min(pages);
            taken.push(Move { pages: now, ..*next });
            pages -= now;
            next.pages -= now;
            if next.pages == 0 {
                self.moves.pop_front();
            }
        }
        taken
    }

    /// The next move as a whole.
    pub fn pop(&mut self) -> Option<Move> {
        self.moves.pop_front()
    }

    /// Puts back what is left of a move that was popped: it is the next one again.
    pub fn put_back(&mut self, rest: Move) {
        self.moves.push_front(rest);
    }

    /// Number of pages that are still to move.
    pub fn pages(&self) -> u64 {
        self.moves.iter().map(|step| u64::from(step.pages)).sum()
    }
}
