//! Tasks: the process in which our threads run, how it is made, and how it learns of the program's
//! end.

use crate::files::{open, read_at};
use crate::fork::exit_process;
use crate::ids::{PROGRAM, process_id, program_id};
use crate::process::is_filtered;
use crate::types::{Errno, Fd, PAGE, Result};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use syscalls::{Sysno, syscall};

/// Companions of this memory, by process id; 0 where there is none. There is one, but in tests with
/// several pagers.
static COMPANIONS: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];
/// A descriptor of the program's process, in the companion's table.
pub(crate) static PROGRAM_DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// /proc/vmstat, in the companion's table.
pub(crate) static VMSTAT: AtomicI32 = AtomicI32::new(-1);
/// The directory /proc, in the companion's table.
static PROC: AtomicI32 = AtomicI32::new(-1);

/// In the companion: a descriptor of the program's process, which is kept, as is one of /proc.
pub fn watch_program() -> Result<Fd> {
    let program = process_descriptor(program_id())?;
    PROGRAM_DESCRIPTOR.store(program, Relaxed);
    let free =
        |place: &&AtomicI32| place.compare_exchange(0, process_id(), Relaxed, Relaxed).is_ok();
    let _ = COMPANIONS.iter().find(free);
    PROC.store(open("/proc\0", libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap_or(-1), Relaxed);
    VMSTAT.store(open("/proc/vmstat\0", libc::O_RDONLY, 0).unwrap_or(-1), Relaxed);
    OWN_SIZE.store(open_size(process_id()).unwrap_or(-1), Relaxed);
    PROGRAM_SIZE.store(open_size(program_id()).unwrap_or(-1), Relaxed);
    PROC_IS_OURS.store(shares_memory() == Some(true), Relaxed);
    Ok(program)
}

/// The calling process is the program from now on.
pub fn become_program() {
    PROGRAM_DESCRIPTOR.store(-1, Relaxed);
    if !is_program() {
        // A forked child: its parent's companions are not its own.
        COMPANIONS.iter().for_each(|companion| companion.store(0, Relaxed));
    }
    PROGRAM.store(process_id(), Relaxed);
}

/// Whether the calling process is the program, not one that shares its memory.
pub fn is_program() -> bool {
    process_id() == program_id()
}

/// Clones a task that calls `main(argument)` on a stack that ends at `stack`. `tid` gets the task's
/// id, and 0 at its end. Returns the id.
///
/// # Safety
/// `stack` is the end, aligned to 16 bytes, of memory that is not used otherwise while the task
/// lives;
/// `tid` lives as long. `thread_pointer` is that of thread-local storage made by
/// [`new_thread_storage`] which no other task uses. `flags` have CLONE_VM.
pub unsafe fn clone_onto(
    flags: i32,
    stack: usize,
    tid: &AtomicU32,
    thread_pointer: usize,
    main: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<i32> {
    let stack = stack - 16;
    // SAFETY: the caller's promise: the end of the stack is free for two words.
    unsafe { (stack as *mut [usize; 2]).write([main as *const () as usize, argument]) };
    let result: isize;
    // SAFETY: the new task leaves this code at once for `main`, which never returns, on its own
    // stack. For the caller it is a system call that clobbers what system calls clobber.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rax",
            "pop rdi",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags as usize,
            in("rsi") stack,
            in("rdx") tid.as_ptr(),
            in("r10") tid.as_ptr(),
            in("r8") thread_pointer,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    // SAFETY: as above; the kernel takes the thread pointer before the second address there.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "ldp x1, x0, [sp], #16",
            "blr x1",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone,
            inlateout("x0") flags as isize => result,
            in("x1") stack,
            in("x2") tid.as_ptr(),
            in("x3") thread_pointer,
            in("x4") tid.as_ptr(),
        );
    }
    if result < 0 { Err(Errno::new(-result as i32)) } else { Ok(result as i32) }
}

/// Thread-local storage for a task that the C library knows nothing of, with all variables at their
/// first values: its thread pointer. `None` where the C library does not give any. It is never
/// freed.
pub fn new_thread_storage() -> Option<usize> {
    type Allocate = unsafe extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;
    // SAFETY: a NUL-terminated name.
    let allocate = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_allocate_tls".as_ptr()) };
    if allocate.is_null() {
        return None;
    }
    // SAFETY: glibc's function of this name has had this signature since 2.3; null asks for new
    // memory.
    let pointer = unsafe {
        std::mem::transmute::<*mut libc::c_void, Allocate>(allocate)(std::ptr::null_mut())
    } as usize;
    if pointer == 0 {
        return None;
    }
    // On x86-64 the description of a thread begins with its own address, which the C library writes
    // when it makes one. It also holds the values that guard stacks and function pointers.
    #[cfg(target_arch = "x86_64")]
    {
        let (own, new) = (thread_pointer() as *const usize, pointer as *mut usize);
        // SAFETY: both are `tcbhead_t` of glibc's: tcb, dtv, self, …, stack_guard at 0x28,
        // pointer_guard at 0x30.
        unsafe {
            new.write(pointer);
            new.add(2).write(pointer);
            new.add(5).write(own.add(5).read());
            new.add(6).write(own.add(6).read());
        }
    }
    Some(pointer)
}

/// The calling thread's thread pointer.
#[inline]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register, or the word at its address, which holds the address itself.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(nostack, readonly, preserves_flags),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "mrs {}, tpidr_el0",
            out(reg) pointer,
            options(nostack, nomem, preserves_flags),
        );
    }
    pointer
}

/// The thread pointer of a thread that the C library knows by `thread`.
pub fn thread_pointer_of(thread: libc::pthread_t) -> usize {
    // A thread's identity in the C library and its thread pointer are the same, or one of all
    // threads' distance apart. SAFETY: no arguments.
    let distance = thread_pointer().wrapping_sub(unsafe { libc::pthread_self() } as usize);
    (thread as usize).wrapping_add(distance)
}

/// Offset from a thread pointer to the areas of [`register_rseq`], or 0 where Terrace has none.
static OWN_RSEQ: AtomicIsize = AtomicIsize::new(0);

/// Offset from a thread pointer to the thread's rseq area (Linux, `include/uapi/linux/rseq.h`): the
/// C library's (glibc 2.35 and newer), or Terrace's where [`begin_rseq`] was called. `None` where
/// neither registers one, as with `GLIBC_TUNABLES=glibc.pthread.rseq=0`.
pub fn rseq_offset() -> Option<isize> {
    let Some(size) = rseq_size() else {
        return Some(OWN_RSEQ.load(Relaxed)).filter(|offset| *offset != 0);
    };
    // SAFETY: a NUL-terminated name; glibc's is a ptrdiff_t that never changes.
    let offset = unsafe {
        libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>().as_ref()?
    };
    (size > 0).then_some(*offset)
}

/// The size of the C library's rseq area, 0 if it is switched off. `None` before glibc 2.35.
fn rseq_size() -> Option<u32> {
    // SAFETY: a NUL-terminated name; glibc's is an unsigned int that never changes.
    unsafe {
        libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>().as_ref().copied()
    }
}

/// The kernel's `struct rseq`, in its first form: `cpu_id` is the second word.
pub type RseqArea = [u32; 8];

/// Registers rseq areas where the C library does not know of them (before glibc 2.35). These are
/// that of the calling thread now, and those of other threads when they call [`register_rseq`].
/// Under a seccomp filter none is registered: one that was written for such a C library need not
/// allow the call.
///
/// # Safety
///
/// `area` must be a thread-local variable at the same offset from each thread's thread pointer,
/// which begins as zeros but for `cpu_id` = -1.
pub unsafe fn begin_rseq(area: *mut RseqArea) {
    // SAFETY: the caller's promise; a thread's variable lives as long as the thread.
    if rseq_size().is_none() && !is_filtered() && unsafe { register_area(area) } {
        OWN_RSEQ.store((area as isize).wrapping_sub(thread_pointer() as isize), Relaxed);
    }
}

/// Registers the rseq area of the calling thread, after [`begin_rseq`]. Where that fails, as for a
/// program that registers one itself, `cpu_id` stays -1.
pub fn register_rseq() {
    let offset = OWN_RSEQ.load(Relaxed);
    if offset != 0 {
        let area = thread_pointer().wrapping_add_signed(offset) as *mut RseqArea;
        // SAFETY: `begin_rseq`'s caller has promised that it is there in every thread.
        unsafe { register_area(area) };
    }
}

/// Keeps [`register_rseq`] from registering anything: a seccomp filter of the program's may forbid
/// it.
pub fn end_rseq() {
    OWN_RSEQ.store(0, Relaxed);
}

/// Has the kernel write the calling thread's CPU into `area` from now on.
///
/// # Safety
///
/// `area` must be as long-lived as the thread, and aligned to 32 bytes.
unsafe fn register_area(area: *mut RseqArea) -> bool {
    /// What stands before the abort handlers of restartable sequences, of which there are none.
    const SIGNATURE: usize = if cfg!(target_arch = "x86_64") { 0x5305_3053 } else { 0xd428_bc00 };
    // SAFETY: the caller's promise; `rseq_cs`, the third and fourth words, stays 0.
    unsafe { syscall!(Sysno::rseq, area, size_of::<RseqArea>(), 0, SIGNATURE) }.is_ok()
}

/// Where the kernel writes 0 when the calling thread ends (its id, as the C library knows it).
/// `None` where the kernel does not say (without CONFIG_CHECKPOINT_RESTORE).
pub fn tid_address() -> Option<usize> {
    const PR_GET_TID_ADDRESS: i32 = 40;
    let mut address = 0usize;
    // SAFETY: the kernel writes one address.
    let asked = unsafe { syscall!(Sysno::prctl, PR_GET_TID_ADDRESS, &raw mut address, 0, 0, 0) };
    asked.ok().map(|_| address).filter(|address| *address != 0)
}

/// Ends the calling process at once.
pub fn end_process() -> ! {
    exit_process(0)
}

/// Ends the calling thread at once.
pub fn end_thread() -> ! {
    loop {
        // SAFETY: ends the thread.
        let _ = unsafe { syscall!(Sysno::exit, 0) };
    }
}

/// Waits for the end of a child, whatever signal it sends at its end.
pub fn reap(child: i32) {
    // SAFETY: no memory is involved.
    while unsafe { syscall!(Sysno::wait4, child, 0, libc::__WALL, 0) } == Err(Errno::EINTR) {}
}

/// Whether orphans among the process's descendants become its children.
pub fn is_subreaper() -> bool {
    let mut set = 0i32;
    // SAFETY: the kernel writes one number.
    let asked =
        unsafe { syscall!(Sysno::prctl, libc::PR_GET_CHILD_SUBREAPER, &raw mut set, 0, 0, 0) };
    asked.is_ok() && set != 0
}

/// Whether the process has asked that its next child be in another PID namespace (unshare or setns
/// with CLONE_NEWPID).
pub fn children_enter_another_pid_namespace() -> bool {
    let link = |name: &CStr| {
        let mut text = [0u8; 64];
        // SAFETY: the path is NUL-terminated; the kernel writes at most the buffer's length.
        let len = unsafe {
            syscall!(
                Sysno::readlinkat,
                libc::AT_FDCWD,
                name.as_ptr(),
                text.as_mut_ptr(),
                text.len()
            )
        };
        len.map(|_| text)
    };
    // A namespace without a process has no name yet.
    link(c"/proc/self/ns/pid").is_ok_and(|own| link(c"/proc/self/ns/pid_for_children") != Ok(own))
}

/// Prepares the calling process, a companion that has the program's attributes still. It takes no
/// signal, and may have as many descriptors as it can. The program may fetch descriptors of it
/// where its credentials allow that.
pub fn detach_from_program() {
    const PR_SET_PTRACER: i32 = 0x5961_6d61;
    block_all_signals();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes and reads the limit; the rest concerns this process only.
    unsafe {
        if syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit).is_ok() {
            limit.rlim_cur = limit.rlim_max;
            let _ = syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limit, 0);
        }
        // Without Yama there is nothing to allow.
        let _ = syscall!(Sysno::prctl, PR_SET_PTRACER, program_id(), 0, 0, 0);
    }
}

/// The calling process's working directory is the root from now on.
pub fn leave_working_directory() {
    // SAFETY: a NUL-terminated path.
    let _ = unsafe { syscall!(Sysno::chdir, c"/".as_ptr()) };
}

fn is_companion_of_this(process: i32) -> bool {
    COMPANIONS.iter().any(|companion| companion.load(Relaxed) == process)
}

/// Whether the calling process is the companion of the program.
pub(super) fn is_companion() -> bool {
    is_companion_of_this(process_id())
}

/// Blocks every signal for the calling thread.
pub fn block_all_signals() {
    let mask = u64::MAX;
    // SAFETY: the kernel reads 8 bytes of mask.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// Names the calling thread.
pub fn name_thread(name: &CStr) {
    // SAFETY: the kernel reads up to 16 bytes of the NUL-terminated name.
    let _ = unsafe { syscall!(Sysno::prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// A descriptor for a process.
pub fn process_descriptor(process: i32) -> Result<Fd> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::pidfd_open, process, 0) }.map(|fd| fd as Fd)
}

/// Whether the process behind a descriptor has ended, all its threads, within a time.
pub fn wait_for_end(process: Fd, at_most: Duration) -> bool {
    let mut polled = libc::pollfd { fd: process, events: libc::POLLIN, revents: 0 };
    let limit =
        libc::timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos() as i64 };
    // SAFETY: the kernel reads and writes the structure, and reads the time; a null mask changes no
    // signals.
    let count = unsafe { syscall!(Sysno::ppoll, &raw mut polled, 1, &raw const limit, 0, 8) };
    count == Ok(1) && polled.revents & libc::POLLIN != 0
}

/// In the companion: whether the program ends within a time.
pub fn program_ends(within: Duration) -> bool {
    let program = PROGRAM_DESCRIPTOR.load(Relaxed);
    program >= 0 && wait_for_end(program, within)
}

/// Sends a signal to the process behind a descriptor; false where that is refused.
pub fn signal_process(process: Fd, signal: i32) -> bool {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::pidfd_send_signal, process, signal, 0, 0) }.is_ok()
}

/// Sleeps on a word that the kernel itself changes and wakes (a thread's id), at most for
/// `at_most`.
pub fn futex_wait_shared(word: &AtomicU32, expected: u32, at_most: Duration) {
    let time =
        libc::timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos() as i64 };
    // SAFETY: the word lives through the call; the time too.
    let _ = unsafe {
        syscall!(Sysno::futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time)
    };
}

/// Wakes all threads that sleep on a word that the kernel itself changes. The kernel wakes one of
/// them. A woken thread passes it on, since a thread of the program may be joining that thread.
pub fn futex_wake_shared(word: &AtomicU32) {
    // SAFETY: only the address is used.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Sleeps, by a system call and nothing of the C library's.
pub fn sleep_raw(time: Duration) {
    let time =
        libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as i64 };
    // SAFETY: the kernel reads the time.
    let _ = unsafe { syscall!(Sysno::nanosleep, &raw const time, 0) };
}

// ---- processes that use the same memory ----

/// What identifies a process's memory for a moment: its size, its code and its data, in pages. All
/// zeros if the process has none.
type Size = [u64; 3];

/// How often a process's size is read at most, while it changes from one time to the next.
const TRIES: u32 = 20;

/// /proc/PID/statm of the companion and of the program, which every user may read.
static OWN_SIZE: AtomicI32 = AtomicI32::new(-1);
static PROGRAM_SIZE: AtomicI32 = AtomicI32::new(-1);

fn open_size(process: i32) -> Result<Fd> {
    open(&format!("/proc/{process}/statm\0"), libc::O_RDONLY, 0)
}

fn size(of: &AtomicI32) -> Option<Size> {
    let mut text = [0u8; 128];
    let len = read_at(of.load(Relaxed), &mut text, 0).ok()?;
    let mut fields = text[..len].split(|byte| *byte == b' ').map(|field| {
        field
            .iter()
            .filter(|byte| byte.is_ascii_digit())
            .fold(0, |n, byte| n * 10 + u64::from(byte - b'0'))
    });
    let size = fields.next()?;
    let code = fields.nth(2)?;
    let data = fields.nth(1)?;
    Some([size, code, data])
}

/// Whether the program has the calling process's memory. `None` while that cannot be told, and
/// where the program has none.
fn shares_memory() -> Option<bool> {
    for _ in 0..TRIES {
        let before = size(&OWN_SIZE)?;
        let other = size(&PROGRAM_SIZE).filter(|size| *size != [0; 3])?;
        if other == before {
            return Some(true);
        }
        if size(&OWN_SIZE) == Some(before) {
            return Some(false);
        }
    }
    None
}

/// Whether /proc tells of the program under its own number: it may be that of another PID
/// namespace.
static PROC_IS_OURS: AtomicBool = AtomicBool::new(false);

/// In the companion: whether the program's process has other memory by now, having executed another
/// program.
pub fn program_has_other_memory() -> bool {
    PROC_IS_OURS.load(Relaxed) && shares_memory() == Some(false)
}

/// Whether a process other than this one and the program uses this memory, as far as the kernel
/// tells. The call kcmp needs the right to look into the other process, which a process that shares
/// its memory mostly grants.
pub fn others_share_memory() -> bool {
    let proc = PROC.load(Relaxed);
    // SAFETY: no memory is involved.
    if unsafe { syscall!(Sysno::lseek, proc, 0, libc::SEEK_SET) }.is_err() {
        return false;
    }
    let (own, program) = (process_id(), program_id());
    let mut found = false;
    let mut buffer = [0u64; PAGE / 8];
    while !found {
        // SAFETY: the kernel writes at most the buffer's length.
        let read =
            unsafe { syscall!(Sysno::getdents64, proc, buffer.as_mut_ptr(), size_of_val(&buffer)) };
        let Ok(len @ 1..) = read else { break };
        // SAFETY: plain integers, as bytes.
        let entries = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), len) };
        let mut at = 0;
        // struct linux_dirent64: inode, offset, length of the entry (2 bytes), type, name.
        while !found && at + 19 < len {
            let entry_len = usize::from(u16::from_ne_bytes([entries[at + 16], entries[at + 17]]));
            let mut name =
                entries[at + 19..(at + entry_len).min(len)].iter().take_while(|byte| **byte != 0);
            let process = name.try_fold(0i32, |n, byte| {
                let digit = byte.is_ascii_digit().then(|| i32::from(byte - b'0'))?;
                n.checked_mul(10)?.checked_add(digit)
            });
            let other = |process: &i32| {
                ![0, own, program].contains(process) && !is_companion_of_this(*process)
            };
            if let Some(process) = process.filter(other) {
                const KCMP_VM: usize = 1;
                // SAFETY: no memory is involved.
                found = unsafe { syscall!(Sysno::kcmp, own, process, KCMP_VM, 0, 0) } == Ok(0);
            }
            at += entry_len.max(19);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const TUNABLES: &str = "GLIBC_TUNABLES";

    #[test]
    fn a_thread_registers_an_area_where_the_c_library_has_none() {
        // A C library that is told not to register any is as good as an old one.
        if std::env::var_os(TUNABLES).is_none() {
            let itself = std::env::current_exe().expect("it is a file");
            let name = "task::tests::a_thread_registers_an_area_where_the_c_library_has_none";
            let again = Command::new(itself)
                .args(["--exact", name])
                .env(TUNABLES, "glibc.pthread.rseq=0")
                .status();
            assert!(again.expect("it starts").success());
            return;
        }
        #[repr(align(32))]
        struct Aligned(RseqArea);
        let mut area = Box::new(Aligned([0, u32::MAX, 0, 0, 0, 0, 0, 0]));
        assert_eq!(rseq_offset(), None);
        // SAFETY: the thread that it is registered for ends before the area goes: it is this one,
        // in a process that ends with it.
        assert!(unsafe { register_area(&raw mut area.0) });
        let cpu = crate::current_cpu().expect("getcpu");
        assert!(crate::set_own_cpus(&crate::CpuMask::of(cpu)));
        // SAFETY: the kernel writes the word, before it returns to this thread.
        assert_eq!(unsafe { (&raw const area.0[1]).read_volatile() }, cpu);
        // SAFETY: as for the first.
        assert!(!unsafe { register_area(&raw mut area.0) }, "a thread has one at most");
        Box::leak(area);
    }
}
