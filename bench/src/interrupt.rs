//! Ctrl-C, SIGTERM and SIGHUP end a benchmark as an error does, so that everything it set up is
//! undone on the way out.

use anyhow::bail;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// Interval at which a wait looks for a signal.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Has these signals noticed by [`check`] from now on, instead of ending the process.
pub fn watch() -> anyhow::Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(())
}

/// Whether a signal came.
pub fn came() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Relaxed))
}

/// Returns an error if a signal came.
pub fn check() -> anyhow::Result<()> {
    if came() {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps, unless a signal comes.
pub fn sleep(duration: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + duration;
    while Instant::now() < end {
        check()?;
        std::thread::sleep(POLL_INTERVAL.min(duration));
    }
    check()
}
