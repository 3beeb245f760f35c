//! Any file of counts is read without a crash.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_fuzz::file_of;
use terrace_trace::counts::{MAGIC, Recording};

fuzz_target!(|bytes: &[u8]| {
    let _ = Recording::from_bytes(&file_of(&MAGIC, bytes));
});
