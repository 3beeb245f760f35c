//! Compiles what is in C: what needs its caller's return address or stack pointer, the wrapped
//! calls of the C library, and 16-byte atomics.
fn main() {
    println!("cargo:rerun-if-changed=shim");
    let mut build = cc::Build::new();
    build
        .files(["shim/malloc.c", "shim/libc.c", "shim/calls.c", "shim/atomic128.c"])
        .opt_level(2)
        .warnings_into_errors(true)
        // A loop that copies must not become a call of what is wrapped.
        .flag("-fno-builtin")
        // operator new may throw through a frame of the shim.
        .flag("-fexceptions");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        build.flag("-mcx16");
    }
    build.compile("terrace_recorder_shim");
}
