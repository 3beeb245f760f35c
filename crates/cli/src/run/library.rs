//! Where libterrace.so is: the library that `terrace run` preloads.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The environment variable that names the library, for tests and unusual installations.
pub const LIBRARY_VARIABLE: &str = "TERRACE_LIBRARY";
const LIBRARY_NAME: &str = "libterrace.so";
/// Places relative to the directory of this executable.
const PLACES: [&str; 3] = [".", "../lib/terrace", "../lib"];

/// The absolute path of the library. An error names the places that were tried.
pub fn locate() -> Result<PathBuf> {
    let found = match std::env::var_os(LIBRARY_VARIABLE) {
        Some(named) if !named.is_empty() => {
            let named = PathBuf::from(named);
            named.canonicalize().with_context(|| {
                format!(
                    "{LIBRARY_VARIABLE} names {}, which cannot be opened; correct it, or unset it",
                    named.display()
                )
            })?
        }
        _ => beside_the_executable()?,
    };
    loadable(&found)?;
    Ok(found)
}

fn beside_the_executable() -> Result<PathBuf> {
    let executable = std::env::current_exe().context("cannot find this executable")?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    for place in PLACES {
        if let Ok(path) = directory.join(place).join(LIBRARY_NAME).canonicalize() {
            return Ok(path);
        }
    }
    bail!(
        "{LIBRARY_NAME} is neither beside {} nor in ../lib/terrace or ../lib from there; reinstall, or set {LIBRARY_VARIABLE} to its path",
        executable.display()
    )
}

/// The loader splits LD_PRELOAD at spaces and colons, so such a path cannot be preloaded at all.
fn loadable(path: &Path) -> Result<()> {
    if !path.is_file() {
        bail!(
            "{} is not a file; set {LIBRARY_VARIABLE} to the path of {LIBRARY_NAME}",
            path.display()
        );
    }
    if path.to_string_lossy().contains([' ', ':', '\t', '\n']) {
        bail!(
            "{} has a space or a colon in its path, which the loader cannot preload; install it elsewhere",
            path.display()
        );
    }
    Ok(())
}
