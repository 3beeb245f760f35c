//! What a byte costs on each medium, relative to DRAM: a table that is dated, as prices change.
//!
//! June 2026: contract prices of NVMe flash and DDR5 were about 1 to 40 for a byte. TierScape (§8.1)
//! has a third for Optane; a device of CXL with older DRAM is taken for half, which is an
//! assumption: no list price is public.

use std::str::FromStr;

/// When the table was made.
pub const DATED: &str = "June 2026";

/// Prices of a byte, DRAM's being 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices(Vec<(String, f64)>);

impl Default for Prices {
    fn default() -> Self {
        Prices([("dram", 1.0), ("node", 0.5), ("file", 0.025)].map(|(a, b)| (a.into(), b)).into())
    }
}

/// `MEDIUM=PRICE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Price(String, f64);

impl FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Prices::default();
        let given = text.split_once('=').and_then(|(medium, price)| {
            let price = price.trim().parse().ok().filter(|price| (0.0..=100.0).contains(price))?;
            known.0.iter().any(|(name, _)| name == medium.trim()).then_some((medium.trim(), price))
        });
        match given {
            Some((medium, price)) => Ok(Price(medium.into(), price)),
            None => Err(format!(
                "`{text}` is no price: write dram, node or file, =, and what a byte costs there, such as file=0.05 (DRAM's is 1)"
            )),
        }
    }
}

impl Prices {
    /// The table with some prices that the user knows better.
    pub fn with(given: &[Price]) -> Prices {
        let mut prices = Prices::default();
        for Price(medium, price) in given {
            prices.0.iter_mut().filter(|(name, _)| name == medium).for_each(|row| row.1 = *price);
        }
        prices
    }

    /// Price of a byte on a medium, relative to DRAM. It is 1 for a name that is not in the table.
    pub fn of(&self, medium: &str) -> f64 {
        self.0.iter().find(|(name, _)| name == medium).map_or(1.0, |(_, price)| *price)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_replaces_the_tables() {
        let prices = Prices::with(&["file=0.1".parse().unwrap()]);
        assert_eq!((prices.of("file"), prices.of("dram"), prices.of("node")), (0.1, 1.0, 0.5));
        for text in ["tape=1", "file", "file=-1", "file=x", "file=1000"] {
            assert!(text.parse::<Price>().is_err_and(|why| why.contains("file=0.05")), "{text}");
        }
    }
}
