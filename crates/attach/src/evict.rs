//! Eviction: which pages, and how.
//!
//! Victims are chosen by CLOCK with use counts: the CLOCK hand goes round over what is resident. A
//! page that refaulted since the hand passed is spared once for each fault. The hand goes round at
//! most four times a second, and what refaulted in the last half second stays. So a budget that is
//! too small slows the target down, and does not stop it.

use crate::keeper::TICK_MS;
use crate::process::{self, Mapping};
use crate::serve::AHEAD;
use crate::state::{BudgetCheck, Keeper};
use crate::stub::BATCH;
use crate::sys::{self, PAGE, Run};
use crate::table::{ADDRESSES, State, Word};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::*;

const REGION: u64 = 2 << 20;
const ROUND_MS: u64 = 250;
const SPARED_MS: u64 = 500;
/// Pages that are evicted between two polls of the requests.
const STEP_PAGES: u64 = 2048;
/// Number of mappings above which none is registered anew: half of what the kernel allows by
/// default.
const MAPPINGS: usize = 32_000;
const CROWDED: &str =
    "the process has more than 32,000 mappings: what is not registered yet stays in DRAM";

/// A region that the CLOCK hand passes at a time: at most 2 MiB of a mapping.
struct Region {
    start: u64,
    end: u64,
}

/// Pages that may be put in place until the budget is checked again. As many are evicted below the
/// budget for them. To measure and to ask the stub cost the same for one page as for a batch.
const MARGIN_PAGES: u64 = BATCH as u64;

impl Keeper {
    /// Pages that faults have put in place, in all. A first touch counts with the pages after it,
    /// which the kernel serves from then on.
    pub fn placed_pages(&self) -> u64 {
        self.figures.restored_pages + self.figures.zero_pages * (AHEAD + 1)
    }

    /// Whether the budget is to be checked again.
    pub fn budget_is_due(&self) -> bool {
        let BudgetCheck { at_ms, placed } = self.budget_check;
        let now_ms = sys::now_ms();
        self.placed_pages() - placed >= MARGIN_PAGES || now_ms - at_ms >= TICK_MS as u64
    }

    /// Evicts what is more than the budget.
    pub fn keep_budget(&mut self) {
        if self.frozen || self.stub.dead || self.spaces[0].is_none() {
            return;
        }
        let started = sys::now_ns();
        self.budget_check = BudgetCheck { at_ms: started / 1_000_000, placed: self.placed_pages() };
        while sys::now_ns() - started < 20_000_000 {
            self.measure();
            let figures = &self.figures;
            self.steady.note(figures.physical_bytes(), sys::now_ms());
            let over = figures.physical_bytes().saturating_sub(figures.budget_bytes) / PAGE;
            if over == 0 {
                return;
            }
            let wanted = (over * 3 / 2).max(over + MARGIN_PAGES).min(STEP_PAGES);
            let shared = self.shared_part(wanted);
            let shared_goes_on = self.page_out_shared(shared);
            let private_goes_on = wanted > shared && self.evict_some(wanted - shared);
            if !shared_goes_on && !private_goes_on {
                return;
            }
        }
    }

    /// Evicts about `pages` pages. Returns whether the CLOCK hand can go on.
    fn evict_some(&mut self, pages: u64) -> bool {
        let mut left = pages;
        for _ in 0..256 {
            let Some(region) = self.next_region() else { return false };
            left = left.saturating_sub(self.evict_region(&region, left));
            if left == 0 || self.frozen || self.stub.dead {
                break;
            }
        }
        true
    }

    /// Whether a mapping is data of the program's, at addresses that the record of pages has.
    fn may_leave(&self, mapping: &Mapping) -> bool {
        let is_ours = self.stub.owns(mapping.start, mapping.end);
        mapping.is_data && !is_ours && mapping.end <= ADDRESSES
    }

    /// The part of a mapping that the CLOCK hand passes next; `None` while it rests.
    fn next_region(&mut self) -> Option<Region> {
        let next = self.hand.mappings.iter().find(|mapping| mapping.end > self.hand.at);
        let Some(mapping) = next else {
            let now_ms = sys::now_ms();
            if now_ms - self.hand.round_ms < ROUND_MS {
                return None;
            }
            let all = process::mappings(self.target).ok()?;
            self.hand.crowded = all.len() > MAPPINGS;
            let mut mappings = all;
            mappings.retain(|mapping| self.may_leave(mapping));
            self.hand.mappings = mappings;
            (self.hand.at, self.hand.round_ms) = (0, now_ms);
            let first = self.hand.mappings.first()?;
            let (start, end) = (first.start, first.start);
            return Some(Region { start, end });
        };
        let start = mapping.start.max(self.hand.at);
        let end = (start / REGION * REGION + REGION).min(mapping.end);
        self.hand.at = end;
        Some(Region { start, end })
    }

    /// Evicts at most `most` pages of a region. Returns how many were evicted.
    fn evict_region(&mut self, region: &Region, most: u64) -> u64 {
        let Region { start, end } = *region;
        let mut runs = [Run::default(); 512];
        let Ok((found, _)) = sys::resident(self.pagemap.as_raw_fd(), start, end, &mut runs) else {
            return 0;
        };
        let pages =
            runs[..found].iter().flat_map(|run| (run.start..run.end).step_by(PAGE as usize));
        let pages: Vec<u64> = pages.collect();
        let (mut at, mut evicted) = (0, 0);
        let mut is_registered = false;
        while at < pages.len() && evicted < most && !self.frozen && !self.stub.dead {
            self.pump();
            let batch = self.victims(&pages, &mut at, (most - evicted).min(BATCH as u64) as usize);
            if batch.is_empty() {
                continue;
            }
            if !is_registered {
                if !self.register(start) {
                    return evicted;
                }
                is_registered = true;
            }
            let Some(batch) = self.known_registered(batch) else { return evicted };
            if !batch.is_empty() {
                evicted += self.evict_batch(&batch);
            }
        }
        evicted
    }

    /// The next pages that may leave.
    fn victims(&mut self, pages: &[u64], at: &mut usize, most: usize) -> Vec<u64> {
        let Some(space) = &self.spaces[0] else { return Vec::new() };
        let now_ms = sys::now_ms();
        let mut batch = Vec::with_capacity(BATCH);
        while *at < pages.len() && batch.len() < most {
            let page = pages[*at];
            *at += 1;
            let word = space.table.get(page);
            if word.state() != State::None || now_ms.saturating_sub(word.back_ms()) < SPARED_MS {
                continue;
            }
            if word.uses() > 0 {
                space.table.set(page, word.with_uses(word.uses() - 1));
                continue;
            }
            batch.push(page);
        }
        batch
    }

    /// Registers all adjacent mappings that a mapping is among. A part of them would become a
    /// mapping of its own, and mremap of both would fail. What changed meanwhile is looked at
    /// again.
    fn register(&mut self, inside: u64) -> bool {
        let mut last = (0, 0);
        for _ in 0..8 {
            let all = process::mappings(self.target).unwrap_or_default();
            self.hand.crowded = all.len() > MAPPINGS;
            if !self.hand.crowded && self.figures.note == CROWDED {
                self.figures.note.clear();
            }
            let data = all.iter().filter(|mapping| self.may_leave(mapping));
            let mut around = (0, 0);
            for mapping in data {
                if mapping.start != around.1 && around.1 <= inside {
                    around = (mapping.start, mapping.end);
                } else if mapping.start == around.1 {
                    around.1 = mapping.end;
                }
            }
            if around == last {
                return true;
            }
            let Some(space) = &self.spaces[0] else { return false };
            if self.hand.crowded {
                self.note_unregistered(CROWDED.into());
                return false;
            }
            if !(around.0 <= inside && inside < around.1) {
                return false;
            }
            match sys::register(space.uffd.as_raw_fd(), around.0, around.1, self.stub.marks) {
                Ok(_) => {}
                Err(errno @ (libc::EBUSY | libc::EPERM | libc::ENOMEM)) => {
                    let why = std::io::Error::from_raw_os_error(errno);
                    let text = format!("the kernel does not register memory ({why}): it stays");
                    self.note_unregistered(text);
                    return false;
                }
                // It has changed meanwhile.
                Err(_) => return false,
            }
            last = around;
        }
        true
    }

    /// Notes why memory is not registered, and so stays, where nothing else is to be said.
    fn note_unregistered(&mut self, text: String) {
        if self.figures.note.is_empty() {
            self.figures.note = text;
        }
    }

    /// Pages of the batch of which the kernel says that they are registered and present. `None`
    /// while a change of the mappings is under way.
    fn known_registered(&mut self, batch: Vec<u64>) -> Option<Vec<u64>> {
        let space = self.spaces[0].as_ref()?;
        let mut known = Vec::with_capacity(batch.len());
        for page in batch {
            let word = space.table.get(page);
            if !word.is_registered() {
                match sys::zero_page(space.uffd.as_raw_fd(), page) {
                    Err(libc::EEXIST) => space.table.set(page, word.registered()),
                    Err(libc::EAGAIN) => return None,
                    _ => continue,
                }
            }
            known.push(page);
        }
        Some(known)
    }

    /// Has pages land, stores them, and empties the landing area. No event is read meanwhile.
    fn evict_batch(&mut self, batch: &[u64]) -> u64 {
        for (place, page) in self.shared.journal.iter().zip(batch) {
            place.store(*page, Relaxed);
        }
        self.shared.journaled.store(batch.len() as u32, Release);
        let landed = self.land(batch);
        let Some(back) = self.store_landed(batch, &landed) else {
            // What has landed stays where it is, and in the journal for the guard.
            return 0;
        };
        self.shared.journaled.store(0, Release);
        if !self.stub.dead && self.stub.empty_landing().is_err() {
            self.frozen = true;
            self.figures.note =
                "the landing area cannot be emptied: nothing more is evicted".into();
        }
        for page in back {
            self.serve(0, page);
            if let Some(space) = &self.spaces[0] {
                space.table.set(page, space.table.get(page).with_uses(7));
            }
        }
        landed.iter().filter(|landed| **landed).count() as u64
    }

    /// Asks the stub to move pages into the landing area. Returns for each whether it has landed.
    fn land(&mut self, batch: &[u64]) -> Vec<bool> {
        let data_at = self.stub.data_address(batch.len());
        let mut data = Vec::with_capacity(batch.len() * 40);
        let mut calls = Vec::with_capacity(batch.len());
        for (index, page) in batch.iter().enumerate() {
            let place = self.stub.landing + index as u64 * PAGE;
            for word in [place, *page, PAGE, 0, 0] {
                data.extend(u64::to_ne_bytes(word));
            }
            let there = self.stub.uffd_there as u64;
            let argument = data_at + index as u64 * 40;
            calls.push([libc::SYS_ioctl as u64, there, sys::UFFDIO_MOVE, argument, 0, 0, 0]);
        }
        let Ok(results) = self.stub.calls(&calls, &mut data) else {
            self.figures.note = "the stub was killed: nothing more is evicted".into();
            return self.landed(batch.len());
        };
        let space = self.spaces[0].as_ref();
        for (page, result) in batch.iter().zip(&results) {
            if *result < 0 && ![libc::EAGAIN, libc::ENOENT].contains(&(-*result as i32)) {
                self.figures.failed_moves += 1;
                self.figures.last_error = -*result as i32;
                if let Some(space) = space {
                    space.table.set(*page, space.table.get(*page).with_uses(7));
                }
            }
        }
        // An error does not mean that nothing has moved: Linux 6.18 moves pages that it does not
        // count, beside forks.
        if results.iter().all(|result| *result == 0) {
            return vec![true; batch.len()];
        }
        self.landed(batch.len())
    }

    /// Whether each page of the landing area holds something, as the kernel has it.
    pub fn landed(&self, pages: usize) -> Vec<bool> {
        let mut entries = vec![0u8; pages * 8];
        let at = self.stub.landing / PAGE * 8;
        let got = self.pagemap.read_at(&mut entries, at).unwrap_or(0);
        // Bits 63 and 62: present, swapped out.
        entries
            .chunks(8)
            .enumerate()
            .map(|(index, entry)| index * 8 < got && entry[7] >> 6 != 0)
            .collect()
    }

    /// The content of the landing area, as far as pages have landed.
    fn landed_pages(&self, landed: &[bool]) -> Option<Vec<[u8; PAGE as usize]>> {
        let mut pages = vec![[0u8; PAGE as usize]; landed.len()];
        for (index, page) in pages.iter_mut().enumerate().filter(|(index, _)| landed[*index]) {
            *page = self.landed_page(index)?;
        }
        Some(pages)
    }

    /// The content of one page of the landing area.
    pub fn landed_page(&self, index: usize) -> Option<[u8; PAGE as usize]> {
        let mut page = [0u8; PAGE as usize];
        self.memory.read_exact_at(&mut page, self.stub.landing + index as u64 * PAGE).ok()?;
        Some(page)
    }

    /// Whether a page is in the journal while nothing is evicted: its content could not be read.
    pub fn is_unread(&self, page: u64) -> bool {
        let count = self.shared.journaled.load(Acquire) as usize;
        self.shared.journal[..count.min(BATCH)].iter().any(|place| place.load(Relaxed) == page)
    }

    /// Stores what has landed, and notes it. Pages that are not worth it are returned: they are in
    /// the store like the others, and go back. `None` if the landing area cannot be read.
    fn store_landed(&mut self, batch: &[u64], landed: &[bool]) -> Option<Vec<u64>> {
        let mut back = Vec::new();
        // It can fail when the memory itself is going away, with the target.
        let Some(contents) = self.landed_pages(landed) else {
            self.frozen = true;
            self.figures.note = "the target's memory cannot be read any more".into();
            return None;
        };
        for (index, page) in batch.iter().enumerate().filter(|(index, _)| landed[*index]) {
            let Some(space) = &mut self.spaces[0] else { break };
            let content = &contents[index];
            let word = space.table.get(*page);
            self.figures.evicted_pages += 1;
            if content.iter().all(|byte| *byte == 0) {
                // Absent, it is zero when it is touched.
                space.table.set(*page, Word::none(word));
                continue;
            }
            let place = loop {
                match self.store.put(content) {
                    Some(place) => break place,
                    None => std::thread::sleep(std::time::Duration::from_millis(10)),
                }
            };
            let (offset, len, is_worth) = place;
            // While a change of the mappings is under way, there is no mark.
            let fd = space.uffd.as_raw_fd();
            let out = word.out(offset, len);
            let is_marked = self.stub.marks && sys::mark_absent(fd, *page, *page + PAGE).is_ok();
            space.table.set(*page, if is_marked { out.marked() } else { out });
            space.out += 1;
            if !is_worth {
                self.figures.incompressible_pages += 1;
                back.push(*page);
            }
        }
        Some(back)
    }
}
