//! Decides which pages go where.
//!
//! Pure decisions: no I/O, no clock (time is an argument), no threads, no `unsafe`. The same code
//! runs in a live program and in the simulator.
//!
//! - [`eviction`]: which pages are evicted, by what comes back and by written bits. Its `regions`
//!   go by samples too, with our own model of hotness or a published one.
//! - [`placement`]: which units are in the fast one of two tiers, by samples. `terrace` is our
//!   model of hotness, and `gate` the policy over it. `jenga` and `memtis` share `histogram`. Those
//!   that the papers compare are for the simulator: `hemem`, `hybridtier`, `oracle`, and `kernel`
//!   with AutoNUMA, TPP and Nomad.
//! - [`tiering`]: which of several tiers each region is in, by what it costs and what that saves.
//! - [`grouping`]: which allocation sites' objects share a zone.
//! - [`budget_split`]: how a budget is divided among processes.
//! - [`slowdown`]: how much DRAM there is to be, so that no more time is lost than is allowed.
//! - [`registry`]: the policies by their names, `live` in a program and `simulated`; [`settings`]:
//!   what of the latter can be set.
#![forbid(unsafe_code)]

/// The names of a table's rows, in their order.
macro_rules! names {
    ($rows:ident) => {{
        let mut names = [""; $rows.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = $rows[index].name;
            index += 1;
        }
        names
    }};
}

pub mod budget_split;
pub mod eviction;
pub mod grouping;
pub mod placement;
pub mod registry;
pub mod settings;
pub mod slowdown;
pub mod tiering;
