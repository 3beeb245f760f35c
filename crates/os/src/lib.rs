//! The one layer to the kernel: raw system calls, and what they answer.
//!
//! No system call here touches `errno`, which belongs to the program; [`fork()`] does, and what
//! reads files by the standard library may.
//! None passes through the library's own interposed `mmap` family. Constants and layouts are the
//! kernel's (`linux/userfaultfd.h`, `linux/fs.h`); they are written out here because Debian 12's
//! headers (6.1) lack UFFDIO_MOVE and PAGEMAP_SCAN.
//!
//! [`injection`] makes calls fail on purpose, [`simulated`] has a simulation answer them: both for
//! tests.

mod access;
mod advice;
mod answers;
mod confine;
mod errno;
mod files;
mod fork;
mod futex;
mod ids;
mod image;
pub mod injection;
mod limits;
pub mod lock;
mod maps;
mod numa;
mod others;
mod pagemap;
mod poll;
mod proc;
mod process;
#[cfg(target_arch = "x86_64")]
pub mod ptrace;
mod signals;
pub mod simulated;
mod sockets;
pub mod space;
mod standard_error;
mod task;
#[cfg(test)]
mod tests;
mod threads;
mod time;
mod timers;
mod types;
mod uffd;

pub use access::*;
pub use advice::*;
pub use answers::*;
pub use confine::*;
pub use errno::*;
pub use files::*;
pub use fork::*;
pub use futex::*;
pub use ids::*;
pub use image::*;
pub use limits::*;
pub use maps::*;
pub use numa::*;
pub use others::*;
pub use pagemap::*;
pub use poll::*;
pub use proc::*;
pub use process::*;
pub use signals::*;
pub use sockets::*;
pub use space::{map_shared, reserve, reserve_without_access, share_with_children};
pub use standard_error::*;
pub use task::*;
pub use threads::*;
pub use time::*;
pub use timers::*;
pub use types::*;
pub use uffd::*;
