//! The decisions how objects are counted and which segments are emptied, without a heap. For
//! programs that have segments of their own, as `terrace-kv` does.

pub use crate::classifier::Classifier;
pub use crate::marks::HEATS;
pub use crate::policy::{Candidate, Contents, Plan, Scale, Situation, hot_from, judge};
pub use crate::seen::{Seen, is_sampled};
pub use crate::segment::Kind;
pub use crate::throttle::{Pauses, Throttle};
