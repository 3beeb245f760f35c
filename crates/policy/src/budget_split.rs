//! How a budget is divided among processes: max-min fair, weighted by what each holds. No I/O, no
//! clock: the same needs give the same shares.

/// Memory that every process may have if it needs it, as far as the budget reaches, bytes.
pub const LEAST_BYTES: u64 = 8 << 20;
/// Least demand that a process is taken to have, bytes. A process may have double of what it holds,
/// so that it can grow.
const BEGIN_BYTES: u64 = 1 << 20;

/// What one process needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Memory that the process would use without a limit, bytes: its data, all in DRAM.
    pub demand: u64,
    /// Memory that the process cannot go below at present, bytes; 0 if that is not known.
    pub floor: u64,
}

/// The share of each process, in the order of `needs`. Together they are the budget, no more and
/// (if there is any process) no less.
///
/// Processes get, in this order:
///
/// - what they need up to [`LEAST_BYTES`], or up to equal parts where the budget does not reach
///   that far;
/// - what they cannot go below;
/// - the same fraction of each demand.
///
/// What no process needs is room to grow. One half is divided by demand and one equally, because
/// the next to grow may be the smallest.
pub fn shares(budget: u64, needs: &[Need]) -> Vec<u64> {
    let count = needs.len() as u64;
    if count == 0 {
        return Vec::new();
    }
    let least = LEAST_BYTES.min(budget / count);
    let lows: Vec<u64> = needs
        .iter()
        .map(|need| least.min(need.demand.saturating_mul(2).max(BEGIN_BYTES)))
        .collect();
    let demands: Vec<u64> =
        needs.iter().zip(&lows).map(|(need, low)| need.demand.max(*low)).collect();
    let floors: Vec<u64> = needs
        .iter()
        .zip(lows.iter().zip(&demands))
        .map(|(need, (low, high))| need.floor.clamp(*low, *high))
        .collect();
    let mut shares = if sum(&floors) > u128::from(budget) {
        fill(budget, &lows, &floors)
    } else {
        fill(budget, &floors, &demands)
    };
    let demanded = sum(&demands);
    if let Ok(demanded) = u64::try_from(demanded)
        && let Some(room) = budget.checked_sub(demanded)
    {
        for (share, demand) in shares.iter_mut().zip(&demands) {
            let by_demand =
                u128::from(room / 2) * u128::from(*demand) / u128::from(demanded.max(1));
            *share += by_demand as u64 + room / 2 / count;
        }
    }
    // What rounding left.
    shares[0] += budget - sum(&shares) as u64;
    shares
}

fn sum(values: &[u64]) -> u128 {
    values.iter().map(|value| u128::from(*value)).sum()
}

/// Each value's `high` times the greatest fraction with which all of it fits into `total`, but at
/// least its `low` (which together fit).
fn fill(total: u64, lows: &[u64], highs: &[u64]) -> Vec<u64> {
    let at = |fraction: f64| -> Vec<u64> {
        lows.iter()
            .zip(highs)
            .map(|(low, high)| ((*high as f64 * fraction) as u64).clamp(*low, *high))
            .collect()
    };
    let (mut fits, mut too_much) = (0.0, 1.0);
    if sum(highs) <= u128::from(total) {
        return highs.to_vec();
    }
    // Halving 53 times is all that a double can tell apart.
    for _ in 0..53 {
        let middle = (fits + too_much) / 2.0;
        if sum(&at(middle)) <= u128::from(total) { fits = middle } else { too_much = middle }
    }
    at(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn need(demand: u64) -> Need {
        Need { demand: demand * MIB, floor: 0 }
    }

    fn mib(shares: Vec<u64>) -> Vec<u64> {
        shares.into_iter().map(|share| (share + MIB / 2) / MIB).collect()
    }

    #[test]
    fn one_process_has_all_of_it() {
        assert_eq!(shares(100, &[need(400)]), [100]);
        assert_eq!(shares(100 * MIB, &[need(4)]), [100 * MIB]);
        assert_eq!(shares(100 * MIB, &[need(0)]), [100 * MIB]);
        assert!(shares(100, &[]).is_empty());
    }

    #[test]
    fn tight_memory_is_divided_by_demand_and_the_small_keep_the_least() {
        assert_eq!(mib(shares(100 * MIB, &[need(200), need(200)])), [50, 50]);
        assert_eq!(mib(shares(100 * MIB, &[need(300), need(100)])), [75, 25]);
        assert_eq!(mib(shares(100 * MIB, &[need(1000), need(20)])), [92, 8]);
        assert_eq!(mib(shares(100 * MIB, &[need(1000), need(2)])), [96, 4]);
    }

    #[test]
    fn who_needs_less_leaves_the_rest_and_room_is_divided() {
        assert_eq!(mib(shares(100 * MIB, &[need(40), need(20)])), [40 + 13 + 10, 20 + 7 + 10]);
    }

    #[test]
    fn what_cannot_be_evicted_is_the_others_loss() {
        let stuck = Need { demand: 200 * MIB, floor: 70 * MIB };
        assert_eq!(mib(shares(100 * MIB, &[stuck, need(200)])), [70, 30]);
        assert_eq!(mib(shares(100 * MIB, &[stuck, stuck])), [50, 50]);
        assert_eq!(mib(shares(100 * MIB, &[stuck, stuck, need(100)])), [46, 46, 8]);
    }

    fn bytes() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 0..64 * MIB, 0..(1u64 << 40), any::<u64>()]
    }

    fn needs() -> impl Strategy<Value = Vec<Need>> {
        proptest::collection::vec(
            (bytes(), prop_oneof![Just(0), bytes()])
                .prop_map(|(demand, floor)| Need { demand, floor }),
            1..40,
        )
    }

    proptest! {
        #[test]
        fn they_are_the_budget_together(budget in bytes(), needs in needs()) {
            let shares = shares(budget, &needs);
            prop_assert_eq!(shares.len(), needs.len());
            prop_assert_eq!(sum(&shares), u128::from(budget));
        }

        #[test]
        fn nobody_gets_less_than_the_least(budget in bytes(), needs in needs()) {
            let least = LEAST_BYTES.min(budget / needs.len() as u64);
            prop_assert!(
                shares(budget, &needs)
                    .iter()
                    .zip(&needs)
                    .all(|(share, need)| *share >= least.min(need.demand.max(BEGIN_BYTES)))
            );
        }

        #[test]
        fn all_are_content_where_the_budget_suffices(needs in needs(), room in 0..(1u64 << 40)) {
            let demanded: u128 =
                needs.iter().map(|need| u128::from(need.demand.max(LEAST_BYTES))).sum();
            prop_assume!(demanded + u128::from(room) <= u128::from(u64::MAX));
            let shares = shares(demanded as u64 + room, &needs);
            prop_assert!(shares.iter().zip(&needs).all(|(share, need)| *share >= need.demand));
        }

        /// No process has a greater fraction of its demand than another whose share is too small,
        /// but for the least and the floors.
        #[test]
        fn fractions_are_equal(
            tightness in 0.0..1.0f64,
            needs in proptest::collection::vec(
                (LEAST_BYTES..1 << 40, prop_oneof![Just(0), 0u64..1 << 40]), 1..40
            ),
        ) {
            let needs: Vec<Need> = needs
                .into_iter()
                .map(|(demand, floor)| Need { demand, floor: floor.min(demand) })
                .collect();
            let floors: u64 = needs.iter().map(|need| need.floor.max(LEAST_BYTES)).sum();
            let demanded: u64 = needs.iter().map(|need| need.demand).sum();
            let shares = shares(floors + ((demanded - floors) as f64 * tightness) as u64, &needs);
            let fraction = |i: usize| shares[i] as f64 / needs[i].demand as f64;
            for i in 0..needs.len() {
                for j in 0..needs.len() {
                    // Rounding is worth some bytes.
                    let held_up = shares[j] <= needs[j].floor.max(LEAST_BYTES) + 4096;
                    prop_assert!(
                        held_up || fraction(j) <= fraction(i) * 1.001, "{i} and {j} of {shares:?}"
                    );
                }
            }
        }

        #[test]
        fn the_order_does_not_matter(budget in bytes(), needs in needs()) {
            let forward = shares(budget, &needs);
            let mut backward = shares(budget, &needs.iter().rev().copied().collect::<Vec<_>>());
            backward.reverse();
            // But for what rounding leaves to the first.
            let n = needs.len();
            for i in 1..n.saturating_sub(1) {
                prop_assert_eq!(forward[i], backward[i]);
            }
        }
    }
}
