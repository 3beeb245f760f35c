//! An object of `malloc`'s, without what Rust's allocators would add to the calls. Also random
//! numbers that cost less than these calls.

use std::hint::black_box;
use std::ptr::NonNull;
use terrace_testkit::random::Xorshift;

/// An object of at least one byte. Freed when dropped, by whichever thread has it then.
pub struct Object {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: this value alone refers to the object; any thread may free what another allocated.
unsafe impl Send for Object {}

impl Object {
    /// Allocates an object; nothing is written.
    #[inline(always)]
    pub fn new(bytes: usize) -> Object {
        // SAFETY: takes any size.
        let at = unsafe { libc::malloc(bytes) };
        // The compiler must not see that the object is not used: it would leave out both calls.
        Object { at: NonNull::new(black_box(at).cast()).expect("there is memory"), bytes }
    }

    /// Size of the object in bytes, as it was asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Has `realloc` make it larger or smaller.
    pub fn resize(&mut self, bytes: usize) {
        // SAFETY: it is ours, and not zero bytes.
        let at = unsafe { libc::realloc(self.at.as_ptr().cast(), bytes) };
        (self.at, self.bytes) = (NonNull::new(at.cast()).expect("there is memory"), bytes);
    }

    /// Writes all bytes from `from` on.
    pub fn fill(&mut self, from: usize, byte: u8) {
        // SAFETY: inside the object.
        unsafe { self.at.as_ptr().add(from).write_bytes(byte, self.bytes - from) };
    }

    /// Writes the first byte and the last one, as a program that uses little of what it allocates.
    #[inline(always)]
    pub fn mark(&mut self, byte: u8) {
        // SAFETY: inside the object.
        unsafe {
            self.at.as_ptr().write(byte);
            self.at.as_ptr().add(self.bytes - 1).write(byte);
        }
    }

    /// Whether both ends are `byte`: only for what was marked or filled.
    #[inline(always)]
    pub fn is_marked(&self, byte: u8) -> bool {
        // SAFETY: inside the object, and written.
        unsafe {
            self.at.as_ptr().read() == byte && self.at.as_ptr().add(self.bytes - 1).read() == byte
        }
    }

    /// Address of the object.
    pub fn address(&self) -> *mut u8 {
        self.at.as_ptr()
    }
}

impl Drop for Object {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it is ours, and not used after this.
        unsafe { libc::free(self.at.as_ptr().cast()) };
    }
}

/// Random numbers: the same in each run.
pub struct Random(Xorshift);

impl Random {
    /// Begins a sequence, which is another for each seed.
    pub fn new(seed: u64) -> Random {
        Random(Xorshift::new((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// Draws the next number.
    #[inline(always)]
    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// Draws a number below `end`, which is far below 2^32.
    #[inline(always)]
    pub fn below(&mut self, end: usize) -> usize {
        (((self.draw() >> 32) * end as u64) >> 32) as usize
    }

    /// Draws a number from `low` to `high`, both included.
    #[inline(always)]
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }
}
