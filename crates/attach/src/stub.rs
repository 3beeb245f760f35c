//! The stub: a process in the target's address space that makes the system calls it is told.
//!
//! A request is one packet on a socket: how many calls, their numbers and arguments, and data that
//! arguments may point to. The stub receives it into its buffer, makes the calls in order, writes
//! each result beside its call, and sends the buffer back. It uses no stack and no library.
//!
//! It is not the target's child: the target's thread makes an intermediate process (waiting as
//! after vfork), which makes the stub and ends. So the target gets no SIGCHLD, and a program that
//! it executes inherits no zombie.

use crate::inject::{Injection, Traced};
use crate::process;
use crate::sys::{self, PAGE};
use anyhow::{Context, Result, anyhow, bail};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;

mod code;
mod confine;
mod hold;

use code::code;

/// Pages that land at a time.
pub const BATCH: usize = 64;
/// Offset of the control block and its buffer in the stub's own memory. Before it is a page of
/// code; after it are a page of requests to hold descriptors open, and the landing area. The memory
/// is one range, so that one call unmaps it.
const CONTROL: u64 = PAGE;
/// Offset in the stub's memory, within the control block, of its number in its PID namespace.
const NUMBER: u64 = CONTROL + 12;
/// Offset in the stub's memory, within the control block, of the number of the context of
/// asynchronous I/O.
const CONTEXT: u64 = CONTROL + 24;
/// Offset in the stub's memory, within the control block, of [`Injection::mark`].
const MARK: u64 = CONTROL + 32;
const HOLDS: u64 = 5 * PAGE;
const OWN: u64 = 6 * PAGE;
const LANDING_BYTES: u64 = BATCH as u64 * PAGE;
const ALL: u64 = OWN + LANDING_BYTES;
/// Number of descriptors that can be held open: that of the target first, then those of children.
pub const HELD: usize = 64;
const BUFFER: u64 = 0x100;
const HEADER: usize = 16;
const CALL: usize = 64;
const BUFFER_BYTES: usize = 0x2f00;
/// How many times 200 ms the stub may take for an answer.
const STUB_WAITS: u32 = 50;
/// A call of the stub: its number and up to six arguments.
pub type Call = [u64; 7];

/// The stub of a target, as the keeper has it.
pub struct Stub {
    /// Process id of the stub.
    pub pid: i32,
    pidfd: OwnedFd,
    /// Address of the stub's memory in the target's address space.
    pub base: u64,
    /// Address of the landing area, [`BATCH`] pages.
    pub landing: u64,
    /// The context of asynchronous I/O that holds userfaultfds, 0 without one.
    context: u64,
    /// Whether absent pages can be marked.
    pub marks: bool,
    pub uffd: OwnedFd,
    /// The userfaultfd's number in the stub.
    pub uffd_there: i32,
    socket: OwnedFd,
    /// A socket over which descriptors go to the stub.
    gift: OwnedFd,
    /// Number, in the stub, of the socket's other end.
    gift_there: i32,
    sequence: u64,
    /// Whether the stub ended without being told.
    pub dead: bool,
}

impl Stub {
    /// Has a stopped target begin a stub. If this fails, nothing of the stub is left there, unless
    /// the target has ended: then [`end_unknown`] finds it.
    pub fn plant(traced: &mut Traced, target: i32, record: &Injection) -> Result<()> {
        record.is_fresh.store(1, Release);
        let base = traced.map(ALL)?;
        record.base.store(base, Release);
        let begun = Stub::begin(traced, target, base, record);
        if begun.is_err() {
            end_unknown(target, record);
            record.is_fresh.store(0, Release);
            let unmapped = traced.call([libc::SYS_munmap as u64, base, ALL, 0, 0, 0, 0]);
            if matches!(unmapped, Ok(0)) {
                record.base.store(0, Release);
            }
        }
        begun
    }

    fn begin(traced: &mut Traced, target: i32, base: u64, record: &Injection) -> Result<()> {
        const NO_CODE: &str = "the target may not execute what is written into its memory \
            (SELinux execmem, or PR_SET_MDWE): it cannot be attached to";
        // First of all: a child that another thread forks meanwhile gets nothing of it.
        let keep = [28, base, ALL, libc::MADV_DONTFORK as u64, 0, 0, 0];
        if traced.call(keep)? != 0 {
            bail!("the target cannot keep memory from its children (MADV_DONTFORK)");
        }
        let control = base + CONTROL;
        let write = |at: u64, bytes: &[u8]| {
            sys::write_memory(process::with_memory(target), at, bytes)
                .map_err(|errno| anyhow!("cannot write into the target (errno {errno})"))
        };
        write(base, code())?;
        record.is_fresh.store(0, Release);
        let mark = sys::now_ns() ^ u64::from(std::process::id()) << 40 | 1;
        record.mark.store(mark, Release);
        write(base + MARK, &mark.to_ne_bytes())?;
        // A descriptor that is none: without a process to wait for, the stub waits for ever.
        let hold = [-1i32, i32::from(libc::POLLIN)];
        let bytes: Vec<u8> = hold.iter().flat_map(|word| word.to_ne_bytes()).collect();
        write(control + 16, &bytes)?;
        let protect = [libc::SYS_mprotect as u64, base, PAGE, 5, 0, 0, 0];
        if traced.call(protect)? != 0 {
            bail!(NO_CODE);
        }
        traced.fork_stub(base, control, base + HOLDS - 64)
    }

    /// Takes hold of the stub that a target has begun.
    pub fn find(target: i32, record: &Injection) -> Result<Self> {
        let base = record.base.load(Acquire);
        let mut head = [0u8; 16];
        let started = sys::now_ns();
        loop {
            sys::read_memory(process::with_memory(target), base + CONTROL, &mut head)
                .map_err(|errno| anyhow!("cannot read the target (errno {errno})"))?;
            let word = |at: usize| i32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
            match word(8) {
                1 => break,
                0 if sys::now_ns() - started < 2_000_000_000 => sys::yield_now(),
                0 => bail!("the stub did not begin: is there a limit on processes (pids.max)?"),
                errno => bail!("the stub has no socket (errno {})", -errno),
            }
        }
        let number = i32::from_ne_bytes(head[12..16].try_into().unwrap());
        let pid = process::find_beside(target, number)
            .context("the stub cannot be found among the processes")?;
        // The number was read from the target's memory.
        if sys::shares_memory(pid, process::with_memory(target)) != Some(true) {
            bail!("process {pid} is not the stub: the target has changed its number");
        }
        Stub::equip(pid, base)
    }

    /// Has the stub make its descriptors and mappings, and takes copies of them.
    fn equip(pid: i32, base: u64) -> Result<Self> {
        let pidfd = sys::pidfd_open(pid).context("pidfd_open of the stub")?;
        // It has a descriptor of each forked child, whatever limit the target may have.
        sys::raise_descriptors(pid);
        // Its memory is the target's.
        sys::forbid_core(pid);
        let take = |fd: i32| {
            sys::pidfd_getfd(pidfd.as_raw_fd(), fd).context("cannot take a descriptor of the stub")
        };
        let socket = take(1)?;
        let devnull = || -> Result<OwnedFd> { Ok(std::fs::File::open("/dev/null")?.into()) };
        let mut stub = Stub {
            pid,
            pidfd: pidfd.try_clone()?,
            base,
            landing: base + OWN,
            context: 0,
            marks: false,
            uffd: devnull()?,
            uffd_there: -1,
            socket,
            gift: devnull()?,
            gift_there: -1,
            sequence: 0,
            dead: false,
        };
        let pair = stub.data_address(1);
        let mut data = [0u8; 8];
        stub.calls(&[[libc::SYS_close as u64, 1, 0, 0, 0, 0, 0]], &mut [])?;
        let made = stub.calls(&[[53, 1, 5 | 0x80000, 0, pair, 0, 0]], &mut data)?;
        expect(made[0], "socketpair")?;
        let pair = [0, 4].map(|at| i32::from_ne_bytes(data[at..at + 4].try_into().unwrap()));
        stub.gift = take(pair[1])?;
        stub.gift_there = pair[0];
        stub.calls(&[[libc::SYS_close as u64, pair[1] as u64, 0, 0, 0, 0, 0]], &mut [])?;
        stub.open_uffd(&take)?;
        stub.advise()?;
        stub.register_landing()?;
        Ok(stub)
    }

    fn open_uffd(&mut self, take: &dyn Fn(i32) -> Result<OwnedFd>) -> Result<()> {
        const NONE: &str = "cannot open /dev/userfaultfd: be root, and see `terrace doctor`";
        let device = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd")
            .context(NONE)?;
        let there = self.give(device.as_raw_fd())?;
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        let new = [libc::SYS_ioctl as u64, there as u64, sys::USERFAULTFD_IOC_NEW, flags, 0, 0, 0];
        let close = [libc::SYS_close as u64, there as u64, 0, 0, 0, 0, 0];
        let made = self.calls(&[new, close], &mut [])?;
        self.uffd_there = expect(made[0], "USERFAULTFD_IOC_NEW")? as i32;
        self.uffd = take(self.uffd_there)?;
        let uffd = self.uffd.as_raw_fd();
        let mut with = [0xaa, sys::FEATURES | sys::FEATURE_MOVE | sys::FEATURE_MARKS, 0];
        self.marks = sys::ioctl(uffd, sys::UFFDIO_API, &mut with).is_ok();
        let mut without = [0xaa, sys::FEATURES | sys::FEATURE_MOVE, 0];
        if !self.marks {
            sys::ioctl(uffd, sys::UFFDIO_API, &mut without).map_err(|errno| {
                anyhow!("the kernel does not move pages (UFFDIO_API: errno {errno}): Linux 6.8 is needed, and CAP_SYS_PTRACE")
            })?;
        }
        Ok(())
    }

    /// Keeps the stub's memory from core dumps and from huge pages.
    fn advise(&mut self) -> Result<()> {
        let advise = |at: u64, bytes: u64, advice: i32| [28, at, bytes, advice as u64, 0, 0, 0];
        let calls = [
            advise(self.landing, LANDING_BYTES, libc::MADV_NOHUGEPAGE),
            advise(self.base, ALL, libc::MADV_DONTDUMP),
        ];
        // Without huge pages in the kernel, the first is refused.
        let advised = self.calls(&calls, &mut [])?;
        expect(advised[1], "MADV_DONTDUMP").map(drop)
    }

    fn register_landing(&self) -> Result<()> {
        sys::register(self.uffd.as_raw_fd(), self.landing, self.landing + LANDING_BYTES, false)
            .map_err(|errno| anyhow!("cannot register the landing area (errno {errno})"))?;
        Ok(())
    }

    /// Address, in the target's memory, of the data of a request with `calls` calls.
    pub fn data_address(&self, calls: usize) -> u64 {
        self.base + CONTROL + BUFFER + (HEADER + calls * CALL) as u64
    }

    /// Makes calls in the stub, in their order. `data` is copied there and back.
    pub fn calls(&mut self, calls: &[Call], data: &mut [u8]) -> Result<Vec<i64>> {
        let sequence = self.send(calls, data)?;
        let answer = self.receive(sequence)?;
        let results = (0..calls.len()).map(|call| {
            let at = HEADER + call * CALL + 56;
            i64::from_ne_bytes(answer[at..at + 8].try_into().unwrap())
        });
        data.copy_from_slice(&answer[HEADER + calls.len() * CALL..][..data.len()]);
        Ok(results.collect())
    }

    fn send(&mut self, calls: &[Call], data: &[u8]) -> Result<u64> {
        self.sequence += 1;
        let mut packet = Vec::with_capacity(HEADER + calls.len() * CALL + data.len());
        packet.extend(self.sequence.to_ne_bytes());
        packet.extend((calls.len() as u64).to_ne_bytes());
        for call in calls {
            call.iter().for_each(|word| packet.extend(word.to_ne_bytes()));
            packet.extend(0u64.to_ne_bytes());
        }
        packet.extend_from_slice(data);
        assert!(packet.len() <= BUFFER_BYTES, "a request fits into the stub's buffer");
        if terrace_os::send(self.socket.as_raw_fd(), &packet) != Ok(packet.len()) {
            self.dead = true;
            bail!("the stub has ended");
        }
        Ok(self.sequence)
    }

    /// Receives the answer to a request; older answers, for a keeper that has ended, are passed
    /// over.
    fn receive(&mut self, sequence: u64) -> Result<Vec<u8>> {
        let mut answer = vec![0u8; BUFFER_BYTES];
        loop {
            let mut waits = 0;
            while !sys::wait_readable(self.socket.as_raw_fd(), 200) {
                // It may have been stopped by a signal.
                self.signal(libc::SIGCONT);
                // With its control group, and so with the target (`docker pause`): it goes on.
                waits += u32::from(!process::is_frozen(self.pid));
                if waits == STUB_WAITS {
                    self.kill();
                    bail!("the stub does not answer");
                }
            }
            let got = terrace_os::receive(self.socket.as_raw_fd(), &mut answer);
            if !got.is_ok_and(|bytes| bytes > 0) {
                self.dead = true;
                bail!("the stub has ended");
            }
            if answer[..8] == sequence.to_ne_bytes() {
                return Ok(answer);
            }
        }
    }

    /// Whether the stub has ended, also where no parent has waited for it.
    pub fn has_ended(&self) -> bool {
        self.dead || sys::wait_readable(self.pidfd.as_raw_fd(), 0)
    }

    /// Ends the stub at once. What it does just now is over when this returns.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.dead = true;
        while !sys::wait_readable(self.pidfd.as_raw_fd(), 1000) {}
    }

    fn signal(&self, signal: i32) {
        // It may have ended.
        let _ = sys::pidfd_signal(self.pidfd.as_raw_fd(), signal);
    }

    /// Waits until the stub has answered everything that was asked so far.
    pub fn settle(&mut self) -> Result<()> {
        // A number that no earlier request of any process had.
        self.sequence |= 1 << 63;
        self.calls(&[], &mut []).map(drop)
    }

    /// Gives the stub a copy of a descriptor. Returns its number there.
    pub fn give(&mut self, fd: i32) -> Result<i32> {
        terrace_os::send_descriptor(self.gift.as_raw_fd(), fd).map_err(|errno| {
            anyhow!("cannot give the stub a descriptor: {}", sys::io_error(errno))
        })?;
        // A msghdr with one byte of data and room for one descriptor.
        let at = self.data_address(1);
        let words: [u64; 7] = [0, 0, at + 56, 1, at + 80, 24, 0];
        let mut data = [0u8; 112];
        for (place, word) in data.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        data[56..64].copy_from_slice(&(at + 72).to_ne_bytes());
        data[64..72].copy_from_slice(&1u64.to_ne_bytes());
        let flags = libc::MSG_CMSG_CLOEXEC as u64;
        let received =
            self.calls(&[[47, self.gift_there as u64, at, flags, 0, 0, 0]], &mut data)?;
        expect(received[0], "recvmsg")?;
        let word = |at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().unwrap());
        let (control_bytes, header_bytes) = (word(40), word(80));
        if control_bytes < 20 || header_bytes != 20 {
            // The byte came, and the descriptor did not.
            bail!("the stub has no room for a descriptor (RLIMIT_NOFILE)");
        }
        let there = i32::from_ne_bytes(data[96..100].try_into().unwrap());
        if [0, self.gift_there, self.uffd_there].contains(&there) || there < 0 {
            bail!("the stub says that a descriptor is where another one is");
        }
        Ok(there)
    }

    /// Empties the landing area. It is not registered meanwhile: the discard would be an event.
    pub fn empty_landing(&mut self) -> Result<()> {
        let end = self.landing + BATCH as u64 * PAGE;
        let range = self.data_address(3);
        let mut data: Vec<u8> = [self.landing, end - self.landing, 1, 0]
            .iter()
            .flat_map(|word: &u64| word.to_ne_bytes())
            .collect();
        let there = self.uffd_there as u64;
        let calls = [
            [16, there, sys::UFFDIO_UNREGISTER, range, 0, 0, 0],
            [28, self.landing, end - self.landing, libc::MADV_DONTNEED as u64, 0, 0, 0],
            [16, there, sys::UFFDIO_REGISTER, range, 0, 0, 0],
        ];
        let done = self.calls(&calls, &mut data)?;
        expect(done[1], "MADV_DONTNEED")?;
        expect(done[2], "UFFDIO_REGISTER").map(drop)
    }

    /// Drops the copy of a page of the program's code, which is as the file has it.
    pub fn drop_copy(&mut self, page: u64) {
        let advice = libc::MADV_DONTNEED as u64;
        let _ = self.calls(&[[28, page, PAGE, advice, 0, 0, 0]], &mut []);
    }

    /// Takes everything of the stub's out of the target's memory, and ends it. The stub does it
    /// itself, by instructions outside of what it takes away.
    pub fn uproot(&mut self) -> Result<()> {
        // Another process may have its number by now.
        if self.has_ended() {
            bail!("the stub has ended");
        }
        let mut traced = Traced::stop_stub(self.pid)?;
        self.unmap_by(&mut traced, self.pid)?;
        traced.exit();
        // The next keeper that attaches would find it.
        sys::wait_readable(self.pidfd.as_raw_fd(), 1000);
        Ok(())
    }

    /// Unmaps what the stub has, by a stopped thread of a process of its memory.
    pub fn unmap_by(&self, traced: &mut Traced, pid: i32) -> Result<()> {
        // Otherwise it would be an event, and the thread would wait until it is read.
        let uffd = self.uffd.as_raw_fd();
        let _ = sys::unregister(uffd, self.landing, self.landing + LANDING_BYTES);
        unmap(traced, pid, self.base)
    }

    /// Whether an address range is the stub's.
    pub fn owns(&self, start: u64, end: u64) -> bool {
        start < self.base + ALL && end > self.base
    }
}

/// Whether the stub's code lies at an address of a process.
pub fn is_there(pid: i32, base: u64) -> bool {
    let mut there = vec![0; code().len()];
    let read = sys::read_memory(process::with_memory(pid), base, &mut there);
    read == Ok(there.len()) && there == code()
}

/// Unmaps what a stub has, by a stopped thread of its memory, if the stub is still there. What lies
/// there by now may be the program's.
pub fn unmap(traced: &mut Traced, pid: i32, base: u64) -> Result<()> {
    if !is_there(pid, base) {
        return Ok(());
    }
    let context = context_of(process::with_memory(pid), base)?;
    if context != 0 {
        traced.call([libc::SYS_io_destroy as u64, context, 0, 0, 0, 0, 0])?;
    }
    traced.call([libc::SYS_munmap as u64, base, ALL, 0, 0, 0, 0]).map(drop)
}

/// Unmaps what was mapped for a stub whose code was not written yet, by the thread that mapped it
/// and was held since.
pub fn unmap_fresh(traced: &mut Traced, base: u64) -> Result<()> {
    traced.call([libc::SYS_munmap as u64, base, ALL, 0, 0, 0, 0]).map(drop)
}

/// Ends a stub of which no more is known than where its memory is, and what marks that memory. The
/// stub's memory tells, not the target's: the target may have ended, or may execute another
/// program.
pub fn end_unknown(target: i32, record: &Injection) {
    /// How long the intermediate process may take to make it.
    const PATIENCE_NS: u64 = 1_000_000_000;
    let (base, mark) = (record.base.load(Acquire), record.mark.load(Acquire));
    let started = sys::now_ns();
    loop {
        let mut is_to_come = false;
        for pid in process::all().filter(|pid| *pid != target) {
            let Ok(pidfd) = sys::pidfd_open(pid) else { continue };
            match number_of_stub(pid, base, mark) {
                None => {}
                Some(0) => is_to_come = true,
                Some(number) if process::number_there(pid) == Some(number) => {
                    let _ = sys::pidfd_signal(pidfd.as_raw_fd(), libc::SIGKILL);
                    // What it does just now is to be over.
                    while !sys::wait_readable(pidfd.as_raw_fd(), 1000) {}
                    return;
                }
                // A child between vfork and exec.
                Some(_) => {}
            }
        }
        if !is_to_come || sys::now_ns() - started > PATIENCE_NS {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The number of the stub, as told by the memory of a process that has the mark; 0 before it is
/// made.
fn number_of_stub(pid: i32, base: u64, mark: u64) -> Option<i32> {
    let mut there = [0; 8];
    let read = sys::read_memory(pid, base + MARK, &mut there);
    if base == 0 || mark == 0 || read != Ok(8) || u64::from_ne_bytes(there) != mark {
        return None;
    }
    let mut number = [0; 4];
    sys::read_memory(pid, base + NUMBER, &mut number).ok()?;
    Some(i32::from_ne_bytes(number))
}

fn context_of(pid: i32, base: u64) -> Result<u64> {
    let mut context = [0; 8];
    sys::read_memory(pid, base + CONTEXT, &mut context)
        .map_err(|errno| anyhow!("cannot read the stub (errno {errno})"))?;
    Ok(u64::from_ne_bytes(context))
}

/// The result of a call in the stub, or an error that names it.
fn expect(result: i64, call: &str) -> Result<i64> {
    if result < 0 {
        bail!("the stub's {call} failed: {}", std::io::Error::from_raw_os_error(-result as i32));
    }
    Ok(result)
}
