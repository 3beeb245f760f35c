//! What the compiler calls (gcc and clang, `-fsanitize=thread`) before each access. What it calls
//! at the beginning and end of each function is in `shim/calls.c`.

use crate::entry::access;

macro_rules! accesses {
    ($($name:ident $bytes:literal $write:literal),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(address: usize) {
            access(address, $bytes, $write);
        }
    )*};
}

accesses!(
    __tsan_read1 1 false, __tsan_read2 2 false, __tsan_read4 4 false, __tsan_read8 8 false,
    __tsan_read16 16 false,
    __tsan_write1 1 true, __tsan_write2 2 true, __tsan_write4 4 true, __tsan_write8 8 true,
    __tsan_write16 16 true,
    __tsan_unaligned_read1 1 false, __tsan_unaligned_read2 2 false, __tsan_unaligned_read4 4 false,
    __tsan_unaligned_read8 8 false,
    __tsan_unaligned_read16 16 false, __tsan_unaligned_write1 1 true,
    __tsan_unaligned_write2 2 true, __tsan_unaligned_write4 4 true,
    __tsan_unaligned_write8 8 true, __tsan_unaligned_write16 16 true,
    // With gcc's `--param tsan-distinguish-volatile`, and clang's for what is read and then
    // written.
    __tsan_volatile_read1 1 false, __tsan_volatile_read2 2 false, __tsan_volatile_read4 4 false,
    __tsan_volatile_read8 8 false,
    __tsan_volatile_read16 16 false, __tsan_volatile_write1 1 true, __tsan_volatile_write2 2 true,
    __tsan_volatile_write4 4 true,
    __tsan_volatile_write8 8 true, __tsan_volatile_write16 16 true,
    __tsan_read_write1 1 true, __tsan_read_write2 2 true, __tsan_read_write4 4 true,
    __tsan_read_write8 8 true, __tsan_read_write16 16 true,
    __tsan_unaligned_read_write2 2 true, __tsan_unaligned_read_write4 4 true,
    __tsan_unaligned_read_write8 8 true,
    __tsan_unaligned_read_write16 16 true,
    // A pointer to a table of virtual functions.
    __tsan_vptr_read 8 false,
);

#[unsafe(no_mangle)]
extern "C" fn __tsan_vptr_update(address: usize, _new: usize) {
    access(address, 8, true);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_read_range(address: usize, bytes: usize) {
    access(address, bytes, false);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_write_range(address: usize, bytes: usize) {
    access(address, bytes, true);
}

/// Does nothing: each object file's constructor calls it. The recorder begins by its own (`entry`).
#[unsafe(no_mangle)]
extern "C" fn __tsan_init() {}

#[unsafe(no_mangle)]
extern "C" fn __tsan_ignore_thread_begin() {}

#[unsafe(no_mangle)]
extern "C" fn __tsan_ignore_thread_end() {}

// clang's names for what it would have called memcpy, memmove and memset.
unsafe extern "C" {
    fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8;
    fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8;
    fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tsan_memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    access(from as usize, bytes, false);
    access(to as usize, bytes, true);
    // SAFETY: as the caller promises.
    unsafe { memcpy(to, from, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tsan_memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    access(from as usize, bytes, false);
    access(to as usize, bytes, true);
    // SAFETY: as the caller promises.
    unsafe { memmove(to, from, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tsan_memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
    access(to as usize, bytes, true);
    // SAFETY: as the caller promises.
    unsafe { memset(to, byte, bytes) }
}
