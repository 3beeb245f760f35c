//! Consolidation in slices of time: scan the marks of all objects, choose segments, empty them.
//!
//! A round is a scan of the marks, a list of victims, and their evacuation. It reads objects only
//! where they move, and none whose page is not in memory unless its whole segment is rewritten.
//! After a round it pauses: for longer each time while rounds move next to nothing. The next scan
//! then finds heat that has moved.

use crate::classifier::Classifier;
use crate::counters::Counters;
use crate::epoch::Stamp;
use crate::evacuation::Evacuation;
use crate::heap::Heap;
use crate::marks::{GRANULE, HEATS};
use crate::policy::{self, Candidate, Choice, Contents, Situation};
use crate::relocate::Relocate;
use crate::segment::{Kind, State};
use crate::slice::Slice;
use crate::throttle::{Pauses, Throttle};
use std::cmp::Ordering as Order;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Share of the bytes that counts as hot where all is in memory, so that heats tell something once
/// pages leave.
const HOT_SHARE: f64 = 0.2;
/// Share of resident memory above which nothing seems to move pages out.
const ALL_RESIDENT: f64 = 0.95;
/// One sealed segment in this many is asked for its resident pages.
const RESIDENCY_SAMPLED: usize = 8;

/// How much is done, and for what.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How victims are chosen.
    pub choice: Choice,
    /// Bytes of objects that are to be hot: what the fast memory has room for. `None`: as many as
    /// are in memory.
    ///
    /// Where all objects are in memory, or fit, only dead memory is collected. Over NUMA nodes all
    /// are in memory, so the number must be set there.
    pub hot_bytes: Option<u64>,
    /// Maximum of bytes moved in a second.
    pub bytes_per_s: u64,
    /// Maximum share of one CPU's time, 0 to 1, waits for pages included.
    pub cpu_share: f64,
    /// Cost of a touch whose page is not in fast memory, ns (zram lz4: 16,000).
    pub fault_ns: f64,
    /// Time for which a move is assumed to pay.
    pub horizon: Duration,
    /// Time from one round to the next while objects move.
    pub pause: Duration,
    /// Longest time between two rounds, when nothing pays.
    pub longest_pause: Duration,
    /// Maximum bytes of segments that are empty, but may still be read by a thread.
    pub limbo_bytes: usize,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            choice: Choice::CostBenefit,
            hot_bytes: None,
            bytes_per_s: 64 << 20,
            cpu_share: 0.02,
            fault_ns: 16_000.0,
            horizon: Duration::from_secs(60),
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(16),
            limbo_bytes: 64 << 20,
        }
    }
}

/// What a step found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More work is left now.
    Working,
    /// The share of time or bytes is used up, or readers hold too much of what was emptied.
    Waiting,
    /// The consolidator pauses between two rounds.
    Resting,
}

enum Phase {
    Resting {
        until_ms: u64,
    },
    Scanning(Box<Scan>),
    /// Judging what the scan found, segment by segment.
    Choosing {
        found: std::vec::IntoIter<(u32, Contents)>,
        victims: BinaryHeap<Victim>,
    },
    Emptying {
        victims: BinaryHeap<Victim>,
        at: Option<Evacuation>,
    },
}

/// A segment that may be emptied, and what was found in it. The best compares as the largest.
struct Victim {
    candidate: Candidate,
    contents: Contents,
}

impl Ord for Victim {
    fn cmp(&self, other: &Victim) -> Order {
        self.candidate.order.total_cmp(&other.candidate.order)
    }
}

impl PartialOrd for Victim {
    fn partial_cmp(&self, other: &Victim) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Victim {
    fn eq(&self, other: &Victim) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for Victim {}

/// What a scan has found so far.
#[derive(Default)]
struct Scan {
    next: u32,
    bytes: [u64; HEATS],
    /// Bytes whose heat the program set, by heat.
    ranked: [u64; HEATS],
    objects: u64,
    used: u64,
    sampled_pages: (u64, u64),
    found: Vec<(u32, Contents)>,
}

/// Moves objects of one heap. One thread owns it, and calls [`Consolidator::step`]. It keeps its
/// own place within a round.
pub struct Consolidator {
    pub(crate) heap: Arc<Heap>,
    pub(crate) rules: Rules,
    pub(crate) counters: Counters,
    /// The open segments for hot and for cold objects, and bytes used in them.
    pub(crate) open: [Option<(u32, usize)>; 2],
    pub(crate) limbo: VecDeque<(u32, Stamp)>,
    /// How often an object was busy, while callbacks are checked.
    pub(crate) busy: HashMap<usize, u32>,
    /// Granules of objects that could not be moved when they were touched, until the next scan.
    pub(crate) immovable: HashSet<usize>,
    /// Segment of the evacuation under way, while it is; it stays after a panic.
    pub(crate) evacuating: Option<u32>,
    phase: Phase,
    throttle: Throttle,
    pauses: Pauses,
    classifier: Classifier,
    /// Whether moving hot objects gains anything, beyond the dead memory collected on the way.
    pays: bool,
    moved_before: u64,
    random: u64,
    pages: Vec<u8>,
}

impl Consolidator {
    /// Makes a consolidator for a heap. Panics if the heap has one already: two would move the same
    /// objects.
    pub fn new(heap: Arc<Heap>, rules: Rules) -> Consolidator {
        assert!(heap.begin_consolidation(), "the heap has a consolidator already");
        let limbo = heap.take_limbo();
        Consolidator {
            throttle: Throttle::new(rules.cpu_share, rules.bytes_per_s),
            pauses: Pauses::new(rules.pause, rules.longest_pause),
            classifier: Classifier::new(
                rules.fault_ns,
                rules.horizon,
                heap.sampling(),
                heap.now_ms(),
            ),
            heap,
            rules,
            counters: Counters::default(),
            open: [None; 2],
            limbo,
            busy: HashMap::new(),
            immovable: HashSet::new(),
            evacuating: None,
            phase: Phase::Scanning(Box::default()),
            pays: false,
            moved_before: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            pages: Vec::new(),
        }
    }

    /// The heap.
    pub fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Least heat, 1 to 3, of objects that are hot now.
    pub fn hot_from(&self) -> u8 {
        self.classifier.scale().hot_from
    }

    /// Works for about `budget`: 200 to 500 µs where requests wait meanwhile. Call it often, under
    /// no lock that the callback takes. It returns at once where nothing is to be done.
    pub fn step(&mut self, relocate: &mut dyn Relocate, budget: Duration) -> Progress {
        self.leave_panicked();
        let slice = Slice::begin(budget);
        // A look at the clock each time: to give a segment back takes far longer.
        self.give_back(|| slice.spent() >= budget);
        let limbo = self.limbo.len() * self.heap.settings().segment_bytes;
        if !self.throttle.has_room() || limbo > self.rules.limbo_bytes {
            return Progress::Waiting;
        }
        let (steps, bytes) = (self.counters.steps, self.counters.moved_bytes);
        self.counters.steps = steps + 1;
        self.move_seen(relocate, &slice);
        let mut progress = Progress::Working;
        while progress == Progress::Working && !slice.should_stop() {
            progress = self.advance(relocate, &slice);
        }
        self.throttle.charge(slice.spent(), self.counters.moved_bytes - bytes);
        progress
    }

    /// Begins a round now, whatever it was doing. The round includes segments that rest because
    /// objects of them could not be moved. An evacuation under way is ended first.
    pub fn wake(&mut self) {
        self.heap.wake();
        if let Phase::Resting { .. } = self.phase {
            self.phase = Phase::Scanning(Box::default());
        }
    }

    /// Works on a thread of its own until `stop` says so. For programs whose callback takes locks
    /// that other threads hold briefly.
    pub fn run(&mut self, relocate: &mut dyn Relocate, budget: Duration, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            if self.step(relocate, budget) != Progress::Working {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn advance(&mut self, relocate: &mut dyn Relocate, slice: &Slice) -> Progress {
        match std::mem::replace(&mut self.phase, Phase::Resting { until_ms: 0 }) {
            Phase::Resting { until_ms } if self.heap.now_ms() < until_ms => {
                self.phase = Phase::Resting { until_ms };
                return Progress::Resting;
            }
            Phase::Resting { .. } => self.phase = Phase::Scanning(Box::default()),
            Phase::Scanning(mut scan) if scan.next < self.heap.count() => {
                self.look(&mut scan);
                self.phase = Phase::Scanning(scan);
            }
            Phase::Scanning(scan) => self.classify_scan(*scan),
            Phase::Choosing { mut found, mut victims } => {
                self.phase = match found.next() {
                    Some((index, contents)) => {
                        victims.extend(self.consider(index, contents));
                        Phase::Choosing { found, victims }
                    }
                    None => Phase::Emptying { victims, at: None },
                };
            }
            Phase::Emptying { victims, at: Some(at) } => {
                let at = self.evacuate(at, relocate, slice);
                self.phase = Phase::Emptying { victims, at };
            }
            Phase::Emptying { mut victims, at: None } => match victims.pop() {
                Some(Victim { candidate, contents }) => {
                    let at = self.begin(candidate, &contents);
                    self.phase = Phase::Emptying { victims, at };
                }
                None => self.rest(),
            },
        }
        Progress::Working
    }

    /// Scans a segment.
    fn look(&mut self, scan: &mut Scan) {
        let index = scan.next;
        scan.next += 1;
        let segment = self.heap.segment(index);
        if matches!(segment.state(), State::Free | State::Retired) {
            return;
        }
        if self.classifier.decays() {
            self.heap.decay(index);
        }
        let mut contents = Contents::default();
        self.heap.each_live(index, 0, |granule, bytes| {
            let heat = usize::from(self.heap.clock().heat(granule));
            contents.bytes[heat] += bytes as u32;
            contents.objects[heat] += 1;
            if self.heap.is_ranked(granule) {
                scan.ranked[heat] += bytes as u64;
            }
            true
        });
        for (sum, bytes) in scan.bytes.iter_mut().zip(contents.bytes) {
            *sum += u64::from(bytes);
        }
        scan.objects += contents.objects.iter().map(|n| u64::from(*n)).sum::<u64>();
        scan.used += self.heap.settings().segment_bytes as u64;
        if self.heap.segment(index).state() == State::Sealed {
            if scan.found.len().is_multiple_of(RESIDENCY_SAMPLED) {
                let missing = self.missing_pages(index);
                scan.sampled_pages.0 += self.pages.len() as u64 - u64::from(missing);
                scan.sampled_pages.1 += self.pages.len() as u64;
            }
            scan.found.push((index, contents));
        }
    }

    pub(crate) fn missing_pages(&mut self, index: u32) -> u32 {
        let mut pages = std::mem::take(&mut self.pages);
        self.heap.residency(index, &mut pages);
        let missing = pages.iter().filter(|page| **page & 1 == 0).count() as u32;
        self.pages = pages;
        missing
    }

    /// Whether all pages of a part of a segment were in memory when last asked.
    pub(crate) fn is_resident(&self, granule: usize, bytes: usize) -> bool {
        let within = granule * GRANULE % self.heap.settings().segment_bytes;
        let pages = within / crate::area::PAGE..=(within + bytes - 1) / crate::area::PAGE;
        pages.into_iter().all(|page| self.pages.get(page).is_none_or(|page| page & 1 == 1))
    }

    /// Ends a scan: decides what is hot, and whether moving it pays.
    fn classify_scan(&mut self, scan: Scan) {
        self.counters.scans += 1;
        self.immovable.clear();
        let now = self.heap.now_ms();
        let live: u64 = scan.bytes.iter().sum();
        let resident = match scan.sampled_pages {
            (_, 0) => 1.0,
            (resident, all) => resident as f64 / all as f64,
        };
        let hot_bytes = self.rules.hot_bytes.unwrap_or(match resident > ALL_RESIDENT {
            true => (live as f64 * HOT_SHARE) as u64,
            false => (scan.used as f64 * resident) as u64,
        });
        // Where all bytes are in fast memory, or fit, hot objects need no room of others. The
        // paper's choices do not ask what is gained.
        let fits = self.rules.hot_bytes.map_or(resident > ALL_RESIDENT, |hot| hot >= scan.used);
        self.pays = !fits || self.rules.choice != Choice::CostBenefit;
        let tells = self.classify(&scan, hot_bytes, now);
        self.heap.sample(self.classifier.sampling());
        if !tells {
            self.phase = Phase::Scanning(Box::default());
            return;
        }
        self.heap.note_from(self.noted_from());
        self.counters.live_bytes = live;
        self.moved_before = self.counters.moved_bytes;
        self.phase = Phase::Choosing { found: scan.found.into_iter(), victims: BinaryHeap::new() };
    }

    /// Advises Terrace of what a segment holds. Returns the segment if it may be emptied.
    fn consider(&mut self, index: u32, contents: Contents) -> Option<Victim> {
        if self.heap.segment(index).state() == State::Sealed {
            let cooled = policy::has_cooled(&contents, self.classifier.scale());
            self.heap.advise(index, cooled);
        }
        let candidate = self.judge(index, &contents, 0, self.heap.now_ms())?;
        Some(Victim { candidate, contents })
    }

    /// Sets what heats mean after a scan. False if they are to decay first. What the program ranked
    /// hot stays so: other objects share what it leaves of `hot_bytes`.
    fn classify(&mut self, scan: &Scan, hot_bytes: u64, now_ms: u64) -> bool {
        let mut counted = scan.bytes;
        for (bytes, ranked) in counted.iter_mut().zip(scan.ranked) {
            *bytes -= ranked;
        }
        counted[0] += scan.ranked.iter().sum::<u64>();
        let left = hot_bytes.saturating_sub(scan.ranked[HEATS - 1]);
        self.classifier.scanned(&counted, scan.objects, left, now_ms)
    }

    /// From which heat on an object is worth moving by itself, as it is touched.
    fn noted_from(&self) -> Option<u8> {
        let asks = self.pays && self.rules.choice == Choice::CostBenefit;
        self.classifier.pays_from().filter(|_| asks)
    }

    fn judge(
        &mut self,
        index: u32,
        contents: &Contents,
        missing_pages: u32,
        now_ms: u64,
    ) -> Option<Candidate> {
        let segment = self.heap.segment(index);
        if segment.rests(now_ms) || segment.is_pinned() || segment.state() != State::Sealed {
            return None;
        }
        let situation = Situation {
            segment: index,
            kind: segment.kind(),
            used: segment.used(),
            age_s: segment.age_ms(now_ms) as f64 / 1000.0,
            missing_pages,
        };
        if !self.pays {
            return policy::mostly_dead(&situation, contents);
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let chance = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        policy::judge(self.rules.choice, &situation, contents, self.classifier.scale(), chance)
    }

    /// Begins with a victim, if it still is one now that its resident pages are known.
    fn begin(&mut self, candidate: Candidate, contents: &Contents) -> Option<Evacuation> {
        let index = candidate.segment;
        let missing = self.missing_pages(index);
        let candidate = self.judge(index, contents, missing, self.heap.now_ms())?;
        self.heap.segment(index).change(State::Sealed, State::Evacuating);
        let kind = self.heap.segment(index).kind();
        let hot_from = policy::hot_from(kind, self.classifier.scale());
        Some(Evacuation::begin(index, candidate.plan, hot_from))
    }

    /// Ends a round.
    fn rest(&mut self) {
        let moved = self.counters.moved_bytes - self.moved_before;
        let pause_ms = self.pauses.after(moved, self.counters.live_bytes);
        self.phase = Phase::Resting { until_ms: self.heap.now_ms() + pause_ms };
    }

    /// Retires an emptied segment: it waits for readers from before.
    pub(crate) fn retire(&mut self, index: u32) {
        self.heap.segment(index).change(State::Evacuating, State::Retired);
        self.limbo.push_back((index, self.heap.epochs().retire()));
        // Other objects may have its granules next.
        let places = self.heap.granules(index);
        self.busy.retain(|granule, _| !places.contains(granule));
        self.immovable.retain(|granule| !places.contains(granule));
        self.counters.emptied_segments += 1;
    }

    /// Gives back emptied segments that no reader uses any more, until it is to stop.
    fn give_back(&mut self, should_stop: impl Fn() -> bool) {
        for _ in 0..self.limbo.len() {
            let Some((index, stamp)) = self.limbo.pop_front() else { return };
            if !self.heap.epochs().is_over(stamp) {
                // Those behind it were retired later.
                self.limbo.push_front((index, stamp));
                return;
            }
            if self.heap.segment(index).is_pinned() {
                self.limbo.push_back((index, stamp));
                continue;
            }
            // SAFETY: all readers from before are gone, and no pin is left. None can come since no
            // object of it is live: every reference names a copy.
            unsafe { self.heap.give_back(index) };
            if should_stop() {
                return;
            }
        }
    }

    /// Kind of the open segment by its number.
    pub(crate) fn kind_of(open: usize) -> Kind {
        if open == 0 { Kind::Hot } else { Kind::Cold }
    }
}

impl Drop for Consolidator {
    /// Seals open segments, so that the next consolidator finds them. The heap keeps emptied
    /// segments that were not given back yet for it.
    fn drop(&mut self) {
        for (index, used) in self.open.iter_mut().filter_map(Option::take) {
            self.heap.segment(index).seal(used, self.heap.now_ms());
            self.heap.advise(index, false);
        }
        if let Phase::Emptying { at: Some(at), .. } = &self.phase {
            self.heap.segment(at.index()).change(State::Evacuating, State::Sealed);
        }
        self.leave_panicked();
        self.give_back(|| false);
        self.heap.end_consolidation(std::mem::take(&mut self.limbo));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::advice::Adviser;
    use crate::heap::Settings;
    use crate::relocate::{Object, Outcome, Paper};
    use std::cell::RefCell;
    use std::ffi::c_int;
    use std::ptr::NonNull;

    const OBJECTS: usize = 4000;
    const BYTES: usize = 128;

    /// Where a range begins, its bytes, and the advice about it.
    type Told = (usize, usize, c_int);

    thread_local!(static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) });

    unsafe extern "C" fn listen(start: *const u8, bytes: usize, advice: c_int) -> c_int {
        TOLD.with_borrow_mut(|told| told.push((start as usize, bytes, advice)));
        0
    }

    fn told() -> HashMap<usize, Vec<c_int>> {
        let mut by_segment: HashMap<_, Vec<_>> = HashMap::new();
        for (start, bytes, advice) in TOLD.take() {
            assert_eq!(bytes, Settings::default().segment_bytes);
            by_segment.entry(start).or_default().push(advice);
        }
        by_segment
    }

    /// Ranks one object in seven hot, and works until nothing pays.
    fn settle(heap: &Arc<Heap>, objects: &mut [NonNull<u8>], hot: usize) {
        for (number, object) in objects.iter().enumerate() {
            heap.rank(*object, if number % 7 == hot { 3 } else { 0 });
        }
        let rules = Rules {
            bytes_per_s: u64::MAX,
            cpu_share: 1.0,
            horizon: Duration::from_secs(1 << 30),
            hot_bytes: Some((OBJECTS * BYTES / 5) as u64),
            pause: Duration::ZERO,
            ..Rules::default()
        };
        let mut consolidator = Consolidator::new(heap.clone(), rules);
        let relocate = |object: NonNull<u8>, room: NonNull<u8>, bytes| {
            // SAFETY: objects of this test begin with a number, and the room is as large.
            let number = unsafe {
                room.copy_from_nonoverlapping(object, bytes);
                object.cast::<u64>().read() as usize
            };
            objects[number] = room;
            true
        };
        // SAFETY: it says true only where the one reference names a whole copy.
        let mut relocate = unsafe { Paper::new(relocate) };
        // The age of a new segment counts against moving it.
        std::thread::sleep(Duration::from_millis(5));
        while consolidator.step(&mut relocate, Duration::from_millis(5)) != Progress::Resting {}
    }

    #[test]
    fn who_listens_is_told_once_what_each_segment_holds() {
        let heap = Heap::new(Settings { capacity: 8 << 20, ..Settings::default() }).unwrap();
        assert!(!Adviser::find().is_there(), "nobody listens in a test");
        let heap = Arc::new(heap.advised_by(Adviser::by(listen)));
        let mut objects: Vec<_> = (0..OBJECTS)
            .map(|number| {
                let object = heap.allocate(BYTES).unwrap();
                // SAFETY: ours alone, and large enough.
                unsafe {
                    object.cast::<u64>().write(number as u64);
                    heap.ready(object);
                }
                object
            })
            .collect();
        settle(&heap, &mut objects, 0);
        let first = told();
        assert!(first.len() > 5, "{first:?}");
        for (segment, advice) in &first {
            let index = (segment - heap.object_at(0, 0, 0).start.as_ptr() as usize)
                / heap.settings().segment_bytes;
            let kind = heap.segment(index as u32).kind();
            assert_eq!(*advice, [if kind == Kind::Hot { 1 } else { 2 }], "{segment:x}");
        }
        assert!(first.values().any(|advice| *advice == [1]), "{first:?}");
        settle(&heap, &mut objects, 0);
        assert!(told().is_empty(), "nothing has changed");
        // Hot objects have moved: no segment gets the same advice twice in a row.
        settle(&heap, &mut objects, 3);
        let second = told();
        assert!(!second.is_empty());
        for (segment, advice) in second {
            let before = first.get(&segment).into_iter().flatten().chain(&advice);
            let all: Vec<_> = before.collect();
            assert!(all.windows(2).all(|two| two[0] != two[1]), "{segment:x}: {all:?}");
        }
    }

    /// A heap of objects that begin with their number, and where they are.
    fn filled() -> (Arc<Heap>, Vec<NonNull<u8>>) {
        filled_with(Settings { capacity: 8 << 20, ..Settings::default() })
    }

    fn filled_with(settings: Settings) -> (Arc<Heap>, Vec<NonNull<u8>>) {
        let heap = Heap::new(settings).unwrap();
        let objects = (0..OBJECTS)
            .map(|number| {
                let object = heap.allocate(BYTES).unwrap();
                // SAFETY: ours alone, and large enough.
                unsafe {
                    object.cast::<u64>().write(number as u64);
                    heap.ready(object);
                }
                object
            })
            .collect();
        (Arc::new(heap), objects)
    }

    /// Rules under which objects move, whatever that gains.
    fn eager() -> Rules {
        Rules {
            choice: Choice::Greedy,
            bytes_per_s: u64::MAX,
            cpu_share: 1.0,
            hot_bytes: Some((OBJECTS * BYTES / 5) as u64),
            pause: Duration::ZERO,
            ..Rules::default()
        }
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn a_callback_that_panics_loses_nothing() {
        let (heap, mut objects) = filled();
        for (number, object) in objects.iter().enumerate() {
            heap.rank(*object, if number % 3 == 0 { 3 } else { 0 });
        }
        let mut consolidator = Consolidator::new(heap.clone(), eager());
        let mut calls = 0;
        let relocate = |object: NonNull<u8>, room: NonNull<u8>, bytes| {
            calls += 1;
            assert_ne!(calls, 100, "a fault of the callback's");
            // SAFETY: objects of this test begin with a number, and the room is as large.
            let number = unsafe {
                room.copy_from_nonoverlapping(object, bytes);
                object.cast::<u64>().read() as usize
            };
            objects[number] = room;
            true
        };
        // SAFETY: it says true only where the one reference names a whole copy.
        let mut relocate = unsafe { Paper::new(relocate) };
        let mut step = || consolidator.step(&mut relocate, LONG);
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut step));
        assert!(failed.is_err());
        while step() != Progress::Resting {}
        assert!(calls > 200, "it went on: {calls}");
        for (number, object) in objects.iter().enumerate() {
            // SAFETY: written by `filled`, and moved whole.
            assert_eq!(unsafe { object.cast::<u64>().read() }, number as u64);
        }
        // The room that it had is not known to be unused.
        assert_eq!(heap.usage().live_bytes, ((OBJECTS + 1) * BYTES) as u64);
    }

    /// As a callback that finds the reference of the copy, and fails once.
    struct Fails<'table> {
        objects: &'table mut Vec<NonNull<u8>>,
        asked: u32,
    }

    // SAFETY: it says Moved only where the one reference names a whole copy.
    unsafe impl Relocate for Fails<'_> {
        unsafe fn relocate(&mut self, object: Object, room: Object, _: &Slice) -> Outcome {
            // SAFETY: objects of this test begin with a number, and the room is as large.
            let number = unsafe {
                room.start.copy_from_nonoverlapping(object.start, object.bytes);
                object.start.cast::<u64>().read() as usize
            };
            self.objects[number] = room.start;
            Outcome::Moved { used: object.bytes }
        }

        unsafe fn reference(&mut self, copy: Object) -> Option<NonNull<u8>> {
            self.asked += 1;
            assert_ne!(self.asked, 100, "the key is gone");
            Some(copy.start)
        }
    }

    #[test]
    fn a_reference_that_panics_loses_nothing() {
        let settings = Settings { capacity: 8 << 20, check_callbacks: true, ..Settings::default() };
        let (heap, mut objects) = filled_with(settings);
        for (number, object) in objects.iter().enumerate() {
            heap.rank(*object, if number % 3 == 0 { 3 } else { 0 });
        }
        let mut consolidator = Consolidator::new(heap.clone(), eager());
        let mut fails = Fails { objects: &mut objects, asked: 0 };
        let mut step = || consolidator.step(&mut fails, LONG);
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut step));
        assert!(failed.is_err());
        while step() != Progress::Resting {}
        assert!(fails.asked > 200, "it went on: {}", fails.asked);
        for (number, object) in objects.iter().enumerate() {
            // SAFETY: written by `filled`, and moved whole.
            assert_eq!(unsafe { object.cast::<u64>().read() }, number as u64);
        }
        assert_eq!(heap.usage().live_bytes, (OBJECTS * BYTES) as u64);
    }

    #[test]
    fn emptied_segments_are_given_back_for_as_long_as_there_is_time() {
        let (heap, objects) = filled();
        let mut consolidator = Consolidator::new(heap.clone(), eager());
        for object in objects {
            // SAFETY: no thread looks at it.
            unsafe { heap.free(object) };
        }
        for index in 0..3 {
            heap.segment(index).change(State::Sealed, State::Evacuating);
            consolidator.retire(index);
        }
        let asked = std::cell::Cell::new(0);
        consolidator.give_back(|| asked.replace(asked.get() + 1) == 1);
        assert_eq!(consolidator.limbo.len(), 1);
        assert_eq!([1, 2].map(|index| heap.segment(index).state()), [State::Free, State::Retired]);
    }

    #[test]
    fn an_object_that_cannot_move_is_not_asked_at_each_touch() {
        struct Never(u32);
        // SAFETY: it never says that it moved anything.
        unsafe impl Relocate for Never {
            unsafe fn relocate(&mut self, _: Object, _: Object, _: &Slice) -> Outcome {
                self.0 += 1;
                Outcome::Immovable
            }
        }
        let (heap, objects) = filled();
        let mut consolidator = Consolidator::new(heap.clone(), eager());
        heap.note_from(Some(1));
        let mut never = Never(0);
        for _ in 0..20 {
            heap.touch(objects[0]);
            consolidator.move_seen(&mut never, &Slice::begin(LONG));
        }
        assert_eq!(never.0, 1);
    }
}
