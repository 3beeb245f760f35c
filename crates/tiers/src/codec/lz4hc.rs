//! LZ4's high compression: blocks that the decoder of `lz4` reads, a tenth smaller, for three times
//! the time to compress. For pages that are evicted seldom and restored often.
//!
//! Levels from 10 on allocate for each page, by a malloc that is the program's: they are left out.

use std::ffi::{c_char, c_int, c_void};

use super::{Codec, CodecError, PerThread, Scratch, lz4};
use crate::page::{PAGE_BYTES, Page};

// In liblz4.a, which lz4-sys builds and links, but not among lz4-sys's declarations (lz4hc.h 1.10;
// the last one is there for static linking).
unsafe extern "C" {
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_initStreamHC(buffer: *mut c_void, bytes: usize) -> *mut c_void;
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_bytes: c_int,
        dest_capacity: c_int,
        level: c_int,
    ) -> c_int;
}

/// LZ4's tables (256 KiB), made when a thread first compresses. `u64`, because LZ4 wants them
/// 8-byte aligned.
#[derive(Default)]
pub(super) struct State(Option<Box<[u64]>>);

impl PerThread for State {}

impl State {
    /// The tables; `None` without memory for them.
    fn tables(&mut self) -> Option<&mut [u64]> {
        if self.0.is_none() {
            // SAFETY: takes nothing, returns a constant.
            let bytes = usize::try_from(unsafe { LZ4_sizeofStateHC() }).ok()?;
            let mut tables = Vec::new();
            tables.try_reserve_exact(bytes.div_ceil(8)).ok()?;
            tables.resize(bytes.div_ceil(8), 0u64);
            // SAFETY: as many bytes as LZ4 asks for, aligned for it, and not used elsewhere.
            let made = unsafe { LZ4_initStreamHC(tables.as_mut_ptr().cast(), bytes) };
            if made.is_null() {
                return None;
            }
            self.0 = Some(tables.into_boxed_slice());
        }
        self.0.as_deref_mut()
    }
}

/// LZ4 HC at one level.
pub(super) struct Lz4Hc {
    level: i32,
    name: String,
}

impl Lz4Hc {
    /// LZ4 HC at a level, 3..=9.
    pub(super) fn new(level: i32) -> Self {
        Lz4Hc { level, name: format!("lz4hc:{level}") }
    }
}

impl Codec for Lz4Hc {
    fn name(&self) -> &str {
        &self.name
    }

    fn compress<'s>(
        &self,
        page: &Page,
        scratch: &'s mut Scratch,
        limit: usize,
    ) -> Option<&'s [u8]> {
        let capacity = limit.min(PAGE_BYTES).checked_sub(1)?;
        let tables = scratch.states.lz4hc.tables()?;
        // SAFETY: the tables were made for LZ4 (`State::tables`), which finds nothing in them of a
        // page before; the source is PAGE_BYTES long; `output` has PAGE_BYTES bytes, more than
        // `capacity`; the three are separate allocations.
        let written = unsafe {
            LZ4_compress_HC_extStateHC_fastReset(
                tables.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                scratch.output.as_mut_ptr().cast(),
                PAGE_BYTES as c_int,
                capacity as c_int,
                self.level,
            )
        };
        lz4::output_of(&scratch.output[..], written)
    }

    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), CodecError> {
        lz4::Lz4.decompress(bytes, page, scratch)
    }
}
