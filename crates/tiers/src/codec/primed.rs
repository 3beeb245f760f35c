//! Compressing a page as if a dictionary had just been compressed before it.
//!
//! zstd *attaches* a dictionary to so short an input: it looks for each position in the page's
//! table first, then in the dictionary's. But where the page lies right behind the dictionary's
//! content, zstd takes both for one stretch of bytes. A copy of the dictionary's table leads into
//! that stretch: one look, in zstd's plainest loop. The copy must be short, so the tables have
//! 2,048 entries, where zstd would take 8,192 (level 1) to 65,536 (level 3).
//!
//! Measured with memcached's JSON values, attached → primed: 5.12 → 5.37 times smaller, 12.3 → 8.4
//! µs to compress, 6.3 → 5.3 to decompress. (More is found in the page itself: fewer and longer
//! matches.) Others are in docs/notes/2026-11-27-benchmarks.md, *Behind the dictionary*.

use std::alloc::Layout;
use std::ptr::NonNull;

use zstd_sys::{
    ZSTD_CCtx, ZSTD_CDict, ZSTD_ResetDirective, ZSTD_cParameter, ZSTD_dictAttachPref_e,
    ZSTD_dictContentType_e, ZSTD_dictLoadMethod_e, ZSTD_format_e,
};

use crate::page::{PAGE_BYTES, Page};

/// Two to the power of this: entries of a table of positions.
const TABLE_LOG: u32 = 11;

/// zstd ready to compress pages with one dictionary: 60 KiB (level 1), and 150 that zstd works in.
/// One thread uses it at a time.
pub(super) struct Primed {
    context: *mut ZSTD_CCtx,
    tables: *mut ZSTD_CDict,
    /// The dictionary, to which `tables` points, and room for a page.
    bytes: NonNull<u8>,
    layout: Layout,
}

// SAFETY: all that it points to is its own, and zstd binds none of it to a thread (zstd.h: "use one
// different context per thread").
unsafe impl Send for Primed {}

impl Primed {
    /// Makes the tables of a dictionary. `None` without memory, or if zstd does not take the
    /// dictionary for one.
    pub fn new(dictionary: &[u8], level: i32) -> Option<Primed> {
        let layout = Layout::array::<u8>(dictionary.len() + PAGE_BYTES).ok()?;
        // SAFETY: a page is not nothing.
        let bytes = NonNull::new(unsafe { std::alloc::alloc(layout) })?;
        // SAFETY: `bytes` is new, and longer than the dictionary. All values of the parameters are
        // zstd's own, for an input of a page, or smaller.
        let (context, tables) = unsafe {
            bytes.as_ptr().copy_from_nonoverlapping(dictionary.as_ptr(), dictionary.len());
            let mut parameters =
                zstd_sys::ZSTD_getCParams(level, PAGE_BYTES as u64, dictionary.len());
            parameters.hashLog = parameters.hashLog.min(TABLE_LOG);
            parameters.chainLog = parameters.chainLog.min(TABLE_LOG);
            let tables = zstd_sys::ZSTD_createCDict_advanced(
                bytes.as_ptr().cast(),
                dictionary.len(),
                // A copy of zstd's would have no room for a page behind it.
                ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef,
                ZSTD_dictContentType_e::ZSTD_dct_fullDict,
                parameters,
                zstd_sys::ZSTD_customMem {
                    customAlloc: None,
                    customFree: None,
                    opaque: std::ptr::null_mut(),
                },
            );
            (zstd_sys::ZSTD_createCCtx(), tables)
        };
        let mut primed = Primed { context, tables, bytes, layout };
        primed.set_up(level).then_some(primed)
    }

    /// Sets zstd up; false without memory for its parts. Frames are as those without a dictionary
    /// (`new_compressor`).
    fn set_up(&mut self, level: i32) -> bool {
        let parameters = [
            (ZSTD_cParameter::ZSTD_c_compressionLevel, level),
            // The names of those that zstd calls experimental: format, forceAttachDict.
            (
                ZSTD_cParameter::ZSTD_c_experimentalParam2,
                ZSTD_format_e::ZSTD_f_zstd1_magicless as i32,
            ),
            (
                ZSTD_cParameter::ZSTD_c_experimentalParam4,
                ZSTD_dictAttachPref_e::ZSTD_dictForceCopy as i32,
            ),
            (ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
            (ZSTD_cParameter::ZSTD_c_checksumFlag, 0),
            (ZSTD_cParameter::ZSTD_c_dictIDFlag, 0),
        ];
        if self.context.is_null() || self.tables.is_null() {
            return false;
        }
        // SAFETY: `context` is a live one of ours, and `tables` lives as long.
        unsafe {
            parameters.iter().all(|&(parameter, value)| {
                !is_error(zstd_sys::ZSTD_CCtx_setParameter(self.context, parameter, value))
            }) && !is_error(zstd_sys::ZSTD_CCtx_refCDict(self.context, self.tables))
        }
    }

    /// Compresses `page` into `out`, and returns the length. `None` if `out` has no room for it.
    pub fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        // SAFETY: `bytes` ends with room for a page, which nothing but this function, which has it
        // alone, reads or writes; `out` is the caller's and elsewhere. After a failure the
        // context is inside its frame, where it would refuse the next; what it refers to stays.
        unsafe {
            let place = self.bytes.as_ptr().add(self.layout.size() - PAGE_BYTES);
            place.copy_from_nonoverlapping(page.as_ptr(), PAGE_BYTES);
            let written = zstd_sys::ZSTD_compress2(
                self.context,
                out.as_mut_ptr().cast(),
                out.len(),
                place.cast(),
                PAGE_BYTES,
            );
            if is_error(written) {
                zstd_sys::ZSTD_CCtx_reset(
                    self.context,
                    ZSTD_ResetDirective::ZSTD_reset_session_only,
                );
                return None;
            }
            Some(written)
        }
    }
}

impl Drop for Primed {
    fn drop(&mut self) {
        // SAFETY: all three are ours, as they were made (zstd's may be null), and not used again;
        // what refers to others goes first.
        unsafe {
            zstd_sys::ZSTD_freeCCtx(self.context);
            zstd_sys::ZSTD_freeCDict(self.tables);
            std::alloc::dealloc(self.bytes.as_ptr(), self.layout);
        }
    }
}

fn is_error(code: usize) -> bool {
    // SAFETY: it takes any number.
    unsafe { zstd_sys::ZSTD_isError(code) != 0 }
}
