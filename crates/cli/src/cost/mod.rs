//! What memory costs: prices of media, how pages compress, and the total beside all of it in DRAM.

pub mod compress;
pub mod prices;
pub mod tco;
