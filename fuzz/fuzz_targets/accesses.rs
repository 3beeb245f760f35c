//! Any file of accesses is read without a crash, and what is read is possible.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_fuzz::file_of;
use terrace_trace::accesses::{MAGIC, Reader, page_of};

fuzz_target!(|bytes: &[u8]| {
    let file = file_of(&MAGIC, bytes);
    if let Ok(reader) = Reader::of(&file[..]) {
        let mut blocks = reader.iter();
        while let Some(Ok((_, records))) = blocks.next() {
            let pages = reader.pages().len();
            assert!(records.iter().all(|record| (page_of(*record) as usize) < pages));
        }
    }
});
