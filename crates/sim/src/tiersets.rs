//! Sets of tiers by name, with what their codecs were measured to do. They are TierScape's two
//! (§8), and those of the two systems that it compares with.
//!
//! Times and ratios are of 4 KiB pages on one core of a 2.1 GHz Xeon, medians over six sets of
//! data. Those are two corpora of text and heaps of redis, memcached, CPython and a tree. zbud's
//! ratios are interpolated between those that were simulated. What a machine without such memory
//! cannot measure is as the paper has it. A slow medium takes 270 ns more for each access and has a
//! third of DRAM's price.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use terrace_policy::tiering::{Codec, Kind, Tier};

/// What a fault takes beside decompression, as the program sees it, ns: the kernel's part, the
/// handler's thread, and the way back.
pub const FAULT_NS: f64 = 12_000.0;
/// How much longer an access to the slow medium takes than one to DRAM, ns.
const SLOW_NS: f64 = 270.0;
/// How much longer it takes to read a compressed page from the slow medium, ns: 2 KiB at about 2
/// GB/s.
const SLOW_PAGE_NS: f64 = 1_000.0;
/// Price of the slow medium, DRAM's being 1 (§8.1).
pub const SLOW_PRICE: f64 = 1.0 / 3.0;

/// How a codec's pages are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// 97 % full on average.
    Zsmalloc,
    /// Two pages in one at most.
    Zbud,
}

/// Row of a set: a tier and how it is made.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    /// `None`: pages as they are.
    made: Option<(Codec, Pool)>,
    slow: bool,
}

const fn packed(name: &'static str, codec: Codec, pool: Pool, slow: bool) -> Row {
    Row { name, made: Some((codec, pool)), slow }
}

const DRAM: Row = Row { name: "dram", made: None, slow: false };
const SLOW: Row = Row { name: "slow", made: None, slow: true };
const CT1: Row = packed("lzo/zsmalloc@dram", Codec::Lzo, Pool::Zsmalloc, false);

/// Names of all sets.
pub const NAMES: [&str; 4] = ["tierscape-standard", "tierscape-spectrum", "gswap", "tmo"];

fn rows(name: &str) -> Option<Vec<Row>> {
    Some(match name {
        "tierscape-standard" => {
            vec![DRAM, SLOW, CT1, packed("zstd/zsmalloc@slow", Codec::Zstd, Pool::Zsmalloc, true)]
        }
        "tierscape-spectrum" => vec![
            DRAM,
            packed("lz4/zbud@dram", Codec::Lz4, Pool::Zbud, false),
            packed("lz4/zbud@slow", Codec::Lz4, Pool::Zbud, true),
            packed("lz4/zsmalloc@slow", Codec::Lz4, Pool::Zsmalloc, true),
            CT1,
            packed("deflate/zsmalloc@slow", Codec::Deflate, Pool::Zsmalloc, true),
        ],
        "gswap" => vec![DRAM, CT1],
        "tmo" => vec![DRAM, packed("zstd/zsmalloc@dram", Codec::Zstd, Pool::Zsmalloc, false)],
        _ => return None,
    })
}

/// Time to compress a page and to decompress one, ns.
fn times(codec: Codec) -> (f64, f64) {
    match codec {
        Codec::Lz4 => (5_800.0, 1_270.0),
        Codec::Lzo => (6_100.0, 2_300.0),
        Codec::Zstd => (14_900.0, 6_500.0),
        Codec::Deflate => (42_000.0, 8_800.0),
    }
}

/// How many times smaller pages of six sets of data become: nci, dickens, redis, memcached,
/// CPython, a tree.
fn ratios(codec: Codec) -> [f64; 6] {
    match codec {
        Codec::Lz4 => [3.71, 1.32, 1.49, 1.93, 1.82, 1.95],
        Codec::Lzo => [3.70, 1.37, 1.50, 1.92, 2.00, 2.08],
        Codec::Zstd => [6.42, 2.00, 2.06, 2.57, 2.74, 2.66],
        Codec::Deflate => [6.54, 2.09, 2.12, 2.60, 2.70, 2.66],
    }
}

/// Bytes of the medium for each byte of data with this ratio.
fn stored(pool: Pool, ratio: f64) -> f64 {
    match pool {
        Pool::Zsmalloc => (1.0 / (ratio * 0.97)).min(1.0),
        // From 1.00 at 1.32 to 1.56 at 1.93, as simulated, and 2 at most.
        Pool::Zbud => 1.0 / (1.0 + (ratio - 1.32) * 0.92).clamp(1.0, 2.0),
    }
}

/// Tier of TierScape's Figure 2, one of twelve.
#[derive(Clone, Debug, PartialEq)]
pub struct Characterized {
    /// Name of the tier as users write it, `slow` being the slow medium.
    pub name: String,
    /// The codec.
    pub codec: Codec,
    /// How pages are packed.
    pub pool: Pool,
    /// Whether the tier is on the slow medium.
    pub slow: bool,
    /// Time of a fault, ns.
    pub fault_ns: f64,
    /// The part of the cost of DRAM that is saved, of nci and of dickens.
    pub saved: [f64; 2],
}

/// The twelve tiers of TierScape's Figure 2: three codecs, two pools, two media, with the measured
/// times and ratios of the codecs.
pub fn characterized() -> Vec<Characterized> {
    let mut all = Vec::new();
    for (codec, codec_name) in
        [(Codec::Lz4, "lz4"), (Codec::Lzo, "lzo"), (Codec::Deflate, "deflate")]
    {
        for (pool, pool_name) in [(Pool::Zbud, "zbud"), (Pool::Zsmalloc, "zsmalloc")] {
            for slow in [false, true] {
                let (price, read_ns) = if slow { (SLOW_PRICE, SLOW_PAGE_NS) } else { (1.0, 0.0) };
                let ratios = ratios(codec);
                let saved = |set: usize| 1.0 - stored(pool, ratios[set]) * price;
                let medium = if slow { "slow" } else { "dram" };
                all.push(Characterized {
                    name: format!("{codec_name}/{pool_name}@{medium}"),
                    codec,
                    pool,
                    slow,
                    fault_ns: FAULT_NS + times(codec).1 + read_ns,
                    saved: [saved(0), saved(1)],
                });
            }
        }
    }
    all
}

/// The tiers of a set, DRAM first. `None`: there is no such set.
pub fn tiers(name: &str) -> Option<Vec<Tier>> {
    let tier = |row: Row| Tier {
        name: row.name.into(),
        kind: match row.made {
            None => Kind::Bytes { extra_ns: if row.slow { SLOW_NS } else { 0.0 } },
            Some((codec, _)) => {
                let (store_ns, decode_ns) = times(codec);
                let read_ns = if row.slow { SLOW_PAGE_NS } else { 0.0 };
                Kind::Compressed { codec, store_ns, fault_ns: FAULT_NS + decode_ns + read_ns }
            }
        },
        medium: usize::from(row.slow),
        price: if row.slow { SLOW_PRICE } else { 1.0 },
    };
    Some(rows(name)?.into_iter().map(tier).collect())
}

/// Bytes of each tier's medium for each byte of data, by region: a region's data are two of the six
/// sets, mixed. `None`: there is no such set. The same seed gives the same regions.
pub fn stored_by_region(name: &str, regions: usize, seed: u64) -> Option<Vec<f32>> {
    let rows = rows(name)?;
    let mut random = SmallRng::seed_from_u64(seed ^ 0x5eed);
    let mut all = Vec::with_capacity(regions * rows.len());
    for _ in 0..regions {
        let (first, second) = (random.random_range(0..6usize), random.random_range(0..6usize));
        let share: f64 = random.random();
        all.extend(rows.iter().map(|row| match row.made {
            None => 1.0,
            Some((codec, pool)) => {
                let of = |set: usize| stored(pool, ratios(codec)[set]);
                (share * of(first) + (1.0 - share) * of(second)) as f32
            }
        }));
    }
    Some(all)
}

/// Tables of a problem for the solver, as TierScape's model makes them of these regions.
pub struct Instance {
    /// Number of tiers.
    pub choices: usize,
    /// Time, by region and tier.
    pub time: Vec<f32>,
    /// Cost, in regions of DRAM.
    pub cost: Vec<f32>,
    /// Room on the tier's medium, in regions.
    pub uses: Vec<f32>,
    /// Index of the limit that holds for a tier; `None` if no limit does.
    pub limited: Vec<Option<usize>>,
    /// Room on DRAM and on the slow medium.
    pub limits: Vec<f64>,
    /// The most that all may cost.
    pub bound: f64,
}

/// Regions with Zipf heat (exponent 0.99) in random order over the tiers of a set, with this knob.
/// With limits DRAM has room for 40 % of the data, and the slow medium for 25 %.
/// `None`: there is no such set.
pub fn instance(
    name: &str,
    regions: usize,
    alpha: f64,
    limited: bool,
    seed: u64,
) -> Option<Instance> {
    let tiers = tiers(name)?;
    let uses = stored_by_region(name, regions, seed)?;
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut time, mut cost) = (Vec::with_capacity(uses.len()), Vec::with_capacity(uses.len()));
    let mut range = (0.0, 0.0);
    for row in uses.chunks(tiers.len()) {
        let rank = random.random_range(0..regions.max(1)) + 1;
        let heat = 1e6 * (rank as f64).powf(-0.99);
        let mut its = (f64::INFINITY, 0.0f64);
        for (tier, stored) in tiers.iter().zip(row) {
            time.push((heat * tier.access_ns() * 1e-9) as f32);
            let price = f64::from(*stored) * tier.price;
            cost.push(price as f32);
            its = (its.0.min(price), its.1.max(price));
        }
        range = (range.0 + its.0, range.1 + its.1);
    }
    let all = regions as f64;
    Some(Instance {
        choices: tiers.len(),
        time,
        cost,
        uses: if limited { uses } else { Vec::new() },
        limited: if limited { tiers.iter().map(|t| Some(t.medium)).collect() } else { Vec::new() },
        limits: if limited { vec![0.4 * all, 0.25 * all] } else { Vec::new() },
        bound: range.0 + alpha * (range.1 - range.0),
    })
}
