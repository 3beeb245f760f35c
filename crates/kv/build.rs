//! Link options of the server.
fn main() {
    // With tiers, memory that Rust and the codecs allocate must never be evicted: see `heap`.
    for name in ["malloc", "calloc", "realloc", "posix_memalign", "free"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap={name}");
    }
}
