//! A fault handler: reads messages of one userfaultfd, one after the other, and serves them.

use crate::fault::buffers::{MESSAGES, Tools};
use crate::fault::coalesce::Coalescer;
use crate::fault::event_queue::{QUEUED, Queue, UNMAPPED};
use crate::fault::following::CpuFollower;
use crate::fault::readahead::ReadAhead;
use crate::fault::restore::Outcome;
use crate::pages::lock::Entry as GateEntry;
use crate::pages::mm::Mm;
use crate::pages::shards::SHARDS_MAX;
use crate::trace::{FaultStep, StepTimer};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_os::{self as sys, Errno, Event, Fd, Message, PAGE};

/// Attempts at a page that another thread has claimed before its fault is put off. Nearly all are
/// done by then.
const BUSY_TRIES: u32 = 100;
/// Longest wait for room before a page is restored anyway.
const ROOM_WAIT: Duration = Duration::from_millis(5);

impl Mm {
    /// Waits for messages and serves them. Then, if asked to, restores ahead of faults. False if
    /// this thread is to end.
    pub(crate) fn handle_some(
        &self,
        uffd: Fd,
        messages: &mut [Message],
        tools: &mut Tools,
        mut of_handler: Option<(&mut ReadAhead, &mut Coalescer, &mut CpuFollower)>,
    ) -> bool {
        let mut stays = true;
        match sys::uffd_read(uffd, messages) {
            Ok(count) => {
                self.queue_messages(uffd, &messages[..count]);
                // More may be read while pages are filled.
                while self.has_messages(uffd) {
                    let (mut gathered, mut faults, mut last) = (0, 0, 0);
                    tools.served.clear();
                    while let Some(message) = self.next_message(uffd) {
                        let (address, write) = match message.event() {
                            Event::Fault { address, write, thread } => {
                                (faults, last) = (faults + 1, thread);
                                (address & !(PAGE - 1), write)
                            }
                            event => {
                                self.handle_event(uffd, event, tools);
                                tools.served.clear();
                                continue;
                            }
                        };
                        if self.is_shutdown_page(address) {
                            self.fill_zero(uffd, address, write);
                            stays = false;
                            continue;
                        }
                        if tools.served.contains(&address) {
                            // Served for another thread just now, which woke this one too. If it
                            // did not, the woken thread checks again.
                            sys::uffd_wake(uffd, address, PAGE);
                            let (waited_ns, ran_ns) = self.faults.cost.overhead_parts_ns();
                            self.account.add_stall(waited_ns, ran_ns);
                            continue;
                        }
                        if tools.served.len() < tools.served.capacity() {
                            tools.served.push(address);
                        }
                        let is_of_stream = of_handler
                            .as_mut()
                            .is_some_and(|(ahead, ..)| self.note_fault(address, ahead));
                        gathered += usize::from(!is_of_stream);
                        self.fault(uffd, address, write, last, tools);
                    }
                    if faults > 0 {
                        self.faults.cost.read(faults as u64);
                    }
                    if let Some((ahead, coalescer, follower)) = &mut of_handler {
                        if self.settings.coalescing {
                            coalescer.read(gathered);
                        }
                        follower.served(&self.faults.threads, faults, last);
                        let count = self.read_ahead(uffd, messages, tools, ahead);
                        self.queue_messages(uffd, &messages[..count]);
                    }
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // A closed userfaultfd releases its ranges, and evicted pages would read as zeros.
            Err(Errno::EBADF) if self.table_has_evicted() => {
                self.end_program("a userfaultfd was closed, so evicted pages would read as zeros")
            }
            Err(e) => {
                // A thread that waits for a page of this shard waits until reading works again.
                self.freeze(&format!("reading a userfaultfd failed ({e})"));
                sys::sleep(Duration::from_millis(100));
            }
        }
        stays
    }

    fn fault(&self, uffd: Fd, address: usize, write: bool, thread: i32, tools: &mut Tools) {
        let start_ns = sys::now_ns();
        tools.timing.begin(&self.faults.cost, thread, start_ns);
        if self.trace.is_on() {
            tools.timer.begin(start_ns);
        }
        self.wait_for_room(PAGE as u64, ROOM_WAIT);
        tools.timer.mark(FaultStep::Room);
        let mut tries = 1;
        while self.try_fault(uffd, address, write, tools, start_ns) == Outcome::Busy {
            if tries == BUSY_TRIES {
                // The thread that has claimed it may need this very thread first (a discard, for a
                // page of its own stack). So the thread that waits retries: its fault is queued
                // behind the others'.
                sys::uffd_wake(uffd, address, PAGE);
                break;
            }
            tries += 1;
            sys::yield_now();
        }
        tools.timer = StepTimer::default();
        let end_ns = sys::now_ns();
        tools.timing.end(end_ns);
        let (waited_ns, ran_ns) = self.faults.cost.overhead_parts_ns();
        self.account.add_stall(end_ns - start_ns + waited_ns, ran_ns);
    }

    /// Makes one attempt at a fault that was taken at `start_ns`.
    pub(crate) fn try_fault(
        &self,
        uffd: Fd,
        address: usize,
        write: bool,
        tools: &mut Tools,
        start_ns: u64,
    ) -> Outcome {
        let (entry, _inside) = self.gate.handler();
        match entry {
            GateEntry::Normal => self.restore(uffd, address, write, tools, start_ns, true),
            GateEntry::CopyOnly => self.fill_during_fork(uffd, address, write, tools),
        }
    }
}

/// Messages that are read wait in a queue: more are read while a page is filled.
impl Mm {
    pub(super) fn queue_of(&self, uffd: Fd) -> Option<&Queue> {
        let shards = self.descriptors.shards.load(Acquire).min(SHARDS_MAX);
        let shard = self.descriptors.uffds[..shards]
            .iter()
            .position(|known| known.load(Relaxed) == uffd)?;
        Some(&self.faults.events.queues[shard])
    }

    /// Makes the calling thread the reader of this userfaultfd.
    pub(crate) fn become_reader(&self, shard: usize) {
        let queue = &self.faults.events.queues[shard];
        queue.messages.lock().reserve(QUEUED);
        self.faults.events.unmapped.lock().reserve(UNMAPPED);
        queue.reader.store(sys::thread_id(), Release);
    }

    /// Adds the messages that were read to the queue.
    fn queue_messages(&self, uffd: Fd, messages: &[Message]) {
        if let Some(queue) = self.queue_of(uffd) {
            queue.messages.lock().extend(messages);
        }
    }

    /// Whether there is a message to serve.
    pub(crate) fn has_messages(&self, uffd: Fd) -> bool {
        self.queue_of(uffd).is_some_and(|queue| !queue.messages.lock().is_empty())
    }

    /// The next message to serve.
    fn next_message(&self, uffd: Fd) -> Option<Message> {
        self.queue_of(uffd)?.messages.lock().pop_front()
    }

    /// Waits briefly while another thread has to do something. The reader of `uffd` reads
    /// meanwhile: the other thread may be waiting for that.
    pub(crate) fn wait_a_moment(&self, uffd: Fd) {
        if let Some(queue) =
            self.queue_of(uffd).filter(|queue| queue.reader.load(Acquire) == sys::thread_id())
        {
            let mut messages = [Message::default(); 8];
            while queue.messages.lock().len() + messages.len() + MESSAGES <= QUEUED
                && let Ok(count @ 1..) = sys::uffd_read_now(uffd, &mut messages)
            {
                queue.messages.lock().extend(&messages[..count]);
            }
        }
        sys::yield_now();
    }
}
