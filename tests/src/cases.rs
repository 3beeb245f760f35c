//! Programs of `programs/` that hold many cases, of which each process runs one: see
//! `programs/cold.h`.

use crate::skipping::skip;
use crate::{Program, Terrace};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Exit status of a case that cannot be checked: `CANNOT_CHECK` of `cold.h`.
const CANNOT_CHECK: i32 = 77;
/// Time limit of a case, for `wait_for` and for hangs.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Makes a test for each named case of a program: `cases! { PROGRAM.hold: a_case another_case }`,
/// with a method of [`Cases`].
#[macro_export]
macro_rules! cases {
    ($program:ident.$how:ident: $($case:ident)*) => {$(
        #[test]
        fn $case() {
            $program.$how(stringify!($case));
        }
    )*};
}

/// A program of cases, and the ways in which each of its cases is run.
pub struct Cases {
    /// The compiled program.
    pub program: PathBuf,
    /// Arguments of the program behind the case's name.
    pub arguments: Vec<PathBuf>,
    /// Ways to run each case under Terrace. Each case also runs once without it, which proves that
    /// the case itself is right.
    pub ways: Vec<Terrace>,
}

impl Cases {
    /// Runs a case whose checks hold in every way, in processes that stay managed.
    #[track_caller]
    pub fn hold(&self, case: &str) {
        self.hold_as_described(case, 0, "", true);
    }

    /// Runs a case as [`Cases::hold`] does, where it is right that Terrace retires when it can no
    /// longer do its work.
    #[track_caller]
    pub fn hold_managed_or_not(&self, case: &str) {
        self.hold_as_described(case, 0, "", false);
    }

    /// Runs a case that ends with an exit status and exactly this output.
    #[track_caller]
    pub fn end_with(&self, case: &str, status: i32, stdout: &str) {
        self.hold_as_described(case, status, stdout, true);
    }

    #[track_caller]
    fn hold_as_described(&self, case: &str, status: i32, stdout: &str, managed: bool) {
        for terrace in std::iter::once(None).chain(self.ways.iter().cloned().map(Some)) {
            let under_terrace = terrace.is_some();
            let finished = self.start(case).under(terrace).time_limit(TIME_LIMIT).run();
            if finished.status.code() == Some(CANNOT_CHECK) {
                let reason = finished
                    .stderr
                    .lines()
                    .find_map(|line| line.strip_prefix("cannot check: "))
                    .unwrap_or("no reason given");
                return skip(case, reason);
            }
            assert_eq!(finished.status.code(), Some(status), "{}", finished.account("failed"));
            assert_eq!(
                String::from_utf8_lossy(&finished.stdout),
                stdout,
                "{}",
                finished.account("printed something else")
            );
            if under_terrace && managed {
                finished.report().expect_managed();
            }
        }
    }

    fn start(&self, case: &str) -> Program {
        Program::new(&self.program)
            .arg(case)
            .args(self.arguments.iter().map(|path: &PathBuf| -> &Path { path }))
    }
}
