//! The command line of `terrace config`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `terrace config`.
#[derive(Args, Debug)]
pub struct ConfigArguments {
    /// What to do with the settings.
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// `terrace config …`.
#[derive(Subcommand, Debug)]
pub enum ConfigAction {
    /// Check a settings file and print every error with its line
    ///
    /// Exit status: 0 if it is right, 1 if it has errors, 125 if it cannot be read.
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the settings that `terrace run` would use, and where each comes from
    Show {
        /// Take settings from this file
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
