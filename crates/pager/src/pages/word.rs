//! The state of one page, in one 64-bit word.
//!
//! ```text
//! bits  0..3   state
//! bits  3..6   refaults: how often the page refaulted soon after its eviction, lately (0–7); of a
//!              page that the CLOCK hand passes, the rounds left to it; of an incompressible page,
//!              how often compression was tried again
//! bits  6..22  when it last left or came back, in ticks of 16 ms, or 0 if it never did (wraps
//!              after 17 minutes: a page may then seem young, or to be back soon, for a second at
//!              most, which only delays its eviction)
//! bits 22..59  Evicted, Cached: a `Location` in the region's store
//!              Staged: the staging slot
//!              Restoring: that of the state before it, Evicted or Staged
//!              Resident: bit 0 if on probation; bit 1 if write-tracked (protected by the CLOCK
//!              hand, to see whether it is written); bits 2 to 4 the refaults that it had when it
//!              came back; the highest bit if paged out (`swapped.rs`), which is a hint; the one
//!              below it if the program discarded the page past the C library (`events.rs`): it may
//!              vanish until it has faulted once
//! bit  59      the page did not compress when it was last tried
//! bits 60..64  in memory only: the exclusive or of all groups of four bits is zero, so that no
//!              flipped bit passes for another state
//! ```
//!
//! The zero word is a page of which nothing is known: [`State::Resident`]. Metadata of untouched
//! memory is therefore untouched itself. A claim to restore an evicted page that put nothing in
//! place is given back (Restoring to Evicted, not drawn). A discard claims evicted pages in the
//! same way, so that faults wait until it is known whether the kernel refuses.
//! [`PageWord::transition`] is the only way to change a state; it refuses every pair of states that
//! is not drawn here.
//!
//! ```text
//!                 mover                mover              mover (stored)
//! ⟲ Resident ────────────▶ Moving ────────────▶ Staged ──────────────────▶ Evicted ⟲ (moved)
//!    ▲  ▲ │                  │                     │                          │
//!    │  │ │ handler (zero)   │ kernel refused      │ handler, mover           │ handler
//!    │  │ └──────────▶ Restoring ◀─────────────────┴──────────────────────────┘
//!    │  └─────────────────┘  │                     │                          │
//!    └───────────────────────┴─────────────────────┴──────────────────────────┘
//!                        contents discarded by the program
//! ```
//!
//! Cached is Resident in all but one thing. A page on probation may keep its compressed copy, so
//! that it need not be compressed again if it leaves unchanged. A thread that claims such a page
//! (Moving) owns the copy, until the page is Evicted with it or the copy is removed. Writes to the
//! page since it came back are not known here. So the copy must not be used until the page has been
//! found to match its checksum.
//!
//! ```text
//! Restoring ─▶ Cached ⟲ (moved within its tier)
//! Cached ⇄ Moving (claimed; the kernel refused)
//! Cached ─▶ Resident (the copy is gone)
//! ```

use std::sync::atomic::{AtomicU64, Ordering::*};
use terrace_policy::eviction::victims::Refault;
use terrace_tiers::Location;

/// Where a page's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The page is in the page table, in the kernel's swap or never touched: only the kernel knows.
    Resident = 0,
    /// Claimed by the mover; a UFFDIO_MOVE out of the page table is under way.
    Moving = 1,
    /// Out of the page table, uncompressed in a staging slot.
    Staged = 2,
    /// Compressed, in the region's store.
    Evicted = 3,
    /// Claimed by a thread that puts the page back, or by a discard.
    Restoring = 4,
    /// Resident and on probation, with a compressed copy in the region's store: of the page's
    /// contents when it came back.
    Cached = 5,
}

/// A snapshot of a page word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Snapshot(pub u64);

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} refaults={} tick={} payload={:#x}",
            self.state(),
            self.refaults(),
            self.tick(),
            self.payload()
        )
    }
}

const REFAULTS_SHIFT: u32 = 3;
const TICK_SHIFT: u32 = 6;
const PAYLOAD_SHIFT: u32 = 22;
const INCOMPRESSIBLE: u64 = 1 << 59;
const PROBATION: u64 = 1;
const WRITE_TRACKED: u64 = 2;
const LEVEL_SHIFT: u32 = 2;
const PAYLOAD_MAX: u64 = (1 << 37) - 1;
/// The bit of a Resident page's payload that says that Terrace paged it out into the kernel's swap.
const SWAPPED: u64 = 1 << 36;
/// The bit of a Resident page's payload that says that the program gave it up.
const DISCARDED: u64 = 1 << 35;
const CHECK_SHIFT: u32 = 60;
/// Milliseconds of one tick, as a shift.
pub const TICK_MS_SHIFT: u32 = 4;

impl Snapshot {
    /// A word of these parts. `payload` must fit in 37 bits.
    pub fn new(state: State, refaults: u32, tick: u16, payload: u64) -> Self {
        debug_assert!(refaults < 8 && payload <= PAYLOAD_MAX);
        Snapshot(
            state as u64
                | u64::from(refaults) << REFAULTS_SHIFT
                | u64::from(tick) << TICK_SHIFT
                | (payload & PAYLOAD_MAX) << PAYLOAD_SHIFT,
        )
    }

    /// The state; `None` for a word that no transition wrote (damaged metadata).
    pub fn state(self) -> Option<State> {
        Some(match self.0 & 7 {
            0 => State::Resident,
            1 => State::Moving,
            2 => State::Staged,
            3 => State::Evicted,
            4 => State::Restoring,
            5 => State::Cached,
            _ => return None,
        })
    }

    /// Whether the page is in this state.
    pub fn is(self, state: State) -> bool {
        self.0 & 7 == state as u64
    }

    fn count(self) -> u32 {
        (self.0 >> REFAULTS_SHIFT & 7) as u32
    }

    /// Recent refaults of the page, 0 to 7; 0 if it is marked incompressible. For a page that the
    /// CLOCK hand passes, the rounds left to it.
    pub fn refaults(self) -> u32 {
        if self.is_incompressible() { 0 } else { self.count() }
    }

    /// How often compression of a page marked incompressible was tried again, 0 to 7; 0 for other
    /// pages.
    pub fn tries(self) -> u32 {
        if self.is_incompressible() { self.count() } else { 0 }
    }

    /// The tick (16 ms) at which the page last left or came back; 0 if it never did.
    pub fn tick(self) -> u16 {
        (self.0 >> TICK_SHIFT) as u16
    }

    /// The 37 bits whose meaning depends on the state: a location, a staging slot, or flags of a
    /// resident page.
    pub fn payload(self) -> u64 {
        self.0 >> PAYLOAD_SHIFT & PAYLOAD_MAX
    }

    /// The word in another state, with another payload, and the same refault history (count, tick
    /// and incompressible mark).
    pub fn with(self, state: State, payload: u64) -> Self {
        Snapshot(
            Snapshot::new(state, self.count(), self.tick(), payload).0 | self.0 & INCOMPRESSIBLE,
        )
    }

    /// The word of a resident page that did not compress at `tick`. Counts one more try if the page
    /// is marked incompressible already.
    pub fn incompressible_at(self, tick: u16) -> Self {
        let tries = if self.is_incompressible() { (self.count() + 1).min(7) } else { 0 };
        Snapshot(Snapshot::new(State::Resident, tries, tick, 0).0 | INCOMPRESSIBLE)
    }

    /// The word of a page that came back at `tick`, with the refaults and the probation of `page`.
    pub fn restored(page: Refault, tick: u16) -> Self {
        let level = u64::from(page.refaults) << LEVEL_SHIFT;
        Snapshot::new(
            State::Resident,
            page.refaults,
            tick,
            level | if page.probation { PROBATION } else { 0 },
        )
    }

    /// The refault count that the page had when it came back. What is left of it in a resident
    /// page's word is its countdown.
    fn level(self) -> u32 {
        match self.state() {
            Some(State::Resident) if !self.is_incompressible() => {
                (self.payload() >> LEVEL_SHIFT & 7) as u32
            }
            _ => self.count(),
        }
    }

    /// The page's word while it is claimed for eviction (`Moving`), with its present refault count.
    pub fn moving(self) -> Self {
        Snapshot(
            Snapshot::new(State::Moving, self.level(), self.tick(), 0).0 | self.0 & INCOMPRESSIBLE,
        )
    }

    /// The word with another count of refaults, and no longer write-tracked.
    pub fn with_refaults(self, refaults: u32) -> Self {
        debug_assert!(refaults < 8 && self.is(State::Resident));
        Snapshot(
            self.0 & !(7 << REFAULTS_SHIFT | WRITE_TRACKED << PAYLOAD_SHIFT)
                | u64::from(refaults) << REFAULTS_SHIFT,
        )
    }

    /// The word with no refaults, and write-tracked.
    pub fn write_tracked(self) -> Self {
        Snapshot(self.with_refaults(0).0 | WRITE_TRACKED << PAYLOAD_SHIFT)
    }

    /// Whether the page is in the page table, as far as is known here.
    pub fn is_present(self) -> bool {
        self.is(State::Resident) || self.is(State::Cached)
    }

    /// Whether the page is on probation.
    pub fn is_on_probation(self) -> bool {
        self.is(State::Resident) && self.payload() & PROBATION != 0 || self.is(State::Cached)
    }

    /// The word of a cached page once its copy is gone: resident and on probation.
    pub fn without_copy(self) -> Self {
        self.with(State::Resident, PROBATION | u64::from(self.refaults()) << LEVEL_SHIFT)
    }

    /// The word as resident and off probation: for a page that stays in place or is put back there.
    pub fn off_probation(self) -> Self {
        let level = if self.is_incompressible() { 0 } else { self.level() };
        self.with(State::Resident, u64::from(level) << LEVEL_SHIFT)
    }

    /// Where the stored copy of a present page is; `None` if it has none.
    pub fn copy(self) -> Option<Location> {
        self.is(State::Cached).then(|| Location::from_bits(self.payload()))
    }

    /// Where the stored bytes of an evicted or cached page are; `None` in other states.
    pub fn stored(self) -> Option<Location> {
        (self.is(State::Evicted) || self.is(State::Cached))
            .then(|| Location::from_bits(self.payload()))
    }

    /// The word of a stored page, with another location of its stored bytes.
    pub fn stored_at(self, location: u64) -> Self {
        debug_assert!(self.stored().is_some() && location <= PAYLOAD_MAX);
        Snapshot(self.0 & !(PAYLOAD_MAX << PAYLOAD_SHIFT) | location << PAYLOAD_SHIFT)
    }

    /// Whether writes to the page are tracked: it is resident and was write-protected by the CLOCK
    /// hand.
    pub fn is_write_tracked(self) -> bool {
        self.is(State::Resident) && self.payload() & WRITE_TRACKED != 0
    }

    /// The page's word, with its present refault count, once it is paged out into the kernel's swap
    /// at `tick`.
    pub fn swapped_at(self, tick: u16) -> Self {
        Snapshot::new(
            State::Resident,
            if self.is_incompressible() { 0 } else { self.level() },
            tick,
            SWAPPED,
        )
    }

    /// Whether the page was paged out into the kernel's swap and has not been seen present since.
    pub fn is_swapped(self) -> bool {
        self.is(State::Resident) && self.payload() & SWAPPED != 0
    }

    /// The word of a resident page, marked as discarded: see [`crate::fault::events`].
    pub fn discarded(self) -> Self {
        debug_assert!(self.is(State::Resident));
        Snapshot(self.0 | DISCARDED << PAYLOAD_SHIFT)
    }

    /// Whether the page is marked as discarded: the kernel may free it at any time.
    pub fn is_discarded(self) -> bool {
        self.is(State::Resident) && self.payload() & DISCARDED != 0
    }

    /// The page's word after a fault: a resident page is no longer marked as discarded.
    pub fn faulted(self) -> Self {
        if self.is(State::Resident) {
            Snapshot(self.0 & !(DISCARDED << PAYLOAD_SHIFT))
        } else {
            self
        }
    }

    /// Whether the page did not compress when it was last tried.
    pub fn is_incompressible(self) -> bool {
        self.0 & INCOMPRESSIBLE != 0
    }

    /// Milliseconds since the page left or came back, at `now_ms`; `u64::MAX` if it never did. Ages
    /// wrap after 17 minutes (see the module). A change up to a second later than `now_ms` has age
    /// 0, because the time may have been read first.
    pub fn age_ms(self, now_ms: u64) -> u64 {
        const LATER: u16 = 0xFFC0;
        if self.tick() == NEVER {
            return u64::MAX;
        }
        let ticks = tick_of(now_ms).wrapping_sub(self.tick());
        if ticks >= LATER { 0 } else { u64::from(ticks) << TICK_MS_SHIFT }
    }
}

/// The tick (16 ms) of a time in ms; never that of a page that never left.
pub fn tick_of(now_ms: u64) -> u16 {
    ((now_ms >> TICK_MS_SHIFT) as u16).max(NEVER + 1)
}

/// The tick of a page that never left or came back.
const NEVER: u16 = 0;

/// The word itself. Valid when zeroed.
#[derive(Default)]
#[repr(transparent)]
pub struct PageWord(AtomicU64);

impl PageWord {
    /// Reads the word. One whose check bits are wrong, which no transition wrote, has no state.
    pub fn load(&self) -> Snapshot {
        opened(self.0.load(Acquire))
    }

    /// Whether the page is in state Evicted: a hint, read without ordering and without the check
    /// bits.
    #[inline]
    pub fn seems_evicted(&self) -> bool {
        self.0.load(Relaxed) & 7 == State::Evicted as u64
    }

    /// Moves the page from `from`, as just read, to `to`. `Err` holds the word found if it was no
    /// longer `from`: another thread changed it first, and this call changed nothing. A pair of
    /// states that the module's drawing does not have is a bug in Terrace. A release build refuses
    /// it in the same way, so that the page stays where its bytes are. A debug build panics.
    pub fn transition(&self, from: Snapshot, to: Snapshot) -> Result<(), Snapshot> {
        if !legal(from.state(), to.state()) {
            debug_assert!(false, "illegal transition {:?} -> {:?}", from.state(), to.state());
            return Err(self.load());
        }
        self.0.compare_exchange(sealed(from), sealed(to), AcqRel, Acquire).map(drop).map_err(opened)
    }

    /// Flips bits past all rules, as a failing memory chip would.
    #[cfg(test)]
    pub(crate) fn damage(&self, bits: u64) {
        self.0.fetch_xor(bits, AcqRel);
    }
}

/// The exclusive or of all groups of four bits.
fn check(bits: u64) -> u64 {
    [32, 16, 8, 4].iter().fold(bits, |bits, half| bits ^ bits >> half) & 15
}

fn sealed(word: Snapshot) -> u64 {
    word.0 | check(word.0) << CHECK_SHIFT
}

fn opened(bits: u64) -> Snapshot {
    Snapshot(if check(bits) == 0 { bits & !(15 << CHECK_SHIFT) } else { bits | 7 })
}

fn legal(from: Option<State>, to: Option<State>) -> bool {
    use State::*;
    let (Some(from), Some(to)) = (from, to) else { return false };
    matches!(
        (from, to),
        (Resident, Resident | Moving | Restoring)
            | (Cached, Cached | Resident | Moving)
            | (Moving, Staged | Resident | Cached)
            | (Staged, Evicted | Restoring | Resident)
            | (Evicted, Evicted | Restoring | Resident)
            | (Restoring, Resident | Cached | Evicted)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_packing() {
        let word = Snapshot::new(State::Evicted, 5, 0xBEEF, PAYLOAD_MAX - 7);
        assert_eq!(
            (word.state(), word.refaults(), word.tick(), word.payload()),
            (Some(State::Evicted), 5, 0xBEEF, PAYLOAD_MAX - 7)
        );
        assert_eq!(Snapshot(0).state(), Some(State::Resident));
        assert_eq!(size_of::<PageWord>(), 8);
    }

    #[test]
    fn a_page_that_was_paged_out_is_resident_and_remembers() {
        let word = Snapshot::restored(Refault { refaults: 3, probation: true }, 7).swapped_at(9);
        assert!(word.is_swapped() && word.is(State::Resident) && !word.is_on_probation());
        assert_eq!((word.refaults(), word.tick()), (3, 9));
        assert!(!word.with(State::Resident, 0).is_swapped() && !Snapshot(0).is_swapped());
        assert!(!Snapshot::new(State::Evicted, 0, 0, PAYLOAD_MAX).is_swapped());
    }

    #[test]
    fn a_page_leaves_with_the_returns_that_it_came_back_with() {
        let mut page = Snapshot::restored(Refault { refaults: 3, probation: false }, 9);
        for left in [2, 1] {
            page = page.with_refaults(left);
            assert_eq!((page.refaults(), page.moving().refaults()), (left, 3));
        }
        page = page.write_tracked();
        assert_eq!((page.refaults(), page.moving().refaults(), page.moving().payload()), (0, 3, 0));
        let on_probation = Snapshot::restored(Refault { refaults: 2, probation: true }, 9);
        assert_eq!(
            (on_probation.moving().refaults(), on_probation.off_probation().moving().refaults()),
            (2, 2)
        );
        assert!(!on_probation.off_probation().is_on_probation());
        assert_eq!(
            on_probation.with(State::Cached, 77).off_probation(),
            on_probation.off_probation()
        );
    }

    /// A page that never left has no age, whatever its word remembers of the CLOCK hand's passing.
    /// Otherwise all memory that was never out would seem young for seconds, whenever the ticks
    /// wrap.
    #[test]
    fn what_never_left_is_never_young() {
        let known = Snapshot(0).with_refaults(3);
        for now_ms in (0..1u64 << 16).map(|tick| tick << TICK_MS_SHIFT) {
            for word in [
                Snapshot(0),
                Snapshot(0).write_tracked(),
                known,
                known.moving(),
                known.off_probation(),
            ] {
                assert_eq!(word.age_ms(now_ms), u64::MAX, "{word:?} at {now_ms} ms");
            }
            let back =
                Snapshot::restored(Refault { refaults: 1, probation: false }, tick_of(now_ms));
            assert_eq!((back.age_ms(now_ms), back.age_ms(now_ms.saturating_sub(900))), (0, 0));
            assert!(back.age_ms(now_ms + 100) <= 112 && back.age_ms(now_ms + 100) >= 80);
        }
    }

    #[test]
    fn tries_are_counted_while_a_page_does_not_compress() {
        let word = Snapshot::new(State::Resident, 5, 7, 0).incompressible_at(8);
        assert_eq!((word.refaults(), word.tries(), word.tick()), (0, 0, 8));
        let word = word.with(State::Staged, 3).incompressible_at(9);
        assert_eq!((word.refaults(), word.tries(), word.state()), (0, 1, Some(State::Resident)));
        assert_eq!((0..20).fold(word, |word, _| word.incompressible_at(9)).tries(), 7);
    }

    #[test]
    fn a_lost_race_changes_nothing() {
        let word = PageWord::default();
        let moving = Snapshot(0).with(State::Moving, 0);
        word.transition(Snapshot(0), moving).unwrap();
        assert!(word.transition(Snapshot(0), moving).is_err());
        assert!(word.load().is(State::Moving));
    }

    #[test]
    fn a_flipped_bit_leaves_no_state() {
        for state in [State::Resident, State::Evicted, State::Cached] {
            let word = PageWord(AtomicU64::new(sealed(Snapshot::new(state, 5, 0xBEEF, 12345))));
            assert_eq!(word.load().state(), Some(state));
            for bit in 0..64 {
                word.damage(1 << bit);
                assert_eq!(word.load().state(), None, "bit {bit}");
                word.damage(1 << bit);
            }
        }
    }

    #[test]
    fn only_the_drawn_transitions_are_legal() {
        use State::*;
        let all = [Resident, Moving, Staged, Evicted, Restoring, Cached];
        let count = all
            .iter()
            .flat_map(|a| all.iter().map(move |b| (*a, *b)))
            .filter(|(a, b)| legal(Some(*a), Some(*b)))
            .count();
        assert_eq!(count, 18);
        assert!(!legal(Some(Cached), Some(Evicted)), "it may have been written since");
        assert!(!legal(Some(Resident), Some(Evicted)), "contents would appear from nowhere");
        assert!(!legal(Some(Restoring), Some(Staged)), "its slot may be emptied");
        assert!(!legal(None, Some(Resident)));
    }
}
