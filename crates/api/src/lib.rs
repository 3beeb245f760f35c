//! For programs that know their data: `include/terrace.h` for Rust.
//!
//! Under `terrace run`, memory that was not used for a while is kept compressed, by pages. So what
//! is used together should share pages: [`Placement`]s say that. And what is about to be used can
//! be brought back without a page fault: [`touch`], [`prefetch`], [`advise`]. Where Terrace is not
//! there, memory is the C library's, and the rest does nothing.

mod placement;

pub use placement::{
    Arena, ArenaFigures, ArenaId, At, Global, Placement, cold, free, hot, mnalloc, within,
};

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A function of libterrace.so, looked up at its first use.
struct Function {
    name: &'static CStr,
    found: AtomicUsize,
}

/// Values of [`Function`]'s address: not looked up yet, and looked up in vain.
const UNKNOWN: usize = 0;
const MISSING: usize = 1;

static TOUCH: Function = Function::new(c"terrace_touch");
static PREFETCH: Function = Function::new(c"terrace_prefetch");
static ADVISE: Function = Function::new(c"terrace_advise");

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Function { name, found: AtomicUsize::new(UNKNOWN) }
    }

    /// Address of the function, if Terrace is there.
    fn address(&self) -> Option<usize> {
        let found = match self.found.load(Relaxed) {
            UNKNOWN => self.look_up(),
            found => found,
        };
        (found != MISSING).then_some(found)
    }

    #[cold]
    fn look_up(&self) -> usize {
        // SAFETY: a NUL-terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) } as usize;
        let address = address.max(MISSING);
        self.found.store(address, Relaxed);
        if address != MISSING && cfg!(debug_assertions) {
            report_misuse();
        }
        address
    }

    /// Calls a function that takes a range of any addresses.
    fn call(&self, pointer: *const u8, len: usize) {
        if let Some(address) = self.address() {
            // SAFETY: the library's functions that are called so have this signature, and take any
            // address.
            let function: extern "C" fn(*const u8, usize) = unsafe { std::mem::transmute(address) };
            function(pointer, len);
        }
    }
}

/// Has the library report foreign pointers, and arenas that are gone. For debug builds.
fn report_misuse() {
    // SAFETY: a NUL-terminated name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"terrace_check".as_ptr()) } as usize;
    if address != 0 {
        // SAFETY: the library's function of this name has this signature.
        let check: extern "C" fn(i32) = unsafe { std::mem::transmute(address) };
        check(1);
    }
}

/// How memory will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing is known of how the range is used; it is no longer pinned.
    Normal = 0,
    /// Used often: it is restored, and leaves last.
    Hot = 1,
    /// Used seldom: it leaves first.
    Cold = 2,
    /// Used soon: it is restored as by [`prefetch_at`].
    WillNeed = 3,
    /// Pinned: it is restored, and does not leave at all.
    Pin = 4,
}

/// Says how a range, of whatever lies there, will be used. It goes for all of its pages.
pub fn advise(pointer: *const u8, len: usize, advice: Advice) {
    if let Some(address) = ADVISE.address() {
        // SAFETY: the library's function of this name has this signature, and takes any address.
        let function: extern "C" fn(*const u8, usize, i32) -> i32 =
            unsafe { std::mem::transmute(address) };
        function(pointer, len, advice as i32);
    }
}

/// Restores the evicted pages of the memory that `value` itself lies in (not of what it points to),
/// before it returns.
pub fn touch<T: ?Sized>(value: &T) {
    touch_at((&raw const *value).cast(), size_of_val(value));
}

/// Asks to restore the pages that `value` itself lies in, as far as there is room. Returns at once.
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at((&raw const *value).cast(), size_of_val(value));
}

/// [`touch`] for any range, of whatever lies there.
pub fn touch_at(pointer: *const u8, len: usize) {
    TOUCH.call(pointer, len);
}

/// [`prefetch`] for any range.
pub fn prefetch_at(pointer: *const u8, len: usize) {
    PREFETCH.call(pointer, len);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls do nothing without Terrace. The end-to-end tests have the rest.
    #[test]
    fn without_terrace_nothing_happens() {
        touch("text");
        prefetch(&[1u64; 100][..]);
        touch_at(std::ptr::null(), usize::MAX);
        prefetch_at(std::ptr::null(), 0);
        advise(std::ptr::null(), 1, Advice::Pin);
    }
}
