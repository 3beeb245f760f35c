//! A stream whose next blocks are made by a thread of their own while one is simulated. It is for a
//! recording, which is decompressed, where a CPU is idle.

use crate::source::{Access, Source, SourceError};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Blocks that are made ahead.
const BLOCKS: usize = 2;

/// A source that gives the accesses of another one, in the same blocks.
pub struct Ahead {
    units: u32,
    sizes: Arc<[u32]>,
    accesses: Option<u64>,
    full: Receiver<Result<Vec<Access>, SourceError>>,
    empty: Sender<Vec<Access>>,
    ended: bool,
}

impl Ahead {
    /// Begins at once. The thread ends with the source, or when this value is dropped.
    pub fn new(mut source: Box<dyn Source>) -> Ahead {
        let (units, sizes, accesses) = (source.units(), source.sizes(), source.accesses());
        let (to_be_filled, filled) = (channel::<Vec<Access>>(), channel());
        let (empty, full) = (to_be_filled.0, filled.1);
        (0..BLOCKS).for_each(|_| empty.send(Vec::new()).expect("its receiver is here"));
        std::thread::spawn(move || {
            for mut block in to_be_filled.1 {
                let made = source.next_block(&mut block).map(|()| block);
                let last = made.as_ref().map_or(true, Vec::is_empty);
                if filled.0.send(made).is_err() || last {
                    break;
                }
            }
        });
        Ahead { units, sizes, accesses, full, empty, ended: false }
    }
}

impl Source for Ahead {
    fn units(&self) -> u32 {
        self.units
    }

    fn sizes(&self) -> Arc<[u32]> {
        self.sizes.clone()
    }

    fn accesses(&self) -> Option<u64> {
        self.accesses
    }

    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
        block.clear();
        if self.ended {
            return Ok(());
        }
        let made = self.full.recv().unwrap_or_else(|_| {
            Err(SourceError("the thread that reads ahead has panicked".into()))
        });
        self.ended = made.as_ref().map_or(true, Vec::is_empty);
        let used = std::mem::replace(block, made?);
        // At the source's end the empty block is not taken any more.
        let _ = self.empty.send(used);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{BLOCK, Given};

    #[test]
    fn the_same_blocks_come() {
        let all = || Given::reads(7, (0..5 * BLOCK as u32 / 2).map(|at| at * at % 7));
        let (mut plain, mut ahead) = (all(), Ahead::new(Box::new(all())));
        assert_eq!((ahead.units(), ahead.accesses()), (7, Some(5 * BLOCK as u64 / 2)));
        let (mut a, mut b) = (Vec::new(), Vec::new());
        // Three blocks, and the end as often as one asks.
        for _ in 0..6 {
            plain.next_block(&mut a).unwrap();
            ahead.next_block(&mut b).unwrap();
            assert_eq!(a, b);
        }
        assert!(b.is_empty());
    }

    /// Two blocks, then what was meant to be a third.
    struct Breaks {
        left: u32,
        panics: bool,
    }

    impl Source for Breaks {
        fn units(&self) -> u32 {
            1
        }
        fn accesses(&self) -> Option<u64> {
            None
        }
        fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
            block.clear();
            if self.left == 0 {
                assert!(!self.panics, "as the test wants it");
                return Err(SourceError("broken".into()));
            }
            self.left -= 1;
            block.push(Access::new(0, false));
            Ok(())
        }
    }

    #[test]
    fn what_goes_wrong_is_told_where_it_is() {
        for (panics, told) in [(false, "broken"), (true, "panicked")] {
            let mut ahead = Ahead::new(Box::new(Breaks { left: 2, panics }));
            let mut block = Vec::new();
            for _ in 0..2 {
                ahead.next_block(&mut block).unwrap();
                assert_eq!(block.len(), 1);
            }
            assert!(ahead.next_block(&mut block).unwrap_err().to_string().contains(told));
            ahead.next_block(&mut block).unwrap();
            assert!(block.is_empty());
        }
        // A stream that is dropped in the middle leaves no thread waiting.
        drop(Ahead::new(Box::new(Breaks { left: u32::MAX, panics: false })));
    }
}
