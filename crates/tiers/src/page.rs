//! The unit that is compressed, stored and restored.

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// The content of one page.
pub type Page = [u8; PAGE_BYTES];
