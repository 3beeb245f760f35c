//! What the program executes: a file that cannot load the preload is executed without it, and
//! without complaints of its loader.
//!
//! The examination is that of `terrace run` (`terrace_reach`). It is made where the program calls
//! the exec family or `posix_spawn`, by name or number. What the C library executes itself
//! (`system`, `popen`, `wordexp`) is the system's shell, whose own calls come here again.
//!
//! Such calls are made between fork and exec, in children of vfork that share the program's memory,
//! and in signal handlers. So nothing here allocates, takes a lock, or looks up a function then.

use crate::current::pager;
use crate::entry::jumps;
use crate::next::{Next, no_such_call, result};
use crate::processes::with_tasks_given_back;
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use terrace_control::unreached::{self, Entry};
use terrace_os as sys;
use terrace_reach::environment::{self, Strings, strings};
use terrace_reach::{Environment, Found, Place};

type Exec = extern "C" fn(*const c_char, Strings) -> i32;
type ExecEnvironment = extern "C" fn(*const c_char, Strings, Strings) -> i32;
type ExecDescriptor = extern "C" fn(i32, Strings, Strings) -> i32;
type ExecAt = extern "C" fn(i32, *const c_char, Strings, Strings, i32) -> i32;
type Spawn = extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> i32;

static EXECVE: Next = Next::new(c"execve");
static EXECV: Next = Next::new(c"execv");
static EXECVP: Next = Next::new(c"execvp");
static EXECVPE: Next = Next::new(c"execvpe");
static FEXECVE: Next = Next::new(c"fexecve");
static EXECVEAT: Next = Next::new(c"execveat");
static POSIX_SPAWN: Next = Next::new(c"posix_spawn");
static POSIX_SPAWNP: Next = Next::new(c"posix_spawnp");

/// What is looked up at the start.
struct Known {
    /// The file name of this library, by which it is told from the user's own preloads.
    library: Vec<u8>,
    /// The file that lists what was executed without the library, with a NUL.
    list: Option<String>,
    /// Process id of `terrace run`.
    run: Option<i32>,
}

static KNOWN: OnceLock<Known> = OnceLock::new();

unsafe extern "C" {
    static environ: Strings;
}

/// Looks up all that is needed later, when nothing may be looked up any more.
pub fn learn() {
    for function in
        [&EXECVE, &EXECV, &EXECVP, &EXECVPE, &FEXECVE, &EXECVEAT, &POSIX_SPAWN, &POSIX_SPAWNP]
    {
        function.get();
    }
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is one of this library's; the result is ours, and read only if it was
    // filled. The name lives as long as the library, which is never unloaded.
    let path = unsafe {
        if libc::dladdr((&raw const KNOWN).cast(), about.as_mut_ptr()) == 0
            || about.assume_init().dli_fname.is_null()
        {
            return;
        }
        CStr::from_ptr(about.assume_init().dli_fname).to_bytes()
    };
    // SAFETY: reads what the kernel has told this process. If the program has more rights than its
    // caller, the environment is that caller's.
    let trusted = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    let text = |name: &str| std::env::var(name).ok().filter(|text| trusted && !text.is_empty());
    let _ = KNOWN.set(Known {
        library: environment::file_name(path).to_vec(),
        list: text("TERRACE_RUN_DIR")
            .map(|directory| format!("{directory}/{}\0", unreached::FILE_NAME)),
        run: text("TERRACE_RUN_PID").and_then(|pid| pid.parse().ok()),
    });
}

/// The variable that tells a program of the run; one outside the run does not get it.
const RUN: &[u8] = b"TERRACE_RUN_DIR=";

/// Calls `execute` with the environment for the program at `place`. That is the one given, or one
/// without this library if it cannot come in.
fn executing<R>(
    place: Option<Place<'_>>,
    name: Named,
    environment: Strings,
    execute: impl FnOnce(Strings) -> R,
) -> R {
    match place.and_then(|place| found_out_of_reach(place, name, environment)) {
        // SAFETY: the program's list, which it passes to the kernel.
        Some(known) => unsafe { environment::without(environment, &known.library, RUN, execute) },
        None => execute(environment),
    }
}

fn found_out_of_reach(
    place: Place<'_>,
    name: Named,
    environment: Strings,
) -> Option<&'static Known> {
    let known = KNOWN.get()?;
    let _errno = sys::ErrnoKept::new();
    // The kernel refuses a list that cannot be read. Where the program has a seccomp filter,
    // nothing is tried.
    let may_peek = pager().is_some_and(|pager| !pager.is_shut_down());
    if may_peek
        && !environment.is_null()
        && sys::try_peek(environment as usize, &mut [0; size_of::<usize>()])
            == Err(sys::Errno::EFAULT)
    {
        return None;
    }
    // SAFETY: the program's list, which it passes to the kernel.
    let variables = unsafe { strings(environment) }.map(CStr::to_bytes);
    if !variables.clone().any(|variable| environment::preloads(variable, &known.library)) {
        return None;
    }
    let value = |name: &[u8]| variables.clone().find_map(|variable| variable.strip_prefix(name));
    let surroundings = Environment {
        path: value(b"PATH="),
        audited: value(b"LD_AUDIT=").is_some_and(|names| !names.is_empty()),
    };
    let cause = terrace_reach::out_of_reach(place, surroundings, &mut |_| {})?;
    if let Some(list) = &known.list {
        let process = if name.becomes && known.run == Some(sys::parent_id()) {
            sys::process_id() as u32
        } else {
            0
        };
        unreached::note(list, &Entry::new(name.text(), cause.short(), process));
    }
    Some(known)
}

/// The program's name for a file. It is read only once the file was found, because the kernel
/// refuses what cannot be read.
#[derive(Clone, Copy)]
struct Named {
    path: *const c_char,
    arguments: Strings,
    /// Whether this process becomes the program, and does not start it.
    becomes: bool,
}

impl Named {
    fn text(&self) -> &[u8] {
        // SAFETY: strings that the program passes to the kernel.
        unsafe {
            if !self.path.is_null() && *self.path != 0 {
                return CStr::from_ptr(self.path).to_bytes();
            }
            strings(self.arguments).next().map_or(b"", CStr::to_bytes)
        }
    }
}

/// The place of the file that `execvp` would execute.
fn searched(name: *const c_char, found: &mut Found) -> Option<Place<'_>> {
    if name.is_null() || KNOWN.get().is_none() {
        return None;
    }
    // SAFETY: the program's name and environment, which the C library reads too.
    let (name, path) = unsafe {
        (
            CStr::from_ptr(name),
            strings(environ).find_map(|variable| variable.to_bytes().strip_prefix(b"PATH=")),
        )
    };
    terrace_reach::search(name.to_bytes(), path, found)
}

fn by_path<'a>(path: *const c_char) -> Option<Place<'a>> {
    Some(Place::of_call(libc::AT_FDCWD, path, 0))
}

/// The program's environment.
fn own_environment() -> Strings {
    // SAFETY: the C library's variable, read as its own functions read it.
    unsafe { environ }
}

/// Calls the C library's function of this name and type, which [`learn`] looked up.
macro_rules! next {
    ($next:ident as $type:ty, $($argument:expr),*) => {{
        let real = $next.get();
        if real.is_null() {
            no_such_call(-1)
        } else {
            // SAFETY: the C library's function of this name has this signature.
            let real: $type = unsafe { std::mem::transmute(real) };
            real($($argument),*)
        }
    }};
}

/// `execve`.
#[unsafe(no_mangle)]
extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> i32 {
    executing(by_path(path), Named { path, arguments, becomes: true }, environment, |environment| {
        next!(EXECVE as ExecEnvironment, path, arguments, environment)
    })
}

/// `execv`.
#[unsafe(no_mangle)]
extern "C" fn execv(path: *const c_char, arguments: Strings) -> i32 {
    let own = own_environment();
    executing(by_path(path), Named { path, arguments, becomes: true }, own, |environment| {
        match environment == own {
            true => next!(EXECV as Exec, path, arguments),
            false => next!(EXECVE as ExecEnvironment, path, arguments, environment),
        }
    })
}

/// `execvp`.
#[unsafe(no_mangle)]
extern "C" fn execvp(name: *const c_char, arguments: Strings) -> i32 {
    let (own, mut found) = (own_environment(), Found::new());
    executing(
        searched(name, &mut found),
        Named { path: name, arguments, becomes: true },
        own,
        |environment| match environment == own {
            true => next!(EXECVP as Exec, name, arguments),
            false => next!(EXECVPE as ExecEnvironment, name, arguments, environment),
        },
    )
}

/// `execvpe`.
#[unsafe(no_mangle)]
extern "C" fn execvpe(name: *const c_char, arguments: Strings, environment: Strings) -> i32 {
    let mut found = Found::new();
    executing(
        searched(name, &mut found),
        Named { path: name, arguments, becomes: true },
        environment,
        |environment| next!(EXECVPE as ExecEnvironment, name, arguments, environment),
    )
}

/// `fexecve`.
#[unsafe(no_mangle)]
extern "C" fn fexecve(file: i32, arguments: Strings, environment: Strings) -> i32 {
    let place = Place::of_call(file, c"".as_ptr(), libc::AT_EMPTY_PATH);
    executing(
        Some(place),
        Named { path: std::ptr::null(), arguments, becomes: true },
        environment,
        |environment| next!(FEXECVE as ExecDescriptor, file, arguments, environment),
    )
}

/// `execveat`.
#[unsafe(no_mangle)]
extern "C" fn execveat(
    directory: i32,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: i32,
) -> i32 {
    executing(
        Some(Place::of_call(directory, path, flags)),
        Named { path, arguments, becomes: true },
        environment,
        |environment| next!(EXECVEAT as ExecAt, directory, path, arguments, environment, flags),
    )
}

jumps! {
    execl => terrace_execl;
    execle => terrace_execle;
    execlp => terrace_execlp;
}

/// What `spawn` returns: 0 or an error number.
fn spawned(spawn: impl Fn() -> i32) -> i32 {
    let result = with_tasks_given_back(spawn, |error| *error == libc::EAGAIN);
    if result < 0 { libc::ENOSYS } else { result }
}

/// `posix_spawn`. A relative path is looked up here, where the file actions may change the
/// directory first: then another file, or none, is examined. (Most callers give an absolute one.)
#[unsafe(no_mangle)]
extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> i32 {
    executing(
        by_path(path),
        Named { path, arguments, becomes: false },
        environment,
        |environment| {
            spawned(|| {
                next!(POSIX_SPAWN as Spawn, pid, path, actions, attributes, arguments, environment)
            })
        },
    )
}

/// `posix_spawnp`.
#[unsafe(no_mangle)]
extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> i32 {
    let mut found = Found::new();
    executing(
        searched(name, &mut found),
        Named { path: name, arguments, becomes: false },
        environment,
        |environment| {
            spawned(|| {
                next!(POSIX_SPAWNP as Spawn, pid, name, actions, attributes, arguments, environment)
            })
        },
    )
}

/// SYS_execve and SYS_execveat.
pub fn by_number(number: libc::c_long, arguments: [usize; 6]) -> libc::c_long {
    // The places of the path, the arguments and the environment; and the file.
    let at = usize::from(number == libc::SYS_execveat);
    let (directory, flags) =
        if at == 0 { (libc::AT_FDCWD, 0) } else { (arguments[0] as i32, arguments[4] as i32) };
    let path = arguments[at] as *const c_char;
    let named = Named { path, arguments: arguments[at + 1] as Strings, becomes: true };
    executing(
        Some(Place::of_call(directory, path, flags)),
        named,
        arguments[at + 2] as Strings,
        |environment| {
            let mut arguments = arguments;
            arguments[at + 2] = environment as usize;
            // SAFETY: the program's own call, passed on.
            result(unsafe { sys::forward(number, arguments) })
        },
    )
}
