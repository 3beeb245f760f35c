//! What `--observe` tells of memory besides its size: how much of it nothing touched for how long,
//! and how well it compresses.
//!
//! The kernel notes accesses in page table entries. `/proc/PID/clear_refs` clears these notes.
//! `Referenced` of `/proc/PID/smaps` tells what was touched since then, by the hardware's
//! granularity (all of a huge page at once). Both need no privilege over processes of one's own.
//! The program only pays for its translations being looked up again.

use crate::cost::compress::{Compressed, Gauge};
use crate::processes::process::{self, cpu_time, kib_of};
use crate::processes::statistics;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_tiers::{PAGE_BYTES, Page};

/// Times for which it is told how much was not touched, s. Each round of looks begins with clearing
/// the notes; the first ends after the first of these times.
const TIMES_S: [u64; 4] = [2, 10, 60, 300];
/// Processes with less anonymous memory are of no interest.
pub const FROM_BYTES: u64 = 16 << 20;
/// Time between polls, and the greatest share of it that a poll may take of a CPU.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const POLL_SHARE: u32 = 64;
/// Pages that are read in a round to see how they compress, and the most of a process.
const PAGES_A_ROUND: usize = 64;
const PAGES_MAX: usize = 4096;

/// How much of a process's anonymous memory was idle, and how it compresses.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Deserialize, Serialize)]
pub struct Idle {
    /// By time, the shortest first; those that were seen.
    pub not_touched: Vec<NotTouched>,
    /// Pages that were read to see how memory compresses, chosen at random.
    pub sampled_pages: u64,
    /// What these pages take in each compressed tier.
    pub compressed: Vec<Compressed>,
}

/// What was not touched for some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Deserialize, Serialize)]
pub struct NotTouched {
    /// For so long, in seconds.
    pub seconds: u64,
    /// Bytes of which that is true, on average over the looks.
    pub mean_bytes: u64,
    /// All anonymous memory, likewise.
    pub of_bytes: u64,
    /// The looks.
    pub looks: u64,
}

impl NotTouched {
    /// Share of the memory that was not touched, from 0 to 1.
    pub fn fraction(&self) -> f64 {
        if self.of_bytes == 0 { 0.0 } else { self.mean_bytes as f64 / self.of_bytes as f64 }
    }
}

impl Idle {
    /// The budget that holds `data` bytes if all of it that was idle for the longest time seen is
    /// in the first compressed tier; `None` where that is not known, or saves nothing.
    pub fn budget(&self, data: u64) -> Option<(u64, NotTouched)> {
        let idle = self.not_touched.iter().rfind(|idle| idle.seconds > TIMES_S[0])?;
        let compressed = self.compressed.first()?.fraction;
        let saved = data as f64 * idle.fraction() * (1.0 - compressed);
        (saved >= (1 << 20) as f64).then_some((data - saved as u64, *idle))
    }
}

/// The processes of a run that is only observed.
pub struct IdleWatch {
    run_dir: PathBuf,
    tiers: String,
    random: SmallRng,
    processes: HashMap<(u32, u64), Process>,
}

/// The looks at one program image of a process.
struct Process {
    /// When the notes of accesses were cleared.
    cleared: Instant,
    /// The next of [`TIMES_S`] to look at, and the last of this round.
    next: usize,
    last: usize,
    idle_sums: [(u64, u64, u64); TIMES_S.len()],
    gauge: Gauge,
}

/// A mapping of anonymous memory alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mapping {
    start: u64,
    end: u64,
    resident: u64,
    referenced: u64,
}

impl IdleWatch {
    /// Watches the processes that put their statistics pages into `run_dir`. `tiers` is a list as
    /// in `--tiers`.
    pub fn new(run_dir: &Path, tiers: &str) -> Self {
        IdleWatch {
            run_dir: run_dir.to_owned(),
            tiers: tiers.to_owned(),
            random: SmallRng::seed_from_u64(1),
            processes: HashMap::new(),
        }
    }

    /// Looks at the processes for which it is time. Returns when to poll again.
    pub fn poll(&mut self) -> Duration {
        let begun = cpu_time();
        for (pid, file) in statistics::newest_pages(&self.run_dir) {
            // In a PID namespace of its own its number is another process's here.
            let is_here = || {
                let image = statistics::read_image(&file);
                let own = terrace_os::pid_namespace();
                image.is_some_and(|image| image.pid_namespace == own && image.process().is_some())
            };
            if process::anonymous_bytes(pid) >= FROM_BYTES && is_here() {
                self.look_at(pid, file.started_ns);
            }
        }
        POLL_INTERVAL.max((cpu_time() - begun) * POLL_SHARE)
    }

    /// Looks at a process whose image started at `started_ns`, if it is time for that.
    pub fn look_at(&mut self, pid: u32, started_ns: u64) {
        let tiers = &self.tiers;
        let known = self.processes.entry((pid, started_ns));
        let is_new = matches!(known, std::collections::hash_map::Entry::Vacant(_));
        let known = known.or_insert_with(|| Process {
            cleared: Instant::now(),
            next: 0,
            last: 0,
            idle_sums: Default::default(),
            gauge: Gauge::new(tiers),
        });
        let due = known.cleared.elapsed() >= Duration::from_secs(TIMES_S[known.next]);
        if !is_new && !due {
            return;
        }
        let Ok(smaps) = fs::read_to_string(format!("/proc/{pid}/smaps")) else { return };
        let mappings = anonymous_mappings(&smaps);
        if !is_new {
            let sum = |of: fn(&Mapping) -> u64| mappings.iter().map(of).sum::<u64>();
            let (resident, referenced) = (sum(|m| m.resident), sum(|m| m.referenced));
            let (idle, all, looks) = &mut known.idle_sums[known.next];
            *idle += resident - referenced.min(resident);
            *all += resident;
            *looks += 1;
            known.next += 1;
            if known.next <= known.last {
                return;
            }
            known.last = (known.last + 1).min(TIMES_S.len() - 1);
            if known.gauge.pages() < PAGES_MAX {
                let pages = sample(pid, &mappings, PAGES_A_ROUND, &mut self.random);
                known.gauge.add(&pages);
            }
        }
        // Where it is not permitted, everything seems to be touched, and nothing is told.
        if fs::write(format!("/proc/{pid}/clear_refs"), "1").is_err() {
            known.idle_sums = Default::default();
        }
        known.cleared = Instant::now();
        known.next = 0;
    }

    /// What was seen, by process and the time at which its image started.
    pub fn known(&self) -> HashMap<(u32, u64), Idle> {
        self.processes
            .iter()
            .map(|(process, seen)| {
                let idle = TIMES_S.iter().zip(seen.idle_sums).filter(|(_, (.., looks))| *looks > 0);
                let told = Idle {
                    not_touched: idle
                        .map(|(seconds, (idle, all, looks))| NotTouched {
                            seconds: *seconds,
                            mean_bytes: idle / looks,
                            of_bytes: all / looks,
                            looks,
                        })
                        .collect(),
                    sampled_pages: seen.gauge.pages() as u64,
                    compressed: seen.gauge.compressed(),
                };
                (*process, told)
            })
            .collect()
    }
}

/// The mappings of `smaps` whose resident memory is anonymous, with how much of it was touched.
fn anonymous_mappings(smaps: &str) -> Vec<Mapping> {
    let mut all: Vec<(Mapping, u64)> = Vec::new();
    for line in smaps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let address = |text: &str| u64::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.and_then(|(a, b)| Some((address(a)?, address(b)?))) {
            all.push((Mapping { start, end, ..Mapping::default() }, 0));
        } else if let Some((mapping, anonymous)) = all.last_mut() {
            for (name, field) in [
                ("Rss", &mut mapping.resident),
                ("Referenced", &mut mapping.referenced),
                ("Anonymous", anonymous),
            ] {
                if let Some(kib) = kib_of(line, name) {
                    *field = kib << 10;
                }
            }
        }
    }
    let is_anonymous =
        |(mapping, anonymous): &(Mapping, u64)| *anonymous > 0 && *anonymous == mapping.resident;
    all.into_iter().filter(is_anonymous).map(|(mapping, _)| mapping).collect()
}

/// At most `most` pages of a process's anonymous memory, chosen at random; none where it may not be
/// read.
pub fn sample_of(pid: u32, most: usize) -> Vec<Page> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    sample(pid, &anonymous_mappings(&smaps), most, &mut SmallRng::seed_from_u64(1))
}

/// Pages of a process, chosen at random among those that are resident. They count as touched from
/// then on.
fn sample(pid: u32, mappings: &[Mapping], most: usize, random: &mut SmallRng) -> Vec<Page> {
    const PRESENT: u64 = 1 << 63;
    let resident: u64 = mappings.iter().map(|mapping| mapping.resident).sum();
    let (Ok(memory), Ok(pagemap)) =
        (File::open(format!("/proc/{pid}/mem")), File::open(format!("/proc/{pid}/pagemap")))
    else {
        return Vec::new();
    };
    let mut pages = Vec::new();
    // Where a mapping is mostly empty, many an address has no page.
    for _ in 0..most * 8 {
        if resident == 0 || pages.len() == most {
            break;
        }
        let mut at = random.random_range(0..resident);
        let found = mappings.iter().find(|mapping| match at.checked_sub(mapping.resident) {
            Some(rest) => {
                at = rest;
                false
            }
            None => true,
        });
        let Some(mapping) = found else { break };
        let number =
            random.random_range(mapping.start / PAGE_BYTES as u64..mapping.end / PAGE_BYTES as u64);
        let (mut entry, mut page) = ([0u8; 8], [0u8; PAGE_BYTES]);
        let is_present = pagemap.read_exact_at(&mut entry, number * 8).is_ok()
            && u64::from_ne_bytes(entry) & PRESENT != 0;
        if is_present && memory.read_exact_at(&mut page, number * PAGE_BYTES as u64).is_ok() {
            pages.push(page);
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_files_are_left_out() {
        let smaps = "\
55d0-55e0 r-xp 0 fe:00 1 /bin/app\nRss: 64 kB\nReferenced: 64 kB\nAnonymous: 0 kB\n\
7f00000000-7f00100000 rw-p 0 00:00 0 \nRss: 900 kB\nReferenced: 300 kB\nAnonymous: 900 kB\n\
7f00200000-7f00300000 rw-p 0 fe:00 2 /lib/a\nRss: 90 kB\nReferenced: 9 kB\nAnonymous: 8 kB\n";
        let mapping = Mapping {
            start: 0x7f00000000,
            end: 0x7f00100000,
            resident: 900 << 10,
            referenced: 300 << 10,
        };
        assert_eq!(anonymous_mappings(smaps), [mapping]);
    }

    #[test]
    fn a_budget_holds_the_data_with_what_was_idle_compressed() {
        let idle =
            |seconds, mean_bytes| NotTouched { seconds, mean_bytes, of_bytes: 100 << 20, looks: 3 };
        let told = Idle {
            not_touched: vec![idle(2, 90 << 20), idle(10, 80 << 20), idle(60, 50 << 20)],
            sampled_pages: 64,
            compressed: vec![
                Compressed { tier: "lz4".into(), fraction: 0.4, ..Compressed::default() },
                Compressed { tier: "zstd:1".into(), fraction: 0.3, ..Compressed::default() },
            ],
        };
        assert_eq!(told.budget(200 << 20), Some((140 << 20, idle(60, 50 << 20))));
        let short = Idle { not_touched: vec![idle(2, 90 << 20)], ..told.clone() };
        assert_eq!(short.budget(200 << 20), None);
        assert_eq!(Idle::default().budget(200 << 20), None);
    }

    #[test]
    fn pages_of_a_process_are_read() {
        let block = vec![7u8; 64 << 20];
        let address = block.as_ptr() as u64;
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut mappings = anonymous_mappings(&smaps);
        mappings.retain(|mapping| (mapping.start..mapping.end).contains(&address));
        let pages =
            sample(std::process::id(), &mappings, PAGES_A_ROUND, &mut SmallRng::seed_from_u64(1));
        assert!(pages.contains(&[7; PAGE_BYTES]), "{} pages", pages.len());
        drop(block);
    }
}
