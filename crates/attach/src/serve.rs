//! Faults and events: what the kernel tells, and what is done about it.

use crate::process;
use crate::state::{Discard, Keeper, MESSAGES, SPACES, Space};
use crate::sys::{self, Message, PAGE, Run};
use crate::table::{ADDRESSES, State, Table, Word};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;

/// Time, us, that it costs a thread to wake one of ours on another CPU, and to sleep until that has
/// answered (docs/notes/2026-11-27-where-a-fault-goes.md).
const WAKE_UPS_US: u64 = 50;
/// Pages that are zeroed ahead of a first touch.
pub const AHEAD: u64 = 31;
const UFFDIO_POISON: u64 = 0xc020_aa08;

/// Number of children, too many at once, that are let begin before their memory is brought back.
const CROWD: usize = 64;

/// How long a discard may take between its event and its end, ms. After that a mark that is still
/// there means MADV_FREE, which discards nothing yet.
const DISCARD_MS: u64 = 100;

impl Keeper {
    /// Reads and answers everything there is.
    pub fn pump(&mut self) {
        loop {
            for number in 0..self.spaces.len() {
                // More children are let begin when these have their memory.
                if self.crowd.len() < CROWD {
                    self.drain(number);
                }
            }
            if self.queue.is_empty() {
                return;
            }
            while let Some((number, page)) = self.queue.pop_front() {
                self.figures.faults += 1;
                let begun = sys::now_ns();
                self.serve(number, page);
                self.figures.waited_us += (sys::now_ns() - begun) / 1000 + WAKE_UPS_US;
            }
        }
    }

    /// Reads all messages of an address space: events are applied, faults are queued. Returns
    /// whether there were any.
    pub fn drain(&mut self, number: usize) -> bool {
        let mut any = false;
        while let Some(space) = &self.spaces[number] {
            let fd = space.uffd.as_raw_fd();
            // SAFETY: no other process or thread uses the buffer while this process is the keeper.
            let messages = unsafe { &mut *self.shared.messages.get() };
            *messages = [Message::default(); MESSAGES];
            self.shared.applied.store(0, Relaxed);
            self.shared.reading.store(number as u32, Release);
            let got = sys::read_messages(fd, messages);
            if got == 0 {
                break;
            }
            any = true;
            let copy = *messages;
            for (index, message) in copy[..got].iter().enumerate() {
                self.apply(number, message);
                self.shared.applied.store(index as u32 + 1, Release);
            }
            if self.crowd.len() >= CROWD {
                break;
            }
        }
        any
    }

    /// Applies a message. To do so twice is the same as once: the guard may have to.
    pub fn apply(&mut self, number: usize, message: &Message) {
        let [a, b, c] = message.words;
        match message.event {
            sys::EVENT_PAGEFAULT if a & sys::FAULT_PROTECTED != 0 => {
                // A page that was marked as absent, and was not.
                if let Some(space) = &self.spaces[number] {
                    let page = b & !(PAGE - 1);
                    let _ = sys::unprotect(space.uffd.as_raw_fd(), page, page + PAGE);
                }
            }
            sys::EVENT_PAGEFAULT => self.queue.push_back((number, b & !(PAGE - 1))),
            sys::EVENT_FORK => self.forked(number, a as u32 as i32),
            sys::EVENT_REMAP => self.remapped(number, a, b, c),
            sys::EVENT_REMOVE => self.discarded(number, a, b),
            sys::EVENT_UNMAP => self.unmapped(number, a, b),
            _ => {}
        }
        if message.event != sys::EVENT_PAGEFAULT {
            self.figures.events += 1;
            self.figures.waited_us += WAKE_UPS_US;
        }
    }

    /// Notes that a range is about to be discarded, at any later time. What is in the store is zero
    /// from then on. It stays there until the mark in the page table tells.
    fn discarded(&mut self, number: usize, start: u64, end: u64) {
        let Some(space) = &self.spaces[number] else { return };
        let mut is_any = false;
        for (page, word) in space.table.known(start, end) {
            if word.slot().is_some() {
                is_any = true;
                space.table.set(page, word.doomed());
            }
        }
        // Of children nothing is evicted.
        let mut at = if number == 0 { start } else { end };
        while at < end.min(ADDRESSES) {
            let mut runs = [Run::default(); 256];
            let Ok((found, walked)) = sys::present(self.pagemap.as_raw_fd(), at, end, &mut runs)
            else {
                break;
            };
            for run in &runs[..found] {
                for page in (run.start..run.end).step_by(PAGE as usize) {
                    let word = space.table.get(page);
                    if word.slot().is_none() {
                        space.table.set(page, word.gone());
                    }
                }
            }
            at = walked.max(at + PAGE);
        }
        if is_any {
            self.discards.push_back(Discard { space: number, start, end, since_ms: sys::now_ms() });
        }
    }

    /// How long ago a page was to be discarded, ms, where that was lately.
    fn discarded_for_ms(&self, number: usize, page: u64) -> Option<u64> {
        let is_it = |discard: &&Discard| {
            discard.space == number && (discard.start..discard.end).contains(&page)
        };
        let latest = self.discards.iter().rev().find(is_it)?;
        Some(sys::now_ms().saturating_sub(latest.since_ms))
    }

    /// Looks which discards are over, and removes their pages from the store. Serves faults that
    /// waited.
    pub fn settle_discards(&mut self) {
        for (number, page) in std::mem::take(&mut self.later) {
            self.serve(number, page);
        }
        let now = sys::now_ms();
        while self.discards.front().is_some_and(|first| now - first.since_ms > DISCARD_MS) {
            let Some(discard) = self.discards.pop_front() else { return };
            if discard.space == 0 {
                self.settle_discard(&discard);
            }
        }
    }

    fn settle_discard(&mut self, discard: &Discard) {
        let Some(space) = &mut self.spaces[0] else { return };
        for (page, word) in space.table.known(discard.start, discard.end) {
            let State::Doomed(offset, _) = word.state() else { continue };
            if !sys::has_mark(self.pagemap.as_raw_fd(), page) {
                space.table.set(page, word.none());
                space.out -= 1;
                self.store.release(offset);
            }
        }
    }

    fn unmapped(&mut self, number: usize, start: u64, end: u64) {
        let Some(space) = &mut self.spaces[number] else { return };
        let mut freed = Vec::new();
        for (page, word) in space.table.known(start, end) {
            space.table.set(page, Word(0));
            freed.extend(word.slot());
        }
        space.out -= freed.len() as u64;
        freed.into_iter().for_each(|offset| self.store.release(offset));
    }

    fn remapped(&mut self, number: usize, from: u64, to: u64, bytes: u64) {
        let Some(space) = &self.spaces[number] else { return };
        for (page, word) in space.table.known(from, from + bytes) {
            let place = to + (page - from);
            if place < ADDRESSES {
                // Not known to be registered there.
                let state = match word.state() {
                    // The mark moves along.
                    State::Out(..) | State::Doomed(..) => word.unregistered(),
                    State::Gone => Word(0).gone(),
                    State::None => Word(0),
                };
                space.table.set(place, state);
            }
            space.table.set(page, Word(0));
        }
    }

    /// Notes that a child has all pages that its parent had. The same pages are evicted, but for
    /// what the child is to find empty (MADV_WIPEONFORK).
    fn forked(&mut self, number: usize, uffd: i32) {
        let known = self.shared.spaces.iter();
        if known
            .filter(|space| space.used.load(Acquire) == 1)
            .any(|space| space.uffd.load(Relaxed) == uffd)
        {
            return;
        }
        self.figures.forks += 1;
        // SAFETY: the kernel has just made it, for the process that read the event.
        let uffd = unsafe { OwnedFd::from_raw_fd(uffd) };
        let _ = terrace_os::set_nonblocking(uffd.as_raw_fd());
        if self.spaces[number].as_ref().is_none_or(|parent| parent.out == 0) {
            // Closed, it leaves the child as if it had never been registered.
            return;
        }
        let table = loop {
            match Table::new() {
                Ok(table) => break table,
                // The child would read zeros. Memory or descriptors become free again.
                Err(error) => {
                    sys::wait_for_any(self.channel.descriptors(), 10);
                    self.answer(&format!("a forked child waits for its pages: {error:#}"));
                }
            }
        };
        let Some(parent) = &self.spaces[number] else { return };
        let mut out = 0;
        // The numbers of children are not known, and of their pages none is evicted anew.
        let wiped = if number == 0 { process::wiped_in_children(self.target) } else { Vec::new() };
        let is_wiped = |page: u64| wiped.iter().any(|(start, end)| (*start..*end).contains(&page));
        for (page, word) in parent.table.known(0, ADDRESSES) {
            if let Some(offset) = word.slot().filter(|_| !is_wiped(page)) {
                table.set(page, word);
                self.store.share(offset);
                out += 1;
            }
        }
        let there =
            if self.stub.dead { -1 } else { self.stub.give(uffd.as_raw_fd()).unwrap_or(-1) };
        let space = Some(Space { uffd, table, out, there });
        let free = (1..self.spaces.len()).find(|number| self.spaces[*number].is_none());
        let place = free.unwrap_or(self.spaces.len());
        if place == self.spaces.len() {
            self.spaces.push(None);
        }
        self.spaces[place] = space;
        if place < SPACES {
            self.share_space(place);
        }
        if there >= 0 {
            let _ = self.stub.hold_descriptor(place, there);
        }
        if place >= SPACES / 2 {
            // Not now: of the messages that were read with this one some may still be unapplied.
            self.crowd.push(place);
        }
    }

    /// Brings everything back to those of many children that came last, and ends serving them.
    pub fn restore_crowd(&mut self) {
        while let Some(number) = self.crowd.pop() {
            self.restore_space(number);
            self.drop_space(number);
        }
    }

    /// Puts a page where it belongs: what is evicted from the store, zeros elsewhere.
    pub fn serve(&mut self, number: usize, page: u64) {
        let mut buffer = [0u8; PAGE as usize];
        let (mut missing, mut is_freed) = (0, false);
        if number == 0 && self.is_unread(page) {
            // Its content is in the landing area: no thread may read zeros instead.
            return;
        }
        loop {
            let Some(space) = &self.spaces[number] else { return };
            let word = space.table.get(page);
            let is_doomed = matches!(word.state(), State::Doomed(..));
            let age_ms = is_doomed.then(|| self.discarded_for_ms(number, page)).flatten();
            let age_ms = age_ms.unwrap_or(DISCARD_MS);
            let Some(space) = &mut self.spaces[number] else { return };
            let fd = space.uffd.as_raw_fd();
            let placed = match word.state() {
                State::Doomed(..) if !is_freed => {
                    if !word.is_marked() && age_ms < DISCARD_MS {
                        return self.later.push((number, page));
                    }
                    match sys::zero_page(fd, page) {
                        // The mark is there, or another thread has placed the page.
                        Err(libc::EEXIST) if age_ms < DISCARD_MS => {
                            return self.later.push((number, page));
                        }
                        Err(libc::EEXIST) => {
                            is_freed = true;
                            continue;
                        }
                        placed => placed,
                    }
                }
                State::Out(offset, len) | State::Doomed(offset, len) => {
                    match self.store.get(offset, len, &mut buffer) {
                        Ok(()) => sys::copy_page(fd, page, &buffer),
                        Err(error) => {
                            self.figures.note = format!("{error:#}: who touches it gets SIGBUS");
                            self.frozen = true;
                            sys::ioctl(fd, UFFDIO_POISON, &mut [page, PAGE, 0, 0])
                        }
                    }
                }
                _ => sys::zero_page(fd, page),
            };
            match (placed, word.state()) {
                (Ok(_), State::Doomed(offset, _)) if !is_freed => {
                    space.table.set(page, word.none());
                    space.out -= 1;
                    self.store.release(offset);
                    self.figures.zero_pages += 1;
                    return;
                }
                (Ok(_), State::Out(offset, _) | State::Doomed(offset, _)) => {
                    space.table.set(page, word.back(sys::now_ms()));
                    space.out -= 1;
                    self.store.release(offset);
                    self.figures.restored_pages += 1;
                    return;
                }
                (Ok(_), _) => {
                    // Absent, so an announced discard has been.
                    space.table.set(page, word.none());
                    self.figures.zero_pages += 1;
                    self.zero_ahead(number, page + PAGE);
                    return;
                }
                (Err(libc::EAGAIN), _) => {
                    if !self.drain(number) {
                        sys::yield_now();
                    }
                }
                (Err(libc::ESRCH), _) => return,
                (Err(libc::ENOMEM), _) => std::thread::sleep(std::time::Duration::from_millis(1)),
                // Not registered: unmapped, perhaps by a call whose event is on its way.
                (Err(libc::ENOENT), State::Out(..) | State::Doomed(..)) if missing < 3 => {
                    missing += 1;
                    self.drain(number);
                }
                (Err(error), state) => {
                    let _ = sys::wake(fd, page, page + PAGE);
                    if let State::Out(offset, _) | State::Doomed(offset, _) = state {
                        // Another page is there, or none can be.
                        space.table.set(page, word.none());
                        space.out -= 1;
                        self.store.release(offset);
                        self.figures.stale_pages += 1;
                        self.figures.last_error = error;
                    }
                    return;
                }
            }
        }
    }

    /// Maps the zero page ahead of a first touch, as far as nothing is known of the pages. It takes
    /// no memory, and the next first touches are the kernel's.
    fn zero_ahead(&mut self, number: usize, start: u64) {
        let Some(space) = &self.spaces[number] else { return };
        let is_plain = |page: &u64| *page < ADDRESSES && space.table.get(*page).0 == 0;
        let pages = (0..AHEAD).map(|index| start + index * PAGE).take_while(is_plain).count();
        if pages > 0 {
            let mut words = [start, pages as u64 * PAGE, 0, 0];
            let _ = sys::ioctl(space.uffd.as_raw_fd(), sys::UFFDIO_ZEROPAGE, &mut words);
        }
    }

    /// Restores what is evicted of an address space. Returns whether its memory is still there.
    pub fn restore_space(&mut self, number: usize) -> bool {
        while let Some(space) = &self.spaces[number] {
            let out: Vec<u64> = space
                .table
                .known(0, ADDRESSES)
                .filter(|(_, word)| word.slot().is_some())
                .map(|(page, _)| page)
                .take(4096)
                .collect();
            if space.is_gone() {
                return false;
            }
            if out.is_empty() {
                return true;
            }
            for pages in out.chunks(32) {
                for page in pages {
                    // An event that was read meanwhile may have changed it.
                    let is_out = |space: &Space| space.table.get(*page).slot().is_some();
                    if self.spaces[number].as_ref().is_some_and(is_out) {
                        self.serve(number, *page);
                    }
                }
                self.pump();
            }
            if !self.later.is_empty() {
                std::thread::sleep(std::time::Duration::from_millis(1));
                self.settle_discards();
            }
        }
        false
    }

    /// Brings everything back, also to children that are made meanwhile.
    pub fn restore_everything(&mut self) {
        loop {
            self.pump();
            let out = |space: &Option<Space>| space.as_ref().is_some_and(|space| space.out > 0);
            let Some(number) = self.spaces.iter().position(out) else { return };
            if !self.restore_space(number) {
                // No process is left that could read its pages. Other spaces have theirs to come.
                self.drop_space(number);
            } else if let Some(space) = &mut self.spaces[number] {
                // The record of pages names none any more.
                space.out = 0;
            }
        }
    }
}
