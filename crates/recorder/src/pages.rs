//! The summary of a recording of the kind `pages`: how many of the heap's pages hold which share of
//! the misses. It is told as the objects lie, and as if the most missed ones lay side by side. As
//! in the benchmark of objects, all resident pages of the heap count, and the most missed objects
//! are those with most misses per byte.

use crate::heap::{Heap, PAGE, Page};
use serde_json::{Value, json};

/// Counts beside those of the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Accesses since counting began.
    pub accesses: u64,
    /// Accesses that missed.
    pub misses: u64,
    /// Misses on pages of the heap that lay in no live object.
    pub between: u64,
    /// Misses outside the heap.
    pub elsewhere: u64,
}

/// The summary. `resident` tells of a page whether it is in memory.
pub fn summary(heap: &Heap, totals: &Totals, resident: impl Fn(u64) -> bool) -> Value {
    let here = |(address, page): &(u64, &Page)| page.misses > 0 || resident(*address);
    let counts: Vec<u64> = heap.pages().filter(here).map(|(_, page)| page.misses).collect();
    let mut found = figures(counts);
    found["oracle"] = figures(packed(heap));
    let live = |misses: bool| {
        heap.live().map(|object| if misses { object.misses } else { object.bytes }).sum::<u64>()
    };
    found["accesses"] = json!(totals.accesses);
    found["misses"] = json!({
        "all": totals.misses,
        "live_objects": live(true),
        "dead_objects": heap.contexts().iter().map(|context| context.dead_misses).sum::<u64>(),
        "between_objects": totals.between,
        "outside_heap": totals.elsewhere,
    });
    found["objects"] = json!({
        "made": heap.contexts().iter().map(|context| context.made).sum::<u64>(),
        "live": heap.live().count(),
        "live_missed": heap.live().filter(|object| object.misses > 0).count(),
        "live_bytes": live(false),
    });
    found["contexts"] = json!(heap.contexts().len());
    found
}

/// The most missed contexts, with the live objects that each has. Frames are told by `name`.
pub fn contexts(heap: &Heap, most: usize, name: impl Fn(usize) -> String) -> Value {
    let mut misses: Vec<(u64, u64, usize)> = heap
        .contexts()
        .iter()
        .enumerate()
        .map(|(at, context)| (context.dead_misses, 0, at))
        .collect();
    for object in heap.live() {
        misses[object.context as usize].0 += object.misses;
        misses[object.context as usize].1 += 1;
    }
    misses.sort_unstable_by(|a, b| b.cmp(a));
    misses.truncate(most);
    let row = |(misses, live, at): &(u64, u64, usize)| {
        let context = &heap.contexts()[*at];
        json!({
            "misses": misses,
            "dead_misses": context.dead_misses,
            "made": context.made,
            "live": live,
            "live_bytes": context.live_bytes,
            "peak_bytes": context.peak_bytes,
            "frames": context.frames.iter().map(|frame| name(*frame)).collect::<Vec<_>>(),
        })
    };
    misses.iter().map(row).collect()
}

/// Something to be packed: its bytes, and the misses of each 4 KiB of it.
struct Lump {
    bytes: u64,
    misses: u64,
    parts: Vec<u32>,
}

/// Misses by page, if the most missed objects lay side by side. Objects of up to a page lie on one;
/// larger ones begin where the one before ends. What is dead counts as one lump for each context,
/// as large as what it had beyond what lives now: its memory is used again and again.
fn packed(heap: &Heap) -> Vec<u64> {
    let live = heap.live().map(|object| Lump {
        bytes: object.bytes.max(1),
        misses: object.misses,
        parts: object.parts.clone(),
    });
    let dead =
        heap.contexts().iter().filter(|context| context.dead_misses > 0).map(|context| Lump {
            bytes: (context.peak_bytes - context.live_bytes).max(context.dead_bytes_max).max(1),
            misses: context.dead_misses,
            parts: Vec::new(),
        });
    let mut lumps: Vec<Lump> = live.chain(dead).collect();
    lumps.sort_by(|a, b| {
        (u128::from(b.misses) * u128::from(a.bytes))
            .cmp(&(u128::from(a.misses) * u128::from(b.bytes)))
    });
    let mut pages = vec![0.0];
    let mut used = 0;
    for lump in lumps {
        if used + lump.bytes > PAGE && (lump.bytes <= PAGE || used == PAGE) {
            pages.push(0.0);
            used = 0;
        }
        let first = pages.len() - 1;
        pages.resize(first + ((used + lump.bytes).div_ceil(PAGE)) as usize, 0.0);
        // Of a part of it nothing is known but its misses: they are everywhere alike in it.
        let mut spread = |from: u64, to: u64, misses: u64| {
            let mut at = from;
            while at < to {
                let end = ((used + at) / PAGE * PAGE + PAGE - used).min(to);
                pages[first + ((used + at) / PAGE) as usize] +=
                    misses as f64 * (end - at) as f64 / (to - from) as f64;
                at = end;
            }
        };
        if lump.parts.is_empty() {
            spread(0, lump.bytes, lump.misses);
        } else {
            for (part, misses) in lump.parts.iter().enumerate() {
                // What the allocator gave beyond what was asked for counts with the last byte.
                let from = (part as u64 * PAGE).min(lump.bytes - 1);
                spread(from, (from + PAGE).min(lump.bytes), u64::from(*misses));
            }
        }
        used = (used + lump.bytes - 1) % PAGE + 1;
    }
    pages.into_iter().map(|misses| misses.round() as u64).collect()
}

/// From the misses of each page: how many pages there are, and how many hold given shares of all
/// misses.
fn figures(mut counts: Vec<u64>) -> Value {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = counts.iter().sum();
    let needed = |percent: u64| {
        let mut sum = 0;
        let mut before = |count: &u64| {
            sum += count;
            sum - count
        };
        counts.iter().take_while(|count| before(count) < all * percent / 100).count()
    };
    json!({
        "pages": counts.len(),
        "pages_for_50": needed(50),
        "pages_for_80": needed(80),
        "pages_by_percent": (0..=100).step_by(5).map(needed).collect::<Vec<_>>(),
        "misses_on_pages": all,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Missed;

    #[test]
    fn half_of_the_misses_are_on_the_most_missed_pages() {
        // 100 in all: 40 and 30 make 50 %, one more 80 %.
        let found = figures(vec![10, 40, 0, 30, 15, 5, 0]);
        assert_eq!(
            (&found["pages"], &found["pages_for_50"], &found["pages_for_80"]),
            (&json!(7), &json!(2), &json!(3))
        );
        assert_eq!(found["pages_by_percent"][20], json!(5));
        assert_eq!(figures(Vec::new())["pages_for_50"], json!(0));
    }

    #[test]
    fn the_oracle_puts_the_most_missed_side_by_side() {
        let mut heap = Heap::default();
        let context = heap.context(&[1]);
        // One object on each of 32 pages; every second one is missed, each eight times.
        for number in 0..32u64 {
            let address = 0x10_0000 + number * PAGE;
            heap.born(address, 256, 256, context);
            (0..number % 2 * 8)
                .for_each(|_| assert_ne!(heap.missed(address + 16), Missed::Between));
        }
        let totals = Totals { accesses: 1000, misses: 128, ..Totals::default() };
        let found = summary(&heap, &totals, |_| true);
        assert_eq!((&found["pages"], &found["pages_for_50"]), (&json!(32), &json!(8)));
        // 16 objects of 256 bytes fill one page.
        assert_eq!(
            (&found["oracle"]["pages"], &found["oracle"]["pages_for_50"]),
            (&json!(2), &json!(1))
        );
        assert_eq!(
            (&found["misses"]["live_objects"], &found["contexts"]),
            (&json!(128), &json!(1))
        );
        // A page that is not in memory does not count, unless it was missed.
        assert_eq!(summary(&heap, &totals, |_| false)["pages"], json!(16));
        assert_eq!(contexts(&heap, 5, |frame| frame.to_string())[0]["frames"], json!(["1"]));
    }

    #[test]
    fn large_and_dead_objects_are_packed_too() {
        let mut heap = Heap::default();
        let (large, dead) = (heap.context(&[1]), heap.context(&[2]));
        let address = 0x40_0000;
        heap.born(address, 3 * PAGE + 100, 3 * PAGE + 104, large);
        for (part, misses) in [(0, 5), (2, 20), (3, 1)] {
            (0..misses)
                .for_each(|_| assert_ne!(heap.missed(address + part * PAGE), Missed::Between));
        }
        // Ten of 1000 bytes, one after the other at the same place: they would need one place.
        for _ in 0..10 {
            heap.born(0x80_0000, 1000, 1000, dead);
            (0..100).for_each(|_| assert_ne!(heap.missed(0x80_0000), Missed::Between));
            heap.dies(0x80_0000);
        }
        // First the lump of 1000 bytes, then the large object behind it: its four parts are at
        // 1000, 5096, 9192 and 13288. Of the first, 5 misses, 3096 of 4096 bytes are on the
        // first page; of the third, 20 misses, 3096 are on the third page; the fourth is all on the
        // fourth.
        assert_eq!(packed(&heap), [1004, 1, 15, 6]);
    }
}
