//! Damages files on purpose, for tests: bytes change, go, come twice; and then the checksums of all
//! blocks that can be found are put right, so that what lies behind them is reached too.
//! Deterministic: the same state, the same damage.

use crate::framing;

/// SplitMix64.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ z >> 31) as usize
}

/// Shows a damaged copy twice: with the checksums as they fall, and put right.
pub fn mutate(bytes: &[u8], state: &mut u64, mut see: impl FnMut(&[u8])) {
    let mut damaged = bytes.to_vec();
    for _ in 0..1 + next(state) % 4 {
        // Behind the magic number, and mostly behind the header too.
        let at = 8 + next(state) % (damaged.len() - 8);
        match next(state) % 6 {
            0 => damaged[at] ^= 1 << (next(state) % 8),
            1 => damaged[at] = [0, 0xFF, 0x7F, 0x80][next(state) % 4],
            2 => damaged.truncate(at.max(9)),
            3 => drop(damaged.drain(at..(at + 1 + next(state) % 16).min(damaged.len()))),
            4 => {
                let piece = damaged[at..(at + 1 + next(state) % 64).min(damaged.len())].to_vec();
                damaged.splice(at..at, piece);
            }
            _ => {
                let end = (at + 8).min(damaged.len());
                damaged[at..end].fill([0, 0xFF][next(state) % 2]);
            }
        }
        if damaged.len() < 10 {
            damaged.resize(10, 0);
        }
    }
    see(&damaged);
    framing::put_right(&mut damaged[8..]);
    see(&damaged);
}
