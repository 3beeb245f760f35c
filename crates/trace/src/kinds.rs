//! The kinds of recordings, and what each begins with: seven letters and the version.

/// Counts by region and time ([`crate::counts`]).
pub const COUNTS: [u8; 8] = *b"TERRCNT\x01";
/// Accesses one by one ([`crate::accesses`]).
pub const ACCESSES: [u8; 8] = *b"TERRACC\x01";
/// Accesses by object ([`crate::objects`]).
pub const OBJECTS: [u8; 8] = *b"TERROBJ\x01";

/// The kinds of recordings: what they begin with, what is said of a file, and what makes one.
pub const KINDS: [(&[u8; 8], &str, &str); 3] = [
    (&COUNTS, "holds counts by region and time", "what `terrace record` writes"),
    (
        &ACCESSES,
        "holds accesses one by one (`terrace record --accesses`, or a recorder)",
        "accesses one by one (`terrace record --accesses`)",
    ),
    (
        &OBJECTS,
        "holds accesses by object (a program built with the recorder)",
        "accesses by object (a program built with the recorder)",
    ),
];
