//! Each thread's call stack, as the hooks at the beginning and end of every function tell it.

use std::cell::{Cell, UnsafeCell};

/// Frames that are kept; what is deeper is counted only.
const FRAMES: usize = 1024;

/// What a thread has of its own. Reached without a lock, by the thread itself and by signal handlers on it.
pub struct Thread {
    /// The recorder is at work on this thread: what it does itself, and what a signal handler does meanwhile, is not recorded.
    pub inside: Cell<bool>,
    /// The line of the last access: the next one to it is met in the cache.
    pub line: Cell<u64>,
    /// Accesses that were not told to the recorder yet.
    pub pending: Cell<u64>,
    depth: Cell<usize>,
    frames: UnsafeCell<[usize; FRAMES]>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(false),
            line: Cell::new(u64::MAX),
            pending: Cell::new(0),
            depth: Cell::new(0),
            frames: UnsafeCell::new([0; FRAMES]),
        }
    };
}

/// The calling thread's.
#[inline(always)]
pub fn thread<R>(what: impl FnOnce(&Thread) -> R) -> R {
    // It has no destructor: it is there until the thread is gone.
    THREAD.with(what)
}

impl Thread {
    /// A function was entered that returns to this address.
    #[inline]
    pub fn enter(&self, returns_to: usize) {
        let depth = self.depth.get();
        if depth < FRAMES {
            // SAFETY: only this thread reaches it, and no reference to it is held.
            unsafe { (*self.frames.get())[depth] = returns_to };
        }
        self.depth.set(depth + 1);
    }

    /// It returned. (After a `longjmp` too few are told of; then the stack keeps what was left behind below what comes, until its own caller returns.)
    #[inline]
    pub fn leave(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }

    /// The innermost return addresses, the innermost first, and how many there are.
    pub fn innermost<const N: usize>(&self) -> ([usize; N], usize) {
        let mut found = [0; N];
        let depth = self.depth.get().min(FRAMES);
        let count = depth.min(N);
        // SAFETY: as above.
        let frames = unsafe { &*self.frames.get() };
        for (to, from) in found.iter_mut().zip(frames[depth - count..depth].iter().rev()) {
            *to = *from;
        }
        (found, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_is_that_of_the_calls() {
        std::thread::spawn(|| {
            thread(|own| {
                (1..=5).for_each(|address| own.enter(address));
                own.leave();
                assert_eq!(own.innermost::<3>(), ([4, 3, 2], 3));
                (0..2000).for_each(|address| own.enter(address));
                (0..2000).for_each(|_| own.leave());
                assert_eq!(own.innermost::<6>(), ([4, 3, 2, 1, 0, 0], 4));
                (0..9).for_each(|_| own.leave());
                assert_eq!(own.innermost::<2>(), ([0, 0], 0));
            });
        })
        .join()
        .unwrap();
    }
}
