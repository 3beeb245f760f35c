//! Real programs do under Terrace exactly what they do alone: at the tightest budget, and with random pages evicted all the time.

use std::path::Path;
use std::time::Duration;
use terrace_tests::{Finished, Program, Terrace, is_installed, machine, skip};

/// Both ways in which a program is put to the test: a budget that cannot be kept without evicting, and random evictions.
fn hardships() -> [Terrace; 2] {
    [Terrace::within("25%"), Terrace::stressed()]
}

/// CPython 3 of the system: a version manager's would be a script.
#[test]
fn python_builds_and_verifies_an_index() {
    let _machine = machine();
    let python = ["/usr/bin/python3", "python3"].into_iter().find(|path| Path::new(path).is_file() || is_installed(path));
    let Some(python) = python else { return skip("python3", "it is not installed: apt-get install python3") };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/documents.py");
    let run = |terrace: Option<Terrace>| -> Finished {
        Program::new(python).arg("-S").arg(&script).env("PYTHONHASHSEED", "1").under(terrace).time_limit(Duration::from_secs(240)).succeed()
    };
    let alone = run(None);
    for terrace in hardships() {
        let under = run(Some(terrace.clone()));
        assert!(under.stdout == alone.stdout, "{terrace:?}: {}", under.account("printed something else"));
        under.report().expect_moves(5_000, 5_000);
    }
}
