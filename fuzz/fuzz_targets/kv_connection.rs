//! Whatever a client sends, in whatever pieces, is answered or ends the connection. The store stays
//! within its limit, and another client's item stays what it was or is evicted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use terrace_kv::clock::Clock;
use terrace_kv::connection::{Buffers, Connection, Stream, Wait};
use terrace_kv::execute::Server;
use terrace_kv::settings::Settings;
use terrace_kv::stats::Stats;
use terrace_kv::store::{Config, Rules, Store};

const LIMIT: usize = 4 << 20;

/// A connection whose input comes in pieces, and whose output is kept.
#[derive(Clone, Default)]
struct Wire(Rc<RefCell<(VecDeque<Vec<u8>>, Vec<u8>)>>);

// SAFETY: a single thread has all of it.
unsafe impl Send for Wire {}

impl Read for Wire {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let pieces = &mut self.0.borrow_mut().0;
        let Some(mut piece) = pieces.pop_front() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let count = piece.len().min(room.len());
        room[..count].copy_from_slice(&piece[..count]);
        if count < piece.len() {
            pieces.push_front(piece.split_off(count));
        }
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().1.extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Wire {}

impl mio::event::Source for Wire {
    fn register(&mut self, _: &mio::Registry, _: mio::Token, _: mio::Interest) -> io::Result<()> {
        Ok(())
    }
    fn reregister(&mut self, _: &mio::Registry, _: mio::Token, _: mio::Interest) -> io::Result<()> {
        Ok(())
    }
    fn deregister(&mut self, _: &mio::Registry) -> io::Result<()> {
        Ok(())
    }
}

fn server() -> Server {
    let settings = Settings { memory_limit: LIMIT, ..Settings::default() };
    let config = Config {
        memory_limit: LIMIT,
        item_size_max: settings.item_size_max,
        evictions: true,
        cas: true,
        used_from_start: 0,
        items: Some(6 << 10),
        tiering: None,
        consolidate: false,
        rules: Rules::default(),
    };
    Server {
        store: Store::new(config).expect("address space"),
        stats: Stats::new(false),
        tls: None,
        accounts: None,
        clock: Clock::default(),
        verbosity: AtomicU32::new(0),
        stop: AtomicBool::new(false),
        settings,
    }
}

/// Has a connection take pieces. Returns what it was answered.
fn talk(server: &Server, pieces: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let wire = Wire::default();
    wire.0.borrow_mut().0.extend(pieces);
    let mut connection = Connection::new(Box::new(wire.clone()), true);
    let mut buffers = Buffers::default();
    for _ in 0..10_000 {
        connection.wake(false);
        match connection.advance(server, &mut buffers) {
            Wait::Turn => {}
            Wait::Stream if !wire.0.borrow().0.is_empty() => {}
            Wait::Stream | Wait::Closed => break,
        }
    }
    let answered = std::mem::take(&mut wire.0.borrow_mut().1);
    answered
}

fuzz_target!(|bytes: &[u8]| {
    let server = server();
    let other = b"set another 7 0 5\r\nvalue\r\n".to_vec();
    assert_eq!(talk(&server, std::iter::once(other)), b"STORED\r\n");
    let Some((&size, bytes)) = bytes.split_first() else { return };
    talk(&server, bytes.chunks(usize::from(size) + 1).map(<[u8]>::to_vec));
    assert!(server.store.used_bytes() <= LIMIT.max(server.store.memory_limit()));
    // Unless the noise was about it, by name or all.
    let said = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
    let words: [&[u8]; 5] = [b"another", b"flush", b"YW5vdGhlcg", b"memlimit", b"debugtime"];
    if !words.into_iter().any(said) {
        let answer = talk(&server, std::iter::once(b"get another\r\n".to_vec()));
        assert!(answer == b"VALUE another 7 5\r\nvalue\r\nEND\r\n" || answer == b"END\r\n");
    }
});
