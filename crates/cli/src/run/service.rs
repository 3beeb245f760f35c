//! What a service manager says to the process that it started (systemd's environment variables and
//! its socket for notifications). `terrace run` is that process, and the program is meant.
//!
//! The variables name a process, and programs compare that with themselves. The socket takes
//! messages of the main process alone, unless the unit says otherwise: so the manager is told that
//! the program is the main process, before it runs.

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

/// Variables that name the process that was started.
const NAMES: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// Variable that names the started process by the number of its file in pidfs.
const LISTEN_FILE: &str = "LISTEN_PIDFDID";
const SOCKET: &str = "NOTIFY_SOCKET";

/// The service manager that started us, if any: its variables that name us, and its socket.
#[derive(Debug, Default)]
pub struct Manager {
    /// The variables that name us.
    names: Vec<&'static str>,
    /// Whether we are named by a file's number, too.
    by_file: bool,
    socket: Option<OsString>,
}

impl Manager {
    /// What our environment says.
    pub fn of_environment() -> Manager {
        let own = std::process::id().to_string();
        let names_us = |name: &&str| std::env::var_os(name).is_some_and(|pid| pid == *own);
        let file = std::env::var_os(LISTEN_FILE).filter(|number| !number.is_empty());
        let names: Vec<&str> = NAMES.into_iter().filter(names_us).collect();
        Manager {
            by_file: file
                .is_some_and(|number| own_file().is_some_and(|own| number == *own.to_string())),
            socket: std::env::var_os(SOCKET)
                .filter(|socket| !socket.is_empty() && !names.is_empty()),
            names,
        }
    }

    /// Names the process `pid` in the program's environment, as the one that is meant. Called in
    /// the process that the program will be.
    pub fn name(&self, command: &mut Command, pid: u32) {
        for name in &self.names {
            command.env(name, pid.to_string());
        }
        if self.by_file {
            match own_file() {
                Some(number) => command.env(LISTEN_FILE, number.to_string()),
                None => command.env_remove(LISTEN_FILE),
            };
        }
    }

    /// Says which process is the main one. No answer is waited for.
    pub fn notify_main(&self, pid: u32) {
        if let Some(socket) = &self.socket {
            let _ = send(socket, format!("MAINPID={pid}").as_bytes());
        }
    }
}

fn send(to: &OsStr, message: &[u8]) -> std::io::Result<usize> {
    let address = match to.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(to)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that reads nothing must not keep the program from starting.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message, &address)
}

/// The number of this process's file in pidfs (Linux 6.9), which no other process ever has.
fn own_file() -> Option<u64> {
    const PIDFS: i64 = 0x5049_4446;
    let fd = terrace_os::own_process().ok()?;
    let (about, place) = (terrace_os::file_status(fd), terrace_os::file_system_of(fd));
    terrace_os::close(fd);
    let is_in_pidfs = place.is_ok_and(|place| place.f_type == PIDFS);
    about.ok().filter(|_| is_in_pidfs).map(|about| about.st_ino)
}
