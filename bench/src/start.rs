//! The start of a server.

use crate::interrupt;
use anyhow::{bail, ensure};
use std::process::Child;
use std::time::{Duration, Instant};

/// Waits until a server that was just started answers: `look` finds something then.
pub fn answers<T>(
    name: &str,
    child: &mut Child,
    within: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if let Some(status) = child.try_wait()? {
            bail!("{name} ended at its start ({status})");
        }
        ensure!(begun.elapsed() < within, "{name} did not start within {within:?}");
        interrupt::sleep(interrupt::POLL_INTERVAL)?;
    }
}
