//! Where the program's calls come in: the recorder behind its lock, its beginning and its end.

use crate::calls::{Thread, context_of, thread};
use crate::recorder::Recorder;
use crate::settings::{Settings, Start};
use std::ffi::CStr;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use terrace_os::ErrnoKept;
use terrace_trace::cache::LINE;

/// Whether there is a recording: false before it begins, after its end, and in a forked child.
static ON: AtomicBool = AtomicBool::new(false);
/// Whether also accesses to the line of a thread's last one are told of.
static ALL: AtomicBool = AtomicBool::new(false);
/// Signals that came and were not heeded yet.
static SIGNALS: AtomicU32 = AtomicU32::new(0);
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// Lets a thread at the recorder, unless it is there already. `None` if it is, or if there is no
/// recording.
fn with<R>(own: &Thread, what: impl FnOnce(&mut Recorder) -> R) -> Option<R> {
    if !ON.load(Relaxed) || own.inside.replace(true) {
        return None;
    }
    // What the program looks at next may be what its last call left there.
    let errno = ErrnoKept::new();
    let done = RECORDER.lock().ok().and_then(|mut recorder| {
        let recorder = recorder.as_mut()?;
        recorder.passed(own.pending.take());
        let done = what(recorder);
        if let Some(error) = recorder.broken() {
            ON.store(false, Relaxed);
            say(&format!("the recording ends here, it cannot be written: {error}"));
        }
        Some(done)
    });
    drop(errno);
    own.inside.set(false);
    if SIGNALS.load(Relaxed) > 0 {
        heed_signals();
    }
    done
}

/// Writes a line to standard error. Errors are ignored: it may be closed.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "terrace: recorder: {what}");
}

/// Whether the recorder is at work on this thread.
#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_inside() -> bool {
    thread(|own| own.inside.get())
}

/// Tells of an access of the program's.
#[inline(always)]
pub fn access(address: usize, bytes: usize, write: bool) {
    if ON.load(Relaxed) {
        thread(|own| {
            let (first, last) = (address as u64 / LINE, (address + bytes.max(1) - 1) as u64 / LINE);
            if first == last && first == own.line.get() && !own.inside.get() {
                own.pending.set(own.pending.get() + 1);
            } else if bytes > 0 {
                tell(own, address, bytes, write, last);
            }
        });
    }
}

#[inline(never)]
fn tell(own: &Thread, address: usize, bytes: usize, write: bool, last: u64) {
    with(own, |recorder| {
        recorder.access(address as u64, bytes as u64, write);
        own.line.set(if ALL.load(Relaxed) { u64::MAX } else { last });
    });
}

#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_reads(from: usize, bytes: usize) {
    access(from, bytes, false);
}

#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_writes(to: usize, bytes: usize) {
    access(to, bytes, true);
}

fn made(recorder: &mut Recorder, object: usize, size: usize, usable: usize, return_address: usize) {
    let Some(depth) = recorder.depth() else { return };
    let (frames, count) = context_of(return_address, depth);
    recorder.born(object as u64, size as u64, usable.max(size) as u64, &frames[..count]);
}

#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_born(
    object: usize,
    size: usize,
    usable: usize,
    return_address: usize,
) {
    thread(|own| with(own, |recorder| made(recorder, object, size, usable, return_address)));
}

#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_dies(object: usize) {
    thread(|own| with(own, |recorder| recorder.dies(object as u64)));
}

/// A realloc begins: another thread may be given the address before it ends. Returns the object's
/// number, which [`terrace_recorder_arrives`] wants together with the address.
#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_leaves(object: usize) -> u64 {
    thread(|own| with(own, |recorder| recorder.leaves(object as u64))).map_or(0, u64::from)
}

/// A realloc ended. The object `leaver`, which was at `before`, is at `object` now; null if it is
/// gone.
#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_arrives(
    leaver: u64,
    before: usize,
    object: usize,
    size: usize,
    usable: usize,
    return_address: usize,
) {
    thread(|own| {
        with(own, |recorder| {
            let id = leaver as u32;
            if id != 0 && object == before {
                recorder.stays(id, size as u64, usable.max(size) as u64);
                return;
            }
            if id != 0 {
                recorder.left(id);
            }
            if object != 0 {
                made(recorder, object, size, usable, return_address);
            }
        })
    });
}

/// Begins counting, at the program's call.
#[unsafe(no_mangle)]
extern "C" fn terrace_record_start() {
    thread(|own| with(own, |recorder| recorder.start()));
}

/// Ends and writes the recording, at the program's call: what comes now does not belong to it.
#[unsafe(no_mangle)]
extern "C" fn terrace_record_stop() {
    finish();
}

#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_ends() {
    finish();
}

/// Begins the recording, before the program's own constructors (shim/malloc.c).
#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_begins() {
    thread(|own| {
        own.inside.set(true);
        let begun =
            Settings::read(|name| std::env::var(name).ok()).and_then(|settings| match settings {
                Some(settings) => {
                    begin(settings)?;
                    Ok(true)
                }
                None => Ok(false),
            });
        own.inside.set(false);
        match begun {
            Ok(begun) => ON.store(begun, Release),
            Err(why) => {
                say(&why);
                // What would run without its recording would only look as if it had worked.
                terrace_os::exit_process(125)
            }
        }
    });
}

fn begin(settings: Settings) -> Result<(), String> {
    let (start, shown) = (settings.start, settings.file.display().to_string());
    let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let command =
        command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let command: Vec<String> =
        command.collect::<Vec<_>>().into_iter().rev().skip(1).rev().collect();
    let recorder = Recorder::new(settings, std::process::id(), command, name_of)
        .map_err(|error| format!("{shown}: {error}"))?;
    ALL.store(recorder.wants_all(), Relaxed);
    if let Ok(mut slot) = RECORDER.lock() {
        *slot = Some(recorder);
    }
    // Programs that this one executes would write over its recording.
    // SAFETY: there is one thread, so that nothing else reads the environment.
    unsafe { std::env::remove_var("TERRACE_RECORD") };
    // SAFETY: plain registrations; the handlers are functions.
    unsafe {
        libc::atexit(finish);
        libc::pthread_atfork(None, None, Some(in_child));
    }
    if start == Start::Signal {
        // SAFETY: the handler adds to an atomic number and does nothing else.
        let _ = unsafe { terrace_os::handle_signal(libc::SIGUSR2, signalled) };
    }
    Ok(())
}

/// Ends recording in a forked child, which shares the file with its parent.
extern "C" fn in_child() {
    ON.store(false, Relaxed);
}

extern "C" fn signalled(_: i32) {
    SIGNALS.fetch_add(1, Relaxed);
}

/// Heeds signals: the first begins counting, the next ends the recording.
#[cold]
fn heed_signals() {
    static HEEDED: AtomicU32 = AtomicU32::new(0);
    for _ in 0..SIGNALS.swap(0, Relaxed) {
        match HEEDED.fetch_add(1, Relaxed) {
            0 => terrace_record_start(),
            _ => finish(),
        }
    }
}

extern "C" fn finish() {
    thread(|own| {
        if own.inside.replace(true) {
            return;
        }
        let errno = ErrnoKept::new();
        if ON.swap(false, Relaxed)
            && let Ok(Some(mut recorder)) = RECORDER.lock().map(|mut recorder| recorder.take())
        {
            recorder.passed(own.pending.take());
            if let Err(error) = recorder.finish(resident) {
                say(&format!("the recording cannot be written: {error}"));
            }
        }
        drop(errno);
        own.inside.set(false);
    });
}

/// Whether a page is in memory.
fn resident(address: u64) -> bool {
    terrace_os::is_in_memory(address as usize)
}

/// What the loader knows of an address, as far as it matters here (glibc's `struct
/// dl_find_object`).
#[repr(C)]
struct Found {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: *const LinkMap,
    /// The rest of the structure, on any architecture.
    more: [usize; 16],
}

/// The public part of glibc's `struct link_map`.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const libc::c_char,
}

unsafe extern "C" {
    /// Finds the object at an address. It takes no lock, unlike dladdr: another thread may hold the
    /// loader's while it waits for ours.
    fn _dl_find_object(address: usize, found: *mut Found) -> i32;
}

/// Name of an address, such as `/path/file+0x1234`: where the file is, and what addr2line takes.
fn name_of(address: usize) -> String {
    // SAFETY: fills in what it is given, for which there is room; a library's name lives as long as
    // it is loaded, and it has just called.
    let (base, path) = unsafe {
        let mut found: Found = std::mem::zeroed();
        if _dl_find_object(address, &raw mut found) != 0 || found.link_map.is_null() {
            return format!("{address:#x}");
        }
        let map = &*found.link_map;
        (
            map.address,
            if map.name.is_null() { c"" } else { CStr::from_ptr(map.name) }
                .to_string_lossy()
                .into_owned(),
        )
    };
    // The program itself has no name there.
    let path = if path.is_empty() {
        std::fs::read_link("/proc/self/exe").unwrap_or_default()
    } else {
        path.into()
    };
    format!("{}+{:#x}", path.display(), address.wrapping_sub(base))
}
