//! Where accesses come from, by one word: a generator, a program of objects, or a recording.

use crate::generators::{self, Generator};
use crate::machine::PAGE;
use crate::mixed::Mixed;
use crate::objects::layouts::Kind;
use crate::objects::programs::{self, Program};
use crate::objects::{Filter, HeapSource, MakeSource, ObjectSource};
use crate::recorded::{Pace, Recorded, RecordedObjects};
use crate::source::{EndsEarly, Source, SourceError};
use crate::spec::{SpecError, split};
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use terrace_trace::framing::check_magic;
use terrace_trace::{accesses, objects};

/// Source of accesses.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Accesses to units, by a generator.
    Generated(Generator),
    /// Objects, by a program.
    Program(Program),
    /// Recorded accesses to pages.
    Accesses(PathBuf),
    /// Recorded objects.
    Objects(PathBuf),
}

/// Why a text is no workload.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// What was written.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A file cannot be read.
    #[error("{}: {why}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// A file was read, and is no recording.
    #[error("{}: {why}", .path.display())]
    Contents {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
}

/// What one unit is of a workload whose memory has bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pages {
    /// This many bytes.
    Alike(u64),
    /// An aligned range of 2 MiB of which at least this share of the pages of 4 KiB is touched at
    /// all. Of other ranges it is each page.
    Mixed(f64),
}

/// A workload, ready to be run.
pub struct Opened {
    /// The accesses.
    pub source: Box<dyn Source>,
    /// Real accesses that each access stands for, where a recording says so.
    pub period: Option<u64>,
    /// What each access stands for, where it is one of a recording of accesses.
    pub pace: Option<Pace>,
    /// Note that a recording's file had no room for all.
    pub note: Option<String>,
    /// Whether it ends before what was recorded does, and why: a recording that is cut off or
    /// damaged is run up to there.
    pub ends_early: EndsEarly,
}

impl Workload {
    /// Reads a workload: the path of a recording, or a name with parameters. `units` and `accesses`
    /// are a generator's where the text says nothing of them.
    pub fn parse(text: &str, units: u32, accesses: u64) -> Result<Workload, WorkloadError> {
        let path = Path::new(text);
        if path.is_file() || text.contains('/') {
            return recording(path);
        }
        let (name, parameters) = split(text);
        if let Some(program) = Program::parse(name, parameters) {
            return Ok(Workload::Program(program?));
        }
        match Generator::parse(text, units, accesses) {
            Err(SpecError::Name { name, .. }) => {
                let valid = names().map(|(name, _)| name).collect();
                Err(SpecError::Name { name, valid }.into())
            }
            generator => Ok(Workload::Generated(generator?)),
        }
    }

    /// Whether the workload is one of objects, which can lie in several ways.
    pub fn has_objects(&self) -> bool {
        matches!(self, Workload::Program(_) | Workload::Objects(_))
    }

    /// Whether there are base pages and huge ones, if the workload's memory is divided like this.
    pub fn is_mixed(&self, pages: Pages) -> bool {
        match self {
            Workload::Generated(generator) => generator.is_mixed(),
            _ => matches!(pages, Pages::Mixed(_)),
        }
    }

    /// Opens the workload's accesses, in units of `pages` where it has bytes. Objects lie in this
    /// layout. What `filter` keeps of their accesses counts, unless a recording was filtered
    /// already.
    pub fn open(
        &self,
        seed: u64,
        layout: Kind,
        filter: Filter,
        pages: Pages,
    ) -> Result<Opened, SourceError> {
        let ends_early = EndsEarly::default();
        Ok(match self {
            Workload::Generated(generator) => Opened {
                source: generator.source(seed),
                period: None,
                pace: None,
                note: None,
                ends_early,
            },
            Workload::Program(program) => {
                let make = || program.make(seed);
                Opened {
                    source: heap(&make, layout, filter, pages)?,
                    period: None,
                    pace: None,
                    note: None,
                    ends_early,
                }
            }
            Workload::Accesses(path) => {
                let recorded = Recorded::open(
                    path,
                    if let Pages::Alike(bytes) = pages { bytes } else { PAGE },
                )?;
                let (period, pace) = (Some(recorded.period()), Some(recorded.pace()));
                let (note, ends_early) = (recorded.note(), recorded.ends_early());
                let source: Box<dyn Source> = match pages {
                    Pages::Alike(_) => Box::new(recorded),
                    Pages::Mixed(share) => Box::new(recorded.mixed(share)),
                };
                Opened { source, period, pace, note, ends_early }
            }
            Workload::Objects(path) => {
                let recorded = RecordedObjects::open(path, ends_early.clone())?;
                let (period, note) = (Some(recorded.period()), recorded.note());
                let filter = if recorded.are_misses() { Filter::All } else { filter };
                // It could be opened; if that has changed since, it has no events.
                let make = || -> Box<dyn ObjectSource> {
                    match RecordedObjects::open(path, ends_early.clone()) {
                        Ok(recorded) => Box::new(recorded),
                        Err(error) => Box::new(Broken(Some(error))),
                    }
                };
                let source = heap(&make, layout, filter, pages)?;
                Opened { source, period, pace: None, note, ends_early: ends_early.clone() }
            }
        })
    }
}

/// Objects in a layout.
fn heap(
    make: &MakeSource<'_>,
    layout: Kind,
    filter: Filter,
    pages: Pages,
) -> Result<Box<dyn Source>, SourceError> {
    let share = match pages {
        Pages::Alike(bytes) => return Ok(Box::new(HeapSource::new(make, layout, filter, bytes)?)),
        Pages::Mixed(share) => share,
    };
    // Once more, to see what is touched.
    let mut seen = HeapSource::new(make, layout, filter, PAGE)?;
    let mut touched = vec![false; seen.units() as usize];
    let mut block = Vec::new();
    loop {
        seen.next_block(&mut block)?;
        if block.is_empty() {
            break;
        }
        block.iter().for_each(|access| touched[access.unit() as usize] = true);
    }
    let addresses: Vec<(u32, u64)> = (0..u64::from(seen.units())).map(|page| (0, page)).collect();
    let source = Box::new(HeapSource::new(make, layout, filter, PAGE)?);
    Ok(Box::new(Mixed::by_address(source, &addresses, |page| touched[page], share)))
}

impl fmt::Display for Workload {
    /// Writes the workload with all its parameters; a recording's path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Generated(generator) => generator.fmt(f),
            Workload::Program(program) => program.fmt(f),
            Workload::Accesses(path) | Workload::Objects(path) => path.display().fmt(f),
        }
    }
}

/// Names of all workloads that are no recordings, with one line about each.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    generators::names().chain(programs::NAMES)
}

/// Recording of the kind that the file says.
fn recording(path: &Path) -> Result<Workload, WorkloadError> {
    let wrong = |why: String| WorkloadError::Contents { path: path.to_owned(), why };
    let mut magic = [0; 8];
    let read =
        File::open(path).and_then(|file| file.take(8).read(&mut magic)).map_err(|error| {
            let way = match error.kind() {
                std::io::ErrorKind::NotFound => "; `terrace record -o FILE -- CMD` makes one",
                std::io::ErrorKind::IsADirectory => "; name a file in it",
                _ => "",
            };
            WorkloadError::File { path: path.to_owned(), why: format!("{error}{way}") }
        })?;
    if read == 0 {
        return Err(wrong("an empty file, and no recording".into()));
    }
    let is = |of: &[u8; 8]| magic[..read].starts_with(&of[..7]);
    let (of, workload) = if is(&accesses::MAGIC) {
        (accesses::MAGIC, Workload::Accesses(path.to_owned()))
    } else if is(&objects::MAGIC) {
        (objects::MAGIC, Workload::Objects(path.to_owned()))
    } else {
        return Err(wrong(
            "no recording of accesses or of objects (`terrace record --accesses` makes the former)"
                .into(),
        ));
    };
    // Of another version.
    check_magic(&magic[..read], &of).map_err(|error| wrong(error.to_string()))?;
    Ok(workload)
}

/// A recording that could be opened before and cannot any more.
struct Broken(Option<SourceError>);

impl ObjectSource for Broken {
    fn next_block(&mut self, events: &mut Vec<crate::objects::Event>) -> Result<(), SourceError> {
        events.clear();
        self.0.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_generator_a_program_or_a_recording() {
        let parse = |text: &str| Workload::parse(text, 100, 1000);
        assert!(matches!(parse("flex:units=50").unwrap(), Workload::Generated(_)));
        let store = parse("store:keys=10K,writes=0.5").unwrap();
        assert!(store.has_objects());
        assert_eq!(store.to_string(), "store:keys=10000,theta=0.99,lookups=4000000,writes=0.5");
        assert_eq!(parse(&store.to_string()).unwrap(), store);
        let chained = parse("store:chain=1600,keys=300K").unwrap();
        assert_eq!(
            chained.to_string(),
            "store:keys=300000,theta=0.99,lookups=4000000,writes=0,chain=1600"
        );
        assert_eq!(parse(&chained.to_string()).unwrap(), chained);
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            error("jmp"),
            "there is no stream `jmp`; there are zipf, scattered, jump, drift, scan, phases, chase, stencil, uniform, gauss, btree, tree, store, or write the path of a recording"
        );
        assert_eq!(
            error("tree:writes=1"),
            "`tree` has no parameter `writes`; it has keys, theta, lookups"
        );
        assert_eq!(
            error("tree:chain=2"),
            "`tree` has no parameter `chain`; it has keys, theta, lookups"
        );
        assert_eq!(
            error("store:chain=0"),
            "`chain=0`: write a whole number from 1 to 268435456 (10K is 10000)"
        );
        assert_eq!(
            error("store:long=2"),
            "`store` has no parameter `long`; it has keys, theta, lookups, writes, chain"
        );
        assert_eq!(
            error("./none.acc"),
            "./none.acc: No such file or directory (os error 2); `terrace record -o FILE -- CMD` makes one"
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("short");
        std::fs::write(&path, b"TERR").unwrap();
        assert!(
            error(path.to_str().unwrap()).contains("short: no recording"),
            "{}",
            error(path.to_str().unwrap())
        );
    }

    #[test]
    fn what_is_opened_is_as_large_as_its_objects() {
        let tree = Workload::parse("tree:keys=1000,lookups=1000", 0, 0).unwrap();
        let mut opened = tree.open(1, Kind::Size, Filter::All, Pages::Alike(4096)).unwrap();
        let (mut block, mut accesses) = (Vec::new(), 0);
        while opened.source.next_block(&mut block).map(|()| !block.is_empty()).unwrap() {
            accesses += block.len() as u64;
        }
        assert_eq!(Some(accesses), opened.source.accesses());
        // A thousand records of 32 bytes, and some 600 nodes of 96.
        assert!((20..28).contains(&opened.source.units()), "{}", opened.source.units());
        // All of them are touched, but no range is half full.
        let of =
            |share: f64| tree.open(1, Kind::Size, Filter::All, Pages::Mixed(share)).unwrap().source;
        assert_eq!(
            (of(0.5).units(), of(0.5).sizes().iter().max()),
            (opened.source.units(), Some(&1))
        );
        assert_eq!(of(0.02).sizes()[..], [512]);
        assert!(tree.is_mixed(Pages::Mixed(0.5)) && !tree.is_mixed(Pages::Alike(4096)));
    }
}
