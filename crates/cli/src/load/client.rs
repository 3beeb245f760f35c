//! One thread drives some connections; several may do so side by side. In a closed loop each keeps
//! `depth` requests on the way and sends the next when a reply is there. In an open loop requests
//! set out at a rate, whatever the server does, while a connection has fewer than `depth` on the
//! way.
//!
//! Replies come in the order of the requests; each is checked against what may be returned. A
//! request's time is from its writing to the reading of its reply, the wait behind others of its
//! connection included. In an open loop it is from the time at which the request was due. So a
//! server that stands still is charged for all that it keeps waiting.

use super::accesses::Operation;
use super::protocol::{Protocol, Reply};
use super::tally::Tally;
use super::target::{Stream, Target, unreachable};
use super::values::{Values, Wrong, key};
use super::versions::Ledger;
use anyhow::{Context as _, Result, bail};
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Room for replies: more than a value, so that one read takes many small ones.
const INPUT_BYTES: usize = 64 << 10;
/// What surrounds a value at most.
const AROUND_VALUE_BYTES: usize = 4096;
const EVENTS: usize = 256;
/// Time between checks whether the server still answers.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Least time to sleep: the kernel sleeps whole milliseconds. What is due sooner is waited for
/// awake.
const SLEEP_LEAST: Duration = Duration::from_millis(2);

/// What a run is asked to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The most requests on the way on each connection.
    pub depth: usize,
    /// When the run ends; replies that come later are checked and not counted.
    pub until: Option<Instant>,
    /// Requests a second in an open loop.
    pub rate: Option<f64>,
    /// Where the run's progress is noted.
    pub told: &'a Told,
}

/// How far a run is, for a thread that tells of it meanwhile.
#[derive(Debug, Default)]
pub struct Told {
    /// Operations that were carried out right.
    pub operations: AtomicU64,
    /// Operations that were not carried out right.
    pub troubles: AtomicU64,
}

/// A request on its way.
#[derive(Debug)]
struct Pending {
    item: u64,
    kind: Kind,
    sent: Instant,
}

#[derive(Debug)]
enum Kind {
    Get { oldest: u64, update: bool },
    Set,
}

#[derive(Debug)]
struct Connection {
    stream: Stream,
    pending: VecDeque<Pending>,
    /// Items that were read to be written.
    updates: VecDeque<u64>,
    watches_writes: bool,
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
    ledger: Arc<Ledger>,
    timeout: Duration,
    /// Whether values are checked.
    checked: bool,
    value: Vec<u8>,
}

impl Client {
    /// Connects. A server that says nothing for `timeout` is given up.
    pub fn connect(
        target: &Target,
        connections: usize,
        protocol: Protocol,
        values: Values,
        ledger: Arc<Ledger>,
        timeout: Duration,
    ) -> Result<Self> {
        let poll = Poll::new().context("cannot poll")?;
        let open = |number| -> Result<Connection> {
            let mut stream = Stream::connect(target)
                .with_context(|| format!("{} (connection {})", unreachable(target), number + 1))?;
            poll.registry()
                .register(stream.source(), Token(number), Interest::READABLE)
                .context("cannot poll")?;
            let input = vec![0; INPUT_BYTES.max(2 * (values.most_bytes() + AROUND_VALUE_BYTES))];
            Ok(Connection {
                stream,
                pending: VecDeque::new(),
                updates: VecDeque::new(),
                watches_writes: false,
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
            timeout,
            checked: true,
            value: Vec::new(),
        })
    }

    /// This client with values of any contents, from a server that keeps none.
    pub fn unchecked(self) -> Self {
        Client { checked: false, ..self }
    }

    /// Carries out operations until there are no more or the plan's end has come; then waits for
    /// the replies that are due.
    pub fn run(
        &mut self,
        operations: &mut dyn Iterator<Item = Operation>,
        plan: Plan<'_>,
    ) -> Result<Tally> {
        let mut tally = Tally::new();
        let mut operations = operations.fuse();
        // Whether there are no more, as far as is known: one that is drawn is also carried out.
        let mut are_over = false;
        let begun = Instant::now();
        let mut set_out = 0u64;
        let mut heard = begun;
        if plan.rate.is_none() {
            for number in 0..self.connections.len() {
                self.top_up(number, plan.depth, &mut operations, &mut tally)?;
            }
        }
        loop {
            let now = Instant::now();
            let is_on = plan.until.is_none_or(|until| now < until);
            let mut wait = self.timeout.min(POLL_INTERVAL);
            if let Some(rate) = plan.rate.filter(|_| is_on && !are_over) {
                let due = |count: u64| begun + Duration::from_secs_f64(count as f64 / rate);
                while due(set_out) <= now
                    && self.set_out(
                        set_out,
                        due(set_out),
                        plan.depth,
                        &mut operations,
                        &mut are_over,
                        &mut tally,
                    )?
                {
                    set_out += 1;
                }
                wait = wait.min(due(set_out).saturating_duration_since(now));
                wait = if wait < SLEEP_LEAST { Duration::ZERO } else { wait - SLEEP_LEAST };
            } else if self.connections.iter().all(|connection| connection.pending.is_empty()) {
                break;
            }
            match self.poll.poll(&mut self.events, Some(wait)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled.context("cannot poll")?,
            }
            let ready: Vec<usize> = self.events.iter().map(|event| event.token().0).collect();
            for number in &ready {
                self.flush(*number, &mut tally)?;
                if self.take_replies(*number, plan.until, &mut tally)? {
                    heard = Instant::now();
                }
                if plan.until.is_none_or(|until| heard < until) {
                    let mut none = std::iter::empty();
                    let more: &mut dyn Iterator<Item = Operation> =
                        if plan.rate.is_none() { &mut operations } else { &mut none };
                    self.top_up(*number, plan.depth, more, &mut tally)?;
                }
            }
            plan.told.operations.store(tally.operations(), Relaxed);
            plan.told.troubles.store(tally.troubles(), Relaxed);
            if self.connections.iter().all(|connection| connection.pending.is_empty()) {
                heard = heard.max(now);
            } else if heard.elapsed() >= self.timeout {
                bail!(
                    "the server has not answered for {:?}; it may be stopped, or too busy: see --timeout",
                    self.timeout
                );
            }
        }
        let ended = plan.until.map_or_else(Instant::now, |until| until.min(Instant::now()));
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
        let sent = Instant::now();
        while self.connections[number].pending.len() < depth {
            let update = self.connections[number].updates.pop_front().map(Operation::Set);
            let Some(operation) = update.or_else(|| operations.next()) else { break };
            self.prepare(number, operation, sent);
        }
        self.flush(number, tally)
    }

    /// Sends the next operation, due at a time, on the first connection from `turn` on that has
    /// room. Gives whether there was one.
    fn set_out(
        &mut self,
        turn: u64,
        due: Instant,
        depth: usize,
        operations: &mut dyn Iterator<Item = Operation>,
        are_over: &mut bool,
        tally: &mut Tally,
    ) -> Result<bool> {
        let count = self.connections.len();
        let mut places = (0..count).map(|place| (turn as usize + place) % count);
        let room = places.find(|number| self.connections[*number].pending.len() < depth);
        let Some(number) = room else { return Ok(false) };
        let Some(operation) = operations.next() else {
            *are_over = true;
            return Ok(false);
        };
        self.prepare(number, operation, due);
        self.flush(number, tally)?;
        Ok(true)
    }

    /// Puts a request behind those that are to be sent.
    fn prepare(&mut self, number: usize, operation: Operation, sent: Instant) {
        let connection = &mut self.connections[number];
        let item = operation.item();
        let kind = match operation {
            Operation::Get(_) | Operation::Update(_) => {
                self.protocol.get(&key(item), &mut connection.output);
                let update = matches!(operation, Operation::Update(_));
                Kind::Get { oldest: self.ledger.begin_read(item), update }
            }
            Operation::Set(_) => {
                self.values.make(item, self.ledger.begin_write(item), &mut self.value);
                self.protocol.set(&key(item), &self.value, &mut connection.output);
                Kind::Set
            }
        };
        connection.pending.push_back(Pending { item, kind, sent });
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
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.watch_writes(number, true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(error).context("cannot write to the server; has it ended?");
                }
            }
        }
        connection.output.clear();
        connection.written = 0;
        self.watch_writes(number, false)
    }

    /// Has the socket tell when it takes bytes again, or not. A Unix socket that is asked tells of
    /// whatever its other side reads.
    fn watch_writes(&mut self, number: usize, wanted: bool) -> Result<()> {
        let connection = &mut self.connections[number];
        if connection.watches_writes == wanted {
            return Ok(());
        }
        connection.watches_writes = wanted;
        let interest =
            if wanted { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let registry = self.poll.registry();
        registry
            .reregister(connection.stream.source(), Token(number), interest)
            .context("cannot poll")
    }

    /// Reads all that has come and settles whole replies. Returns whether there were any.
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

    /// Settles whole replies, then makes room for the next ones. Returns whether there were any.
    fn settle(
        &mut self,
        number: usize,
        now: Instant,
        counted: bool,
        tally: &mut Tally,
    ) -> Result<bool> {
        let Connection { pending, updates, input, come, .. } = &mut self.connections[number];
        let mut any = false;
        while come.start < come.end {
            let Some((reply, bytes)) =
                self.protocol.reply(&input[come.clone()], self.values.most_bytes())?
            else {
                break;
            };
            let Some(Pending { item, kind, sent }) = pending.pop_front() else {
                bail!("the server answered what was not asked")
            };
            let elapsed = now - sent;
            match (kind, reply) {
                (Kind::Get { oldest, update }, Reply::Value(value)) => {
                    if update {
                        updates.push_back(item);
                    }
                    let version = self.values.version(item, value);
                    let right = version.and_then(|version| {
                        match self.ledger.may_be(item, oldest, version) {
                            true => Ok(()),
                            false => Err(Wrong::Version(version)),
                        }
                    });
                    match right {
                        Err(wrong) if self.checked => tally.wrong(item, &wrong),
                        _ if counted => tally.hit(elapsed),
                        _ => {}
                    }
                }
                (Kind::Get { oldest, .. }, Reply::Missing)
                    if self.ledger.may_be_missing(item, oldest) =>
                {
                    tally.too_early();
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
