//! Compiles the entry points' C shim.
fn main() {
    println!("cargo:rerun-if-changed=shim/malloc.c");
    cc::Build::new()
        .file("shim/malloc.c")
        .opt_level(2)
        .warnings_into_errors(true)
        // One load instead of two for each of its variables.
        .flag("-fvisibility=hidden")
        // operator new may throw through a frame of the shim.
        .flag("-fexceptions")
        .compile("terrace_malloc_shim");
}
