//! Faults and events: what the kernel tells, and what is done about it.

use crate::keeper::{Keeper, MESSAGES, SPACES, Space};
use crate::sys::{self, Message, PAGE};
use crate::table::{ADDRESSES, State, Table, Word};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;

/// Pages that are zeroed ahead of a first touch.
const AHEAD: u64 = 31;
const UFFDIO_POISON: u64 = 0xc020_aa08;

fn now_ms() -> u64 {
    sys::now_ns() / 1_000_000
}

impl Keeper {
    /// Reads and answers everything there is.
    pub fn pump(&mut self) {
        loop {
            for number in 0..self.spaces.len() {
                self.drain(number);
            }
            if self.queue.is_empty() {
                return;
            }
            while let Some((number, page)) = self.queue.pop_front() {
                self.figures.faults += 1;
                self.serve(number, page);
            }
        }
    }

    /// Reads all messages of an address space: events are applied, faults are queued. Whether there
    /// were any.
    pub fn drain(&mut self, number: usize) -> bool {
        let mut any = false;
        while let Some(space) = &self.spaces[number] {
            let fd = space.uffd.as_raw_fd();
            // SAFETY: nobody else uses the buffer while this process is the keeper.
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
        }
        any
    }

    /// Applies a message. Doing so twice is as doing so once: the guard may have to.
    pub fn apply(&mut self, number: usize, message: &Message) {
        let [a, b, c] = message.words;
        match message.event {
            sys::EVENT_PAGEFAULT => self.queue.push_back((number, b & !(PAGE - 1))),
            sys::EVENT_FORK => self.forked(number, a as u32 as i32),
            sys::EVENT_REMAP => self.remapped(number, a, b, c),
            sys::EVENT_REMOVE => self.discarded(number, a, b),
            sys::EVENT_UNMAP => self.unmapped(number, a, b),
            _ => {}
        }
        self.figures.events += u64::from(message.event != sys::EVENT_PAGEFAULT);
    }

    /// The range is about to be discarded. What is resident may be discarded at any later time; what
    /// is out is no more.
    fn discarded(&mut self, number: usize, start: u64, end: u64) {
        let Some(space) = &mut self.spaces[number] else { return };
        for page in (start..end.min(ADDRESSES)).step_by(PAGE as usize) {
            let word = space.table.get(page);
            if let State::Out(offset, _) = word.state() {
                space.table.set(page, word.none());
                space.out -= 1;
                self.store.release(offset);
            } else {
                space.table.set(page, word.gone());
            }
        }
    }

    fn unmapped(&mut self, number: usize, start: u64, end: u64) {
        let Some(space) = &mut self.spaces[number] else { return };
        let mut freed = Vec::new();
        for (page, word) in space.table.known(start, end) {
            space.table.set(page, Word(0));
            if let State::Out(offset, _) = word.state() {
                freed.push(offset);
            }
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
                    State::Out(offset, len) => Word(0).with_uses(word.uses()).out(offset, len),
                    State::Gone => Word(0).gone(),
                    State::None => Word(0),
                };
                space.table.set(place, state);
            }
            space.table.set(page, Word(0));
        }
    }

    /// A child has all pages that its parent had, and the same are out.
    fn forked(&mut self, number: usize, uffd: i32) {
        let known = self.shared.spaces.iter();
        if known
            .filter(|space| space.used.load(Acquire) == 1)
            .any(|space| space.uffd.load(Relaxed) == uffd)
        {
            return;
        }
        self.figures.forks += 1;
        // SAFETY: the kernel has just made it, for whoever read the event.
        let uffd = unsafe { OwnedFd::from_raw_fd(uffd) };
        // SAFETY: no memory is involved.
        unsafe { libc::fcntl(uffd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let Some(parent) = &self.spaces[number] else { return };
        if parent.out == 0 {
            // Closed, it leaves the child as if it had never been registered.
            return;
        }
        let table = loop {
            match Table::new() {
                Ok(table) => break table,
                // The child would read zeros. Memory or descriptors come back.
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
        };
        let mut out = 0;
        for (page, word) in parent.table.known(0, ADDRESSES) {
            if let State::Out(offset, _) = word.state() {
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
        if place >= SPACES / 2 {
            // So many children at once get everything back right away.
            self.restore_space(place);
            self.drop_space(place);
        }
    }

    /// Puts a page where it belongs: what is out from the store, zeros elsewhere.
    pub fn serve(&mut self, number: usize, page: u64) {
        let mut buffer = [0u8; PAGE as usize];
        let mut missing = 0;
        loop {
            let Some(space) = &mut self.spaces[number] else { return };
            let fd = space.uffd.as_raw_fd();
            let word = space.table.get(page);
            let placed = match word.state() {
                State::Out(offset, len) => match self.store.get(offset, len, &mut buffer) {
                    Ok(()) => sys::copy_page(fd, page, &buffer),
                    Err(error) => {
                        self.figures.note = format!("{error:#}: who touches it gets SIGBUS");
                        self.frozen = true;
                        sys::ioctl(fd, UFFDIO_POISON, &mut [page, PAGE, 0, 0])
                    }
                },
                _ => sys::zero_page(fd, page),
            };
            match (placed, word.state()) {
                (Ok(_), State::Out(offset, _)) => {
                    space.table.set(page, word.back(now_ms()));
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
                (Err(libc::ENOENT), State::Out(..)) if missing < 3 => {
                    missing += 1;
                    self.drain(number);
                }
                (Err(error), state) => {
                    let _ = sys::wake(fd, page, page + PAGE);
                    if let State::Out(offset, _) = state {
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

    /// Maps the zero page ahead of a first touch, as far as nothing is known of the pages: it takes
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

    /// Brings back what is out of one address space.
    pub fn restore_space(&mut self, number: usize) {
        while let Some(space) = &self.spaces[number] {
            let out: Vec<u64> = space
                .table
                .known(0, ADDRESSES)
                .filter(|(_, word)| word.is_out())
                .map(|(page, _)| page)
                .take(4096)
                .collect();
            let probe = sys::zero_page(space.uffd.as_raw_fd(), PAGE);
            if out.is_empty() || probe == Err(libc::ESRCH) {
                return;
            }
            for pages in out.chunks(32) {
                for page in pages {
                    // An event that was read meanwhile may have changed it.
                    let is_out = |space: &Space| space.table.get(*page).is_out();
                    if self.spaces[number].as_ref().is_some_and(is_out) {
                        self.serve(number, *page);
                    }
                }
                self.pump();
            }
        }
    }

    /// Brings everything back, also to children that are made meanwhile.
    pub fn restore_everything(&mut self) {
        loop {
            self.pump();
            let out = |space: &Option<Space>| space.as_ref().is_some_and(|space| space.out > 0);
            let Some(number) = self.spaces.iter().position(out) else { return };
            self.restore_space(number);
            let Some(space) = &self.spaces[number] else { continue };
            if space.out > 0 {
                // It has ended.
                if number == 0 {
                    return;
                }
                self.drop_space(number);
            }
        }
    }
}
