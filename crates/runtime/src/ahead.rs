//! What `include/terrace.h` declares, for programs that know what they are about to touch.
//!
//! Safe with any address, also from signal handlers; `errno` stays as it was.

use crate::pager;

/// Brings the pages of a range that are out back now.
#[unsafe(no_mangle)]
extern "C" fn terrace_touch(pointer: usize, len: usize) {
    if let Some(pager) = pager() {
        pager.touch(pointer, len);
    }
}

/// The same soon, while the caller goes on.
#[unsafe(no_mangle)]
extern "C" fn terrace_prefetch(pointer: usize, len: usize) {
    if let Some(pager) = pager() {
        pager.prefetch(pointer, len);
    }
}
