//! The form in which a tier keeps a page: a pattern, the page itself, or its codec's output.

/// How the stored bytes of a page are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// The page repeats one 8-byte pattern, and that pattern is stored (the zero page too).
    Same,
    /// The page as it was, 4096 bytes: it would not have shrunk enough.
    Raw,
    /// What the tier's codec made of it, 1..=4032 bytes.
    Coded,
}

/// What a tier stores for a page. It borrows from the page or from the scratch it was made with.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'s> {
    /// How `bytes` is to be read.
    pub encoding: Encoding,
    /// 8 bytes for [`Encoding::Same`], 4096 for [`Encoding::Raw`], fewer than 4096 for [`Encoding::Coded`].
    pub bytes: &'s [u8],
}
