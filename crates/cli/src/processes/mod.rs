//! The processes of a run: what each wrote of itself, what the kernel says of them, and the budget
//! that they share.

pub mod belief;
pub mod data;
pub mod ended;
pub mod going_on;
pub mod growth;
pub mod idle;
pub mod outside;
pub mod process;
pub mod room;
pub mod statistics;
pub mod tree;
