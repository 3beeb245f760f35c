//! Decides which pages go where.
//!
//! Pure decisions: no I/O, no clock (time is an argument), no threads, no `unsafe`. The same code
//! runs in a live program and in the simulator.
//!
//! - [`victims`]: which pages are evicted, by faults and written bits; [`faults`] ranks the regions
//!   for it, [`regions`] with samples: by our own model, [`mod@terrace`], or by a published one.
//! - [`placement`]: which units are in the fast one of two tiers, by samples; [`jenga`] and
//!   [`memtis`] by the mechanism that they share, [`histogram`]; ours by its model and what moves
//!   cost, [`gate`]. Those that the papers compare, for the simulator: [`hemem`], [`hybridtier`],
//!   [`autonuma`], [`tpp`] and [`nomad`] with what they share of the [`kernel`], and the
//!   [`oracle`]. [`sizes`]: of units that are not all alike.
//! - [`tiering`]: which of several tiers each region is in, by what it costs and what that saves.
//! - [`grouping`]: which allocation sites' objects share a zone.
//! - [`slowdown`]: how much DRAM there is to be, so that no more time is lost than is allowed.
//! - [`live`]: by their names, those that run in a live program; [`published`]: those of a
//!   simulation, with their papers' parameters, of which [`settings`] can be set.
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

pub mod autonuma;
pub mod faults;
pub mod gate;
pub mod grouping;
pub mod hemem;
pub mod histogram;
pub mod hybridtier;
pub mod jenga;
pub mod kernel;
pub mod lists;
pub mod live;
pub mod memtis;
pub mod nomad;
pub mod oracle;
pub mod placement;
pub mod published;
pub mod regions;
pub mod settings;
pub mod shares;
pub mod sizes;
pub mod sketch;
pub mod slowdown;
pub mod terrace;
pub mod tiering;
pub mod tpp;
pub mod victims;
