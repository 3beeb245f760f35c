//! What all hooks lead to, behind one lock: the modelled cache, the objects, and what is written.

use crate::heap::{ContextId, Heap, Missed, ObjectId, PAGE};
use crate::pages::{self, Totals};
use crate::settings::{Mode, Settings, Start};
use serde_json::json;
use std::io;
use terrace_trace::accesses::{self, CacheModel, Clock};
use terrace_trace::cache::{Cache, LINE};
use terrace_trace::objects::{self, Event};

/// How many contexts a summary names.
const CONTEXTS_SHOWN: usize = 50;

/// A recording.
pub struct Recorder {
    settings: Settings,
    cache: Option<Cache>,
    /// Accesses since the program began.
    clock: u64,
    /// Value of `clock` when counting began.
    begun: u64,
    counting: bool,
    /// Objects, where they are asked for.
    heap: Option<Heap>,
    totals: Totals,
    sink: Sink,
    /// Misses to pass over before one is written.
    pass_over: u64,
    random: u64,
    name: fn(usize) -> String,
    /// Why nothing is written any more.
    broken: Option<io::Error>,
}

/// What is done with misses.
enum Sink {
    /// The summary at the end.
    Pages,
    Trace {
        writer: accesses::Writer,
        process: u32,
    },
    Objects(objects::Writer),
}

impl Recorder {
    /// Begins a recording, of this process and its command line. `name` is how a return address is
    /// written.
    ///
    /// # Errors
    /// If there is no memory, or the file cannot be written.
    pub fn new(
        settings: Settings,
        process: u32,
        command: Vec<String>,
        name: fn(usize) -> String,
    ) -> io::Result<Recorder> {
        let (terrace, source, clock) =
            (env!("CARGO_PKG_VERSION").to_owned(), "hooks".to_owned(), Clock::Accesses);
        let cache = (settings.cache_bytes > 0).then_some(CacheModel {
            bytes: settings.cache_bytes as u64,
            ways: Cache::WAYS as u32,
            line_bytes: LINE as u32,
        });
        let (period, file, limit) = (settings.period, &settings.file, settings.limit);
        let sink = match settings.mode {
            Mode::Pages => {
                // That it cannot be written is better known now than after an hour.
                std::fs::File::create(file)?;
                Sink::Pages
            }
            Mode::Trace => {
                let header = accesses::Header {
                    terrace,
                    command,
                    source,
                    clock,
                    period,
                    rate_hz: 0,
                    writes: true,
                    cache,
                    page_bytes: PAGE,
                };
                Sink::Trace { writer: accesses::Writer::create(file, &header, limit)?, process }
            }
            Mode::Objects => {
                let header = objects::Header {
                    terrace,
                    command,
                    source,
                    clock,
                    period,
                    cache,
                    depth: settings.depth as u32,
                };
                Sink::Objects(objects::Writer::create(file, &header, limit)?)
            }
        };
        let heap = match settings.mode {
            Mode::Trace => None,
            Mode::Pages | Mode::Objects => Some(Heap::default()),
        };
        let mut recorder = Recorder {
            cache: (settings.cache_bytes > 0).then(|| Cache::of(settings.cache_bytes)),
            clock: 0,
            begun: 0,
            counting: false,
            heap,
            totals: Totals::default(),
            sink,
            pass_over: 0,
            random: 1,
            name,
            broken: None,
            settings,
        };
        if recorder.settings.start == Start::Now {
            recorder.start();
        }
        Ok(recorder)
    }

    /// Whether every access is told of, also an access to the line of the last.
    pub fn wants_all(&self) -> bool {
        self.cache.is_none()
    }

    /// Return addresses that make a context; `None` where objects are not asked for.
    pub fn depth(&self) -> Option<usize> {
        self.heap.as_ref().map(|_| self.settings.depth)
    }

    /// Begins counting, if it has not begun.
    pub fn start(&mut self) {
        if !self.counting {
            self.counting = true;
            self.begun = self.clock;
            self.event(|clock| Event::Counting { clock });
        }
    }

    /// Why nothing can be written any more: told once.
    pub fn broken(&mut self) -> Option<io::Error> {
        self.broken.take()
    }

    fn keep(&mut self, error: io::Error) {
        self.sink = Sink::Pages;
        self.broken = Some(error);
    }

    /// Writes an event, where events are written. Returns the number of its object there.
    fn event(&mut self, event: impl FnOnce(u64) -> Event) -> u32 {
        let Sink::Objects(writer) = &mut self.sink else { return 0 };
        match writer.append(event(self.clock), self.clock) {
            Ok(number) => number,
            Err(error) => {
                self.keep(error);
                0
            }
        }
    }

    /// Counts accesses to the line of the one before, which are met in the cache.
    pub fn passed(&mut self, accesses: u64) {
        self.clock += accesses;
    }

    /// Counts an access.
    pub fn access(&mut self, address: u64, bytes: u64, written: bool) {
        self.clock += 1;
        if let Start::After(accesses) = self.settings.start
            && self.clock > accesses
        {
            self.start();
        }
        let last = address.saturating_add(bytes.saturating_sub(1)) / LINE;
        for line in address / LINE..=last {
            let missed = self.cache.as_mut().is_none_or(|cache| !cache.touch(line * LINE));
            if missed && self.counting {
                self.totals.misses += 1;
                self.missed(address.max(line * LINE), written);
            }
        }
    }

    fn missed(&mut self, address: u64, written: bool) {
        let missed = self.heap.as_mut().map(|heap| heap.missed(address));
        match missed {
            Some(Missed::Between) => self.totals.between += 1,
            Some(Missed::Elsewhere) => self.totals.elsewhere += 1,
            Some(Missed::Object { .. }) | None => {}
        }
        if self.pass_over > 0 {
            self.pass_over -= 1;
            return;
        }
        self.pass_over = self.distance();
        match (&mut self.sink, missed) {
            (Sink::Trace { writer, process }, _) => {
                let page = accesses::Page { process: *process, number: address / PAGE };
                if let Err(error) = writer.append(page, written, self.clock) {
                    self.keep(error);
                }
            }
            (Sink::Objects(_), Some(Missed::Object { id, offset })) => {
                let object = self.heap.as_ref().map_or(0, |heap| heap.object(id).traced);
                self.event(|_| Event::Access { object, offset, written });
            }
            _ => {}
        }
    }

    /// How many misses are passed over until the next: at random, so that no loop's own period is
    /// met. On average one in `period` is written.
    fn distance(&mut self) -> u64 {
        // Of 0 to 2 (period - 1), all alike. The generator is Knuth's (The Art of Computer
        // Programming 2, 3.3.4).
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 32) * (2 * self.settings.period - 1)) >> 32
    }

    /// The context of these return addresses.
    fn context(&mut self, frames: &[usize]) -> Option<ContextId> {
        let heap = self.heap.as_mut()?;
        let before = heap.contexts().len();
        let context = heap.context(frames);
        if heap.contexts().len() > before
            && let Sink::Objects(writer) = &mut self.sink
        {
            writer.name_context(frames.iter().map(|frame| (self.name)(*frame)).collect());
        }
        Some(context)
    }

    /// Notes that an object came into being, made by a call with these return addresses.
    pub fn born(&mut self, address: u64, bytes: u64, usable: u64, frames: &[usize]) {
        let Some(context) = self.context(frames) else { return };
        // What still lies there went without our being told.
        if let Some(stale) = self.heap.as_ref().map(|heap| heap.object(heap.find(address)).address)
            && stale != 0
        {
            self.dies(stale);
        }
        let Some(heap) = &mut self.heap else { return };
        let id = heap.born(address, bytes, usable, context);
        if id != 0 {
            let number = self.event(|clock| Event::Born { address, bytes, context, clock });
            if let Some(heap) = &mut self.heap {
                heap.trace_as(id, number);
            }
        }
    }

    /// Notes that an object was freed.
    pub fn dies(&mut self, address: u64) {
        let id = self.leaves(address);
        if id != 0 {
            self.left(id);
        }
    }

    /// Notes that a realloc begins. Returns the object's number, or 0.
    pub fn leaves(&mut self, address: u64) -> ObjectId {
        self.heap.as_mut().map_or(0, |heap| heap.lift(address))
    }

    /// Notes that a realloc left its object at the same address, with another size.
    pub fn stays(&mut self, id: ObjectId, bytes: u64, usable: u64) {
        let Some(heap) = &mut self.heap else { return };
        heap.put(id, bytes, usable);
        let object = heap.object(id).traced;
        self.event(|clock| Event::Resized { object, bytes, clock });
    }

    /// Notes that a realloc gave up its old object.
    pub fn left(&mut self, id: ObjectId) {
        let Some(heap) = &mut self.heap else { return };
        let object = heap.object(id).traced;
        heap.bury(id);
        self.event(|clock| Event::Died { object, clock });
    }

    /// Ends the recording. `resident` tells of a page whether it is in memory.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, resident: impl Fn(u64) -> bool) -> io::Result<()> {
        self.totals.accesses = if self.counting { self.clock - self.begun } else { 0 };
        match (self.sink, &self.heap) {
            (Sink::Trace { writer, .. }, _) => writer.finish(self.clock).map(drop),
            (Sink::Objects(writer), _) => writer.finish(self.clock).map(drop),
            (Sink::Pages, Some(heap)) if self.settings.mode == Mode::Pages => {
                let mut summary = pages::summary(heap, &self.totals, resident);
                summary["cache_bytes"] = json!(self.settings.cache_bytes);
                summary["depth"] = json!(self.settings.depth);
                summary["accesses_before"] =
                    json!(if self.counting { self.begun } else { self.clock });
                summary["most_missed_contexts"] = pages::contexts(heap, CONTEXTS_SHOWN, self.name);
                std::fs::write(&self.settings.file, format!("{summary:#}\n"))
            }
            // It broke, which was said.
            (Sink::Pages, _) => Ok(()),
        }
    }
}
