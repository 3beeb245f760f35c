//! `terrace-kv`: a key-value server that speaks memcached's text and meta protocols.

mod heap;

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::Duration;

use terrace_kv::clock::Clock;
use terrace_kv::execute::Server;
use terrace_kv::server::{Listener, run};
use terrace_kv::settings::{self, Command, Settings};
use terrace_kv::stats::Stats;
use terrace_kv::store::{Config, Rules, Store};
use terrace_kv::tiering::Tiering;
use terrace_kv::tls::Tls;

/// Interval of checks for signals.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Number of open files besides those of connections and threads.
const FILES: u64 = 32;
const FILES_PER_THREAD: u64 = 8;

static SIGNALLED: AtomicBool = AtomicBool::new(false);
static HUNG_UP: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(signal: libc::c_int) {
    if signal == libc::SIGHUP { &HUNG_UP } else { &SIGNALLED }.store(true, Relaxed);
}

fn main() -> ExitCode {
    let mut warn = |line: String| eprintln!("terrace-kv: warning: {line}");
    let outcome = match settings::parse(std::env::args().skip(1), &mut warn) {
        Ok(Command::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Ok(Command::Serve(mut settings)) => {
            apply_test_settings(&mut settings);
            serve(*settings)
        }
        Err(message) => Err(message.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { message, status }) => {
            eprintln!("terrace-kv: {message}");
            ExitCode::from(status)
        }
    }
}

/// Applies what memcached's own tests ask of a debug build.
fn apply_test_settings(settings: &mut Settings) {
    if std::env::var_os("TERRACE_KV_TEST").is_none() {
        return;
    }
    settings.debug_time = true;
    let used = std::env::var("T_MEMD_INITIAL_MALLOC").ok();
    settings.used_from_start = used.and_then(|used| used.parse().ok()).unwrap_or(0);
}

/// The rules for bringing hot items together: for tests, far more work than is useful.
fn rules() -> Rules {
    let usual = Rules::default();
    match std::env::var_os("TERRACE_KV_MOVES") {
        Some(often) if often == "often" => {
            let (pause, longest_pause) = (Duration::from_millis(5), Duration::from_millis(5));
            let hot_bytes = Some(1 << 20);
            Rules {
                cpu_share: 0.5,
                bytes_per_s: u64::MAX,
                pause,
                longest_pause,
                hot_bytes,
                ..usual
            }
        }
        _ => usual,
    }
}

/// Why the server does not run, and the exit status that memcached has for it.
struct Failure {
    message: String,
    status: u8,
}

/// Exit statuses: what is wrong with the flags, and those of sysexits.h for the system and a user.
const FAILED: u8 = 1;
const OS_ERROR: u8 = 71;
const NO_USER: u8 = 67;

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure { message, status: FAILED }
    }
}

/// Something that the system does not allow.
fn refused_by_system(message: String) -> Failure {
    Failure { message, status: OS_ERROR }
}

/// Allows as many open files as the connections need: up to the hard limit, and beyond it where the
/// user may raise that.
fn raise_file_limit(settings: &Settings) -> Result<(), Failure> {
    let own = FILES + FILES_PER_THREAD * settings.threads as u64;
    let connections = settings.connections_max;
    let wanted = connections.saturating_add(own);
    let Ok((mut allowed, hard)) = terrace_os::limit_of(libc::RLIMIT_NOFILE) else {
        return Err(refused_by_system("failed to getrlimit number of files".to_owned()));
    };
    let raised = [(wanted, hard.max(wanted)), (wanted.min(hard), hard)];
    for (soft, hard) in raised {
        let is_set = || terrace_os::set_limit(libc::RLIMIT_NOFILE, soft, hard).is_ok();
        if allowed < soft && is_set() {
            allowed = soft;
        }
    }
    if allowed < connections {
        // memcached's message, which scripts may look for, and why.
        return Err(refused_by_system(format!(
            "failed to set rlimit for open files. Try starting as root or requesting smaller \
             maxconns value. (-c {connections}; the hard limit, `ulimit -H -n`, is {hard})"
        )));
    }
    if allowed < wanted {
        eprintln!(
            "terrace-kv: warning: -c {connections} needs {wanted} open files, and the hard limit is \
             {hard}: the last clients may have to wait; raise `ulimit -H -n`"
        );
    }
    Ok(())
}

fn serve(mut settings: Settings) -> Result<(), Failure> {
    raise_file_limit(&settings)?;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores into atomics.
        let _ = unsafe { terrace_os::handle_signal(signal, note_signal) };
    }
    let tls = match settings.tls.enabled {
        true => Some(Arc::new(Tls::start(settings.tls.clone())?)),
        false => None,
    };
    let tiering = if settings.moves() {
        heap::leave_the_c_librarys();
        Some(Tiering::start(settings.dram, settings.knob, settings.tiers.as_deref())?)
    } else {
        None
    };
    let mut follower =
        tiering.zip(settings.slowdown).map(|(tiering, target)| tiering.follow(target));
    let config = Config {
        memory_limit: settings.memory_limit,
        item_size_max: settings.item_size_max,
        evictions: settings.evictions,
        cas: settings.cas,
        used_from_start: settings.used_from_start,
        items: settings.items,
        tiering,
        consolidate: settings.consolidate,
        rules: rules(),
    };
    let megabytes = config.memory_limit >> 20;
    let store = Store::new(config).map_err(|error| {
        format!(
            "no address space for -m {megabytes}, which takes at least twice as much of it: {error}; \
             lower -m, or raise `ulimit -v`; with vm.overcommit_memory=2 all of it counts"
        )
    })?;
    let failed = |error: io::Error| refused_by_system(format!("failed to listen: {error}"));
    let mut listeners = Listener::activated(tls.is_some()).map_err(failed)?;
    if listeners.is_empty() {
        listeners = Listener::open(&settings).map_err(failed)?;
    } else {
        // The service manager's: it is not ours to give away or to remove.
        settings.socket = None;
    }
    if settings.user.is_none() && terrace_os::effective_user_id() == 0 {
        eprintln!("terrace-kv: warning: runs as root; -u USER gives those rights up");
    }
    if let Some(user) = &settings.user {
        become_user(user, settings.socket.as_deref())?;
    }
    // As that user, which is to remove it.
    if let Some(path) = &settings.pid_file
        && let Err(error) = std::fs::write(path, format!("{}\n", std::process::id()))
    {
        eprintln!("terrace-kv: warning: -P {}: {error}", path.display());
    }
    let server = Arc::new(Server {
        store,
        stats: Stats::new(settings.detail),
        clock: Clock::default(),
        tls,
        verbosity: AtomicU32::new(settings.verbosity),
        accounts: settings.accounts.take().map(RwLock::new),
        settings,
        stop: AtomicBool::new(false),
    });
    let watched = Arc::clone(&server);
    thread::spawn(move || {
        while !SIGNALLED.load(Relaxed) {
            thread::sleep(POLL_INTERVAL);
            if HUNG_UP.swap(false, Relaxed) {
                watched.read_accounts_again();
            }
            if let Some(follower) = &mut follower {
                follower.poll();
            }
        }
        watched.stop.store(true, Relaxed);
    });
    let outcome = run(&server, &listeners).map_err(|error| error.to_string().into());
    let Settings { socket, pid_file, .. } = &server.settings;
    for path in [socket, pid_file].into_iter().flatten() {
        let _ = std::fs::remove_file(path);
    }
    outcome
}

/// Becomes a user, for good, where the process is root's. A process of another user stays that
/// user's, as with memcached.
fn become_user(name: &str, socket: Option<&Path>) -> Result<(), Failure> {
    if terrace_os::effective_user_id() != 0 {
        return Ok(());
    }
    let text = CString::new(name).map_err(|_| format!("no user can be called {name:?}"))?;
    // SAFETY: the name ends in zero, and no other thread is there yet.
    let entry = unsafe { libc::getpwnam(text.as_ptr()) };
    if entry.is_null() {
        let message = format!("can't find the user {name} to switch to");
        return Err(Failure { message, status: NO_USER });
    }
    // SAFETY: the entry is the C library's, and stays until the next search.
    let (user, group) = unsafe { ((*entry).pw_uid, (*entry).pw_gid) };
    if let Some(socket) = socket {
        // As if the user had made it: the mode of -a is for the user's group.
        std::os::unix::fs::chown(socket, Some(user), Some(group))
            .map_err(|error| format!("{}: cannot be given to {name}: {error}", socket.display()))?;
    }
    // SAFETY: uses no memory but the name. Threads are made later, so they are the user's, too.
    let became = unsafe {
        libc::initgroups(text.as_ptr(), group) == 0
            && libc::setgid(group) == 0
            && libc::setuid(user) == 0
    };
    if became {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(refused_by_system(format!("failed to assume the identity of user {name}: {error}")))
}
