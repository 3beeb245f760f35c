//! Can a preloaded library come into this program? Looks at the file before it is started: the ELF
//! header, the mode bits and capabilities, and for a script the interpreter it names.
//!
//! Where it cannot tell (an unreadable file, a format of its own) it answers yes. It must not
//! answer yes for a foreign loader, which would stop the program over our library.
//!
//! It is asked between fork and exec too, in a child that may share its parent's memory, and in
//! signal handlers. So nothing here allocates, takes a lock, or keeps anything. The system calls
//! are those that the dynamic loader makes anyway when it starts a program, and some that change
//! nothing.

#![no_std]

#[cfg(test)]
extern crate std;

mod cause;
mod elf;
pub mod environment;
mod file;
mod script;

pub use cause::{Cause, Name};
pub use file::Place;

use file::File;
use script::Interpreter;

/// Scripts that name scripts: the kernel follows as many (BINPRM recursion limit).
const SCRIPT_DEPTH: u32 = 4;

/// What the environment that a program will have says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Environment<'a> {
    /// The value of PATH.
    pub path: Option<&'a [u8]>,
    /// Whether LD_AUDIT names libraries.
    pub audited: bool,
}

/// Tells why a preload cannot come into the program at `place`, or `None` if it can. `through` is
/// called with each interpreter that runs it, the outermost first.
pub fn out_of_reach(
    place: Place<'_>,
    environment: Environment<'_>,
    through: &mut dyn FnMut(&[u8]),
) -> Option<Cause> {
    if environment.audited {
        return Some(Cause::Audited);
    }
    let mut file = File::open(place)?;
    let mut named = script::Path::new();
    for _ in 0..=SCRIPT_DEPTH {
        let start = file.start()?;
        let Some(line) = start.strip_prefix(b"#!") else {
            return if start.starts_with(b"\x7fELF") {
                file.privileged().or_else(|| elf::foreign(&mut file))
            } else {
                None
            };
        };
        match script::interpreter(line, environment.path, &mut named)? {
            Interpreter::EmptyEnvironment => return Some(Cause::ClearedEnvironment),
            Interpreter::Named => through(named.bytes()),
        }
        file = File::open(named.place())?;
    }
    // The kernel refuses it.
    None
}

/// The file that `name` means for `execvp`: itself if it has a slash, else the first executable
/// file of that name in `path`. `None` if there is none, or its path is very long.
pub fn search<'a>(name: &[u8], path: Option<&[u8]>, found: &'a mut Found) -> Option<Place<'a>> {
    script::search(name, path, &mut found.0).then(|| found.0.place())
}

/// Room for what [`search`] finds.
pub struct Found(script::Path);

impl Found {
    /// Nothing yet.
    #[allow(clippy::new_without_default)] // Reason: one way to make it is enough.
    pub fn new() -> Found {
        Found(script::Path::new())
    }
}
