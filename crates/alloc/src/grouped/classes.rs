//! Size classes of grouped objects: jemalloc's own up to 3,584 bytes, four to a doubling, and how
//! many objects a slab of each holds.

/// Number of a size class, from the smallest.
pub type Class = u8;

/// The greatest size that is grouped, bytes: a larger object fills most of a page by itself.
pub const GROUPED_MAX: usize = 3584;
/// Number of classes.
pub const CLASSES: usize = 28;

/// Bytes of an object of each class.
pub const SIZES: [u16; CLASSES] = {
    let mut sizes = [8; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        // Steps of 16 up to 128, then of a quarter of the power of two below.
        sizes[class] = if class <= 8 {
            16 * class as u16
        } else {
            (5 + (class as u16 - 9) % 4) << (5 + (class - 9) / 4)
        };
        class += 1;
    }
    sizes
};

/// The class for each number of 8-byte words.
static CLASS_OF_WORDS: [Class; GROUPED_MAX / 8 + 1] = {
    let mut table = [0; GROUPED_MAX / 8 + 1];
    let (mut words, mut class) = (0, 0);
    while words < table.len() {
        if words * 8 > SIZES[class] as usize {
            class += 1;
        }
        table[words] = class as Class;
        words += 1;
    }
    table
};

/// The class of the smallest objects that hold `size` bytes, which are at most [`GROUPED_MAX`].
#[inline]
pub fn class_of(size: usize) -> Class {
    CLASS_OF_WORDS[size.div_ceil(8)]
}

/// The smallest class that holds `size` bytes at multiples of `align`, a power of two. Slabs begin
/// at page boundaries, so this is a class whose object size is a multiple of `align`. `None` if no
/// grouped class fits.
pub fn class_of_aligned(size: usize, align: usize) -> Option<Class> {
    if size > GROUPED_MAX || align > 4096 {
        return None;
    }
    (class_of(size)..CLASSES as Class).find(|class| size_of_class(*class).is_multiple_of(align))
}

/// Bytes of an object.
#[inline]
pub fn size_of_class(class: Class) -> usize {
    SIZES[class as usize] as usize
}

/// Kinds of slabs: of 4, 5, 6 and 7 times [`KIND_UNIT`], so that objects fill them without a rest.
/// Slabs of a kind serve all its classes in turn.
pub const KINDS: usize = 4;
/// Unit of slab sizes, bytes: see [`KINDS`].
pub const KIND_UNIT: usize = 4096;

/// The kind of a class's slabs: every size is 4, 5, 6 or 7 times a power of two.
pub fn kind_of(class: Class) -> usize {
    let size = size_of_class(class);
    (size >> (size.ilog2() - 2)) - 4
}

/// Bytes of a slab.
pub fn slab_bytes(kind: usize) -> usize {
    (kind + 4) * KIND_UNIT
}

/// Objects of a slab.
pub fn slab_objects(class: Class) -> usize {
    slab_bytes(kind_of(class)) / size_of_class(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_jemallocs() {
        assert_eq!(SIZES[CLASSES - 1] as usize, GROUPED_MAX);
        for size in 1..=GROUPED_MAX {
            // SAFETY: computes only.
            let usable = unsafe { tikv_jemalloc_sys::nallocx(size, 0) };
            assert_eq!(size_of_class(class_of(size)), usable, "{size}");
        }
        assert_eq!(class_of(0), 0);
    }

    #[test]
    fn slabs_have_no_rest_and_at_least_eight_objects() {
        for class in 0..CLASSES as Class {
            let (bytes, size) = (slab_bytes(kind_of(class)), size_of_class(class));
            assert_eq!(bytes % size, 0, "{size}");
            assert!(slab_objects(class) >= 8, "{size}");
        }
    }

    #[test]
    fn aligned_classes_are_multiples() {
        for align in (0..13).map(|shift| 1 << shift) {
            for size in [1, 8, 9, 24, 100, 1000, 2049, 3584, 3585] {
                match class_of_aligned(size, align) {
                    Some(class) => assert!(
                        size_of_class(class) >= size && size_of_class(class).is_multiple_of(align)
                    ),
                    None => assert!(size > 2048 || align > 2048, "{size} at {align}"),
                }
            }
        }
    }
}
