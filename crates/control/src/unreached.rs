//! The list of files that were executed without the library, because a preload cannot come into
//! them. It is a file of the run directory that every process of the run adds to, and `terrace run`
//! reads at the end.
//!
//! Processes add to it between fork and exec, also where they share their parent's memory: by
//! system calls alone, without an allocation. Each entry is there once, or a few times where
//! processes add it at the same moment. Their number is bounded.

use terrace_os as sys;

/// Name of the list in the run directory.
pub const FILE_NAME: &str = "out-of-reach";
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 128;
/// Most entries of the list; further ones are not written down.
pub const MOST_ENTRIES: usize = 512;

const CAUSE: usize = 4;
const PROGRAM: usize = 36;

/// An entry of the list: a file, and why the library is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry([u8; ENTRY_BYTES]);

/// An [`Entry`] in the form that readers use: one file that is out of reach, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// The file as it was named, or the end of its name.
    pub program: String,
    /// Why the library is not in it, in a word or two.
    pub cause: String,
    /// The process that became it, where that may be the one that `terrace run` started; else 0.
    pub process: u32,
}

impl Entry {
    /// An entry for `program`, of which only the end is kept if it is long. `process` is 0 except
    /// in children of `terrace run`, so that entries of other processes are alike.
    pub fn new(program: &[u8], cause: &str, process: u32) -> Entry {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..CAUSE].copy_from_slice(&process.to_ne_bytes());
        let cause = &cause.as_bytes()[..cause.len().min(PROGRAM - CAUSE)];
        bytes[CAUSE..CAUSE + cause.len()].copy_from_slice(cause);
        let program = &program[program.len().saturating_sub(ENTRY_BYTES - PROGRAM)..];
        bytes[PROGRAM..PROGRAM + program.len()].copy_from_slice(program);
        Entry(bytes)
    }
}

impl Unreached {
    /// What an entry says. Any process may have written it: nothing in it reaches a terminal as a
    /// command.
    pub fn read(entry: &[u8; ENTRY_BYTES]) -> Unreached {
        let text = |field: &[u8]| {
            let field = field.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(field).replace(char::is_control, "\u{fffd}")
        };
        let process = u32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
        Unreached { program: text(&entry[PROGRAM..]), cause: text(&entry[CAUSE..PROGRAM]), process }
    }
}

/// Adds an entry to the list at `path`, which ends with a NUL, if it is not there. A failure costs
/// a line of the report.
pub fn note(path: &str, entry: &Entry) {
    // Beyond that limit a write ends the process.
    if sys::file_size_limit() < (ENTRY_BYTES * MOST_ENTRIES) as u64 {
        return;
    }
    const HOW: i32 =
        libc::O_RDWR | libc::O_APPEND | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(fd) = sys::open(path, HOW, 0o600) else { return };
    if !is_noted(fd, entry) {
        let _ = sys::write_all(fd, &entry.0);
    }
    sys::close(fd);
}

fn is_noted(fd: sys::Fd, entry: &Entry) -> bool {
    let mut some = [0u8; ENTRY_BYTES * 8];
    let mut offset = 0;
    while offset < ENTRY_BYTES * MOST_ENTRIES {
        let len = sys::read_at(fd, &mut some, offset as u64).unwrap_or(0);
        if some[..len].chunks_exact(ENTRY_BYTES).any(|noted| noted == entry.0) {
            return true;
        }
        if len < some.len() {
            return false;
        }
        offset += len;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read() {
        let entry = Entry::new(b"./asan", "AddressSanitizer", 7);
        let read = Unreached::read(&entry.0);
        assert_eq!(
            read,
            Unreached { program: "./asan".into(), cause: "AddressSanitizer".into(), process: 7 }
        );
        let long = [b"x".repeat(200).as_slice(), b"/end"].concat();
        assert!(
            Unreached::read(&Entry::new(&long, &"y".repeat(99), 0).0).program.ends_with("x/end")
        );
        assert_eq!(Unreached::read(&Entry::new(b"\x1b[2J", "static", 0).0).program, "\u{fffd}[2J");
        assert_eq!(Unreached::read(&[0xff; ENTRY_BYTES]).program.chars().next(), Some('\u{fffd}'));
    }
}
