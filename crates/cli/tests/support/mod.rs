//! What the tests of the command share: a scratch directory with a stand-in for libterrace.so, and
//! a way to run `terrace`.
//!
//! The stand-in does nothing, unless `STUB_PAGE` names a file: then it copies that into the run
//! directory as its process's statistics page, with its process id filled in, as the real library
//! would.
#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::FromRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::Ordering::Relaxed;
use terrace_control::stats::{self, StatsFile, StatsPage};

const STUB: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void come_up(void) {
    const char *from = getenv("STUB_PAGE"), *dir = getenv("TERRACE_RUN_DIR");
    static char page[1 << 20], name[4096];
    if (!from || !dir) return;
    FILE *in = fopen(from, "r");
    if (!in) return;
    size_t bytes = fread(page, 1, sizeof page, in);
    fclose(in);
    int pid = getpid();
    memcpy(page + PID_OFFSET, &pid, sizeof pid);
    snprintf(name, sizeof name, "%s/%d-%d.stats", dir, pid, 1);
    FILE *out = fopen(name, "w");
    if (!out) return;
    fwrite(page, 1, bytes, out);
    fclose(out);
}
"#;

/// A scratch directory and the stand-in in it.
pub struct Scratch {
    directory: tempfile::TempDir,
    library: PathBuf,
}

impl Scratch {
    /// `None`, with the reason printed, where there is no C compiler.
    pub fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let offset = format!("-DPID_OFFSET={}", std::mem::offset_of!(StatsPage, pid));
        let library =
            compile(directory.path(), "libterrace.so", STUB, &["-shared", "-fPIC", &offset])?;
        fs::create_dir(directory.path().join("runs")).unwrap();
        Some(Scratch { directory, library })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A file with this content.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// An executable script.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A program from C; `None`, with the reason printed, if it cannot be built.
    pub fn program(&self, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
        compile(self.directory.path(), name, source, flags)
    }

    /// `terrace` with these arguments, its run directories in `runs`.
    pub fn terrace<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = terrace(arguments);
        command.env("TERRACE_LIBRARY", &self.library).env("XDG_RUNTIME_DIR", self.path("runs"));
        command
    }

    /// `terrace run -- sh -c SCRIPT`. Signals mean what they usually do, also where the tests run
    /// in the background of a script or under nohup, which ignore some.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = self.terrace(&["run", "--", "sh", "-c", script]);
        // SAFETY: async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        command
    }

    /// What is left of run directories.
    pub fn run_directories(&self) -> Vec<String> {
        fs::read_dir(self.path("runs"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// A statistics page for the stand-in to put down, as `fill` makes it.
    pub fn page(&self, fill: impl Fn(&StatsPage)) -> PathBuf {
        let words = vec![0u64; size_of::<StatsFile>() / 8];
        // SAFETY: the vector has the size and alignment of a page of atomics, for which all zeros
        // is valid; it is not used in another way until the reference is gone.
        let page = unsafe { &*words.as_ptr().cast::<StatsPage>() };
        page.magic.store(stats::MAGIC, Relaxed);
        fill(page);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let path = self.path("page");
        fs::write(&path, bytes).unwrap();
        path
    }
}

/// `terrace` with these arguments and nothing else.
pub fn terrace<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(arguments);
    for variable in ["TERRACE_LIBRARY", "TERRACE_RUN_DIR", "TERRACE_STRESS", "LD_PRELOAD"] {
        command.env_remove(variable);
    }
    command
}

/// The two ends of a new terminal: what is written to the first is typed at the second.
pub fn pseudo_terminal() -> (File, File) {
    let (mut ours, mut theirs) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: both numbers are ours to write; null means that neither name nor settings are asked
    // for or given.
    let made =
        unsafe { libc::openpty(&mut ours, &mut theirs, none, std::ptr::null(), std::ptr::null()) };
    assert_eq!(made, 0);
    // SAFETY: openpty has just made both descriptors for us.
    unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) }
}

/// The next line of a program's output.
pub fn line(child: &mut Child) -> String {
    let mut text = String::new();
    BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut text).unwrap();
    text
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn compile(directory: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (input, output) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&input, source).unwrap();
    match Command::new("cc").args(flags).arg(&input).arg("-o").arg(&output).output() {
        Ok(done) if done.status.success() => Some(output),
        Ok(done) => {
            eprintln!("not tested: cc {flags:?} fails: {}", stderr(&done));
            None
        }
        Err(error) => {
            eprintln!("not tested: no C compiler (cc): {error}");
            None
        }
    }
}
