//! What Terrace is compared with: a memory control group over one of the kernel's compressed swaps.

use crate::zswap::Zswap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use terrace_testkit::zram::Zram;

/// A compressed swap of the kernel's that Terrace is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// zram, with this algorithm.
    Zram(&'static str),
    /// zswap, before a file.
    Zswap,
}

const ALL: [Peer; 3] = [Peer::Zram("lz4"), Peer::Zram("lzo-rle"), Peer::Zswap];

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Zram(algorithm) => write!(f, "zram:{algorithm}"),
            Peer::Zswap => f.write_str("zswap"),
        }
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || ALL.map(|peer| peer.to_string()).join(", ");
        ALL.into_iter()
            .find(|peer| peer.to_string() == text)
            .ok_or_else(|| format!("write one of {}", known()))
    }
}

/// A peer's swap, in use.
pub enum Swap {
    Zram(Zram),
    Zswap(Zswap),
}

impl Peer {
    /// Has the kernel swap to the peer, of this many bytes.
    pub fn swap_on(self, bytes: u64) -> anyhow::Result<Swap> {
        Ok(match self {
            Peer::Zram(algorithm) => Swap::Zram(Zram::for_measuring(bytes, algorithm)?),
            Peer::Zswap => Swap::Zswap(Zswap::swap_on(bytes)?),
        })
    }
}

impl Swap {
    /// Name of the algorithm that compresses.
    pub fn compressor(&self) -> &'static str {
        match self {
            Swap::Zram(zram) => zram.algorithm,
            Swap::Zswap(zswap) => zswap.compressor,
        }
    }

    /// Memory that the swap takes beside the control group's own, bytes.
    pub fn used_bytes(&self) -> anyhow::Result<u64> {
        match self {
            Swap::Zram(zram) => zram.used_bytes(),
            // Version 2 of control groups charges the pool to the group.
            Swap::Zswap(_) if !Path::new("/sys/fs/cgroup/memory").exists() => Ok(0),
            Swap::Zswap(zswap) => zswap.used_bytes(),
        }
    }
}
