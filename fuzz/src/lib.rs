//! What the targets share.

use terrace_trace::framing;

/// A file with this magic number and these bytes behind it. The checksum of every block that can be
/// found is right: a fuzzer does not guess checksums.
pub fn file_of(magic: &[u8; 8], bytes: &[u8]) -> Vec<u8> {
    let mut file = [magic, bytes].concat();
    framing::put_right(&mut file[magic.len()..]);
    file
}
