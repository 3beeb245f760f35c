//! `terrace generate`: manual pages, completions and the report's schema for `make install`, and
//! pages for `make reference`, from what the command line itself knows.

mod reference;

use crate::args::Arguments;
use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::fs;
use std::path::{Path, PathBuf};

/// `terrace generate`.
#[derive(Args, Debug)]
pub struct GenerateArguments {
    /// A directory that is laid out like /usr/share
    #[arg(value_name = "DIR")]
    pub share: PathBuf,

    /// Write the pages of docs/reference into DIR instead
    #[arg(long)]
    pub reference: bool,
}

/// Where each shell looks for completions, below a prefix's `share`.
const PLACES: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// Writes all of it below a directory that is laid out like `/usr/share`.
pub fn run(arguments: &GenerateArguments) -> Result<u8> {
    let share = &arguments.share;
    if arguments.reference {
        return pages(share);
    }
    let pages = share.join("man/man1");
    make(&pages)?;
    clap_mangen::generate_to(command(), &pages)
        .with_context(|| format!("manual pages cannot be written to {}", pages.display()))?;
    for (shell, place) in PLACES {
        let place = share.join(place);
        make(&place)?;
        clap_complete::generate_to(shell, &mut command(), "terrace", &place)
            .with_context(|| format!("completions cannot be written to {}", place.display()))?;
    }
    let documents = share.join("doc/terrace");
    make(&documents)?;
    write(&documents.join(reference::SCHEMA), &format!("{:#}\n", reference::schema()))?;
    Ok(0)
}

fn pages(directory: &Path) -> Result<u8> {
    make(directory)?;
    for (name, text) in reference::pages() {
        write(&directory.join(name), &text)?;
    }
    Ok(0)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))
}

fn command() -> clap::Command {
    Arguments::command().disable_help_subcommand(true)
}

fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("{} cannot be made", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verb_has_a_page_and_each_shell_its_completions() {
        let scratch = tempfile::tempdir().unwrap();
        run(&GenerateArguments { share: scratch.path().to_owned(), reference: false }).unwrap();
        for page in ["terrace.1", "terrace-run.1", "terrace-status.1", "terrace-report-wss.1"] {
            let text = fs::read_to_string(scratch.path().join("man/man1").join(page)).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
        }
        assert!(!scratch.path().join("man/man1/terrace-generate.1").exists());
        let bash =
            fs::read_to_string(scratch.path().join("bash-completion/completions/terrace.bash"))
                .unwrap();
        assert!(bash.contains("--dram") && bash.contains("status"));
        assert!(scratch.path().join("zsh/site-functions/_terrace").exists());
        assert!(scratch.path().join("fish/vendor_completions.d/terrace.fish").exists());
    }
}
