//! What a byte costs on each medium, relative to DRAM: a table that is dated, as prices change,
//! with its sources (`prices.toml`). A user's own file takes its place.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::Path;
use std::str::FromStr;

/// The table where nothing else is said.
const BUILT_IN: &str = include_str!("prices.toml");
/// Media that have a price.
const MEDIA: [&str; 3] = ["dram", "node", "file"];

/// What is said instead of a medium for [`Prices::usd_per_gib`].
const USD: &str = "usd";
/// The most that a GiB of DRAM may cost.
const USD_MOST: f64 = 1e6;

/// Prices of a byte, DRAM's being 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    dated: String,
    relative: Vec<(String, f64)>,
    usd_per_gib: Option<f64>,
}

/// A file of prices.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    dated: String,
    usd_per_gib: Option<f64>,
    relative: std::collections::BTreeMap<String, f64>,
}

impl Default for Prices {
    fn default() -> Self {
        Prices::parse(BUILT_IN).expect("the table that is built in is right")
    }
}

/// `MEDIUM=PRICE`, or `usd=DOLLARS`.
#[derive(Clone, Debug, PartialEq)]
pub struct Price(String, f64);

impl FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let given = text.split_once('=').and_then(|(medium, price)| {
            let (medium, price) = (medium.trim(), price.trim().parse::<f64>().ok()?);
            let most = if medium == USD { USD_MOST } else { 100.0 };
            let is_known = medium == USD || MEDIA[1..].contains(&medium);
            (is_known && (0.0..=most).contains(&price)).then_some((medium, price))
        });
        match given {
            Some((medium, price)) => Ok(Price(medium.into(), price)),
            None => Err(format!(
                "`{text}` is no price: write node or file, =, and what a byte costs there, such as file=0.05 (DRAM's is 1); or usd=, and what a GiB of DRAM costs"
            )),
        }
    }
}

impl Prices {
    /// The table of `file`, or the one that is built in, with some prices that the user knows
    /// better.
    ///
    /// # Errors
    /// The file cannot be read, or is none of prices.
    pub fn with(file: Option<&Path>, given: &[Price]) -> Result<Prices> {
        let mut prices = match file {
            None => Prices::default(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(anyhow::Error::from)
                .and_then(|text| Prices::parse(&text))
                .with_context(|| format!("{}: no file of prices", path.display()))?,
        };
        for Price(medium, price) in given {
            if medium == USD {
                prices.usd_per_gib = Some(*price);
            }
            prices
                .relative
                .iter_mut()
                .filter(|(name, _)| name == medium)
                .for_each(|row| row.1 = *price);
        }
        Ok(prices)
    }

    fn parse(text: &str) -> Result<Prices> {
        let file: File = toml::from_str(text)?;
        ensure!(file.version == 1, "its version is {}: write version = 1", file.version);
        let relative = MEDIA.map(|medium| {
            let price = file.relative.get(medium).copied().filter(|price| price.is_finite());
            (medium.to_owned(), price.unwrap_or(-1.0))
        });
        for (medium, price) in &relative {
            ensure!(
                (0.0..=100.0).contains(price),
                "[relative] has no price of 0 to 100 for {medium}: write one, such as \
                 {medium} = 0.5 (DRAM's is 1)"
            );
        }
        ensure!(
            relative[0].1 == 1.0,
            "[relative] is relative to DRAM: write dram = 1, and usd_per_gib for dollars"
        );
        if let Some(unknown) = file.relative.keys().find(|name| !MEDIA.contains(&name.as_str())) {
            anyhow::bail!("there is no medium {unknown}: there are dram, node and file");
        }
        let usd_per_gib = file.usd_per_gib;
        ensure!(
            usd_per_gib.is_none_or(|usd| (0.0..=USD_MOST).contains(&usd)),
            "usd_per_gib is what a GiB of DRAM costs: write a number such as 4.5"
        );
        Ok(Prices { dated: file.dated, relative: relative.into(), usd_per_gib })
    }

    /// When the table was made.
    pub fn dated(&self) -> &str {
        &self.dated
    }

    /// Dollars for a GiB of DRAM, where that price was given: the built-in table has relative
    /// prices only.
    pub fn usd_per_gib(&self) -> Option<f64> {
        self.usd_per_gib
    }

    /// Price of a byte on a medium, relative to DRAM. It is 1 for a name that is not in the table.
    pub fn of(&self, medium: &str) -> f64 {
        self.relative.iter().find(|(name, _)| name == medium).map_or(1.0, |(_, price)| *price)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_replaces_the_tables() {
        let prices = Prices::with(None, &["file=0.1".parse().unwrap()]).unwrap();
        assert_eq!((prices.of("file"), prices.of("dram"), prices.of("node")), (0.1, 1.0, 0.5));
        assert_eq!(prices.usd_per_gib(), None);
        let prices = Prices::with(None, &["usd=4.5".parse().unwrap()]).unwrap();
        assert_eq!((prices.usd_per_gib(), prices.of("dram")), (Some(4.5), 1.0));
        for text in ["tape=1", "usd=-1", "file", "file=-1", "file=x", "file=1000"] {
            assert!(text.parse::<Price>().is_err_and(|why| why.contains("file=0.05")), "{text}");
        }
    }

    #[test]
    fn a_file_takes_the_tables_place_and_its_mistakes_are_said() {
        let own = "version = 1\ndated = \"today\"\n[relative]\ndram = 1\nnode = 0.4\nfile = 0.1\n";
        let prices = Prices::parse(own).unwrap();
        assert_eq!((prices.dated(), prices.of("node"), prices.of("file")), ("today", 0.4, 0.1));
        for (from, to, why) in [
            ("file = 0.1", "", "no price of 0 to 100 for file"),
            ("file = 0.1", "file = -1", "no price of 0 to 100 for file"),
            ("file = 0.1", "file = 0.1\ntape = 0.001", "no medium tape"),
            ("version = 1", "version = 2", "write version = 1"),
            ("version = 1", "version = 1\nusd_per_gib = -4.0", "what a GiB of DRAM costs"),
        ] {
            let wrong = Prices::parse(&own.replace(from, to));
            assert!(wrong.is_err_and(|error| error.to_string().contains(why)), "{why}");
        }
    }
}
