//! Any statistics page is read without a crash, and what is shown of it has no control characters.
//! The reader is the command's own, of which this is a copy by path: the command is no library.
#![no_main]
#![allow(dead_code, reason = "the command uses the rest")]

#[path = "../../crates/cli/src/processes"]
mod processes {
    pub mod process;
    pub mod statistics;
}

use libfuzzer_sys::fuzz_target;
use processes::statistics;
use std::fs;
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::LazyLock;
use terrace_control::stats::{MAGIC, StatsPage};

/// Path of a process's page in a directory as a run has it, in memory. It stays behind, in a small
/// file.
static PAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = PathBuf::from(format!("/dev/shm/terrace-fuzz.{}", std::process::id()));
    fs::create_dir_all(&directory).expect("there is memory for a directory");
    directory.join("7-1.stats")
});

fuzz_target!(|bytes: &[u8]| {
    let mut page = vec![0; size_of::<StatsPage>()];
    let length = bytes.len().min(page.len());
    page[..length].copy_from_slice(&bytes[..length]);
    // A fuzzer does not guess these.
    page[offset_of!(StatsPage, magic)..][..8].copy_from_slice(&MAGIC.to_ne_bytes());
    page[offset_of!(StatsPage, pid)..][..4].copy_from_slice(&7u32.to_ne_bytes());
    fs::write(&*PAGE, page).expect("there is memory for a page");
    let directory = PAGE.parent().expect("it is in one");
    for read in statistics::read_all(directory).good {
        assert!(!read.program.contains(char::is_control) && !read.note.contains(char::is_control));
        assert!(read.tiers.iter().all(|tier| !tier.name.contains(char::is_control)));
    }
    for file in statistics::newest_pages(directory).into_values() {
        if let Some((image, _)) = statistics::read_now(&file) {
            let _ = (image.lives(), image.counts());
        }
    }
});
