//! How a user writes tiers: `dram,node:1,lz4,zstd:1/extent@dram`.
//!
//! A tier is `dram`, `node:NUMBER`, `swap` or `codec[:level][/pool][@medium]`; a medium is `dram`
//! or `file:/DIRECTORY`. What the design names but this version has not built is told apart from
//! what is misspelt, because the remedies differ.

/// Tiers in one list, DRAM included, at most.
pub const TIERS_MAX: usize = 8;

/// The level of `zstd` without one: beyond it heaps gain less than 2 % (levels 2, 3 and 9
/// measured).
pub const ZSTD_LEVEL_DEFAULT: i32 = 1;
/// The fastest zstd level accepted.
pub const ZSTD_LEVEL_MIN: i32 = -5;
/// The densest zstd level accepted; 20 and above only enlarge windows beyond a page.
pub const ZSTD_LEVEL_MAX: i32 = 19;

/// One tier, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierSpec {
    /// The tier as the user wrote it; its name in reports.
    pub name: String,
    /// What it is.
    pub kind: TierKind,
}

/// What a tier is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TierKind {
    /// Ordinary memory: pages as they are.
    Dram,
    /// Memory of another NUMA node: pages as they are, farther away.
    Node {
        /// The kernel's number of it.
        node: u32,
    },
    /// What the kernel swaps to: zram, zswap, a disk.
    Swap,
    /// Compressed pages.
    Compressed {
        /// What compresses a page.
        codec: CodecKind,
        /// What packs the results.
        pool: PoolKind,
        /// What memory they are in.
        medium: MediumKind,
    },
}

/// The codecs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodecKind {
    /// `lz4`.
    Lz4,
    /// `zstd:LEVEL`.
    Zstd {
        /// [`ZSTD_LEVEL_MIN`]..=[`ZSTD_LEVEL_MAX`] without 0.
        level: i32,
    },
}

/// The pools there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// `extent`: the pages of one region packed one after the other.
    Extent,
}

/// The media there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MediumKind {
    /// `dram`: ordinary memory.
    Dram,
    /// `file:/DIRECTORY`: unlinked files in that directory.
    File {
        /// Absolute, because the program may change its own.
        directory: String,
    },
}

/// Why a list of tiers was refused, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing, or nothing between two commas.
    #[error(
        "`{list}` has an empty tier: write tiers separated by single commas, such as dram,lz4,zstd:1"
    )]
    Empty {
        /// The whole list.
        list: String,
    },
    /// The first tier is another than `dram`, which pages start in.
    #[error(
        "the first tier is `{first}`, but pages start in DRAM: write dram first, such as dram,{first}"
    )]
    DramNotFirst {
        /// The first tier.
        first: String,
    },
    /// Two tiers that are the same, perhaps written differently.
    #[error("`{second}` is the same tier as `{first}`: remove one of them")]
    Duplicate {
        /// The earlier one.
        first: String,
        /// The later one.
        second: String,
    },
    /// More than [`TIERS_MAX`].
    #[error("{count} tiers are too many: write at most {TIERS_MAX}")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// A part that the design has and this version has not.
    #[error("`{tier}`: this version does not have the {part} `{word}` yet; {}", what_there_is(.part))]
    NotBuilt {
        /// The tier.
        tier: String,
        /// `codec`, `pool` or `medium`.
        part: &'static str,
        /// What is missing.
        word: String,
    },
    /// A word that means nothing.
    #[error("`{tier}`: there is no {part} `{word}`{}; {}", did_you_mean(.nearest), what_there_is(.part))]
    Unknown {
        /// The tier.
        tier: String,
        /// `codec`, `pool` or `medium`.
        part: &'static str,
        /// What was written.
        word: String,
        /// What was perhaps meant.
        nearest: Option<&'static str>,
    },
    /// A level where there is none, or a wrong one.
    #[error("`{tier}`: `{level}` is no level of {codec}: {remedy}")]
    Level {
        /// The tier.
        tier: String,
        /// The codec.
        codec: &'static str,
        /// What was written.
        level: String,
        /// What to write.
        remedy: &'static str,
    },
    /// `node` without a number, or with a pool or medium.
    #[error(
        "`{tier}`: a node is written with its number alone, such as node:1 (`terrace doctor` names those there are)"
    )]
    NodeNumber {
        /// The tier.
        tier: String,
    },
    /// A node behind a tier that is slower.
    #[error(
        "`{tier}` holds pages as they are, and is faster than what is before it: write it right behind dram, such as dram,{tier},zstd"
    )]
    NodeNotSecond {
        /// The tier.
        tier: String,
    },
    /// More than one node beside DRAM.
    #[error(
        "`{second}`: this version has one node as a tier, and `{first}` is one already: remove one of them"
    )]
    SecondNode {
        /// The earlier one.
        first: String,
        /// The later one.
        second: String,
    },
    /// `swap` with a level, pool or medium.
    #[error("`{tier}`: what the kernel swaps to is its own to say: write swap")]
    SwapWithParts {
        /// The tier.
        tier: String,
    },
    /// `auto` beside other tiers.
    #[error("`auto` is a whole list, of which Terrace chooses: write auto alone")]
    AutoAmongOthers,
    /// A file medium without a usable directory.
    #[error(
        "`{tier}`: `{directory}` is no absolute path: write a directory such as lz4@file:/var/tmp"
    )]
    Directory {
        /// The tier.
        tier: String,
        /// What was written.
        directory: String,
    },
    /// What follows a file medium is no tier: perhaps the rest of its path.
    #[error(
        "{error}. If it belongs to the path in `{before}`: a path in this list cannot contain a comma, use one without (a symbolic link, say)"
    )]
    PathCut {
        /// The tier with the path.
        before: String,
        /// What is wrong with the one behind it.
        error: Box<SpecError>,
    },
}

fn what_there_is(part: &str) -> &'static str {
    match part {
        "codec" => {
            "there are lz4 and zstd[:LEVEL], level -5 to 19, and the tiers dram, node:NUMBER and swap"
        }
        "pool" => "there is extent, as in lz4/extent",
        "medium" => "there are dram and file:/DIRECTORY, as in lz4@dram and lz4@file:/var/tmp",
        _ => "there are dram, node:NUMBER, swap, lz4 and zstd[:LEVEL], such as dram,lz4,zstd:1",
    }
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|word| format!(" (did you mean `{word}`?)")).unwrap_or_default()
}

/// Codecs that DESIGN.md or the published systems name, and that are not built.
const CODECS_NOT_BUILT: [&str; 11] = [
    "lzo",
    "lzo-rle",
    "lz4hc",
    "842",
    "deflate",
    "zlib",
    "libdeflate",
    "snappy",
    "snap",
    "wkdm",
    "lz4_flex",
];
const POOLS_NOT_BUILT: [&str; 3] = ["zsmalloc", "zbud", "z3fold"];
const MEDIA_NOT_BUILT: [&str; 1] = ["node"];

/// What `auto` stands for; which of them a page goes to is then chosen by what each costs here.
pub const AUTO: &str = "dram,swap,lz4,zstd:1";

/// Parses a list such as `dram,lz4,zstd:1`, fastest first: `dram` and then up to seven others, no
/// two the same; or `auto`, which is [`AUTO`]. `dram` alone is legal: nothing is evicted then.
/// Spaces around tiers are ignored. A directory may contain anything but a comma. Whether it is
/// there and fit for use is not looked at: see [`crate::FileMedium::check`].
///
/// # Errors
/// [`SpecError`], for the first thing that is wrong.
pub fn parse_tiers(list: &str) -> Result<Vec<TierSpec>, SpecError> {
    let list = if list.trim() == "auto" { AUTO } else { list };
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    if words.iter().any(|word| word.is_empty()) {
        return Err(SpecError::Empty { list: list.to_owned() });
    }
    let mut tiers: Vec<TierSpec> = Vec::new();
    for word in &words {
        let kind = parse_kind(word).map_err(|error| match tiers.last() {
            Some(TierSpec {
                name,
                kind: TierKind::Compressed { medium: MediumKind::File { .. }, .. },
            }) => SpecError::PathCut { before: name.clone(), error: Box::new(error) },
            _ => error,
        })?;
        let tier = TierSpec { name: (*word).to_owned(), kind };
        if let Some(same) = tiers.iter().find(|earlier| earlier.kind == tier.kind) {
            return Err(SpecError::Duplicate { first: same.name.clone(), second: tier.name });
        }
        if tiers.is_empty() && tier.kind != TierKind::Dram {
            return Err(SpecError::DramNotFirst { first: tier.name });
        }
        let is_node = |tier: &TierSpec| matches!(tier.kind, TierKind::Node { .. });
        if is_node(&tier) && tiers.len() > 1 {
            return Err(match tiers.iter().find(|earlier| is_node(earlier)) {
                Some(first) => {
                    SpecError::SecondNode { first: first.name.clone(), second: tier.name }
                }
                None => SpecError::NodeNotSecond { tier: tier.name },
            });
        }
        tiers.push(tier);
    }
    if tiers.len() > TIERS_MAX {
        return Err(SpecError::TooMany { count: tiers.len() });
    }
    Ok(tiers)
}

fn parse_kind(tier: &str) -> Result<TierKind, SpecError> {
    if tier == "dram" {
        return Ok(TierKind::Dram);
    }
    if tier == "swap" {
        return Ok(TierKind::Swap);
    }
    let (packed, medium) = split(tier, '@');
    let (coded, pool) = split(packed, '/');
    let (codec, level) = split(coded, ':');
    if codec == "swap" {
        return Err(SpecError::SwapWithParts { tier: tier.to_owned() });
    }
    if tier == "auto" {
        return Err(SpecError::AutoAmongOthers);
    }
    if codec == "node" {
        let number = level
            .filter(|_| pool.is_none() && medium.is_none())
            .and_then(|level| level.parse().ok());
        return number
            .map(|node| TierKind::Node { node })
            .ok_or_else(|| SpecError::NodeNumber { tier: tier.to_owned() });
    }
    Ok(TierKind::Compressed {
        codec: parse_codec(tier, codec, level)?,
        pool: parse_pool(tier, pool.unwrap_or("extent"))?,
        medium: parse_medium(tier, medium.unwrap_or("dram"))?,
    })
}

/// What is before the first `separator`, and what is after it, if it occurs.
fn split(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.split_once(separator) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn parse_codec(tier: &str, codec: &str, level: Option<&str>) -> Result<CodecKind, SpecError> {
    let bad_level = |codec, level: &str, remedy| {
        Err(SpecError::Level { tier: tier.to_owned(), codec, level: level.to_owned(), remedy })
    };
    match (codec, level) {
        ("lz4", None) => Ok(CodecKind::Lz4),
        ("lz4", Some(level)) => bad_level("lz4", level, "lz4 has none, write lz4"),
        ("zstd", None) => Ok(CodecKind::Zstd { level: ZSTD_LEVEL_DEFAULT }),
        ("zstd", Some(text)) => match text.parse() {
            Ok(level @ ZSTD_LEVEL_MIN..=ZSTD_LEVEL_MAX) if level != 0 => {
                Ok(CodecKind::Zstd { level })
            }
            _ => bad_level("zstd", text, "write -5 to 19 without 0, such as zstd:1"),
        },
        _ => Err(refuse(
            tier,
            "codec",
            codec,
            &["lz4", "zstd", "dram", "node", "swap"],
            &CODECS_NOT_BUILT,
        )),
    }
}

fn parse_pool(tier: &str, pool: &str) -> Result<PoolKind, SpecError> {
    match pool {
        "extent" => Ok(PoolKind::Extent),
        _ => Err(refuse(tier, "pool", pool, &["extent"], &POOLS_NOT_BUILT)),
    }
}

fn parse_medium(tier: &str, medium: &str) -> Result<MediumKind, SpecError> {
    match split(medium, ':') {
        ("dram", None) => Ok(MediumKind::Dram),
        ("file", directory) => {
            let directory = directory.unwrap_or_default();
            if !directory.starts_with('/') || directory.contains('\0') {
                return Err(SpecError::Directory {
                    tier: tier.to_owned(),
                    directory: directory.to_owned(),
                });
            }
            let trimmed = directory.trim_end_matches('/');
            Ok(MediumKind::File {
                directory: if trimmed.is_empty() { "/" } else { trimmed }.to_owned(),
            })
        }
        (word, _) if MEDIA_NOT_BUILT.contains(&word) => Err(SpecError::NotBuilt {
            tier: tier.to_owned(),
            part: "medium",
            word: medium.to_owned(),
        }),
        _ => Err(refuse(tier, "medium", medium, &["dram", "file"], &MEDIA_NOT_BUILT)),
    }
}

fn refuse(
    tier: &str,
    part: &'static str,
    word: &str,
    built: &[&'static str],
    not_built: &[&'static str],
) -> SpecError {
    let (tier, text) = (tier.to_owned(), word.to_owned());
    if not_built.contains(&word) {
        return SpecError::NotBuilt { tier, part, word: text };
    }
    let known = built.iter().chain(not_built).copied();
    let nearest = known.map(|known| (edits(word, known), known)).min_by_key(|&(edits, _)| edits);
    // A third of the letters wrong is a slip; more is another word.
    let nearest =
        nearest.filter(|&(edits, known)| edits <= known.len().div_ceil(3)).map(|(_, known)| known);
    SpecError::Unknown { tier, part, word: text, nearest }
}

/// Levenshtein distance: letters to insert, delete or replace to make `a` into `b`.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.chars().count()]
}
