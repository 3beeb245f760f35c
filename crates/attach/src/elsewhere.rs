//! Other architectures: no process can be attached to.

use crate::{AttachedStats, Limit};
use anyhow::{Result, bail};

const WHY: &str = "`terrace attach` is for 64-bit x86 Linux: start the program with `terrace run`";

/// # Errors
/// Always.
pub fn attach(_pid: i32, _limit: Limit) -> Result<String> {
    bail!(WHY)
}

/// # Errors
/// Always.
pub fn possible() -> Result<()> {
    bail!(WHY)
}

/// # Errors
/// Always.
pub fn attach_outside(_pid: i32, _limit: Limit) -> Result<String> {
    bail!(WHY)
}

/// # Errors
/// Always.
pub fn attach_group(_path: &std::path::Path, _limit: Limit) -> Result<String> {
    bail!(WHY)
}

/// # Errors
/// Always.
pub fn detach(_pid: i32) -> Result<Option<u64>> {
    bail!(WHY)
}

/// # Errors
/// Always.
pub fn status(_pid: i32) -> Result<AttachedStats> {
    bail!(WHY)
}

/// # Errors
/// Always.
pub fn set(_pid: i32, _dram: Option<&str>, _slowdown: Option<&str>) -> Result<String> {
    bail!(WHY)
}

/// No process.
pub fn attached() -> Vec<i32> {
    Vec::new()
}
