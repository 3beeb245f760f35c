//! Hit ratios with the same accesses and the same bytes: memcached, terrace-kv, and Segcache's way
//! as published (Yang et al., "Segcache", NSDI 2021, §3). The last one is simulated.
//!
//! Each access is a GET; what is missing is then stored. Sizes of values belong to keys. Hits count
//! in the second half of the accesses. All sides have the same limit on items with their headers.
//! What the process takes in all is told beside it.

use crate::interrupt;
use crate::machine::ends_with_us;
use crate::results;
use crate::servers::{pin, process};
use crate::start::answers;
use anyhow::{Context, bail, ensure};
use clap::Args;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Zipf};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;
use terrace_testkit::child::Ended;
use terrace_testkit::random::Congruential;

const START_WITHIN: Duration = Duration::from_secs(20);
/// GETs on the way at a time.
const BATCH: usize = 64;
const VALUE_LEAST: f64 = 64.0;
const VALUE_MOST: f64 = 2048.0;
const KEY_BYTES: u64 = 16;

/// `terrace-bench kv-hits`.
#[derive(Args, Debug)]
pub struct Options {
    /// Different keys
    #[arg(long, default_value_t = 400_000)]
    keys: u64,
    /// Accesses
    #[arg(long, default_value_t = 3_000_000)]
    accesses: usize,
    /// Limits on items, MiB
    #[arg(long, value_delimiter = ',', default_values_t = [32, 64])]
    mebibytes: Vec<u64>,
    /// Exponents of Zipf's law
    #[arg(long, value_delimiter = ',', default_values_t = [0.8, 0.99])]
    thetas: Vec<f64>,
}

/// What accesses ask for.
struct Accesses {
    zipf: Zipf<f64>,
    random: SmallRng,
    keys: u64,
    made: usize,
    jump_at: usize,
}

impl Accesses {
    /// Draws accesses; halfway, other keys become popular if `jump` is set.
    fn new(options: &Options, theta: f64, jump: bool) -> anyhow::Result<Accesses> {
        Ok(Accesses {
            zipf: Zipf::new(options.keys as f64, theta)?,
            random: SmallRng::seed_from_u64(5),
            keys: options.keys,
            made: 0,
            jump_at: if jump { options.accesses / 2 } else { usize::MAX },
        })
    }
}

impl Iterator for Accesses {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let rank = self.zipf.sample(&mut self.random) as u64 - 1;
        let shift = if self.made >= self.jump_at { self.keys / 2 } else { 0 };
        self.made += 1;
        Some((rank + shift) % self.keys)
    }
}

/// Bytes of a key's value: evenly spread over their logarithm.
fn value_bytes(key: u64) -> usize {
    let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11;
    let part = spread as f64 / (1u64 << 53) as f64;
    (VALUE_LEAST * (VALUE_MOST / VALUE_LEAST).powf(part)) as usize
}

/// A cache of which it is known only what it has.
trait Cache {
    /// Looks keys up, and stores those that are missing. Returns for each key whether it was there.
    fn access(&mut self, keys: &[u64]) -> anyhow::Result<Vec<bool>>;
    /// Memory of its process, bytes, if it has one.
    fn memory(&self) -> Option<f64>;
}

/// A server of memcached's text protocol.
struct Served {
    child: Ended,
    stream: BufReader<UnixStream>,
    _scratch: tempfile::TempDir,
}

impl Served {
    /// Starts a server with an index of the size that an option (`-o`) says, and more arguments.
    fn start(
        program: &str,
        mebibytes: u64,
        index: &str,
        more: &[String],
    ) -> anyhow::Result<Served> {
        let scratch = tempfile::tempdir()?;
        let socket = scratch.path().join("socket");
        let mut command = Command::new(program);
        command.args(["-u", "root", "-t", "1", "-m", &mebibytes.to_string()]);
        command.args(["-o", index, "-s"]).arg(&socket).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ends_with_us(&mut command);
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let mut child = Ended::by_kill(child);
        let stream =
            answers(program, &mut child, START_WITHIN, || UnixStream::connect(&socket).ok())?;
        Ok(Served { child, stream: BufReader::new(stream), _scratch: scratch })
    }

    /// Whether the next answer has a value; it is read.
    fn is_hit(&mut self, key: u64) -> anyhow::Result<bool> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        if line == "END\r\n" {
            return Ok(false);
        }
        let bytes: usize = line
            .trim_end()
            .rsplit(' ')
            .next()
            .and_then(|bytes| bytes.parse().ok())
            .with_context(|| format!("an answer to a GET: {line:?}"))?;
        let mut value = vec![0; bytes + "\r\nEND\r\n".len()];
        self.stream.read_exact(&mut value)?;
        let right = key_text(key);
        ensure!(bytes == value_bytes(key) && value.starts_with(right.as_bytes()), "of {key}");
        Ok(true)
    }
}

fn key_text(key: u64) -> String {
    format!("key{key:013}")
}

impl Cache for Served {
    fn access(&mut self, keys: &[u64]) -> anyhow::Result<Vec<bool>> {
        let gets: String = keys.iter().map(|key| format!("get {}\r\n", key_text(*key))).collect();
        self.stream.get_mut().write_all(gets.as_bytes())?;
        let hits: Vec<bool> =
            keys.iter().map(|key| self.is_hit(*key)).collect::<anyhow::Result<_>>()?;
        let mut sets = Vec::new();
        for (key, _) in keys.iter().zip(&hits).filter(|(_, hit)| !**hit) {
            let (text, bytes) = (key_text(*key), value_bytes(*key));
            sets.extend(format!("set {text} 0 0 {bytes} noreply\r\n{text}").bytes());
            sets.resize(sets.len() + bytes - text.len(), b'v');
            sets.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&sets)?;
        Ok(hits)
    }

    fn memory(&self) -> Option<f64> {
        process::memory(self.child.id()).ok()
    }
}

/// Segcache's way: segments of 1 MiB in order of time. When all are taken, four that follow one
/// another are merged into one. The items that stay have the highest frequency for their size. A
/// frequency is a count that grows with certainty up to 16 and by chance above. It is 0 again after
/// a merge. An item has 5 bytes of metadata.
struct Segcache {
    segments: VecDeque<Vec<u64>>,
    /// Frequency of each key that is there.
    items: HashMap<u64, u8>,
    filled: u64,
    most: usize,
    /// Where the next merge begins, from the oldest segment on.
    next: usize,
    random: Congruential,
}

const SEGMENT: u64 = 1 << 20;
const MERGED: usize = 4;
const CERTAIN: u8 = 16;

impl Segcache {
    fn new(mebibytes: u64) -> Segcache {
        Segcache {
            segments: VecDeque::from([Vec::new()]),
            items: HashMap::new(),
            filled: 0,
            most: mebibytes as usize,
            next: 0,
            random: Congruential::new(1),
        }
    }

    fn bytes(key: u64) -> u64 {
        5 + KEY_BYTES + value_bytes(key) as u64
    }

    fn touch(&mut self, key: u64) -> bool {
        let chance = (self.random.draw() >> 40) as u8;
        let Some(frequency) = self.items.get_mut(&key) else { return false };
        let certain = *frequency < CERTAIN;
        if certain || u16::from(chance) * u16::from(*frequency) < 256 {
            *frequency = frequency.saturating_add(1).min(127);
        }
        true
    }

    fn insert(&mut self, key: u64) {
        if self.filled + Segcache::bytes(key) > SEGMENT {
            while self.segments.len() >= self.most {
                self.merge();
            }
            self.segments.push_back(Vec::new());
            self.filled = 0;
        }
        self.filled += Segcache::bytes(key);
        self.segments.back_mut().expect("there is an open one").push(key);
        self.items.insert(key, 0);
    }

    fn merge(&mut self) {
        // The open one is not merged.
        if self.next + MERGED >= self.segments.len() {
            self.next = 0;
        }
        let count = MERGED.min(self.segments.len() - 1);
        let keys: Vec<u64> = self.segments.drain(self.next..self.next + count).flatten().collect();
        let worth = |key: &u64| f64::from(self.items[key]) / Segcache::bytes(*key) as f64;
        let mut sorted = keys;
        sorted.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        let (mut kept, mut bytes) = (Vec::new(), 0);
        for key in sorted {
            if bytes + Segcache::bytes(key) <= SEGMENT {
                bytes += Segcache::bytes(key);
                self.items.insert(key, 0);
                kept.push(key);
            } else {
                self.items.remove(&key);
            }
        }
        self.segments.insert(self.next, kept);
        self.next += 1;
    }
}

impl Cache for Segcache {
    fn access(&mut self, keys: &[u64]) -> anyhow::Result<Vec<bool>> {
        let hits: Vec<bool> = keys.iter().map(|key| self.touch(*key)).collect();
        for (key, _) in keys.iter().zip(&hits).filter(|(_, hit)| !**hit) {
            if !self.items.contains_key(key) {
                self.insert(*key);
            }
        }
        Ok(hits)
    }

    fn memory(&self) -> Option<f64> {
        None
    }
}

const MEMCACHED: &str = "memcached";
const KV: &str = "terrace-kv";
/// Side with so little DRAM that pages are evicted, with hot items moved together or not.
const KV_IN_TIERS: &str = "terrace-kv in tiers";
const KV_CONSOLIDATED: &str = "terrace-kv consolidated";
const SEGCACHE: &str = "segcache (simulated)";
const CACHES: [&str; 5] = [MEMCACHED, KV, KV_IN_TIERS, KV_CONSOLIDATED, SEGCACHE];

fn cache(name: &str, mebibytes: u64, options: &Options) -> anyhow::Result<Box<dyn Cache>> {
    let kv = |more: &[String]| {
        let own = std::env::current_exe()?.with_file_name(KV);
        Served::start(&own.to_string_lossy(), mebibytes, &format!("items={}", options.keys), more)
    };
    let dram = ["--dram".to_owned(), format!("{}M", mebibytes * 2 / 3)];
    Ok(match name {
        MEMCACHED => {
            let power = (options.keys * 2 / 3 + 1).next_power_of_two().ilog2().max(16);
            Box::new(Served::start(name, mebibytes, &format!("hashpower={power}"), &[])?)
        }
        KV => Box::new(kv(&[])?),
        KV_IN_TIERS => Box::new(kv(&dram)?),
        KV_CONSOLIDATED => {
            Box::new(kv(&[&dram[..], &["-o".to_owned(), "consolidate".to_owned()]].concat())?)
        }
        SEGCACHE => Box::new(Segcache::new(mebibytes)),
        _ => bail!("no such cache: {name}"),
    })
}

/// Measures, prints, writes.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    pin(0)?;
    let whole: u64 = (0..options.keys).map(|key| value_bytes(key) as u64 + KEY_BYTES).sum();
    println!(
        "Share of {} GETs that hit, of the second half; {} keys, {} MiB with their values\n",
        options.accesses,
        options.keys,
        whole >> 20
    );
    println!(
        "{:>6} {:>6} {:>5}  {:23} {:>7} {:>10}",
        "limit", "theta", "jump", "", "hits", "process"
    );
    let mut rows = Vec::new();
    for &mebibytes in &options.mebibytes {
        for &theta in &options.thetas {
            for jump in [false, true] {
                for name in CACHES {
                    let mut cache = cache(name, mebibytes, options)?;
                    let hits =
                        hit_ratio(&mut *cache, Accesses::new(options, theta, jump)?, options)
                            .with_context(|| name.to_owned())?;
                    let memory = cache.memory();
                    println!(
                        "{mebibytes:>4} M {theta:>6} {:>5}  {name:23} {hits:>7.4} {:>10}",
                        if jump { "yes" } else { "" },
                        memory
                            .map_or("-".to_owned(), |bytes| format!("{:.0} M", bytes / 1048576.0))
                    );
                    rows.push(json!({ "limit_mib": mebibytes, "theta": theta, "jump": jump,
                        "cache": name, "hits": hits, "process_bytes": memory }));
                }
            }
        }
    }
    results::write(
        "kv-hits",
        json!({ "keys": options.keys, "accesses": options.accesses, "rows": rows }),
    )
}

fn hit_ratio(
    cache: &mut dyn Cache,
    mut accesses: Accesses,
    options: &Options,
) -> anyhow::Result<f64> {
    let (mut done, mut counted, mut hits) = (0, 0, 0);
    while done < options.accesses {
        interrupt::check()?;
        let keys: Vec<u64> = accesses.by_ref().take(BATCH).collect();
        let found = cache.access(&keys)?;
        done += keys.len();
        if done > options.accesses / 2 {
            counted += keys.len();
            hits += found.iter().filter(|hit| **hit).count();
        }
    }
    Ok(hits as f64 / counted as f64)
}
