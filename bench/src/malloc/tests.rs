//! The tests by their names: in which group each is shown, on which CPUs it runs, and how much it
//! does.

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Test {
    Pair,
    PairSizes,
    Churn,
    Cfrac,
    Growth,
    Tree,
    Larson,
    Xmalloc,
    Mstress,
    ThreadChurn,
    ManyThreads,
    PythonMalloc,
    Python,
    Sqlite,
    Gcc,
    Redis,
}

/// What is shown together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Pairs,
    OneThread,
    Threads,
    Whole,
}

/// Groups of tests, in the order of the tables.
pub const GROUPS: [Group; 4] = [Group::Pairs, Group::OneThread, Group::Threads, Group::Whole];

impl Group {
    pub fn title(self) -> &'static str {
        match self {
            Group::Pairs => "pairs of malloc and free",
            Group::OneThread => "one thread",
            Group::Threads => "threads",
            Group::Whole => "whole programs",
        }
    }
}

impl Test {
    /// Name for tables, JSON and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Test::Pair => "pair",
            Test::PairSizes => "pair-sizes",
            Test::Churn => "churn",
            Test::Cfrac => "cfrac",
            Test::Growth => "growth",
            Test::Tree => "tree",
            Test::Larson => "larson",
            Test::Xmalloc => "xmalloc",
            Test::Mstress => "mstress",
            Test::ThreadChurn => "thread-churn",
            Test::ManyThreads => "many-threads",
            Test::PythonMalloc => "python-malloc",
            Test::Python => "python",
            Test::Sqlite => "sqlite",
            Test::Gcc => "gcc",
            Test::Redis => "redis",
        }
    }

    pub fn group(self) -> Group {
        match self {
            Test::Pair | Test::PairSizes | Test::Churn => Group::Pairs,
            Test::Cfrac | Test::Growth | Test::Tree => Group::OneThread,
            Test::Larson
            | Test::Xmalloc
            | Test::Mstress
            | Test::ThreadChurn
            | Test::ManyThreads => Group::Threads,
            Test::PythonMalloc | Test::Python | Test::Sqlite | Test::Gcc | Test::Redis => {
                Group::Whole
            }
        }
    }

    /// Whether a test's time is one of allocations. That of many threads is one of making threads.
    pub fn is_timed(self) -> bool {
        self != Test::ManyThreads
    }

    /// CPUs of a test, as taskset lists them. A test of one thread stays on one CPU, with Terrace's
    /// threads.
    pub fn cpus(self) -> String {
        let last = std::thread::available_parallelism().map_or(0, |cpus| cpus.get().min(8) - 1);
        if self.group() == Group::Threads { format!("0-{last}") } else { "0".into() }
    }

    pub fn all() -> Vec<Test> {
        <Test as clap::ValueEnum>::value_variants().to_vec()
    }
}

/// What of `count` operations a test makes at that scale: at least one.
pub fn scaled(count: u64, scale: f64) -> u64 {
    ((count as f64 * scale) as u64).max(1)
}
