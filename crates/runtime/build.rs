//! Link options of libterrace.so.
fn main() {
    println!("cargo:rerun-if-changed=shim");
    cc::Build::new()
        .files(["shim/streams.c", "shim/execl.c"])
        .opt_level(2)
        .warnings_into_errors(true)
        .compile("terrace_runtime_shim");
    // What the library itself (jemalloc above all) maps must not pass through its own interposed
    // family, or it would manage its own memory. jemalloc's fork handlers must come after ours:
    // see `processes`.
    for name in ["mmap", "munmap", "madvise", "mprotect", "sbrk", "syscall"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    // Codecs take memory of the library's own, not the program's: see `codecs`.
    for name in ["malloc", "calloc", "free"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    // A program that links with it and is started under `terrace run` loads it once.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libterrace.so");
    // Our threads run until the process ends: the library must never be unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
