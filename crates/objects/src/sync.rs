//! Atomics and locks of the protocol between readers, writers and the relocator: the standard
//! library's, or loom's, which tries every order of their steps (`tests/protocol.rs`).

#[cfg(loom)]
pub use loom::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub use loom::hint::spin_loop;
#[cfg(not(loom))]
pub use std::hint::spin_loop;
