//! How a user writes tiers: `dram,node:1,lz4,zstd:1/extent@dram`.
//!
//! A tier is `dram`, `node:NUMBER`, `swap` or `codec[:level][/pool][@medium]`; a medium is `dram`,
//! `node:NUMBER` or `file:/DIRECTORY`. What the design names but this version has not built is told
//! apart from what is misspelt, because the remedies differ. Whole lists have names, too: see
//! [`crate::presets`].

use crate::codec::{CODECS, CodecKind, NOT_BUILT};

/// Tiers in one list, DRAM included, at most.
pub const TIERS_MAX: usize = 8;

/// A tier, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierSpec {
    /// The tier as the user wrote it; its name in reports.
    pub name: String,
    /// What the tier is made of.
    pub kind: TierKind,
}

impl TierSpec {
    /// Codec of the tier's pages; `None` where it is not a compressed tier.
    pub fn codec(&self) -> Option<CodecKind> {
        match self.kind {
            TierKind::Compressed { codec, .. } => Some(codec),
            _ => None,
        }
    }
}

/// What a tier is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TierKind {
    /// Ordinary memory: pages as they are.
    Dram,
    /// Memory of another NUMA node: pages as they are, farther away.
    Node {
        /// The kernel's number of the node.
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

/// The pools there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// `extent`: the pages of one region packed one after the other.
    Extent,
    /// `zsmalloc`: pages of all regions by size, in slots of equal size.
    Zsmalloc,
    /// `zbud`: two pages of any regions in each page of memory.
    Zbud,
}

/// The media there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MediumKind {
    /// `dram`: ordinary memory.
    Dram,
    /// `node:NUMBER`: memory of another NUMA node.
    Node {
        /// The kernel's number of the node.
        node: u32,
    },
    /// `file:/DIRECTORY`: unlinked files in that directory.
    File {
        /// Path of the directory; absolute, because the program may change its working directory.
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
        /// The earlier tier.
        first: String,
        /// The later tier.
        second: String,
    },
    /// More than [`TIERS_MAX`].
    #[error("{count} tiers are too many: write at most {TIERS_MAX}")]
    TooMany {
        /// Number of tiers in the list.
        count: usize,
    },
    /// A part that the design has and this build has not.
    #[error("`{tier}`: this build does not have the {part} `{word}`; {}", what_there_is(.part))]
    NotBuilt {
        /// The tier.
        tier: String,
        /// `codec`, `pool` or `medium`.
        part: &'static str,
        /// What is missing.
        word: String,
    },
    /// A word that means nothing.
    #[error(
        "`{tier}`: there is no {part} `{word}`{}; {}",
        did_you_mean(.nearest),
        what_there_is(.part)
    )]
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
        remedy: String,
    },
    /// `node` without a number, or with a pool or medium.
    #[error(
        "`{tier}`: a node is written with its number, such as node:1 or lz4@node:1 (`terrace doctor` names those there are)"
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
        /// The earlier node.
        first: String,
        /// The later node.
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
    /// `raw` in DRAM.
    #[error(
        "`{tier}` would gain nothing: pages are in DRAM as they are; write raw@file:/DIRECTORY"
    )]
    RawInDram {
        /// The tier.
        tier: String,
    },
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
        /// What is wrong with the part behind it.
        error: Box<SpecError>,
    },
}

fn what_there_is(part: &str) -> String {
    let codecs = || {
        let names = CODECS.iter().filter(|row| row.is_built).map(|row| match &row.levels {
            Some(levels) => format!("{}[:LEVEL], level {} to {}", row.word, levels.min, levels.max),
            None => row.word.to_owned(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    match part {
        "codec" => format!(
            "there are {}, the tiers dram, node:NUMBER and swap, and the lists {}",
            codecs(),
            crate::presets::names().collect::<Vec<_>>().join(", ")
        ),
        "pool" => "there are extent, zsmalloc and zbud, as in lz4/extent".to_owned(),
        _ => "there are dram, node:NUMBER and file:/DIRECTORY, as in lz4@dram and \
              lz4@file:/var/tmp"
            .to_owned(),
    }
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|word| format!(" (did you mean `{word}`?)")).unwrap_or_default()
}

const POOLS: [(&str, PoolKind); 3] =
    [("extent", PoolKind::Extent), ("zsmalloc", PoolKind::Zsmalloc), ("zbud", PoolKind::Zbud)];
const POOLS_NOT_BUILT: [&str; 1] = ["z3fold"];

/// The list that `auto` stands for. The tier of each page is then chosen by what each costs here.
pub const AUTO: &str = "dram,swap,lz4,zstd:1";

/// Parses a list such as `dram,lz4,zstd:1`, fastest first: `dram` and then up to seven others, no
/// two the same. Or it is `auto`, which is [`AUTO`], or the name of a [preset](crate::presets), as
/// it is on this machine. `dram` alone is legal: nothing is evicted then. Spaces around tiers are
/// ignored. A directory may contain anything but a comma. Whether it is there and fit for use is
/// not looked at: see [`crate::FileMedium::check`].
///
/// # Errors
/// [`SpecError`], for the first thing that is wrong.
pub fn parse_tiers(list: &str) -> Result<Vec<TierSpec>, SpecError> {
    let named = crate::presets::list(list.trim());
    let list = match &named {
        Some(named) => named,
        None if list.trim() == "auto" => AUTO,
        None => list,
    };
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
    let codec = parse_codec(tier, codec, level)?;
    let pool = parse_pool(tier, pool.unwrap_or("extent"))?;
    let medium = parse_medium(tier, medium.unwrap_or("dram"))?;
    if (codec, &medium) == (CodecKind::Raw, &MediumKind::Dram) {
        return Err(SpecError::RawInDram { tier: tier.to_owned() });
    }
    Ok(TierKind::Compressed { codec, pool, medium })
}

/// Splits a text at the first `separator`: what is before it, and what is after it, if it occurs.
fn split(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.split_once(separator) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn parse_codec(tier: &str, codec: &str, level: Option<&str>) -> Result<CodecKind, SpecError> {
    let Some(row) = CODECS.iter().find(|row| row.word == codec) else {
        let known: Vec<&str> =
            CODECS.iter().map(|row| row.word).chain(["dram", "node", "swap"]).collect();
        return Err(refuse(tier, "codec", codec, &known, NOT_BUILT));
    };
    if !row.is_built {
        let (tier, word) = (tier.to_owned(), codec.to_owned());
        return Err(SpecError::NotBuilt { tier, part: "codec", word });
    }
    let bad_level = |level: &str, remedy: String| {
        let (tier, level) = (tier.to_owned(), level.to_owned());
        Err(SpecError::Level { tier, codec: row.word, level, remedy })
    };
    match (&row.levels, level) {
        (Some(levels), None) => Ok((row.kind)(levels.default)),
        (None, None) => Ok((row.kind)(0)),
        (None, Some(level)) => bad_level(level, format!("{0} has none, write {0}", row.word)),
        (Some(levels), Some(text)) => match text.parse() {
            Ok(level) if level != 0 && (levels.min..=levels.max).contains(&level) => {
                Ok((row.kind)(level))
            }
            _ => bad_level(text, levels.remedy.to_owned()),
        },
    }
}

fn parse_pool(tier: &str, pool: &str) -> Result<PoolKind, SpecError> {
    match POOLS.iter().find(|(word, _)| *word == pool) {
        Some((_, kind)) => Ok(*kind),
        None => Err(refuse(tier, "pool", pool, &POOLS.map(|(word, _)| word), &POOLS_NOT_BUILT)),
    }
}

fn parse_medium(tier: &str, medium: &str) -> Result<MediumKind, SpecError> {
    match split(medium, ':') {
        ("dram", None) => Ok(MediumKind::Dram),
        ("node", number) => number
            .and_then(|number| number.parse().ok())
            .map(|node| MediumKind::Node { node })
            .ok_or_else(|| SpecError::NodeNumber { tier: tier.to_owned() }),
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
        _ => Err(refuse(tier, "medium", medium, &["dram", "node", "file"], &[])),
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
