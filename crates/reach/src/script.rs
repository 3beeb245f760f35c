//! What a `#!` line runs.

use crate::file::{Place, is_executable};
use core::ffi::CStr;

/// Longer paths are not looked at.
const PATH_BYTES: usize = 1024;
/// Where execvp looks when PATH is unset.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// A path that ends with a NUL.
pub(crate) struct Path {
    bytes: [u8; PATH_BYTES],
    len: usize,
}

impl Path {
    pub fn new() -> Path {
        Path { bytes: [0; PATH_BYTES], len: 0 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn place(&self) -> Place<'_> {
        Place::at(self.as_c_str())
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.bytes[..=self.len]).unwrap_or(c"")
    }

    /// Puts the parts together; false if they do not fit.
    fn set(&mut self, parts: &[&[u8]]) -> bool {
        self.len = 0;
        for part in parts {
            let end = self.len + part.len();
            if end >= self.bytes.len() {
                return false;
            }
            self.bytes[self.len..end].copy_from_slice(part);
            self.len = end;
        }
        self.bytes[self.len] = 0;
        true
    }
}

pub(crate) enum Interpreter {
    /// The given path holds the file that runs.
    Named,
    EmptyEnvironment,
}

/// What a `#!` line (without the `#!`) runs in the end: `env` is looked through, as it hands its
/// environment on.
pub(crate) fn interpreter(
    line: &[u8],
    path: Option<&[u8]>,
    found: &mut Path,
) -> Option<Interpreter> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let named = words.next()?;
    if named.rsplit(|byte| *byte == b'/').next() != Some(b"env") {
        return found.set(&[named]).then_some(Interpreter::Named);
    }
    let mut rest =
        words.map(|word| word.strip_prefix(b"-S").unwrap_or(word)).filter(|word| !word.is_empty());
    loop {
        match rest.next()? {
            b"-" | b"-i" | b"--ignore-environment" => return Some(Interpreter::EmptyEnvironment),
            option if option.starts_with(b"-") || option.contains(&b'=') => {}
            name => return search(name, path, found).then_some(Interpreter::Named),
        }
    }
}

/// See [`crate::search`].
pub(crate) fn search(name: &[u8], path: Option<&[u8]>, found: &mut Path) -> bool {
    if name.contains(&b'/') {
        return found.set(&[name]);
    }
    // An empty entry of PATH is the current directory.
    let directory = |entry: &'_ [u8]| -> bool { found_in(entry, name, found) };
    !name.is_empty() && path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':').any(directory)
}

fn found_in(directory: &[u8], name: &[u8], found: &mut Path) -> bool {
    let directory = if directory.is_empty() { b"." } else { directory };
    found.set(&[directory, b"/", name]) && is_executable(found.as_c_str())
}
