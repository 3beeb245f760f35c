//! One thread drives all connections: each keeps `depth` requests on the way and sends the next
//! when a reply is there (a closed loop).
//!
//! Replies come in the order of the requests; each is checked against what may come back. A
//! request's time is from its writing to the reading of its reply, the wait behind others of its
//! connection included.

use super::accesses::Operation;
use super::protocol::{Protocol, Reply};
use super::tally::Tally;
use super::target::{Stream, Target};
use super::values::{Values, Wrong, key};
use super::versions::Ledger;
use anyhow::{Context as _, Result, bail};
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::time::{Duration, Instant};

/// Room for replies: more than a value, so that one read takes many small ones.
const INPUT_BYTES: usize = 64 << 10;
/// What surrounds a value at most.
const AROUND_VALUE_BYTES: usize = 4096;
const EVENTS: usize = 256;

/// A request on its way.
#[derive(Debug)]
struct Pending {
    item: u64,
    kind: Kind,
    sent: Instant,
}

#[derive(Debug)]
enum Kind {
    Get { oldest: u64 },
    Set,
}

#[derive(Debug)]
struct Connection {
    stream: Stream,
    pending: VecDeque<Pending>,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    /// Bytes of `input` that came and were not looked at yet.
    come: std::ops::Range<usize>,
}

/// The connections to a server, and what is known of its data.
#[derive(Debug)]
pub struct Client {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    protocol: Protocol,
    values: Values,
    ledger: Ledger,
    patience: Duration,
    value: Vec<u8>,
}

impl Client {
    /// Connects. A server that says nothing for `patience` is given up.
    pub fn connect(
        target: &Target,
        connections: usize,
        protocol: Protocol,
        values: Values,
        ledger: Ledger,
        patience: Duration,
    ) -> Result<Self> {
        let poll = Poll::new().context("cannot poll")?;
        let open = |number| -> Result<Connection> {
            let mut stream = Stream::connect(target).with_context(|| {
                format!(
                    "cannot connect to {target} (connection {}); is a server listening there?",
                    number + 1
                )
            })?;
            poll.registry()
                .register(stream.source(), Token(number), Interest::READABLE | Interest::WRITABLE)
                .context("cannot poll")?;
            let input = vec![0; INPUT_BYTES.max(2 * (values.bytes() + AROUND_VALUE_BYTES))];
            Ok(Connection {
                stream,
                pending: VecDeque::new(),
                output: Vec::new(),
                written: 0,
                input,
                come: 0..0,
            })
        };
        let connections = (0..connections).map(open).collect::<Result<_>>()?;
        Ok(Client {
            poll,
            events: Events::with_capacity(EVENTS),
            connections,
            protocol,
            values,
            ledger,
            patience,
            value: Vec::new(),
        })
    }

    /// Carries out operations, at most `depth` at a time on each connection, until there are no
    /// more or it is `until`; then waits for the replies that are due. What came after `until`
    /// is checked and not counted.
    pub fn run(
        &mut self,
        operations: &mut dyn Iterator<Item = Operation>,
        depth: usize,
        until: Option<Instant>,
    ) -> Result<Tally> {
        let mut tally = Tally::new();
        let mut operations = operations.fuse();
        let begun = Instant::now();
        for number in 0..self.connections.len() {
            self.top_up(number, depth, &mut operations, &mut tally)?;
        }
        let mut heard = Instant::now();
        while self.connections.iter().any(|connection| !connection.pending.is_empty()) {
            match self.poll.poll(&mut self.events, Some(self.patience)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled.context("cannot poll")?,
            }
            let ready: Vec<usize> = self.events.iter().map(|event| event.token().0).collect();
            for number in &ready {
                self.flush(*number, &mut tally)?;
                if self.take_replies(*number, until, &mut tally)? {
                    heard = Instant::now();
                }
                if until.is_none_or(|until| Instant::now() < until) {
                    self.top_up(*number, depth, &mut operations, &mut tally)?;
                }
            }
            if heard.elapsed() >= self.patience {
                bail!(
                    "the server has not answered for {:?}; it may be stopped, or too busy: see --patience",
                    self.patience
                );
            }
        }
        let ended = until.map_or_else(Instant::now, |until| until.min(Instant::now()));
        tally.set_elapsed(ended - begun);
        Ok(tally)
    }

    /// Sends what `depth` leaves room for.
    fn top_up(
        &mut self,
        number: usize,
        depth: usize,
        operations: &mut dyn Iterator<Item = Operation>,
        tally: &mut Tally,
    ) -> Result<()> {
        let connection = &mut self.connections[number];
        let sent = Instant::now();
        while connection.pending.len() < depth {
            let Some(operation) = operations.next() else { break };
            let (item, kind) = match operation {
                Operation::Get(item) => {
                    self.protocol.get(&key(item), &mut connection.output);
                    (item, Kind::Get { oldest: self.ledger.begin_read(item) })
                }
                Operation::Set(item) => {
                    self.values.make(item, self.ledger.begin_write(item), &mut self.value);
                    self.protocol.set(&key(item), &self.value, &mut connection.output);
                    (item, Kind::Set)
                }
            };
            connection.pending.push_back(Pending { item, kind, sent });
        }
        self.flush(number, tally)
    }

    /// Writes what the socket takes; the rest when it takes more.
    fn flush(&mut self, number: usize, tally: &mut Tally) -> Result<()> {
        let connection = &mut self.connections[number];
        while connection.written < connection.output.len() {
            match connection.stream.write(&connection.output[connection.written..]) {
                Ok(bytes) => {
                    connection.written += bytes;
                    tally.bytes_sent += bytes as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(error).context("cannot write to the server; has it ended?");
                }
            }
        }
        connection.output.clear();
        connection.written = 0;
        Ok(())
    }

    /// Reads all that has come and settles whole replies. Whether there were any.
    fn take_replies(
        &mut self,
        number: usize,
        until: Option<Instant>,
        tally: &mut Tally,
    ) -> Result<bool> {
        let mut any = false;
        loop {
            let connection = &mut self.connections[number];
            let room = connection.input.len() - connection.come.end;
            let bytes = match connection.stream.read(&mut connection.input[connection.come.end..]) {
                Ok(0) => bail!(
                    "the server closed a connection; has it ended, or does it allow fewer connections?"
                ),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(error).context("cannot read from the server; has it ended?");
                }
            };
            let now = Instant::now();
            let counted = until.is_none_or(|until| now < until);
            tally.bytes_received += bytes as u64;
            connection.come.end += bytes;
            any |= self.settle(number, now, counted, tally)?;
            // A socket that gave less than was asked for is empty (epoll(7)), and will say so when
            // it is not.
            if bytes < room {
                return Ok(any);
            }
        }
    }

    /// Settles whole replies, then makes room for the next ones. Whether there were any.
    fn settle(
        &mut self,
        number: usize,
        now: Instant,
        counted: bool,
        tally: &mut Tally,
    ) -> Result<bool> {
        let Connection { pending, input, come, .. } = &mut self.connections[number];
        let mut any = false;
        while come.start < come.end {
            let Some((reply, bytes)) =
                self.protocol.reply(&input[come.clone()], self.values.bytes())?
            else {
                break;
            };
            let Some(Pending { item, kind, sent }) = pending.pop_front() else {
                bail!("the server answered what was not asked")
            };
            let elapsed = now - sent;
            match (kind, reply) {
                (Kind::Get { oldest }, Reply::Value(value)) => {
                    let version = self.values.version(item, value);
                    let right = version.and_then(|version| {
                        match self.ledger.may_be(item, oldest, version) {
                            true => Ok(()),
                            false => Err(Wrong::Version(version)),
                        }
                    });
                    match right {
                        Ok(()) if counted => tally.hit(elapsed),
                        Ok(()) => {}
                        Err(wrong) => tally.wrong(item, &wrong),
                    }
                }
                (Kind::Get { .. }, Reply::Missing) => tally.miss(item),
                (Kind::Set, Reply::Stored) => {
                    self.ledger.end_write(item, true);
                    if counted {
                        tally.stored(elapsed);
                    }
                }
                (kind, Reply::Refused(why)) => {
                    if matches!(kind, Kind::Set) {
                        self.ledger.end_write(item, false);
                    }
                    tally.refused(item, why);
                }
                (kind, reply) => bail!("the server answered {kind:?} with {reply:?}"),
            }
            come.start += bytes;
            any = true;
        }
        // One whole reply always finds room: the buffer is longer than two.
        if come.start == come.end {
            *come = 0..0;
        } else if input.len() - come.end < input.len() / 2 {
            input.copy_within(come.clone(), 0);
            *come = 0..come.len();
        }
        Ok(any)
    }
}
