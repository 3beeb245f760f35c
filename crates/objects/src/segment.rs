//! Metadata of a segment, the unit in which memory is filled, emptied and given back.
//!
//! ```text
//!          allocate                full                victim            empty
//!   Free ───────────▶ Open ───────────▶ Sealed ─────────────▶ Evacuating ─────────▶ Retired
//!     ▲                                   ▲                       │                    │
//!     │                                   └─── something stays ───┘                    │
//!     └──────────────────── no reader from before, no pin ─────────────────────────────┘
//! ```

use crate::advice::Advice;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// State of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Holds nothing.
    Free,
    /// Objects are being allocated in it.
    Open,
    /// Full: it may become a victim.
    Sealed,
    /// Objects of the segment are being moved. Nothing is allocated in it.
    Evacuating,
    /// All objects have left; readers from before may still look at the old copies.
    Retired,
}

/// Kind of objects that a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// New objects: nothing is known of them.
    Fresh,
    /// Objects that were hot when they moved.
    Hot,
    /// Objects that were cold when they moved, or from among which the hot ones have left.
    Cold,
}

/// A segment's metadata.
pub struct Segment {
    state: AtomicU8,
    kind: AtomicU8,
    used: AtomicU32,
    live: AtomicU32,
    pins: AtomicU32,
    sealed_ms: AtomicU64,
    rests_until_ms: AtomicU64,
    failures: AtomicU32,
    /// The last advice about the segment.
    advised: AtomicU8,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment {
            state: AtomicU8::new(State::Free as u8),
            kind: AtomicU8::new(Kind::Fresh as u8),
            used: AtomicU32::new(0),
            live: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            sealed_ms: AtomicU64::new(0),
            rests_until_ms: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            advised: AtomicU8::new(Advice::Normal as u8),
        }
    }
}

impl Segment {
    /// State of the segment.
    pub fn state(&self) -> State {
        match self.state.load(Acquire) {
            0 => State::Free,
            1 => State::Open,
            2 => State::Sealed,
            3 => State::Evacuating,
            _ => State::Retired,
        }
    }

    /// Changes the state from `from` to `to`. Panics if it is in a third, which only a fault of
    /// this crate can cause.
    pub fn change(&self, from: State, to: State) {
        let found = self.state.compare_exchange(from as u8, to as u8, AcqRel, Acquire);
        assert!(found.is_ok(), "a segment {from:?} is {:?}", self.state());
    }

    /// Opens a free segment for objects of a kind.
    pub fn open(&self, kind: Kind) {
        self.used.store(0, Relaxed);
        self.failures.store(0, Relaxed);
        self.rests_until_ms.store(0, Relaxed);
        self.set_kind(kind);
        self.change(State::Free, State::Open);
    }

    /// Seals an open segment of which `used` bytes are taken.
    pub fn seal(&self, used: usize, now_ms: u64) {
        self.used.store(used as u32, Relaxed);
        self.sealed_ms.store(now_ms, Relaxed);
        self.change(State::Open, State::Sealed);
    }

    /// Kind of objects that the segment holds.
    pub fn kind(&self) -> Kind {
        match self.kind.load(Relaxed) {
            0 => Kind::Fresh,
            1 => Kind::Hot,
            _ => Kind::Cold,
        }
    }

    /// Sets the kind of objects that the segment holds.
    pub fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Relaxed);
    }

    /// Advice to give about the segment now, if it differs from the last: also for hot objects that
    /// have all cooled down. Only the consolidator calls this.
    pub fn new_advice(&self, cooled: bool) -> Option<Advice> {
        let advice = match (self.state(), self.kind()) {
            (State::Sealed, Kind::Hot) if !cooled => Advice::Hot,
            (State::Sealed, Kind::Hot | Kind::Cold) => Advice::Cold,
            _ => Advice::Normal,
        };
        (self.advised.swap(advice as u8, Relaxed) != advice as u8).then_some(advice)
    }

    /// Bytes that were taken when the segment was sealed.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed) as usize
    }

    /// Bytes of live objects.
    pub fn live(&self) -> usize {
        self.live.load(Acquire) as usize
    }

    /// Adds the bytes of an object that is live now.
    pub fn add_live(&self, bytes: usize) {
        self.live.fetch_add(bytes as u32, AcqRel);
    }

    /// Subtracts the bytes of an object that is no longer live.
    pub fn sub_live(&self, bytes: usize) {
        self.live.fetch_sub(bytes as u32, AcqRel);
    }

    /// Time since the segment was sealed, ms.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.sealed_ms.load(Relaxed))
    }

    /// Whether the segment rests after objects of it could not be moved.
    pub fn rests(&self, now_ms: u64) -> bool {
        now_ms < self.rests_until_ms.load(Relaxed)
    }

    /// Has the segment rest, because objects of it could not be moved: for twice as long each time,
    /// up to a minute.
    pub fn rest(&self, now_ms: u64, first_ms: u64) {
        let failures = self.failures.fetch_add(1, Relaxed).min(16);
        let long = first_ms.checked_shl(failures).unwrap_or(u64::MAX).min(60_000);
        self.rests_until_ms.store(now_ms.saturating_add(long), Relaxed);
    }

    /// Ends the segment's rest.
    pub fn wake(&self) {
        self.rests_until_ms.store(0, Relaxed);
    }

    /// Pins the segment: a thread reads in it beyond epochs.
    pub fn pin(&self) {
        self.pins.fetch_add(1, Acquire);
    }

    /// Ends a pin; false if there was none.
    pub fn unpin(&self) -> bool {
        self.pins.fetch_update(Release, Relaxed, |pins| pins.checked_sub(1)).is_ok()
    }

    /// Whether the segment is pinned.
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Acquire) != 0
    }
}
