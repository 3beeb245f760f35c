//! Tracing of a thread of another process (ptrace(2)): stopping it, its registers, its signals, its
//! end. No thread can trace one of its own process, so nothing of this process changes.
//!
//! But for [`seize`], the calling thread must trace the thread. Without [`interrupt`] and that, it
//! must be stopped, too: ESRCH otherwise. [`crate::wait_for_child`] tells whether it has stopped.

use crate::types::Result;
use syscalls::{Sysno, syscall};

/// Begins to trace a thread, with options (PTRACE_O_…). It is not stopped by that. EPERM: it may
/// not be traced, or is traced already.
pub fn seize(thread: i32, options: i32) -> Result<()> {
    // SAFETY: no memory of this process is involved.
    unsafe { syscall!(Sysno::ptrace, libc::PTRACE_SEIZE, thread, 0, options) }.map(drop)
}

/// Has a seized thread stop, without a signal.
pub fn interrupt(thread: i32) -> Result<()> {
    // SAFETY: no memory of this process is involved.
    unsafe { syscall!(Sysno::ptrace, libc::PTRACE_INTERRUPT, thread, 0, 0) }.map(drop)
}

/// Has a stopped thread go on, with a signal; 0 for none.
pub fn go_on(thread: i32, signal: i32) -> Result<()> {
    // SAFETY: no memory of this process is involved.
    unsafe { syscall!(Sysno::ptrace, libc::PTRACE_CONT, thread, 0, signal) }.map(drop)
}

/// Has a stopped thread go on as [`go_on`] does, to the beginning or the end of its next system
/// call.
pub fn go_on_to_call(thread: i32, signal: i32) -> Result<()> {
    // SAFETY: no memory of this process is involved.
    unsafe { syscall!(Sysno::ptrace, libc::PTRACE_SYSCALL, thread, 0, signal) }.map(drop)
}

/// Has a stopped thread go on, and traces it no longer.
pub fn detach(thread: i32) -> Result<()> {
    // SAFETY: no memory of this process is involved.
    unsafe { syscall!(Sysno::ptrace, libc::PTRACE_DETACH, thread, 0, 0) }.map(drop)
}

/// The registers of a stopped thread.
pub fn registers(thread: i32) -> Result<libc::user_regs_struct> {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: the kernel fills in the structure, for which all zeros are valid too.
    unsafe {
        syscall!(Sysno::ptrace, libc::PTRACE_GETREGS, thread, 0, registers.as_mut_ptr())?;
        Ok(registers.assume_init())
    }
}

/// Gives a stopped thread other registers. EIO: it cannot have them.
pub fn set_registers(thread: i32, registers: &libc::user_regs_struct) -> Result<()> {
    let registers: *const libc::user_regs_struct = registers;
    // SAFETY: the kernel reads the structure; the thread is another process's.
    unsafe { syscall!(Sysno::ptrace, libc::PTRACE_SETREGS, thread, 0, registers) }.map(drop)
}

/// The signals that a stopped thread has blocked: bit n-1 for signal n.
pub fn blocked_signals(thread: i32) -> Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes 8 bytes of mask.
    unsafe { syscall!(Sysno::ptrace, libc::PTRACE_GETSIGMASK, thread, 8, &raw mut mask) }?;
    Ok(mask)
}

/// Blocks these signals for a stopped thread, and no others: bit n-1 for signal n.
pub fn block_signals(thread: i32, mask: u64) -> Result<()> {
    const PTRACE_SETSIGMASK: usize = 0x420b;
    // SAFETY: the kernel reads 8 bytes of mask.
    unsafe { syscall!(Sysno::ptrace, PTRACE_SETSIGMASK, thread, 8, &raw const mask) }.map(drop)
}

/// Address of the rseq area that a stopped thread has registered, 0 without one. An error before
/// Linux 5.13.
pub fn rseq_area(thread: i32) -> Result<u64> {
    const PTRACE_GET_RSEQ_CONFIGURATION: usize = 0x420f;
    // struct ptrace_rseq_configuration: address, size and signature, flags and padding.
    let mut configuration = [0u64; 3];
    let (bytes, at) = (size_of_val(&configuration), configuration.as_mut_ptr());
    // SAFETY: the kernel writes at most that many bytes of the structure.
    unsafe { syscall!(Sysno::ptrace, PTRACE_GET_RSEQ_CONFIGURATION, thread, bytes, at) }?;
    Ok(configuration[0])
}

/// Most instructions that a seccomp filter has (BPF_MAXINSNS).
const FILTER_LONGEST: usize = 4096;

/// The instructions of a stopped thread's seccomp filter of this number; 0 is the latest. ENOENT:
/// there is none. EACCES without CAP_SYS_ADMIN, or where the calling thread has a filter itself.
pub fn seccomp_filter(thread: i32, number: usize) -> Result<Vec<libc::sock_filter>> {
    const PTRACE_SECCOMP_GET_FILTER: usize = 0x420c;
    let none = libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 };
    let mut filter = vec![none; FILTER_LONGEST];
    let at = filter.as_mut_ptr();
    // SAFETY: the kernel writes a filter's instructions, for as many as it may have there is room.
    let len = unsafe { syscall!(Sysno::ptrace, PTRACE_SECCOMP_GET_FILTER, thread, number, at) }?;
    filter.truncate(len);
    Ok(filter)
}
