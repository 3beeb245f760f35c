//! Varints by the ten thousand. One after the other, each has to wait for the last one's length. So
//! a block is cut in four, between two numbers. The parts are gone through side by side, two
//! numbers at a time.

use crate::file::PADDING;

/// Numbers that are decoded at the same time.
const PARTS: usize = 4;

/// Fills `numbers` with the bytes of the numbers in `padded`, before its [`PADDING`]. [`value`]
/// makes numbers of them. `None` if there are more or fewer numbers than room, or one has more than
/// four bytes; then the contents of `numbers` say nothing.
pub fn short(padded: &[u8], numbers: &mut [u32]) -> Option<()> {
    let plain = &padded[..padded.len().checked_sub(PADDING)?];
    // All but a number's last byte have the eighth bit set.
    if plain.last().is_some_and(|byte| byte & 0x80 != 0) {
        return None;
    }
    // Where parts begin, and the last one ends: at the beginning, behind the first last byte in
    // each further quarter, at the end.
    let at: [usize; PARTS + 1] = std::array::from_fn(|part| {
        let about = plain.len() * part / PARTS;
        let behind = plain[about..]
            .iter()
            .position(|byte| byte & 0x80 == 0)
            .map_or(plain.len(), |distance| about + distance + 1);
        if part == 0 { 0 } else { behind }
    });
    let counts: [usize; PARTS] = std::array::from_fn(|part| count(&plain[at[part]..at[part + 1]]));
    if counts.iter().sum::<usize>() != numbers.len() {
        return None;
    }
    let (a, rest) = numbers.split_at_mut(counts[0]);
    let (b, rest) = rest.split_at_mut(counts[1]);
    let (c, d) = rest.split_at_mut(counts[2]);
    let [mut at_a, mut at_b, mut at_c, mut at_d, _] = at;
    let mut long = 0;
    let (a_pairs, b_pairs, c_pairs, d_pairs) =
        (a.as_chunks_mut().0, b.as_chunks_mut().0, c.as_chunks_mut().0, d.as_chunks_mut().0);
    let mut together = 0;
    for (((a, b), c), d) in a_pairs.iter_mut().zip(b_pairs).zip(c_pairs).zip(d_pairs) {
        (*a, at_a) = pair(padded, at_a, &mut long)?;
        (*b, at_b) = pair(padded, at_b, &mut long)?;
        (*c, at_c) = pair(padded, at_c, &mut long)?;
        (*d, at_d) = pair(padded, at_d, &mut long)?;
        together += 2;
    }
    for (part, at) in [(a, at_a), (b, at_b), (c, at_c), (d, at_d)] {
        let mut at = at;
        for number in &mut part[together..] {
            (*number, at) = single(padded, at)?;
        }
    }
    (long <= u64::from(u32::MAX)).then_some(())
}

/// The number of these bytes, seven bits of each.
#[inline]
pub fn value(bytes: u32) -> u32 {
    bytes & 0x7F | bytes >> 1 & 0x3F80 | bytes >> 2 & 0x1F_C000 | bytes >> 3 & 0xFE0_0000
}

/// How many numbers end in these bytes.
fn count(bytes: &[u8]) -> usize {
    // Sums of a byte each, which vectors are made of.
    bytes
        .chunks(128)
        .map(|some| usize::from(some.iter().map(|byte| byte >> 7 ^ 1).sum::<u8>()))
        .sum()
}

/// Reads two numbers' bytes, each as one number. Returns them, and where the next begins. What is
/// beyond four bytes of either is left in `long`.
#[inline(always)]
fn pair(padded: &[u8], at: usize, long: &mut u64) -> Option<([u32; 2], usize)> {
    let word = u64::from_le_bytes(*padded.get(at..)?.first_chunk()?);
    let ends = !word & 0x8080_8080_8080_8080;
    let second_end = ends & ends.wrapping_sub(1);
    if second_end == 0 {
        return None;
    }
    // Up to the lowest end, and from there up to the next.
    let first = word & (ends ^ (ends - 1));
    let second = (word & (second_end ^ (second_end - 1))) >> (ends.trailing_zeros() + 1);
    *long |= first | second;
    Some(([first as u32, second as u32], at + (second_end.trailing_zeros() as usize + 1) / 8))
}

/// Reads a number's bytes as one number. Returns it, and where the next begins. `None` if it has
/// more than four bytes.
fn single(padded: &[u8], at: usize) -> Option<(u32, usize)> {
    let word = u32::from_le_bytes(*padded.get(at..)?.first_chunk()?);
    let ends = !word & 0x8080_8080;
    if ends == 0 {
        return None;
    }
    Some((word & (ends ^ (ends - 1)), at + (ends.trailing_zeros() as usize + 1) / 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::put;
    use proptest::prelude::*;

    fn padded(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        numbers.into_iter().for_each(|number| put(&mut bytes, number));
        bytes.resize(bytes.len() + PADDING, 0xFF);
        bytes
    }

    #[test]
    fn by_hand() {
        let mut found = [0; 3];
        // 300 is 0xAC 0x02.
        assert_eq!(short(&[5, 0xAC, 2, 0x7F, 0, 0, 0, 0, 0, 0, 0, 0], &mut found), Some(()));
        assert_eq!(found.map(value), [5, 300, 127]);
        // One more than there are, one less; the last one has no end.
        assert_eq!(short(&padded([1, 2]), &mut found), None);
        assert_eq!(short(&padded([1, 2, 3, 4]), &mut found), None);
        assert_eq!(short(&[5, 6, 7, 0x80, 0, 0, 0, 0, 0, 0, 0, 0], &mut found), None);
        assert_eq!(short(&padded([]), &mut []), Some(()));
        assert_eq!(short(&[0; PADDING - 1], &mut []), None);
    }

    proptest! {
        #[test]
        fn numbers_of_up_to_four_bytes_come_back(
            numbers in prop::collection::vec((0u32..28, any::<u32>()), 0..300)
        ) {
            let numbers: Vec<u32> = numbers
                .into_iter()
                .map(|(bits, number)| number >> (32 - bits - 1) & 0xFFF_FFFF)
                .collect();
            let mut found = vec![0; numbers.len()];
            prop_assert_eq!(
                short(&padded(numbers.iter().map(|number| u64::from(*number))), &mut found),
                Some(()),
            );
            prop_assert_eq!(found.into_iter().map(value).collect::<Vec<_>>(), numbers);
        }

        #[test]
        fn longer_ones_are_noticed(
            mut numbers in prop::collection::vec(0u64..1 << 28, 1..100),
            at in any::<prop::sample::Index>(),
            long in 1u64 << 28..,
        ) {
            let at = at.index(numbers.len());
            numbers[at] = long;
            let bytes = padded(numbers.iter().copied());
            prop_assert_eq!(short(&bytes, &mut vec![0; numbers.len()]), None);
        }

        #[test]
        fn whatever_the_bytes_are(
            bytes in prop::collection::vec(any::<u8>(), PADDING..200), count in 0usize..100
        ) {
            let _ = short(&bytes, &mut vec![0; count]);
        }
    }
}
