//! memcached's protocols: bytes in, requests out. Nothing here reads, writes or stores.

pub mod meta;
pub mod text;

use meta::MetaRequest;

/// Maximum bytes of a key.
pub const KEY_MAX: usize = 250;

/// The answer to a line of the wrong form.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// How an item is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// In any case.
    Set,
    /// Only if the key has none.
    Add,
    /// Only if the key has one.
    Replace,
    /// Behind the present value.
    Append,
    /// Before the present value.
    Prepend,
    /// Only over a version.
    Cas(u64),
}

/// A line that announces a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRequest<'a> {
    /// The condition.
    pub mode: StoreMode,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The expiry time as the client wrote it.
    pub time: i32,
    /// The bytes of the value.
    pub len: usize,
    /// Whether no answer is wanted.
    pub noreply: bool,
}

/// The items that a dump is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dumped {
    /// All, by class. There must be some.
    All,
    /// All, as they stand in the index.
    Hash,
    /// The items of some classes, with a bit for each.
    Classes(u64),
}

/// A line from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields have the names of the protocol's words")]
pub enum Request<'a> {
    /// Values of keys, which are the words of `keys`; with `time`, they are touched too.
    Get { keys: &'a [u8], cas: bool, time: Option<i32> },
    /// A value that follows.
    Store(StoreRequest<'a>),
    /// Removal of an item.
    Delete { key: &'a [u8], noreply: bool },
    /// Addition to a number, or subtraction.
    Arithmetic { key: &'a [u8], increment: bool, delta: u64, noreply: bool },
    /// A new expiry time.
    Touch { key: &'a [u8], time: i32, noreply: bool },
    /// Removal of all items.
    FlushAll { time: Option<i32>, noreply: bool },
    /// The server's version.
    Version,
    /// How much the server writes about its work.
    Verbosity { level: u32, noreply: bool },
    /// What is known of items, a line for each.
    Dump(Dumped),
    /// Statistics, with the words that follow.
    Stats(Vec<&'a [u8]>),
    /// The end of the connection.
    Quit,
    /// The end of the server, if the mode is a known one.
    Shutdown { valid: bool },
    /// A new memory limit.
    MemoryLimit { mebibytes: u32, noreply: bool },
    /// Whether hot items are brought together from now on.
    Consolidate { on: bool, noreply: bool },
    /// Certificates and keys are read again.
    RefreshCerts { noreply: bool },
    /// A command that has no effect here, and succeeds.
    Ignored,
    /// A shift of the clock, for tests.
    DebugTime(i64),
    /// A meta command.
    Meta(MetaRequest<'a>),
    /// A meta command that only marks a place.
    MetaNoop,
}

/// An answer to a line that is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line to answer, or none to close the connection.
    pub message: Option<&'static str>,
    /// Number of bytes of a value to skip.
    pub skip: usize,
    /// Whether the answer is left out.
    pub noreply: bool,
}

impl Refusal {
    /// An answer with nothing to skip.
    pub const fn new(message: &'static str) -> Refusal {
        Refusal { message: Some(message), skip: 0, noreply: false }
    }
}

/// Splits a line at spaces.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// A number as C's `strtol` family takes it, for one whole word.
pub fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// A time as memcached takes it: a number of 64 bits, of which it keeps the lower 32.
pub fn time(word: &[u8]) -> Option<i32> {
    number::<i64>(word).map(|time| time as i32)
}

/// A client's flags as memcached takes them: a number of 64 bits, of which it keeps the lower 32.
pub fn client_flags(word: &[u8]) -> Option<u32> {
    number::<u64>(word).map(|flags| flags as u32)
}
