//! The DRAM medium costs memory only for what is touched, and gives back what is released.

use std::ptr::NonNull;

use terrace_tiers::{DramMedium, EXTENT_BYTES, Medium, MediumError, PAGE_BYTES};

fn resident_pages(start: NonNull<u8>, bytes: usize) -> usize {
    let mut present = vec![0u8; bytes / PAGE_BYTES];
    // SAFETY: the range is mapped (it is part of a live reservation) and `present` has one byte a
    // page.
    let failed =
        unsafe { libc::mincore(start.as_ptr().cast(), bytes, present.as_mut_ptr().cast()) };
    assert_eq!(failed, 0);
    present.iter().filter(|page| **page & 1 == 1).count()
}

fn write(extent: NonNull<u8>, at: usize, byte: u8) {
    assert!(at < EXTENT_BYTES);
    // SAFETY: within an allocated extent that only this thread knows.
    unsafe { extent.add(at).write(byte) }
}

fn read(extent: NonNull<u8>, at: usize) -> u8 {
    assert!(at < EXTENT_BYTES);
    // SAFETY: as in `write`.
    unsafe { extent.add(at).read() }
}

#[test]
fn memory_is_resident_from_touch_to_release() {
    let medium = DramMedium::new(4 << 30).unwrap();
    assert_eq!((medium.reserved_bytes(), medium.allocated_bytes()), (4 << 30, 0));
    let extent = medium.allocate().unwrap();
    assert_eq!(extent.as_ptr().addr() % PAGE_BYTES, 0);
    assert_eq!(resident_pages(extent, EXTENT_BYTES), 0);
    for page in 0..EXTENT_BYTES / PAGE_BYTES {
        assert_eq!(read(extent, page * PAGE_BYTES), 0);
        write(extent, page * PAGE_BYTES, 7);
    }
    assert_eq!(resident_pages(extent, EXTENT_BYTES), 128);
    medium.release_part(extent, 2 * PAGE_BYTES, 100 * PAGE_BYTES);
    assert_eq!(resident_pages(extent, EXTENT_BYTES), 30);
    assert_eq!(
        (read(extent, PAGE_BYTES), read(extent, 2 * PAGE_BYTES), read(extent, 100 * PAGE_BYTES)),
        (7, 0, 7)
    );
    write(extent, 2 * PAGE_BYTES, 9);
    medium.release(extent);
    assert_eq!((resident_pages(extent, EXTENT_BYTES), medium.allocated_bytes()), (0, 0));
    assert_eq!(medium.allocate().unwrap(), extent, "a released extent is the next one given");
    assert_eq!(read(extent, 2 * PAGE_BYTES), 0);
}

#[test]
fn extents_are_distinct_lowest_first_and_in_range() {
    let medium = DramMedium::new(200 * EXTENT_BYTES - 1).unwrap();
    let extents: Vec<NonNull<u8>> = (0..200).map(|_| medium.allocate().unwrap()).collect();
    assert!(
        extents
            .windows(2)
            .all(|pair| pair[1].as_ptr().addr() - pair[0].as_ptr().addr() == EXTENT_BYTES)
    );
    let (start, end) = medium.range();
    assert_eq!((extents[0].as_ptr().addr(), end - start), (start, 200 * EXTENT_BYTES));
    for (index, extent) in extents.iter().enumerate() {
        write(*extent, EXTENT_BYTES - 1, index as u8);
    }
    assert!(
        extents
            .iter()
            .enumerate()
            .all(|(index, extent)| read(*extent, EXTENT_BYTES - 1) == index as u8)
    );
    assert!(matches!(medium.allocate(), Err(MediumError::Exhausted { .. })));
    for index in [150, 3, 70] {
        medium.release(extents[index]);
    }
    for index in [3, 70, 150] {
        assert_eq!(medium.allocate().unwrap(), extents[index]);
    }
    assert!(matches!(medium.allocate(), Err(MediumError::Exhausted { .. })));
}

#[test]
fn what_is_no_extent_is_ignored() {
    let medium = DramMedium::new(2 * EXTENT_BYTES).unwrap();
    let extent = medium.allocate().unwrap();
    write(extent, 0, 1);
    // SAFETY: both within the reservation.
    let (inside, unused) = unsafe { (extent.add(PAGE_BYTES), extent.add(EXTENT_BYTES)) };
    for wrong in [inside, unused, NonNull::dangling()] {
        medium.release(wrong);
        medium.release_part(wrong, 0, PAGE_BYTES);
    }
    for (from, to) in
        [(0, 1), (1, PAGE_BYTES), (PAGE_BYTES, 0), (0, EXTENT_BYTES + PAGE_BYTES), (0, 0)]
    {
        medium.release_part(extent, from, to);
    }
    assert_eq!((read(extent, 0), medium.allocated_bytes()), (1, EXTENT_BYTES));
    medium.release(extent);
    medium.release(extent);
    assert_eq!(medium.allocated_bytes(), 0);
}

#[test]
fn impossible_sizes_are_refused() {
    for bytes in [0, usize::MAX, (1 << 47) + 1] {
        assert!(matches!(DramMedium::new(bytes), Err(MediumError::Size { .. })));
    }
    let huge = DramMedium::new(1 << 47).err().expect("more than the kernel has");
    assert!(huge.to_string().contains("reserve less"), "{huge}");
}

#[test]
fn a_terabyte_of_reservation_costs_nothing() {
    let medium = DramMedium::new(1 << 40).unwrap();
    let extent = medium.allocate().unwrap();
    write(extent, 0, 1);
    assert_eq!(resident_pages(extent, EXTENT_BYTES), 1);
}
