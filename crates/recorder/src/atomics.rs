//! Atomic operations, which the compiler replaces by calls: they are recorded, and then done. All
//! are done in the strongest order, whatever weaker one was asked for.

use crate::entry::access;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst, fence};

macro_rules! atomics {
    ($atomic:ident $number:ty, $load:ident $store:ident $exchange:ident $add:ident $sub:ident
     $and:ident $or:ident $xor:ident $nand:ident
     $strong:ident $weak:ident $value:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $load(at: *mut $number, _: i32) -> $number {
            access(at as usize, size_of::<$number>(), false);
            // SAFETY: the program reads an atomic of its own there, in all of these.
            unsafe { $atomic::from_ptr(at) }.load(SeqCst)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $store(at: *mut $number, value: $number, _: i32) {
            access(at as usize, size_of::<$number>(), true);
            // SAFETY: as above.
            unsafe { $atomic::from_ptr(at) }.store(value, SeqCst)
        }
        atomics!(
            swap $atomic $number, $exchange swap, $add fetch_add, $sub fetch_sub, $and fetch_and,
            $or fetch_or, $xor fetch_xor, $nand fetch_nand
        );
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $strong(
            at: *mut $number,
            expected: *mut $number,
            value: $number,
            _: i32,
            _: i32,
        ) -> i32 {
            // SAFETY: as above; what was expected is the caller's.
            unsafe {
                let before = *expected;
                *expected = $value(at, before, value, 0, 0);
                i32::from(*expected == before)
            }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $weak(
            at: *mut $number,
            expected: *mut $number,
            value: $number,
            _: i32,
            _: i32,
        ) -> i32 {
            // SAFETY: the same call.
            unsafe { $strong(at, expected, value, 0, 0) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $value(
            at: *mut $number,
            expected: $number,
            value: $number,
            _: i32,
            _: i32,
        ) -> $number {
            access(at as usize, size_of::<$number>(), true);
            // SAFETY: as above.
            let number = unsafe { $atomic::from_ptr(at) };
            let (Ok(found) | Err(found)) =
                number.compare_exchange(expected, value, SeqCst, SeqCst);
            found
        }
    };
    (swap $atomic:ident $number:ty, $($name:ident $method:ident),*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(at: *mut $number, value: $number, _: i32) -> $number {
            access(at as usize, size_of::<$number>(), true);
            // SAFETY: as above.
            unsafe { $atomic::from_ptr(at) }.$method(value, SeqCst)
        }
    )*};
}

atomics!(
    AtomicU8 u8, __tsan_atomic8_load __tsan_atomic8_store __tsan_atomic8_exchange
    __tsan_atomic8_fetch_add __tsan_atomic8_fetch_sub __tsan_atomic8_fetch_and
    __tsan_atomic8_fetch_or __tsan_atomic8_fetch_xor __tsan_atomic8_fetch_nand
    __tsan_atomic8_compare_exchange_strong __tsan_atomic8_compare_exchange_weak
    __tsan_atomic8_compare_exchange_val
);
atomics!(
    AtomicU16 u16, __tsan_atomic16_load __tsan_atomic16_store __tsan_atomic16_exchange
    __tsan_atomic16_fetch_add __tsan_atomic16_fetch_sub __tsan_atomic16_fetch_and
    __tsan_atomic16_fetch_or __tsan_atomic16_fetch_xor __tsan_atomic16_fetch_nand
    __tsan_atomic16_compare_exchange_strong __tsan_atomic16_compare_exchange_weak
    __tsan_atomic16_compare_exchange_val
);
atomics!(
    AtomicU32 u32, __tsan_atomic32_load __tsan_atomic32_store __tsan_atomic32_exchange
    __tsan_atomic32_fetch_add __tsan_atomic32_fetch_sub __tsan_atomic32_fetch_and
    __tsan_atomic32_fetch_or __tsan_atomic32_fetch_xor __tsan_atomic32_fetch_nand
    __tsan_atomic32_compare_exchange_strong __tsan_atomic32_compare_exchange_weak
    __tsan_atomic32_compare_exchange_val
);
atomics!(
    AtomicU64 u64, __tsan_atomic64_load __tsan_atomic64_store __tsan_atomic64_exchange
    __tsan_atomic64_fetch_add __tsan_atomic64_fetch_sub __tsan_atomic64_fetch_and
    __tsan_atomic64_fetch_or __tsan_atomic64_fetch_xor __tsan_atomic64_fetch_nand
    __tsan_atomic64_compare_exchange_strong __tsan_atomic64_compare_exchange_weak
    __tsan_atomic64_compare_exchange_val
);

#[unsafe(no_mangle)]
extern "C" fn __tsan_atomic_thread_fence(_: i32) {
    fence(SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_atomic_signal_fence(_: i32) {
    std::sync::atomic::compiler_fence(SeqCst);
}
