//! What Terrace is told of segments, where a program runs under it (`include/terrace.h`): which
//! memory is expected to be used often, and which seldom. Where it is not, nothing is told.

use std::ffi::c_int;

/// What is said of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Advice {
    /// Nothing is known of it.
    Normal = 0,
    /// It is used often: what is evicted is restored where there is room, and it is evicted last.
    Hot = 1,
    /// It is used seldom: it leaves first.
    Cold = 2,
}

/// `terrace_advise`.
type Advise = unsafe extern "C" fn(*const u8, usize, c_int) -> c_int;

/// The way to tell it, if there is one in this process.
#[derive(Clone, Copy)]
pub struct Adviser(Option<Advise>);

impl Adviser {
    /// Looks for it: the library may be preloaded, so nothing is linked with it.
    pub fn find() -> Adviser {
        // SAFETY: looks up a NUL-terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"terrace_advise".as_ptr()) };
        // SAFETY: a function of that name is the one that `include/terrace.h` declares.
        Adviser((!address.is_null()).then(|| unsafe { std::mem::transmute(address) }))
    }

    /// This function in its place.
    #[cfg(all(test, not(loom)))]
    pub fn by(advise: Advise) -> Adviser {
        Adviser(Some(advise))
    }

    /// Whether there is a listener.
    pub fn is_there(self) -> bool {
        self.0.is_some()
    }

    /// Says it of a range of any memory.
    pub fn advise(self, start: *const u8, bytes: usize, advice: Advice) {
        if let Some(call) = self.0 {
            // SAFETY: it takes any range and never faults, as its header promises.
            unsafe { call(start, bytes, advice as c_int) };
        }
    }
}
