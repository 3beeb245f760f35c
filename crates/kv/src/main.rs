//! `terrace-kv`: a key-value server that speaks memcached's text and meta protocols.

mod heap;

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
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
use terrace_pager::settings::Dram;

/// How often it is looked whether a signal came.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Open files beside those of connections and threads.
const FILES: u64 = 32;
const FILES_PER_THREAD: u64 = 8;

static SIGNALLED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    SIGNALLED.store(true, Relaxed);
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
        Err(message) => Err(message),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("terrace-kv: {message}");
            ExitCode::FAILURE
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

/// How much is done to bring hot items together: for tests, far more than anybody wants.
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

/// Allows as many open files as the connections need, as far as the hard limit goes.
fn raise_file_limit(settings: &Settings) {
    let own = FILES + FILES_PER_THREAD * settings.threads as u64;
    let wanted = settings.connections_max.saturating_add(own);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= wanted
    {
        return;
    }
    limit.rlim_cur = wanted.min(limit.rlim_max);
    // SAFETY: the structure is valid.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 || limit.rlim_cur < wanted {
        eprintln!("terrace-kv: warning: -c needs {wanted} open files; raise `ulimit -n`");
    }
}

fn serve(mut settings: Settings) -> Result<(), String> {
    raise_file_limit(&settings);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores into an atomic.
        unsafe { libc::signal(signal, note_signal as *const () as libc::sighandler_t) };
    }
    let tls = match settings.tls.enabled {
        true => Some(Arc::new(Tls::start(settings.tls.clone())?)),
        false => None,
    };
    let tiering = if settings.dram == Dram::Unlimited && settings.slowdown.is_none() {
        None
    } else {
        heap::leave_the_c_librarys();
        Some(Tiering::start(settings.dram, settings.tiers.as_deref())?)
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
    let store = Store::new(config).map_err(|error| format!("no address space: {error}"))?;
    let failed = |error: io::Error| format!("failed to listen: {error}");
    let mut listeners = Listener::activated(tls.is_some()).map_err(failed)?;
    if listeners.is_empty() {
        listeners = Listener::open(&settings).map_err(failed)?;
    } else {
        // The service manager's: it is not ours to give away or to remove.
        settings.socket = None;
    }
    if let Some(user) = &settings.user {
        become_user(user, settings.socket.as_deref())?;
    }
    let server = Arc::new(Server {
        store,
        stats: Stats::new(settings.detail),
        clock: Clock::default(),
        tls,
        verbosity: AtomicU32::new(settings.verbosity),
        settings,
        stop: AtomicBool::new(false),
    });
    let watched = Arc::clone(&server);
    thread::spawn(move || {
        while !SIGNALLED.load(Relaxed) {
            thread::sleep(LOOK_EVERY);
            if let Some(follower) = &mut follower {
                follower.look();
            }
        }
        watched.stop.store(true, Relaxed);
    });
    let outcome = run(&server, &listeners).map_err(|error| error.to_string());
    if let Some(path) = &server.settings.socket {
        let _ = std::fs::remove_file(path);
    }
    outcome
}

/// Becomes a user, for good, where the process is root's. Other users stay who they are, as with
/// memcached.
fn become_user(name: &str, socket: Option<&Path>) -> Result<(), String> {
    // SAFETY: it only reads the process's user.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(());
    }
    let text = CString::new(name).map_err(|_| format!("no user can be called {name:?}"))?;
    // SAFETY: the name ends in zero, and no other thread is there yet.
    let entry = unsafe { libc::getpwnam(text.as_ptr()) };
    if entry.is_null() {
        return Err(format!("can't find the user {name} to switch to"));
    }
    // SAFETY: the entry is the C library's, and stays until the next search.
    let (user, group) = unsafe { ((*entry).pw_uid, (*entry).pw_gid) };
    if let Some(socket) = socket {
        // As if the user had made it: the mode of -a is for the user's group.
        std::os::unix::fs::chown(socket, Some(user), Some(group))
            .map_err(|error| format!("{}: cannot be given to {name}: {error}", socket.display()))?;
    }
    // SAFETY: no memory is involved but the name; threads come later, and so are the user's.
    let became = unsafe {
        libc::initgroups(text.as_ptr(), group) == 0
            && libc::setgid(group) == 0
            && libc::setuid(user) == 0
    };
    if became {
        return Ok(());
    }
    Err(format!("failed to assume the identity of user {name}: {}", io::Error::last_os_error()))
}
