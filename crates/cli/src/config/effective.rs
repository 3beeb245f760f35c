//! The settings in force: the command line before the file before the defaults, and where each came
//! from.

use crate::config::file;
use crate::run::args::RunArguments;
use crate::run::settings::{Given, Values};
use anyhow::{Result, anyhow};
use std::path::Path;

/// The settings for a command line, with its file of settings read and checked.
pub fn of_command_line(arguments: &RunArguments) -> Result<Values> {
    let file = arguments.config.as_deref().map(read).transpose()?.unwrap_or_default();
    Ok(Values::merge(arguments.given.clone(), file))
}

/// The settings that a file (or none) gives when the command line says nothing.
pub fn of_file(file: Option<&Path>) -> Result<Values> {
    Ok(Values::merge(Given::default(), file.map(read).transpose()?.unwrap_or_default()))
}

fn read(file: &Path) -> Result<Given> {
    file::read(file).map_err(|unusable| anyhow!("{}", unusable.describe(file)))
}
