//! Timers that interrupt threads by their running time.

use std::sync::OnceLock;
use syscalls::{Sysno, syscall};

/// A timer that sends a thread of this process SIGURG each time that the thread has run for a
/// period. Not inherited by children.
#[derive(Debug)]
pub struct Timer(i32);

impl Timer {
    /// Starts a timer, with a period in ns of the thread's running time. `None` if the kernel
    /// refuses (RLIMIT_SIGPENDING), or there is no such thread any more.
    pub fn of_thread(thread: i32, period_ns: u64) -> Option<Timer> {
        // A thread's clock of running time, as the kernel numbers them (MAKE_THREAD_CPUCLOCK,
        // CPUCLOCK_SCHED).
        let clock = (!thread).wrapping_shl(3) | 4 | 2;
        // SAFETY: zeros are a value of it.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_signo = TIMER_SIGNAL;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_notify_thread_id = thread;
        // The handler learns from it whose the signal is, without a system call.
        event.sigev_value = libc::sigval { sival_ptr: thread as usize as *mut _ };
        let mut id = 0i32;
        // SAFETY: the kernel reads the event and writes the number.
        unsafe { syscall!(Sysno::timer_create, clock, &raw const event, &raw mut id) }.ok()?;
        let timer = Timer(id);
        let time = libc::timespec {
            tv_sec: (period_ns / 1_000_000_000) as i64,
            tv_nsec: (period_ns % 1_000_000_000) as i64,
        };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the kernel reads the times.
        if unsafe { syscall!(Sysno::timer_settime, id, 0, &raw const times, 0) }.is_err() {
            timer.delete();
            return None;
        }
        Some(timer)
    }

    /// Ends the timer.
    pub fn delete(&self) {
        // SAFETY: a timer of ours; its number is not used again.
        let _ = unsafe { syscall!(Sysno::timer_delete, self.0) };
    }
}

/// The signal of a [`Timer`].
const TIMER_SIGNAL: i32 = libc::SIGURG;

/// What [`handle_timers`] calls: thread, instruction, flags, and registers in the order of
/// `ucontext_t`.
pub type OnTimer = fn(i32, u64, u64, &[u64; 16]);

static ON_TIMER: OnceLock<OnTimer> = OnceLock::new();

/// From now on a timer's signal calls `each` in the thread that it came to, which may be anywhere:
/// nothing but stores is allowed. False if the program handles the signal itself. There is one
/// `each`, which the first call names.
pub fn handle_timers(each: OnTimer) -> bool {
    ON_TIMER.get_or_init(|| each);
    // SAFETY: zeros are a value of it.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_timer as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler may run anywhere (see there); the C library writes into `before`.
    if unsafe { libc::sigaction(TIMER_SIGNAL, &raw const action, &raw mut before) } != 0 {
        return false;
    }
    // Ours, in a fork's child.
    let free = [libc::SIG_DFL, libc::SIG_IGN, action.sa_sigaction].contains(&before.sa_sigaction);
    if !free {
        // SAFETY: as it was.
        unsafe { libc::sigaction(TIMER_SIGNAL, &raw const before, std::ptr::null_mut()) };
    }
    free
}

/// Whether the handler of [`handle_timers`] is still in place.
pub fn handles_timers() -> bool {
    handler_of_timers() == Some(on_timer as *const () as usize)
}

/// Gives the timers' signal its default again, which is to be ignored, if the handler is ours. A
/// signal that is on its way is then ignored.
pub fn ignore_timers() {
    if handles_timers() {
        // SAFETY: zeros are SIG_DFL without flags.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(TIMER_SIGNAL, &raw const default, std::ptr::null_mut());
        }
    }
}

/// Whether a thread of this process takes a timer's signal at present. Where it is blocked, other
/// code may read it instead.
pub fn takes_timers(thread: i32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")) else {
        return false;
    };
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    blocked
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (TIMER_SIGNAL - 1) & 1 == 0)
}

fn handler_of_timers() -> Option<usize> {
    // SAFETY: zeros are a value of it.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the C library writes into `now`.
    (unsafe { libc::sigaction(TIMER_SIGNAL, std::ptr::null(), &raw mut now) } == 0)
        .then_some(now.sa_sigaction)
}

#[cfg(target_arch = "x86_64")]
extern "C" fn on_timer(_signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes both, to this handler alone.
    let (info, context) = unsafe { (&*info, &*context.cast::<libc::ucontext_t>()) };
    // A signal that is no timer's tells of out-of-band data, and is for the program: nothing of
    // ours.
    let Some(each) = ON_TIMER.get().filter(|_| info.si_code == libc::SI_TIMER) else { return };
    let registers = &context.uc_mcontext.gregs;
    let mut general = [0; 16];
    general.iter_mut().zip(registers).for_each(|(to, register)| *to = *register as u64);
    // SAFETY: of a timer's signal.
    let thread = unsafe { info.si_value() }.sival_ptr as usize as i32;
    each(
        thread,
        registers[libc::REG_RIP as usize] as u64,
        registers[libc::REG_EFL as usize] as u64,
        &general,
    );
}

/// Only x86-64's registers are understood.
#[cfg(not(target_arch = "x86_64"))]
extern "C" fn on_timer(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}
