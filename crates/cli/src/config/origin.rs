//! Where the value of a setting comes from.

use serde::Serialize;

/// Where a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Neither the command line nor the file gives the setting.
    Default,
    /// The file of `--config`.
    File,
    /// A flag.
    CommandLine,
}

/// What is given on the command line, or in the file, or else the default. Where it comes from is
/// added to `origins`.
pub fn choose<T>(flag: Option<T>, file: Option<T>, default: T, origins: &mut Vec<Origin>) -> T {
    let (value, origin) = match (flag, file) {
        (Some(value), _) => (value, Origin::CommandLine),
        (None, Some(value)) => (value, Origin::File),
        (None, None) => (default, Origin::Default),
    };
    origins.push(origin);
    value
}
