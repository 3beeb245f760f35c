//! Restore times and faults are counted as documented; what pools count is tested with the pool.

use terrace_tiers::TierStats;

#[test]
fn restore_quantiles() {
    let stats = TierStats::new();
    assert_eq!(stats.restore_quantile_ns(0.5), 0);
    for us in 1..=1000u64 {
        stats.record_restore(us * 1000);
    }
    for (q, want_ns) in [(0.5, 500_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0)] {
        let got = stats.restore_quantile_ns(q) as f64;
        assert!((got / want_ns - 1.0).abs() < 0.01, "{q}: {got}");
    }
    let _ = stats.restore_quantile_ns(f64::NAN);
    assert_eq!(stats.restore_quantile_ns(7.0), stats.restore_quantile_ns(1.0));
    assert_eq!(stats.faults(), 0);
    stats.count_fault();
    assert_eq!(stats.faults(), 1);
}

#[test]
fn short_times_are_right_to_a_percent_and_long_ones_are_cut() {
    let stats = TierStats::new();
    for ns in [0, 300, 2_030, 7_770, 131_313, 10_000_000_000] {
        let stats = TierStats::new();
        stats.record_restore(ns);
        let got = stats.restore_quantile_ns(0.5);
        assert!(got.abs_diff(ns) * 100 <= ns, "{ns} became {got}");
    }
    stats.record_restore(u64::MAX);
    assert!((9_900_000_000..=10_100_000_000).contains(&stats.restore_quantile_ns(1.0)));
}
