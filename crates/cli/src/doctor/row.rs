//! What the doctor says of one thing, and what its probes read.

use serde::Serialize;
use std::path::Path;

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The thing is as it should be.
    Ok,
    /// Terrace works, less well or not everywhere.
    Warn,
    /// The thing is not there.
    Missing,
}

/// A thing that was probed. Each text is one line without a full stop.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The thing.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// What the probe found.
    pub found: String,
    /// What follows from that.
    pub consequence: String,
    /// What to do; empty where there is nothing to do.
    pub fix: String,
    /// Without this, no page can be evicted.
    #[serde(skip)]
    pub required: bool,
}

impl Row {
    /// A thing with all that is said of it.
    pub fn new(
        name: &'static str,
        status: Status,
        found: impl Into<String>,
        consequence: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Row {
            name,
            status,
            found: found.into(),
            consequence: consequence.into(),
            fix: fix.into(),
            required: false,
        }
    }

    /// A thing that stands well and needs no fix.
    pub fn ok(
        name: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
    ) -> Self {
        Self::new(name, Status::Ok, found, consequence, "")
    }

    /// A thing that could not be looked at.
    pub fn unreadable(name: &'static str, what: &str, error: &std::io::Error) -> Self {
        Self::new(name, Status::Warn, format!("cannot read {what}: {error}"), "not known", "")
    }

    /// Marks it as a thing without which no page can be evicted.
    pub fn required(self) -> Self {
        Row { required: true, ..self }
    }
}

/// A small file of /proc or /sys, without the last newline.
pub fn read(file: impl AsRef<Path>) -> std::io::Result<String> {
    std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// The choice in brackets of a file such as `always [madvise] never`.
pub fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("none"), None);
    }
}
