//! Whether a seccomp filter lets us do our work.
//!
//! A filter may fail a system call, which is borne. Or it may end the process that makes the call,
//! which would be the program's end and our fault. So where a filter is in force, all calls that
//! programs seldom make are made in a child first, which may die of it.

use terrace_os::{self as sys, PAGE};
use terrace_tiers::FileMedium;

/// Tries whether a seccomp filter stands in the way of us, or of tiers in files in these
/// directories. With `far` it also tries what a tier of far memory needs. The error is a sentence
/// for the user.
pub fn probe(directories: &[&str], far: bool) -> Result<(), String> {
    if sys::is_filtered() {
        match sys::survives(|| make_seldom_calls(directories, far)) {
            Ok(true) => {}
            Ok(false) => {
                return Err(
                    "a seccomp filter ends processes that make Terrace's system calls: all memory stays in DRAM. To change that: allow \
                    userfaultfd, ioctl, preadv2, process_vm_*, close_range, pidfd_getfd, and for tiers in files fallocate and cachestat (docs/privileges.md)"
                        .into(),
                );
            }
            Err(e) => {
                return Err(format!(
                    "cannot make a child that tries what a seccomp filter allows ({e}): all memory stays in DRAM"
                ));
            }
        }
    }
    // With process_vm_readv we look at what the program tells the kernel to move or give up,
    // wherever that lies. With process_vm_writev a forked child that has no companion restores its
    // pages, and statistics are told.
    let mut known = 1u8;
    let address = &raw mut known as usize;
    // SAFETY: a byte of this frame.
    let writes = || unsafe { sys::poke(address, &[1]) };
    if !sys::peek(address, &mut [0]) {
        Err("process_vm_readv is refused (by a seccomp filter?), without which a call of the program could lose data: all memory stays in DRAM".into())
    } else if !writes() {
        Err("process_vm_writev is refused (by a seccomp filter?), without which a forked child could not get its data: all memory stays in DRAM"
            .into())
    } else {
        Ok(())
    }
}

/// Whether the calls may be made that hold our userfaultfds open and confine the companion. Terrace
/// works without either.
pub fn probe_confinement() -> bool {
    let calls = || {
        let Ok(file) = sys::open("/dev/null\0", libc::O_RDONLY, 0) else { return };
        let _ = sys::hold_open(&[file]);
        let _ = sys::confine_thread(-1);
    };
    !sys::is_filtered() || sys::survives(calls) == Ok(true)
}

/// Makes the calls, in a child: whether they succeed does not matter, only that they return.
fn make_seldom_calls(directories: &[&str], far: bool) {
    let mut known = 1u8;
    sys::peek(&raw const known as usize, &mut [0]);
    // SAFETY: a byte of this frame.
    unsafe { sys::poke(&raw mut known as usize, &[1]) };
    let _ = sys::leave_descriptor_table(Vec::new());
    directories.iter().for_each(|directory| FileMedium::make_all_calls(directory));
    sys::set_thread_nice(sys::nice_of_thread());
    sys::set_thread_background();
    sys::yield_now();
    if let Ok(device) = sys::open("/dev/userfaultfd\0", libc::O_RDWR, 0) {
        let _ = sys::userfaultfd(Some(device));
    }
    let _ = sys::descriptor_of(sys::process_id(), 0);
    sys::signal_process(sys::process_descriptor(sys::process_id()).unwrap_or(-1), 0);
    let _ = sys::watch_program();
    sys::others_share_memory();
    let (Ok(fd), Ok(memory)) = (sys::userfaultfd(None), sys::reserve(3 * PAGE)) else { return };
    let _ = sys::duplicate_from(fd, 3);
    let _ = sys::uffd_api(fd, 0);
    let _ = sys::uffd_register(fd, memory, 2 * PAGE, false);
    let _ = sys::uffd_read_now(fd, &mut [sys::Message::default()]);
    let _ = sys::uffd_write_protect(fd, memory, PAGE, true);
    let source = memory + 2 * PAGE;
    // SAFETY: three pages of our own that nothing else uses; the third is not registered, so its
    // first touch fills it.
    unsafe {
        (source as *mut u8).write_volatile(1);
        let _ = sys::uffd_copy(fd, memory, source);
        let _ = sys::uffd_zero(fd, memory + PAGE);
        let _ = sys::advise(memory, PAGE, libc::MADV_DONTNEED);
        let _ = sys::advise(source, PAGE, libc::MADV_POPULATE_WRITE);
    }
    sys::page_out(sys::own_process().unwrap_or(-1), &[(source, PAGE)]);
    if far {
        let _ = sys::locate_pages(&[source], &mut [0]);
        let _ = sys::move_pages(&[source], &[0], &mut [0]);
    }
    if let Ok(pagemap) = sys::open("/proc/thread-self/pagemap\0", libc::O_RDONLY, 0) {
        let _ = sys::scan_present(pagemap, memory, memory + PAGE, &mut [sys::Run::default()]);
        // A move that fails is looked into until the pagemap answers.
        if sys::tells_of(pagemap, memory) {
            // SAFETY: as above; the first page has just been given away.
            let _ = unsafe { sys::uffd_move(fd, pagemap, memory, source, PAGE) };
        }
    }
    sys::uffd_wake(fd, memory, PAGE);
    let _ = sys::uffd_unregister(fd, memory, 2 * PAGE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_itself_does_not_survive() {
        assert_eq!(sys::survives(|| {}), Ok(true));
        assert_eq!(sys::survives(|| make_seldom_calls(&["/dev/shm"], true)), Ok(true));
        assert_eq!(sys::survives(|| std::process::abort()), Ok(false));
    }
}
