//! Compiles what is in C: the malloc family needs its caller's return address, and the wrapped calls of the C library their own names.
fn main() {
    println!("cargo:rerun-if-changed=shim");
    cc::Build::new()
        .files(["shim/malloc.c", "shim/libc.c"])
        .opt_level(2)
        .warnings_into_errors(true)
        .flag("-fno-builtin")
        // operator new may throw through a frame of the shim.
        .flag("-fexceptions")
        .compile("terrace_recorder_shim");
}
