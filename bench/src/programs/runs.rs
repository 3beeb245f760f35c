//! The runs of a benchmark that takes hours, one JSON line each, so that a benchmark that was cut
//! off goes on where it was. The file is there until the benchmark is done.

use super::Kind;
use crate::machine;
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// All runs of a benchmark so far.
pub struct Runs {
    path: PathBuf,
    file: File,
    lines: Vec<Value>,
}

impl Runs {
    /// Takes over the runs of a benchmark that was cut off, if there was one with the same build
    /// and flags.
    pub fn open(kind: Kind, flags: &str) -> anyhow::Result<Runs> {
        let name = match kind {
            Kind::AgainstZram => "programs-runs",
            Kind::Fill => "fill-runs",
            Kind::Honesty => "honesty-runs",
            Kind::Slowdown => "slowdown-runs",
            Kind::Plans => "plans-runs",
            Kind::Placement => "placement-runs",
        };
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        fs::create_dir_all(&directory)?;
        let path = directory.join(format!("{name}.jsonl"));
        let library = machine::terrace()?.with_file_name("libterrace.so");
        let built = fs::metadata(&library)
            .and_then(|metadata| metadata.modified())
            .with_context(|| format!("{}: run `make build` first", library.display()))?;
        let built_s = built.duration_since(UNIX_EPOCH)?.as_secs();
        let head = json!({ "terrace_flags": flags, "library_built_s": built_s });
        let text = fs::read_to_string(&path).unwrap_or_default();
        // A line that was cut off is made again.
        let mut lines: Vec<Value> =
            text.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
        let shown = path.display();
        if lines.is_empty() {
            lines.push(head);
        } else {
            ensure!(
                lines[0] == head,
                "{shown} has runs of another build or with other flags: remove it to begin anew"
            );
            println!("{} runs are taken from {shown}", lines.len() - 1);
        }
        let mut file = File::create(&path).with_context(|| shown.to_string())?;
        for line in &lines {
            writeln!(file, "{line}")?;
        }
        Ok(Runs { path, file, lines })
    }

    /// Runs of a program, `repeats` of them in order; those that are missing are made.
    pub fn repeat(
        &mut self,
        program: &str,
        share: u64,
        repeats: usize,
        mut make: impl FnMut(usize) -> anyhow::Result<Value>,
    ) -> anyhow::Result<Vec<&Value>> {
        for repeat in 0..repeats {
            if self.find(program, share, repeat).is_none() {
                self.add(program, share, repeat, make(repeat)?)?;
            }
        }
        Ok(self.made(program, share, repeats))
    }

    /// Runs of a program that were made, in order, of at most `repeats`.
    pub fn made(&self, program: &str, share: u64, repeats: usize) -> Vec<&Value> {
        (0..repeats).filter_map(|repeat| self.find(program, share, repeat)).collect()
    }

    /// The figures of a run, if it was made.
    fn find(&self, program: &str, share: u64, repeat: usize) -> Option<&Value> {
        let is_it = |line: &&Value| {
            line["program"] == program && line["share"] == share && line["repeat"] == repeat
        };
        self.lines.iter().find(is_it).map(|line| &line["sample"])
    }

    /// Adds a run.
    fn add(
        &mut self,
        program: &str,
        share: u64,
        repeat: usize,
        sample: Value,
    ) -> anyhow::Result<()> {
        let line =
            json!({ "program": program, "share": share, "repeat": repeat, "sample": sample });
        writeln!(self.file, "{line}")?;
        self.lines.push(line);
        Ok(())
    }

    /// Removes the file of runs, so that the next benchmark begins anew.
    pub fn are_done(self) -> anyhow::Result<()> {
        fs::remove_file(&self.path).context("removing the runs")
    }
}
