//! `terrace report`: what a recording or the report of a run shows, by kind.

pub mod args;
mod estimate;
pub mod heatmap;
pub mod recording;
mod sampled;
pub mod sites;
pub mod tiers;
pub mod utilisation;

use crate::{WRONG_CONTENTS, say};
use args::{ReportArguments, ReportKind};
use std::io::ErrorKind;
use terrace_trace::framing::ReadError;

/// Shows what was asked for; the result is the exit status: 1 where a file was read and is not what
/// it should be.
pub fn run(arguments: &ReportArguments) -> anyhow::Result<u8> {
    show(arguments).or_else(not_a_recording)
}

fn show(arguments: &ReportArguments) -> anyhow::Result<u8> {
    match (&arguments.kind, &arguments.recording) {
        (Some(ReportKind::Heatmap(arguments)), _) => heatmap::run(arguments),
        (Some(ReportKind::Sites(arguments)), _) => sites::show(arguments),
        (Some(ReportKind::Utilisation(arguments)), _) => utilisation::show(arguments),
        (Some(ReportKind::Tiers(arguments)), _) => tiers::run(arguments),
        (Some(ReportKind::Wss(arguments)), _) => heatmap::working_set(arguments),
        (Some(ReportKind::Export(arguments)), _) => recording::export(arguments),
        (None, Some(arguments)) => recording::show(arguments),
        (None, None) => anyhow::bail!(
            "report what? `terrace report FILE` says what is in a recording; `terrace report --help` has more"
        ),
    }
}

/// The exit status where a file was read and is not what it should be; where there is none, the way
/// to one.
fn not_a_recording(error: anyhow::Error) -> anyhow::Result<u8> {
    if is_of_contents(&error) {
        say(&format!("{error:#}"));
        return Ok(WRONG_CONTENTS);
    }
    let kind = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(ReadError::Io(error)) => Some(error.kind()),
        _ => cause.downcast_ref().map(std::io::Error::kind),
    });
    Err(match kind {
        Some(ErrorKind::NotFound) => {
            anyhow::anyhow!("{error:#}; `terrace record -o FILE -- CMD` makes one")
        }
        Some(ErrorKind::IsADirectory) => anyhow::anyhow!("{error:#}; name a file in it"),
        _ => error,
    })
}

/// Whether a file was read, and is not what it should be.
fn is_of_contents(error: &anyhow::Error) -> bool {
    let of_recording = error.downcast_ref::<ReadError>();
    of_recording.is_some_and(|error| !matches!(error, ReadError::Io(_)))
        || error.downcast_ref::<serde_json::Error>().is_some()
}
