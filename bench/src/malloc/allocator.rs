//! The allocators, and how a program gets each.

use crate::machine;
use crate::side::installed;
use std::ffi::CStr;
use std::path::PathBuf;
use std::process::Command;

/// The `malloc` that a measured program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Allocator {
    /// The C library's: nothing is preloaded
    Glibc,
    /// The system's, preloaded
    Jemalloc,
    /// The system's, preloaded
    Mimalloc,
    /// The system's `tcmalloc_minimal` of gperftools, preloaded
    Tcmalloc,
    /// Under `terrace run`, with a budget that is never near
    Size,
    /// Under `terrace run --allocator context`, with a budget that is never near
    Context,
    /// libterrace.so preloaded and nothing else: an allocator without a pager
    Library,
}

use Allocator::*;

/// Allocators that are compared unless the command names others.
pub const ALL: [Allocator; 6] = [Glibc, Jemalloc, Mimalloc, Tcmalloc, Size, Context];

impl Allocator {
    /// Name for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Glibc => "glibc",
            Jemalloc => "jemalloc",
            Mimalloc => "mimalloc",
            Tcmalloc => "tcmalloc",
            Size => "size",
            Context => "context",
            Library => "library",
        }
    }

    /// A peer's library and Debian's package with it.
    fn peer(self) -> Option<(&'static str, &'static str)> {
        match self {
            Jemalloc => Some(("libjemalloc.so.2", "libjemalloc2")),
            Mimalloc => Some(("libmimalloc.so.2", "libmimalloc2.0")),
            Tcmalloc => Some(("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")),
            Glibc | Size | Context | Library => None,
        }
    }

    /// Why the allocator cannot be measured here.
    pub fn missing(self) -> Option<String> {
        let (file, package) = self.peer()?;
        installed(file).is_none().then(|| {
            format!("{file} is not installed (Debian: {package}, or scripts/setup.sh bench)")
        })
    }

    /// Version of the allocator: the package's for peers, the C library's for glibc, or Terrace's
    /// own.
    pub fn version(self) -> String {
        match self.peer() {
            Some((_, package)) => {
                let output =
                    Command::new("dpkg-query").args(["-W", "-f=${Version}", package]).output();
                let version = output
                    .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
                    .unwrap_or_default();
                if version.is_empty() { "?".into() } else { version }
            }
            // SAFETY: a constant text.
            None if self == Glibc => unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }
                .to_string_lossy()
                .into_owned(),
            None => env!("CARGO_PKG_VERSION").into(),
        }
    }

    fn preloaded(self) -> anyhow::Result<Option<PathBuf>> {
        Ok(match self {
            Glibc | Size | Context => None,
            Library => Some(machine::terrace()?.with_file_name("libterrace.so")),
            Jemalloc | Mimalloc | Tcmalloc => self.peer().and_then(|(file, _)| installed(file)),
        })
    }

    /// Command that runs a program with the allocator, on these CPUs. `links_jemalloc`: the program
    /// is linked with jemalloc, which would come before the C library's malloc (Debian's redis).
    pub fn command(
        self,
        cpus: &str,
        words: &[&str],
        links_jemalloc: bool,
    ) -> anyhow::Result<Command> {
        let flags: Option<&[&str]> = match self {
            Size => Some(&["--dram", "16G", "--sampler", "none"]),
            Context => Some(&["--dram", "16G", "--sampler", "none", "--allocator", "context"]),
            _ => None,
        };
        let mut command = machine::pinned_to(cpus, flags, words)?;
        command.env_remove("LD_PRELOAD");
        // taskset has it too, and does nothing with it.
        if let Some(library) = self.preloaded()? {
            command.env("LD_PRELOAD", library);
        } else if self == Glibc && links_jemalloc {
            command.env("LD_PRELOAD", "libc.so.6");
        }
        Ok(command)
    }
}
