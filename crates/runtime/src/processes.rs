//! fork in all its forms, and the calls after which our threads could no longer do their work.
//!
//! Our fork handlers must be the first ever registered. Then they run last before the fork: every
//! other library, jemalloc included, holds its locks, and no thread can be inside our hooks. And
//! they run first after it in the child, before any other library touches memory that may be
//! evicted. Hence the interposed `__register_atfork`.
//!
//! In the child, before our handlers, the C library touches memory of its own (glibc 2.36, `fork`
//! and `reclaim_stacks`). If that were evicted, it would read as zeros, and stay zeros:
//! - the locks of open streams, which we touch before the fork;
//! - the list of fork handlers, tables of thread-specific values, and the descriptions of threads
//!   on stacks of the program. We make sure that these are never evicted.

use crate::current::{PROCESS, pager};
use crate::next::{Internal, Next, no_such_call, result};
use crate::{executed, mappings, pin, privileges};
use std::arch::naked_asm;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use terrace_alloc::grouped;
use terrace_alloc::placement;
use terrace_alloc::unmanaged;
use terrace_alloc::zone;
use terrace_os as sys;
use terrace_pager::locking;

type Handler = Option<extern "C" fn()>;
type RegisterAtfork = extern "C" fn(Handler, Handler, Handler, *mut c_void) -> i32;

static REGISTER_ATFORK: Next = Next::new(c"__register_atfork");
static FORK: Next = Next::new(c"fork");
static FORK_ALONE: Next = Next::new(c"_Fork");
static CLONE: Next = Next::new(c"clone");
static SYSCALL: Next = Next::new(c"syscall");
static DLMOPEN: Next = Next::new(c"dlmopen");
static DLOPEN: Next = Next::new(c"dlopen");
static SYSTEM: Next = Next::new(c"system");
static POPEN: Next = Next::new(c"popen");
static PTHREAD_CREATE: Next = Next::new(c"pthread_create");
static PTHREAD_SETSPECIFIC: Next = Next::new(c"pthread_setspecific");
static TSS_SET: Next = Next::new(c"tss_set");

/// Registers our handlers, once.
pub fn register_fork_handlers() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, AcqRel) {
        return;
    }
    // Functions that a child or our own threads call there must be looked up by then.
    for function in
        [&CLONE, &FORK, &SYSCALL, &SYSTEM, &POPEN, &PTHREAD_CREATE, &PTHREAD_SETSPECIFIC]
    {
        function.get();
    }
    let real = REGISTER_ATFORK.get();
    if !real.is_null() {
        // SAFETY: the C library's function of this name has this signature.
        let real: RegisterAtfork = unsafe { std::mem::transmute(real) };
        real(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
            std::ptr::null_mut(),
        );
    }
}

/// The function that `pthread_atfork` calls (which is linked into each library statically).
#[unsafe(no_mangle)]
extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> i32 {
    register_fork_handlers();
    let real = REGISTER_ATFORK.get();
    if real.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: as above.
    let real: RegisterAtfork = unsafe { std::mem::transmute(real) };
    // The list of handlers is read in the child to find ours. If it outgrows the C library's own
    // room, it must not be evicted.
    let _unmanaged = Internal::enter();
    let error = real(prepare, parent, child, library);
    if prepare.is_some_and(|prepare| {
        std::ptr::fn_addr_eq(prepare, _rjem_je_jemalloc_prefork as extern "C" fn())
    }) {
        // Next to it, before any of the program's.
        real(Some(lock_streams), Some(unlock_streams), Some(reset_streams), std::ptr::null_mut());
    }
    error
}

unsafe extern "C" {
    /// jemalloc's own handler.
    safe fn _rjem_je_jemalloc_prefork();
    safe fn terrace_lock_streams();
    safe fn terrace_unlock_streams();
    safe fn terrace_reset_streams();
}

/// Locks the list of streams, before jemalloc's handler and ours, after those of the program. A
/// thread that has locked the list (`fflush(NULL)`, `exit`) allocates under it. So a fork must take
/// it before the allocator's locks, as the C library does with its own. The list's lock is
/// recursive: the C library takes it again.
extern "C" fn lock_streams() {
    terrace_lock_streams();
}

extern "C" fn unlock_streams() {
    terrace_unlock_streams();
}

/// Resets the streams' locks in a child. The C library has done this already if there were several
/// threads before.
extern "C" fn reset_streams() {
    terrace_reset_streams();
}

/// Keys below this have their values in the thread's own description (PTHREAD_KEY_2NDLEVEL_SIZE of
/// the C library); tables of further ones are allocated.
const KEYS_WITHOUT_TABLE: u32 = 32;
type SetSpecific = extern "C" fn(u32, *const c_void) -> i32;

/// Sets a thread-specific value. In a forked child the C library clears the tables of all other
/// threads before any handler runs. So they must not be evicted.
fn set_specific(real: &Next, key: u32, value: *const c_void) -> i32 {
    let real = real.get();
    if real.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the C library's functions that are passed here have this signature.
    let real: SetSpecific = unsafe { std::mem::transmute(real) };
    let _unmanaged = (key >= KEYS_WITHOUT_TABLE).then(Internal::enter);
    real(key, value)
}

/// `pthread_setspecific`.
#[unsafe(no_mangle)]
extern "C" fn pthread_setspecific(key: u32, value: *const c_void) -> i32 {
    set_specific(&PTHREAD_SETSPECIFIC, key, value)
}

/// `tss_set`, C11's name for the same. An error is 2 there, and no key of the C library's fails
/// otherwise.
#[unsafe(no_mangle)]
extern "C" fn tss_set(key: u32, value: *const c_void) -> i32 {
    set_specific(&TSS_SET, key, value)
}

/// Bytes at the top of a thread's stack that hold the C library's description of the thread. They
/// also hold the thread-local variables that it and we use in a child before anything is
/// registered. The program's own, which lie between, are not counted.
const DESCRIPTION_BYTES: usize = 64 << 10;

/// `pthread_create`. If the program provides the stack, and with it the place of the thread's
/// description, that place must not be evicted. The C library changes its list of threads in a
/// forked child before any handler runs; see also [`pin`].
#[unsafe(no_mangle)]
extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    main: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> i32 {
    type Create = extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void,
    ) -> i32;
    let real = PTHREAD_CREATE.get();
    if real.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the C library's function of this name has this signature.
    let real: Create = unsafe { std::mem::transmute(real) };
    if let Some(len) = stack_len(attributes) {
        grouped::will_have_stack(len);
    }
    if let Some(top) = top_of_own_stack(attributes) {
        let len = (DESCRIPTION_BYTES + sys::thread_locals_bytes()).min(top);
        pin::pin(top - len, len);
    }
    let make = || real(thread, attributes, main, argument);
    let error = match terrace_pager::is_own_thread(main) {
        true => make(),
        false => with_tasks_given_back(make, |error| *error == libc::EAGAIN),
    };
    if error == 0
        && let Some(pager) = pager()
    {
        // SAFETY: the C library has written the new thread's identity there.
        pager.note_thread(unsafe { *thread });
    }
    error
}

/// Length of a thread's stack, bytes, if the attributes have one.
fn stack_len(attributes: *const libc::pthread_attr_t) -> Option<usize> {
    let mut len = 0;
    // SAFETY: the program's valid attributes; the result is ours.
    (!attributes.is_null() && unsafe { libc::pthread_attr_getstacksize(attributes, &mut len) } == 0)
        .then_some(len)
}

/// The end of a stack that the program itself provides.
fn top_of_own_stack(attributes: *const libc::pthread_attr_t) -> Option<usize> {
    if attributes.is_null() {
        return None;
    }
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the program's valid attributes; the results are ours.
    let error = unsafe { libc::pthread_attr_getstack(attributes, &mut start, &mut len) };
    // Without a stack, the attributes say that it ends at 0.
    Some((start as usize).wrapping_add(len)).filter(|top| error == 0 && *top != 0)
}

unsafe extern "C" {
    safe fn terrace_touch_streams();
}

/// Signals that the forking thread had blocked. The lock of the tracked sites guards it, which
/// every fork takes first and opens last.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// Takes the locks, in this order:
/// - jemalloc's (its handlers, registered after ours, ran before this one);
/// - those of grouped and placed objects;
/// - the zones';
/// - the pager's;
/// - the unmanaged allocator's, which the pager itself uses.
extern "C" fn before_fork() {
    lock_allocator();
    // Under the list's lock, which this thread has: see `lock_streams`.
    lock_for_any_fork(|| terrace_touch_streams());
}

fn lock_allocator() {
    lock_watch();
    grouped::lock_for_fork();
    placement::lock_for_fork();
}

/// Takes the locks before a fork that the C library does not make, or makes without handlers: it
/// touches no streams in the child. (This must not wait for their list while it holds the
/// allocator's locks.)
fn before_any_fork() {
    lock_watch();
    lock_for_any_fork(|| ());
}

/// Takes the first lock of all. Signals are blocked before: a handler might fork too, and wait for
/// a lock of its own thread.
fn lock_watch() {
    let signals = sys::block_signals();
    grouped::lock_watch_for_fork();
    SIGNALS.store(signals, Relaxed);
}

fn lock_for_any_fork(touch: fn()) {
    terrace_alloc::enter_internal();
    zone::lock_for_fork();
    if let Some(pager) = pager() {
        pager.fork_prepare(touch);
    }
    unmanaged::lock_for_fork();
}

extern "C" fn after_fork_in_parent() {
    unlock_after_any_fork();
    // SAFETY: this thread took the locks in `before_fork`.
    unsafe {
        placement::unlock_after_fork();
        grouped::unlock_after_fork();
    }
    unlock_watch();
}

fn after_any_fork_in_parent() {
    unlock_after_any_fork();
    unlock_watch();
}

fn unlock_watch() {
    let signals = SIGNALS.load(Relaxed);
    // SAFETY: this thread, or in the child its parent's, took the lock in `lock_watch`.
    unsafe { grouped::unlock_watch_after_fork() };
    sys::restore_signals(signals);
}

fn unlock_after_any_fork() {
    // SAFETY: this thread took the locks in `lock_for_any_fork`.
    unsafe { unmanaged::unlock_after_fork() };
    if let Some(pager) = pager() {
        pager.fork_parent();
    }
    // SAFETY: as above.
    unsafe { zone::unlock_after_fork() };
    terrace_alloc::leave_internal();
}

extern "C" fn after_fork_in_child() {
    in_child();
    grouped_in_child();
    if let Some(pager) = pager() {
        pager.start_timers();
    }
}

/// Opens the rest of the locks that [`before_fork`] took, and unblocks signals.
fn grouped_in_child() {
    // SAFETY: the child is a copy of the thread that took the locks in `before_fork`.
    unsafe {
        placement::unlock_after_fork();
        grouped::unlock_after_fork();
    }
    sys::restore_signals(SIGNALS.load(Relaxed));
}

fn in_child() {
    // SAFETY: the child is a copy of the thread that took the locks in `before_fork`.
    unsafe {
        unmanaged::unlock_after_fork();
        zone::unlock_after_fork();
        grouped::unlock_watch_after_fork();
    }
    grouped::forget_samples();
    PROCESS.store(sys::process_id(), Relaxed);
    if let Some(pager) = pager() {
        pager.fork_child();
    }
    terrace_alloc::leave_internal();
}

/// Calls `make`, which makes a process or a thread. Calls it once more if the kernel refuses it a
/// task that Terrace can give back.
pub(crate) fn with_tasks_given_back<R>(make: impl Fn() -> R, refused: impl Fn(&R) -> bool) -> R {
    let made = make();
    match refused(&made) && pager().is_some_and(|pager| pager.release_tasks()) {
        true => make(),
        false => made,
    }
}

/// Whether a call that returns a process id was refused for want of tasks.
fn lacks_task(process: &i32) -> bool {
    *process == -1 && sys::thread_errno() == sys::Errno::EAGAIN
}

/// `fork`. Its handlers are ours, so this only handles a fork that the kernel refuses.
#[unsafe(no_mangle)]
extern "C" fn fork() -> i32 {
    let real = FORK.get();
    if real.is_null() {
        return no_such_call(-1);
    }
    // SAFETY: the C library's function of this name has this signature.
    let real: extern "C" fn() -> i32 = unsafe { std::mem::transmute(real) };
    with_tasks_given_back(|| real(), lacks_task)
}

/// `system`, whose child the C library makes itself.
#[unsafe(no_mangle)]
extern "C" fn system(command: *const c_char) -> i32 {
    let real = SYSTEM.get();
    if real.is_null() {
        return no_such_call(-1);
    }
    // SAFETY: the C library's function of this name has this signature.
    let real: extern "C" fn(*const c_char) -> i32 = unsafe { std::mem::transmute(real) };
    with_tasks_given_back(|| real(command), lacks_task)
}

/// `popen`, whose child the C library makes itself.
#[unsafe(no_mangle)]
extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE {
    let real = POPEN.get();
    if real.is_null() {
        return no_such_call(std::ptr::null_mut());
    }
    type Open = extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
    // SAFETY: the C library's function of this name has this signature.
    let real: Open = unsafe { std::mem::transmute(real) };
    let refused = |stream: &*mut libc::FILE| stream.is_null() && lacks_task(&-1);
    with_tasks_given_back(|| real(command, kind), refused)
}

/// Runs `fork`, which makes a child without calling fork handlers, between ours. The locks of
/// grouped objects stay as they are, as jemalloc's do. A signal handler that interrupted their
/// holder may be forking, and such a child may not allocate.
fn forking(fork: impl Fn() -> i32) -> i32 {
    let make = || {
        before_any_fork();
        let child = fork();
        if child == 0 {
            in_child();
            sys::restore_signals(SIGNALS.load(Relaxed));
        } else {
            after_any_fork_in_parent()
        }
        child
    };
    with_tasks_given_back(make, lacks_task)
}

/// `_Fork`: fork without handlers, for signal handlers.
#[unsafe(no_mangle)]
extern "C" fn _Fork() -> i32 {
    let real = FORK_ALONE.get();
    if real.is_null() {
        return no_such_call(-1);
    }
    // SAFETY: the C library's function of this name has this signature.
    let real: extern "C" fn() -> i32 = unsafe { std::mem::transmute(real) };
    forking(|| real())
}

type ChildMain = extern "C" fn(*mut c_void) -> i32;

struct CloneStart {
    main: ChildMain,
    argument: *mut c_void,
}

/// Entry point of a child made by `clone` without shared memory. Its stack is a copy of its
/// parent's memory, `start` included.
extern "C" fn clone_begins(start: *mut c_void) -> i32 {
    // SAFETY: `clone` below passes a CloneStart that lives in the parent's frame, of which this is
    // a copy.
    let start = unsafe { &*start.cast::<CloneStart>() };
    in_child();
    grouped_in_child();
    // No return: the C library would end this thread only, and our threads would live on.
    exit_now((start.main)(start.argument))
}

/// `clone`. Without CLONE_VM it is a fork; with it the child shares our memory and our threads.
#[unsafe(no_mangle)]
extern "C" fn clone(
    main: ChildMain,
    stack: *mut c_void,
    flags: i32,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> i32 {
    type Clone = extern "C" fn(
        ChildMain,
        *mut c_void,
        i32,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
    ) -> i32;
    let real = CLONE.get();
    if real.is_null() {
        return no_such_call(-1);
    }
    // SAFETY: the C library's function of this name, its variadic arguments in their places.
    let real: Clone = unsafe { std::mem::transmute(real) };
    if flags & libc::CLONE_VM != 0 {
        // The kernel clears the word as the child ends.
        if flags & libc::CLONE_CHILD_CLEARTID != 0 {
            pin::pin(child_tid as usize, size_of::<libc::pid_t>());
        }
        let make = || real(main, stack, flags, argument, parent_tid, tls, child_tid);
        return with_tasks_given_back(make, lacks_task);
    }
    let start = CloneStart { main, argument };
    let make = || {
        lock_allocator();
        lock_for_any_fork(|| ());
        bring_for_child(flags as usize, child_tid as usize);
        let start = (&raw const start).cast_mut().cast();
        let child = real(clone_begins, stack, flags, start, parent_tid, tls, child_tid);
        after_fork_in_parent();
        child
    };
    with_tasks_given_back(make, lacks_task)
}

/// Restores the page in which the kernel writes a child's number in the child. That happens before
/// anything is registered there, so the page must be in place when the child is made. The gate is
/// closed, so the child has what a handler restores now.
fn bring_for_child(flags: usize, child_tid: usize) {
    let writes = flags & (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as usize != 0;
    // Where nothing is evicted, a filter may forbid the check.
    if writes && pager().is_some_and(|pager| !pager.is_shut_down()) {
        sys::peek(child_tid, &mut [0]);
    }
}

/// The arguments of a clone by number.
#[derive(Default)]
struct CloneArguments {
    flags: usize,
    child_tid: usize,
    stack: usize,
}

impl CloneArguments {
    /// The arguments of SYS_clone3. `None` if the kernel will refuse the call. If they cannot be
    /// read for another reason (a filter, say), it counts as a fork with a stack.
    fn of_clone3(structure: usize, size: usize) -> Option<CloneArguments> {
        /// CLONE_ARGS_SIZE_VER0: eight numbers.
        const LEAST: usize = 64;
        let mut numbers = [[0u8; 8]; 8];
        if size < LEAST {
            return None;
        }
        match sys::try_peek(structure, numbers.as_flattened_mut()) {
            Ok(()) => {
                let [flags, _, child_tid, _, _, stack, _, _] = numbers.map(usize::from_ne_bytes);
                Some(CloneArguments { flags, child_tid, stack })
            }
            Err(sys::Errno::EFAULT) => None,
            Err(_) => Some(CloneArguments { stack: usize::MAX, ..CloneArguments::default() }),
        }
    }

    fn shares_memory(&self) -> bool {
        self.flags & libc::CLONE_VM as usize != 0
    }
}

/// Where `syscall` goes on, for a clone by number whose child has a stack of its own. The child
/// returns there, and not through a function of ours, whose frame it does not have. Null for all
/// other calls.
///
/// A child with memory of its own bypasses us from its first instruction, so it must need nothing:
/// everything is restored first, and stays.
extern "C" fn goes_on_past_us(number: libc::c_long, a: usize, b: usize) -> *mut c_void {
    let arguments = match number {
        libc::SYS_clone3 => CloneArguments::of_clone3(a, b),
        _ => Some(CloneArguments { flags: a, stack: b, ..CloneArguments::default() }),
    };
    let Some(arguments) = arguments.filter(|arguments| arguments.stack != 0) else {
        return std::ptr::null_mut();
    };
    let _errno = sys::ErrnoKept::new();
    if !arguments.shares_memory()
        && let Some(pager) = pager()
    {
        pager.shut_down("the program forks, by number, onto a stack of its own: its memory stays in DRAM from now on");
    }
    SYSCALL.get()
}

/// `syscall`. See [`goes_on_past_us`] and [`syscall_by_number`].
// SAFETY: the arguments are kept over the one call, and a tail jump passes them on as they are;
// both targets have this signature.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "cmp rdi, {clone}",
        "je 3f",
        "cmp rdi, {clone3}",
        "je 3f",
        "2:",
        "jmp {by_number}",
        "3:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {goes_on_past_us}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "je 2b",
        "jmp rax",
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        by_number = sym syscall_by_number,
        goes_on_past_us = sym goes_on_past_us,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "cmp x0, #{clone}",
        "b.eq 3f",
        "cmp x0, #{clone3}",
        "b.eq 3f",
        "2:",
        "b {by_number}",
        "3:",
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "bl {goes_on_past_us}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "cbz x16, 2b",
        "br x16",
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        by_number = sym syscall_by_number,
        goes_on_past_us = sym goes_on_past_us,
    );
}

/// `dlmopen`. See [`where_to_open`]. A jump, because the C library looks at its caller.
// SAFETY: the arguments are kept over the one call, and a tail jump passes them on as they are.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlmopen() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {where_to_open}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        where_to_open = sym where_to_open,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {where_to_open}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, xzr",
        "ret",
        where_to_open = sym where_to_open,
    );
}

/// `dlopen`, without RTLD_DEEPBIND. A library loaded with that flag frees memory from our `malloc`
/// by the C library's `free`, and the other way round. A jump, because the C library looks at its
/// caller.
// SAFETY: the arguments are kept over the one call, and a tail jump passes them on, without the one
// bit.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next_dlopen}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, {others}",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        next_dlopen = sym next_dlopen,
        others = const !libc::RTLD_DEEPBIND,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {next_dlopen}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "and w1, w1, #{others}",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, xzr",
        "ret",
        next_dlopen = sym next_dlopen,
        others = const !libc::RTLD_DEEPBIND as u32,
    );
}

extern "C" fn next_dlopen() -> *mut c_void {
    DLOPEN.get()
}

/// The C library's `dlmopen`. A library loaded into a namespace of its own has a C library of its
/// own, which forks without our handlers. So everything is restored first, and stays.
extern "C" fn where_to_open(namespace: libc::c_long) -> *mut c_void {
    /// LM_ID_BASE.
    const OF_THE_PROGRAM: libc::c_long = 0;
    if namespace != OF_THE_PROGRAM
        && let Some(pager) = pager()
    {
        pager.shut_down(
            "the program loads a library into a namespace of its own (dlmopen), where another C library could fork unseen: its memory \
             stays in DRAM from now on",
        );
    }
    DLMOPEN.get()
}

/// `mlockall`: see [`terrace_pager::Pager::lock_all`].
#[unsafe(no_mangle)]
extern "C" fn mlockall(flags: i32) -> i32 {
    // SAFETY: the program's own call, passed on, in two parts perhaps.
    let act =
        |flags: i32| unsafe { sys::forward(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) };
    result(match pager() {
        Some(pager) => pager.lock_all(flags, act),
        None => act(flags),
    }) as i32
}

/// `munlockall`.
#[unsafe(no_mangle)]
extern "C" fn munlockall() -> i32 {
    locking::forget_future();
    // SAFETY: the program's own call, passed on.
    result(unsafe { sys::forward(libc::SYS_munlockall, [0; 6]) }) as i32
}

/// `prctl`: a seccomp filter may forbid what our threads need.
#[unsafe(no_mangle)]
extern "C" fn prctl(option: i32, a: usize, b: usize, c: usize, d: usize) -> i32 {
    if option == libc::PR_SET_SECCOMP {
        match a as u32 {
            libc::SECCOMP_MODE_STRICT => stop_threads_before_filter(),
            libc::SECCOMP_MODE_FILTER if may_be_filter(b) => stop_threads_before_filter(),
            _ => {}
        }
    }
    privileges::before_prctl(option, a);
    // SAFETY: the program's own call, passed on.
    result(unsafe { sys::forward(libc::SYS_prctl, [option as usize, a, b, c, d, 0]) }) as i32
}

/// Whether the program gives the kernel a filter here (`struct sock_fprog`). Code that asks whether
/// filters are possible, as libraries do, passes an address at which nothing is, and loads none.
fn may_be_filter(address: usize) -> bool {
    sys::try_peek(address, &mut [0; 16]) != Err(sys::Errno::EFAULT)
}

/// Ends our threads: a filter may forbid the calls that they make.
fn stop_threads_before_filter() {
    if let Some(pager) = pager() {
        pager.shut_down("the program loads a seccomp filter, which could stop our system calls: its memory stays in DRAM from now on");
    }
}

/// `syscall`: a call that is interposed by name must not slip through by number.
extern "C" fn syscall_by_number(
    number: libc::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> libc::c_long {
    let forward = || {
        // SAFETY: the program's own call, passed on.
        result(unsafe { sys::forward(number, [a, b, c, d, e, f]) })
    };
    match number {
        libc::SYS_seccomp => {
            match a as u32 {
                libc::SECCOMP_SET_MODE_STRICT => stop_threads_before_filter(),
                libc::SECCOMP_SET_MODE_FILTER if may_be_filter(c) => stop_threads_before_filter(),
                _ => {}
            }
            forward()
        }
        libc::SYS_futex => result(pin::futex([a, b, c, d, e, f])),
        libc::SYS_mlockall => libc::c_long::from(mlockall(a as i32)),
        libc::SYS_munlockall => libc::c_long::from(munlockall()),
        libc::SYS_prctl => libc::c_long::from(prctl(a as i32, b, c, d, e)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => libc::c_long::from(forking(|| forward() as i32)),
        // Only a call whose child continues here comes this far: others bring a stack.
        libc::SYS_clone => {
            cloning(CloneArguments { flags: a, child_tid: child_tid_of(d, e), stack: b }, forward)
        }
        libc::SYS_clone3 => match CloneArguments::of_clone3(a, b) {
            Some(arguments) => cloning(arguments, forward),
            None => forward(),
        },
        libc::SYS_execve | libc::SYS_execveat => executed::by_number(number, [a, b, c, d, e, f]),
        libc::SYS_mmap
        | libc::SYS_munmap
        | libc::SYS_mremap
        | libc::SYS_mprotect
        | libc::SYS_pkey_mprotect
        | libc::SYS_madvise
        | libc::SYS_process_madvise
        | libc::SYS_shmat
        | libc::SYS_brk
        | libc::SYS_ioctl => mappings::by_number(number, [a, b, c, d, e, f]),
        _ => {
            privileges::before_call(number, a, b);
            forward()
        }
    }
}

/// Makes a clone by number without a stack. With shared memory it also shares our threads; without,
/// it is a fork.
fn cloning(arguments: CloneArguments, forward: impl Fn() -> libc::c_long) -> libc::c_long {
    if arguments.shares_memory() {
        return forward();
    }
    libc::c_long::from(forking(|| {
        bring_for_child(arguments.flags, arguments.child_tid);
        forward() as i32
    }))
}

/// The address of the child's thread id among the fourth and the fifth argument of SYS_clone, whose
/// order depends on the architecture.
fn child_tid_of(fourth: usize, fifth: usize) -> usize {
    if cfg!(target_arch = "aarch64") { fifth } else { fourth }
}

/// What `syscall` means inside the library (see build.rs): the kernel's calls, past every
/// interposer.
#[unsafe(no_mangle)]
extern "C" fn __wrap_syscall(
    number: libc::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> libc::c_long {
    // SAFETY: the library's own call, passed on.
    result(unsafe { sys::forward(number, [a, b, c, d, e, f]) })
}

/// Ends the process at once.
pub fn exit_now(status: i32) -> ! {
    sys::exit_process(status)
}
