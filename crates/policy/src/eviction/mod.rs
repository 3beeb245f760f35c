//! Choice of the pages to evict: by refaults, by written bits and, where there are any, by samples.

pub mod faults;
pub mod regions;
pub mod victims;
