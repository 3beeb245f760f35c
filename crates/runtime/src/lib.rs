//! libterrace.so: one process's Terrace, preloaded into an unmodified program.
//!
//! Wires allocator and pager together, takes the settings from the environment, and interposes what
//! a program does to its memory and processes:
//! - [`entry`] exports the malloc family;
//! - [`mappings`] interposes the `mmap` family;
//! - [`segments`] manages static data and the break;
//! - [`pin`] keeps in DRAM what the kernel must find there;
//! - [`linked`] exports what linked programs call;
//! - [`processes`] interposes fork, and calls that must not be missed;
//! - [`executed`] interposes what the program executes;
//! - [`privileges`] interposes the calls before which everything must be open.
//!
//! Nothing here aborts the program or prints more than a line.

mod codecs;
mod current;
mod entry;
mod executed;
mod linked;
mod mappings;
mod next;
mod pin;
mod privileges;
mod processes;
mod segments;

use current::{PROCESS, pager};
use next::Next;
use segments::base_of;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering::*;
use terrace_alloc::grouped::{self, Grouping};
use terrace_alloc::placement;
use terrace_alloc::unmanaged;
use terrace_alloc::zone;
use terrace_control::settings::{Allocator, Settings};
use terrace_os as sys;
use terrace_pager::{Host, Mode, Pager};

#[global_allocator]
static ALLOCATOR: unmanaged::Unmanaged = unmanaged::Unmanaged;

extern "C" fn begin() {
    terrace_alloc::enter_internal();
    processes::register_fork_handlers();
    executed::learn();
    PROCESS.store(sys::process_id(), Relaxed);
    sys::learn_standard_error();
    // By then, descriptor 2 may lead elsewhere.
    std::panic::set_hook(Box::new(|panic| sys::warn(&panic.to_string())));
    // SAFETY: jemalloc's own variable, which is read when it has something to say; this is before
    // the program's first thread.
    unsafe { _rjem_malloc_message = Some(jemalloc_says) };
    if let Err(problem) = set_up() {
        sys::warn(&format!("{problem}: this program runs unmanaged"));
    }
    terrace_alloc::leave_internal();
    // A program with much static data need not allocate anything.
    terrace_alloc::poll();
}

unsafe extern "C" {
    static mut _rjem_malloc_message: Option<extern "C" fn(*mut c_void, *const c_char)>;
}

/// Writes what jemalloc reports by itself. (What the program asks it for goes to wherever
/// descriptor 2 leads: see `entry`.)
extern "C" fn jemalloc_says(_: *mut c_void, text: *const c_char) {
    // SAFETY: jemalloc passes text that ends with a NUL.
    sys::write_to_standard_error(unsafe { CStr::from_ptr(text) }.to_bytes());
}

/// The dynamic loader calls this before the program's own constructors and `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn end() {
    if let Some(pager) = pager() {
        pager.publish_counts();
        // A seccomp filter of the program's might end it for the calls that this takes.
        if !pager.is_shut_down() {
            terrace_alloc::enter_internal();
            grouped::tell_sites(pager);
            terrace_alloc::leave_internal();
        }
    }
}

/// The C library calls this after the program's own destructors, unless it leaves by `_exit` or a
/// signal.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

fn set_up() -> Result<(), String> {
    // SAFETY: reads what the kernel has told this process.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A program that has more rights than its caller (setuid, setgid, file capabilities), and
        // is linked with the library: the environment is that caller's. There the library is only
        // an allocator.
        return Ok(());
    }
    let settings =
        Settings::from_environment(|name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    if !settings.children && settings.run_pid.is_some_and(|run| sys::parent_id() as u32 != run) {
        // --no-children, and this program was executed by a child. The library stays preloaded,
        // because the program itself may execute another in its place. Here it is only an
        // allocator.
        return Ok(());
    }
    let strict = settings.strict;
    if settings.allocator == Allocator::Context {
        grouped::start(Grouping {
            zones: settings.zones.0.into(),
            depth: settings.context_depth.0.into(),
            watched: settings.sites,
        });
    }
    let host = Host {
        enter_internal: terrace_alloc::enter_internal,
        leave_internal: terrace_alloc::leave_internal,
        start_soon: || terrace_alloc::call_soon(start),
        purge_soon: terrace_alloc::purge_soon,
        unmanaged_range: unmanaged::range,
        map_bytes: || grouped::map_bytes() + placement::map_bytes(),
        sampled: grouped::sampled,
        scan_sites: grouped::scan_sites,
    };
    let is_allocator_ours = is_allocator_ours();
    let keeps_its_allocator = settings.allocator == Allocator::System || !is_allocator_ours;
    let pager = Pager::create(settings, host)?;
    zone::attach(pager);
    if !is_allocator_ours {
        pager.make_thread_storage();
    }
    // A program that keeps its own allocator may use rseq areas of its own, and its threads are not
    // met here.
    if !keeps_its_allocator {
        terrace_alloc::begin_rseq();
    }
    if std::env::var_os("LD_AUDIT").is_some_and(|libraries| !libraries.is_empty()) {
        pager.shut_down("LD_AUDIT is set: its libraries have a C library of their own, which could fork unseen, so all memory stays in DRAM");
    }
    segments::manage_static(pager);
    if strict {
        pager.start();
        pager.start_timers();
        if pager.mode() == Mode::Failed {
            // --strict: better not to run than to run unmanaged. Before main nothing can be lost.
            processes::exit_now(125);
        }
    }
    Ok(())
}

/// Whether a caller of `calloc` by name, such as the dynamic loader, gets this library's.
fn is_allocator_ours() -> bool {
    // SAFETY: a name that ends with a NUL.
    let calloc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"calloc".as_ptr()) };
    base_of(calloc) == base_of(is_allocator_ours as *const c_void)
}

/// For measurements under `TERRACE_TRACE_FAULTS=1` (`terrace-bench fault-steps`). Tells when the
/// last fault on the page at `address` was read by its handler, and when each of its steps was
/// over. False if that is not known.
#[unsafe(no_mangle)]
extern "C" fn terrace_fault_times(
    address: usize,
    times: *mut terrace_pager::trace::FaultTimes,
) -> bool {
    let Some(found) = pager().and_then(|pager| pager.fault_times(address)) else { return false };
    // SAFETY: the caller passes room for that many numbers.
    unsafe { times.write(found) };
    true
}

static DLCLOSE: Next = Next::new(c"dlclose");

/// `dlclose`: drops what is known of the library's code.
#[unsafe(no_mangle)]
extern "C" fn dlclose(library: *mut c_void) -> i32 {
    let real = DLCLOSE.get();
    if real.is_null() {
        return -1;
    }
    // SAFETY: the C library's function of this name has this signature.
    let real: extern "C" fn(*mut c_void) -> i32 = unsafe { std::mem::transmute(real) };
    let result = real(library);
    grouped::library_unloaded();
    result
}

/// Starts the pager's threads; see [`terrace_alloc::call_soon`].
fn start() {
    if PROCESS.load(Relaxed) == sys::process_id()
        && let Some(pager) = pager()
    {
        pager.start();
        pager.start_timers();
    }
}
