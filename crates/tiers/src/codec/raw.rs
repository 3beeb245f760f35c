//! Pages as they are: eviction only gains by their being elsewhere.

use super::{Codec, CodecError, Scratch};
use crate::page::Page;

/// The codec of tiers that do not compress.
pub(super) struct Raw;

impl Codec for Raw {
    fn name(&self) -> &str {
        "raw"
    }

    fn compresses(&self) -> bool {
        false
    }

    fn compress<'s>(&self, _: &Page, _: &'s mut Scratch, _: usize) -> Option<&'s [u8]> {
        None
    }

    fn decompress(&self, bytes: &[u8], _: &mut Page, _: &mut Scratch) -> Result<(), CodecError> {
        let reason = "a tier that does not compress has no such pages";
        Err(CodecError::Damaged { codec: "raw", len: bytes.len(), reason })
    }
}
