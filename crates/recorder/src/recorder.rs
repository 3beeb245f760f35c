//! What all hooks lead to, behind one lock: the modelled cache, the objects, and what is written.

use crate::heap::{ContextId, Heap, Missed, ObjectId};
use crate::pages::{self, Totals};
use crate::settings::{Mode, Settings, Start};
use serde_json::json;
use std::io;
use terrace_trace::cache::{Cache, LINE};

/// How many contexts a summary names.
const CONTEXTS_SHOWN: usize = 50;

/// A recording.
pub struct Recorder {
    settings: Settings,
    cache: Option<Cache>,
    /// Accesses since the program began.
    clock: u64,
    /// What it was when counting began.
    begun: u64,
    counting: bool,
    heap: Heap,
    totals: Totals,
}

impl Recorder {
    /// Begins one.
    ///
    /// # Errors
    /// If there is no memory, or the file cannot be written.
    pub fn new(settings: Settings) -> io::Result<Recorder> {
        // A file that cannot be written is better known now than after an hour.
        std::fs::File::create(&settings.file)?;
        Ok(Recorder {
            cache: (settings.cache_bytes > 0).then(|| Cache::of(settings.cache_bytes)),
            clock: 0,
            begun: 0,
            counting: settings.start == Start::Now,
            heap: Heap::new().ok_or(io::ErrorKind::OutOfMemory)?,
            totals: Totals::default(),
            settings,
        })
    }

    /// Whether every access is told of, also one to the line of the last.
    pub fn wants_all(&self) -> bool {
        self.cache.is_none()
    }

    /// Return addresses that make a context.
    pub fn depth(&self) -> usize {
        self.settings.depth
    }

    /// Counting begins, if it has not.
    pub fn start(&mut self) {
        if !self.counting {
            self.counting = true;
            self.begun = self.clock;
        }
    }

    /// An access; `met`: those before it to the line of the one before.
    pub fn access(&mut self, address: u64, bytes: u64, _write: bool, met: u64) {
        self.clock += met + 1;
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
                match self.heap.missed(address.max(line * LINE)) {
                    Missed::Object => {}
                    Missed::Between => self.totals.between += 1,
                    Missed::Elsewhere => self.totals.elsewhere += 1,
                }
            }
        }
    }

    /// The context of these return addresses.
    pub fn context(&mut self, frames: &[usize]) -> ContextId {
        self.heap.context(frames)
    }

    /// An object came into being.
    pub fn born(&mut self, address: u64, bytes: u64, usable: u64, context: ContextId) {
        self.heap.born(address, bytes, usable, context);
    }

    /// An object went.
    pub fn dies(&mut self, address: u64) {
        self.heap.dies(address);
    }

    /// A realloc begins: the object's number, or 0.
    pub fn leaves(&mut self, address: u64) -> ObjectId {
        self.heap.lift(address)
    }

    /// It left one at the same address, with another size.
    pub fn stays(&mut self, id: ObjectId, bytes: u64, usable: u64) {
        self.heap.put(id, bytes, usable);
    }

    /// It gave up the old one.
    pub fn left(&mut self, id: ObjectId) {
        self.heap.bury(id);
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, resident: impl Fn(u64) -> bool, name: impl Fn(usize) -> String) -> io::Result<()> {
        self.totals.accesses = if self.counting { self.clock - self.begun } else { 0 };
        match self.settings.mode {
            Mode::Pages => {
                let mut summary = pages::summary(&self.heap, &self.totals, resident);
                summary["cache_bytes"] = json!(self.settings.cache_bytes);
                summary["depth"] = json!(self.settings.depth);
                summary["accesses_before"] = json!(if self.counting { self.begun } else { self.clock });
                summary["most_missed_contexts"] = pages::contexts(&self.heap, CONTEXTS_SHOWN, name);
                std::fs::write(&self.settings.file, format!("{summary:#}\n"))
            }
        }
    }
}
