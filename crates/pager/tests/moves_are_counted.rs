//! Compares what UFFDIO_MOVE says it moved with what it moved, while threads write to the pages,
//! and children start and end. Linux 6.18 miscounts ([`sys::uffd_move`]): without the correction
//! there this fails, mostly within a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use terrace_os::{self as sys, Errno, PAGE};

const PAGES: usize = 64;
const WRITERS: usize = 3;
const TIME: Duration = Duration::from_secs(5);

/// Every writer owns one word of each page, and finds in it what it wrote there last.
fn write_until(stop: &AtomicBool, base: usize, writer: usize) {
    let mut written = [0u64; PAGES];
    let mut page = writer * 7;
    while !stop.load(Relaxed) {
        page = (page * 5 + 3) % PAGES;
        // SAFETY: the pages are mapped for the whole test; only this writer uses the word.
        let word = unsafe { &*((base + page * PAGE + writer * 64) as *const AtomicU64) };
        assert_eq!(
            word.load(Relaxed),
            written[page],
            "writer {writer} lost an update of page {page}"
        );
        written[page] += 1;
        word.store(written[page], Relaxed);
    }
}

/// After a fork all pages are copy-on-write until written again: the kernel changes their entries
/// while they are moved.
fn fork_until(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        // SAFETY: the child leaves at once, with an async-signal-safe call.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(0),
                child => {
                    assert!(child > 0 && libc::waitpid(child, std::ptr::null_mut(), 0) == child)
                }
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What the processor notes of an access, taken back: the writers' next accesses change the entries
/// too.
fn age_until(stop: &AtomicBool, base: usize) {
    while !stop.load(Relaxed) {
        // SAFETY: changes no contents; of pages that are away it says nothing.
        let _ = unsafe { sys::advise(base, PAGES * PAGE, libc::MADV_COLD) };
    }
}

/// Ends the test, but not by a panic: the writers wait for pages that no thread will restore.
fn wrong(what: &str) -> ! {
    eprintln!("{what}");
    std::process::abort()
}

#[test]
fn moves_are_counted() {
    let open = || {
        let fd = sys::userfaultfd(None).ok()?;
        sys::uffd_api(fd, sys::FEATURE_MOVE).ok().map(|_| fd)
    };
    let (Some(home), Some(away)) = (open(), open()) else {
        let strict =
            std::env::var_os("CI").is_some() || std::env::var_os("TERRACE_NO_SKIP").is_some();
        assert!(!strict, "no userfaultfd on a machine that must have it");
        return eprintln!(
            "skipped: no right to userfaultfd, or a kernel before 6.8 (terrace doctor tells which)"
        );
    };
    let pagemap = sys::open("/proc/self/pagemap\0", libc::O_RDONLY, 0).unwrap();
    let (base, staging) =
        (sys::reserve(PAGES * PAGE).unwrap(), sys::reserve(PAGES * PAGE).unwrap());
    for page in 0..PAGES {
        // SAFETY: our own reservation; written once so that no page is missing when the writers
        // begin.
        unsafe { ((base + page * PAGE) as *mut u8).write(0) };
    }
    sys::uffd_register(home, base, PAGES * PAGE, false).unwrap();
    sys::uffd_register(away, staging, PAGES * PAGE, false).unwrap();
    let stop = AtomicBool::new(false);
    let (mut rounds, mut pages) = (0u64, 0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let stop = &stop;
            scope.spawn(move || write_until(stop, base, writer));
        }
        scope.spawn(|| fork_until(&stop));
        scope.spawn(|| age_until(&stop, base));
        while started.elapsed() < TIME {
            let first = rounds as usize * 11 % PAGES * PAGE;
            let len = PAGES * PAGE - first;
            // SAFETY: both areas are this test's; what is away comes back below, and only then does
            // a writer see its page.
            let (out, stopped) =
                unsafe { sys::uffd_move(away, pagemap, staging, base + first, len) };
            for page in (0..len).step_by(PAGE) {
                let (here, there) = (
                    sys::is_mapped(pagemap, base + first + page),
                    sys::is_mapped(pagemap, staging + page),
                );
                if (here, there) != (page >= out, page < out) {
                    wrong(&format!(
                        "page {page:#x} of {out:#x} moved bytes is here: {here}, there: {there} ({stopped:?})"
                    ));
                }
            }
            let mut back = 0;
            while back < out {
                // SAFETY: as above; moving wakes the threads that wait for the pages. A page that a
                // fork made copy-on-write moves after it was written.
                unsafe {
                    let (bytes, stopped) = sys::uffd_move(
                        home,
                        pagemap,
                        base + first + back,
                        staging + back,
                        out - back,
                    );
                    back += bytes;
                    match stopped {
                        None => {}
                        Some(Errno::EBUSY) => {
                            sys::advise(staging + back, PAGE, libc::MADV_POPULATE_WRITE).unwrap()
                        }
                        Some(errno) => wrong(&format!("a page does not come back: {errno}")),
                    }
                }
            }
            rounds += 1;
            pages += out / PAGE;
        }
        stop.store(true, Relaxed);
    });
    assert!(pages > 0, "in {rounds} rounds no page was moved");
    eprintln!("{pages} pages in {rounds} rounds");
    for fd in [home, away, pagemap] {
        sys::close(fd);
    }
}
