//! Advice about segments to Terrace, where a program runs under it (`include/terrace.h`): which
//! memory is expected to be used often, and which seldom. Without Terrace no advice is given.

use std::ffi::c_int;

/// Advice about a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Advice {
    /// Nothing is known of the range.
    Normal = 0,
    /// Memory that is used often. Evicted pages are restored where there is room, and the range is
    /// evicted last.
    Hot = 1,
    /// Memory that is used seldom: evicted first.
    Cold = 2,
}

/// `terrace_advise`.
type Advise = unsafe extern "C" fn(*const u8, usize, c_int) -> c_int;

/// The function that takes advice, if there is one in this process.
#[derive(Clone, Copy)]
pub struct Adviser(Option<Advise>);

impl Adviser {
    /// Looks the function up: the library may be preloaded, so nothing is linked with it.
    pub fn find() -> Adviser {
        // SAFETY: looks up a NUL-terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"terrace_advise".as_ptr()) };
        // SAFETY: a function of that name is the one that `include/terrace.h` declares.
        Adviser((!address.is_null()).then(|| unsafe { std::mem::transmute(address) }))
    }

    /// An adviser that calls this function.
    #[cfg(all(test, not(loom)))]
    pub fn by(advise: Advise) -> Adviser {
        Adviser(Some(advise))
    }

    /// Whether there is a listener.
    pub fn is_there(self) -> bool {
        self.0.is_some()
    }

    /// Gives advice about any range of memory.
    pub fn advise(self, start: *const u8, bytes: usize, advice: Advice) {
        if let Some(call) = self.0 {
            // SAFETY: it takes any range and never faults, as its header promises.
            unsafe { call(start, bytes, advice as c_int) };
        }
    }
}
