//! Room by eviction: items that were not used lately go first.

use std::ptr;

use super::reclaim::fit_in_fewer;
use super::{Context, KINDS, MERGED, Segments, State, Unit};
use crate::store::item::{Header, Item};

/// Number of entries at the queue's front that are searched for segments to merge.
const OLDEST: usize = 64;

impl Segments {
    /// Evicts until `bytes` more bytes can be used.
    pub(super) fn make_room(
        &self,
        state: &mut State,
        bytes: usize,
        context: Context<'_>,
    ) -> Option<()> {
        let mut attempts = 8 * state.queue.len() + 8;
        while self.taken(state) + bytes > self.allowed() {
            if attempts == 0 {
                return None;
            }
            attempts -= 1;
            if let Some(victims) = self.sparse_segments(state) {
                self.merge(state, &victims, context);
                continue;
            }
            if !self.evictions {
                if self.sweep(state, context) {
                    continue;
                }
                return None;
            }
            let Some(oldest) = state.queue.pop_front() else {
                // At most the open segments are left.
                state.open.iter().flatten().next()?;
                self.seal_all(state);
                continue;
            };
            match oldest {
                Unit::Large(pointer, number) => {
                    self.evict_large(state, pointer, number, context, false);
                }
                Unit::Segment(segment, number) if self.is_sealed(segment, number) => {
                    let victims = self.oldest_segments(state, segment, number);
                    self.merge(state, &victims, context);
                }
                Unit::Segment(..) => {}
            }
        }
        Some(())
    }

    /// Takes a segment and those that follow it near the queue's front, without busy ones.
    fn oldest_segments(&self, state: &mut State, first: usize, number: u64) -> Vec<usize> {
        if self.is_pending(first) {
            state.queue.push_back(Unit::Segment(first, number));
            return Vec::new();
        }
        let mut victims = vec![first];
        let mut place = 0;
        for _ in 0..OLDEST {
            if place == state.queue.len() {
                break;
            }
            match state.queue[place] {
                Unit::Segment(segment, number) if !self.is_sealed(segment, number) => {
                    state.queue.remove(place);
                }
                Unit::Segment(segment, _) if !self.is_pending(segment) => {
                    state.queue.remove(place);
                    victims.push(segment);
                    if victims.len() == MERGED {
                        break;
                    }
                }
                _ => place += 1,
            }
        }
        victims
    }

    /// Takes a run of pages for a large item. Where none is long enough, free runs are joined that
    /// were kept as they are, and then large items are evicted, the oldest first. Without
    /// evictions only dead ones are.
    pub(super) fn take_run(
        &self,
        state: &mut State,
        pages: usize,
        context: Context<'_>,
    ) -> Option<usize> {
        if let Some(first) = state.runs.take(pages) {
            return Some(first);
        }
        let mut attempts = 8 * state.queue.len() + 8;
        loop {
            state.runs.join_kept(|first, pages| self.discard_run(first, pages));
            if let Some(first) = state.runs.take(pages) {
                return Some(first);
            }
            let mut is_gone = false;
            while !is_gone {
                attempts = usize::checked_sub(attempts, 1)?;
                let is_large = |unit: &Unit| matches!(unit, Unit::Large(..));
                let place = state.queue.iter().position(is_large)?;
                let Some(Unit::Large(pointer, number)) = state.queue.remove(place) else { break };
                is_gone = self.evict_large(state, pointer, number, context, !self.evictions);
            }
        }
    }

    /// Frees a large item, unless it was used lately. Returns whether it is gone; if not, it stands
    /// at the queue's back.
    pub(super) fn evict_large(
        &self,
        state: &mut State,
        pointer: usize,
        number: u64,
        context: Context<'_>,
        dead_only: bool,
    ) -> bool {
        let pending = match state.large.get(&pointer) {
            Some(large) if large.number == number => large.pending,
            _ => return true,
        };
        let at = pointer as *mut u8;
        let unit = Unit::Large(pointer, number);
        if pending {
            state.queue.push_back(unit);
            return false;
        }
        // SAFETY: a large item in the table is not freed without the lock of the state, and a
        // finished one has its hash.
        let hash = unsafe { (*at.cast::<Header>()).hash };
        let guard = context.index.lock(hash);
        let Some(slot) = guard.find(hash, |other| ptr::eq(other, at)) else {
            // The item is on its way into the index, or out of it. In the latter case the thread
            // that took it out frees it.
            state.queue.push_back(unit);
            return false;
        };
        // SAFETY: the index has the item, and its bucket is locked.
        let item = unsafe { Item::from_pointer(at) };
        let dead = context.is_dead(&item);
        if !dead && (dead_only || slot.clock() > 0) {
            if !dead_only {
                guard.set(slot, slot.moved(at));
            }
            drop(guard);
            state.queue.push_back(unit);
            return false;
        }
        context.stats.item_dropped(item.header, dead);
        guard.clear(slot);
        drop(guard);
        self.free_large(state, pointer);
        true
    }

    /// Merges segments into new ones, at least one fewer. Items that were not used are dropped.
    fn merge(&self, state: &mut State, victims: &[usize], context: Context<'_>) {
        let live: usize = victims.iter().map(|&segment| self.live(segment)).sum();
        let keep_all = fit_in_fewer(victims.len(), live);
        // One segment fewer than before, so that every merge frees memory.
        let mut spare = victims.len().saturating_sub(1);
        // Open segments are no victims, so that the first items go into what is left of them.
        for &segment in victims {
            let length = self.length(segment);
            let mut offset = 0;
            while offset < length {
                // SAFETY: items stand one behind the other up to the segment's length, and all
                // of them are finished.
                let at = unsafe { self.address(segment).add(offset) };
                offset += self.move_or_drop(state, at, context, keep_all, &mut spare);
            }
            self.close(state, segment);
        }
    }

    /// Copies an item into an open segment, or drops it. Returns its size.
    fn move_or_drop(
        &self,
        state: &mut State,
        at: *mut u8,
        context: Context<'_>,
        keep_all: bool,
        spare: &mut usize,
    ) -> usize {
        // SAFETY: hash and size never change while an item's segment exists.
        let (hash, size) = unsafe {
            let header = at.cast::<Header>();
            ((*header).hash, (*header).size as usize)
        };
        let guard = context.index.lock(hash);
        let Some(slot) = guard.find(hash, |other| ptr::eq(other, at)) else { return size };
        // SAFETY: the index has the item, and its bucket is locked.
        let item = unsafe { Item::from_pointer(at) };
        let dead = context.is_dead(&item);
        let kept = !dead && (keep_all || slot.clock() > 0);
        let kind = self.heat.kind_of(&slot) as usize;
        match kept.then(|| self.room(state, kind, size, spare)).flatten() {
            Some(to) => {
                // SAFETY: there is room for it, in another segment.
                unsafe { ptr::copy_nonoverlapping(at, to, size) };
                guard.set(slot, slot.moved(to));
            }
            None => {
                context.stats.item_dropped(item.header, dead);
                guard.clear(slot);
            }
        }
        self.forget(at, item.header);
        size
    }

    /// Finds room for an item that moves. It is in the open segment of its kind, in a new one while
    /// any may be opened, or in that of another kind.
    ///
    /// What fits into one fewer segment by [`fit_in_fewer`] finds room with two kinds, too. Where
    /// none is left for an item, both of the last segments have less room than it needs.
    fn room(
        &self,
        state: &mut State,
        mut kind: usize,
        size: usize,
        spare: &mut usize,
    ) -> Option<*mut u8> {
        let has_room =
            |state: &State, kind: usize| state.open[kind].is_some_and(|open| open.fits(size));
        if !has_room(state, kind) && *spare > 0 && self.reopen(state, kind).is_some() {
            *spare -= 1;
        }
        if !has_room(state, kind) {
            kind = (0..KINDS).find(|&kind| has_room(state, kind))?;
        }
        Some(self.take(state.open[kind].as_mut()?, size).1)
    }
}
