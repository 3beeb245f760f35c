//! ObjecTier's layout: objects of like heat come to share segments (paper §4).
//!
//! Objects begin by size. Of each it is counted how often it is touched, to 255; each step halves
//! all counts. At a step, hot is what is touched most, up to a fifth of all bytes. What was hot
//! stays so down to half of that count. Segments in which hot and cold objects are mixed are
//! emptied, the most mixed ones first. What is hot goes to the open hot segment, the rest to the
//! open cold one.

use super::events::{ObjectId, Request};
use super::layouts::{Layout, SizeClasses};

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a segment over compressed tiers. Larger objects are alone anyway, and stay.
pub const SEGMENT: u64 = 64 << 10;
/// A segment is mixed if the smaller of its hot and its cold bytes are more than this share.
const MIXED_FROM: f64 = 0.02;
/// Touches from one step to the next, for each object.
const STEP_TOUCHES: u64 = 4;
/// Share of all bytes that is hot: what the fast tier has room for. Less of it moved fewer bytes
/// and saved fewer faults.
const HOT_SHARE: f64 = 0.2;
/// Share of all bytes that is moved in a step.
const STEP_SHARE: f64 = 0.125;

#[derive(Clone, Copy, Debug)]
struct Object {
    address: u64,
    bytes: u64,
    count: u8,
    hot: bool,
    live: bool,
}

impl Object {
    fn is_movable(self) -> bool {
        self.live && self.bytes <= SEGMENT / 4
    }
}

/// What of a segment is live.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    hot: u64,
    cold: u64,
}

/// The layout.
#[derive(Debug)]
pub struct Consolidated {
    first: SizeClasses,
    end: u64,
    objects: Vec<Object>,
    touches: u64,
    /// Whether each segment holds moved objects, side by side.
    ours: Vec<bool>,
    /// The open segment, and bytes used in it, for cold objects and for hot ones.
    open: [(Option<u64>, u64); 2],
    empty: Vec<u64>,
}

impl Default for Consolidated {
    fn default() -> Consolidated {
        Consolidated {
            first: SizeClasses::in_chunks(SEGMENT),
            end: 0,
            objects: Vec::new(),
            touches: 0,
            ours: Vec::new(),
            open: [(None, 0); 2],
            empty: Vec::new(),
        }
    }
}

impl Consolidated {
    fn is_ours(&self, segment: u64) -> bool {
        self.ours.get(segment as usize).copied().unwrap_or(false)
    }

    fn new_segment(&mut self) -> u64 {
        let segment = self.empty.pop().unwrap_or_else(|| {
            self.end += SEGMENT;
            self.end / SEGMENT - 1
        });
        if self.ours.len() <= segment as usize {
            self.ours.resize(segment as usize + 1, false);
        }
        self.ours[segment as usize] = true;
        segment
    }

    /// Decides anew which objects are hot, and halves counts. Returns the bytes of all objects that
    /// can be moved.
    fn classify(&mut self) -> u64 {
        let mut by_count = [0u64; 256];
        for object in self.objects.iter().filter(|object| object.is_movable()) {
            by_count[usize::from(object.count)] += object.bytes;
        }
        let all: u64 = by_count.iter().sum();
        let (mut least, mut hot) = (by_count.len(), 0);
        while least > 1 && (hot + by_count[least - 1]) as f64 <= all as f64 * HOT_SHARE {
            least -= 1;
            hot += by_count[least];
        }
        for object in &mut self.objects {
            let least = if object.hot { least / 2 } else { least };
            object.hot = usize::from(object.count) >= least;
            object.count /= 2;
        }
        all
    }

    /// Where an object is to go that comes to a hot segment or a cold one.
    fn room(&mut self, hot: bool, bytes: u64) -> u64 {
        let which = usize::from(hot);
        let segment = match self.open[which] {
            (Some(segment), used) if used + bytes <= SEGMENT => segment,
            _ => {
                let segment = self.new_segment();
                self.open[which] = (Some(segment), 0);
                segment
            }
        };
        let used = &mut self.open[which].1;
        *used += bytes;
        segment * SEGMENT + *used - bytes
    }
}

impl Layout for Consolidated {
    fn allocate(&mut self, object: ObjectId, request: Request) -> u64 {
        let address = self.first.allocate_from(request.bytes, &mut self.end);
        let placed =
            Object { address, bytes: request.bytes.max(1), count: 0, hot: false, live: true };
        match self.objects.get_mut(object as usize) {
            Some(before) => *before = placed,
            None => self.objects.push(placed),
        }
        address
    }

    fn free(&mut self, object: ObjectId, request: Request, address: u64) {
        self.objects[object as usize].live = false;
        if !self.is_ours(address / SEGMENT) {
            self.first.free_at(request.bytes, address);
        }
    }

    fn touched(&mut self, object: ObjectId) -> bool {
        let count = &mut self.objects[object as usize].count;
        *count = count.saturating_add(1);
        self.touches += 1;
        self.touches > STEP_TOUCHES * self.objects.len() as u64
    }

    fn relocate(&mut self, moved: &mut Vec<(ObjectId, u64)>) {
        moved.clear();
        self.touches = 0;
        let all = self.classify();
        let mut segments: BTreeMap<u64, Bytes> = BTreeMap::new();
        for object in self.objects.iter().filter(|object| object.is_movable()) {
            let bytes = segments.entry(object.address / SEGMENT).or_default();
            *if object.hot { &mut bytes.hot } else { &mut bytes.cold } += object.bytes;
        }
        let open = [self.open[0].0, self.open[1].0];
        let mut mixed: Vec<(f64, u64, u64)> = segments
            .into_iter()
            .map(|(segment, bytes)| {
                (
                    bytes.hot.min(bytes.cold) as f64 / (bytes.hot + bytes.cold) as f64,
                    segment,
                    bytes.hot + bytes.cold,
                )
            })
            .filter(|(mix, segment, _)| *mix > MIXED_FROM && !open.contains(&Some(*segment)))
            .collect();
        mixed.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut left = all as f64 * STEP_SHARE;
        let emptied: BTreeSet<u64> = mixed
            .into_iter()
            .take_while(|(_, _, bytes)| {
                left -= *bytes as f64;
                left >= 0.0
            })
            .map(|(_, segment, _)| segment)
            .collect();
        for number in 0..self.objects.len() {
            let object = self.objects[number];
            let from = object.address / SEGMENT;
            if object.is_movable() && emptied.contains(&from) {
                let address = self.room(object.hot, object.bytes.next_multiple_of(16));
                if !self.is_ours(from) {
                    self.first.free_at(object.bytes, object.address);
                }
                self.objects[number].address = address;
                moved.push((number as ObjectId, address));
            }
        }
        // What was emptied may be filled again from the next step on, by moved objects or by new
        // ones.
        let large: BTreeSet<u64> = self
            .objects
            .iter()
            .filter(|object| object.live && !object.is_movable())
            .map(|object| object.address / SEGMENT)
            .collect();
        for segment in emptied {
            if self.is_ours(segment)
                || !large.contains(&segment) && self.first.release(segment * SEGMENT)
            {
                self.empty.push(segment);
            }
        }
    }
}
