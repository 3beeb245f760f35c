//! A process's code, read and swept block by block when something in it is interrupted.
//!
//! Nothing is asked about files, maps or compilers. Each time, the bytes around the interrupted
//! instruction are compared with those that were swept. Where they differ (another library in that
//! place, code that was just compiled) the block is swept again.

use crate::text::Text;
use std::collections::HashMap;

/// Swept at a time, bytes; and as much on either side as a function's branches may reach.
const BLOCK: u64 = 64 << 10;
const MARGIN: u64 = 16 << 10;
const PAGE: u64 = 4096;
/// Compared on either side of the interrupted instruction, at most.
const AROUND: u64 = 32;
/// Blocks kept of one process, 140 KiB each with all that belongs to them. Where more is executed,
/// all are swept again.
const BLOCKS_MAX: usize = 128;

/// Code of one process.
pub struct Code {
    process: i32,
    blocks: HashMap<u64, Text>,
}

impl Code {
    /// Makes a reader of the given process's code, which has read nothing yet.
    pub fn of(process: i32) -> Code {
        Code { process, blocks: HashMap::new() }
    }

    /// The code around an address; `None` if it cannot be read.
    pub fn around(&mut self, address: u64) -> Option<&Text> {
        let block = address / BLOCK;
        // Within its page, which can be read if anything can.
        let from = address.saturating_sub(AROUND).max(address & !(PAGE - 1));
        let mut now = [0; 2 * AROUND as usize];
        let len = read(self.process, from, &mut now);
        let now = &now[..len];
        // (Two pieces of code in one block, with a hole between them, take turns.)
        if self.blocks.get(&block).is_some_and(|text| !text.is_at(from, now)) {
            self.blocks.remove(&block);
        }
        if !self.blocks.contains_key(&block) {
            if self.blocks.len() >= BLOCKS_MAX {
                self.blocks.clear();
            }
            let text = self.sweep(block, address)?;
            self.blocks.insert(block, text);
        }
        self.blocks.get(&block)
    }

    /// Sweeps the readable pages of a block that lie around an address in one piece.
    fn sweep(&self, block: u64, around: u64) -> Option<Text> {
        let (start, end) = ((block * BLOCK).saturating_sub(MARGIN), block * BLOCK + BLOCK + MARGIN);
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for address in (start..end).step_by(PAGE as usize) {
            let mut page = [0; PAGE as usize];
            if read(self.process, address, &mut page) < page.len() {
                continue;
            }
            match runs.last_mut() {
                Some((from, bytes)) if *from + bytes.len() as u64 == address => {
                    bytes.extend_from_slice(&page)
                }
                _ => {
                    // What is swept is kept: no more than there is.
                    let mut bytes = Vec::with_capacity((end - address) as usize);
                    bytes.extend_from_slice(&page);
                    runs.push((address, bytes));
                }
            }
        }
        let (from, bytes) = runs
            .into_iter()
            .find(|(from, bytes)| (*from..from + bytes.len() as u64).contains(&around))?;
        Some(Text::sweep(from, bytes))
    }
}

/// Reads what can be read of a process's memory from `address` on; returns how many bytes.
fn read(process: i32, address: u64, into: &mut [u8]) -> usize {
    terrace_os::read_memory_of(process, address, into).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Code {
        // SAFETY: no arguments.
        Code::of(unsafe { libc::getpid() })
    }

    #[test]
    fn code_is_read_where_it_is_and_again_when_it_changed() {
        // Data will do: it is read, not executed.
        let page = Box::leak(Box::new([0x90u8; 3 * PAGE as usize]));
        let address = page.as_ptr() as u64 + PAGE;
        let mut code = own();
        assert_eq!(code.around(address).unwrap().decode(address).unwrap().len(), 1);
        // mov rax, [rdx]
        page[PAGE as usize..][..3].copy_from_slice(&[0x48, 0x8B, 0x02]);
        assert_eq!(code.around(address).unwrap().decode(address).unwrap().len(), 3);
    }

    #[test]
    fn nothing_is_there() {
        assert!(own().around(64).is_none());
    }

    #[test]
    fn functions_of_this_program_are_in_step() {
        let mut code = own();
        let function = functions_of_this_program_are_in_step as *const () as u64;
        let text = code.around(function).unwrap();
        assert!(text.contains(function) && text.starts_at(function));
    }
}
