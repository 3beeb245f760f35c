//! What the recorder knows of each thread: its call stack (kept in `shim/calls.c`), and where it
//! was last.

use crate::settings::DEPTH_MAX;
use std::cell::Cell;

/// What is known of a thread. It is reached without a lock, by the thread itself and by signal
/// handlers on it.
pub struct Thread {
    /// Whether the recorder is at work on this thread. What it does itself, and what a signal
    /// handler does meanwhile, is not recorded.
    pub inside: Cell<bool>,
    /// The line of the last access: the next one to it is met in the cache.
    pub line: Cell<u64>,
    /// Accesses that were not told to the recorder yet.
    pub pending: Cell<u64>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(false),
            line: Cell::new(u64::MAX),
            pending: Cell::new(0),
        }
    };
}

/// Calls `what` with the calling thread's data.
#[inline(always)]
pub fn thread<R>(what: impl FnOnce(&Thread) -> R) -> R {
    // It has no destructor: it is there until the thread is gone.
    THREAD.with(what)
}

unsafe extern "C" {
    fn terrace_recorder_calls(to: *mut usize, most: usize) -> usize;
}

/// The calling thread's stack at a call that returns to this address: return addresses, the
/// innermost first, and how many there are.
pub fn context_of(return_address: usize, depth: usize) -> ([usize; DEPTH_MAX], usize) {
    debug_assert!((1..=DEPTH_MAX).contains(&depth));
    let mut frames = [0; DEPTH_MAX];
    frames[0] = return_address;
    // SAFETY: fills in `depth - 1` numbers at most, for which there is room behind the first.
    let outer = unsafe { terrace_recorder_calls(frames[1..].as_mut_ptr(), depth - 1) };
    (frames, 1 + outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn __tsan_func_entry(returns_to: usize);
        fn __tsan_func_exit();
    }

    /// A function of an instrumented program, with a frame of its own.
    #[inline(never)]
    fn called(name: usize, leaves: bool, inner: &mut dyn FnMut()) {
        // SAFETY: what the compiler would call here.
        unsafe { __tsan_func_entry(name) };
        inner();
        if leaves {
            // SAFETY: as above.
            unsafe { __tsan_func_exit() };
        }
        std::hint::black_box(name);
    }

    fn now(depth: usize) -> Vec<usize> {
        let (frames, count) = context_of(9, depth);
        frames[..count].to_vec()
    }

    #[test]
    fn the_stack_is_that_of_the_calls() {
        called(1, true, &mut || {
            called(2, true, &mut || called(3, true, &mut || assert_eq!(now(4), [9, 3, 2, 1])));
            called(4, true, &mut || assert_eq!((now(3), now(2)), (vec![9, 4, 1], vec![9, 4])));
        });
        assert_eq!(now(4), [9]);
    }

    #[test]
    fn what_a_longjmp_leaves_behind_is_forgotten() {
        called(1, true, &mut || {
            called(2, true, &mut || {
                // These never say that they return.
                called(3, false, &mut || called(4, false, &mut || ()));
            });
            assert_eq!(now(4), [9, 1]);
        });
        assert_eq!(now(4), [9]);
    }

    #[test]
    fn deep_recursion_is_counted() {
        fn deep(levels: usize) {
            called(levels, true, &mut || {
                if levels > 1 {
                    deep(levels - 1)
                }
            });
        }
        called(5000, true, &mut || {
            deep(3000);
            assert_eq!(now(4), [9, 5000]);
        });
    }
}
