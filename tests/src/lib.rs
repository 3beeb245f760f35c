//! What the end-to-end tests share: the built command and library, and programs started under them
//! with a time limit. Also C sources compiled on the spot, and the report that is read back.
//!
//! The tests drive `terrace run` as a user would. Each file under `tests/` is named for the promise
//! that it holds; the programs that need C's view of the world are in `programs/`.

mod built;
mod cases;
mod compiled;
mod guest;
mod package;
pub mod page;
mod program;
mod report;
mod skipping;
mod stepped;
mod zram;

pub use built::{
    objects_library, recorder_library, target_directory, terrace_command, terrace_library,
};
pub use cases::Cases;
pub use compiled::compiled;
pub use guest::{Guest, Outcome, Steps};
pub use package::package;
pub use program::{Finished, Program, Running, Terrace};
pub use report::Report;
pub use skipping::skip;
pub use stepped::{before_call, before_call_of};
pub use zram::{Zram, has_swap, without_swap};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock that tests that need the machine for themselves hold while they run. A test that failed
/// does not spoil it.
pub fn machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a program is on the PATH.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    })
}

/// What is missing of the programs that a test needs, and how to have it.
pub fn missing(programs: &[&str]) -> Option<String> {
    let missing = programs.iter().find(|program| !is_installed(program))?;
    Some(format!("no {missing}; scripts/setup.sh test installs it on Debian"))
}

/// A number that the environment may change, for longer or shorter runs.
pub fn number_from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => {
            text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number, not {text:?}"))
        }
        Err(_) => default,
    }
}
