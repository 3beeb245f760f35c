//! A client's connection: its buffers, and the requests in them.

use std::io::{self, Read, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};

use crate::auth;
use crate::execute::{Listing, Next, Server, announced_len};
use crate::protocol::{Request, text, words};
use crate::stats::Count;
use crate::store::{Held, Lister};

/// Bytes read at once.
const READ: usize = 16 << 10;
/// Bytes read at once of a large value.
const READ_MAX: usize = 128 << 10;
/// Maximum bytes of a line without an end.
const LINE_MAX: usize = 2048;
/// Maximum bytes of a line of `get` without an end.
const GET_LINE_MAX: usize = 1 << 20;
/// Bytes of waiting answers from which on nothing more is read.
const ANSWERS_MAX: usize = 1 << 20;
/// Maximum number of reads of a connection before others have their turn.
const READS_MAX: usize = 64;
/// Size, bytes, above which a buffer is part of the memory limit, once it is known to be needed.
const BUFFER_FREE: usize = 2 * READ;
/// Size, bytes, above which an empty buffer is given back.
const BUFFER_KEPT: usize = 64 << 10;

/// A stream of bytes that never blocks.
pub trait Stream: Read + Write + Source + Send {
    /// The state of the session, if it encrypts: it does from its beginning on, or never.
    fn session(&self) -> Option<Session> {
        None
    }
}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// State of a stream that encrypts.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Since when its handshake is under way, if it is.
    pub handshake_since: Option<Instant>,
    /// Whether the last read took all that had come.
    pub drained: bool,
    /// Whether accepted bytes wait for the socket. `flush` tries again.
    pub has_output: bool,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The stream to become ready.
    Stream,
    /// The connection's next turn.
    Turn,
    /// Nothing: the connection is over.
    Closed,
}

/// Buffers that all connections of a thread use in turn. A connection keeps one only while there
/// is something in it.
#[derive(Debug, Default)]
pub struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
}

/// A connection.
pub struct Connection {
    /// The stream.
    pub stream: Box<dyn Stream>,
    encrypts: bool,
    /// Whether the stream is asked to tell when it takes bytes again.
    pub watches_writes: bool,
    /// Bytes received up to `end`, and room for more.
    input: Vec<u8>,
    end: usize,
    /// Number of bytes of `input` that were dealt with.
    read: usize,
    /// Whether the last read took all that had come. The stream tells when there is more.
    drained: bool,
    /// Whether the other side sends nothing more than what is to be read.
    ended: bool,
    output: Vec<u8>,
    written: usize,
    /// Bytes of a refused value that are still to be skipped.
    skip: usize,
    /// The bytes that the request at the front of `input` needs, if known.
    needed: usize,
    /// The bytes after `read` that are known to hold no line end.
    scanned: usize,
    /// The bytes of the keys of a `get` that were answered.
    answered: usize,
    /// A list that is sent, and what its items are read with.
    listing: Option<(Listing, Lister)>,
    /// Share of the memory limit that the buffers take.
    held: Option<Held>,
    /// Whether requests are allowed: no client need authenticate, or this one has.
    admitted: bool,
    closing: bool,
    /// When the connection last had something to do, by the server's clock, s.
    pub active: u32,
}

impl Connection {
    /// A new connection, whose client need not authenticate if it is `admitted`.
    pub fn new(stream: Box<dyn Stream>, admitted: bool) -> Connection {
        Connection {
            encrypts: stream.session().is_some(),
            stream,
            watches_writes: false,
            input: Vec::new(),
            end: 0,
            read: 0,
            drained: false,
            ended: false,
            output: Vec::new(),
            written: 0,
            skip: 0,
            needed: 0,
            scanned: 0,
            answered: 0,
            listing: None,
            held: None,
            admitted,
            closing: false,
            active: 0,
        }
    }

    /// Whether answers wait for the stream to take bytes again.
    pub fn is_stuck(&self) -> bool {
        self.written < self.output.len() || self.session().is_some_and(|session| session.has_output)
    }

    /// Whether nothing is to be done before the client asks for something: no part of a value has
    /// come, and no answer waits.
    pub fn awaits_request(&self) -> bool {
        self.needed == 0 && self.skip == 0 && self.listing.is_none() && !self.is_stuck()
    }

    /// The state of the session, if the stream encrypts.
    pub fn session(&self) -> Option<Session> {
        if self.encrypts { self.stream.session() } else { None }
    }

    /// Notes that the stream is ready. With `ended`, its other side sends nothing more.
    pub fn wake(&mut self, ended: bool) {
        // A read that takes all that had come does not meet the end behind it.
        self.drained = false;
        self.ended |= ended;
    }

    /// Does what can be done without waiting, for at most a number of requests.
    pub fn advance(&mut self, server: &Server, buffers: &mut Buffers) -> Wait {
        if self.input.is_empty() {
            self.input = std::mem::take(&mut buffers.input);
        }
        if self.output.capacity() == 0 {
            self.output = std::mem::take(&mut buffers.output);
        }
        self.held.get_or_insert_with(|| server.store.share());
        let wait = self.proceed(server);
        if self.read == self.end {
            (self.read, self.end) = (0, 0);
            let input = std::mem::take(&mut self.input);
            buffers.input = if input.len() <= BUFFER_KEPT { input } else { Vec::new() };
        }
        if self.written == self.output.len() {
            let output = std::mem::take(&mut self.output);
            buffers.output = if output.capacity() <= BUFFER_KEPT { output } else { Vec::new() };
        }
        self.count_buffers();
        wait
    }

    /// Charges the memory limit with what this connection keeps until its next turn.
    fn count_buffers(&mut self) {
        let rest = self.read..self.end;
        if self.input.len() > BUFFER_FREE && self.needed == 0 && rest.len() <= READ {
            // The beginning of a request that need not be a large one, behind a large one.
            self.input = self.input[rest].to_vec();
            (self.read, self.end) = (0, self.input.len());
        }
        let counted = |bytes: usize| if bytes > BUFFER_FREE { bytes } else { 0 };
        let input = counted(self.input.capacity().max(room_for(self.needed)));
        let output = counted(self.output.capacity());
        if let Some(held) = &mut self.held {
            held.set(input + output);
        }
    }

    fn proceed(&mut self, server: &Server) -> Wait {
        let mut left = server.settings.requests_per_event;
        let mut reads = READS_MAX;
        loop {
            if self.output.len() - self.written >= ANSWERS_MAX || self.closing {
                match self.flush(server) {
                    Ok(true) if self.closing => return Wait::Closed,
                    Ok(true) => {}
                    Ok(false) => return Wait::Stream,
                    Err(_) => return Wait::Closed,
                }
            }
            if let Some((listing, mut lister)) = self.listing.take() {
                // It waits for its reader, and others have their turn after each part.
                if self.written == self.output.len() {
                    let rest = server.list(listing, &mut lister, &mut self.output);
                    self.listing = rest.map(|rest| (rest, lister));
                } else {
                    self.listing = Some((listing, lister));
                }
                return match self.flush(server) {
                    Ok(true) => Wait::Turn,
                    Ok(false) => Wait::Stream,
                    Err(_) => Wait::Closed,
                };
            }
            if self.request(server) {
                left -= 1;
                if left > 0 || self.closing {
                    continue;
                }
                if self.read < self.end {
                    server.stats.add(Count::Yields);
                }
                return match self.flush(server) {
                    Ok(true) => Wait::Turn,
                    Ok(false) => Wait::Stream,
                    Err(_) => Wait::Closed,
                };
            }
            if self.closing {
                continue;
            }
            // No whole request is left, so answers go out before more is read.
            match self.flush(server) {
                Ok(true) => {}
                Ok(false) => return Wait::Stream,
                Err(_) => return Wait::Closed,
            }
            if self.drained {
                return Wait::Stream;
            }
            if reads == 0 {
                return Wait::Turn;
            }
            match self.fill(server) {
                Ok(true) => {
                    reads -= 1;
                    self.look_ahead(server);
                }
                Ok(false) => return Wait::Closed,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // An encrypted stream may have more, if nothing so far was content.
                    let more = self.session().is_some_and(|session| !session.drained);
                    return if more { Wait::Turn } else { Wait::Stream };
                }
                Err(error) => {
                    let malformed = error.kind() == io::ErrorKind::InvalidData;
                    if malformed && server.verbosity.load(Relaxed) > 0 {
                        eprintln!("terrace-kv: a connection was closed: {error}");
                    }
                    return Wait::Closed;
                }
            }
        }
    }

    /// Prefetches what the requests at the input's front will search for, if there are several.
    fn look_ahead(&self, server: &Server) {
        // A long request that comes in many pieces is not searched again with each.
        if self.needed > 0 || self.skip > 0 || self.scanned > 0 || !self.admitted {
            return;
        }
        let mut lines = self.input[self.read..self.end].split(|&byte| byte == b'\n').peekable();
        let mut keys = std::iter::from_fn(|| {
            let line = lines.next().filter(|_| lines.peek().is_some())?;
            Some(line.strip_suffix(b"\r").unwrap_or(line))
        })
        .map_while(|line| line.strip_prefix(b"get ").or_else(|| line.strip_prefix(b"gets ")))
        .flat_map(words)
        .peekable();
        if keys.next_if(|_| true).is_some() && keys.peek().is_some() {
            server.store.prefetch(keys);
        }
    }

    /// Reads more. Returns false at the end of the stream.
    fn fill(&mut self, server: &Server) -> io::Result<bool> {
        if self.read > 0 {
            self.input.copy_within(self.read..self.end, 0);
            self.end -= self.read;
            self.read = 0;
        }
        let room = room_for(self.needed);
        if room > self.input.capacity() {
            // Exactly as much as counts: `reserve` could double it.
            self.input.reserve_exact(room - self.input.len());
        }
        let wanted = self.end + self.needed.saturating_sub(self.end).clamp(READ, READ_MAX);
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
        let bytes = loop {
            match self.stream.read(&mut self.input[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome?,
            }
        };
        // A stream that gave less than was asked for is empty (epoll(7)), and tells when it is not.
        // An end that it has told of already is only seen by reading on.
        let short = self.end + bytes < self.input.len();
        let drained = self.session().map_or(short, |session| session.drained);
        self.drained = drained && !self.ended;
        self.end += bytes;
        server.stats.add_many(Count::BytesRead, bytes as u64);
        Ok(bytes > 0)
    }

    /// Writes answers. Returns whether all are written.
    fn flush(&mut self, server: &Server) -> io::Result<bool> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.written += bytes;
                    server.stats.add_many(Count::BytesWritten, bytes as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // A slow reader's buffer would grow if what it has read were kept.
                    if self.written > self.output.len() / 2 {
                        self.output.drain(..self.written);
                        self.written = 0;
                    }
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.written = 0;
        if self.encrypts {
            match self.stream.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                outcome => outcome?,
            }
        }
        Ok(true)
    }

    /// Executes the request at the input's front. Returns false where it is not whole yet.
    fn request(&mut self, server: &Server) -> bool {
        let skipped = self.skip.min(self.end - self.read);
        self.skip -= skipped;
        self.read += skipped;
        let input = &self.input[self.read..self.end];
        if input.is_empty() || input.len() < self.needed {
            return false;
        }
        let fresh = input[self.scanned..].iter().position(|&byte| byte == b'\n');
        let Some(end) = fresh.map(|place| self.scanned + place) else {
            self.scanned = input.len();
            let start = input.iter().position(|&byte| byte != b' ').unwrap_or(input.len());
            let get = input[start..].starts_with(b"get ") || input[start..].starts_with(b"gets ");
            let most = if get && self.admitted { GET_LINE_MAX } else { LINE_MAX };
            self.closing = input.len() > most;
            return false;
        };
        self.scanned = end;
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let mut used = end + 1;
        if !self.admitted {
            let Some(len) = auth::announced_len(line) else {
                return self.reply(used, "CLIENT_ERROR unauthenticated");
            };
            let whole = used + len + 2;
            if input.len() < whole {
                self.needed = whole;
                return false;
            }
            let Some(value) = input[used..whole].strip_suffix(b"\r\n") else {
                return self.reply(whole, "CLIENT_ERROR bad command line termination");
            };
            server.stats.add(Count::Authentications);
            let (said, admitted) = server.authenticate(value);
            self.admitted = admitted;
            if !admitted {
                server.stats.add(Count::AuthenticationErrors);
            }
            return self.reply(whole, said);
        }
        match text::parse(line) {
            Err(refusal) => {
                self.skip = refusal.skip;
                match refusal.message {
                    None => self.closing = true,
                    Some(message) if !refusal.noreply => answer(&mut self.output, message),
                    Some(_) => {}
                }
            }
            Ok(Request::Get { keys, cas, time }) => {
                let from = self.answered;
                let answers = &mut self.output;
                let rest = server.get_some(keys, from, cas, time, answers, ANSWERS_MAX);
                self.answered = rest.unwrap_or(0);
                if rest.is_some() {
                    // The line stays until all of its keys are answered.
                    return true;
                }
            }
            Ok(request) => match announced_len(&request) {
                None => match server.execute(request, b"", &mut self.output) {
                    Next::Continue => {}
                    Next::Close => self.closing = true,
                    Next::List(listing) => self.listing = Some((listing, server.store.lister())),
                },
                Some(len) => {
                    let quiet = matches!(&request, Request::Store(store) if store.noreply);
                    let whole = used + len + 2;
                    let is_whole = input.len() >= whole;
                    let refusal = server.refusal_of_value(&request).or_else(|| {
                        let room = room_for(whole);
                        let held =
                            self.held.as_mut().filter(|_| !is_whole && room > BUFFER_FREE)?;
                        server.refusal_for_memory(&request, room, held)
                    });
                    if let Some(message) = refusal {
                        if !quiet {
                            answer(&mut self.output, message);
                        }
                        self.skip = len + 2;
                    } else if !is_whole {
                        self.needed = whole;
                        return false;
                    } else {
                        if let Some(held) = &mut self.held {
                            // The item counts from here on.
                            held.set(0);
                        }
                        let value = &input[used..used + len];
                        if &input[used + len..used + len + 2] == b"\r\n" {
                            let next = server.execute(request, value, &mut self.output);
                            self.closing = next == Next::Close;
                        } else if !quiet {
                            answer(&mut self.output, "CLIENT_ERROR bad data chunk");
                        }
                        used += len + 2;
                    }
                }
            },
        }
        self.pass(used)
    }

    /// Answers the request at the input's front, of `used` bytes, and goes on behind it.
    fn reply(&mut self, used: usize, message: &str) -> bool {
        answer(&mut self.output, message);
        self.pass(used)
    }

    fn pass(&mut self, used: usize) -> bool {
        self.read += used;
        self.needed = 0;
        self.scanned = 0;
        true
    }
}

fn answer(output: &mut Vec<u8>, message: &str) {
    output.extend_from_slice(message.as_bytes());
    output.extend_from_slice(b"\r\n");
}

/// Bytes of a buffer for a request of `needed` bytes, and what comes with its end.
fn room_for(needed: usize) -> usize {
    if needed == 0 { 0 } else { needed + READ }
}
