//! Per-thread caches of free objects: a *magazine* for each zone and class. So `malloc` and `free`
//! of grouped objects mostly touch the thread's own memory.
//!
//! Explicit thread caches of jemalloc would cost 0.8 MiB a thread and end at 127 threads. Its
//! automatic ones mix arenas.
//!
//! A magazine begins without room, grows with use, and is filled and flushed in halves. All
//! magazines of a thread together hold at most [`BYTES_MAX`]. At that size they stop growing. After
//! many refusals ([`REFUSED_MAX`]) the use may have changed, and all begin anew.

use crate::grouped::classes::{CLASSES, Class, size_of_class};
use crate::grouped::slabs;
use crate::zone::{GROUPS_MAX, ZoneId};
use std::alloc::Layout;
use terrace_context::Stack;

/// Room of all magazines of a thread, in bytes of objects.
const BYTES_MAX: usize = 512 << 10;
/// The part of [`BYTES_MAX`] that magazines with some room already may grow into, in bytes. The
/// rest is for new magazines.
const GROWING_MAX: usize = BYTES_MAX / 4 * 3;
/// Number of refusals to grow after which all magazines of a thread begin anew. That takes up to
/// some milliseconds where there are hundreds.
const REFUSED_MAX: u32 = 1 << 14;
/// Room of one magazine: in bytes, and in objects at least and at most.
const MAGAZINE_BYTES: usize = 16 << 10;
const ROOM_FIRST: usize = 4;
const ROOM_MIN: usize = 8;
const ROOM_MAX: usize = 128;

/// Free objects of one class in one zone. Valid when zeroed (and then without room).
struct Magazine {
    objects: *mut *mut u8,
    len: u32,
    room: u32,
}

type Row = [Magazine; CLASSES];

/// A thread's magazines.
pub struct Cache {
    /// Magazines by zone; a row is made when first needed.
    rows: [*mut Row; GROUPS_MAX + 1],
    /// Sum of all magazines' room, in bytes of objects.
    bytes: usize,
    /// How often a magazine could not grow since all began anew.
    refused: u32,
    /// Where this thread's stack lies.
    pub(crate) stack: Stack,
}

fn room_max(class: Class) -> usize {
    (MAGAZINE_BYTES / size_of_class(class)).clamp(ROOM_MIN, ROOM_MAX)
}

fn buffer_layout(room: usize) -> Layout {
    Layout::array::<*mut u8>(room).expect("a small size")
}

impl Cache {
    /// An empty cache for the calling thread; null without memory.
    pub fn create() -> *mut Cache {
        // SAFETY: a layout of more than no bytes; zeros are a valid cache without rows and without
        // a known stack.
        let cache = unsafe { std::alloc::alloc_zeroed(Layout::new::<Cache>()) }.cast::<Cache>();
        // SAFETY: null, or ours alone.
        if let Some(cache) = unsafe { cache.as_mut() } {
            cache.stack = Stack::of_this_thread();
        }
        cache
    }

    /// Returns all objects, and frees the cache.
    ///
    /// # Safety
    /// `cache` came from [`Cache::create`] and is not used any more.
    pub unsafe fn end(cache: *mut Cache) {
        // SAFETY: the caller's promise.
        let inside = unsafe { &mut *cache };
        inside.give_back();
        for row in inside.rows.iter().filter(|row| !row.is_null()) {
            // SAFETY: made with this layout by `magazine`.
            unsafe { std::alloc::dealloc(row.cast(), Layout::new::<Row>()) };
        }
        // SAFETY: made with this layout by `create`.
        unsafe { std::alloc::dealloc(cache.cast(), Layout::new::<Cache>()) };
    }

    /// Takes an object of the class. Null if its zone has no more, and no memory is to be had.
    #[inline]
    pub fn take(&mut self, zone: ZoneId, class: Class) -> *mut u8 {
        // SAFETY: null or a row of ours.
        if let Some(row) = unsafe { self.rows[zone as usize].as_mut() } {
            let magazine = &mut row[class as usize];
            if magazine.len > 0 {
                magazine.len -= 1;
                // SAFETY: below `len` the buffer is filled.
                return unsafe { *magazine.objects.add(magazine.len as usize) };
            }
        }
        self.take_slowly(zone, class)
    }

    /// Takes an object back.
    #[inline]
    pub fn put(&mut self, zone: ZoneId, class: Class, object: *mut u8) {
        // SAFETY: null or a row of ours.
        if let Some(row) = unsafe { self.rows[zone as usize].as_mut() } {
            let magazine = &mut row[class as usize];
            if magazine.len < magazine.room {
                // SAFETY: the buffer has `room` places.
                unsafe { *magazine.objects.add(magazine.len as usize) = object };
                magazine.len += 1;
                return;
            }
        }
        self.put_slowly(zone, class, object);
    }

    #[cold]
    #[inline(never)]
    fn take_slowly(&mut self, zone: ZoneId, class: Class) -> *mut u8 {
        self.grow(zone, class);
        let mut one = [std::ptr::null_mut()];
        let Some(magazine) = self.magazine(zone, class).filter(|magazine| magazine.room > 1) else {
            slabs::take(zone, class, &mut one);
            return one[0];
        };
        // SAFETY: the buffer has `room` places, and is empty.
        let half =
            unsafe { std::slice::from_raw_parts_mut(magazine.objects, magazine.room as usize / 2) };
        match slabs::take(zone, class, half) {
            0 => std::ptr::null_mut(),
            taken => {
                magazine.len = taken as u32 - 1;
                // The lowest first: what is allocated one after the other lies side by side.
                half[..taken].reverse();
                half[taken - 1]
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn put_slowly(&mut self, zone: ZoneId, class: Class, object: *mut u8) {
        self.grow(zone, class);
        let Some(magazine) = self.magazine(zone, class).filter(|magazine| magazine.room > 0) else {
            slabs::put(zone, &[object]);
            return;
        };
        if magazine.len == magazine.room {
            // The older half: what was freed last is in the processor's caches.
            let half = magazine.len as usize / 2;
            // SAFETY: below `len` the buffer is filled.
            let objects =
                unsafe { std::slice::from_raw_parts_mut(magazine.objects, magazine.len as usize) };
            slabs::put(zone, &objects[..half]);
            objects.copy_within(half.., 0);
            magazine.len -= half as u32;
        }
        // SAFETY: there is room now.
        unsafe { *magazine.objects.add(magazine.len as usize) = object };
        magazine.len += 1;
    }

    /// The magazine; `None` without memory for its row.
    fn magazine(&mut self, zone: ZoneId, class: Class) -> Option<&mut Magazine> {
        let row = &mut self.rows[zone as usize];
        if row.is_null() {
            // SAFETY: a layout of more than no bytes; zeros are valid magazines.
            *row = unsafe { std::alloc::alloc_zeroed(Layout::new::<Row>()) }.cast();
        }
        // SAFETY: null or a row of ours.
        unsafe { row.as_mut() }.map(|row| &mut row[class as usize])
    }

    /// Doubles a magazine's room as far as it may go.
    fn grow(&mut self, zone: ZoneId, class: Class) {
        let most = room_max(class);
        let Some(magazine) = self.magazine(zone, class) else { return };
        let old = magazine.room as usize;
        let new = if old == 0 { ROOM_FIRST } else { (old * 2).min(most) };
        if new == old {
            return;
        }
        let more = (new - old) * size_of_class(class);
        if self.bytes + more > if old == 0 { BYTES_MAX } else { GROWING_MAX } {
            self.refused += 1;
            if self.refused == REFUSED_MAX {
                self.give_back();
            }
            return;
        }
        let Some(magazine) = self.magazine(zone, class) else { return };
        // SAFETY: a layout of more than no bytes.
        let buffer = unsafe { std::alloc::alloc(buffer_layout(new)) }.cast::<*mut u8>();
        if buffer.is_null() {
            return;
        }
        if old > 0 {
            // SAFETY: both buffers are ours, and the old one is filled up to `len`; it was made
            // with this layout.
            unsafe {
                std::ptr::copy_nonoverlapping(magazine.objects, buffer, magazine.len as usize);
                std::alloc::dealloc(magazine.objects.cast(), buffer_layout(old));
            }
        }
        (magazine.objects, magazine.room) = (buffer, new as u32);
        self.bytes += more;
    }

    /// Empties all magazines and takes their room away.
    fn give_back(&mut self) {
        for (zone, row) in self.rows.iter().enumerate() {
            // SAFETY: null or a row of ours.
            let Some(row) = (unsafe { row.as_mut() }) else { continue };
            for magazine in row.iter_mut().filter(|magazine| magazine.room > 0) {
                // SAFETY: below `len` the buffer is filled; it was made with this layout.
                unsafe {
                    slabs::put(
                        zone as ZoneId,
                        std::slice::from_raw_parts(magazine.objects, magazine.len as usize),
                    );
                    std::alloc::dealloc(
                        magazine.objects.cast(),
                        buffer_layout(magazine.room as usize),
                    );
                }
                *magazine = Magazine { objects: std::ptr::null_mut(), len: 0, room: 0 };
            }
        }
        (self.bytes, self.refused) = (0, 0);
    }
}
