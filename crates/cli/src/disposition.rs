//! What the caller did with SIGPIPE. Rust's runtime ignores that signal before `main` and sets it to default in every
//! child; the program should find it as the caller left it, as it would without us.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IGNORED: AtomicBool = AtomicBool::new(false);

/// Whether SIGPIPE was ignored when this process started.
pub fn sigpipe_was_ignored() -> bool {
    IGNORED.load(Relaxed)
}

extern "C" fn remember() {
    IGNORED.store(is_ignored(libc::SIGPIPE), Relaxed);
}

/// Whether this process ignores `signal` now.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero is a valid sigaction; the call only writes to it, as the new action is null.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

#[used]
// SAFETY: the loader calls each pointer in .init_array once, before `main`, with the C calling convention; `remember`
// has it, ignores the arguments, and uses nothing that the runtime must have set up.
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;
