//! Reclaims memory without losing a live item.

use std::cmp::Reverse;
use std::ptr;

use super::{Context, MERGED, SEGMENT, SMALL_MAX, Segments, State, Unit};
use crate::store::item::{Header, Item};

/// Number of segments merged at once where nothing may be evicted.
const COMPACTED: usize = 8;
/// Number of entries at the queue's back that are searched for segments with much garbage.
const NEWEST: usize = 1024;
/// Number of entries of the queue swept at once.
const SWEPT: usize = 128;
/// Maximum number of entries of the queue swept in vain within a second.
const SWEPT_IN_SECOND: usize = 2048;
/// Number of entries at the queue's front that are checked for dead items.
const DEAD_PROBES: usize = 2;

impl Segments {
    /// Takes segments out of the queue that fit into fewer without losing an item.
    pub(super) fn sparse_segments(&self, state: &mut State) -> Option<Vec<usize>> {
        let (looked, most) = match self.evictions {
            true => (NEWEST, MERGED),
            false => (usize::MAX, COMPACTED),
        };
        // The emptiest ones, with what lives in them and their places in the queue.
        let mut sparse: Vec<(usize, usize, usize)> = Vec::with_capacity(most + 1);
        let units = state.queue.iter().enumerate().rev().take(looked);
        for (place, unit) in units {
            let &Unit::Segment(segment, number) = unit else { continue };
            if !self.is_sealed(segment, number) {
                continue;
            }
            let live = self.live(segment);
            let is_sparser = sparse.len() < most || sparse.last().is_some_and(|last| live < last.0);
            if is_sparser && !self.is_pending(segment) {
                let rank = sparse.partition_point(|other| other.0 <= live);
                sparse.insert(rank, (live, segment, place));
                sparse.truncate(most);
                if live == 0 {
                    break;
                }
            }
        }
        let mut sum = 0;
        let count = sparse.iter().enumerate().find_map(|(before, (live, ..))| {
            sum += live;
            fit_in_fewer(before + 1, sum).then_some(before + 1)
        })?;
        sparse.truncate(count);
        // From the back on, so that the places of the others stay as they are.
        sparse.sort_unstable_by_key(|&(.., place)| Reverse(place));
        for &(.., place) in &sparse {
            state.queue.remove(place);
        }
        Some(sparse.into_iter().map(|(_, segment, _)| segment).collect())
    }

    /// Forgets dead items of some entries of the queue, which then stand at its back. Returns
    /// whether there was one.
    pub(super) fn sweep(&self, state: &mut State, context: Context<'_>) -> bool {
        let reason = (context.now, context.flushed.cas);
        if state.swept_for != reason {
            state.swept_for = reason;
            state.swept = 0;
        }
        let most = state.queue.len().min(SWEPT_IN_SECOND).saturating_sub(state.swept);
        let mut found = false;
        for _ in 0..most.min(SWEPT) {
            let had_dead = match state.queue.pop_front() {
                Some(Unit::Large(pointer, number)) => {
                    self.evict_large(state, pointer, number, context, true)
                }
                Some(Unit::Segment(segment, number)) if !self.is_sealed(segment, number) => false,
                Some(unit @ Unit::Segment(segment, _)) => {
                    state.queue.push_back(unit);
                    !self.is_pending(segment) && self.forget_dead(segment, context)
                }
                None => break,
            };
            found |= had_dead;
            state.swept += usize::from(!had_dead);
        }
        found
    }

    /// Removes the dead items of a segment from the index. Returns whether there was one.
    fn forget_dead(&self, segment: usize, context: Context<'_>) -> bool {
        let length = self.length(segment);
        let (mut offset, mut found) = (0, false);
        while offset < length {
            // SAFETY: items stand one behind the other up to the segment's length, and all of
            // them are finished. Hash and size never change while the segment exists.
            let (at, hash, size) = unsafe {
                let at = self.address(segment).add(offset);
                let header = at.cast::<Header>();
                (at, (*header).hash, (*header).size as usize)
            };
            offset += size;
            let guard = context.index.lock(hash);
            let Some(slot) = guard.find(hash, |other| ptr::eq(other, at)) else { continue };
            // SAFETY: the index has the item, and its bucket is locked.
            let item = unsafe { Item::from_pointer(at) };
            if context.is_dead(&item) {
                context.stats.item_dropped(item.header, true);
                self.forget(at, item.header);
                guard.clear(slot);
                found = true;
            }
        }
        found
    }

    /// Frees large items at the queue's front that are dead.
    pub(super) fn free_dead(&self, state: &mut State, context: Context<'_>) {
        for _ in 0..DEAD_PROBES {
            let Some(&Unit::Large(pointer, number)) = state.queue.front() else { return };
            state.queue.pop_front();
            if !self.evict_large(state, pointer, number, context, true) {
                // The item stays the oldest.
                if let Some(unit) = state.queue.pop_back() {
                    state.queue.push_front(unit);
                }
                return;
            }
        }
    }
}

/// Whether the live items of some segments fit into one segment less, in any order.
pub(super) fn fit_in_fewer(segments: usize, live: usize) -> bool {
    match segments {
        0 | 1 => live == 0,
        // All but the last are left with less room than one item needs.
        _ => live <= (segments - 2) * (SEGMENT - SMALL_MAX) + SEGMENT,
    }
}
