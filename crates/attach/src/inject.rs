//! A stopped thread that makes system calls for us, and then goes on as if nothing had been.
//!
//! The thread is stopped with PTRACE_INTERRUPT, which sends no signal. Its signals are blocked
//! meanwhile, so they come later, whole. At the end the thread stops once more where the kernel
//! restarts an interrupted system call, and gets its registers back there.
//!
//! Calls are made by two instructions that replace the first of the program, which never run again:
//! `syscall`, and a jump to itself. So a thread whose tracer is killed stands at a place where
//! nothing goes wrong. What it needs to go on is in an [`Injection`], which another process has
//! too. That process stops the thread again and lets it go ([`Traced::adopt`]). The bytes of the
//! program are put back once no thread can be at them.

use crate::filters::{self, Purpose};
use crate::process;
use crate::sys;
use anyhow::{Context, Result, anyhow, bail};
use std::cell::UnsafeCell;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;
use terrace_os::{Errno, ptrace, wait_for_child};

const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const EVENT_STOP: i32 = 128;
/// How long a thread may take to stop that was not taken yet, ns.
const PATIENCE_NS: u64 = 2_000_000_000;
/// `cs` of 64-bit code.
const CODE_64: u64 = 0x33;
/// Two instructions: `syscall`, and a jump to itself.
const GADGET: [u8; 4] = [0x0f, 0x05, 0xeb, 0xfe];
/// Offset of the jump in [`GADGET`].
const SPIN: u64 = 2;

/// What a request of ptrace answers, with an error that says so.
fn told<T>(answer: Result<T, Errno>) -> Result<T> {
    answer.map_err(sys::io_error).context("ptrace")
}

/// What another process needs to let a stopped thread go, should its tracer be killed. All zero is
/// a valid value: no thread is stopped.
#[repr(C)]
pub struct Injection {
    /// The stopped thread; 0 without one. Written after the rest.
    tid: AtomicI32,
    /// Where [`GADGET`] was written; 0 where nothing was.
    gadget: AtomicU64,
    /// The program's bytes that [`GADGET`] replaced.
    replaced: AtomicU32,
    /// Whether the replaced page was the file's own.
    was_file: AtomicU32,
    /// Bytes of memory that the thread is asked to map; 0 before that.
    mapping: AtomicU64,
    /// Where the stub's memory begins ([`crate::stub`]); 0 before it is mapped.
    pub base: AtomicU64,
    /// 1 until the stub's code is written there.
    pub is_fresh: AtomicU32,
    /// A number that no other memory has there; 0 before it is chosen.
    pub mark: AtomicU64,
    /// 1 while the thread's signals may be blocked, and it stands where it was stopped.
    is_begun: AtomicU32,
    mask: AtomicU64,
    registers: UnsafeCell<libc::user_regs_struct>,
}

// SAFETY: the registers are written by the tracer before `tid`, and read by another process only
// after the tracer has ended.
unsafe impl Sync for Injection {}

impl Injection {
    /// Whether a thread was stopped when the tracer ended.
    pub fn is_under_way(&self) -> bool {
        self.tid.load(Acquire) != 0
    }

    /// Looks for the place of the two instructions, before a thread is stopped.
    pub fn prepare(&self, pid: i32) -> Result<()> {
        let entry = process::entry(pid)?;
        // Otherwise another process noted what was there, and may have been killed since.
        if self.gadget.load(Acquire) != entry {
            let bytes = read_code(pid, entry)?;
            self.replaced.store(u32::from_ne_bytes(bytes), Relaxed);
            self.was_file.store(u32::from(process::is_file_page(pid, entry)), Relaxed);
            self.gadget.store(entry, Release);
        }
        Ok(())
    }

    /// Writes the two instructions, while a thread is stopped.
    fn write_gadget(&self, pid: i32) -> Result<u64> {
        let entry = self.gadget.load(Acquire);
        let there = read_code(pid, entry)?;
        if there != GADGET && there != self.replaced.load(Relaxed).to_ne_bytes() {
            bail!("the process has just executed another program: try again");
        }
        process::memory(pid)?
            .write_all_at(&GADGET, entry)
            .context("the target's code cannot be written (proc_mem.force_override)")?;
        Ok(entry)
    }

    /// Puts the program's bytes back where the two instructions stand: another program may have
    /// been executed since. Returns the page that the kernel copied for that purpose, if any.
    pub fn put_back(&self, pid: i32) -> Option<u64> {
        let entry = self.gadget.load(Acquire);
        if entry == 0 {
            return None;
        }
        if read_code(pid, entry).ok()? != GADGET {
            self.gadget.store(0, Release);
            return None;
        }
        let bytes = self.replaced.load(Relaxed).to_ne_bytes();
        process::memory(pid).and_then(|memory| Ok(memory.write_all_at(&bytes, entry)?)).ok()?;
        self.gadget.store(0, Release);
        let in_page = entry % sys::PAGE + GADGET.len() as u64 <= sys::PAGE;
        (self.was_file.load(Relaxed) == 1 && in_page).then_some(entry / sys::PAGE * sys::PAGE)
    }
}

fn read_code(pid: i32, at: u64) -> Result<[u8; 4]> {
    let mut bytes = [0; 4];
    let read = process::memory(pid)?.read_exact_at(&mut bytes, at);
    read.context("cannot read the program's begin")?;
    Ok(bytes)
}

/// A thread that is stopped.
pub struct Traced {
    pid: i32,
    tid: i32,
    saved: libc::user_regs_struct,
    mask: u64,
    instruction: u64,
    record: Option<&'static Injection>,
    /// When it was stopped, ns.
    pub since_ns: u64,
    ended: bool,
    /// Whether the thread was taken to where calls are made. Then it is waited for without end, as
    /// without its tracer it would not go on.
    is_taken: bool,
    copied_page: Option<u64>,
}

impl Traced {
    /// Stops a thread of the target. What the thread needs to go on is noted in the record, which
    /// is prepared.
    pub fn stop(pid: i32, tid: i32, record: &'static Injection, purpose: Purpose) -> Result<Self> {
        let mut traced = Traced::seize(pid, tid)?;
        for _ in 0..100 {
            traced.interrupt()?;
            let begin = record.gadget.load(Acquire);
            let begins = (begin..begin + 16).contains(&traced.saved.rip);
            if !begins && !traced.in_restartable_sequence() {
                traced.spare_a_restart()?;
                filters::check(tid, purpose)?;
                traced.take(record)?;
                return Ok(traced);
            }
            told(ptrace::go_on(tid, 0))?;
            std::thread::sleep(Duration::from_micros(200));
        }
        bail!("thread {tid} is always where it cannot be interrupted: try again")
    }

    /// Stops the stub, whose registers are not needed. Its calls are made in the vDSO, where it
    /// would go on if this process were killed. By what the thread had that made it, it would find
    /// a way into the program. So it has nothing, and ends by the first instruction that wants a
    /// stack.
    pub fn stop_stub(pid: i32) -> Result<Self> {
        let mut traced = Traced::seize(pid, pid)?;
        traced.instruction = process::syscall_instruction(pid)?;
        traced.interrupt()?;
        let registers = &mut traced.saved;
        [registers.rsp, registers.rbp, registers.rbx] = [0; 3];
        [registers.r12, registers.r13, registers.r14, registers.r15] = [0; 4];
        Ok(traced)
    }

    /// Stops the thread that a record names, after its tracer has ended. If the thread stands where
    /// calls are made, it will go on where it was before that.
    pub fn adopt(pid: i32, record: &'static Injection) -> Result<Self> {
        let tid = record.tid.load(Acquire);
        if process::stat_field(tid, 3).is_none_or(|state| state == "Z" || state == "X") {
            // Without it no thread is left that is to go on.
            record.tid.store(0, Release);
            bail!("the stopped thread has ended");
        }
        let mut traced = Traced::seize(pid, tid)?;
        traced.is_taken = true;
        traced.interrupt()?;
        traced.record = Some(record);
        let (gadget, base) = (record.gadget.load(Acquire), record.base.load(Acquire));
        let there = traced.saved;
        let is_at =
            |begin: u64, bytes: u64| begin != 0 && (begin..begin + bytes).contains(&there.rip);
        // A program that was executed meanwhile may be just there.
        let is_in_gadget =
            is_at(gadget, GADGET.len() as u64) && read_code(pid, gadget).ok() == Some(GADGET);
        let is_in_stub = is_at(base, sys::PAGE) && crate::stub::is_there(pid, base);
        if !is_in_gadget && !is_in_stub {
            // The tracer had not begun, or was done.
            let blocked = record.is_begun.load(Acquire) == 1;
            let noted = record.mask.load(Relaxed);
            traced.take(record)?;
            if blocked && traced.mask == BLOCKED {
                traced.mask = noted;
                record.mask.store(noted, Relaxed);
            }
            return Ok(traced);
        }
        traced.instruction = gadget;
        traced.mask = record.mask.load(Relaxed);
        // SAFETY: the tracer, which wrote it, has ended.
        traced.saved = unsafe { *record.registers.get() };
        if is_in_stub && there.rip != base && there.rax as i64 > 0 {
            // The intermediate process between target and stub is still to be waited for.
            traced.wait_for_child(there.rax)?;
        }
        let bytes = record.mapping.load(Acquire);
        let mapped = map_call(bytes);
        let arguments = [there.rdi, there.rsi, there.rdx, there.r10, there.r8, there.r9];
        let is_done = there.rip == gadget + SPIN && there.rax % sys::PAGE == 0;
        if is_in_gadget && base == 0 && bytes != 0 && is_done && arguments == mapped[1..] {
            // No other process knows yet that this was mapped.
            traced.call([libc::SYS_munmap as u64, there.rax, bytes, 0, 0, 0, 0])?;
        }
        Ok(traced)
    }

    fn seize(pid: i32, tid: i32) -> Result<Self> {
        told(ptrace::seize(tid, libc::PTRACE_O_TRACESYSGOOD))
            .with_context(|| format!("thread {tid} of {pid} cannot be stopped"))?;
        // SAFETY: plain data, filled before it is used.
        let saved = unsafe { std::mem::zeroed() };
        let since_ns = sys::now_ns();
        Ok(Traced {
            pid,
            tid,
            saved,
            mask: 0,
            instruction: 0,
            record: None,
            since_ns,
            ended: false,
            is_taken: false,
            copied_page: None,
        })
    }

    fn interrupt(&mut self) -> Result<()> {
        self.since_ns = sys::now_ns();
        told(ptrace::interrupt(self.tid))?;
        self.wait_for_event_stop()?;
        self.saved = self.registers()?;
        if self.saved.cs != CODE_64 {
            bail!("thread {} runs 32-bit code: only 64-bit programs can be attached to", self.tid);
        }
        Ok(())
    }

    /// Takes the stopped thread to where calls are made. Its signals are blocked before that: a
    /// handler would return to there.
    fn take(&mut self, record: &'static Injection) -> Result<()> {
        self.mask = told(ptrace::blocked_signals(self.tid))?;
        record.mask.store(self.mask, Relaxed);
        // SAFETY: this process is the only one that uses the record while it lives.
        unsafe { *record.registers.get() = self.saved };
        record.is_begun.store(1, Release);
        record.tid.store(self.tid, Release);
        self.record = Some(record);
        self.is_taken = true;
        self.instruction = record.write_gadget(self.pid)?;
        told(ptrace::block_signals(self.tid, u64::MAX))?;
        let mut registers = self.saved;
        registers.orig_rax = u64::MAX;
        registers.rip = self.instruction + SPIN;
        self.set_registers(&registers)
    }

    /// Has an interrupted sleep end with EINTR where a filter forbids that the kernel restarts it.
    /// The filter may end the program for that.
    fn spare_a_restart(&mut self) -> Result<()> {
        const ERESTART_RESTARTBLOCK: i64 = -516;
        if self.saved.rax as i64 == ERESTART_RESTARTBLOCK && !filters::allow_restart(self.tid) {
            self.saved.rax = -i64::from(libc::EINTR) as u64;
            self.set_registers(&self.saved)?;
        }
        Ok(())
    }

    /// Whether the thread is inside of code that the kernel restarts if it is interrupted (rseq).
    /// Stopped there, it would not notice the interruption.
    fn in_restartable_sequence(&self) -> bool {
        let Ok(area @ 1..) = ptrace::rseq_area(self.tid) else { return false };
        let mut pointer = [0u8; 8];
        // The field `rseq_cs` of `struct rseq`.
        sys::read_memory(self.tid, area + 8, &mut pointer).is_ok() && pointer != [0; 8]
    }

    fn registers(&self) -> Result<libc::user_regs_struct> {
        told(ptrace::registers(self.tid))
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<()> {
        told(ptrace::set_registers(self.tid, registers))
    }

    /// Waits for the thread to stop. Returns the signal and the event.
    fn wait(&mut self) -> Result<(i32, i32)> {
        let started = sys::now_ns();
        loop {
            match wait_for_child(self.tid, libc::__WALL | libc::WNOHANG) {
                Ok((0, _)) => {}
                Ok((_, status)) if libc::WIFSTOPPED(status) => {
                    return Ok((libc::WSTOPSIG(status), status >> 16));
                }
                _ => {
                    self.ended = true;
                    bail!("the process has ended");
                }
            }
            let waited = sys::now_ns() - started;
            if waited > PATIENCE_NS && !self.is_taken {
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
                (signal, 0) if signal != SYSCALL_STOP => told(ptrace::go_on(self.tid, signal))?,
                _ => told(ptrace::go_on(self.tid, 0))?,
            }
        }
    }

    fn wait_for_syscall_stop(&mut self) -> Result<()> {
        let mut signal = 0;
        loop {
            told(ptrace::go_on_to_call(self.tid, signal))?;
            signal = match self.wait()? {
                (SYSCALL_STOP, 0) => return Ok(()),
                // It cannot be blocked. The process stops, and this thread once it is let go.
                (libc::SIGSTOP, 0) => libc::SIGSTOP,
                (signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL), 0) => {
                    bail!("the program has unmapped its first code (signal {signal})")
                }
                _ => 0,
            };
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
        loop {
            self.set_registers(&registers)?;
            self.wait_for_syscall_stop()?;
            self.wait_for_syscall_stop()?;
            let result = self.registers()?.rax as i64;
            if !RESTARTS.contains(&result) {
                return Ok(result);
            }
        }
    }

    /// Makes a system call in the thread: number and arguments. Returns its result, negative for an
    /// error.
    pub fn call(&mut self, call: sys_call::Call) -> Result<i64> {
        self.call_at(self.instruction, call, [0, 0])
    }

    /// Maps memory of the thread's.
    pub fn map(&mut self, bytes: u64) -> Result<u64> {
        if let Some(record) = self.record {
            record.mapping.store(bytes, Release);
        }
        let at = self.call(map_call(bytes))?;
        if at < 0 {
            bail!("the target cannot map memory (errno {})", -at);
        }
        Ok(at as u64)
    }

    /// Begins the stub ([`crate::stub`]) by an intermediate process, and takes that process away.
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
        self.wait_for_child(child as u64)
    }

    fn wait_for_child(&mut self, child: u64) -> Result<()> {
        self.call([libc::SYS_wait4 as u64, child, 0, libc::__WALL as u64, 0, 0, 0]).map(drop)
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
        let _ = ptrace::detach(self.tid);
    }

    /// Lets the thread go on where it was stopped. Returns how long it stood, ns, and the page of
    /// code that the kernel has copied for us, if any.
    pub fn release(mut self) -> Result<(u64, Option<u64>)> {
        self.go_on()?;
        Ok((sys::now_ns() - self.since_ns, self.copied_page))
    }

    fn go_on(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let Some(record) = self.record else {
            return told(ptrace::detach(self.tid));
        };
        // Where a signal would be delivered, the kernel restarts an interrupted call, by the
        // registers of that moment. After a call of ours it would not.
        told(ptrace::interrupt(self.tid))?;
        told(ptrace::go_on(self.tid, 0))?;
        self.wait_for_event_stop()?;
        // Not before: a handler would return to where calls are made.
        self.set_registers(&self.saved)?;
        told(ptrace::block_signals(self.tid, self.mask))?;
        record.is_begun.store(0, Release);
        self.copied_page = record.put_back(self.pid);
        told(ptrace::detach(self.tid))
            .map_err(|error| anyhow!("cannot let thread {} go: {error:#}", self.tid))?;
        record.tid.store(0, Release);
        Ok(())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.go_on();
    }
}

/// The kernel's mask for all signals blocked: SIGKILL and SIGSTOP cannot be.
const BLOCKED: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));
/// Results of interrupted calls: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND and
/// ERESTART_RESTARTBLOCK.
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];

fn map_call(bytes: u64) -> sys_call::Call {
    [libc::SYS_mmap as u64, 0, bytes, 3, 0x22, u64::MAX, 0]
}

mod sys_call {
    pub type Call = [u64; 7];
}
