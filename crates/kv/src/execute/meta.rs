//! Execution of the meta commands.

use super::Server;
use super::items::{Arithmetic, Offer, Stored};
use crate::protocol::meta::{MetaCommand, MetaRequest, encode};
use crate::protocol::{BAD_FORMAT, KEY_MAX, StoreMode};
use crate::stats::Count;
use crate::store::{
    Decision, FETCHED, Found, Header, Item, KEY_BINARY, NewItem, PutError, STALE, TOKEN_SENT,
    item_bytes,
};

impl Server {
    /// Executes a meta command.
    pub(super) fn meta(&self, request: &MetaRequest<'_>, value: &[u8], out: &mut Vec<u8>) {
        if request.key.is_empty() || request.key.len() > KEY_MAX {
            return line(out, BAD_FORMAT);
        }
        match request.command {
            MetaCommand::Get => self.meta_get(request, out),
            MetaCommand::Set(_) => self.meta_set(request, value, out),
            MetaCommand::Delete => self.meta_delete(request, out),
            MetaCommand::Arithmetic => self.meta_arithmetic(request, out),
            MetaCommand::Debug => self.meta_debug(request, out),
        }
    }

    fn meta_get(&self, request: &MetaRequest<'_>, out: &mut Vec<u8>) {
        let options = &request.options;
        let now = self.clock.now();
        let mut made = false;
        let found = loop {
            let bump = !options.no_update;
            let found = self.store.with(&request.key, now, &self.stats, bump, |item| {
                self.meta_hit(request, item, made, now, out);
                ((), Decision::Keep)
            });
            let Some(time) = options.vivify.filter(|_| !made && !matches!(found, Found::Hit(())))
            else {
                break found;
            };
            let new = NewItem {
                key: &request.key,
                value: [b"", b""],
                flags: 0,
                expires: self.clock.expiry(time),
                state: if options.binary { KEY_BINARY } else { 0 },
            };
            // A client that finds that another was first reads what that one made.
            let put = self.store.put(new, now, &self.stats, |present| {
                if present.is_none() { Ok(()) } else { Err(()) }
            });
            made = put.is_ok();
            if put == Err(PutError::OutOfMemory) {
                break found;
            }
        };
        self.count_get(&request.key, &found, options.time.is_some());
        if !matches!(found, Found::Hit(())) && !options.quiet {
            out.extend(b"EN");
            echo(request, out);
            out.extend(b"\r\n");
        }
    }

    fn meta_hit(
        &self,
        request: &MetaRequest<'_>,
        item: &mut Item<'_>,
        made: bool,
        now: u32,
        out: &mut Vec<u8>,
    ) {
        let options = &request.options;
        match options.value {
            true => out.extend(format!("VA {}", item.value.len()).bytes()),
            false => out.extend(b"HD"),
        }
        let mut won = made;
        for flag in &request.flags {
            match flag[0] {
                b'T' => item.header.expires = self.clock.expiry(options.time.unwrap_or(0)),
                b'R' => {
                    let before = self.clock.expiry(options.recache.unwrap_or(0));
                    let expires = item.header.expires;
                    let sent = item.header.state & TOKEN_SENT != 0;
                    won |= !sent && !made && expires != 0 && expires < before;
                }
                b's' => out.extend(format!(" s{}", item.value.len()).bytes()),
                b't' => ttl(item.header, now, out),
                b'c' => {
                    out.extend(format!(" c{}", self.store.visible_cas(item.header)).bytes());
                }
                b'f' => out.extend(format!(" f{}", item.header.flags).bytes()),
                b'l' => {
                    let idle = now.saturating_sub(item.header.accessed);
                    out.extend(format!(" l{idle}").bytes());
                }
                b'h' => {
                    let fetched = item.header.state & FETCHED != 0;
                    out.extend(if fetched { b" h1" } else { b" h0" });
                }
                b'O' => {
                    out.push(b' ');
                    out.extend(*flag);
                }
                b'k' => key(item.key, item.header.state & KEY_BINARY != 0, out),
                _ => {}
            }
        }
        if item.header.state & TOKEN_SENT != 0 {
            out.extend(b" Z");
        }
        if item.header.state & STALE != 0 {
            out.extend(b" X");
            won |= item.header.state & TOKEN_SENT == 0;
        }
        if won {
            out.extend(b" W");
            item.header.state |= TOKEN_SENT;
        }
        out.extend(b"\r\n");
        if options.value {
            out.extend_from_slice(item.value);
            out.extend(b"\r\n");
        }
    }

    fn meta_set(&self, request: &MetaRequest<'_>, value: &[u8], out: &mut Vec<u8>) {
        let options = &request.options;
        let mode = match (options.mode.unwrap_or(b'S').to_ascii_uppercase(), options.cas) {
            (b'E', _) => StoreMode::Add,
            (b'A', _) => StoreMode::Append,
            (b'P', _) => StoreMode::Prepend,
            (_, Some(cas)) => StoreMode::Cas(cas),
            (b'R', None) => StoreMode::Replace,
            (_, None) => StoreMode::Set,
        };
        self.count_prefix_set(&request.key);
        let stored = self.store(&Offer {
            mode,
            key: &request.key,
            flags: options.client_flags,
            expires: self.clock.expiry(options.time.unwrap_or(0)),
            value,
            state: if options.binary { KEY_BINARY } else { 0 },
            cas: options.cas,
            stale_if_older: options.stale,
        });
        let (code, cas) = match stored {
            Stored::Yes(_) if options.quiet => return,
            Stored::Yes(cas) => ("HD", cas),
            Stored::No => ("NS", 0),
            Stored::Exists => ("EX", 0),
            Stored::NotFound => ("NF", 0),
            Stored::NoMemory | Stored::TooLarge => return line(out, stored.text()),
        };
        out.extend(code.bytes());
        for flag in &request.flags {
            match flag[0] {
                b'O' => {
                    out.push(b' ');
                    out.extend(*flag);
                }
                b'k' => key(&request.key, options.binary, out),
                b'c' => out.extend(format!(" c{cas}").bytes()),
                _ => {}
            }
        }
        out.extend(b"\r\n");
    }

    fn meta_delete(&self, request: &MetaRequest<'_>, out: &mut Vec<u8>) {
        let options = &request.options;
        let now = self.clock.now();
        let expires = options.time.map(|time| self.clock.expiry(time));
        let found = self.store.with(&request.key, now, &self.stats, false, |item| {
            if options.cas.is_some_and(|cas| cas != self.store.visible_cas(item.header)) {
                return ("EX", Decision::Keep);
            }
            if options.stale {
                item.header.expires = expires.unwrap_or(item.header.expires);
                item.header.state = (item.header.state | STALE) & !TOKEN_SENT;
                item.header.cas = self.store.new_cas();
                return ("HD", Decision::Keep);
            }
            ("HD", Decision::Remove)
        });
        self.count_prefix_delete(&request.key);
        let code = if let Found::Hit(code) = found { code } else { "NF" };
        self.stats.add(if code == "HD" { Count::DeleteHits } else { Count::DeleteMisses });
        if options.quiet && code == "HD" {
            return;
        }
        out.extend(code.bytes());
        echo(request, out);
        out.extend(b"\r\n");
    }

    fn meta_arithmetic(&self, request: &MetaRequest<'_>, out: &mut Vec<u8>) {
        let options = &request.options;
        let increment = !matches!(options.mode, Some(b'D' | b'd' | b'-'));
        let delta = options.delta.unwrap_or(1);
        let expires = options.time.map(|time| self.clock.expiry(time));
        let outcome = loop {
            let key = &request.key;
            let outcome = self.arithmetic(key, increment, delta, options.cas, expires);
            match (outcome, options.vivify) {
                (Arithmetic::NotFound, Some(time)) => {
                    if let Some(made) = self.make_number(request, time) {
                        break made;
                    }
                }
                (outcome, _) => break outcome,
            }
        };
        let now = self.clock.now();
        match outcome {
            Arithmetic::Failed(answer) => line(out, answer),
            Arithmetic::NotFound | Arithmetic::Exists => {
                let code = if matches!(outcome, Arithmetic::Exists) { "EX" } else { "NF" };
                out.extend(code.bytes());
                echo(request, out);
                out.extend(b"\r\n");
            }
            Arithmetic::Done { .. } if options.quiet => {}
            Arithmetic::Done { value, header } => {
                let text = value.to_string();
                match options.value {
                    true => out.extend(format!("VA {}", text.len()).bytes()),
                    false => out.extend(b"HD"),
                }
                for flag in &request.flags {
                    match flag[0] {
                        b'c' => {
                            let cas = self.store.visible_cas(&header);
                            out.extend(format!(" c{cas}").bytes());
                        }
                        b't' => ttl(&header, now, out),
                        b'O' => {
                            out.push(b' ');
                            out.extend(*flag);
                        }
                        b'k' => key(&request.key, options.binary, out),
                        _ => {}
                    }
                }
                out.extend(b"\r\n");
                if options.value {
                    line(out, &text);
                }
            }
        }
    }

    /// Makes the number of a key that had none, or returns nothing where another client was first.
    fn make_number(&self, request: &MetaRequest<'_>, time: i32) -> Option<Arithmetic> {
        let options = &request.options;
        let now = self.clock.now();
        let text = options.initial.to_string();
        let expires = self.clock.expiry(time);
        let new = NewItem {
            key: &request.key,
            value: [text.as_bytes(), b""],
            flags: 0,
            expires,
            state: if options.binary { KEY_BINARY } else { 0 },
        };
        let put = self
            .store
            .put(new, now, &self.stats, |present| if present.is_none() { Ok(()) } else { Err(()) });
        match put {
            Ok(cas) => {
                let header = Header::of_new(cas, expires);
                Some(Arithmetic::Done { value: options.initial, header })
            }
            Err(PutError::OutOfMemory) => {
                let answer = "SERVER_ERROR Out of memory allocating new item";
                Some(Arithmetic::Failed(answer))
            }
            Err(PutError::Refused(())) => None,
        }
    }

    fn meta_debug(&self, request: &MetaRequest<'_>, out: &mut Vec<u8>) {
        let now = self.clock.now();
        let found = self.store.with(&request.key, now, &self.stats, false, |item| {
            let header = &item.header;
            let size = item_bytes(item.key.len(), item.value.len(), header.flags);
            let expires = match header.expires {
                0 => -1,
                expires => i64::from(expires) - i64::from(now),
            };
            let fetched = if header.state & FETCHED != 0 { "yes" } else { "no" };
            let text = format!(
                " exp={expires} la={} cas={} fetch={fetched} cls={} size={size}",
                now.saturating_sub(header.accessed),
                self.store.visible_cas(header),
                self.stats.class_number(size),
            );
            (text, Decision::Keep)
        });
        match found {
            Found::Hit(text) => {
                out.extend(b"ME ");
                out.extend(request.written_key);
                line(out, &text);
            }
            _ => line(out, "EN"),
        }
    }
}

fn line(out: &mut Vec<u8>, text: &str) {
    out.extend(text.bytes());
    out.extend(b"\r\n");
}

fn key(key: &[u8], binary: bool, out: &mut Vec<u8>) {
    out.extend(b" k");
    match binary {
        true => {
            out.extend(encode(key));
            out.extend(b" b");
        }
        false => out.extend(key),
    }
}

fn ttl(header: &Header, now: u32, out: &mut Vec<u8>) {
    match header.expires {
        0 => out.extend(b" t-1"),
        expires => out.extend(format!(" t{}", expires.saturating_sub(now)).bytes()),
    }
}

/// Gives back the opaque word and the key, where they were asked for.
fn echo(request: &MetaRequest<'_>, out: &mut Vec<u8>) {
    for flag in &request.flags {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend(*flag);
            }
            b'k' => key(&request.key, request.options.binary, out),
            _ => {}
        }
    }
}
