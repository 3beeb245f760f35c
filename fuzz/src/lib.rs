//! What the targets share.

use terrace_trace::framing::{self, BLOCK_HEAD};

/// A file with this magic number and these bytes behind it, in which the checksum of every block that can be found is right: a fuzzer does not guess them.
pub fn file_of(magic: &[u8; 8], bytes: &[u8]) -> Vec<u8> {
    let mut file = [magic, bytes].concat();
    let mut at = magic.len();
    while let Some(head) = file.get(at..).and_then(|rest| rest.first_chunk::<BLOCK_HEAD>()).copied() {
        let (kind, len) = framing::head(&head);
        let from = at + BLOCK_HEAD;
        let to = from.saturating_add(len as usize).min(file.len());
        let put_right = framing::block(kind, &file[from..to]);
        file[at..to].copy_from_slice(&put_right);
        at = to;
    }
    file
}
