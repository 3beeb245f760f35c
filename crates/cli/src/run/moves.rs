//! `--moves FILE`: each move of a run with its reason, a line of JSON each, written while the
//! program runs.
//!
//! The processes list their moves in rings behind their statistics pages
//! ([`terrace_control::moves`]); they are taken out here often enough that none is lost unless the
//! machine is very busy, and it is said how many were.

use crate::processes::process;
use crate::processes::statistics::{self, MoveFile, PageFile};
use crate::say;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_control::moves::{MoveReason, Moved, address_of};
use terrace_policy::placement;

/// Time between polls: a ring holds that much of 300,000 moves a second.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Looks without moves after which it is asked whether a process is over. A process that is over
/// says nothing for `SILENT_NS`.
const IDLE_LOOKS: u32 = 40;
const SILENT_NS: u64 = 2_000_000_000;

/// The list of one run.
pub struct MoveList {
    run_dir: PathBuf,
    target: PathBuf,
    /// The open file; `None` after an error.
    file: Option<BufWriter<File>>,
    started_ns: u64,
    /// The processes, by the names of their pages.
    processes: HashMap<String, Process>,
    listed: u64,
    lost: u64,
}

struct Process {
    /// The process's list; `None` once it is over: there may be thousands in a run.
    file: Option<MoveFile>,
    tiers: Vec<String>,
    idle_polls: u32,
}

/// A move as it is written.
#[derive(Serialize)]
struct Line<'a> {
    /// Time since the run began, s.
    at_s: f64,
    pid: u32,
    region: String,
    pages: u16,
    from: Option<&'a str>,
    to: &'a str,
    reason: &'static str,
    #[serde(flatten)]
    detail: Map<String, Value>,
}

impl MoveList {
    /// Opens the file, or says why no list could be written there. What is in it goes.
    pub fn create(target: &Path, run_dir: &Path) -> Result<MoveList> {
        Ok(MoveList {
            run_dir: run_dir.to_owned(),
            target: target.to_owned(),
            file: Some(BufWriter::new(create(target)?)),
            started_ns: terrace_os::now_ns(),
            processes: HashMap::new(),
            listed: 0,
            lost: 0,
        })
    }

    /// Takes out what moved since. Returns when to poll again.
    pub fn poll(&mut self) -> Duration {
        if self.file.is_none() {
            return Duration::MAX;
        }
        for page in statistics::page_files(&self.run_dir) {
            if let Err(error) = self.look_at(&page) {
                say(&format!("{}: {error}; the list of moves ends there", self.target.display()));
                self.file = None;
                return Duration::MAX;
            }
        }
        POLL_INTERVAL
    }

    fn look_at(&mut self, page: &PageFile) -> std::io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if !self.processes.contains_key(&page.name) {
            // One that is being made is looked at next time.
            let Some(tiers) = statistics::tier_names(page) else { return Ok(()) };
            let Some(file) = MoveFile::open(page) else { return Ok(()) };
            self.processes
                .insert(page.name.clone(), Process { file: Some(file), tiers, idle_polls: 0 });
        }
        let Some(process) = self.processes.get_mut(&page.name) else { return Ok(()) };
        let Process { file: Some(moves), tiers, idle_polls } = process else { return Ok(()) };
        let (mut written, mut nonsense) = (Ok(()), 0);
        let before = self.listed;
        *idle_polls += 1;
        // Asked first: what comes before it is over is taken out below.
        let over = *idle_polls >= IDLE_LOOKS && is_over(page);
        let lost = moves.take(|moved| match line(&moved, page.pid, tiers, self.started_ns) {
            Some(line) if written.is_ok() => {
                self.listed += 1;
                written = serde_json::to_writer(&mut *file, &line)
                    .map_err(std::io::Error::from)
                    .and_then(|()| file.write_all(b"\n"));
            }
            Some(_) => {}
            None => nonsense += 1,
        });
        self.lost += lost + nonsense;
        if self.listed > before || *idle_polls >= IDLE_LOOKS {
            *idle_polls = 0;
        }
        if over {
            process.file = None;
        }
        written.and_then(|()| file.flush())
    }

    /// Whether it can be written for long after the program's end: a reader at a pipe would wait
    /// for that.
    pub fn can_go_on(&self) -> bool {
        let about = self.file.as_ref().and_then(|file| file.get_ref().metadata().ok());
        about.is_some_and(|about| about.is_file())
    }

    /// Writes what is left, and says how many of all moves were lost.
    pub fn end(mut self) {
        self.poll();
        if self.lost > 0 {
            let (lost, all) = (self.lost, self.lost + self.listed);
            say(&format!(
                "{} of {all} moves are missing in {}: they came faster than they could be written",
                lost,
                self.target.display()
            ));
        }
    }
}

/// Whether a process will list nothing any more. Its number alone does not tell, where it has
/// another one for itself.
fn is_over(page: &PageFile) -> bool {
    let now_ns = terrace_os::now_ns();
    let silent = statistics::read_image(page)
        .is_none_or(|image| now_ns.saturating_sub(image.updated_ns) > SILENT_NS);
    silent && process::stat(page.pid).is_none_or(|stat| stat.ended)
}

fn create(target: &Path) -> Result<File> {
    File::create(target).with_context(|| {
        format!(
            "moves cannot be listed in {}; name a file in a directory that you can write to",
            target.display()
        )
    })
}

/// A move as it is written; `None` for a tier that the process does not have.
fn line<'a>(moved: &Moved, pid: u32, tiers: &'a [String], started_ns: u64) -> Option<Line<'a>> {
    let name = |tier: u8| tiers.get(usize::from(tier)).map(String::as_str);
    let from = match moved.from {
        Some(tier) => Some(name(tier)?),
        None => None,
    };
    let (reason, detail) = in_words(&moved.why);
    let detail = if let Value::Object(map) = detail { map } else { Map::new() };
    let at_s = (moved.at_ns.saturating_sub(started_ns) / 1_000) as f64 / 1e6;
    Some(Line {
        at_s,
        pid,
        region: address(moved.address),
        pages: moved.pages,
        from,
        to: name(moved.to)?,
        reason,
        detail,
    })
}

fn address(address: usize) -> String {
    format!("{address:#x}")
}

/// A reason's name, and what belongs to it.
fn in_words(why: &MoveReason) -> (&'static str, Value) {
    match why {
        MoveReason::Touched => ("touched", json!({})),
        MoveReason::Room => ("room", json!({})),
        MoveReason::Victim { reason, heat: None, pressure } => {
            (reason.name(), json!({ "pressure": pressure }))
        }
        MoveReason::Victim { reason, heat: Some(heat), pressure } => {
            (reason.name(), json!({ "heat": heat, "pressure": pressure }))
        }
        MoveReason::Placed(placed) => {
            let detail = match placed {
                placement::Reason::Hot { bin, hot } => json!({ "bin": bin, "hot_from": hot }),
                placement::Reason::Cold { bin, warm } => json!({ "bin": bin, "warm_from": warm }),
                placement::Reason::Pays { hundredths } => {
                    json!({ "gain": f64::from(*hundredths) / 100.0 })
                }
                placement::Reason::SwappedFor { unit } => {
                    json!({ "for": address(address_of(*unit)) })
                }
                placement::Reason::Counted { count, threshold } => {
                    json!({ "count": count, "threshold": threshold })
                }
                placement::Reason::Foretold { accesses } => json!({ "accesses": accesses }),
                placement::Reason::Coldest
                | placement::Reason::Hinted
                | placement::Reason::Idle => json!({}),
            };
            (placed.name(), detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_control::moves::unit_of;
    use terrace_policy::eviction::victims;

    fn of(from: Option<u8>, to: u8, why: MoveReason) -> Option<String> {
        let tiers = ["dram", "node:1", "lz4"].map(String::from);
        let moved =
            Moved { at_ns: 3_500_000_000, address: 0x7f00_0000_0000, pages: 32, from, to, why };
        line(&moved, 12, &tiers, 1_000_000_000).map(|line| serde_json::to_string(&line).unwrap())
    }

    #[test]
    fn a_line_says_what_where_and_why() {
        let head = |from: &str, to: &str| {
            format!(
                "{{\"at_s\":2.5,\"pid\":12,\"region\":\"0x7f0000000000\",\"pages\":32,\"from\":{from},\"to\":\"{to}\",\"reason\":"
            )
        };
        let why =
            MoveReason::Victim { reason: victims::Reason::Cold, heat: Some(0.25), pressure: 0 };
        assert_eq!(
            of(Some(0), 2, why),
            Some(head("\"dram\"", "lz4") + "\"cold\",\"heat\":0.25,\"pressure\":0}")
        );
        let why =
            MoveReason::Victim { reason: victims::Reason::Recompressed, heat: None, pressure: 3 };
        assert_eq!(of(None, 2, why), Some(head("null", "lz4") + "\"denser\",\"pressure\":3}"));
        assert_eq!(of(None, 0, MoveReason::Touched), Some(head("null", "dram") + "\"touched\"}"));
        assert_eq!(of(None, 0, MoveReason::Room), Some(head("null", "dram") + "\"room\"}"));
        let why = MoveReason::Placed(placement::Reason::Pays { hundredths: 131 });
        assert_eq!(
            of(Some(1), 0, why),
            Some(head("\"node:1\"", "dram") + "\"pays\",\"gain\":1.31}")
        );
        let why =
            MoveReason::Placed(placement::Reason::SwappedFor { unit: unit_of(0x7f00_0020_0000) });
        assert_eq!(
            of(Some(0), 1, why),
            Some(head("\"dram\"", "node:1") + "\"swapped\",\"for\":\"0x7f0000200000\"}")
        );
        assert_eq!(of(Some(0), 3, MoveReason::Touched), None);
        assert_eq!(of(Some(9), 0, MoveReason::Touched), None);
    }
}
