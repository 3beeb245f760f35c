//! `terrace attach` and `terrace detach`: processes that already run.

use crate::args::{AttachArguments, DetachArguments};
use anyhow::Result;

/// Attaches to each; the exit status is 0 if all could be.
pub fn attach(arguments: &AttachArguments) -> Result<u8> {
    each(&arguments.pids, |pid| terrace_attach::attach(pid, arguments.dram))
}

/// Detaches from each; the exit status is 0 if all could be.
pub fn detach(arguments: &DetachArguments) -> Result<u8> {
    each(&arguments.pids, |pid| {
        let took = terrace_attach::detach(pid)?;
        Ok(format!("detached from {pid}: everything was back after {took} ms"))
    })
}

/// How the processes stand that were attached to, as far as this user may ask.
pub fn figures() -> Vec<terrace_attach::Figures> {
    let pids = terrace_attach::attached().into_iter();
    pids.filter_map(|pid| terrace_attach::status(pid).ok()).collect()
}

fn each(pids: &[i32], act: impl Fn(i32) -> Result<String>) -> Result<u8> {
    let mut status = 0;
    for pid in pids {
        match act(*pid) {
            Ok(text) => crate::say(&text),
            Err(error) => {
                crate::say(&format!("{error:#}"));
                status = crate::OUR_FAULT;
            }
        }
    }
    Ok(status)
}
