//! What came of the cases: in memory, and a line each in a file, where it was found before.

use super::cases::Case;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use terrace_sim::counts::Counts;
use terrace_sim::simulation::{Outcome, Settings};

/// Results of a case: a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Case that these results belong to.
    pub case: Case,
    /// Why the results are of the first part of the recording only: it is cut off or damaged. Left
    /// out where all of it was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// Number of units.
    pub units: u32,
    /// Base units in all; left out where units are alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_units: Option<u32>,
    /// Units that the fast tier has room for: base units, where there are huge ones.
    pub fast_units: u32,
    /// Bytes that each unit plays: of base units, where there are huge ones.
    pub unit_bytes: f64,
    /// Real accesses that each access stands for.
    pub stands_for: f64,
    /// Figures of the whole run.
    pub total: Figures,
    /// Times that the policy was asked.
    pub ticks: u64,
    /// Parts of the run, in the order of time.
    pub windows: Vec<Window>,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Number of accesses of the stream.
    pub accesses: u64,
    /// Share that met the fast tier.
    pub hit_rate: f64,
    /// Real accesses a second, modelled.
    pub per_s: f64,
    /// Average memory access time, ns, without what moves take.
    pub amat_ns: f64,
    /// Cost of the memory that held the units, relative to DRAM for all of them; an average over
    /// time.
    pub cost: f64,
    /// Simulated time, s.
    pub time_s: f64,
    /// Part of the simulated time that moves took, s.
    pub move_s: f64,
    /// Part of the simulated time that faults took, s.
    pub fault_s: f64,
    /// Units moved up.
    pub promoted: u64,
    /// Units moved down.
    pub demoted: u64,
    /// Moves that were asked for and not made.
    pub refused: u64,
    /// Accesses that found their unit compressed.
    pub faults: u64,
    /// First accesses to armed units.
    pub hints: u64,
    /// Samples that the policy was told.
    pub samples: u64,
    /// Accesses that wrote.
    pub writes: u64,
}

/// A part of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// End of the window, simulated s.
    pub end_s: f64,
    /// Share of the accesses in this window that met the fast tier.
    pub hit_rate: f64,
    /// Real accesses a second in this window, modelled.
    pub per_s: f64,
    /// Units moved up in this window.
    pub promoted: u64,
    /// Units moved down in this window.
    pub demoted: u64,
}

impl Row {
    /// Makes the row of results of a case that was run.
    pub fn new(
        case: &Case,
        settings: &Settings,
        base_units: Option<u32>,
        incomplete: Option<&str>,
        outcome: &Outcome,
    ) -> Row {
        let stands_for = settings.stands_for;
        let total = &outcome.total;
        let mut end_s = 0.0;
        let window = |of: &Counts| {
            end_s += of.time_ns / 1e9;
            Window {
                end_s,
                hit_rate: of.hit_rate(),
                per_s: of.per_s(stands_for),
                promoted: of.promoted,
                demoted: of.demoted,
            }
        };
        Row {
            case: case.clone(),
            incomplete: incomplete.map(str::to_owned),
            units: settings.units,
            base_units,
            fast_units: settings.capacity,
            unit_bytes: settings.unit_bytes,
            stands_for,
            total: Figures {
                accesses: total.accesses,
                hit_rate: total.hit_rate(),
                per_s: total.per_s(stands_for),
                amat_ns: total.amat_ns(stands_for),
                cost: total.cost(&settings.machine),
                time_s: total.time_ns / 1e9,
                move_s: total.move_ns / 1e9,
                fault_s: total.fault_ns / 1e9,
                promoted: total.promoted,
                demoted: total.demoted,
                refused: total.refused,
                faults: total.faults,
                hints: total.hints,
                samples: total.samples,
                writes: total.writes,
            },
            ticks: outcome.ticks,
            windows: outcome.windows.iter().map(window).collect(),
        }
    }
}

/// Rows by case.
pub struct Results {
    path: Option<PathBuf>,
    inner: Mutex<Inner>,
}

struct Inner {
    file: Option<File>,
    cases: Vec<Case>,
    /// Rows of results by the number of their case; `None` for a case that has not been run.
    rows: Vec<Option<Row>>,
    /// Lines that were in the file before, of recordings that were not whole. Those cases are run
    /// again, as a recording may have been mended since.
    incomplete: Vec<Option<Vec<u8>>>,
}

impl Results {
    /// Results of these cases. Those that are in the file are finished, but for those of recordings
    /// that were not whole. A last line that was not written to its end is taken away.
    pub fn open(path: Option<&Path>, cases: impl Iterator<Item = Case>) -> Result<Results> {
        let cases: Vec<Case> = cases.collect();
        let (mut rows, mut incomplete) = (vec![None; cases.len()], vec![None; cases.len()]);
        let mut file = None;
        if let Some(path) = path {
            let name = || path.display().to_string();
            let mut opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .with_context(|| format!("cannot write {}", name()))?;
            let mut text = Vec::new();
            opened.read_to_end(&mut text).with_context(name)?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            for (number, line) in text[..whole]
                .split(|byte| *byte == b'\n')
                .enumerate()
                .filter(|(_, line)| !line.is_empty())
            {
                let row: Row = serde_json::from_slice(line).with_context(|| {
                    format!(
                        "{}, line {}: no result of this `terrace sim`; name another file (-o)",
                        name(),
                        number + 1
                    )
                })?;
                if let Some(at) = cases.iter().position(|case| *case == row.case) {
                    if row.incomplete.is_some() {
                        incomplete[at] = Some(line.to_vec());
                    } else {
                        rows[at] = Some(row);
                    }
                }
            }
            if whole < text.len() {
                // Whatever else the file is, it is not ours to be cut.
                let last = &text[whole..];
                let begins = b"{\"case\":".iter().zip(last).all(|(ours, found)| ours == found);
                anyhow::ensure!(
                    begins,
                    "{}: no results of `terrace sim`; name another file (-o)",
                    name()
                );
                crate::say(&format!("{}: its last line was not finished, and is left out", name()));
                opened.set_len(whole as u64).with_context(name)?;
            }
            opened.seek(SeekFrom::End(0)).with_context(name)?;
            file = Some(opened);
        }
        Ok(Results {
            path: path.map(Path::to_owned),
            inner: Mutex::new(Inner { file, cases, rows, incomplete }),
        })
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("nobody panics with it")
    }

    /// Whether that case is finished.
    pub fn has(&self, number: usize) -> bool {
        self.locked().rows[number].is_some()
    }

    /// Cases that are finished.
    pub fn finished(&self) -> usize {
        self.locked().rows.iter().flatten().count()
    }

    /// Cases that are not, and were run before on recordings that were not whole.
    pub fn to_be_repeated(&self) -> usize {
        let inner = self.locked();
        inner
            .rows
            .iter()
            .zip(&inner.incomplete)
            .filter(|(row, incomplete)| row.is_none() && incomplete.is_some())
            .count()
    }

    /// Notes that a case is finished, as far as its recording goes.
    pub fn add(&self, number: usize, row: Row) -> Result<()> {
        let mut inner = self.locked();
        debug_assert_eq!(inner.cases[number], row.case);
        let line = serde_json::to_string(&row).context("cannot write JSON")?;
        // What came of a damaged recording that was not mended is there already.
        let known = inner.incomplete[number].as_deref() == Some(line.as_bytes());
        if let Some(file) = inner.file.as_mut().filter(|_| !known) {
            // At once: whatever happens, a line is whole or the last.
            let written = file.write_all((line + "\n").as_bytes());
            written.with_context(|| {
                format!("cannot write {}", self.path.as_deref().unwrap_or(Path::new("")).display())
            })?;
        }
        inner.rows[number] = Some(row);
        Ok(())
    }

    /// Rows of the cases that are finished, in the order of cases.
    pub fn rows(&self) -> Vec<Row> {
        self.locked().rows.iter().flatten().cloned().collect()
    }
}
