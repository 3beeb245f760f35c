//! Executes requests on the store and writes memcached's answers.

mod items;
mod list;
mod listing;
mod meta;
mod report;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use crate::auth::Accounts;
use crate::clock::Clock;
use crate::protocol::meta::MetaCommand;
use crate::protocol::{Request, StoreMode, words};
use crate::settings::Settings;
use crate::stats::{Count, Stats};
use crate::store::{Decision, Found, Held, Store};
use crate::tls::Tls;
use items::{Arithmetic, Offer, Stored};
pub use listing::Listing;

/// Smallest memory limit that memcached accepts, MiB.
const MEBIBYTES_MIN: u32 = 8;
/// Maximum bytes of an answer to `get` besides key and value.
const AROUND_VALUE: usize = 80;

/// State that all threads share.
#[derive(Debug)]
pub struct Server {
    /// The items.
    pub store: Store,
    /// The counters.
    pub stats: Stats,
    /// The time.
    pub clock: Clock,
    /// The flags that the server was started with.
    pub settings: Settings,
    /// The accounts of the users; none where no client need authenticate.
    pub accounts: Option<RwLock<Accounts>>,
    /// TLS, where it is on.
    pub tls: Option<Arc<Tls>>,
    /// Verbosity of the log.
    pub verbosity: AtomicU32,
    /// Whether the server is to end.
    pub stop: AtomicBool,
}

/// What becomes of a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The connection goes on.
    Continue,
    /// The connection is closed.
    Close,
    /// The connection is sent a list before anything else.
    List(Listing),
}

/// The bytes of the value that a request announces.
pub fn announced_len(request: &Request<'_>) -> Option<usize> {
    offered(request).map(|offered| offered.len)
}

/// What a request announces of its value.
struct Offered<'a> {
    key: &'a [u8],
    len: usize,
    flags: u32,
    /// Whether it is to be stored in any case.
    set: bool,
}

fn offered<'a>(request: &'a Request<'_>) -> Option<Offered<'a>> {
    match request {
        Request::Store(store) => Some(Offered {
            key: store.key,
            len: store.len,
            flags: store.flags,
            set: store.mode == StoreMode::Set,
        }),
        Request::Meta(meta) => {
            let MetaCommand::Set(len) = meta.command else { return None };
            Some(Offered {
                key: meta.key.as_slice(),
                len,
                flags: meta.options.client_flags,
                set: true,
            })
        }
        _ => None,
    }
}

impl Server {
    /// The answer to the value `user password`, and whether it admits the client.
    pub fn authenticate(&self, value: &[u8]) -> (&'static str, bool) {
        let Some(accounts) = &self.accounts else { return ("STORED", true) };
        accounts.read().unwrap_or_else(PoisonError::into_inner).answer(value)
    }

    /// Reads the file of `-Y` again. If that fails, the accounts stay as they are.
    pub fn read_accounts_again(&self) {
        let (Some(accounts), Some(path)) = (&self.accounts, &self.settings.auth_file) else {
            return;
        };
        match Accounts::read(path) {
            Ok(new) => *accounts.write().unwrap_or_else(PoisonError::into_inner) = new,
            Err(error) => eprintln!("terrace-kv: {error}; the accounts stay as they were"),
        }
    }

    /// The answer to a request whose value is too large. The value is not read then.
    pub fn refusal_of_value(&self, request: &Request<'_>) -> Option<&'static str> {
        let offered = offered(request)?;
        if self.fits(offered.key.len(), offered.len, offered.flags) {
            return None;
        }
        self.stats.add(Count::TooLarge);
        self.forget_old(&offered);
        Some(Stored::TooLarge.text())
    }

    /// The answer to a request for whose value there is no memory. The value is not read then. If
    /// there is memory, the bytes count as held.
    pub fn refusal_for_memory(
        &self,
        request: &Request<'_>,
        bytes: usize,
        held: &mut Held,
    ) -> Option<&'static str> {
        if self.store.hold(held, bytes, self.clock.now(), &self.stats) {
            return None;
        }
        self.stats.add(Count::NoMemory);
        if let Some(offered) = offered(request) {
            self.forget_old(&offered);
        }
        Some(Stored::NoMemory.text())
    }

    /// Removes what a value that was not stored should have replaced in any case.
    fn forget_old(&self, offered: &Offered<'_>) {
        if offered.set {
            self.remove(offered.key);
        }
    }

    /// Executes a request. `value` has the announced bytes.
    pub fn execute(&self, request: Request<'_>, value: &[u8], out: &mut Vec<u8>) -> Next {
        let (answer, noreply) = match request {
            Request::Get { keys, cas, time } => {
                self.get_some(keys, 0, cas, time, out, usize::MAX);
                return Next::Continue;
            }
            Request::Store(store) => {
                self.count_prefix_set(store.key);
                let offer = Offer {
                    mode: store.mode,
                    key: store.key,
                    flags: store.flags,
                    expires: self.clock.expiry(store.time),
                    value,
                    state: 0,
                    cas: None,
                    stale_if_older: false,
                };
                (self.store(&offer).text(), store.noreply)
            }
            Request::Delete { key, noreply } => (self.delete(key), noreply),
            Request::Arithmetic { key, increment, delta, noreply } => {
                match self.arithmetic(key, increment, delta, None, None) {
                    Arithmetic::Done { value, .. } => {
                        if !noreply {
                            out.extend(format!("{value}\r\n").bytes());
                        }
                        return Next::Continue;
                    }
                    Arithmetic::Failed(answer) => (answer, noreply),
                    Arithmetic::NotFound => ("NOT_FOUND", noreply),
                    Arithmetic::Exists => ("EXISTS", noreply),
                }
            }
            Request::Touch { key, time, noreply } => (self.touch(key, time), noreply),
            Request::FlushAll { time, noreply } => (self.flush(time), noreply),
            Request::Version => {
                out.extend(format!("VERSION {}\r\n", crate::settings::VERSION).bytes());
                return Next::Continue;
            }
            Request::Verbosity { level, noreply } => {
                self.verbosity.store(level, Relaxed);
                ("OK", noreply)
            }
            Request::Stats(words) => match words.as_slice() {
                [b"cachedump", words @ ..] => match self.cachedump(words) {
                    Ok(listing) => return Next::List(listing),
                    Err(answer) => (answer, false),
                },
                _ => {
                    self.report(&words, out);
                    return Next::Continue;
                }
            },
            Request::Dump(dumped) => match self.metadump(dumped) {
                Ok(listing) => return Next::List(listing),
                Err(answer) => (answer, false),
            },
            Request::Quit => return Next::Close,
            Request::Shutdown { valid: false } if self.settings.shutdown => {
                ("CLIENT_ERROR invalid shutdown mode", false)
            }
            Request::Shutdown { .. } if self.settings.shutdown => {
                self.stop.store(true, Relaxed);
                return Next::Close;
            }
            Request::Shutdown { .. } => ("ERROR: shutdown not enabled", false),
            Request::MemoryLimit { mebibytes, noreply } => (self.limit(mebibytes), noreply),
            Request::Consolidate { on, noreply } => {
                self.store.switch_consolidation(on);
                ("OK", noreply)
            }
            Request::RefreshCerts { noreply } => {
                let refreshed = match &self.tls {
                    Some(tls) => tls.refresh(),
                    None => Err("TLS is not enabled; it is with -Z".to_owned()),
                };
                if let Err(message) = refreshed {
                    if !noreply {
                        out.extend(format!("SERVER_ERROR {message}\r\n").bytes());
                    }
                    return Next::Continue;
                }
                ("OK", noreply)
            }
            Request::Ignored => ("OK", false),
            Request::DebugTime(seconds) if self.settings.debug_time => {
                self.clock.advance(seconds);
                ("OK", false)
            }
            Request::DebugTime(_) => ("ERROR", false),
            Request::Meta(meta) => {
                self.stats.add(Count::Metas);
                self.meta(&meta, value, out);
                return Next::Continue;
            }
            Request::MetaNoop => ("MN", false),
        };
        if !noreply {
            out.extend_from_slice(answer.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Next::Continue
    }

    /// Answers keys from a place on, until the answers exceed a number of bytes. Returns the place
    /// of the keys that are left.
    pub fn get_some(
        &self,
        keys: &[u8],
        from: usize,
        cas: bool,
        time: Option<i32>,
        out: &mut Vec<u8>,
        most: usize,
    ) -> Option<usize> {
        let start = keys.as_ptr() as usize;
        for key in words(&keys[from..]) {
            self.get(key, cas, time, out);
            if out.len() >= most {
                return Some(key.as_ptr() as usize + key.len() - start);
            }
        }
        out.extend_from_slice(b"END\r\n");
        None
    }

    fn get(&self, key: &[u8], cas: bool, time: Option<i32>, out: &mut Vec<u8>) {
        let now = self.clock.now();
        let expires = time.map(|time| self.clock.expiry(time));
        let found = self.store.with(key, now, &self.stats, true, |item| {
            if let Some(expires) = expires {
                item.header.expires = expires;
            }
            let (flags, len) = (item.header.flags, item.value.len());
            out.reserve(key.len() + len + AROUND_VALUE);
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(key);
            push_number(out, u64::from(flags));
            push_number(out, len as u64);
            if cas {
                push_number(out, self.store.visible_cas(item.header));
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(item.value);
            out.extend_from_slice(b"\r\n");
            ((), Decision::Keep)
        });
        self.count_get(key, &found, expires.is_some());
    }

    /// Counts a search.
    fn count_get<R>(&self, key: &[u8], found: &Found<R>, touched: bool) {
        let hit = matches!(found, Found::Hit(_));
        self.stats.prefix(key, self.settings.delimiter, |prefix| {
            prefix.gets += 1;
            prefix.hits += u64::from(hit);
        });
        if touched {
            self.stats.add(Count::Touches);
            self.stats.add(if hit { Count::TouchHits } else { Count::TouchMisses });
        } else {
            self.stats.add(Count::Gets);
            self.stats.add(if hit { Count::GetHits } else { Count::GetMisses });
        }
        match found {
            Found::Expired => self.stats.add(Count::GetExpired),
            Found::Flushed => self.stats.add(Count::GetFlushed),
            Found::Hit(_) | Found::Miss => {}
        }
    }

    fn count_prefix_set(&self, key: &[u8]) {
        self.stats.prefix(key, self.settings.delimiter, |prefix| prefix.sets += 1);
    }

    fn count_prefix_delete(&self, key: &[u8]) {
        self.stats.prefix(key, self.settings.delimiter, |prefix| prefix.deletes += 1);
    }

    fn remove(&self, key: &[u8]) -> bool {
        let now = self.clock.now();
        let removed = self.store.with(key, now, &self.stats, false, |_| ((), Decision::Remove));
        matches!(removed, Found::Hit(()))
    }

    fn delete(&self, key: &[u8]) -> &'static str {
        self.count_prefix_delete(key);
        let removed = self.remove(key);
        self.stats.add(if removed { Count::DeleteHits } else { Count::DeleteMisses });
        if removed { "DELETED" } else { "NOT_FOUND" }
    }

    fn touch(&self, key: &[u8], time: i32) -> &'static str {
        let now = self.clock.now();
        let expires = self.clock.expiry(time);
        let found = self.store.with(key, now, &self.stats, true, |item| {
            item.header.expires = expires;
            ((), Decision::Keep)
        });
        self.stats.add(Count::Touches);
        let hit = found == Found::Hit(());
        self.stats.add(if hit { Count::TouchHits } else { Count::TouchMisses });
        if hit { "TOUCHED" } else { "NOT_FOUND" }
    }

    fn flush(&self, time: Option<i32>) -> &'static str {
        if !self.settings.flush {
            return "CLIENT_ERROR flush_all not allowed";
        }
        self.stats.add(Count::Flushes);
        let now = self.clock.now();
        let at = match time {
            None | Some(..=0) => now,
            Some(time) => self.clock.expiry(time),
        };
        self.store.flush(at, now);
        "OK"
    }

    fn limit(&self, mebibytes: u32) -> &'static str {
        if mebibytes < MEBIBYTES_MIN {
            return "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m";
        }
        match self.store.set_memory_limit((mebibytes as usize) << 20) {
            true => "OK",
            false => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
        }
    }
}

/// Appends a space and a number.
fn push_number(out: &mut Vec<u8>, mut number: u64) {
    // 2^64 has 20 digits.
    let mut text = [b' '; 21];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[start - 1..]);
}

impl Stored {
    fn text(&self) -> &'static str {
        match self {
            Stored::Yes(_) => "STORED",
            Stored::No => "NOT_STORED",
            Stored::Exists => "EXISTS",
            Stored::NotFound => "NOT_FOUND",
            Stored::NoMemory => "SERVER_ERROR out of memory storing object",
            Stored::TooLarge => "SERVER_ERROR object too large for cache",
        }
    }
}
