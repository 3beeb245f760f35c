//! What the memory of a process may take.

use std::path::PathBuf;
use terrace_tiers::CodecKind;

/// What a limit that follows the loss is decided from.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When that was, in seconds from any beginning.
    pub now_s: f64,
    /// The data that there is, bytes.
    pub data: u64,
    /// The DRAM that it takes, bytes.
    pub physical: u64,
    /// For how long threads have waited for memory so far, in seconds.
    pub waited_s: f64,
}

/// Says what memory may be taken, bytes, each time that it is asked.
pub type Follow = Box<dyn FnMut(Look) -> u64>;

/// What the memory of a process may take, and where the rest goes.
pub struct Limit {
    /// As it was asked for: `--dram 200M`.
    pub text: String,
    /// The arguments of `terrace attach` for it.
    pub arguments: Vec<String>,
    /// At most so much, bytes, with all children that are attached to.
    pub dram_bytes: Option<u64>,
    /// The inherited descriptor of a family whose limit that is: this is a child of one of them.
    pub family: Option<i32>,
    /// A limit that changes, beside that.
    pub follow: Option<Follow>,
    /// What compresses pages.
    pub codec: CodecKind,
    /// A node that takes pages as they are: from outside only.
    pub node: Option<u32>,
    /// The name of the tier.
    pub tier: String,
    /// Where the figures go at the end, as JSON.
    pub report: Option<PathBuf>,
}

impl Limit {
    /// The limit at the moment, bytes.
    pub fn now(&mut self, look: Look) -> u64 {
        let most = self.dram_bytes.unwrap_or(u64::MAX);
        self.follow.as_mut().map_or(most, |follow| follow(look).min(most))
    }
}
