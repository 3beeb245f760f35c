//! Processes that cannot be attached to, and why: found before anything is changed.

use crate::process::{self, status_line};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

const CAP_SYS_PTRACE: u32 = 19;

/// Checks whether a process can be attached to.
///
/// # Errors
/// The reason why not, and what would help.
pub fn check(pid: i32) -> Result<()> {
    check_ourselves()?;
    let state =
        process::stat_field(pid, 3).with_context(|| format!("there is no process {pid}"))?;
    match state.as_str() {
        "Z" | "X" => bail!("{pid} has ended"),
        "T" => bail!("{pid} is stopped: continue it first (kill -CONT {pid})"),
        "t" => bail!("{pid} is stopped by a tracer"),
        _ => {}
    }
    if pid == std::process::id() as i32 {
        bail!("{pid} is this command itself");
    }
    check_program(pid)?;
    check_rights(pid)?;
    check_namespaces(pid)?;
    check_memory(pid)
}

pub fn check_ourselves() -> Result<()> {
    if !kernel_is_at_least(6, 8) {
        bail!("this kernel does not move pages (UFFDIO_MOVE): Linux 6.8 or newer is needed");
    }
    let effective = status_line(std::process::id() as i32, "CapEff").unwrap_or_default();
    let effective = u64::from_str_radix(&effective, 16).unwrap_or(0);
    if effective >> CAP_SYS_PTRACE & 1 == 0 {
        bail!("attaching needs CAP_SYS_PTRACE: run it as root");
    }
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if yama.trim() == "3" {
        bail!("kernel.yama.ptrace_scope is 3: nobody may attach to a process until the next boot");
    }
    fs::metadata("/dev/userfaultfd")
        .context("there is no /dev/userfaultfd; see `terrace doctor`")?;
    let own = std::process::id() as i32;
    if crate::sys::shares_memory(own, own) != Some(true) {
        bail!("this kernel cannot compare processes (kcmp, CONFIG_KCMP)");
    }
    Ok(())
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

fn check_program(pid: i32) -> Result<()> {
    let mut head = [0u8; 20];
    fs::File::open(format!("/proc/{pid}/exe"))
        .and_then(|mut file| file.read_exact(&mut head))
        .with_context(|| format!("{pid} has no program: it is a thread of the kernel"))?;
    if head[4] != 2 || u16::from_le_bytes([head[18], head[19]]) != 62 {
        bail!("{pid} is no 64-bit x86 program: only those can be attached to");
    }
    Ok(())
}

fn check_rights(pid: i32) -> Result<()> {
    let field = |name: &str| status_line(pid, name).unwrap_or_default();
    let tracer = field("TracerPid");
    if tracer != "0" {
        bail!("{pid} is traced by {tracer}: end that (gdb, strace) first");
    }
    // What a filter forbids is looked up in the stopped thread (crate::filters).
    if field("Seccomp") == "1" {
        bail!("{pid} is in seccomp's strict mode, which would end it for what is put into it");
    }
    for name in ["Uid", "Gid"] {
        let ids = field(name);
        let mut ids = ids.split_ascii_whitespace();
        let first = ids.next();
        if ids.any(|id| Some(id) != first) {
            bail!("{pid} is a setuid program, or changes its user: it has the rights of two");
        }
    }
    Ok(())
}

fn check_namespaces(pid: i32) -> Result<()> {
    let namespace =
        |pid: i32| fs::metadata(format!("/proc/{pid}/ns/user")).map(|about| about.ino());
    if namespace(pid).ok() != namespace(std::process::id() as i32).ok() {
        bail!("{pid} is in another user namespace: attach from inside of it, as root there");
    }
    if process::number_there(pid) == Some(1) {
        bail!(
            "{pid} is process 1 of its PID namespace: it would become the parent of what is put beside it"
        );
    }
    Ok(())
}

fn check_memory(pid: i32) -> Result<()> {
    let maps = process::mappings(pid)?;
    if maps.iter().any(|mapping| mapping.name.contains("libterrace.so")) {
        bail!("{pid} runs under `terrace run`, which manages its memory already");
    }
    if uses_userfaultfd(pid).context("cannot list descriptors")? {
        bail!("{pid} uses userfaultfd itself: its memory cannot be registered twice");
    }
    if crate::channel::attached().contains(&pid) {
        bail!("{pid} is attached to already: `terrace detach {pid}` first");
    }
    // A keeper in another network namespace has its socket where this command sees none.
    let is_stub = |other: &i32| {
        *other != pid
            && crate::sys::shares_memory(pid, *other) == Some(true)
            && uses_userfaultfd(*other).unwrap_or(false)
    };
    if let Some(stub) = process::all().find(is_stub) {
        bail!(
            "process {stub} handles the page faults of {pid}: if Terrace started it in another \
             network namespace, `terrace detach {pid}` there first"
        );
    }
    Ok(())
}

fn uses_userfaultfd(pid: i32) -> std::io::Result<bool> {
    let mut descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    Ok(descriptors.any(|descriptor| {
        fs::read_link(descriptor.path())
            .is_ok_and(|file| file.as_os_str() == "anon_inode:[userfaultfd]")
    }))
}
