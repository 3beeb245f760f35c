//! The stub: a process in the target's address space that makes the system calls it is told.
//!
//! A request is one packet on a socket: how many calls, their numbers and arguments, and data that
//! arguments may point to. The stub receives it into its buffer, makes the calls in order, writes
//! each result beside its call, and sends the buffer back. It uses no stack and no library.
//!
//! It is not the target's child: the target's thread makes an intermediate process (waiting as
//! after vfork), which makes the stub and ends. So the target gets no SIGCHLD, and a program that
//! it executes inherits no zombie.

use crate::inject::Traced;
use crate::process;
use crate::sys::{self, PAGE};
use anyhow::{Context, Result, anyhow, bail};
use std::os::fd::{AsRawFd, OwnedFd};

std::arch::global_asm!(
    ".pushsection .rodata.terrace_attach_stub, \"a\", @progbits",
    ".globl terrace_attach_stub_begin, terrace_attach_stub_end",
    "terrace_attach_stub_begin:",
    // In the target's thread; the tracer has set the registers for clone. r12: control block,
    // r13: a stack for the stub (never used).
    "syscall",
    "test rax, rax",
    "jz 2f",
    "1: jmp 1b",
    // The intermediate process.
    "2: mov eax, 56",
    "mov edi, 0x800100", // CLONE_VM | CLONE_UNTRACED
    "mov rsi, r13",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test rax, rax",
    "jz 3f",
    "mov [r12 + 12], eax",
    "mov eax, 231",
    "xor edi, edi",
    "syscall",
    // The stub: away from the target's descriptors, then a socket at 0 and 1.
    "3: mov eax, 436",
    "xor edi, edi",
    "mov esi, 0xffffffff",
    "xor edx, edx",
    "syscall",
    "mov eax, 53",
    "mov edi, 1",
    "mov esi, 0x80005", // SOCK_SEQPACKET | SOCK_CLOEXEC
    "xor edx, edx",
    "mov r10, r12",
    "syscall",
    "test rax, rax",
    "mov ecx, 1",
    "cmovz eax, ecx",
    "mov [r12 + 8], eax",
    // One request after the other.
    "4: xor eax, eax",
    "mov edi, [r12]",
    "lea rsi, [r12 + 0x100]",
    "mov edx, 0x2f00",
    "syscall",
    "test rax, rax",
    "jz 7f",
    "js 4b",
    "mov r15, rax",
    "mov r14, [r12 + 0x108]",
    "lea rbx, [r12 + 0x110]",
    "5: test r14, r14",
    "jz 6f",
    "mov rax, [rbx]",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "syscall",
    "mov [rbx + 56], rax",
    "add rbx, 64",
    "dec r14",
    "jmp 5b",
    "6: mov eax, 1",
    "mov edi, [r12]",
    "lea rsi, [r12 + 0x100]",
    "mov rdx, r15",
    "syscall",
    "jmp 4b",
    // Nobody is left who could ask: hold the descriptors open until the target has ended.
    "7: mov eax, 7",
    "lea rdi, [r12 + 16]",
    "mov esi, 1",
    "mov rdx, -1",
    "syscall",
    "test rax, rax",
    "js 7b",
    "mov eax, 231",
    "xor edi, edi",
    "syscall",
    "terrace_attach_stub_end:",
    ".popsection",
);

unsafe extern "C" {
    static terrace_attach_stub_begin: u8;
    static terrace_attach_stub_end: u8;
}

/// Pages that land at a time.
pub const BATCH: usize = 64;
/// The stub's own memory: a page of code, then the control block and its buffer.
const CONTROL: u64 = PAGE;
const OWN: u64 = 5 * PAGE;
const BUFFER: u64 = 0x100;
const HEADER: usize = 16;
const CALL: usize = 64;
const BUFFER_BYTES: usize = 0x2f00;
/// Calls with this number of arguments, or fewer.
pub type Call = [u64; 7];

fn code() -> &'static [u8] {
    // SAFETY: both symbols are in this program, in one section of read-only data, in this order.
    unsafe {
        let begin = &raw const terrace_attach_stub_begin;
        let end = &raw const terrace_attach_stub_end;
        std::slice::from_raw_parts(begin, end.offset_from(begin) as usize)
    }
}

/// The stub of one target, as the keeper has it.
pub struct Stub {
    /// Its process id.
    pub pid: i32,
    /// Its numbers in the target's address space.
    pub base: u64,
    /// The landing area, [`BATCH`] pages.
    pub landing: u64,
    /// A mapping of an io_uring that holds the userfaultfd, 0 without one.
    ring: u64,
    pub uffd: OwnedFd,
    /// The userfaultfd's number in the stub.
    pub uffd_there: i32,
    socket: OwnedFd,
    /// A socket over which descriptors go to the stub, and its number there.
    gift: OwnedFd,
    gift_there: i32,
    sequence: u64,
    /// Whether it ended without being told.
    pub dead: bool,
}

impl Stub {
    /// Puts a stub into a stopped target. Nothing of it is left there if this fails.
    pub fn plant(traced: &mut Traced, target: i32) -> Result<Self> {
        let base = traced.map(OWN)?;
        let planted = Stub::begin(traced, target, base);
        if planted.is_err() {
            traced.call([libc::SYS_munmap as u64, base, OWN, 0, 0, 0, 0]).ok();
        }
        planted
    }

    fn begin(traced: &mut Traced, target: i32, base: u64) -> Result<Self> {
        const NO_CODE: &str = "the target may not execute what is written into its memory \
            (SELinux execmem, or PR_SET_MDWE): it cannot be attached to";
        let control = base + CONTROL;
        sys::write_memory(target, base, code())
            .map_err(|errno| anyhow!("cannot write into the target (errno {errno})"))?;
        // A descriptor that is none: without a process to wait for, the stub waits for ever.
        let hold = [-1i32, i32::from(libc::POLLIN)];
        let bytes: Vec<u8> = hold.iter().flat_map(|word| word.to_ne_bytes()).collect();
        sys::write_memory(target, control + 16, &bytes)
            .map_err(|errno| anyhow!("cannot write into the target (errno {errno})"))?;
        let protect = [libc::SYS_mprotect as u64, base, PAGE, 5, 0, 0, 0];
        if traced.call(protect)? != 0 {
            bail!(NO_CODE);
        }
        traced.fork_stub(base, control, base + OWN - 64)?;
        let mut head = [0u8; 16];
        let started = sys::now_ns();
        loop {
            sys::read_memory(target, control, &mut head)
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
        let made = Stub::equip(pid, base);
        if made.is_err() {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        made
    }

    /// Has the stub make its descriptors and mappings, and takes copies of them.
    fn equip(pid: i32, base: u64) -> Result<Self> {
        let pidfd = sys::pidfd_open(pid).context("pidfd_open of the stub")?;
        let take = |fd: i32| {
            sys::pidfd_getfd(pidfd.as_raw_fd(), fd).context("cannot take a descriptor of the stub")
        };
        let socket = take(1)?;
        let devnull = || -> Result<OwnedFd> { Ok(std::fs::File::open("/dev/null")?.into()) };
        let mut stub = Stub {
            pid,
            base,
            landing: 0,
            ring: 0,
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
        stub.map_landing()?;
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
        let new = [libc::SYS_ioctl as u64, there as u64, sys::USERFAULTFD_NEW, flags, 0, 0, 0];
        let close = [libc::SYS_close as u64, there as u64, 0, 0, 0, 0, 0];
        let made = self.calls(&[new, close], &mut [])?;
        self.uffd_there = expect(made[0], "USERFAULTFD_IOC_NEW")? as i32;
        self.uffd = take(self.uffd_there)?;
        let wanted = sys::FEATURES | sys::FEATURE_MOVE;
        let mut api = [0xaa, wanted, 0];
        sys::ioctl(self.uffd.as_raw_fd(), sys::UFFDIO_API, &mut api).map_err(|errno| {
            anyhow!("the kernel does not move pages (UFFDIO_API: errno {errno}): Linux 6.8 is needed, and CAP_SYS_PTRACE")
        })?;
        Ok(())
    }

    fn map_landing(&mut self) -> Result<()> {
        let bytes = BATCH as u64 * PAGE;
        let mapped = self.calls(&[[9, 0, bytes, 3, 0x22, u64::MAX, 0]], &mut [])?;
        self.landing = expect(mapped[0], "mmap")? as u64;
        let advise = |advice: i32| [28, self.landing, bytes, advice as u64, 0, 0, 0];
        let own = |advice: i32| [28, self.base, OWN, advice as u64, 0, 0, 0];
        let calls = [
            advise(libc::MADV_NOHUGEPAGE),
            advise(libc::MADV_DONTFORK),
            advise(libc::MADV_DONTDUMP),
            own(libc::MADV_DONTFORK),
            own(libc::MADV_DONTDUMP),
        ];
        // Without huge pages in the kernel, the first is refused.
        let advised = self.calls(&calls, &mut [])?;
        expect(advised[1] | advised[3], "MADV_DONTFORK")?;
        self.register_landing()
    }

    fn register_landing(&self) -> Result<()> {
        sys::register(self.uffd.as_raw_fd(), self.landing, self.landing + BATCH as u64 * PAGE)
            .map_err(|errno| anyhow!("cannot register the landing area (errno {errno})"))?;
        Ok(())
    }

    /// Has descriptors outlive everybody: the io_uring that has them lives as long as its mapping,
    /// which is part of the target's memory. Does nothing where io_uring is forbidden.
    pub fn hold(&mut self) -> Result<()> {
        let params = self.data_address(1);
        let made = self.calls(&[[425, 1, params, 0, 0, 0, 0]], &mut [0; 120])?;
        let Ok(ring) = expect(made[0], "io_uring_setup") else { return Ok(()) };
        let list = self.data_address(3);
        let mut data = (self.uffd_there as u32).to_ne_bytes();
        let calls = [
            // IORING_REGISTER_FILES
            [427, ring as u64, 2, list, 1, 0, 0],
            [9, 0, PAGE, 3, 0x8001, ring as u64, 0],
            [libc::SYS_close as u64, ring as u64, 0, 0, 0, 0, 0],
        ];
        let held = self.calls(&calls, &mut data)?;
        if held[1] > 0 {
            self.ring = held[1] as u64;
            let advise = |advice: i32| [28, self.ring, PAGE, advice as u64, 0, 0, 0];
            self.calls(&[advise(libc::MADV_DONTFORK), advise(libc::MADV_DONTDUMP)], &mut [])?;
        }
        Ok(())
    }

    /// Confines the stub: no privilege, and no calls but those that it is there for. It waits for
    /// the target's end if nobody else is left.
    pub fn confine(&mut self, target_there: i32) -> Result<()> {
        let opened = self.calls(&[[434, target_there as u64, 0, 0, 0, 0, 0]], &mut [])?;
        let pidfd = expect(opened[0], "pidfd_open")? as i32;
        sys::write_memory(self.pid, self.base + CONTROL + 16, &pidfd.to_ne_bytes())
            .map_err(|errno| anyhow!("cannot write into the stub (errno {errno})"))?;
        let filter = filter();
        let mut data = Vec::new();
        let calls_n = 4;
        let header = self.data_address(calls_n);
        // capset: version and process, then no capability.
        data.extend([0x2008_0522u32, 0, 0, 0, 0, 0, 0, 0].iter().flat_map(|w| w.to_ne_bytes()));
        let program = header + data.len() as u64;
        data.extend((filter.len() as u64).to_ne_bytes());
        data.extend((program + 16).to_ne_bytes());
        for (code, jt, jf, k) in &filter {
            data.extend(code.to_ne_bytes());
            data.extend([*jt, *jf]);
            data.extend(k.to_ne_bytes());
        }
        let calls = [
            [libc::SYS_setsid as u64, 0, 0, 0, 0, 0, 0],
            [libc::SYS_capset as u64, header, header + 8, 0, 0, 0, 0],
            [libc::SYS_prctl as u64, libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0, 0],
            [libc::SYS_seccomp as u64, 1, 0, program, 0, 0, 0],
        ];
        let done = self.calls(&calls, &mut data)?;
        expect(done[1], "capset")?;
        expect(done[2], "PR_SET_NO_NEW_PRIVS")?;
        expect(done[3], "seccomp").map(drop)
    }

    /// Where data of a request of so many calls lies, in the target's memory.
    pub fn data_address(&self, calls: usize) -> u64 {
        self.base + CONTROL + BUFFER + (HEADER + calls * CALL) as u64
    }

    /// Makes calls in the stub, in their order. `data` goes there and comes back.
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
        // SAFETY: the packet is readable for its length.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        if sent != packet.len() as isize {
            self.dead = true;
            bail!("the stub has ended");
        }
        Ok(self.sequence)
    }

    /// The answer to a request; older ones, for a keeper that has ended, are passed over.
    fn receive(&mut self, sequence: u64) -> Result<Vec<u8>> {
        let mut answer = vec![0u8; BUFFER_BYTES];
        loop {
            while !sys::wait_readable(self.socket.as_raw_fd(), 200) {
                // Somebody may have stopped it.
                let _ = sys::kill(self.pid, libc::SIGCONT);
            }
            // SAFETY: the buffer is writable for its length.
            let got = unsafe {
                libc::recv(self.socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0)
            };
            if got <= 0 {
                self.dead = true;
                bail!("the stub has ended");
            }
            if answer[..8] == sequence.to_ne_bytes() {
                return Ok(answer);
            }
        }
    }

    /// Waits until the stub has answered everything that was asked so far.
    pub fn settle(&mut self) -> Result<()> {
        // A number that no earlier request had, whoever made it.
        self.sequence |= 1 << 63;
        self.calls(&[], &mut []).map(drop)
    }

    /// Gives the stub a copy of a descriptor; its number there.
    pub fn give(&mut self, fd: i32) -> Result<i32> {
        send_descriptor(self.gift.as_raw_fd(), fd)?;
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
        Ok(i32::from_ne_bytes(data[96..100].try_into().unwrap()))
    }

    /// Empties the landing area. It is not registered meanwhile: its own discard would be an event.
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

    /// Takes everything of the stub's out of the target's memory, and ends it. The stub does it
    /// itself, by instructions outside of what it takes away.
    pub fn uproot(&mut self) -> Result<()> {
        let _ = sys::unregister(
            self.uffd.as_raw_fd(),
            self.landing,
            self.landing + BATCH as u64 * PAGE,
        );
        let mut traced = Traced::stop(self.pid, self.pid)?;
        self.unmap_by(&mut traced)?;
        traced.exit();
        Ok(())
    }

    /// Unmaps what the stub had, by a stopped thread of its memory.
    pub fn unmap_by(&self, traced: &mut Traced) -> Result<()> {
        let _ = sys::unregister(
            self.uffd.as_raw_fd(),
            self.landing,
            self.landing + BATCH as u64 * PAGE,
        );
        if self.ring != 0 {
            traced.call([libc::SYS_munmap as u64, self.ring, PAGE, 0, 0, 0, 0])?;
        }
        let landing = BATCH as u64 * PAGE;
        traced.call([libc::SYS_munmap as u64, self.landing, landing, 0, 0, 0, 0])?;
        traced.call([libc::SYS_munmap as u64, self.base, OWN, 0, 0, 0, 0])?;
        Ok(())
    }

    /// Whether an address range is the stub's.
    pub fn owns(&self, start: u64, end: u64) -> bool {
        let of = |at: u64, bytes: u64| start < at + bytes && end > at;
        of(self.base, OWN) || of(self.landing, BATCH as u64 * PAGE)
    }
}

/// The result of a call in the stub, or an error that names it.
fn expect(result: i64, call: &str) -> Result<i64> {
    if result < 0 {
        bail!("the stub's {call} failed: {}", std::io::Error::from_raw_os_error(-result as i32));
    }
    Ok(result)
}

fn send_descriptor(socket: i32, fd: i32) -> Result<()> {
    let mut byte = [0u8; 1];
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0u64; 3];
    // SAFETY: all structures live until the call is over; the control buffer has room for a header
    // and one descriptor.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut data;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 24;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL)
    };
    if sent != 1 {
        bail!("cannot give the stub a descriptor: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

/// A seccomp filter (code, jump if true, jump if false, operand): what the stub may call.
fn filter() -> Vec<(u16, u8, u8, u32)> {
    const ALLOWED: [i64; 9] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_ioctl,
        libc::SYS_madvise,
        libc::SYS_munmap,
        libc::SYS_poll,
        libc::SYS_recvmsg,
        libc::SYS_close,
        libc::SYS_exit_group,
    ];
    let (load, equal, give) = (0x20, 0x15, 0x06);
    let mut filter = vec![
        // Another architecture's numbers mean other calls.
        (load, 0, 0, 4),
        (equal, 1, 0, 0xc000_003e),
        (give, 0, 0, 0x8000_0000),
        (load, 0, 0, 0),
    ];
    for (number, call) in ALLOWED.iter().enumerate() {
        filter.push((equal, (ALLOWED.len() - number) as u8, 0, *call as u32));
    }
    filter.push((give, 0, 0, 0x0005_0000 | libc::EPERM as u32));
    filter.push((give, 0, 0, 0x7fff_0000));
    filter
}
