//! A model of a processor's last-level cache: which accesses go to memory. Those are what a tier
//! costs, so they are the truth that samples are compared with.

/// Bytes of a line.
pub const LINE: u64 = 64;
/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4): lines in a row are in
/// different sets, and so are those at any step.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Sets of 16 lines, the longest unused of which goes.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Lines of each set, the last used first.
    sets: Vec<[u64; Cache::WAYS]>,
}

impl Cache {
    /// Size of a server's cache, bytes.
    pub const BYTES: usize = 32 << 20;
    /// Least size, bytes: two sets.
    pub const BYTES_MIN: usize = 2 << 10;
    /// Lines of a set.
    pub const WAYS: usize = 16;

    /// Makes an empty cache of the size of a server's.
    pub fn new() -> Cache {
        Cache::of(Cache::BYTES)
    }

    /// Makes an empty cache of `bytes` bytes: a power of two, at least 2 KiB.
    pub fn of(bytes: usize) -> Cache {
        Cache {
            sets: vec![
                [u64::MAX; Cache::WAYS];
                (bytes / LINE as usize / Cache::WAYS).next_power_of_two().max(2)
            ],
        }
    }

    /// Touches the byte at this address; false if its line was not there.
    pub fn touch(&mut self, address: u64) -> bool {
        let line = address / LINE;
        let bits = self.sets.len().ilog2();
        let set = &mut self.sets[(line.wrapping_mul(SPREAD) >> (u64::BITS - bits)) as usize];
        // The line goes to the front, and those before where it was one place back.
        let mut moved = line;
        for there in set.iter_mut() {
            std::mem::swap(there, &mut moved);
            if moved == line {
                return true;
            }
        }
        false
    }
}

impl Default for Cache {
    fn default() -> Cache {
        Cache::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_has_what_was_used_last() {
        let mut cache = Cache::new();
        let lines = Cache::BYTES as u64 / LINE;
        assert!((0..lines / 2).all(|line| !cache.touch(line * LINE)));
        let kept = (0..lines / 2).filter(|line| cache.touch(*line * LINE)).count() as u64;
        assert!(kept > lines / 2 * 99 / 100, "{kept} of {}", lines / 2);
        // Four times as much, one after the other, is never there.
        let kept =
            (0..lines * 4).chain(0..lines * 4).filter(|line| cache.touch(*line * LINE)).count()
                as u64;
        assert!(kept < lines, "{kept}");
    }
}
