//! The probe of `terrace-bench contexts`, preloaded into any program. For each allocation it writes
//! down:
//!
//! - the innermost ten return addresses, as the compiler's own unwinder finds them (two
//!   microseconds each; what a debugger would say);
//! - the context numbers that Terrace's allocator would go by.
//!
//! The program keeps its own allocator.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use terrace_context::{self as context, Caller, Stack, unwind};

/// Frames that make contexts, in the order of a record; 0: the return address and the height of the
/// stack.
const DEPTHS: [usize; 8] = [0, 1, 2, 3, 4, 6, 10, 16];
/// Frames of a true context.
const TRUE_DEPTH: usize = 10;
/// The variable with the path that files begin with. A file consists of records of nine u64 each:
/// the hash of a true context (0: none was found) and eight contexts.
const VARIABLE: &CStr = c"TERRACE_CONTEXTS";

thread_local! {
    /// Inside the probe, which may itself allocate.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The file of this process (-1 before the first record and where there is none), and records that
/// are not written yet.
struct Records {
    process: u32,
    file: c_int,
    waiting: Vec<u64>,
}

static RECORDS: Mutex<Records> = Mutex::new(Records { process: 0, file: -1, waiting: Vec::new() });
const WAITING_MAX: usize = 9 * 4096;

impl Records {
    /// A file for each process and program: forked children and what they execute have their own.
    fn open(&mut self) {
        let process = std::process::id();
        if self.process == process {
            return;
        }
        self.process = process;
        self.waiting.clear();
        context::learn_stacks();
        unwind::find_objects();
        // SAFETY: a terminated name; the answer is read at once.
        let prefix = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        self.file = -1;
        if prefix.is_null() {
            return;
        }
        // SAFETY: the environment's strings are terminated.
        let prefix = unsafe { CStr::from_ptr(prefix) }.to_string_lossy();
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let path = format!("{prefix}.{}.{process}\0", program.as_deref().unwrap_or("unknown"));
        // SAFETY: a terminated path.
        self.file = unsafe {
            libc::open(
                path.as_ptr().cast(),
                libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC,
                0o600,
            )
        };
    }

    fn write(&mut self) {
        let bytes = size_of_val(&self.waiting[..]);
        // SAFETY: that many bytes of numbers.
        let written = unsafe { libc::write(self.file, self.waiting.as_ptr().cast(), bytes) };
        if written != bytes as isize {
            self.file = -1;
        }
        self.waiting.clear();
    }
}

/// Hash of the innermost return addresses, from this one on.
fn true_context(return_address: usize) -> u64 {
    // The probe's own frames are before them.
    let mut frames = [std::ptr::null_mut::<c_void>(); TRUE_DEPTH + 16];
    // SAFETY: fills in what it is given.
    let len = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as c_int) } as usize;
    let Some(first) = frames[..len].iter().position(|frame| *frame as usize == return_address)
    else {
        return 0;
    };
    let hash =
        |hash: u64, frame: &*mut c_void| (hash ^ *frame as u64).wrapping_mul(0x0100_0000_01b3);
    frames[first..len.min(first + TRUE_DEPTH)].iter().fold(0xcbf2_9ce4_8422_2325, hash)
}

/// Writes one allocation down.
extern "C" fn record(return_address: usize, frame: usize, frame_pointer: usize) {
    if INSIDE.replace(true) {
        return;
    }
    if let Ok(mut records) = RECORDS.lock() {
        records.open();
        if records.file >= 0 {
            let caller = Caller { return_address, frame, frame_pointer };
            let stack = Stack::of_this_thread();
            records.waiting.push(true_context(return_address));
            for depth in DEPTHS {
                // One thread at a time is here.
                context::set_depth(depth);
                records.waiting.push(context::id(&stack, caller));
            }
            if records.waiting.len() >= WAITING_MAX {
                records.write();
            }
        }
    }
    INSIDE.set(false);
}

extern "C" fn finish() {
    if let Ok(mut records) = RECORDS.lock()
        && records.process == std::process::id()
        && records.file >= 0
    {
        records.write();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

/// The program's own function behind a function of the probe, once it was looked up.
struct Next {
    name: &'static CStr,
    found: AtomicUsize,
}

impl Next {
    const fn of(name: &'static CStr) -> Next {
        Next { name, found: AtomicUsize::new(0) }
    }

    extern "C" fn address(&self) -> usize {
        let found = self.found.load(Relaxed);
        if found != 0 {
            return found;
        }
        // SAFETY: a terminated name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.found.store(found, Relaxed);
        found
    }
}

macro_rules! recorded {
    ($($public:ident, $next:ident, $name:literal;)*) => {$(
        static $next: Next = Next::of($name);

        /// Records the call, and goes on as the program's own, with all of its arguments.
        // SAFETY: keeps the argument registers and the alignment of the stack over two calls, then
        // jumps.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $public() {
            naked_asm!(
                ".cfi_startproc",
                "push rdi", "push rsi", "push rdx", ".cfi_adjust_cfa_offset 24",
                // Three pushes and a return address: aligned.
                "mov rdi, [rsp + 24]", "lea rsi, [rsp + 32]", "mov rdx, rbp",
                "call {record}",
                "lea rdi, [rip + {next}]",
                "call {address}",
                "pop rdx", "pop rsi", "pop rdi", ".cfi_adjust_cfa_offset -24",
                "jmp rax",
                ".cfi_endproc",
                record = sym record,
                next = sym $next,
                address = sym Next::address,
            );
        }
    )*};
}

recorded! {
    malloc, MALLOC, c"malloc";
    calloc, CALLOC, c"calloc";
    realloc, REALLOC, c"realloc";
    posix_memalign, POSIX_MEMALIGN, c"posix_memalign";
    aligned_alloc, ALIGNED_ALLOC, c"aligned_alloc";
    _Znwm, NEW, c"_Znwm";
    _Znam, NEW_ARRAY, c"_Znam";
}
