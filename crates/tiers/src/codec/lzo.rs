//! LZO1X blocks, as TierScape's tiers and Linux's zram have them. They are as fast to compress as
//! lz4, a few percent denser on heaps, and slower to decompress.
//!
//! Written for this crate, from the description of the stream in Linux's documentation ("LZO stream
//! format as understood by Linux's LZO decompressor"). The reference implementation is under the
//! GPL, and so are the crates that wrap it. The one under MIT takes 126 µs to compress a page. What
//! is written here is what other decoders read, and the other way round: a test compares.
//!
//! ```text
//! 0000LLLL               3 + L literals, after an instruction without literals of its own
//! 0000DDSS H             2 or 3 bytes from nearby, after some literals (read, never written)
//! 0001HLLL DDDDDDSS D    2 + L bytes from 16 KiB and further; H = D = 0 ends the stream
//! 001LLLLL DDDDDDSS D    2 + L bytes from D + 1 back
//! 01LDDDSS H, 1LLDDDSS H 3 to 8 bytes from 8H + D + 1 back
//! ```
//! S: literals that follow, 0 to 3. L of 0: zero bytes for 255 each, and another one.

use super::{Codec, CodecError, PerThread, Scratch};
use crate::page::{PAGE_BYTES, Page};

/// Bits of the hashes by which positions are found again.
const HASH_BITS: u32 = 12;
/// Bytes that are hashed: nothing shorter is found.
const MATCH_MIN: usize = 4;
/// The longest and farthest match that the instruction of two bytes has.
const NEAR_LEN_MAX: usize = 8;
const NEAR_DISTANCE_MAX: usize = 2048;
/// The stream's last three bytes.
const END: [u8; 3] = [0x11, 0, 0];
/// Literals without a match after which the search goes on in larger steps: 2⁵.
const SKIP_SHIFT: u32 = 5;

/// Where each hash was seen last.
pub(super) struct State(Box<[u16; 1 << HASH_BITS]>);

impl PerThread for State {}

impl Default for State {
    fn default() -> Self {
        State(Box::new([0; 1 << HASH_BITS]))
    }
}

/// The LZO1X codec.
pub(super) struct Lzo;

impl Codec for Lzo {
    fn name(&self) -> &str {
        "lzo"
    }

    fn compress<'s>(
        &self,
        page: &Page,
        scratch: &'s mut Scratch,
        limit: usize,
    ) -> Option<&'s [u8]> {
        let capacity = limit.min(PAGE_BYTES).checked_sub(1)?;
        let mut out = Output { bytes: scratch.output.get_mut(..capacity)?, len: 0 };
        compress(page, &mut scratch.states.lzo.0, &mut out)?;
        let len = out.len;
        scratch.output.get(..len)
    }

    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        _scratch: &mut Scratch,
    ) -> Result<(), CodecError> {
        let damaged = |reason| CodecError::Damaged { codec: "lzo", len: bytes.len(), reason };
        match decompress(bytes, page).map_err(damaged)? {
            PAGE_BYTES => Ok(()),
            got => Err(CodecError::WrongLength { codec: "lzo", got }),
        }
    }
}

/// Bytes written so far, in a buffer that may be too small.
struct Output<'b> {
    bytes: &'b mut [u8],
    len: usize,
}

impl Output<'_> {
    fn push(&mut self, byte: u8) -> Option<()> {
        *self.bytes.get_mut(self.len)? = byte;
        self.len += 1;
        Some(())
    }

    fn extend(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes.get_mut(self.len..self.len + bytes.len())?.copy_from_slice(bytes);
        self.len += bytes.len();
        Some(())
    }

    /// The part of a length that its instruction has no room for, 1 or more.
    fn push_rest(&mut self, mut rest: usize) -> Option<()> {
        while rest > 255 {
            self.push(0)?;
            rest -= 255;
        }
        self.push(rest as u8)
    }

    /// Writes the literals between two matches.
    fn literals(&mut self, literals: &[u8]) -> Option<()> {
        match (literals.len(), self.len) {
            (0, _) => return Some(()),
            (count @ ..=238, 0) => self.push(17 + count as u8)?,
            // In the match before, whose last byte but one has room for it.
            (count @ ..=3, len) => *self.bytes.get_mut(len.checked_sub(2)?)? |= count as u8,
            (count @ ..=18, _) => self.push(count as u8 - 3)?,
            (count, _) => {
                self.push(0)?;
                self.push_rest(count - 18)?;
            }
        }
        self.extend(literals)
    }

    /// Writes a match: `len` bytes, 3 or more, from `distance` back, 1..=4095.
    fn matched(&mut self, len: usize, distance: usize) -> Option<()> {
        let back = distance - 1;
        if len <= NEAR_LEN_MAX && distance <= NEAR_DISTANCE_MAX {
            self.push(((len - 1) << 5 | (back & 7) << 2) as u8)?;
            return self.push((back >> 3) as u8);
        }
        match len - 2 {
            short @ ..=31 => self.push(32 | short as u8)?,
            long => {
                self.push(32)?;
                self.push_rest(long - 31)?;
            }
        }
        self.push((back << 2) as u8)?;
        self.push((back >> 6) as u8)
    }
}

fn four(page: &Page, at: usize) -> u32 {
    page[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// How many bytes at `a` and at `b`, which is later, are equal.
fn common(page: &Page, a: usize, b: usize) -> usize {
    let (left, right) = (&page[a..], &page[b..]);
    let mut len = 0;
    for (x, y) in left.as_chunks::<8>().0.iter().zip(right.as_chunks::<8>().0) {
        let differing = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differing != 0 {
            return len + differing.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + left[len..].iter().zip(&right[len..]).take_while(|(x, y)| x == y).count()
}

/// Compresses a page; `None` if it does not fit.
fn compress(page: &Page, seen: &mut [u16; 1 << HASH_BITS], out: &mut Output<'_>) -> Option<()> {
    seen.fill(0);
    let (mut at, mut from) = (0, 0);
    while at + MATCH_MIN <= PAGE_BYTES {
        let bytes = four(page, at);
        let hash = (bytes.wrapping_mul(0x9E37_79B1) >> (32 - HASH_BITS)) as usize;
        let earlier = usize::from(seen[hash]);
        seen[hash] = at as u16;
        if earlier >= at || four(page, earlier) != bytes {
            at += 1 + ((at - from) >> SKIP_SHIFT);
            continue;
        }
        let len = MATCH_MIN + common(page, earlier + MATCH_MIN, at + MATCH_MIN);
        out.literals(&page[from..at])?;
        out.matched(len, at - earlier)?;
        at += len;
        from = at;
    }
    out.literals(&page[from..])?;
    out.extend(&END)
}

/// The bytes that are read, and how far they were read.
struct Input<'b> {
    bytes: &'b [u8],
    at: usize,
}

const CUT: &str = "it ends too early";
const TOO_LONG: &str = "it is longer than a page";

impl<'b> Input<'b> {
    fn byte(&mut self) -> Result<usize, &'static str> {
        let byte = *self.bytes.get(self.at).ok_or(CUT)?;
        self.at += 1;
        Ok(byte.into())
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], &'static str> {
        let taken = self.bytes.get(self.at..self.at + count).ok_or(CUT)?;
        self.at += count;
        Ok(taken)
    }

    /// A length: `base` and what is in the instruction, or, if that is 0, `most` and what follows.
    fn length(&mut self, inside: usize, base: usize, most: usize) -> Result<usize, &'static str> {
        if inside > 0 {
            return Ok(base + inside);
        }
        let mut len = base + most;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Ok(len + last),
            }
            if len > PAGE_BYTES {
                return Err(TOO_LONG);
            }
        }
    }
}

/// Copies within a page: `len` bytes to `at`, from `distance` before. They may overlap.
fn copy(page: &mut Page, at: usize, distance: usize, len: usize) -> Result<(), &'static str> {
    let from = at.checked_sub(distance).ok_or("it copies from before its beginning")?;
    if len > PAGE_BYTES - at {
        return Err(TOO_LONG);
    }
    let mut done = 0;
    // What was copied is there to be copied: pieces get longer by themselves.
    while done < len {
        let piece = (len - done).min(at + done - from);
        page.copy_within(from..from + piece, at + done);
        done += piece;
    }
    Ok(())
}

/// Returns how many bytes of the page were written.
fn decompress(bytes: &[u8], page: &mut Page) -> Result<usize, &'static str> {
    let mut input = Input { bytes, at: 0 };
    let mut at = 0;
    // Literals that the last instruction brought: 0 to 3, or 4 for a run of them.
    let mut state = 0;
    let mut literals = match bytes.first() {
        Some(first @ 18..) => {
            input.at = 1;
            state = usize::from(first - 17).min(4);
            usize::from(first - 17)
        }
        _ => 0,
    };
    loop {
        let copied = input.take(literals)?;
        page.get_mut(at..at + literals).ok_or(TOO_LONG)?.copy_from_slice(copied);
        at += literals;
        let instruction = input.byte()?;
        let (len, distance, next) = match instruction {
            0..16 if state == 0 => {
                literals = input.length(instruction, 3, 15)?;
                state = 4;
                continue;
            }
            0..16 => {
                let back = (input.byte()? << 2) + (instruction >> 2);
                let (len, distance) = if state == 4 { (3, back + 2049) } else { (2, back + 1) };
                (len, distance, instruction)
            }
            16..32 => {
                let len = input.length(instruction & 7, 2, 7)?;
                let low = input.byte()?;
                let back = input.byte()? << 6 | low >> 2 | (instruction & 8) << 11;
                if back == 0 {
                    let whole = instruction & 7 == 1 && low == 0 && input.at == bytes.len();
                    return if whole { Ok(at) } else { Err("it goes on behind its end") };
                }
                (len, 16384 + back, low)
            }
            32..64 => {
                let len = input.length(instruction & 31, 2, 31)?;
                let low = input.byte()?;
                (len, (input.byte()? << 6 | low >> 2) + 1, low)
            }
            _ => {
                let len = (instruction >> 5) + 1;
                (len, (input.byte()? << 3 | instruction >> 2 & 7) + 1, instruction)
            }
        };
        copy(page, at, distance, len)?;
        at += len;
        state = next & 3;
        literals = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pages in which pieces of earlier ones come again, of all lengths and from all distances.
    fn page() -> impl Strategy<Value = Page> {
        let piece = (any::<u64>(), 0usize..4096, 1usize..700, any::<bool>());
        prop::collection::vec(piece, 1..80).prop_map(|pieces| {
            let mut page = [0; PAGE_BYTES];
            let mut at = 0;
            for (seed, from, len, again) in pieces.into_iter().cycle().take(4096) {
                for step in 0..len.min(PAGE_BYTES - at) {
                    let noise = (seed.rotate_left(step as u32).wrapping_mul(0x9E37) >> 8) as u8;
                    page[at] = if again && at > 0 { page[at - 1 - from % at] } else { noise };
                    at += 1;
                }
            }
            page
        })
    }

    proptest! {
        #[test]
        fn another_decoder_reads_what_is_written(page in page()) {
            let mut scratch = Scratch::new();
            if let Some(bytes) = Lzo.compress(&page, &mut scratch, PAGE_BYTES) {
                let back = lzokay_native::decompress_all(bytes, Some(PAGE_BYTES)).unwrap();
                prop_assert!(back == page);
            }
        }

        #[test]
        fn what_another_encoder_writes_is_read(page in page()) {
            let bytes = lzokay_native::compress(&page).unwrap();
            let mut back = [0; PAGE_BYTES];
            prop_assert_eq!(Lzo.decompress(&bytes, &mut back, &mut Scratch::new()), Ok(()));
            prop_assert!(back == page);
        }
    }

    #[test]
    fn instructions_that_are_never_written_are_read() {
        // Three literals, two bytes from three back, another literal; that 2078 times; a run of
        // four, three bytes from 2050 back; 17 bytes from 16 KiB back, where nothing is.
        let mut bytes = vec![17 + 3, 1, 2, 3, 2 << 2 | 1, 0, 9];
        bytes.extend([32, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0]);
        bytes.extend([1, 5, 6, 7, 8, 1 << 2, 0]);
        let mut page = [0xEE; PAGE_BYTES];
        assert_eq!(decompress(&bytes, &mut page), Err(CUT));
        let far = [&bytes[..], &[16, 8, 4, 0]].concat();
        assert_eq!(decompress(&far, &mut page), Err("it copies from before its beginning"));
        bytes.extend(END);
        assert_eq!(decompress(&bytes, &mut page), Ok(6 + 2078 + 4 + 3));
        assert_eq!(page[..8], [1, 2, 3, 1, 2, 9, 9, 9]);
        assert_eq!(page[6 + 2078..][..7], [5, 6, 7, 8, 9, 9, 9]);
        bytes.push(0);
        assert_eq!(decompress(&bytes, &mut page), Err("it goes on behind its end"));
    }
}
