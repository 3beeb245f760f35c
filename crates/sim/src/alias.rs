//! Draws numbers by given weights, in a time that does not depend on how many there are (Walker
//! 1977, in Vose's form of 1991).

/// Each number has a column of the same width: up to a height it is the column's own, above it
/// another's.
#[derive(Clone, Debug)]
pub struct Alias {
    /// The height of each column that is its own, out of 2³², and the number that has the rest.
    columns: Vec<(u32, u32)>,
}

impl Alias {
    /// Makes the numbers of these weights, not below 0, of which at least one is more, and fewer
    /// than 2³².
    pub fn new(weights: &[f64]) -> Alias {
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        assert!(mean > 0.0 && mean.is_finite(), "weights of which one is more than 0");
        let mut heights: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let (mut low, mut high): (Vec<u32>, Vec<u32>) =
            (0..heights.len() as u32).partition(|number| heights[*number as usize] < 1.0);
        // A column that is never made is full of its own, but for rounding.
        let mut columns: Vec<(u32, u32)> =
            (0..heights.len() as u32).map(|number| (u32::MAX, number)).collect();
        while let (Some(small), Some(large)) = (low.pop(), high.last().copied()) {
            let (small, at) = (small as usize, large as usize);
            columns[small] = ((heights[small] * 2f64.powi(32)) as u32, large);
            heights[at] -= 1.0 - heights[small];
            if heights[at] < 1.0 {
                high.pop();
                low.push(large);
            }
        }
        Alias { columns }
    }

    /// The number for 64 bits of chance.
    pub fn number(&self, random: u64) -> u32 {
        let column = ((random >> 32) * self.columns.len() as u64) >> 32;
        let (height, other) = self.columns[column as usize];
        if (random as u32) < height { column as u32 } else { other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What each number has of all columns.
    fn shares(alias: &Alias) -> Vec<f64> {
        let mut shares = vec![0.0; alias.columns.len()];
        for (number, (height, other)) in alias.columns.iter().enumerate() {
            shares[number] += f64::from(*height) / 2f64.powi(32);
            shares[*other as usize] += 1.0 - f64::from(*height) / 2f64.powi(32);
        }
        shares.iter().map(|share| share / alias.columns.len() as f64).collect()
    }

    proptest! {
        #[test]
        fn each_has_its_share(weights in prop::collection::vec(0.0f64..100.0, 1..200)) {
            prop_assume!(weights.iter().sum::<f64>() > 1.0);
            let sum: f64 = weights.iter().sum();
            for (share, weight) in shares(&Alias::new(&weights)).iter().zip(&weights) {
                prop_assert!(
                    (share - weight / sum).abs() < 1e-6, "{share} instead of {}", weight / sum
                );
            }
        }
    }

    #[test]
    fn numbers_are_those_of_their_columns() {
        // 3/4 and 1/4 of two columns: the second is half its own.
        let alias = Alias::new(&[3.0, 1.0]);
        assert_eq!(
            [0, 1 << 62, 1 << 63, (1 << 63) + (1 << 31), u64::MAX]
                .map(|random| alias.number(random)),
            [0, 0, 1, 0, 0]
        );
    }
}
