//! Checks that cannot be made on this machine.

/// Says that a check cannot be made here. It is a failure where everything must be checked: with
/// `CI=true` or `TERRACE_NO_SKIP=1`.
#[track_caller]
pub fn skip(what: &str, reason: &str) {
    terrace_testkit::skipping::skip(&format!("{what}: {reason}"));
}
