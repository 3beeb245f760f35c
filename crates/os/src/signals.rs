//! Signals of this process, and what the calling thread blocks of them.

use crate::errno::{ErrnoKept, thread_errno};
use crate::files::own;
use crate::process::is_filtered;
use crate::simulated::simulated;
use crate::types::Result;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;
use syscalls::{Sysno, syscall};

/// The signals that a program may block and wait for, as the kernel's mask: bit n−1 is signal n.
/// That is all but glibc's 32 and 33, which cancel threads and change user ids.
pub const ALL_SIGNALS: u64 = !(1 << 31 | 1 << 32);

/// The mask of these signals. Numbers that [`ALL_SIGNALS`] lacks are left out.
pub fn mask_of(signals: &[i32]) -> u64 {
    let known = signals.iter().filter(|signal| (1..=64).contains(*signal));
    known.fold(0u64, |mask, signal| mask | 1u64 << (signal - 1)) & ALL_SIGNALS
}

/// Whether the calling thread may be in a signal handler: it has signals blocked, or is on its
/// alternate stack. (A handler that blocks nothing, not even its own signal, is not seen; nor,
/// under a filter of system calls, is that stack.)
pub fn may_be_in_handler() -> bool {
    let mut blocked = 0u64;
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: changes nothing; the kernel writes the mask and the description.
    let told = unsafe {
        let mask = syscall!(
            Sysno::rt_sigprocmask,
            libc::SIG_BLOCK,
            0,
            &raw mut blocked,
            size_of_val(&blocked)
        );
        // A filter may end a process that asks for that.
        if is_filtered() {
            mask
        } else {
            mask.and_then(|_| syscall!(Sysno::sigaltstack, 0, &raw mut stack))
        }
    };
    told.is_err() || blocked != 0 || stack.ss_flags & libc::SS_ONSTACK != 0
}

/// Blocks every signal for the calling thread but glibc's 32 and 33, which cancel threads and
/// change user ids. Returns what was blocked.
pub fn block_signals() -> u64 {
    simulated!(_kernel => 0);
    let mask = ALL_SIGNALS;
    let mut before = 0u64;
    // SAFETY: the kernel reads 8 bytes of mask and writes 8.
    let _ = unsafe {
        syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, 8)
    };
    before
}

/// Blocks exactly these signals.
pub fn restore_signals(mask: u64) {
    simulated!(_kernel => ());
    // SAFETY: as above.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// Blocks these signals of [`ALL_SIGNALS`] too for the calling thread. Returns which of them all
/// were blocked before.
pub fn block_also(mask: u64) -> u64 {
    let mask = mask & ALL_SIGNALS;
    let mut before = 0u64;
    // SAFETY: the kernel reads 8 bytes of mask and writes 8.
    let _ = unsafe {
        syscall!(Sysno::rt_sigprocmask, libc::SIG_BLOCK, &raw const mask, &raw mut before, 8)
    };
    before & ALL_SIGNALS
}

/// Blocks these signals no longer for the calling thread.
pub fn unblock(mask: u64) {
    // SAFETY: the kernel reads 8 bytes of mask.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, 0, 8) };
}

/// The signals that came and are blocked, the calling thread's and the process's; none if the
/// kernel does not say.
pub fn pending_signals() -> u64 {
    let mut pending = 0u64;
    // SAFETY: the kernel writes 8 bytes of mask.
    let asked = unsafe { syscall!(Sysno::rt_sigpending, &raw mut pending, 8) };
    if asked.is_ok() { pending } else { 0 }
}

/// A descriptor (signalfd(2), close-on-exec) that can be read while one of these signals waits for
/// the process or for the thread that reads. They must be blocked.
pub fn descriptor_of_signals(mask: u64) -> Result<OwnedFd> {
    // SAFETY: the kernel reads 8 bytes of mask; the descriptor is new.
    unsafe { own(syscall!(Sysno::signalfd4, -1isize, &raw const mask, 8, libc::SFD_CLOEXEC)) }
}

/// A signal that [`take_signal`] has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenSignal {
    /// The signal's number.
    pub number: i32,
    /// Where it comes from (`si_code`): the kernel if it is above 0, a process else.
    pub code: i32,
    /// The process that sent it, or that it tells of (SIGCHLD); means nothing for other signals of
    /// the kernel's.
    pub sender: i32,
}

/// Takes one of these signals, which must be blocked; waits for it at most for `wait`. EAGAIN: none
/// came. EINTR: another one was handled, or the process was stopped and continued.
pub fn take_signal(mask: u64, wait: Duration) -> Result<TakenSignal> {
    let wait =
        libc::timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel reads the mask and the time, and fills in a siginfo_t.
    let number = unsafe {
        syscall!(Sysno::rt_sigtimedwait, &raw const mask, info.as_mut_ptr(), &raw const wait, 8)
    }?;
    // SAFETY: all zeros are valid too.
    let info = unsafe { info.assume_init() };
    // SAFETY: a number that lies within the structure, whatever the signal is.
    let sender = unsafe { info.si_pid() };
    Ok(TakenSignal { number: number as i32, code: info.si_code, sender })
}

/// Whether this process ignores a signal now.
pub fn is_ignored(signal: i32) -> bool {
    // struct sigaction as the kernel has it, which begins with the handler.
    let mut action = [0usize; 4];
    // SAFETY: the kernel writes the structure, which is as large as it expects; a null new action
    // changes nothing.
    let asked = unsafe { syscall!(Sysno::rt_sigaction, signal, 0, action.as_mut_ptr(), 8) };
    asked.is_ok() && action[0] == libc::SIG_IGN
}

/// This process ignores a signal from now on. EINVAL: it cannot.
pub fn ignore_signal(signal: i32) -> Result<()> {
    set_disposition(signal, libc::SIG_IGN)
}

/// A signal does in this process from now on what it does by default.
pub fn restore_default(signal: i32) -> Result<()> {
    set_disposition(signal, libc::SIG_DFL)
}

fn set_disposition(signal: i32, disposition: usize) -> Result<()> {
    // struct sigaction as the kernel has it: neither flags nor a mask.
    let action = [disposition, 0, 0, 0];
    // SAFETY: the kernel reads the structure, which is as large as it expects. SIG_DFL and SIG_IGN,
    // all that callers pass, run no code.
    unsafe { syscall!(Sysno::rt_sigaction, signal, action.as_ptr(), 0, 8) }.map(drop)
}

/// From now on a signal calls `handler` with its number, in any thread of this process. A system
/// call that it interrupts goes on (SA_RESTART). EINVAL: it cannot be handled.
///
/// # Safety
/// `handler` does only what is async-signal-safe.
pub unsafe fn handle_signal(signal: i32, handler: extern "C" fn(i32)) -> Result<()> {
    // SAFETY: zeros are a value of it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    let _errno = ErrnoKept::new();
    // SAFETY: the caller's promise. The C library reads the action, and adds what the handler
    // returns to.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(thread_errno()),
    }
}

/// While it lives, no signal handler of the program runs on this thread.
///
/// It is for every stretch in which a thread of the program holds a lock of ours. A handler that
/// touched an evicted page there would wait for a fault handler, which may wait for that lock. A
/// handler that forks or maps memory would wait for itself.
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks the signals.
    // Reason: a default that acts on the thread would surprise.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        SignalsBlocked { before: block_signals() }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        restore_signals(self.before);
    }
}
