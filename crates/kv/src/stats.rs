//! Counters that all threads share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::store::{FETCHED, Header, item_bytes};

/// Maximum number of size classes in memcached's statistics.
pub const CLASSES_MAX: usize = 64;
/// memcached's smallest chunk and growth factor, by which its statistics name classes.
const CHUNK_MIN: f64 = 96.0;
const GROWTH: f64 = 1.25;
const CHUNK_MAX: usize = 512 << 10;
/// Maximum number of key prefixes that are counted.
const PREFIXES_MAX: usize = 10_000;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A counter of the server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Count { $($(#[$doc])* $name,)* }

        /// The counters' names in memcached's statistics.
        pub const COUNT_NAMES: &[&str] = &[$($text),*];
    };
}

counts! {
    /// Keys asked for.
    Gets = "cmd_get",
    /// Items offered.
    Sets = "cmd_set",
    /// Flushes.
    Flushes = "cmd_flush",
    /// Touches.
    Touches = "cmd_touch",
    /// Meta commands.
    Metas = "cmd_meta",
    /// Keys found.
    GetHits = "get_hits",
    /// Keys not found.
    GetMisses = "get_misses",
    /// Keys found whose time was over.
    GetExpired = "get_expired",
    /// Keys found that a flush had made vanish.
    GetFlushed = "get_flushed",
    /// Deletions of nothing.
    DeleteMisses = "delete_misses",
    /// Deletions.
    DeleteHits = "delete_hits",
    /// Increments of nothing.
    IncrementMisses = "incr_misses",
    /// Increments.
    IncrementHits = "incr_hits",
    /// Decrements of nothing.
    DecrementMisses = "decr_misses",
    /// Decrements.
    DecrementHits = "decr_hits",
    /// Conditional stores of nothing.
    CasMisses = "cas_misses",
    /// Conditional stores.
    CasHits = "cas_hits",
    /// Conditional stores that lost.
    CasBad = "cas_badval",
    /// Touches of an item.
    TouchHits = "touch_hits",
    /// Touches of nothing.
    TouchMisses = "touch_misses",
    /// Items refused for their size.
    TooLarge = "store_too_large",
    /// Items refused for want of memory.
    NoMemory = "store_no_memory",
    /// Bytes received.
    BytesRead = "bytes_read",
    /// Bytes sent.
    BytesWritten = "bytes_written",
    /// Requests to authenticate.
    Authentications = "auth_cmds",
    /// Requests to authenticate that were refused.
    AuthenticationErrors = "auth_errors",
    /// Connections made.
    Connections = "total_connections",
    /// Connections refused.
    Rejected = "rejected_connections",
    /// Connections that were closed because their clients were silent.
    IdleKicks = "idle_kicks",
    /// Times a connection had to let others go first.
    Yields = "conn_yields",
    /// Items stored.
    Items = "total_items",
    /// Items dropped for want of memory.
    Evictions = "evictions",
    /// Number of evicted items that were never read.
    EvictedUnfetched = "evicted_unfetched",
    /// Items whose place was taken after their time was over.
    Reclaimed = "reclaimed",
}

const COUNTS: usize = COUNT_NAMES.len();

/// Counters for items of about one size.
#[derive(Debug, Default)]
pub struct Class {
    /// Number of items.
    pub items: AtomicU64,
    /// Bytes of the items.
    pub bytes: AtomicU64,
    /// Items stored so far.
    pub stored: AtomicU64,
    /// Items dropped for want of memory.
    pub evicted: AtomicU64,
    /// Number of evicted items that had an expiry time.
    pub evicted_nonzero: AtomicU64,
    /// Items whose place was taken after their time was over.
    pub reclaimed: AtomicU64,
}

impl Class {
    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.load(Relaxed) == 0
    }
}

/// The use of keys with one prefix.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prefix {
    /// Searches.
    pub gets: u64,
    /// Searches that found something.
    pub hits: u64,
    /// Stores.
    pub sets: u64,
    /// Deletions.
    pub deletes: u64,
}

/// All counters.
#[derive(Debug)]
pub struct Stats {
    counts: [AtomicU64; COUNTS],
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Per size class.
    pub classes: [Class; CLASSES_MAX],
    chunks: Vec<usize>,
    /// Whether prefixes are counted.
    pub detail: AtomicBool,
    prefixes: Mutex<BTreeMap<Vec<u8>, Prefix>>,
}

impl Stats {
    /// All counters at zero.
    pub fn new(detail: bool) -> Stats {
        let mut chunks = Vec::new();
        let mut chunk = CHUNK_MIN as usize;
        while (chunk as f64) < CHUNK_MAX as f64 / GROWTH && chunks.len() < CLASSES_MAX - 2 {
            chunks.push(chunk);
            chunk = ((chunk as f64 * GROWTH) as usize).next_multiple_of(8);
        }
        chunks.push(CHUNK_MAX);
        Stats {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            connections: AtomicU64::new(0),
            classes: std::array::from_fn(|_| Class::default()),
            chunks,
            detail: AtomicBool::new(detail),
            prefixes: Mutex::default(),
        }
    }

    /// Counts an event.
    pub fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    /// Counts several events.
    pub fn add_many(&self, count: Count, number: u64) {
        self.counts[count as usize].fetch_add(number, Relaxed);
    }

    /// The values of all counters, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(|counter| counter.load(Relaxed))
    }

    /// Resets what memcached's `stats reset` resets.
    pub fn reset(&self) {
        for counter in &self.counts {
            counter.store(0, Relaxed);
        }
        for class in &self.classes {
            class.evicted.store(0, Relaxed);
            class.evicted_nonzero.store(0, Relaxed);
            class.reclaimed.store(0, Relaxed);
        }
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The number of the class for items of a size, from 1 on.
    pub fn class_number(&self, bytes: usize) -> usize {
        self.chunks.partition_point(|&chunk| chunk < bytes).min(self.chunks.len() - 1) + 1
    }

    /// The chunk size that memcached would have for a class.
    pub fn chunk_size(&self, class: usize) -> usize {
        self.chunks[(class - 1).min(self.chunks.len() - 1)]
    }

    /// The class of an item.
    pub fn class_of(&self, header: &Header) -> &Class {
        &self.classes[self.class_number(item_bytes_of(header))]
    }

    /// Counts an item as present.
    pub fn item_came(&self, header: &Header) {
        self.add(Count::Items);
        let class = self.class_of(header);
        class.items.fetch_add(1, Relaxed);
        class.stored.fetch_add(1, Relaxed);
        class.bytes.fetch_add(item_bytes_of(header) as u64, Relaxed);
    }

    /// Counts an item as gone.
    pub fn item_gone(&self, header: &Header) {
        let class = self.class_of(header);
        class.items.fetch_sub(1, Relaxed);
        class.bytes.fetch_sub(item_bytes_of(header) as u64, Relaxed);
    }

    /// Counts an item as gone, either because it was dead or to make room.
    pub fn item_dropped(&self, header: &Header, dead: bool) {
        let class = self.class_of(header);
        if dead {
            self.add(Count::Reclaimed);
            class.reclaimed.fetch_add(1, Relaxed);
        } else {
            self.add(Count::Evictions);
            class.evicted.fetch_add(1, Relaxed);
            class.evicted_nonzero.fetch_add(u64::from(header.expires != 0), Relaxed);
            if header.state & FETCHED == 0 {
                self.add(Count::EvictedUnfetched);
            }
        }
        self.item_gone(header);
    }

    /// Average bytes of an item, or 0.
    pub fn mean_item_bytes(&self) -> usize {
        let sum = |of: fn(&Class) -> &AtomicU64| -> u64 {
            self.classes.iter().map(|class| of(class).load(Relaxed)).sum()
        };
        (sum(|class| &class.bytes) / sum(|class| &class.items).max(1)) as usize
    }

    /// Counts a use of a key's prefix, where that is wanted.
    pub fn prefix(&self, key: &[u8], delimiter: u8, count: impl FnOnce(&mut Prefix)) {
        if !self.detail.load(Relaxed) {
            return;
        }
        let Some(end) = key.iter().position(|&byte| byte == delimiter) else { return };
        let mut prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        if prefixes.len() < PREFIXES_MAX || prefixes.contains_key(&key[..end]) {
            count(prefixes.entry(key[..end].to_vec()).or_default());
        }
    }

    /// The prefixes that were counted.
    pub fn prefixes(&self) -> BTreeMap<Vec<u8>, Prefix> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The bytes that memcached would count for an item with this header.
pub fn item_bytes_of(header: &Header) -> usize {
    item_bytes(header.key_len.into(), header.value_len as usize, header.flags)
}
