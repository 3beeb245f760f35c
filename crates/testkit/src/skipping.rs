//! Checks that cannot be made on this machine.

/// Says that a check cannot be made here. It is a failure where everything must be checked: with
/// `CI=true` or `TERRACE_NO_SKIP=1`.
#[track_caller]
pub fn skip(reason: &str) {
    let set = |name, to| std::env::var(name).is_ok_and(|value| value == to);
    let must = set("CI", "true") || set("TERRACE_NO_SKIP", "1");
    assert!(!must, "must not be skipped here: {reason}");
    println!("skipped: {reason}");
}
