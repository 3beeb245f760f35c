//! What was touched, exactly: by going the same way again and counting.

use serde::Serialize;
use std::ops::Range;
use terrace_trace::cache::Cache;

const PAGE: usize = 4096;

/// Is told every address that a program reads or writes.
pub trait Watch {
    /// Tells of an access to `what`, which is not longer than a line of the cache.
    fn touches<T>(&mut self, what: &T);
}

/// A watch that notes nothing.
impl Watch for () {
    fn touches<T>(&mut self, _: &T) {}
}

/// What `--truth` writes: how often each page was touched, and how often a processor's last cache
/// would not have had what was touched.
#[derive(Debug, Serialize)]
pub struct Truth {
    page_bytes: usize,
    /// Address of the first page.
    address: u64,
    accesses: Vec<u64>,
    /// Size in bytes of the modelled cache, which `misses` are counted with.
    cache_bytes: usize,
    misses: Vec<u64>,
    #[serde(skip)]
    cache: Cache,
}

impl Truth {
    /// Begins to count accesses to the pages of the address range `place`.
    pub fn new(place: Range<usize>) -> Truth {
        let first = place.start / PAGE;
        let pages = place.end.div_ceil(PAGE) - first;
        Truth {
            page_bytes: PAGE,
            address: (first * PAGE) as u64,
            accesses: vec![0; pages],
            cache_bytes: Cache::BYTES,
            misses: vec![0; pages],
            cache: Cache::new(),
        }
    }
}

impl Watch for Truth {
    fn touches<T>(&mut self, what: &T) {
        let address = std::ptr::from_ref(what) as usize;
        let page = (address - self.address as usize) / PAGE;
        self.accesses[page] += 1;
        self.misses[page] += u64::from(!self.cache.touch(address as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::memory::program::addresses;
    use terrace_trace::cache::LINE;

    #[test]
    fn pages_are_those_of_addresses() {
        let numbers: Vec<u64> = (0..10_000).collect();
        let place = addresses(&numbers);
        let base = place.start;
        let mut truth = Truth::new(place);
        numbers.iter().for_each(|number| truth.touches(number));
        assert_eq!(
            (truth.address as usize, truth.accesses.iter().sum::<u64>()),
            (base / PAGE * PAGE, 10_000)
        );
        let in_first = (PAGE - base % PAGE) / 8;
        assert_eq!(truth.accesses[..2], [in_first as u64, (PAGE / 8) as u64]);
        assert_eq!(truth.misses[1], PAGE as u64 / LINE);
    }
}
