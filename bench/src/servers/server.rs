//! A server on CPU 0, in a control group of its own, alone or under Terrace. Ended when dropped.

use super::group::Group;
use super::measure::Data;
use super::process::{self, Page};
use crate::interrupt;
use crate::machine::{ends_with_us, terrace};
use anyhow::{Context, bail};
use clap::ValueEnum;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use terrace_testkit::port;

const START_WITHIN: Duration = Duration::from_secs(60);
const END_WITHIN: Duration = Duration::from_secs(20);
/// CPU on which the server and all its threads run.
const CPU: usize = 0;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Server {
    Memcached,
    Redis,
}

impl Server {
    /// Name of the server, also for `terrace load kv`.
    pub fn name(self) -> &'static str {
        match self {
            Server::Memcached => "memcached",
            Server::Redis => "redis",
        }
    }

    /// Command of the server: one thread serves, nothing is written to disk, and no item is ever
    /// dropped. memcached's crawler would walk all items while it is measured, and so would a
    /// growing hash table. At what time that happens would decide more than what is compared.
    fn command(self, port: u16, data: Data) -> Vec<String> {
        let line = match self {
            Server::Memcached => {
                let megabytes = (data.bytes() >> 19) + 1024;
                // It grows at 1.5 items a bucket; 16 is what it begins with otherwise.
                let hash_power = (data.items * 2 / 3 + 1).next_power_of_two().ilog2().max(16);
                format!(
                    "memcached -l 127.0.0.1 -p {port} -U 0 -u root -t 1 -c 1024 -m {megabytes} -o no_lru_crawler,hashpower={hash_power}"
                )
            }
            Server::Redis => {
                format!(
                    "redis-server --bind 127.0.0.1 --port {port} --protected-mode no --appendonly no --io-threads 1 --save"
                )
            }
        };
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        if self == Server::Redis {
            words.push(String::new());
        }
        words
    }

    /// Version of the server; an error says that it is missing.
    pub fn version(self) -> anyhow::Result<String> {
        let program = if self == Server::Redis { "redis-server" } else { "memcached" };
        let output = Command::new(program).arg("--version").output();
        let output =
            output.with_context(|| format!("{program} is not installed: scripts/setup.sh test"))?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("?").to_owned())
    }
}

/// A server that runs.
pub struct Running {
    child: Child,
    /// The server itself; the child is `terrace run` if it is under that.
    pub pid: u32,
    pub port: u16,
    pub page: Option<Page>,
    under_terrace: bool,
    // Last: processes first, then their group.
    pub group: Group,
}

impl Running {
    /// Starts a server; with `terrace_flags` under `terrace run`. Returns when it accepts
    /// connections.
    pub fn start(data: Data, terrace_flags: Option<&[String]>) -> anyhow::Result<Running> {
        let port = port::free()?;
        let mut words: Vec<String> = Vec::new();
        if let Some(flags) = terrace_flags {
            words.extend([terrace()?.to_string_lossy().into_owned(), "run".into()]);
            words.extend(flags.iter().cloned());
            words.push("--".into());
        }
        words.extend(data.server.command(port, data));
        Running::spawn(&words, port, terrace_flags.is_some())
    }

    /// Starts a server by its command line, which has the port in it.
    pub fn spawn(words: &[String], port: u16, under_terrace: bool) -> anyhow::Result<Running> {
        let group = Group::create()?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let processes = File::options().write(true).open(group.processes_file())?;
        ends_with_us(&mut command);
        // SAFETY: between fork and exec only system calls, on descriptors and values made before.
        unsafe {
            command.pre_exec(move || {
                (&processes).write_all(b"0")?;
                pin(CPU)
            })
        };
        let child = command.spawn().with_context(|| format!("cannot start {}", words[0]))?;
        let pid = child.id();
        let mut running = Running { child, pid, port, page: None, under_terrace, group };
        running.wait_for_start()?;
        Ok(running)
    }

    fn wait_for_start(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            self.check()?;
            if begun.elapsed() > START_WITHIN {
                bail!("the server did not start within {START_WITHIN:?}");
            }
            interrupt::sleep(interrupt::POLL_INTERVAL)?;
        }
        if self.under_terrace {
            self.pid = process::child(self.child.id()).context("the server ended")?;
            self.page = Some(Page::of(self.pid)?);
        }
        Ok(())
    }

    /// Returns an error if the server has ended, or the benchmark is to.
    pub fn check(&mut self) -> anyhow::Result<()> {
        interrupt::check()?;
        self.group.help();
        is_alive(&mut self.child)
    }

    /// Lowers the limit of the server's group, by steps.
    pub fn lower_limit(&mut self, bytes: u64) -> anyhow::Result<()> {
        let Running { group, child, .. } = self;
        group.lower_to(bytes, || is_alive(child))
    }

    /// CPU seconds of `terrace run` itself.
    pub fn terrace_run_cpu_s(&self) -> anyhow::Result<Option<f64>> {
        self.under_terrace.then(|| process::cpu_s(self.child.id())).transpose()
    }

    /// Time for which the server has run on a CPU, with all its threads, and `terrace run`.
    pub fn run_time(&self) -> anyhow::Result<Duration> {
        let own =
            if self.under_terrace { process::run_time(self.child.id())? } else { Duration::ZERO };
        Ok(own + process::run_time(self.pid)?)
    }

    /// Process of `terrace run`, if the server is under that.
    pub fn terrace_run(&self) -> Option<u32> {
        self.under_terrace.then(|| self.child.id())
    }

    fn ended_within(&mut self, within: Duration) -> bool {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if begun.elapsed() < within => {
                    std::thread::sleep(interrupt::POLL_INTERVAL)
                }
                Ok(None) => return false,
                _ => return true,
            }
        }
    }

    fn signal(&self, pid: u32, signal: i32) {
        // SAFETY: no pointers. The process is our child, or that of `terrace run`, which has not
        // been waited for and so still holds it.
        unsafe { libc::kill(pid as i32, signal) };
    }
}

fn is_alive(child: &mut Child) -> anyhow::Result<()> {
    match child.try_wait()? {
        Some(status) => {
            bail!(
                "the server ended ({status}); if by signal 9 or 11, the kernel most likely had no memory left for it within the limit"
            )
        }
        None => Ok(()),
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended_within(Duration::ZERO) {
            return;
        }
        self.signal(self.child.id(), libc::SIGTERM);
        if self.ended_within(END_WITHIN) {
            return;
        }
        self.signal(self.pid, libc::SIGKILL);
        if !self.ended_within(END_WITHIN) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Keeps the calling thread, and what it starts, on one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: the set is initialised and as long as said.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
