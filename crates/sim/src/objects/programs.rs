//! Programs of objects by name, as [`generators`](crate::generators) are: `tree`,
//! `store:keys=1M,theta=0.99`.

use super::ObjectSource;
use super::store::{self, Buckets, Store};
use super::tree::{self, Tree};
use crate::spec::{Parameter, SpecError};
use std::fmt;

/// What can be generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Program {
    /// A tree, see [`tree`](super::tree).
    Tree(tree::Config),
    /// A store, see [`store`](super::store).
    Store(store::Config),
}

/// Names, with one line about each.
pub const NAMES: [(&str, &str); 2] = [
    (
        "tree",
        "Objects: a B+-tree of small objects, built by inserts in an order of chance, then lookups (Jenga's Btree)",
    ),
    (
        "store",
        "Objects: a chained hash table of entries, keys and values, built, then looked up (M2T's store)",
    ),
];

/// Parameters of both, and of the store alone.
pub const KEYS: [&str; 3] = ["keys", "theta", "lookups"];
/// Parameters of the store alone.
pub const STORE_KEYS: [&str; 2] = ["writes", "chain"];

/// Most keys: three objects each have numbers of 32 bits.
const KEYS_MOST: u64 = 1 << 28;

impl Program {
    /// The program of the given name; `None` if there is none. It has a million keys and four
    /// million lookups if nothing else is said.
    pub fn parse<'a>(
        name: &str,
        parameters: impl Iterator<Item = Parameter<'a>>,
    ) -> Option<Result<Program, SpecError>> {
        let (keys, lookups, theta) = (1_000_000, 4_000_000, 0.99);
        let mut program = match name {
            "tree" => Program::Tree(tree::Config { keys, theta, lookups, seed: 0 }),
            "store" => Program::Store(store::Config { theta, ..store::Config::new(keys, lookups) }),
            _ => return None,
        };
        for parameter in parameters {
            if let Err(error) = program.set(name, parameter) {
                return Some(Err(error));
            }
        }
        Some(Ok(program))
    }

    fn set(&mut self, name: &str, parameter: Parameter<'_>) -> Result<(), SpecError> {
        let (keys, theta, lookups) = match self {
            Program::Tree(config) => (&mut config.keys, &mut config.theta, &mut config.lookups),
            Program::Store(config) => (&mut config.keys, &mut config.theta, &mut config.lookups),
        };
        match parameter.key {
            "keys" => *keys = parameter.whole(1, KEYS_MOST)?,
            "theta" => *theta = parameter.number(0.0, 10.0)?,
            "lookups" => *lookups = parameter.whole(1, 1 << 40)?,
            key => match (self, key) {
                (Program::Store(config), "writes") => config.writes = parameter.number(0.0, 1.0)?,
                (Program::Store(config), "chain") => {
                    config.buckets = Buckets::Of(parameter.whole(1, KEYS_MOST)?)
                }
                (Program::Tree(_), _) => return Err(parameter.unknown(name, &KEYS)),
                (Program::Store(_), _) => {
                    return Err(parameter.unknown(name, &[&KEYS[..], &STORE_KEYS].concat()));
                }
            },
        }
        Ok(())
    }

    /// The program's events, from before its first object.
    pub fn make(&self, seed: u64) -> Box<dyn ObjectSource> {
        match *self {
            Program::Tree(config) => Box::new(Tree::new(tree::Config { seed, ..config })),
            Program::Store(config) => Box::new(Store::new(store::Config { seed, ..config })),
        }
    }
}

impl fmt::Display for Program {
    /// Writes the program with all its parameters; parsed again it is the same one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Program::Tree(tree::Config { keys, theta, lookups, .. }) => {
                write!(f, "tree:keys={keys},theta={theta},lookups={lookups}")
            }
            Program::Store(store::Config { keys, theta, lookups, writes, buckets, .. }) => {
                write!(f, "store:keys={keys},theta={theta},lookups={lookups},writes={writes}")?;
                // Only where it was asked for, so that it is the same store as before there was
                // such a parameter.
                if let Buckets::Of(keys) = buckets { write!(f, ",chain={keys}") } else { Ok(()) }
            }
        }
    }
}
