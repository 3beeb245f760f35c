//! Which pages are evicted, by what comes back, by written bits and, where there are any, by samples.

pub mod faults;
pub mod regions;
pub mod victims;
