//! For programs that know what they are about to touch: `include/terrace.h` for Rust.
//!
//! Under `terrace run`, memory that was not used for a while is kept compressed; these calls bring it back without a page fault. They are hints,
//! and do nothing where Terrace is not there.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A function of libterrace.so, looked up at its first use.
struct Function {
    name: &'static CStr,
    found: AtomicUsize,
}

/// Not looked up yet; and looked up in vain.
const UNKNOWN: usize = 0;
const MISSING: usize = 1;

static TOUCH: Function = Function::new(c"terrace_touch");
static PREFETCH: Function = Function::new(c"terrace_prefetch");

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Function { name, found: AtomicUsize::new(UNKNOWN) }
    }

    fn call(&self, pointer: *const u8, len: usize) {
        let address = match self.found.load(Relaxed) {
            MISSING => return,
            UNKNOWN => match self.look_up() {
                MISSING => return,
                address => address,
            },
            address => address,
        };
        // SAFETY: the library's functions of these names have this signature, and take any address.
        let function: extern "C" fn(*const u8, usize) = unsafe { std::mem::transmute(address) };
        function(pointer, len);
    }

    #[cold]
    fn look_up(&self) -> usize {
        // SAFETY: a NUL-terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) } as usize;
        let address = address.max(MISSING);
        self.found.store(address, Relaxed);
        address
    }
}

/// Brings back what is out of the memory that `value` itself lies in (not of what it points to), before it returns.
pub fn touch<T: ?Sized>(value: &T) {
    touch_at((&raw const *value).cast(), size_of_val(value));
}

/// Asks for the same and returns at once: as far as there is room.
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

    /// The rest is in the end-to-end tests.
    #[test]
    fn without_terrace_nothing_happens() {
        touch("text");
        prefetch(&[1u64; 100][..]);
        touch_at(std::ptr::null(), usize::MAX);
        prefetch_at(std::ptr::null(), 0);
    }
}
