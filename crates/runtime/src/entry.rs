//! The exported malloc family.
//!
//! The functions themselves are in alloc's C shim and Rust. A cdylib exports only Rust's own
//! symbols, so each public name is one jump to the real function. Those that allocate pass on their
//! caller, behind their own arguments. That is the return address, the stack pointer before the
//! call, and the frame pointer register (the crate `context`).

use std::arch::naked_asm;
use std::ffi::c_void;
use terrace_alloc::arenas;

macro_rules! jumps {
    ($($public:ident => $target:ident;)*) => {$(
        // SAFETY: a tail jump passes every argument on as it is; the target has the public
        // function's signature.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $public() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(concat!("jmp ", stringify!($target), "@PLT"));
            #[cfg(target_arch = "aarch64")]
            naked_asm!(concat!("b ", stringify!($target)));
        }
    )*};
}
pub(crate) use jumps;

/// `malloc`. A small object, on a thread that groups nothing and has nothing else to do, is
/// jemalloc's at once. Everything else goes as the functions below.
// SAFETY: reads the thread's state and a flag. A tail jump passes the argument on as it is, and
// three more after two that do not count.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "mov rax, qword ptr [rip + terrace_self@GOTTPOFF]",
        "cmp byte ptr fs:[rax], 0",
        "je 2f",
        "cmp rdi, {small}",
        "jae 2f",
        "cmp dword ptr [rip + terrace_pending], 0",
        "jne 2f",
        "jmp _rjem_malloc@PLT",
        "2:",
        "mov rcx, [rsp]",
        "lea r8, [rsp + 8]",
        "mov r9, rbp",
        "jmp terrace_malloc@PLT",
        small = const SMALL,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x3, x30", "mov x4, sp", "mov x5, x29", "b terrace_malloc");
}

/// Size, bytes, below which threads mostly have free blocks at hand; as in the shim.
#[cfg(target_arch = "x86_64")]
const SMALL: usize = 32 << 10;

macro_rules! allocating_jumps {
    ($($public:ident => $target:ident;)*) => {$(
        // SAFETY: a tail jump passes every argument on as it is, of which there are at most three,
        // and three more. The target has the public function's signature with those.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $public() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "mov rcx, [rsp]",
                "lea r8, [rsp + 8]",
                "mov r9, rbp",
                concat!("jmp ", stringify!($target), "@PLT"),
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "mov x3, x30",
                "mov x4, sp",
                "mov x5, x29",
                concat!("b ", stringify!($target)),
            );
        }
    )*};
}

// The kernel interface and the decisions behind it are the same on both; only x86-64 has been run.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("libterrace.so is written for x86-64 and AArch64");

allocating_jumps! {
    calloc => terrace_calloc;
    realloc => terrace_realloc;
    reallocarray => terrace_reallocarray;
    posix_memalign => terrace_posix_memalign;
    aligned_alloc => terrace_memalign;
    memalign => terrace_memalign;
    valloc => terrace_valloc;
    pvalloc => terrace_pvalloc;
    mallocx => terrace_mallocx;
    rallocx => terrace_rallocx;
    mnalloc => terrace_mnalloc;
    // operator new and new[]: plain, nothrow, aligned, both.
    _Znwm => terrace_new;
    _Znam => terrace_new;
    _ZnwmRKSt9nothrow_t => terrace_new_nothrow;
    _ZnamRKSt9nothrow_t => terrace_new_nothrow;
    _ZnwmSt11align_val_t => terrace_new_aligned;
    _ZnamSt11align_val_t => terrace_new_aligned;
    _ZnwmSt11align_val_tRKSt9nothrow_t => terrace_new_aligned_nothrow;
    _ZnamSt11align_val_tRKSt9nothrow_t => terrace_new_aligned_nothrow;
}

jumps! {
    free => terrace_free;
    cfree => terrace_free;
    free_sized => terrace_free;
    free_aligned_sized => terrace_free;
    malloc_usable_size => terrace_malloc_usable_size;
    xallocx => terrace_xallocx;
    sallocx => terrace_sallocx;
    dallocx => terrace_dallocx;
    sdallocx => terrace_sdallocx;
    nallocx => terrace_nallocx;
    mallctl => terrace_mallctl;
    mallctlnametomib => terrace_mallctlnametomib;
    mallctlbymib => terrace_mallctlbymib;
    malloc_stats_print => terrace_malloc_stats_print;
    mnalloc_aligned => terrace_mnalloc_aligned;
    // operator delete and delete[]: plain, sized, aligned, both, nothrow.
    _ZdlPv => terrace_free;
    _ZdaPv => terrace_free;
    _ZdlPvm => terrace_free;
    _ZdaPvm => terrace_free;
    _ZdlPvSt11align_val_t => terrace_free;
    _ZdaPvSt11align_val_t => terrace_free;
    _ZdlPvmSt11align_val_t => terrace_free;
    _ZdaPvmSt11align_val_t => terrace_free;
    _ZdlPvRKSt9nothrow_t => terrace_free;
    _ZdaPvRKSt9nothrow_t => terrace_free;
    _ZdlPvSt11align_val_tRKSt9nothrow_t => terrace_free;
    _ZdaPvSt11align_val_tRKSt9nothrow_t => terrace_free;
}

// The program's own functions of these names where it keeps its allocator (`--allocator system`).
unsafe extern "C" {
    fn terrace_next_malloc_trim() -> Option<extern "C" fn(usize) -> i32>;
    fn terrace_next_mallopt() -> Option<extern "C" fn(i32, i32) -> i32>;
    fn terrace_next_malloc_stats() -> Option<extern "C" fn()>;
    fn terrace_next_mallinfo() -> Option<extern "C" fn() -> MallocInfo<i32>>;
    fn terrace_next_mallinfo2() -> Option<extern "C" fn() -> MallocInfo<usize>>;
}

/// `malloc_trim`: gives free pages back to the system. Returns 1 if any may have been.
#[unsafe(no_mangle)]
extern "C" fn malloc_trim(pad: usize) -> i32 {
    // SAFETY: reads what was decided at the first allocation; so below.
    match unsafe { terrace_next_malloc_trim() } {
        Some(next) => next(pad),
        None => i32::from(arenas::purge()),
    }
}

/// glibc's ten counters, of which jemalloc can tell four.
#[repr(C)]
pub struct MallocInfo<T> {
    arena: T,
    ordblks: T,
    smblks: T,
    hblks: T,
    hblkhd: T,
    usmblks: T,
    fsmblks: T,
    uordblks: T,
    fordblks: T,
    keepcost: T,
}

fn malloc_info_of<T: Default>(convert: impl Fn(usize) -> T) -> MallocInfo<T> {
    let usage = arenas::usage();
    MallocInfo {
        arena: convert(usage.mapped),
        ordblks: T::default(),
        smblks: T::default(),
        hblks: T::default(),
        hblkhd: T::default(),
        usmblks: T::default(),
        fsmblks: T::default(),
        uordblks: convert(usage.allocated),
        fordblks: convert(usage.mapped.saturating_sub(usage.allocated)),
        keepcost: convert(usage.mapped.saturating_sub(usage.active)),
    }
}

/// `mallinfo2`.
#[unsafe(no_mangle)]
extern "C" fn mallinfo2() -> MallocInfo<usize> {
    // SAFETY: as above.
    unsafe { terrace_next_mallinfo2() }.map_or_else(|| malloc_info_of(|bytes| bytes), |next| next())
}

/// `mallinfo`: the same, saturated at 2 GiB.
#[unsafe(no_mangle)]
extern "C" fn mallinfo() -> MallocInfo<i32> {
    // SAFETY: as above.
    unsafe { terrace_next_mallinfo() }
        .map_or_else(|| malloc_info_of(|bytes| bytes.min(i32::MAX as usize) as i32), |next| next())
}

/// `mallopt`: glibc's tunables mean nothing here. They are accepted, as jemalloc does nothing worse
/// without them.
#[unsafe(no_mangle)]
extern "C" fn mallopt(parameter: i32, value: i32) -> i32 {
    // SAFETY: as above.
    unsafe { terrace_next_mallopt() }.map_or(1, |next| next(parameter, value))
}

/// `malloc_stats`: jemalloc's summary, on standard error like glibc's.
#[unsafe(no_mangle)]
extern "C" fn malloc_stats() {
    // SAFETY: as above.
    if let Some(next) = unsafe { terrace_next_malloc_stats() } {
        return next();
    }
    unsafe extern "C" {
        fn _rjem_malloc_stats_print(
            write: Option<unsafe extern "C" fn(*mut c_void, *const libc::c_char)>,
            opaque: *mut c_void,
            options: *const libc::c_char,
        );
        fn terrace_write_error(opaque: *mut c_void, text: *const libc::c_char);
    }
    // SAFETY: the options are NUL-terminated ("no per-arena detail").
    unsafe {
        _rjem_malloc_stats_print(Some(terrace_write_error), std::ptr::null_mut(), c"abl".as_ptr())
    }
}
