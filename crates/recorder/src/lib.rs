//! What a program compiled with `-fsanitize=thread` is linked with instead of libtsan. Every access
//! of the program goes through a model of a processor's last-level cache. What misses there is
//! recorded: that is what memory is asked for.
//!
//! - [`settings`]: what is recorded, from the environment (`TERRACE_RECORD=MODE:FILE`).
//! - [`hooks`] and [`atomics`]: what the compiler calls. `shim/libc.c`: calls of the C library that
//!   touch much memory.
//! - [`calls`]: each thread's call stack, kept by the hooks: the context of an allocation.
//! - `shim/malloc.c` and [`entry`]: the malloc family, passed on to the allocator behind (a
//!   preloaded one, or the C library's).
//! - [`heap`]: the program's objects: where they lie, which context made them, how often each was
//!   missed.
//! - [`recorder`]: all of it behind one lock; [`pages`]: the summary of a recording of the kind
//!   `pages`.
//! - [`memory`]: the recorder's own memory, which no malloc of the program's has to do with.
//!
//! A signal handler that interrupts the recorder is not recorded; a forked child is not; nor are
//! the program's system calls, but those in `shim/libc.c`.

pub mod atomics;
pub mod calls;
pub mod entry;
pub mod heap;
pub mod hooks;
pub mod memory;
pub mod pages;
pub mod recorder;
pub mod settings;
