//! Runs of free pages of one shard and one zone.

use std::collections::{BTreeMap, BTreeSet};

/// A run of pages: the first, and how many.
pub type Span = (u32, u32);
/// Maximum number of spans looked at for one at an aligned place.
const TRIES: usize = 64;

/// Free pages. What was used lately is not joined with its neighbours until its contents were given
/// up ([`Spans::age`]).
pub struct Spans {
    fresh: Vec<Span>,
    stale: Vec<Span>,
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
}

impl Spans {
    pub const fn new() -> Self {
        Spans {
            fresh: Vec::new(),
            stale: Vec::new(),
            by_start: BTreeMap::new(),
            by_len: BTreeSet::new(),
        }
    }

    /// Takes `len` consecutive pages, the first at a multiple of `step`.
    pub fn take(&mut self, len: u32, step: u32) -> Option<u32> {
        for used in [&mut self.fresh, &mut self.stale] {
            let found = used
                .iter()
                .rev()
                .take(TRIES)
                .position(|span| span.1 == len && span.0.is_multiple_of(step));
            if let Some(from_end) = found {
                return Some(used.swap_remove(used.len() - 1 - from_end).0);
            }
        }
        let fits =
            |(pages, start): &&(u32, u32)| start.next_multiple_of(step) + len <= start + pages;
        // A span of this length surely has an aligned place.
        let sure = self.by_len.range((len.checked_add(step - 1)?, 0)..).next();
        let &(pages, start) = self.by_len.range((len, 0)..).take(TRIES).find(fits).or(sure)?;
        self.by_len.remove(&(pages, start));
        self.by_start.remove(&start);
        let first = start.next_multiple_of(step);
        self.insert((start, first - start));
        self.insert((first + len, start + pages - first - len));
        Some(first)
    }

    /// Whether any spans have not been given up yet.
    pub fn can_age(&self) -> bool {
        !self.fresh.is_empty() || !self.stale.is_empty()
    }

    /// Adds pages that are not used any more; their contents are still there.
    pub fn put(&mut self, span: Span) {
        self.fresh.push(span);
    }

    /// Adds pages that hold no object and take no memory.
    pub fn add(&mut self, (mut start, mut len): Span) {
        if let Some((&before, &pages)) = self.by_start.range(..start).next_back()
            && before + pages == start
        {
            self.by_start.remove(&before);
            self.by_len.remove(&(pages, before));
            (start, len) = (before, len + pages);
        }
        if let Some(pages) = self.by_start.remove(&(start + len)) {
            self.by_len.remove(&(pages, start + len));
            len += pages;
        }
        self.insert((start, len));
    }

    fn insert(&mut self, (start, len): Span) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    /// Takes what has been free since the call before the last, in as few spans as possible. They
    /// are to be given up and then [added](Spans::add).
    pub fn age(&mut self) -> Vec<Span> {
        let mut going = std::mem::take(&mut self.stale);
        self.stale = std::mem::take(&mut self.fresh);
        going.sort_unstable();
        going.dedup_by(|next, span| {
            let follows = span.0 + span.1 == next.0;
            span.1 += if follows { next.1 } else { 0 };
            follows
        });
        going
    }
}
