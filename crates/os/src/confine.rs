//! What the companion may ask of the kernel once it runs.
//!
//! The program can write into the companion's stacks, which are in its memory. So whatever the
//! companion may do, a program that was taken over may do too. A filter leaves the companion the
//! calls that move pages. It keeps privileges out of reach that the program has given up. The
//! companion opens and executes nothing, and traces or signals no process but the program.

use crate::files::close;
use crate::ids::process_id;
use crate::pagemap::PAGEMAP_SCAN;
use crate::types::{Fd, PAGE, Result};
use crate::uffd::{
    UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT,
    UFFDIO_ZEROPAGE,
};
use syscalls::{Sysno, syscall};

/// Calls that are allowed whatever their arguments are: on memory, time, locks and open descriptors
/// of its own.
const PLAIN: [i64; 37] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_preadv2,
    libc::SYS_futex,
    libc::SYS_madvise,
    libc::SYS_ppoll,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munlock,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_write,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_rt_sigprocmask,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpriority,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getaffinity,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    libc::SYS_getdents64,
    libc::SYS_kcmp,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_membarrier,
];

/// Calls that are allowed where an argument, by its place, has one of these values (their lower 32
/// bits).
struct Restricted {
    number: i64,
    argument: usize,
    values: Vec<u32>,
}

/// Confines the calling thread for good, but for its CAP_SYS_NICE (23) and CAP_SYS_PTRACE (19),
/// which only the calls below can use. `program` is a descriptor of the program's process.
/// `Err` where the kernel has no such filters.
pub fn confine_thread(program: Fd) -> Result<()> {
    const CAP_KEPT: [u32; 2] = [19, 23];
    let restricted = |number, argument, values: &[u64]| Restricted {
        number,
        argument,
        values: values.iter().map(|value| *value as u32).collect(),
    };
    let process = process_id() as u64;
    let ioctls = [
        UFFDIO_REGISTER,
        UFFDIO_UNREGISTER,
        UFFDIO_WAKE,
        UFFDIO_COPY,
        UFFDIO_ZEROPAGE,
        UFFDIO_MOVE,
        UFFDIO_WRITEPROTECT,
        PAGEMAP_SCAN,
    ];
    let rules = [
        restricted(libc::SYS_ioctl, 1, &ioctls),
        restricted(libc::SYS_process_vm_readv, 0, &[process]),
        // Its own memory, and so the program's: it can write there anyway.
        restricted(libc::SYS_process_vm_writev, 0, &[process]),
        restricted(libc::SYS_move_pages, 0, &[0]),
        restricted(libc::SYS_setpriority, 1, &[0]),
        restricted(libc::SYS_sched_setattr, 0, &[0]),
        restricted(libc::SYS_sched_setscheduler, 0, &[0]),
        restricted(libc::SYS_sched_setaffinity, 0, &[0]),
        restricted(libc::SYS_pidfd_send_signal, 0, &[program as u64]),
        // Standard error, for a message.
        restricted(libc::SYS_pidfd_getfd, 0, &[program as u64]),
        restricted(libc::SYS_fcntl, 1, &[libc::F_DUPFD_CLOEXEC as u64]),
        restricted(libc::SYS_prctl, 0, &[libc::PR_GET_SECCOMP as u64]),
    ];
    let filter = filter(&rules);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    keep_capabilities(&CAP_KEPT);
    // SAFETY: the kernel reads the filter, which lives through the calls; they concern this thread
    // only.
    unsafe {
        syscall!(Sysno::prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)?;
        syscall!(Sysno::seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program).map(drop)
    }
}

/// The calling thread has these capabilities from now on, if it had them, and no others.
pub fn keep_capabilities(kept: &[u32]) {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable, for the first 32 capabilities and for the others.
    let mut sets = [0u32; 6];
    // SAFETY: the kernel reads the header and writes and reads six words.
    unsafe {
        if syscall!(Sysno::capget, header.as_ptr(), sets.as_mut_ptr()).is_err() {
            return;
        }
        let mask: u32 = kept.iter().map(|capability| 1 << capability).sum();
        sets = [sets[0] & mask, sets[1] & mask, 0, 0, 0, 0];
        let _ = syscall!(Sysno::capset, header.as_ptr(), sets.as_ptr());
    }
}

fn filter(rules: &[Restricted]) -> Vec<libc::sock_filter> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    #[cfg(target_arch = "x86_64")]
    const ARCHITECTURE: u32 = 0xC000_003E;
    #[cfg(target_arch = "aarch64")]
    const ARCHITECTURE: u32 = 0xC000_00B7;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refuse = step(ANSWER, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let allow = step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW);
    // struct seccomp_data: number, architecture, instruction pointer, six arguments of 8 bytes, the
    // lower half first.
    let mut steps =
        vec![step(LOAD, 0, 0, 4), step(EQUAL, 1, 0, ARCHITECTURE), refuse, step(LOAD, 0, 0, 0)];
    for number in PLAIN {
        steps.extend([step(EQUAL, 0, 1, number as u32), allow]);
    }
    for rule in rules {
        // Over the argument, two steps for each value, and the refusal.
        steps.push(step(EQUAL, 0, (2 + 2 * rule.values.len()) as u8, rule.number as u32));
        steps.push(step(LOAD, 0, 0, 16 + 8 * rule.argument as u32));
        for value in &rule.values {
            steps.extend([step(EQUAL, 0, 1, *value), allow]);
        }
        steps.push(refuse);
    }
    steps.push(refuse);
    steps
}

/// Keeps open files open for as long as this memory lives, whatever closes them and whichever
/// process ends. An io_uring has the files, and is mapped here, but not in forked children. The
/// kernel insists on choosing where it lies. A program that maps over it loses this and nothing
/// else.
pub fn hold_open(files: &[Fd]) -> Result<()> {
    const REGISTER_FILES: usize = 2;
    let mut parameters = [0u32; 30];
    // SAFETY: the kernel writes `struct io_uring_params`, 120 bytes, and reads the descriptors; the
    // mapping is new.
    unsafe {
        let ring = syscall!(Sysno::io_uring_setup, 1, parameters.as_mut_ptr())?;
        let held =
            syscall!(Sysno::io_uring_register, ring, REGISTER_FILES, files.as_ptr(), files.len())
                .and_then(|_| {
                    let at =
                        syscall!(Sysno::mmap, 0, PAGE, libc::PROT_READ, libc::MAP_SHARED, ring, 0)?;
                    syscall!(Sysno::madvise, at, PAGE, libc::MADV_DONTFORK)
                });
        close(ring as Fd);
        held.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{files::open, process::survives, types::Errno};

    #[test]
    fn a_confined_thread_opens_executes_and_traces_nothing() {
        let test = process_id();
        let refused = || {
            if confine_thread(-1).is_err() {
                return;
            }
            let path = c"/bin/true".as_ptr();
            let (mut word, parts) = (0u64, [0usize; 2]);
            let part = [(&raw mut word) as usize, 8];
            // SAFETY: in a child that ends right after: what is tried has no effect if it is
            // refused, and fails the test if not.
            let tried = unsafe {
                [
                    open("/etc/passwd\0", libc::O_RDONLY, 0).map(|fd| fd as usize),
                    syscall!(Sysno::execve, path, 0, 0),
                    syscall!(Sysno::kill, test, 0),
                    syscall!(Sysno::tgkill, test, test, 0),
                    syscall!(Sysno::ptrace, libc::PTRACE_SEIZE, test, 0, 0),
                    syscall!(Sysno::process_vm_readv, test, part.as_ptr(), 1, part.as_ptr(), 1, 0),
                    syscall!(
                        Sysno::process_vm_writev,
                        test,
                        parts.as_ptr(),
                        0,
                        parts.as_ptr(),
                        0,
                        0
                    ),
                    syscall!(Sysno::pidfd_open, test, 0),
                    syscall!(Sysno::socket, libc::AF_INET, libc::SOCK_STREAM, 0),
                    syscall!(Sysno::clone, 0, 0, 0, 0, 0),
                    syscall!(Sysno::unshare, libc::CLONE_NEWNS),
                    syscall!(Sysno::setresuid, 0, 0, 0),
                    syscall!(Sysno::userfaultfd, 0),
                    syscall!(Sysno::bpf, 0, 0, 0),
                ]
            };
            if tried.iter().any(|result| *result != Err(Errno::EPERM)) {
                // SAFETY: ends the child with a status that says so.
                let _ = unsafe { syscall!(Sysno::exit_group, 1) };
            }
        };
        assert_eq!(survives(refused), Ok(true));
    }
}
