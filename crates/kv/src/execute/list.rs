//! Lists of all items, in slices between requests: `lru_crawler metadump` and `stats cachedump`.
//!
//! A list goes through the index chain by chain. So an item that is there all the time is listed
//! once, wherever it moves meanwhile. A list keeps a number and a page, and waits for its reader.

use std::io::Write;
use std::time::{Duration, Instant};

use super::Server;
use super::listing::{Form, Listing};
use crate::protocol::{Dumped, number};
use crate::stats::{CLASSES_MAX, item_bytes_of};
use crate::store::{FETCHED, Header, KEY_BINARY, Lister};

/// Time of a list's slice, before others have their turn.
const SLICE: Duration = Duration::from_micros(250);
/// Bytes of a list that are written at once.
const SLICE_BYTES: usize = 32 << 10;
/// Maximum bytes of `stats cachedump`, as in memcached.
const CACHEDUMP_MAX: usize = 2 << 20;

impl Server {
    /// Begins the answer to `lru_crawler metadump`, or returns the whole answer.
    pub(super) fn metadump(&self, dumped: Dumped) -> Result<Listing, &'static str> {
        if !self.settings.dump {
            return Err("ERROR metadump not allowed");
        }
        let classes = match dumped {
            Dumped::All | Dumped::Hash => u64::MAX,
            Dumped::Classes(classes) => classes,
        };
        let is_of = |class: usize| classes >> class & 1 != 0;
        let mut items = self.classes().filter(|(number, _)| is_of(*number));
        if dumped != Dumped::Hash && items.all(|(_, class)| class.is_empty()) {
            return Err("NOTSTARTED no items to crawl");
        }
        let (items_left, bytes_left) = (usize::MAX, usize::MAX);
        Ok(Listing { form: Form::Metadump, classes, chain: 0, items_left, bytes_left })
    }

    /// Begins the answer to `stats cachedump` with its words, or returns the whole answer.
    pub(super) fn cachedump(&self, words: &[&[u8]]) -> Result<Listing, &'static str> {
        if !self.settings.dump {
            return Err("CLIENT_ERROR stats cachedump not allowed");
        }
        let [class, limit] = words else { return Err("CLIENT_ERROR bad command line") };
        let (Some(class), Some(limit)) = (number::<usize>(class), number(limit)) else {
            return Err("CLIENT_ERROR bad command line format");
        };
        if class >= CLASSES_MAX {
            return Err("CLIENT_ERROR Illegal slab id");
        }
        let items_left = if limit == 0 { usize::MAX } else { limit };
        let (classes, bytes_left) = (1 << class, CACHEDUMP_MAX);
        Ok(Listing { form: Form::Cachedump, classes, chain: 0, items_left, bytes_left })
    }

    /// Continues a list for a slice of time. Returns what is left of it, if it has not ended.
    pub fn list(
        &self,
        mut listing: Listing,
        lister: &mut Lister,
        out: &mut Vec<u8>,
    ) -> Option<Listing> {
        let (begun, now) = (Instant::now(), self.clock.now());
        let end = out.len() + SLICE_BYTES;
        while listing.chain < self.store.chains() {
            if listing.items_left == 0 || listing.bytes_left == 0 {
                break;
            }
            if begun.elapsed() >= SLICE || out.len() >= end {
                return Some(listing);
            }
            self.store.list(listing.chain, lister, |header, key| {
                let class = self.stats.class_number(item_bytes_of(header));
                if listing.classes >> class & 1 == 0 || listing.items_left == 0 {
                    return;
                }
                let before = out.len();
                match listing.form {
                    Form::Metadump => self.metadump_line(header, key, class, now, out),
                    Form::Cachedump => cachedump_line(header, key, out),
                }
                let bytes = out.len() - before;
                listing.items_left -= usize::from(bytes > 0);
                listing.bytes_left = listing.bytes_left.saturating_sub(bytes);
            });
            listing.chain += 1;
        }
        out.extend_from_slice(b"END\r\n");
        None
    }

    /// Writes an item as memcached's `metadump` does, unless it is dead.
    fn metadump_line(
        &self,
        header: &Header,
        key: &[u8],
        class: usize,
        now: u32,
        out: &mut Vec<u8>,
    ) {
        if self.store.is_dead(header, now) {
            return;
        }
        out.extend_from_slice(b"key=");
        for &byte in key {
            match byte {
                b'-' | b'.' | b'_' | b'~' => out.push(byte),
                _ if byte.is_ascii_alphanumeric() => out.push(byte),
                _ => push(out, format_args!("%{byte:02X}")),
            }
        }
        let expires = if header.expires == 0 { -1 } else { i64::from(header.expires) };
        let fetched = if header.state & FETCHED != 0 { "yes" } else { "no" };
        let (la, cas) = (header.accessed, self.store.visible_cas(header));
        let size = item_bytes_of(header);
        push(out, format_args!(" exp={expires} la={la} cas={cas} fetch={fetched}"));
        push(out, format_args!(" cls={class} size={size}\n"));
    }
}

/// Writes an item as memcached's `stats cachedump` does, unless its key may be of any bytes.
fn cachedump_line(header: &Header, key: &[u8], out: &mut Vec<u8>) {
    if header.state & KEY_BINARY == 0 {
        out.extend_from_slice(b"ITEM ");
        out.extend_from_slice(key);
        push(out, format_args!(" [{} b; {} s]\r\n", header.value_len, header.expires));
    }
}

fn push(out: &mut Vec<u8>, what: std::fmt::Arguments<'_>) {
    // Memory takes everything.
    let _ = out.write_fmt(what);
}
