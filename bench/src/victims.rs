//! Which pages to give up: faults an operation under our policy, and under random choice, the
//! kernel's lists, LRU and two oracles, on one load.
//!
//! A simulation, because a live program's next access is not known. The decisions of our side are
//! the ones that the pager makes ([`terrace_policy::eviction::victims`]). The load is that of
//! [`zram-servers`](crate::servers): items of 1,000 bytes in slots of 1,184 (memcached's). GETs are
//! by Zipf 0.99, with popularity scattered over the items. Each writes to its item's head
//! (memcached's reference counter, redis' access time).

use crate::results;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use terrace_policy::eviction::victims::{
    Passed, Refault, Writes, passed, probation_room, refault_distance_pages, refaulted,
};

const ITEMS: usize = 381_300;
const SLOT_BYTES: usize = 1_184;
const ITEM_BYTES: usize = 1_060;
const PAGE_BYTES: usize = 4_096;
/// GETs for each item before anything is counted.
const WARM_UP: usize = 6;
/// GETs for each item while faults are counted.
const COUNTED: usize = 8;
const NEVER: u32 = u32::MAX;
/// Percent of the pages that are resident, unless others are asked for.
pub const RESIDENT: [u32; 4] = [80, 65, 50, 30];

/// A load as the pages that it touches. Some GETs touch two, the second of which is only read.
struct Load {
    pages: usize,
    touches: Vec<u32>,
    written: Vec<bool>,
    /// Index of the first touch that counts.
    counted_from: usize,
    /// Number of GETs from that touch on.
    counted_gets: usize,
    /// Expected GETs of a page's items, up to a factor that all pages have in common, by page.
    popularity: Vec<f64>,
}

impl Load {
    fn new(seed: u64) -> Load {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut item_of_rank: Vec<usize> = (0..ITEMS).collect();
        item_of_rank.shuffle(&mut random);
        let pages_of = |item: usize| {
            item * SLOT_BYTES / PAGE_BYTES..=(item * SLOT_BYTES + ITEM_BYTES - 1) / PAGE_BYTES
        };
        let pages = *pages_of(ITEMS - 1).end() + 1;
        let mut popularity = vec![0.0; pages];
        for (rank, item) in item_of_rank.iter().enumerate() {
            pages_of(*item)
                .for_each(|page| popularity[page] += 1.0 / (rank as f64 + 1.0).powf(0.99));
        }
        let zipf = Zipf::new(ITEMS as f64, 0.99).expect("the parameters are in range");
        let mut touches = Vec::with_capacity((WARM_UP + COUNTED) * ITEMS * 3 / 2);
        let mut written = Vec::with_capacity(touches.capacity());
        let mut counted_from = 0;
        for get in 0..(WARM_UP + COUNTED) * ITEMS {
            if get == WARM_UP * ITEMS {
                counted_from = touches.len();
            }
            let rank = zipf.sample(&mut random) as usize - 1;
            let first = touches.len();
            touches.extend(pages_of(item_of_rank[rank]).map(|page| page as u32));
            written.extend((first..touches.len()).map(|touch| touch == first));
        }
        Load { pages, touches, written, counted_from, counted_gets: COUNTED * ITEMS, popularity }
    }

    /// Faults a GET with room for `room` pages.
    fn faults(&self, room: usize, policy: &mut dyn Policy) -> f64 {
        let mut resident = vec![false; self.pages];
        let mut held = 0;
        let mut faults = 0u64;
        for (now, page) in self.touches.iter().enumerate() {
            if resident[*page as usize] {
                policy.hit(*page, now, self.written[now]);
                continue;
            }
            faults += u64::from(now >= self.counted_from);
            if held == room {
                let victim = policy.victim();
                assert!(
                    std::mem::replace(&mut resident[victim as usize], false),
                    "a victim is resident"
                );
            } else {
                held += 1;
            }
            resident[*page as usize] = true;
            policy.came(*page, now);
        }
        faults as f64 / self.counted_gets as f64
    }
}

/// A policy that chooses victims in one simulation. It knows what is resident from [`Policy::came`]
/// and its own answers.
trait Policy {
    /// Notes that a resident page was touched. `now` is the touch's index.
    fn hit(&mut self, page: u32, now: usize, written: bool);
    /// Notes that a page was brought in.
    fn came(&mut self, page: u32, now: usize);
    /// Chooses the page that is evicted.
    fn victim(&mut self) -> u32;
}

/// Evicts any page.
struct Random {
    random: SmallRng,
    resident: Vec<u32>,
}

impl Policy for Random {
    fn hit(&mut self, _page: u32, _now: usize, _written: bool) {}

    fn came(&mut self, page: u32, _now: usize) {
        self.resident.push(page);
    }

    fn victim(&mut self) -> u32 {
        let index = self.random.random_range(0..self.resident.len());
        self.resident.swap_remove(index)
    }
}

/// Evicts the page with the least key. The key may be:
///
/// - the time of the page's last touch: LRU;
/// - its popularity: what a policy would do that knew it;
/// - the negated time of its next touch: Belady's optimum (IBM Systems Journal 5(2), 1966).
struct Least<K: Fn(u32, usize) -> i64> {
    key: K,
    order: BTreeSet<(i64, u32)>,
    keys: Vec<i64>,
}

impl<K: Fn(u32, usize) -> i64> Least<K> {
    fn new(pages: usize, key: K) -> Self {
        Least { key, order: BTreeSet::new(), keys: vec![0; pages] }
    }
}

impl<K: Fn(u32, usize) -> i64> Policy for Least<K> {
    fn hit(&mut self, page: u32, now: usize, _written: bool) {
        self.order.remove(&(self.keys[page as usize], page));
        self.came(page, now);
    }

    fn came(&mut self, page: u32, now: usize) {
        let key = (self.key)(page, now);
        self.keys[page as usize] = key;
        self.order.insert((key, page));
    }

    fn victim(&mut self) -> u32 {
        self.order.pop_first().expect("somebody is resident").1
    }
}

/// Linux without MGLRU (`mm/vmscan.c`, `mm/workingset.c`). Anonymous pages are evicted from the end
/// of an inactive list. A page that was touched goes round once more, and the next time to the
/// active list, which is at most as long. A page that refaults goes straight to the active list if
/// at most as many pages as are there were evicted since.
struct KernelLists {
    active: VecDeque<u32>,
    inactive: VecDeque<u32>,
    accessed: Vec<bool>,
    referenced: Vec<bool>,
    left_at: Vec<u32>,
    left: u32,
}

impl Policy for KernelLists {
    fn hit(&mut self, page: u32, _now: usize, _written: bool) {
        self.accessed[page as usize] = true;
    }

    fn came(&mut self, page: u32, _now: usize) {
        let left_at = self.left_at[page as usize];
        let back_soon = left_at != NEVER && (self.left - left_at) as usize <= self.active.len();
        // The fault itself is an access.
        (self.accessed[page as usize], self.referenced[page as usize]) = (true, false);
        if back_soon { self.active.push_front(page) } else { self.inactive.push_front(page) }
    }

    fn victim(&mut self) -> u32 {
        loop {
            while self.inactive.len() < self.active.len() {
                let Some(page) = self.active.pop_back() else { break };
                self.accessed[page as usize] = false;
                self.inactive.push_front(page);
            }
            let page = self.inactive.pop_back().expect("the inactive list is the longer one");
            let referenced = std::mem::take(&mut self.referenced[page as usize]);
            if std::mem::take(&mut self.accessed[page as usize]) {
                if referenced {
                    self.active.push_front(page);
                } else {
                    self.referenced[page as usize] = true;
                    self.inactive.push_front(page);
                }
                continue;
            }
            self.left += 1;
            self.left_at[page as usize] = self.left;
            return page;
        }
    }
}

/// The pager's policy: times are counted in pages that were evicted.
struct Ours {
    hand: VecDeque<u32>,
    probation: VecDeque<u32>,
    pages: Vec<OurPage>,
    left: u32,
    room: usize,
    /// Whether writes can be watched.
    watches: bool,
}

#[derive(Clone, Copy)]
struct OurPage {
    /// Rounds left.
    refaults: u32,
    /// Rounds that the page had when it came back.
    level: u32,
    tracked: bool,
    written: bool,
    left_at: u32,
}

impl Ours {
    fn new(pages: usize, room: usize, watches: bool) -> Ours {
        let page =
            OurPage { refaults: 0, level: 0, tracked: false, written: false, left_at: NEVER };
        Ours {
            hand: VecDeque::new(),
            probation: VecDeque::new(),
            pages: vec![page; pages],
            left: 0,
            room,
            watches,
        }
    }
}

impl Policy for Ours {
    fn hit(&mut self, page: u32, _now: usize, written: bool) {
        self.pages[page as usize].written |= written;
    }

    fn came(&mut self, page: u32, _now: usize) {
        let soon =
            refault_distance_pages(self.room as u64, (self.pages.len() - self.room) as u64) as u64;
        let state = &mut self.pages[page as usize];
        let back = if state.left_at == NEVER {
            Refault { refaults: 0, probation: false }
        } else {
            refaulted(state.level, u64::from(self.left - state.left_at), soon)
        };
        (state.refaults, state.level, state.tracked) = (back.refaults, back.refaults, false);
        if back.probation { self.probation.push_back(page) } else { self.hand.push_back(page) }
    }

    fn victim(&mut self) -> u32 {
        let page = if self.probation.len()
            > probation_room(self.room as u64, (self.pages.len() - self.room) as u64)
        {
            self.probation.pop_front().expect("it is longer than something")
        } else {
            loop {
                let page = self
                    .hand
                    .pop_front()
                    .or_else(|| self.probation.pop_front())
                    .expect("somebody is resident");
                let state = &mut self.pages[page as usize];
                let writes = match (self.watches, state.tracked, state.written) {
                    (false, ..) => Writes::Unknowable,
                    (_, false, _) => Writes::Untracked,
                    (.., false) => Writes::None,
                    (.., true) => Writes::Some,
                };
                match passed(state.refaults, false, writes, 0) {
                    Passed::Take => break page,
                    Passed::Leave => {}
                    Passed::Refaults(refaults) => {
                        (state.refaults, state.tracked) = (refaults, false)
                    }
                    Passed::Track => {
                        (state.refaults, state.tracked, state.written) = (0, true, false)
                    }
                }
                self.hand.push_back(page);
            }
        };
        self.left += 1;
        self.pages[page as usize].left_at = self.left;
        page
    }
}

/// Simulates all policies at these shares of resident pages (percent).
pub fn run(resident: &[u32]) -> anyhow::Result<()> {
    let load = Load::new(1);
    let mut next_touch = vec![i64::MAX; load.touches.len()];
    let mut seen = vec![i64::MAX; load.pages];
    for (now, page) in load.touches.iter().enumerate().rev() {
        next_touch[now] = std::mem::replace(&mut seen[*page as usize], now as i64);
    }
    println!(
        "Faults a GET by choice of victims ({ITEMS} items of 1,000 bytes, Zipf 0.99 scattered, simulated):\n"
    );
    println!(
        "{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}{:>10}",
        "resident", "random", "faults", "ours", "kernel's", "LRU", "popularity", "optimum"
    );
    let mut rows: Vec<Value> = Vec::new();
    for percent in resident {
        let room = load.pages * *percent as usize / 100;
        let pages = load.pages;
        let mut policies: Vec<(&str, Box<dyn Policy + '_>)> = vec![
            (
                "random",
                Box::new(Random { random: SmallRng::seed_from_u64(2), resident: Vec::new() }),
            ),
            ("ours_by_faults_only", Box::new(Ours::new(pages, room, false))),
            ("ours", Box::new(Ours::new(pages, room, true))),
            (
                "kernel",
                Box::new(KernelLists {
                    active: VecDeque::new(),
                    inactive: VecDeque::new(),
                    accessed: vec![false; pages],
                    referenced: vec![false; pages],
                    left_at: vec![NEVER; pages],
                    left: 0,
                }),
            ),
            ("lru", Box::new(Least::new(pages, |_, now| now as i64))),
            (
                "popularity",
                Box::new(Least::new(pages, |page, _| {
                    (load.popularity[page as usize] * 1e9) as i64
                })),
            ),
            ("optimum", Box::new(Least::new(pages, |_, now| -next_touch[now]))),
        ];
        let found: Vec<(&str, f64)> = policies
            .iter_mut()
            .map(|(name, policy)| (*name, load.faults(room, policy.as_mut())))
            .collect();
        let line: String = found
            .iter()
            .map(|(name, faults)| {
                format!("{faults:>width$.3}", width = if *name == "popularity" { 12 } else { 10 })
            })
            .collect();
        println!("{:>8} %{line}", percent);
        let figures: serde_json::Map<String, Value> =
            found.into_iter().map(|(name, faults)| (name.to_owned(), json!(faults))).collect();
        rows.push(json!({ "resident_percent": percent, "faults_per_get": figures }));
    }
    println!();
    results::write("victims", json!(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(touches: &[u32]) -> Load {
        Load {
            pages: 8,
            touches: touches.to_vec(),
            written: vec![true; touches.len()],
            counted_from: 0,
            counted_gets: 1,
            popularity: vec![0.0; 8],
        }
    }

    #[test]
    fn lru_and_the_optimum_by_hand() {
        // Room for two: LRU faults at 1 2 3 1 2 (all); the optimum keeps 1.
        let load = load(&[1, 2, 3, 1, 2]);
        assert_eq!(load.faults(2, &mut Least::new(8, |_, now| now as i64)), 5.0);
        let next = [3, 4, i64::MAX, i64::MAX, i64::MAX];
        assert_eq!(load.faults(2, &mut Least::new(8, |_, now| -next[now])), 4.0);
    }

    #[test]
    fn a_written_page_stays_when_it_was_watched() {
        // 1 is written all the time, the others come once.
        let touches: Vec<u32> = (0..60).flat_map(|n| [1, 2 + n % 6]).collect();
        let faults = |watches| load(&touches).faults(4, &mut Ours::new(8, 4, watches));
        assert!(faults(true) <= faults(false));
    }
}
