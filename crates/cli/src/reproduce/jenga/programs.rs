//! What stands for the ten applications (paper Table 1, §3.1): streams of accesses that behave as
//! the paper says of them.

use crate::reproduce::Options;
use crate::reproduce::study::{Done, Kept, Memory, Run, kept};
use anyhow::{Context, Result};
use terrace_sim::generators::Generator;
use terrace_sim::machine::{Machine, PAGE};
use terrace_sim::objects::layouts::{Kind, layout};
use terrace_sim::objects::store::{self, Store};
use terrace_sim::objects::tree::{self, Tree};
use terrace_sim::objects::{Event, Filter, Heap, HeapSource, MakeSource, ObjectSource, for_each};
use terrace_sim::source::{Access, Source};

/// An application.
#[derive(Debug)]
pub struct Program {
    /// The paper's name of it.
    pub name: &'static str,
    /// What plays it, and why.
    pub about: &'static str,
    /// Working set of the program by the paper, which the fast tier holds, GB.
    pub wss_gb: f64,
    /// What is run.
    pub stream: Stream,
}

/// What is run for an application.
#[derive(Debug)]
pub enum Stream {
    /// A generator over this many GB of units of 2 MiB.
    Units(f64, &'static str),
    /// Objects: the B+-tree, of 200 million records at full size.
    Tree,
    /// Objects: the store, of 70 million records at full size.
    Store,
}

/// All ten applications, as Table 1 lists them.
pub const ALL: [Program; 10] = [
    Program {
        name: "Btree",
        about: "A B+-tree whose nodes, keys, pointers and records are objects; uniform lookups (\"random reads\") after random inserts.",
        wss_gb: 8.0,
        stream: Stream::Tree,
    },
    Program {
        name: "Silo",
        about: "A store of chained buckets, key, value and entry an object each; lookups by Zipf 0.99 (YCSB-C).",
        wss_gb: 8.0,
        stream: Stream::Store,
    },
    Program {
        name: "GAPBS-BC",
        about: "Phases: a quarter of the memory at a time, uniformly, 8 changes (searches from one source after the other).",
        wss_gb: 4.0,
        stream: Stream::Units(20.0, "phases:changes=8,shift=0.5"),
    },
    Program {
        name: "GAPBS-PR",
        about: "Half of the accesses by Zipf in a fifth (ranks of popular vertices), half a sweep through everything (edges).",
        wss_gb: 4.0,
        stream: Stream::Units(20.0, "scan"),
    },
    Program {
        name: "FlexKVS",
        about: "As the paper describes it: reads only, 90 % of them to a contiguous fifth (4 GB), another fifth from the middle of the \
                run on.",
        wss_gb: 4.0,
        stream: Stream::Units(20.0, "jump:changes=1,writes=0"),
    },
    Program {
        name: "Liblinear",
        about: "90 % of the accesses to a fifth that moves on all the time, by three times its own size in the run.",
        wss_gb: 4.0,
        stream: Stream::Units(20.0, "drift:changes=2"),
    },
    Program {
        name: "Graph500",
        about: "Zipf 0.9 over pages in no order: a Kronecker graph's degrees, vertices relabelled.",
        wss_gb: 4.0,
        stream: Stream::Units(20.0, "scattered"),
    },
    Program {
        name: "XSBench",
        about: "Zipf 0.9 over 12 GB, the popular pages first: \"the working set is concentrated in the initial set of allocated pages\".",
        wss_gb: 4.0,
        stream: Stream::Units(12.0, "zipf:shift=0"),
    },
    Program {
        name: "654.roms_s",
        about: "A checkered pattern: a quarter of 12 GB at a time, uniformly, 40 sudden changes.",
        wss_gb: 4.0,
        stream: Stream::Units(12.0, "phases:changes=40"),
    },
    Program {
        name: "603.bwaves_s",
        about: "Sweeps over a third of 12 GB with its neighbours, always the same third.",
        wss_gb: 4.0,
        stream: Stream::Units(12.0, "stencil:changes=0"),
    },
];

/// Variants of two applications whose hot set changes at another pace, by another reading of the
/// paper's remarks. They show how much its numbers depend on that pace.
pub const OTHER_PACE: [(&str, Program); 2] = [
    (
        "where what is hot changes each 120,000 samples (\"aligns well with the cooling interval\", §7.1.6)",
        Program {
            name: "654.roms_s, aligned",
            about: "",
            wss_gb: 4.0,
            stream: Stream::Units(12.0, "phases:changes=19"),
        },
    ),
    (
        "where what is hot moves on by its own size in the run, 2.4M samples (§7.1.7 has \"10M accesses\")",
        Program {
            name: "Liblinear, slower",
            about: "",
            wss_gb: 4.0,
            stream: Stream::Units(20.0, "drift:changes=0"),
        },
    ),
];

/// The application of that name.
pub fn program(name: &str) -> &'static Program {
    ALL.iter().find(|program| program.name == name).expect("it is one of the ten")
}

/// Real accesses of a run at full size: some two minutes.
const REAL_ACCESSES: f64 = 12e9;
/// Records at full size.
const TREE_RECORDS: f64 = 200e6;
const STORE_RECORDS: f64 = 70e6;

/// How much smaller than the paper's a run is, and the sizes of the programs of objects.
pub struct Size {
    /// Scale of the simulation (see [`crate::reproduce::study`]).
    pub scale: f64,
    /// Real accesses that each access of a generator's stream stands for.
    pub stands_for: f64,
    /// Records of the tree, and its lookups.
    pub tree: [u64; 2],
    /// Records of the store, and its lookups.
    pub store: [u64; 2],
    /// Bytes of the cache of the tree and the store: 1/400 of the memory or more. The paper's
    /// processor has 27.5 MB for some 22 GB.
    pub cache_bytes: usize,
}

/// The size of a quick run, or of a full one.
pub fn size(options: &Options) -> Size {
    if options.quick {
        // Two moves a tick: a swap needs as many.
        Size {
            scale: 0.04,
            stands_for: 250.0,
            tree: [12_000, 20_000],
            store: [5_000, 40_000],
            cache_bytes: 4 << 10,
        }
    } else {
        Size {
            scale: 0.2,
            stands_for: 100.0,
            tree: [100_000, 1_000_000],
            store: [40_000, 1_500_000],
            cache_bytes: 32 << 10,
        }
    }
}

/// A program's accesses: made again each time, or in memory.
pub enum Accesses {
    Generated(Generator, u64),
    Kept(u32, Vec<Access>),
}

impl Accesses {
    /// The accesses, from the beginning.
    pub fn source(&self) -> Box<dyn Source + '_> {
        match self {
            Accesses::Generated(generator, seed) => Box::new(generator.stream(*seed)),
            Accesses::Kept(units, all) => Box::new(Kept::new(*units, all)),
        }
    }
}

impl Program {
    /// Whether the program has objects, so that the allocator matters.
    pub fn has_objects(&self) -> bool {
        !matches!(self.stream, Stream::Units(..))
    }

    /// The program's accesses, and the memory that it has them in. Objects are by time, as with
    /// glibc, or by calling context, as with Jenga.
    pub fn prepare(&self, by_context: bool, options: &Options) -> Result<(Memory, Accesses)> {
        let size = size(options);
        let machine = Machine::preset("optane").context("no machine `optane`")?;
        let seed = options.seed;
        let (make, full_scale): (Box<dyn Fn() -> Box<dyn ObjectSource> + Send + Sync>, f64) =
            match self.stream {
                Stream::Units(gb, text) => {
                    let units = (gb * 512.0 * size.scale).round() as u32;
                    let accesses = (REAL_ACCESSES * size.scale / size.stands_for) as u64;
                    let memory = Memory {
                        machine,
                        scale: size.scale,
                        units,
                        stands_for: size.stands_for,
                        accesses,
                        seed,
                    };
                    return Ok((
                        memory,
                        Accesses::Generated(Generator::parse(text, units, accesses)?, seed),
                    ));
                }
                Stream::Tree => {
                    let [keys, lookups] = size.tree;
                    let config = tree::Config { keys, theta: 0.0, lookups, seed };
                    (Box::new(move || Box::new(Tree::new(config))), TREE_RECORDS / keys as f64)
                }
                Stream::Store => {
                    let [keys, lookups] = size.store;
                    let config =
                        store::Config { theta: 0.99, seed, ..store::Config::new(keys, lookups) };
                    (Box::new(move || Box::new(Store::new(config))), STORE_RECORDS / keys as f64)
                }
            };
        // Pages of 4 KiB of this memory play units of 2 MiB of the paper's. The scale is how many
        // of these pages stand for a GB there, over the 512 units of that GB.
        let scale = (1u64 << 30) as f64 / full_scale / PAGE as f64 / 512.0;
        let mut by_time =
            kept(&mut HeapSource::new(&make, Kind::Time, Filter::Misses(size.cache_bytes), PAGE)?)?;
        let stands_for = (REAL_ACCESSES * scale / by_time.len() as f64).max(1.0);
        let kind = if by_context { Kind::Context } else { Kind::Time };
        let mut all = match kind {
            Kind::Time => std::mem::take(&mut by_time),
            _ => kept(&mut HeapSource::new(&make, kind, Filter::Misses(size.cache_bytes), PAGE)?)?,
        };
        let units = without_holes(&mut all, &make, kind)?;
        let memory = Memory { machine, scale, units, stands_for, accesses: all.len() as u64, seed };
        Ok((memory, Accesses::Kept(units, all)))
    }

    /// Runs policies, each with its objects in one layout.
    pub fn run(&self, by_context: bool, runs: &[Run], options: &Options) -> Result<Vec<Done>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let (memory, accesses) = self.prepare(by_context, options)?;
        memory.run(accesses.source().as_mut(), runs)
    }
}

/// Numbers the pages that have objects anew, in their order, and returns how many there are. A
/// context's region of 2 MiB is one unit of the paper's. Here it is many of the pages that play
/// one, most of which would be empty.
fn without_holes(all: &mut [Access], make: &MakeSource<'_>, kind: Kind) -> Result<u32> {
    let mut heap = Heap::new(layout(kind, make)?);
    for_each(make().as_mut(), |event| {
        if let Event::Allocated(_) = event {
            heap.follow(event, &mut |_, _| ());
        }
    })?;
    let pages: Vec<u64> = heap.pages().collect();
    for access in all {
        let page =
            pages.binary_search(&u64::from(access.unit())).expect("what is touched is an object's");
        *access = Access::new(page as u32, access.is_write());
    }
    Ok(pages.len() as u32)
}

/// What a program touches.
pub struct Map {
    /// Accesses by address, from the lowest up, and time.
    pub cells: Vec<Vec<f64>>,
    /// The working set by the paper's definition (§3.1), in GB: pages touched in 50 ms at the speed
    /// of the fast tier, on average. Pages are of 4 KiB; each region has 512 that are touched
    /// evenly.
    pub wss_gb: f64,
    /// The working set in regions of 2 MiB, by the same definition, in GB.
    pub regions_gb: f64,
}

/// Expected number of pages of one region that `accesses` evenly spread accesses touch.
fn pages_met(accesses: f64) -> f64 {
    PAGES * (1.0 - (1.0 - 1.0 / PAGES).powf(accesses))
}

/// Number of pages of 4 KiB in a region of 2 MiB.
const PAGES: f64 = 512.0;

/// A program's heatmap over accesses, and its working set.
pub fn heatmap(
    memory: &Memory,
    source: &mut dyn Source,
    rows: usize,
    columns: usize,
) -> Result<Map> {
    let mut cells = vec![vec![0.0; columns]; rows];
    let period = memory.accesses_a_tick().max(1.0);
    // The period in which a unit was touched last, and how often.
    let mut seen = vec![(u32::MAX, 0u32); memory.units as usize];
    let (mut regions, mut pages, mut block, mut number) = (0u64, 0.0, Vec::new(), 0u64);
    let met = |count: u32| pages_met(f64::from(count) * memory.stands_for);
    loop {
        source.next_block(&mut block)?;
        if block.is_empty() {
            break;
        }
        for access in &block {
            let unit = access.unit() as usize;
            cells[unit * rows / memory.units as usize]
                [(number as usize * columns / memory.accesses as usize).min(columns - 1)] += 1.0;
            let tick = (number as f64 / period) as u32;
            let (last, count) = &mut seen[unit];
            if *last == tick {
                *count += 1;
            } else {
                pages += met(*count);
                regions += 1;
                (*last, *count) = (tick, 1);
            }
            number += 1;
        }
    }
    pages += seen.iter().map(|(_, count)| met(*count)).sum::<f64>();
    let per_gb = (number as f64 / period).max(1.0) * PAGES * memory.scale;
    Ok(Map { cells, wss_gb: pages / per_gb / PAGES, regions_gb: regions as f64 / per_gb })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_runs_in_its_memory() {
        let options = Options { quick: true, seed: 1 };
        for program in &ALL {
            let (memory, accesses) = program.prepare(true, &options).unwrap();
            let gb = f64::from(memory.units) / (512.0 * memory.scale);
            assert!((11.0..32.0).contains(&gb), "{}: {gb} GB", program.name);
            assert!(memory.units_of(program.wss_gb) < memory.units, "{}", program.name);
            let Map { cells, wss_gb, regions_gb } =
                heatmap(&memory, accesses.source().as_mut(), 8, 8).unwrap();
            let met: f64 = cells.iter().flatten().sum();
            assert_eq!(met as u64, memory.accesses, "{}", program.name);
            assert!(
                wss_gb > 0.1 && wss_gb <= regions_gb && regions_gb <= gb,
                "{}: {wss_gb} {regions_gb}",
                program.name
            );
            let real = memory.accesses as f64 * memory.stands_for / memory.scale;
            assert!((0.5..1.5).contains(&(real / REAL_ACCESSES)), "{}: {real}", program.name);
        }
    }

    /// The first access meets one page; the second meets another but once in 512 times.
    #[test]
    fn pages_are_met_by_chance() {
        assert!((pages_met(1.0) - 1.0).abs() < 1e-9 && pages_met(0.0) == 0.0);
        assert!((pages_met(2.0) - (2.0 - 1.0 / 512.0)).abs() < 1e-9 && pages_met(1e6) <= 512.0);
    }

    /// The jump: the hot fifth is a contiguous 4 GB, and another one in the second half.
    #[test]
    fn a_heatmap_shows_the_jump() {
        let options = Options { quick: true, seed: 1 };
        let (memory, accesses) = program("FlexKVS").prepare(false, &options).unwrap();
        let Map { cells, .. } = heatmap(&memory, accesses.source().as_mut(), 10, 2).unwrap();
        let hot = |column: usize| {
            (0..10)
                .filter(|row| {
                    cells[*row][column] > 0.3 * cells.iter().map(|row| row[column]).sum::<f64>()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!((hot(0), hot(1)), (vec![3, 4], vec![7, 8]));
    }
}
