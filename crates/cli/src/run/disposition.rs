//! What the caller did with signals that are ignored here. Rust's runtime ignores SIGPIPE before
//! `main` and sets it to default in every child, and `terrace run` ignores SIGXFSZ; the program
//! should find both as the caller left them, as it would without us.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use terrace_os::{ignore_signal, is_ignored};

static IGNORED: AtomicBool = AtomicBool::new(false);

/// Whether SIGPIPE was ignored when this process started.
pub fn sigpipe_was_ignored() -> bool {
    IGNORED.load(Relaxed)
}

static SIZE_LIMIT_IGNORED: AtomicBool = AtomicBool::new(true);

/// From now on a file that would become longer than RLIMIT_FSIZE allows is an error, and no signal
/// that ends this process.
pub fn ignore_size_limit() {
    SIZE_LIMIT_IGNORED.store(is_ignored(libc::SIGXFSZ), Relaxed);
    let _ = ignore_signal(libc::SIGXFSZ);
}

/// Whether SIGXFSZ is ignored by this process's own choice only.
pub fn ignores_size_limit() -> bool {
    !SIZE_LIMIT_IGNORED.load(Relaxed)
}

extern "C" fn remember() {
    IGNORED.store(is_ignored(libc::SIGPIPE), Relaxed);
}

#[used]
// SAFETY: the loader calls each pointer in .init_array once, before `main`, with the C calling
// convention; `remember` has it, ignores the arguments, and uses nothing that the runtime must have
// set up.
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;
