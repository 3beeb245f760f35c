//! Memory of the program that the kernel changes at moments when it does not wait for a page. It
//! must stay in DRAM.
//!
//! The kernel takes a missing page of ours for a bad address in two cases:
//! - A thread that is exiting clears a word in its own stack, for which `pthread_join` waits. It
//!   also marks the robust mutexes that it still holds.
//! - Some futex operations change the program's words.

use crate::current::pager;
use crate::next::Next;
use terrace_os::{self as sys, Errno, PAGE, untagged};

/// Keeps all pages of a range in DRAM from now on.
pub fn pin(start: usize, len: usize) {
    let start = untagged(start);
    if let Some(pager) = pager().filter(|pager| pager.manages(start, len)) {
        pager.pin_for_kernel(start, len);
    }
}

fn is_changed_by_the_kernel(attributes: *const libc::pthread_mutexattr_t) -> bool {
    let (mut protocol, mut robust) = (libc::PTHREAD_PRIO_NONE, libc::PTHREAD_MUTEX_STALLED);
    // SAFETY: attributes that the program passes to pthread_mutex_init are initialised; null was
    // excluded.
    unsafe {
        libc::pthread_mutexattr_getprotocol(attributes, &mut protocol);
        libc::pthread_mutexattr_getrobust(attributes, &mut robust);
    }
    protocol == libc::PTHREAD_PRIO_INHERIT || robust == libc::PTHREAD_MUTEX_ROBUST
}

/// `pthread_mutex_init`. The kernel never changes mutexes made without attributes, or without this
/// function.
#[unsafe(no_mangle)]
extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> i32 {
    static REAL: Next = Next::new(c"pthread_mutex_init");
    type Init = extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> i32;
    if !attributes.is_null() && is_changed_by_the_kernel(attributes) {
        pin(mutex as usize, size_of::<libc::pthread_mutex_t>());
    }
    let real = REAL.get();
    if real.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function of this name has this signature.
    let real: Init = unsafe { std::mem::transmute(real) };
    real(mutex, attributes)
}

/// A futex call by number. "Bad address" comes before any effect. If the page was only evicted, the
/// call is made again.
pub fn futex(args: [usize; 6]) -> Result<usize, Errno> {
    const TRIES: usize = 100;
    let pages = [args[0], args[4]].map(|address| untagged(address) / PAGE * PAGE);
    for _ in 0..TRIES {
        // SAFETY: the program's own call, passed on as it was made.
        let result = unsafe { sys::forward(libc::SYS_futex, args) };
        let Some(pager) = pager().filter(|_| result == Err(Errno::EFAULT)) else { return result };
        let mut brought = false;
        for page in pages.into_iter().filter(|page| pager.manages(*page, PAGE)) {
            // SAFETY: faults the page in for writing, as the call would have; contents stay.
            if unsafe { sys::advise(page, PAGE, libc::MADV_POPULATE_WRITE) }.is_err() {
                return result;
            }
            brought = true;
        }
        if !brought {
            return result;
        }
    }
    Err(Errno::EFAULT)
}
