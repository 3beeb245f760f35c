//! A counter for each result, which shows why something does not move. The order is that of `struct
//! terrace_objects_counters`.

/// What happened since the consolidator was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Objects that moved.
    pub moved: u64,
    /// Bytes of the objects that moved.
    pub moved_bytes: u64,
    /// Objects for which the first room was too small.
    pub no_space: u64,
    /// Objects that were busy at a visit.
    pub busy: u64,
    /// Objects that nothing referred to any more.
    pub dead: u64,
    /// Objects that cannot move.
    pub immovable: u64,
    /// Objects that were left alone because their page is not in memory.
    pub not_resident: u64,
    /// Moves for which no segment was left.
    pub no_segment: u64,
    /// Breaches of the callback's contract that were seen.
    pub misused: u64,
    /// Segments that were emptied.
    pub emptied_segments: u64,
    /// Segments of which only hot objects, or only cold ones, were taken.
    pub sorted_segments: u64,
    /// Scans of all marks.
    pub scans: u64,
    /// Steps that were not refused for want of time or bytes, including those in a pause.
    pub steps: u64,
    /// Bytes of live objects at the last scan.
    pub live_bytes: u64,
}
