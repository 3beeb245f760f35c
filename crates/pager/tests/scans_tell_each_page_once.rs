//! A walk over present pages tells each of them once, in however many pieces. Linux says of some
//! walks that they ended before they did (docs/known-problems.md). Without the correction in
//! [`sys`] the runs of 600 go back once, and too much is counted of them.

use terrace_os::{self as sys, PAGE, Run};

#[test]
fn in_pieces_of_any_size() {
    let pagemap =
        sys::open("/proc/self/pagemap\0", libc::O_RDONLY, 0).expect("a process may read its own");
    for present in [1, 500, 511, 512, 513, 600, 1023, 1024, 1025, 1100, 1600, 2100] {
        let bytes = 2 * present * PAGE;
        let start = sys::reserve(bytes).expect("there is address space");
        let wanted: Vec<usize> = (0..present).map(|n| start + 2 * n * PAGE).collect();
        // SAFETY: a new mapping of the test's own; advice and one byte in every second page.
        unsafe {
            sys::advise(start, bytes, libc::MADV_NOHUGEPAGE).expect("it is a mapping");
            wanted.iter().for_each(|page| (*page as *mut u8).write_volatile(1));
        }
        for room in [1, 7, 512, 600, 1024, 4096] {
            let mut runs = vec![Run::default(); room];
            let (mut found, mut from) = (Vec::new(), start);
            while from < start + bytes {
                let (count, walked) = sys::scan_present(pagemap, from, start + bytes, &mut runs)
                    .expect("the range is mapped");
                assert!(
                    walked > from,
                    "a walk of {present} pages with room for {room} gets no further"
                );
                found.extend(
                    runs[..count]
                        .iter()
                        .flat_map(|run| (run.start as usize..run.end as usize).step_by(PAGE)),
                );
                from = walked;
            }
            assert!(found == wanted, "{} of {present} pages with room for {room}", found.len());
        }
        // SAFETY: no other thread knows it.
        unsafe { sys::unmap(start, bytes) };
    }
}
