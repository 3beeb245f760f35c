//! Why a preload cannot come into a program, and names of files in such answers.

/// Why a preload cannot come into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Started with LD_AUDIT. The loader has less room for thread-local variables then, too little
    /// for a preload that has many.
    Audited,
    /// A script whose interpreter is started by `env -i`.
    ClearedEnvironment,
    /// The kernel starts it with AT_SECURE; the loader then ignores a preload from the environment.
    Setuid,
    /// A setgid program: the loader ignores a preload, as for [`Cause::Setuid`].
    Setgid,
    /// A program with file capabilities: the loader ignores a preload, as for [`Cause::Setuid`].
    Capabilities,
    /// A 32-bit program.
    Bits32,
    /// Built for another processor.
    OtherProcessor,
    /// Linked to musl.
    Musl,
    /// A loader that is neither glibc's nor musl's.
    OtherLoader(Name),
    /// No loader at all.
    Static,
    /// Built with this sanitizer, which must have the first malloc: it ends the program, or the
    /// program crashes, where ours comes first.
    Sanitizer(&'static str),
}

impl Cause {
    /// The cause in a word or two.
    pub fn short(&self) -> &'static str {
        match self {
            Cause::Audited => "LD_AUDIT",
            Cause::ClearedEnvironment => "env -i",
            Cause::Setuid => "setuid",
            Cause::Setgid => "setgid",
            Cause::Capabilities => "file capabilities",
            Cause::Bits32 => "32-bit",
            Cause::OtherProcessor => "another processor",
            Cause::Musl => "musl",
            Cause::OtherLoader(_) => "not glibc's loader",
            Cause::Static => "static",
            Cause::Sanitizer(name) => name,
        }
    }
}

/// A file's name, cut where it is very long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; 64],
    len: usize,
}

impl Name {
    pub(crate) fn new(name: &[u8]) -> Name {
        let mut bytes = [0; 64];
        let len = name.len().min(bytes.len());
        bytes[..len].copy_from_slice(&name[..len]);
        Name { bytes, len }
    }

    /// Bytes of the name, without a NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
