//! Tests over several modules.

use crate::*;
use crate::{threads::TURN_NS, types::without_tag};
use syscalls::{Sysno, syscall};

#[test]
fn a_thread_in_the_background_takes_short_turns() {
    // SAFETY: concerns this thread only; the kernel writes no more than the size it is told.
    let attributes = || unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let asked = syscall!(
            Sysno::sched_getattr,
            0,
            &raw mut attributes,
            size_of::<libc::sched_attr>(),
            0
        );
        asked.expect("the kernel tells how a thread is scheduled");
        attributes
    };
    let before = attributes();
    if before.sched_policy != libc::SCHED_OTHER as u32 {
        println!("skipped: the test itself is not scheduled as an ordinary thread");
        return;
    }
    assert!(set_thread_nice(before.sched_nice + 1));
    set_thread_background();
    let after = attributes();
    assert_eq!(
        (after.sched_policy, after.sched_nice),
        (libc::SCHED_BATCH as u32, before.sched_nice + 1)
    );
    // Before Linux 6.12 the kernel says nothing of turns.
    assert!(after.sched_runtime == TURN_NS || before.sched_runtime == 0, "{}", after.sched_runtime);
}

#[test]
fn a_tag_is_no_part_of_an_address_where_there_are_tags() {
    let address = 0x7f12_3456_7000;
    for tag in [0, 1, 0x0f, 0x80, 0xff_usize] {
        assert_eq!(without_tag(address | tag << 56, true), address);
        assert_eq!(without_tag(address | tag << 56, false), address | tag << 56);
    }
    // What is beyond all user addresses stays there.
    assert_eq!(without_tag(address | 1 << 48, true), address | 1 << 48);
    assert_eq!(without_tag(usize::MAX, true), usize::MAX);
    assert_eq!(untagged(address), address);
}

/// A constant that nothing else reads. The kernel maps 64 KiB around what is read.
static CONSTANT: [u8; 256 << 10] = [7; 256 << 10];

#[test]
fn own_code_is_mapped_again_when_it_is_needed_and_stays_where_somebody_changed_it() {
    use std::os::unix::fs::FileExt;
    let middle = &raw const CONSTANT[CONSTANT.len() / 2];
    // SAFETY: inside a constant; volatile, as a debugger may have changed it.
    let read = || unsafe { middle.read_volatile() };
    let pagemap = open("/proc/thread-self/pagemap\0", libc::O_RDONLY, 0).unwrap();
    assert_eq!(read(), 7);
    assert!(is_present(pagemap, middle as usize));
    forget_own_code(pagemap);
    assert!(!is_present(pagemap, middle as usize));
    assert_eq!(read(), 7);
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    memory.write_at(&[8], middle as u64).unwrap();
    forget_own_code(pagemap);
    assert!(is_present(pagemap, middle as usize));
    assert_eq!(read(), 8);
    close(pagemap);
}
