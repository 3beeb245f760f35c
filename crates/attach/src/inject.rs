//! A stopped thread that makes system calls for us, and then goes on as if nothing had been.
//!
//! The thread is stopped with PTRACE_INTERRUPT, which sends no signal. Its signals are blocked
//! meanwhile, so they come later, whole. Calls are made by the `syscall` instruction of the vDSO;
//! no code of the target is changed. At the end the thread stops once more where the kernel
//! restarts an interrupted system call, and gets its registers back there.

use crate::process;
use crate::sys;
use anyhow::{Context, Result, anyhow, bail};
use std::time::Duration;

const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const EVENT_STOP: i32 = 128;
const GETSIGMASK: i64 = 0x420a;
const SETSIGMASK: i64 = 0x420b;
const GET_RSEQ_CONFIGURATION: i64 = 0x420f;
/// How long a thread may take to stop.
const PATIENCE_NS: u64 = 2_000_000_000;
/// `cs` of 64-bit code.
const CODE_64: u64 = 0x33;

fn ptrace(request: i64, tid: i32, address: u64, data: u64) -> Result<i64> {
    // SAFETY: pointers given here are to structures that the request reads or fills.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request, tid, address, data) };
    if result < 0 {
        return Err(std::io::Error::last_os_error()).context("ptrace");
    }
    Ok(result)
}

/// A thread that is stopped.
pub struct Traced {
    tid: i32,
    saved: libc::user_regs_struct,
    mask: u64,
    instruction: u64,
    /// When it was stopped, ns.
    pub since_ns: u64,
    ended: bool,
}

impl Traced {
    /// Stops a thread of a process.
    pub fn stop(pid: i32, tid: i32) -> Result<Self> {
        let instruction = process::syscall_instruction(pid)?;
        let options = libc::PTRACE_O_TRACESYSGOOD as u64;
        ptrace(libc::PTRACE_SEIZE as i64, tid, 0, options)
            .with_context(|| format!("thread {tid} of {pid} cannot be stopped"))?;
        // SAFETY: plain data, filled below before it is used.
        let saved = unsafe { std::mem::zeroed() };
        let mut traced =
            Traced { tid, saved, mask: 0, instruction, since_ns: sys::now_ns(), ended: false };
        for _ in 0..100 {
            traced.since_ns = sys::now_ns();
            ptrace(libc::PTRACE_INTERRUPT as i64, tid, 0, 0)?;
            traced.wait_for_event_stop()?;
            traced.saved = traced.registers()?;
            if traced.saved.cs != CODE_64 {
                bail!("thread {tid} runs 32-bit code: only 64-bit programs can be attached to");
            }
            if !traced.in_restartable_sequence() {
                let mask = &raw mut traced.mask as u64;
                ptrace(GETSIGMASK, tid, 8, mask)?;
                ptrace(SETSIGMASK, tid, 8, &raw const ALL as u64)?;
                return Ok(traced);
            }
            ptrace(libc::PTRACE_CONT as i64, tid, 0, 0)?;
            std::thread::sleep(Duration::from_micros(200));
        }
        bail!("thread {tid} is always in a restartable sequence: try again")
    }

    /// Whether the thread is inside of code that the kernel restarts if it is interrupted (rseq):
    /// it would not notice that it was.
    fn in_restartable_sequence(&self) -> bool {
        let mut configuration = [0u64; 3];
        let at = configuration.as_mut_ptr() as u64;
        if ptrace(GET_RSEQ_CONFIGURATION, self.tid, 24, at).is_err() || configuration[0] == 0 {
            return false;
        }
        let mut pointer = [0u8; 8];
        // The field `rseq_cs` of `struct rseq`.
        sys::read_memory(self.tid, configuration[0] + 8, &mut pointer).is_ok() && pointer != [0; 8]
    }

    fn registers(&self) -> Result<libc::user_regs_struct> {
        // SAFETY: plain data, filled by the call.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS as i64, self.tid, 0, &raw mut registers as u64)?;
        Ok(registers)
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<()> {
        ptrace(libc::PTRACE_SETREGS as i64, self.tid, 0, registers as *const _ as u64).map(drop)
    }

    /// Waits for the thread to stop: the signal and the event.
    fn wait(&mut self) -> Result<(i32, i32)> {
        let started = sys::now_ns();
        loop {
            let mut status = 0;
            // SAFETY: the status is writable.
            let got = unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) };
            if got == self.tid && libc::WIFSTOPPED(status) {
                return Ok((libc::WSTOPSIG(status), status >> 16));
            }
            if got == self.tid || got < 0 {
                self.ended = true;
                bail!("the process has ended");
            }
            let waited = sys::now_ns() - started;
            if waited > PATIENCE_NS {
                bail!("thread {} does not stop: it waits in the kernel for a device", self.tid);
            }
            if waited > 200_000 {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                sys::yield_now();
            }
        }
    }

    fn wait_for_event_stop(&mut self) -> Result<()> {
        loop {
            match self.wait()? {
                (_, EVENT_STOP) => return Ok(()),
                // A signal on its way is delivered.
                (signal, 0) if signal != SYSCALL_STOP => {
                    ptrace(libc::PTRACE_CONT as i64, self.tid, 0, signal as u64)?
                }
                _ => ptrace(libc::PTRACE_CONT as i64, self.tid, 0, 0)?,
            };
        }
    }

    fn wait_for_syscall_stop(&mut self) -> Result<()> {
        loop {
            ptrace(libc::PTRACE_SYSCALL as i64, self.tid, 0, 0)?;
            if self.wait()? == (SYSCALL_STOP, 0) {
                return Ok(());
            }
        }
    }

    fn call_at(&mut self, instruction: u64, call: sys_call::Call, extra: [u64; 2]) -> Result<i64> {
        let mut registers = self.saved;
        registers.orig_rax = u64::MAX;
        registers.rip = instruction;
        registers.rax = call[0];
        registers.rdi = call[1];
        registers.rsi = call[2];
        registers.rdx = call[3];
        registers.r10 = call[4];
        registers.r8 = call[5];
        registers.r9 = call[6];
        [registers.r12, registers.r13] = extra;
        self.set_registers(&registers)?;
        self.wait_for_syscall_stop()?;
        self.wait_for_syscall_stop()?;
        Ok(self.registers()?.rax as i64)
    }

    /// Makes a system call in the thread: number and arguments. Its result, negative for an error.
    pub fn call(&mut self, call: sys_call::Call) -> Result<i64> {
        self.call_at(self.instruction, call, [0, 0])
    }

    /// Maps memory of the thread's.
    pub fn map(&mut self, bytes: u64) -> Result<u64> {
        let at = self.call([libc::SYS_mmap as u64, 0, bytes, 3, 0x22, u64::MAX, 0])?;
        if at < 0 {
            bail!("the target cannot map memory (errno {})", -at);
        }
        Ok(at as u64)
    }

    /// Begins the stub ([`crate::stub`]) by an intermediate process, and takes that away.
    pub fn fork_stub(&mut self, code: u64, control: u64, stack: u64) -> Result<()> {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_UNTRACED;
        let clone = [libc::SYS_clone as u64, flags as u64, stack - 64, 0, 0, 0, 0];
        let child = self.call_at(code, clone, [control, stack])?;
        if child < 0 {
            bail!(
                "the target cannot make a process (errno {}): is there a limit (ulimit -u, pids.max)?",
                -child
            );
        }
        self.call([libc::SYS_wait4 as u64, child as u64, 0, libc::__WALL as u64, 0, 0, 0])?;
        Ok(())
    }

    /// Ends the process.
    pub fn exit(mut self) {
        let mut registers = self.saved;
        registers.orig_rax = u64::MAX;
        registers.rip = self.instruction;
        registers.rax = libc::SYS_exit_group as u64;
        registers.rdi = 0;
        let _ = self.set_registers(&registers);
        self.ended = true;
        let _ = ptrace(libc::PTRACE_DETACH as i64, self.tid, 0, 0);
    }

    /// Lets the thread go on where it was stopped. How long it stood, ns.
    pub fn release(mut self) -> Result<u64> {
        self.go_on()?;
        Ok(sys::now_ns() - self.since_ns)
    }

    fn go_on(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        // Where a signal would be delivered, the kernel restarts an interrupted call, by the
        // registers of that moment; after a call of ours it would not.
        ptrace(libc::PTRACE_INTERRUPT as i64, self.tid, 0, 0)?;
        ptrace(libc::PTRACE_CONT as i64, self.tid, 0, 0)?;
        self.wait_for_event_stop()?;
        self.set_registers(&self.saved)?;
        ptrace(SETSIGMASK, self.tid, 8, &raw const self.mask as u64)?;
        ptrace(libc::PTRACE_DETACH as i64, self.tid, 0, 0)
            .map(drop)
            .map_err(|error| anyhow!("cannot let thread {} go: {error:#}", self.tid))
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.go_on();
    }
}

static ALL: u64 = u64::MAX;

mod sys_call {
    pub type Call = [u64; 7];
}
