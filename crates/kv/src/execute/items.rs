//! Conditional stores and arithmetic, which the text and the meta commands share.

use super::Server;
use crate::protocol::StoreMode;
use crate::stats::Count;
use crate::store::{
    Decision, FETCHED, Found, Header, Item, KEY_BINARY, NewItem, PutError, STALE, TOKEN_SENT,
    item_bytes,
};

/// A longer text is no number.
const DIGITS_MAX: usize = 20;

/// An item that a client wants stored.
#[derive(Debug)]
pub(super) struct Offer<'a> {
    pub(super) mode: StoreMode,
    pub(super) key: &'a [u8],
    pub(super) flags: u32,
    pub(super) expires: u32,
    pub(super) value: &'a [u8],
    pub(super) state: u8,
    /// The version that must be there, for appending and prepending.
    pub(super) cas: Option<u64>,
    /// Whether an older version than the present one is stored as stale.
    pub(super) stale_if_older: bool,
}

/// The outcome of an offer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// Stored, as this version.
    Yes(u64),
    /// The condition was not met.
    No,
    /// The key has another version.
    Exists,
    /// The key has no item to replace.
    NotFound,
    /// Memory is out.
    NoMemory,
    /// The value became too large.
    TooLarge,
}

/// The outcome of an addition or subtraction.
#[derive(Debug)]
pub(super) enum Arithmetic {
    /// The new value, and the item as it is now.
    Done {
        /// The new value.
        value: u64,
        /// What is known of the item.
        header: Header,
    },
    /// The key has no item.
    NotFound,
    /// The key has another version.
    Exists,
    /// The operation is impossible; this is the answer.
    Failed(&'static str),
}

/// Why a new item is not put into the place of the old one.
enum Refused {
    /// The offer has this outcome.
    With(Stored),
    /// The offered item is older than this present one, and may be stored as stale.
    Older(Header),
    /// The item was changed meanwhile.
    Changed,
}

impl Server {
    /// Whether an item may be stored at all.
    pub(super) fn fits(&self, key_len: usize, len: usize, flags: u32) -> bool {
        item_bytes(key_len, len, flags) <= self.settings.item_size_max
    }

    /// Stores what a client offers, if its condition is met.
    pub(super) fn store(&self, offer: &Offer<'_>) -> Stored {
        self.stats.add(Count::Sets);
        let stored = match offer.mode {
            StoreMode::Append | StoreMode::Prepend => self.extend(offer),
            _ => self.store_whole(offer),
        };
        if matches!(offer.mode, StoreMode::Cas(_)) {
            match stored {
                Stored::Yes(_) => self.stats.add(Count::CasHits),
                Stored::Exists => self.stats.add(Count::CasBad),
                Stored::NotFound => self.stats.add(Count::CasMisses),
                _ => {}
            }
        }
        match stored {
            Stored::NoMemory => self.stats.add(Count::NoMemory),
            Stored::TooLarge => self.stats.add(Count::TooLarge),
            _ => {}
        }
        if matches!(stored, Stored::NoMemory) && offer.mode == StoreMode::Set {
            self.remove(offer.key);
        }
        stored
    }

    fn store_whole(&self, offer: &Offer<'_>) -> Stored {
        let now = self.clock.now();
        let mut new = NewItem {
            key: offer.key,
            value: [offer.value, b""],
            flags: offer.flags,
            expires: offer.expires,
            state: offer.state,
        };
        let mut older_than = None;
        loop {
            let outcome =
                self.store.put(new, now, &self.stats, |present| match (offer.mode, present) {
                    (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => {
                        Err(Refused::With(Stored::No))
                    }
                    (StoreMode::Cas(_), None) => Err(Refused::With(Stored::NotFound)),
                    (StoreMode::Cas(wanted), Some(item)) => {
                        let present = self.store.visible_cas(item.header);
                        match wanted {
                            _ if wanted == present => Ok(()),
                            _ if offer.stale_if_older && wanted < present => {
                                if older_than == Some(version(item.header)) {
                                    return Ok(());
                                }
                                Err(Refused::Older(*item.header))
                            }
                            _ => Err(Refused::With(Stored::Exists)),
                        }
                    }
                    _ => Ok(()),
                });
            match outcome {
                Ok(cas) => return Stored::Yes(if self.store.config.cas { cas } else { 0 }),
                Err(PutError::OutOfMemory) => return Stored::NoMemory,
                Err(PutError::Refused(Refused::With(stored))) => return stored,
                Err(PutError::Refused(Refused::Older(present))) => {
                    // The value is replaced; the time and the marks stay.
                    older_than = Some(version(&present));
                    new.expires = present.expires;
                    new.state = offer.state | STALE | present.state & TOKEN_SENT;
                }
                Err(PutError::Refused(Refused::Changed)) => {}
            }
        }
    }

    /// Appends or prepends.
    fn extend(&self, offer: &Offer<'_>) -> Stored {
        let now = self.clock.now();
        loop {
            let found = self.store.with(offer.key, now, &self.stats, false, |item| {
                ((*item.header, item.value.to_vec()), Decision::Keep)
            });
            let Found::Hit((header, old)) = found else { return Stored::No };
            if offer.cas.is_some_and(|cas| cas != self.store.visible_cas(&header)) {
                return Stored::Exists;
            }
            if !self.fits(offer.key.len(), old.len() + offer.value.len(), header.flags) {
                return Stored::TooLarge;
            }
            let value = match offer.mode {
                StoreMode::Prepend => [offer.value, old.as_slice()],
                _ => [old.as_slice(), offer.value],
            };
            let new = renewed(offer.key, &header, value);
            match self.store.put(new, now, &self.stats, |item| unchanged(item, &header)) {
                Ok(cas) => return Stored::Yes(if self.store.config.cas { cas } else { 0 }),
                Err(PutError::OutOfMemory) => return Stored::NoMemory,
                Err(PutError::Refused(_)) => {}
            }
        }
    }

    /// Adds to a number or subtracts from it.
    pub(super) fn arithmetic(
        &self,
        key: &[u8],
        increment: bool,
        delta: u64,
        cas: Option<u64>,
        expires: Option<u32>,
    ) -> Arithmetic {
        const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
        let now = self.clock.now();
        let done = loop {
            let found = self.store.with(key, now, &self.stats, false, |item| {
                if cas.is_some_and(|cas| cas != self.store.visible_cas(item.header)) {
                    return (Err(Arithmetic::Exists), Decision::Keep);
                }
                let Some(old) = parse_number(item.value) else {
                    return (Err(Arithmetic::Failed(NOT_NUMERIC)), Decision::Keep);
                };
                let value =
                    if increment { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
                let text = value.to_string();
                let fits = text.len() <= item.value.len();
                if fits {
                    item.value.fill(b' ');
                    item.value[..text.len()].copy_from_slice(text.as_bytes());
                    item.header.cas = self.store.new_cas();
                    if let Some(expires) = expires {
                        item.header.expires = expires;
                    }
                }
                (Ok((value, *item.header, fits)), Decision::Keep)
            });
            match found {
                Found::Hit(Ok((value, header, true))) => break Arithmetic::Done { value, header },
                Found::Hit(Ok((value, mut header, false))) => {
                    let text = value.to_string();
                    let old = header;
                    header.expires = expires.unwrap_or(header.expires);
                    let new = renewed(key, &header, [text.as_bytes(), b""]);
                    match self.store.put(new, now, &self.stats, |item| unchanged(item, &old)) {
                        Ok(cas) => {
                            header.cas = cas;
                            break Arithmetic::Done { value, header };
                        }
                        Err(PutError::OutOfMemory) => {
                            return Arithmetic::Failed("SERVER_ERROR out of memory in incr");
                        }
                        Err(PutError::Refused(_)) => {}
                    }
                }
                Found::Hit(Err(failure)) => return failure,
                _ => {
                    self.stats.add(match increment {
                        true => Count::IncrementMisses,
                        false => Count::DecrementMisses,
                    });
                    return Arithmetic::NotFound;
                }
            }
        };
        self.stats.add(if increment { Count::IncrementHits } else { Count::DecrementHits });
        done
    }
}

/// A new item with the flags and the state of an old one.
fn renewed<'a>(key: &'a [u8], old: &Header, value: [&'a [u8]; 2]) -> NewItem<'a> {
    let state = old.state & KEY_BINARY;
    NewItem { key, value, flags: old.flags, expires: old.expires, state }
}

/// The parts of an item of which every change alters one: identifier, time and marks.
fn version(header: &Header) -> (u64, u32, u8) {
    (header.cas, header.expires, header.state & !FETCHED)
}

fn unchanged(present: Option<&Item<'_>>, old: &Header) -> Result<(), Refused> {
    match present {
        Some(item) if version(item.header) == version(old) => Ok(()),
        _ => Err(Refused::Changed),
    }
}

/// A decimal number, which spaces may follow.
fn parse_number(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = &value[digits..];
    if value.len() > DIGITS_MAX || !rest.iter().all(|&byte| byte == b' ') {
        return None;
    }
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_is_a_change_and_a_read_is_none() {
        let old = Header::of_new(5, 100);
        let is_unchanged = |mut header: Header| {
            let item = Item { header: &mut header, key: b"", value: &mut [] };
            unchanged(Some(&item), &old).is_ok()
        };
        assert!(is_unchanged(old));
        assert!(is_unchanged(Header { state: FETCHED, ..old }));
        assert!(!is_unchanged(Header { expires: 200, ..old }));
        assert!(!is_unchanged(Header { state: STALE, ..old }));
        assert!(!is_unchanged(Header { cas: 6, ..old }));
    }

    #[test]
    fn spaces_after_a_number_do_not_count() {
        assert_eq!(parse_number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_number(b"9 "), Some(9));
        assert_eq!(parse_number(b""), None);
        assert_eq!(parse_number(b"hi"), None);
        assert_eq!(parse_number(b"18446744073709551616"), None);
    }
}
