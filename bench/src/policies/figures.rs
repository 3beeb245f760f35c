//! Means over seeds and workloads.

/// The geometric mean of what is above zero.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// A mean and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Arithmetic mean of all values.
    pub mean: f64,
    /// Half the width of the mean's 95 % interval: t · s / √n, by Student's t. Not a number where
    /// there is one value only.
    pub margin: f64,
    /// The smallest value.
    pub least: f64,
}

/// Student's t beyond which 2.5 % lie on either side, by degrees of freedom from 1.
const T: [f64; 19] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
];
/// Student's t for more degrees of freedom than [`T`] has: a little less in truth, down to 1.960.
const T_MORE: f64 = 2.086;

impl Estimate {
    /// Estimates the mean of at least one value.
    pub fn of(values: &[f64]) -> Estimate {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance =
            values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let margin = match values.len() {
            0 | 1 => f64::NAN,
            many => T.get(many - 2).unwrap_or(&T_MORE) * (variance / count).sqrt(),
        };
        Estimate { mean, margin, least: values.iter().copied().fold(f64::INFINITY, f64::min) }
    }
}

/// The geometric mean over workloads, of each seed; then the mean over seeds.
/// `ratios[workload][seed]`; each workload has the same seeds.
pub fn over_workloads(ratios: &[Vec<f64>]) -> Estimate {
    let seeds = ratios.first().map_or(0, Vec::len);
    let of_seed = |seed: usize| {
        geometric_mean(&ratios.iter().map(|workload| workload[seed]).collect::<Vec<_>>())
    };
    Estimate::of(&(0..seeds).map(of_seed).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3
    }

    #[test]
    fn means_and_intervals_as_by_hand() {
        assert!(
            near(geometric_mean(&[1.0, 4.0]), 2.0)
                && near(geometric_mean(&[0.5, 2.0, 1.0]), 1.0)
                && near(geometric_mean(&[3.0]), 3.0)
        );
        // Mean 3; squares 4 + 1 + 0 + 1 + 4 = 10, s = √(10 / 4) = 1.5811; s / √5 = 0.7071; times
        // 2.776.
        let found = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!(
            near(found.mean, 3.0) && near(found.margin, 1.9629) && found.least == 1.0,
            "{found:?}"
        );
        // s = √2, s / √2 = 1.
        let two = Estimate::of(&[2.0, 4.0]);
        assert!(near(two.mean, 3.0) && near(two.margin, 12.706), "{two:?}");
        let one = Estimate::of(&[1.25]);
        assert!(one.mean == 1.25 && one.margin.is_nan() && one.least == 1.25);
        assert!(near(Estimate::of(&[1.0; 40]).margin, 0.0));
    }

    #[test]
    fn workloads_first_then_seeds() {
        // Seed 1: √(1 · 4) = 2; seed 2: √(2 · 8) = 4; mean 3, s = √2, margin 12.706.
        let found = over_workloads(&[vec![1.0, 2.0], vec![4.0, 8.0]]);
        assert!(
            near(found.mean, 3.0) && near(found.margin, 12.706) && near(found.least, 2.0),
            "{found:?}"
        );
    }
}
