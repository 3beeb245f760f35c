//! Streams of accesses by name: what a policy is tried on before it meets a program.
//!
//! Written as `NAME` or `NAME:key=value,…`, for example `jump:units=10240,changes=3`. Most are the
//! [`patterns`](crate::patterns) of `terrace load memory` over elements, of which a unit holds
//! some.

use crate::alias::Alias;
use crate::mixed::{self, Mixed};
use crate::patterns::{Kind, Pattern, chain};
use crate::scattered::{Scattered, mixed};
use crate::source::{Access, BLOCK, Source, SourceError};
use crate::spec::{Parameter, SpecError, split};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use std::fmt;

/// What can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Pattern(Kind),
    Uniform,
    Gauss,
    Btree,
}

/// Names, the patterns' first; other words for some of them; and what they are.
const OTHERS: [(&str, Name, &str); 3] = [
    ("uniform", Name::Uniform, "All units alike"),
    (
        "gauss",
        Name::Gauss,
        "A normal distribution around the middle, as wide as 2.5 % of the memory (memtier's, TierScape §8)",
    ),
    (
        "btree",
        Name::Btree,
        "Lookups in a tree of two levels: an inner node, which lie together, and a leaf, which are scattered; keys are Zipf",
    ),
];
const ALIASES: [(&str, &str); 3] = [("flex", "jump"), ("phase", "phases"), ("scan+hot", "scan")];

/// All names with one line about each.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    Kind::ALL
        .into_iter()
        .map(|kind| (kind.name(), kind.about()))
        .chain(OTHERS.map(|(name, _, about)| (name, about)))
}

/// Leaves of an inner node. Nodes are those of `terrace load memory btree`: 1 KiB with up to 63
/// children, filled by ln 2 as random inserts do.
const FAN_OUT: u64 = 44;

/// A stream that can be generated, as often as one likes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generator {
    name: Name,
    units: u32,
    accesses: u64,
    theta: f64,
    changes: f64,
    elements: u32,
    shift: f64,
    writes: f64,
    /// Share of the memory that is in huge pages, the rest being base pages. `None`: all units are
    /// alike.
    huge: Option<f64>,
}

/// Names of the parameters.
pub const KEYS: [&str; 8] =
    ["units", "accesses", "theta", "changes", "elements", "shift", "writes", "huge"];

/// Least number of units that can be asked for.
const UNITS_LEAST: u32 = 16;

impl Generator {
    /// Reads a generator as it is written. `units` and `accesses` are its numbers where the text
    /// says nothing of them.
    pub fn parse(text: &str, units: u32, accesses: u64) -> Result<Generator, SpecError> {
        let (written, parameters) = split(text);
        let name =
            ALIASES.iter().find(|(alias, _)| *alias == written).map_or(written, |(_, name)| name);
        let known = Kind::ALL
            .into_iter()
            .map(|kind| (kind.name(), Name::Pattern(kind)))
            .chain(OTHERS.map(|(name, what, _)| (name, what)));
        let name =
            known.into_iter().find(|(known, _)| *known == name).map(|(_, name)| name).ok_or_else(
                || SpecError::Name {
                    name: written.to_owned(),
                    valid: names().map(|(name, _)| name).collect(),
                },
            )?;
        let mut generator = Generator {
            name,
            units,
            accesses,
            theta: 0.9,
            changes: match name {
                // The middle of the run, as Jenga's; four times all of the hot set; 20 flips.
                Name::Pattern(Kind::Jump) => 1.0,
                Name::Pattern(Kind::Drift) => 4.0,
                Name::Pattern(Kind::Phases | Kind::Stencil) => 20.0,
                _ => 0.0,
            },
            // Scattered elements of one unit are hot and cold ones mixed; by default units differ.
            elements: if matches!(
                name,
                Name::Pattern(Kind::Scattered) | Name::Btree | Name::Uniform
            ) {
                1
            } else {
                64
            },
            // Neither of a jump's two hot fifths is what comes first.
            shift: 0.3,
            writes: 0.1,
            huge: None,
        };
        for parameter in parameters {
            generator.set(written, parameter)?;
        }
        if generator.huge > Some(0.0) && generator.units < mixed::HUGE {
            // `units` may come after it, or not at all.
            return Parameter { key: "units", value: &generator.units.to_string() }
                .whole(u64::from(mixed::HUGE), 1 << 28)
                .map(|_| generator);
        }
        Ok(generator)
    }

    fn set(&mut self, name: &str, parameter: Parameter<'_>) -> Result<(), SpecError> {
        match parameter.key {
            "units" => self.units = parameter.whole(u64::from(UNITS_LEAST), 1 << 28)? as u32,
            "accesses" => self.accesses = parameter.whole(1, 1 << 50)?,
            "theta" => self.theta = parameter.number(0.0, 10.0)?,
            "changes" => self.changes = parameter.number(0.0, 1e6)?,
            "elements" => self.elements = parameter.whole(1, 1 << 15)? as u32,
            "shift" => self.shift = parameter.number(0.0, 1.0)?,
            "writes" => self.writes = parameter.number(0.0, 1.0)?,
            "huge" => self.huge = Some(parameter.number(0.0, 1.0)?),
            _ => return Err(parameter.unknown(name, &KEYS)),
        }
        Ok(())
    }

    /// Units that the stream touches; base pages, where there are huge ones too.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Whether there are base pages and huge ones, rather than units that are alike.
    pub fn is_mixed(&self) -> bool {
        self.huge.is_some()
    }

    /// The accesses. The same seed makes the same ones.
    pub fn source(&self, seed: u64) -> Box<dyn Source> {
        let stream = Box::new(self.stream(seed));
        match self.huge {
            Some(share) => Box::new(Mixed::evenly(stream, share)),
            None => stream,
        }
    }

    /// Weights of units: what their elements have together. To draw units is quicker than to draw
    /// elements, and as good where nothing changes.
    fn weigh(&self, kind: Kind, elements: u64, seed: u64) -> Alias {
        let scattered = Scattered::new(elements, seed);
        let mut weights = vec![0.0; self.units as usize];
        for rank in 0..elements {
            let element = if kind == Kind::Scattered { scattered.item(rank) } else { rank };
            weights[(element / u64::from(self.elements)) as usize] +=
                ((rank + 1) as f64).powf(-self.theta);
        }
        Alias::new(&weights)
    }

    /// The stream, in base pages where there are huge ones too. The same seed makes the same one.
    pub fn stream(&self, seed: u64) -> Stream {
        let units = u64::from(self.units);
        let elements = units * u64::from(self.elements);
        let way = match self.name {
            Name::Pattern(kind @ (Kind::Zipf | Kind::Scattered)) if elements <= WEIGHED_MOST => {
                Way::Weighed(self.weigh(kind, elements, seed))
            }
            Name::Pattern(kind) => {
                let links = if kind == Kind::Chase {
                    chain(Pattern::hot(kind, elements), seed)
                } else {
                    Vec::new()
                };
                Way::Pattern {
                    pattern: Pattern::new(kind, elements, self.theta, seed, 0),
                    links,
                    at: 0,
                }
            }
            Name::Uniform => Way::Uniform,
            Name::Gauss => Way::Weighed(bell(units)),
            Name::Btree => {
                let leaves = elements - elements.div_ceil(FAN_OUT + 1);
                let zipf = Zipf::new(leaves as f64, self.theta)
                    .expect("there are leaves, and theta is a number not below 0");
                Way::Btree { zipf, leaves, order: Scattered::new(leaves, seed), inner: None }
            }
        };
        Stream {
            of: *self,
            elements,
            shift: (self.shift * f64::from(self.units)) as u64,
            way,
            done: 0,
            writes: (self.writes * (1u64 << 32) as f64) as u64,
            random: SmallRng::seed_from_u64(mixed(!mixed(seed))),
        }
    }
}

impl fmt::Display for Generator {
    /// Writes the generator with all its parameters; parsed again it is the same one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.name {
            Name::Pattern(kind) => kind.name(),
            other => {
                OTHERS.iter().find(|(_, name, _)| *name == other).map_or("", |(name, ..)| name)
            }
        };
        let Generator { units, accesses, theta, changes, elements, shift, writes, huge, .. } = self;
        write!(
            f,
            "{name}:units={units},accesses={accesses},theta={theta},changes={changes},elements={elements},shift={shift},writes={writes}"
        )?;
        huge.map_or(Ok(()), |huge| write!(f, ",huge={huge}"))
    }
}

#[derive(Debug)]
enum Way {
    /// Units, by weight.
    Weighed(Alias),
    /// Elements.
    Pattern {
        pattern: Pattern,
        links: Vec<u32>,
        at: u64,
    },
    Uniform,
    Btree {
        zipf: Zipf<f64>,
        leaves: u64,
        order: Scattered,
        inner: Option<u64>,
    },
}

/// A generator at work.
#[derive(Debug)]
pub struct Stream {
    of: Generator,
    elements: u64,
    shift: u64,
    way: Way,
    done: u64,
    /// Number of writes in 2^32 accesses.
    writes: u64,
    random: SmallRng,
}

/// More elements are drawn one by one: their weights would take longer than the stream.
const WEIGHED_MOST: u64 = 1 << 23;
/// Accesses after which a pattern is told how late it is.
const TOLD_EVERY: u64 = 256;

impl Stream {
    /// The unit of the next access, as if there were no shift.
    fn next(&mut self) -> u64 {
        let element = match &mut self.way {
            Way::Weighed(alias) => return u64::from(alias.number(self.random.next_u64())),
            Way::Pattern { pattern, links, at } => {
                if self.done.is_multiple_of(TOLD_EVERY) {
                    pattern
                        .at(self.done as f64 / self.of.accesses as f64 * (self.of.changes + 1.0));
                }
                let element = pattern.next(*at);
                if element == *at && !links.is_empty() {
                    *at = u64::from(links[*at as usize]);
                }
                element
            }
            Way::Uniform => below(&mut self.random, self.elements),
            Way::Btree { zipf, leaves, order, inner } => match inner.take() {
                // The leaf follows its inner node.
                Some(leaf) => self.elements - *leaves + leaf,
                None => {
                    let leaf = order.item(zipf.sample(&mut self.random) as u64 - 1);
                    *inner = Some(leaf);
                    leaf / FAN_OUT % (self.elements - *leaves)
                }
            },
        };
        element / u64::from(self.of.elements)
    }
}

/// A normal distribution around the middle of `units` units.
fn bell(units: u64) -> Alias {
    const WIDTH: f64 = 0.025;
    let (middle, sigma) = (units as f64 / 2.0, (units as f64 * WIDTH).max(1.0));
    let weight = |unit: u64| (-((unit as f64 + 0.5 - middle) / sigma).powi(2) / 2.0).exp();
    Alias::new(&(0..units).map(weight).collect::<Vec<f64>>())
}

fn below(random: &mut SmallRng, limit: u64) -> u64 {
    // The bias of a product is 2^-64 times the limit.
    ((u128::from(random.next_u64()) * u128::from(limit)) >> 64) as u64
}

impl Source for Stream {
    fn units(&self) -> u32 {
        self.of.units
    }

    fn accesses(&self) -> Option<u64> {
        Some(self.of.accesses)
    }

    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
        block.clear();
        let units = u64::from(self.of.units);
        for _ in 0..(self.of.accesses - self.done).min(BLOCK as u64) {
            let unit = self.next() + self.shift;
            let unit = if unit < units { unit } else { unit - units };
            let write = u64::from(self.random.next_u32()) < self.writes;
            block.push(Access::new(unit as u32, write));
            self.done += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, units: u32, accesses: u64, seed: u64) -> Vec<Access> {
        let mut stream = Generator::parse(text, units, accesses).unwrap().stream(seed);
        let (mut all, mut block) = (Vec::new(), Vec::new());
        loop {
            stream.next_block(&mut block).unwrap();
            if block.is_empty() {
                return all;
            }
            all.extend_from_slice(&block);
        }
    }

    /// Share of the accesses to the hottest fifth of the units.
    fn hottest_fifth(accesses: &[Access], units: u32) -> f64 {
        let mut counts = vec![0u64; units as usize];
        accesses.iter().for_each(|access| counts[access.unit() as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts[..units as usize / 5].iter().sum::<u64>() as f64 / accesses.len() as f64
    }

    #[test]
    fn every_name_makes_as_many_accesses_as_it_should_within_its_units() {
        for (name, _) in names().chain(ALIASES) {
            for units in [16, 100, 3000] {
                let accesses = all(name, units, 40_000, 3);
                assert_eq!(accesses.len(), 40_000, "{name}");
                assert!(accesses.iter().all(|access| access.unit() < units), "{name} of {units}");
                let writes = accesses.iter().filter(|access| access.is_write()).count();
                assert!((3_600..4_400).contains(&writes), "{name}: {writes}");
                assert_eq!(accesses, all(name, units, 40_000, 3), "{name}");
                assert_ne!(accesses, all(name, units, 40_000, 4), "{name}");
            }
        }
    }

    #[test]
    fn what_is_hot_is_as_hot_as_its_name_says() {
        let units = 1000;
        for (text, least, most) in [
            ("uniform", 0.2, 0.23),
            ("zipf:theta=0", 0.2, 0.23),
            // By the sums of 1/r^0.9 to 200 and to 1000: 7.56 of 10.52.
            ("scattered", 0.71, 0.73),
            ("zipf", 0.73, 0.80),
            ("scattered:elements=64", 0.3, 0.6),
            // Half of it elsewhere; and each half 0.92.
            ("jump", 0.44, 0.56),
            ("jump:changes=0", 0.91, 0.94),
            // Half of 1 and half of a fifth.
            ("scan", 0.59, 0.63),
            ("chase", 0.91, 0.94),
            // The half of inner nodes, in 23 of the 200; and leaves.
            ("btree", 0.8, 0.9),
        ] {
            let share = hottest_fifth(&all(text, units, 200_000, 5), units);
            assert!((least..=most).contains(&share), "{text}: {share}");
        }
    }

    #[test]
    fn a_jump_is_in_the_middle_and_what_is_hot_at_first_is_not_what_comes_first() {
        let accesses = all("flex", 1000, 100_000, 5);
        let share = |part: &[Access], units: std::ops::Range<u32>| {
            part.iter().filter(|access| units.contains(&access.unit())).count() as f64
                / part.len() as f64
        };
        let (before, after) = accesses.split_at(50_000);
        assert!(share(before, 300..500) > 0.9 && share(after, 700..900) > 0.9);
    }

    #[test]
    fn huge_pages_change_what_a_unit_is_and_no_access() {
        let (plain, mixed) = (
            Generator::parse("jump", 5120, 20_000).unwrap(),
            Generator::parse("jump:huge=0.5", 5120, 20_000).unwrap(),
        );
        let (mut pages, mut units) = (Vec::new(), Vec::new());
        plain.source(3).next_block(&mut pages).unwrap();
        let mut source = mixed.source(3);
        source.next_block(&mut units).unwrap();
        assert!(!plain.is_mixed() && plain.source(3).sizes().is_empty());
        // None of them huge, which are not units of 2 MiB either.
        let base = Generator::parse("jump:huge=0", 100, 100).unwrap();
        assert!(base.is_mixed() && base.source(3).sizes()[..] == [1; 100]);
        assert_eq!(
            (source.units(), source.sizes().iter().filter(|size| **size == 512).count()),
            (5 + 2560, 5)
        );
        // A page is always in the same unit, and a huge one has 512 of them.
        let mut unit_of = std::collections::HashMap::new();
        for (page, unit) in pages.iter().zip(&units) {
            assert_eq!(
                (page.is_write(), *unit_of.entry(page.unit()).or_insert(unit.unit())),
                (unit.is_write(), unit.unit())
            );
        }
        let others = |(page, unit): (&u32, &u32)| {
            unit_of.iter().any(|(p, u)| u == unit && p / 512 != page / 512)
        };
        assert!(!unit_of.iter().any(others));
    }

    #[test]
    fn a_chase_meets_each_once_a_round() {
        let accesses = all("chase:elements=1,writes=0", 10_000, 2_200, 5);
        let mut hot: Vec<u32> = accesses
            .iter()
            .map(|access| access.unit())
            .filter(|unit| (3_000..5_000).contains(unit))
            .collect();
        let steps = hot.len();
        hot.sort_unstable();
        hot.dedup();
        // A fiftieth of the accesses came there by chance.
        assert!(steps > 1_900 && hot.len() * 100 > steps * 97, "{} of {steps}", hot.len());
    }

    #[test]
    fn mistakes_are_told_with_what_is_possible() {
        let wrong = |text: &str| Generator::parse(text, 100, 100).unwrap_err().to_string();
        assert!(
            wrong("zipf:alpha=1")
                .starts_with("`zipf` has no parameter `alpha`; it has units, accesses, theta")
        );
        assert_eq!(wrong("zipf:theta=-1"), "`theta=-1`: write a number from 0 to 10");
        assert_eq!(wrong("zipf:theta"), "`theta=`: write a number from 0 to 10");
        assert!(wrong("zipf:units=3").contains("from 16"));
        assert!(
            wrong("zipf:huge=0.5").starts_with("`units=100`: write a whole number from 512"),
            "{}",
            wrong("zipf:huge=0.5")
        );
    }

    #[test]
    fn what_is_shown_is_the_same_generator() {
        for text in [
            "flex",
            "btree:theta=1.1,units=50",
            "drift:changes=2.5,accesses=3M,writes=0",
            "zipf:huge=0.25",
            "zipf:huge=0",
        ] {
            let generator = Generator::parse(text, 1000, 5000).unwrap();
            assert_eq!(Generator::parse(&generator.to_string(), 7, 7).unwrap(), generator);
        }
    }
}
