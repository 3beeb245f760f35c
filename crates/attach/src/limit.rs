//! Limits of what the memory of a process may take.

use anyhow::Result;
use std::path::PathBuf;
use terrace_tiers::CodecKind;

/// What a limit that follows the loss is decided from.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When this was measured, in seconds from any beginning.
    pub now_s: f64,
    /// The data that there is, bytes.
    pub data: u64,
    /// The DRAM that the data takes, bytes.
    pub physical: u64,
    /// Time for which threads have waited for memory so far, in seconds.
    pub waited_s: f64,
}

/// Function that says what memory may be taken, bytes, each time that it is asked.
pub type Follow = Box<dyn FnMut(Sample) -> u64>;

/// What the memory of a process may take, as it was asked for.
pub struct Budget {
    /// The budget in words: `--dram 200M`.
    pub text: String,
    /// The value of `--dram`, if there was one.
    pub dram: Option<String>,
    /// The value of `--slowdown`, if there was one; it may be `off`.
    pub slowdown: Option<String>,
    /// Most DRAM, bytes, of the process with all children that are attached to.
    pub dram_bytes: Option<u64>,
    /// A limit that changes, beside [`Budget::dram_bytes`].
    pub follow: Option<Follow>,
}

impl Budget {
    /// The limit at the moment, bytes.
    pub fn now(&mut self, sample: Sample) -> u64 {
        let most = self.dram_bytes.unwrap_or(u64::MAX);
        self.follow.as_mut().map_or(most, |follow| follow(sample).min(most))
    }
}

/// Makes a budget of the values of `--dram` and `--slowdown`.
///
/// # Errors
/// If one of them cannot be read.
pub type Make = fn(dram: Option<&str>, slowdown: Option<&str>) -> Result<Budget>;

/// The beginning of a request for another limit, before what [`Limit::change`] takes.
pub const SET: &str = "set ";

/// What the memory of a process may take, and where the rest goes.
pub struct Limit {
    /// What the memory may take.
    pub budget: Budget,
    /// How another budget is made while the process is attached to.
    pub make: Make,
    /// The value of `--tiers`.
    pub tiers: String,
    /// The inherited descriptor of the family whose limit this is, where the process is a child of
    /// one of its members.
    pub family: Option<i32>,
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
    /// Takes another budget: the values of `--dram` and `--slowdown`, `-` for one that stays.
    /// Returns what holds now and what held before, in words.
    ///
    /// # Errors
    /// If one of them cannot be read, or `accept` refuses a value of `--dram` with its budget.
    pub fn change(
        &mut self,
        asked: &str,
        accept: impl FnOnce(&str, &Budget) -> Result<()>,
    ) -> Result<String> {
        let mut words = asked.split(' ').map(|word| Some(word).filter(|word| *word != "-"));
        let (dram, slowdown) = (words.next().flatten(), words.next().flatten());
        let before = &self.budget;
        let budget =
            (self.make)(dram.or(before.dram.as_deref()), slowdown.or(before.slowdown.as_deref()))?;
        dram.map_or(Ok(()), |dram| accept(dram, &budget))?;
        let said = format!("{}, before {}", budget.text, before.text);
        self.budget = budget;
        Ok(said)
    }

    /// The arguments of `terrace attach` for this limit.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--tiers".to_string(), self.tiers.clone()];
        let Budget { dram, slowdown, .. } = &self.budget;
        for (flag, value) in [("--dram", dram), ("--slowdown", slowdown)] {
            arguments.extend(value.iter().flat_map(|value| [flag.to_string(), value.clone()]));
        }
        arguments
    }
}
