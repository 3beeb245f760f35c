//! State of a list of items.

/// The command whose lines a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Lines of `lru_crawler metadump`.
    Metadump,
    /// Lines of `stats cachedump`.
    Cachedump,
}

/// A list of items that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing {
    pub(super) form: Form,
    /// A bit for each listed class.
    pub(super) classes: u64,
    /// The chain of the index that is next.
    pub(super) chain: usize,
    pub(super) items_left: usize,
    pub(super) bytes_left: usize,
}
