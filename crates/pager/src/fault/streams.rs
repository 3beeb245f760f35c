//! Detects streams, faults that go page by page, and how far ahead of each to restore.
//!
//! Accesses to pages restored ahead are not seen. A next fault just past the last of them proves
//! that they were used; then twice as many may be restored. If a stream ends with restored pages
//! ahead of it, those were in vain. From then on other streams must be longer before anything is
//! restored ahead of them.

use std::ops::RangeInclusive;

/// Most pages ahead of a stream.
pub(crate) const AHEAD_MAX: usize = 16;
/// A fault at most this many pages from a stream's front may be the stream's.
const NEAR: usize = AHEAD_MAX;
/// Streams remembered; more than threads fault at a time on one userfaultfd.
const STREAMS: usize = 64;
/// A stream with pages ahead of it seldom faults: it stays while others are replaced.
const CHANCES: u8 = 4;
/// Faults in order, after the first, before pages are restored ahead: no object of two pages makes
/// as many.
const LENGTH_MIN: u32 = 2;
/// The least number of faults in order after streams that ended too soon.
const LENGTH_MAX: u32 = 32;
/// Pages ahead of a stream that has just become long enough.
const AHEAD_MIN: usize = 2;

/// A stream. Pages are identified by number: address divided by page size.
#[derive(Clone, Copy)]
struct Stream {
    /// The last page that faulted or, if there are any, the last that was restored ahead.
    front: usize,
    /// `None` until there is a second fault.
    up: Option<bool>,
    /// Faults in order, after the first.
    length: u32,
    /// Pages that may be ahead of it.
    most: usize,
    /// Pages between its last fault and its front.
    ahead: usize,
    /// How many times the CLOCK hand passes over it.
    chances: u8,
}

/// What a fault means for the streams.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The stream, if it is long enough for pages to be restored ahead of it.
    pub ready: Option<usize>,
    /// How many pages that were restored ahead were used.
    pub hits: usize,
}

/// The streams of one userfaultfd.
pub(crate) struct Streams {
    streams: [Stream; STREAMS],
    /// The low bits of their fronts: a fault outside of every stream looks at nothing else.
    fronts: [u32; STREAMS],
    hand: usize,
    /// How long a stream must be before pages are restored ahead of it.
    length: u32,
}

impl Streams {
    pub fn new() -> Self {
        let none = Stream { front: usize::MAX, up: None, length: 0, most: 0, ahead: 0, chances: 0 };
        Streams {
            streams: [none; STREAMS],
            fronts: [u32::MAX; STREAMS],
            hand: 0,
            length: LENGTH_MIN,
        }
    }

    /// Notes a fault on a page that is about to be served. `resident` says whether a page needs no
    /// restoring.
    pub fn note(&mut self, page: usize, resident: impl Fn(usize) -> bool) -> Noted {
        let near = |front: &u32| {
            front.wrapping_sub(page as u32).wrapping_add(NEAR as u32) <= 2 * NEAR as u32
        };
        // Without a branch, so that one instruction does many.
        if !self.fronts.iter().fold(false, |any, front| any | near(front)) {
            self.begin(page);
            return Noted::default();
        }
        let distances = self.streams.iter().map(|stream| stream.front.abs_diff(page));
        let (index, distance) =
            distances.enumerate().min_by_key(|(_, distance)| *distance).unwrap_or_default();
        if distance > NEAR {
            self.begin(page);
            return Noted::default();
        }
        let stream = &mut self.streams[index];
        if page == stream.front && stream.ahead == 0 {
            // Two threads faulted on one page.
            return Noted::default();
        }
        let up = stream.up.unwrap_or(page > stream.front);
        let behind_front = if up { page <= stream.front } else { page >= stream.front };
        if behind_front && distance < stream.ahead && resident(page) {
            // The fault came before its page was restored.
            let hits = stream.ahead - distance;
            (stream.ahead, stream.chances) = (distance, CHANCES);
            return Noted { ready: Some(index), hits };
        }
        let between = if up { stream.front + 1..page } else { page + 1..stream.front };
        if behind_front || !between.into_iter().all(resident) {
            self.fail(index);
            self.set(
                index,
                Stream { front: page, up: None, length: 0, most: 0, ahead: 0, chances: 0 },
            );
            return Noted::default();
        }
        let hits = stream.ahead;
        let length = stream.length + 1;
        if hits > 0 {
            self.length = (self.length / 2).max(LENGTH_MIN);
        }
        let most = if length < self.length && stream.most == 0 {
            0
        } else {
            (stream.most * 2).clamp(AHEAD_MIN, AHEAD_MAX)
        };
        self.set(
            index,
            Stream { front: page, up: Some(up), length, most, ahead: 0, chances: CHANCES },
        );
        Noted { ready: (most > 0).then_some(index), hits }
    }

    /// The pages to restore ahead of a stream, where not yet restored, and whether it goes up. They
    /// are nearest first if it goes up, else nearest last. `None` if there are enough.
    pub fn wanted(&self, index: usize) -> Option<(RangeInclusive<usize>, bool)> {
        let Stream { front, up, most, ahead, .. } = self.streams[index];
        let count = most.saturating_sub(ahead);
        let up = up.filter(|_| count > 0)?;
        Some(if up {
            (front + 1..=front + count, true)
        } else {
            (front.saturating_sub(count)..=front.checked_sub(1)?, false)
        })
    }

    /// Records that every page up to this one has been restored ahead of a stream, or was there.
    pub fn restored(&mut self, index: usize, front: usize) {
        let mut stream = self.streams[index];
        stream.ahead += stream.front.abs_diff(front);
        stream.front = front;
        self.set(index, stream);
    }

    fn begin(&mut self, page: usize) {
        while self.streams[self.hand].chances > 0 {
            self.streams[self.hand].chances -= 1;
            self.hand = (self.hand + 1) % STREAMS;
        }
        self.fail(self.hand);
        self.set(
            self.hand,
            Stream { front: page, up: None, length: 0, most: 0, ahead: 0, chances: 0 },
        );
        self.hand = (self.hand + 1) % STREAMS;
    }

    /// Records that a stream has ended.
    fn fail(&mut self, index: usize) {
        if self.streams[index].ahead > 0 {
            self.length = (self.length * 2).min(LENGTH_MAX);
        }
    }

    fn set(&mut self, index: usize, stream: Stream) {
        self.fronts[index] = stream.front as u32;
        self.streams[index] = stream;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Faults of a program that touches these pages one after the other, all of them evicted at
    /// first.
    struct World {
        streams: Streams,
        resident: BTreeSet<usize>,
        faults: usize,
        hits: usize,
        in_vain: usize,
    }

    impl World {
        fn new() -> Self {
            World {
                streams: Streams::new(),
                resident: BTreeSet::new(),
                faults: 0,
                hits: 0,
                in_vain: 0,
            }
        }

        fn touch(&mut self, page: usize) {
            if !self.resident.contains(&page) {
                self.fault(page);
            }
        }

        fn fault(&mut self, page: usize) {
            self.faults += 1;
            let noted = self.streams.note(page, |page| self.resident.contains(&page));
            self.hits += noted.hits;
            self.resident.insert(page);
            if let Some((index, (pages, up))) =
                noted.ready.and_then(|index| Some((index, self.streams.wanted(index)?)))
            {
                let front = if up { *pages.end() } else { *pages.start() };
                self.in_vain += pages.clone().filter(|page| self.resident.insert(*page)).count();
                self.streams.restored(index, front);
            }
        }
    }

    #[test]
    fn a_stream_faults_once_in_seventeen_pages() {
        for pages in [Vec::from_iter(1000..2000), Vec::from_iter((1000..2000).rev())] {
            let mut world = World::new();
            pages.into_iter().for_each(|page| world.touch(page));
            assert!((59..70).contains(&world.faults), "{}", world.faults);
            assert!(world.hits > 900, "{}", world.hits);
        }
    }

    #[test]
    fn streams_do_not_disturb_each_other_or_see_what_is_there_already() {
        let mut world = World::new();
        // Every other page is there.
        (0..STREAMS - 8).for_each(|stream| {
            world.resident.extend((stream * 4096..stream * 4096 + 512).step_by(2))
        });
        let mut elsewhere = 1 << 30;
        for page in 0..512 {
            (0..STREAMS - 8).for_each(|stream| world.touch(stream * 4096 + page));
            elsewhere += 1000;
            world.touch(elsewhere);
        }
        let faults = world.faults - 512;
        assert!(faults < (STREAMS - 8) * 50, "{faults}");
    }

    #[test]
    fn objects_of_a_few_pages_are_soon_left_alone() {
        for object in [2, 4] {
            let mut world = World::new();
            for n in 0..10_000 {
                (0..object).for_each(|page| world.touch(n * 7919 % 10_000 * 64 + page));
            }
            assert!(
                world.in_vain < 10_000 / 50,
                "objects of {object} pages: {} in vain",
                world.in_vain
            );
        }
    }

    #[test]
    fn a_reader_as_fast_as_its_pages_goes_on() {
        let mut world = World::new();
        (0..20).for_each(|page| world.touch(page));
        let front = *world.resident.last().unwrap();
        // Its message was on the way when the page was restored.
        world.fault(front - 3);
        assert_eq!(*world.resident.last().unwrap(), front - 3 + AHEAD_MAX);
    }

    #[test]
    fn what_was_taken_away_again_ends_the_stream() {
        let mut world = World::new();
        (0..20).for_each(|page| world.touch(page));
        let front = *world.resident.last().unwrap();
        world.resident.clear();
        let before = world.streams.length;
        world.touch(front - 3);
        assert_eq!(world.resident.len(), 1);
        assert!(world.streams.length > before);
    }

    #[test]
    fn the_ends_of_memory_are_ends() {
        let mut world = World::new();
        (0..40).rev().for_each(|page| world.touch(page));
        assert_eq!(world.resident.len(), 40);
        (0..4).for_each(|page| world.touch(usize::MAX / PAGE_BYTES - page));
    }

    const PAGE_BYTES: usize = 4096;
}
