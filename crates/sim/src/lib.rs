//! Runs the policies of live programs over accesses that are generated or recorded, and says what
//! would have come of it.
//!
//! - [`source`]: accesses to units of placement. [`workload`]: where they come from, by one word:
//!   [`generators`] of [`patterns`] that `terrace load memory` has too, programs of [`objects`] in
//!   the layouts of several allocators, [`recorded`] ones. [`mixed`]: base pages and huge ones.
//! - [`machine`]: what accesses, faults and moves cost; [`sampling`]: what a sampler meets.
//! - [`simulation`]: one policy over a stream; [`pass`]: several at once; [`ahead`]: with the next
//!   blocks made meanwhile; [`counts`]: what came of it.
//! - [`objectier`]: ObjecTier's figures, which need no policy.
//!
//! `docs/simulator.md` says what is modelled and what is not.
#![forbid(unsafe_code)]

pub mod ahead;
pub mod alias;
pub mod counts;
pub mod generators;
pub mod machine;
pub mod mixed;
pub mod objectier;
pub mod objects;
pub mod pass;
pub mod patterns;
pub mod quantity;
pub mod recorded;
pub mod sampling;
pub mod scattered;
pub mod simulation;
pub mod source;
pub mod spec;
pub mod tiering;
pub mod tiersets;
pub mod workload;
