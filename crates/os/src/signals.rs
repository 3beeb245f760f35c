//! Signals and errno of the calling thread.

use crate::process::is_filtered;
use crate::simulated::simulated;
use syscalls::{Sysno, syscall};

/// Whether the calling thread may be in a signal handler: it has signals blocked, or is on its
/// alternate stack. (A handler that blocks nothing, not even its own signal, is not seen; nor,
/// under a filter of system calls, is that stack.)
pub fn may_be_in_handler() -> bool {
    let mut blocked = 0u64;
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: changes nothing; the kernel writes the mask and the description.
    let told = unsafe {
        let mask = syscall!(
            Sysno::rt_sigprocmask,
            libc::SIG_BLOCK,
            0,
            &raw mut blocked,
            size_of_val(&blocked)
        );
        // A filter may end a process that asks for that.
        if is_filtered() {
            mask
        } else {
            mask.and_then(|_| syscall!(Sysno::sigaltstack, 0, &raw mut stack))
        }
    };
    told.is_err() || blocked != 0 || stack.ss_flags & libc::SS_ONSTACK != 0
}

/// Blocks every signal for the calling thread but glibc's 32 and 33, which cancel threads and
/// change user ids. Returns what was blocked.
pub fn block_signals() -> u64 {
    simulated!(_kernel => 0);
    let mask: u64 = !(1 << 31 | 1 << 32);
    let mut before = 0u64;
    // SAFETY: the kernel reads 8 bytes of mask and writes 8.
    let _ = unsafe {
        syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, 8)
    };
    before
}

/// Blocks exactly these signals.
pub fn restore_signals(mask: u64) {
    simulated!(_kernel => ());
    // SAFETY: as above.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// While it lives, no signal handler of the program runs on this thread.
///
/// It is for every stretch in which a thread of the program holds a lock of ours. A handler that
/// touched an evicted page there would wait for a fault handler, which may wait for that lock. A
/// handler that forks or maps memory would wait for itself.
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks the signals.
    // Reason: a default that acts on the thread would surprise.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        SignalsBlocked { before: block_signals() }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        restore_signals(self.before);
    }
}

/// While it lives, whatever becomes of this thread's `errno` is undone at its end. It is for code
/// of ours that the program did not call for an answer.
pub struct ErrnoKept {
    before: i32,
}

impl ErrnoKept {
    /// Remembers `errno`.
    // Reason: a default that reads the thread's state would surprise.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        // SAFETY: the C library's thread-local errno.
        ErrnoKept { before: unsafe { *libc::__errno_location() } }
    }
}

impl Drop for ErrnoKept {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.before };
    }
}
