//! Threads with an event loop each, which share the listening sockets.
//!
//! The thread that wakes first accepts a client, and hands it to the thread that has the fewest.
//! Otherwise a thread that accepts many at once would serve them all.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, UnixListener};
use mio::{Events, Interest, Poll, Token, Waker};
use terrace_objects::Progress;

use crate::activation;
use crate::connection::{Buffers, Connection, Stream, Wait};
use crate::execute::Server;
use crate::settings::Settings;
use crate::stats::Count;
use crate::tls::stream::TlsStream;

/// Time that a thread sleeps before it checks whether the server ends.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time that a thread sleeps while hot items are brought together.
const STEP_EVERY: Duration = Duration::from_millis(5);
/// Time for bringing hot items together between two turns of the loop.
const STEP: Duration = Duration::from_micros(250);
const EVENTS: usize = 256;
/// Maximum number of clients that a thread accepts before it serves those that it has.
const ACCEPTS_MAX: usize = 64;
/// The token of the waker for a thread that is handed a client.
const WAKE: Token = Token(usize::MAX);
/// Time limit for a client's part of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time limit for a handshake where many clients wait for theirs.
const HANDSHAKE_IN_A_CROWD: Duration = Duration::from_secs(1);
/// One over the share of connections that may be in a handshake. Others wait in the kernel's queue.
const HANDSHAKES_SHARE: u64 = 4;
/// The beginning of an address that is listened on without TLS.
const NOTLS: &str = "notls:";

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// TCP, with TLS.
    Tls(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// The sockets that a service manager has opened for this process, if it has. TCP sockets have
    /// TLS if they are `encrypted`.
    pub fn activated(encrypted: bool) -> io::Result<Vec<Listener>> {
        let sockets = activation::sockets(std::process::id())?;
        sockets.into_iter().map(|socket| Listener::passed(socket, encrypted)).collect()
    }

    /// Opens the sockets that the settings name.
    pub fn open(settings: &Settings) -> io::Result<Vec<Listener>> {
        if let Some(path) = &settings.socket {
            match fs::symlink_metadata(path) {
                Ok(metadata) if is_socket(&metadata) => fs::remove_file(path)?,
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            set_backlog(&listener, settings.backlog);
            fs::set_permissions(path, fs::Permissions::from_mode(settings.socket_mask))?;
            return Ok(vec![Listener::Unix(listener)]);
        }
        if settings.port == 0 {
            return Err(io::Error::other(
                "-p 0 is no TCP port, and there is no Unix socket: give one of -p and -s",
            ));
        }
        let mut listeners = Vec::new();
        for (address, encrypted) in addresses(settings)? {
            let listener = TcpListener::bind(address)?;
            set_backlog(&listener, settings.backlog);
            listeners.push(Listener::of_tcp(listener, encrypted));
        }
        Ok(listeners)
    }

    fn of_tcp(listener: TcpListener, encrypted: bool) -> Listener {
        if encrypted { Listener::Tls(listener) } else { Listener::Tcp(listener) }
    }

    fn passed(socket: OwnedFd, encrypted: bool) -> io::Result<Listener> {
        let internet = activation::is_internet(socket.as_raw_fd())?;
        Ok(if internet {
            let listener = std::net::TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            Listener::of_tcp(TcpListener::from_std(listener), encrypted)
        } else {
            let listener = std::os::unix::net::UnixListener::from(socket);
            listener.set_nonblocking(true)?;
            Listener::Unix(UnixListener::from_std(listener))
        })
    }

    fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Tcp(listener) => Listener::Tcp(TcpListener::from_std(duplicate(listener)?)),
            Listener::Tls(listener) => Listener::Tls(TcpListener::from_std(duplicate(listener)?)),
            Listener::Unix(listener) => {
                Listener::Unix(UnixListener::from_std(duplicate(listener)?))
            }
        })
    }

    /// A client's stream, not encrypted yet.
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Tcp(listener) | Listener::Tls(listener) => {
                let stream = listener.accept()?.0;
                // Answers go out whole, so that waiting for more gains nothing.
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            Listener::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }
}

/// Sets the length of the kernel's queue of connections that are not accepted yet.
fn set_backlog(listener: &impl AsRawFd, backlog: u32) {
    let _ = terrace_os::listen(listener.as_raw_fd(), backlog as i32);
}

fn is_socket(metadata: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type())
}

fn duplicate<T: From<OwnedFd>>(socket: &impl AsFd) -> io::Result<T> {
    socket.as_fd().try_clone_to_owned().map(T::from)
}

/// The addresses to listen on, and whether with TLS.
fn addresses(settings: &Settings) -> io::Result<Vec<(SocketAddr, bool)>> {
    let encrypted = settings.tls.enabled;
    if settings.listen.is_empty() {
        // A socket of all IPv6 addresses takes IPv4 too, where the machine has IPv6.
        let all = SocketAddr::from(([0_u16; 8], settings.port));
        let have = std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
        let address = if have { all } else { ([0; 4], settings.port).into() };
        return Ok(vec![(address, encrypted)]);
    }
    let mut addresses = Vec::new();
    for host in &settings.listen {
        let plain = host.strip_prefix(NOTLS);
        let (host, encrypted) = (plain.unwrap_or(host), encrypted && plain.is_none());
        let found: Vec<SocketAddr> = match host.parse() {
            Ok(address) => vec![address],
            Err(_) if host.matches(':').count() == 1 => host.to_socket_addrs()?.collect(),
            Err(_) => (host, settings.port).to_socket_addrs()?.collect(),
        };
        addresses.extend(found.into_iter().map(|address| (address, encrypted)));
    }
    Ok(addresses)
}

/// Serves until the server is told to stop.
pub fn run(server: &Arc<Server>, listeners: &[Listener]) -> io::Result<()> {
    let polls =
        (0..server.settings.threads).map(|_| Poll::new()).collect::<io::Result<Vec<_>>>()?;
    let entrances: Arc<[Entrance]> =
        polls.iter().map(Entrance::new).collect::<io::Result<Vec<_>>>()?.into();
    let mut threads = Vec::new();
    for (number, poll) in polls.into_iter().enumerate() {
        let own = listeners.iter().map(Listener::try_clone).collect::<io::Result<Vec<_>>>()?;
        let (server, entrances) = (Arc::clone(server), Arc::clone(&entrances));
        let mut worker = Worker::new(server, number, poll, entrances, own)?;
        let builder = thread::Builder::new().name(format!("worker-{number}"));
        threads.push(builder.spawn(move || worker.run())?);
    }
    for thread in threads {
        thread.join().map_err(|_| io::Error::other("a thread ended by a panic"))??;
    }
    Ok(())
}

/// The place where a thread is handed clients that another one accepted.
struct Entrance {
    waker: Waker,
    streams: Mutex<Vec<Box<dyn Stream>>>,
    /// Clients that the thread has or is handed.
    clients: AtomicUsize,
}

impl Entrance {
    fn new(poll: &Poll) -> io::Result<Entrance> {
        let waker = Waker::new(poll.registry(), WAKE)?;
        Ok(Entrance { waker, streams: Mutex::default(), clients: AtomicUsize::new(0) })
    }

    fn hand(&self, stream: Box<dyn Stream>) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        // If that fails, the thread looks by itself before long.
        let _ = self.waker.wake();
    }

    fn take(&self) -> Vec<Box<dyn Stream>> {
        std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The event loop of a thread.
struct Worker {
    server: Arc<Server>,
    number: usize,
    /// The entrances of all threads, by number.
    entrances: Arc<[Entrance]>,
    poll: Poll,
    listeners: Vec<Listener>,
    /// Connections by their tokens, which follow those of the listeners.
    connections: Vec<Option<Connection>>,
    /// Places of `connections` that are empty.
    vacant: Vec<usize>,
    buffers: Buffers,
    /// Connections and listeners that go on without an event, in their order.
    ready: VecDeque<Token>,
    /// Listeners whose clients wait because no descriptor was free, or too many handshakes are
    /// under way.
    stalled: Vec<usize>,
    /// When handshakes that take too long were last looked for.
    looked: Instant,
    /// The second in which silent connections were last looked for.
    looked_for_silent: u32,
}

impl Worker {
    fn new(
        server: Arc<Server>,
        number: usize,
        poll: Poll,
        entrances: Arc<[Entrance]>,
        mut listeners: Vec<Listener>,
    ) -> io::Result<Worker> {
        for (place, listener) in listeners.iter_mut().enumerate() {
            let source: &mut dyn mio::event::Source = match listener {
                Listener::Tcp(listener) | Listener::Tls(listener) => listener,
                Listener::Unix(listener) => listener,
            };
            poll.registry().register(source, Token(place), Interest::READABLE)?;
        }
        Ok(Worker {
            server,
            number,
            entrances,
            poll,
            listeners,
            connections: Vec::new(),
            vacant: Vec::new(),
            buffers: Buffers::default(),
            ready: VecDeque::new(),
            stalled: Vec::new(),
            looked: Instant::now(),
            looked_for_silent: 0,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let mut sleep = POLL_INTERVAL;
        while !self.server.stop.load(Relaxed) {
            let timeout = if self.ready.is_empty() { sleep } else { Duration::ZERO };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.server.clock.tick();
            let waiting = self.ready.len();
            for event in &events {
                if event.token() == WAKE {
                    // All are taken below.
                    continue;
                }
                let ended = event.is_read_closed() || event.is_error();
                if let Some(connection) = self.connection(event.token()) {
                    connection.wake(ended);
                }
                self.advance(event.token());
            }
            for stream in self.entrances[self.number].take() {
                self.admit(stream);
            }
            self.drop_slow_handshakes();
            self.drop_silent();
            for listener in std::mem::take(&mut self.stalled) {
                self.accept(listener);
            }
            for _ in 0..waiting {
                if let Some(token) = self.ready.pop_front() {
                    self.advance(token);
                }
            }
            // One thread is enough to bring hot items together.
            if self.number == 0 {
                let Server { store, stats, clock, .. } = &*self.server;
                sleep = match store.consolidate(clock.now(), stats, STEP) {
                    Progress::Resting => POLL_INTERVAL,
                    Progress::Working | Progress::Waiting => STEP_EVERY,
                };
            }
        }
        Ok(())
    }

    /// Closes connections whose clients have been silent for too long (`-o idle_timeout`).
    fn drop_silent(&mut self) {
        let (most, now) = (self.server.settings.idle_timeout, self.server.clock.now());
        if most == 0 || self.looked_for_silent == now {
            return;
        }
        self.looked_for_silent = now;
        for place in 0..self.connections.len() {
            let token = Token(self.listeners.len() + place);
            let silent = self.connections[place].as_ref().is_some_and(|connection| {
                connection.awaits_request() && now.saturating_sub(connection.active) > most
            });
            if silent && !self.ready.contains(&token) {
                self.server.stats.add(Count::IdleKicks);
                self.close(place);
            }
        }
    }

    /// Maximum number of handshakes under way at a time.
    fn handshakes_max(&self) -> u64 {
        (self.server.settings.connections_max / HANDSHAKES_SHARE).max(1)
    }

    /// Closes connections whose clients take too long for their part of a handshake.
    fn drop_slow_handshakes(&mut self) {
        let Some(tls) = &self.server.tls else { return };
        let under_way = tls.handshakes();
        if under_way == 0 || self.looked.elapsed() < POLL_INTERVAL {
            return;
        }
        self.looked = Instant::now();
        let crowd = under_way >= self.handshakes_max();
        let most = if crowd { HANDSHAKE_IN_A_CROWD } else { HANDSHAKE };
        for place in 0..self.connections.len() {
            let session = self.connections[place].as_ref().and_then(Connection::session);
            let since = session.and_then(|session| session.handshake_since);
            if since.is_some_and(|since| since.elapsed() > most) {
                if self.server.verbosity.load(Relaxed) > 0 {
                    eprintln!("terrace-kv: a connection was closed: no TLS handshake in {most:?}");
                }
                self.close(place);
            }
        }
    }

    /// Leaves a listener's clients in the kernel's queue until the next turn.
    fn stall(&mut self, listener: usize) {
        if !self.stalled.contains(&listener) {
            self.stalled.push(listener);
        }
    }

    fn accept(&mut self, listener: usize) {
        let is_encrypted = matches!(self.listeners[listener], Listener::Tls(_));
        let tls = self.server.tls.clone().filter(|_| is_encrypted);
        for _ in 0..ACCEPTS_MAX {
            if tls.as_ref().is_some_and(|tls| tls.handshakes() >= self.handshakes_max()) {
                return self.stall(listener);
            }
            let mut stream = match self.listeners[listener].accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => continue,
                Err(error) => {
                    // No descriptor is free; the client waits in the kernel's queue.
                    if self.server.verbosity.load(Relaxed) > 0 {
                        eprintln!("terrace-kv: a connection was not accepted: {error}");
                    }
                    return self.stall(listener);
                }
            };
            let stats = &self.server.stats;
            if stats.connections.fetch_add(1, Relaxed) >= self.server.settings.connections_max {
                stats.connections.fetch_sub(1, Relaxed);
                stats.add(Count::Rejected);
                if tls.is_none() {
                    let _ = stream.write(b"ERROR Too many open connections\r\n");
                }
                continue;
            }
            if let Some(tls) = &tls {
                let Ok(encrypted) = TlsStream::new(stream, tls) else {
                    stats.connections.fetch_sub(1, Relaxed);
                    continue;
                };
                stream = Box::new(encrypted);
            }
            stats.add(Count::Connections);
            let clients = |number: &usize| self.entrances[*number].clients.load(Relaxed);
            let others = (0..self.entrances.len()).map(|ahead| self.number + ahead);
            // If several have the fewest, this thread if it is one of them.
            let fewest = others.map(|number| number % self.entrances.len()).min_by_key(clients);
            let number = fewest.unwrap_or(self.number);
            self.entrances[number].clients.fetch_add(1, Relaxed);
            if number == self.number {
                self.admit(stream);
            } else {
                self.entrances[number].hand(stream);
            }
        }
        self.await_turn(Token(listener));
    }

    /// Begins to serve a client.
    fn admit(&mut self, stream: Box<dyn Stream>) {
        let place = self.vacant.pop().unwrap_or(self.connections.len());
        let token = Token(self.listeners.len() + place);
        let mut connection = Connection::new(stream, self.server.accounts.is_none());
        let registry = self.poll.registry();
        if place == self.connections.len() {
            self.connections.push(None);
        }
        if registry.register(&mut connection.stream, token, Interest::READABLE).is_err() {
            self.vacant.push(place);
            return self.count_gone();
        }
        self.connections[place] = Some(connection);
        self.advance(token);
    }

    /// Counts a client as gone.
    fn count_gone(&self) {
        self.server.stats.connections.fetch_sub(1, Relaxed);
        self.entrances[self.number].clients.fetch_sub(1, Relaxed);
    }

    fn connection(&mut self, token: Token) -> Option<&mut Connection> {
        self.connections.get_mut(token.0.checked_sub(self.listeners.len())?)?.as_mut()
    }

    /// Has a connection or a listener go on when the others have had their turns.
    fn await_turn(&mut self, token: Token) {
        if !self.ready.contains(&token) {
            self.ready.push_back(token);
        }
    }

    fn advance(&mut self, token: Token) {
        let Some(place) = token.0.checked_sub(self.listeners.len()) else {
            return self.accept(token.0);
        };
        let Some(connection) = self.connections.get_mut(place).and_then(Option::as_mut) else {
            return;
        };
        connection.active = self.server.clock.now();
        let mut wait = connection.advance(&self.server, &mut self.buffers);
        let stuck = connection.is_stuck();
        if wait != Wait::Closed && stuck != connection.watches_writes {
            // A Unix socket tells of every byte that its other side reads, unless it is not asked.
            connection.watches_writes = stuck;
            let interest =
                if stuck { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            if self.poll.registry().reregister(&mut connection.stream, token, interest).is_err() {
                wait = Wait::Closed;
            }
        }
        match wait {
            Wait::Stream => {}
            Wait::Turn => self.await_turn(token),
            Wait::Closed => self.close(place),
        }
    }

    fn close(&mut self, place: usize) {
        if let Some(mut connection) = self.connections[place].take() {
            let _ = self.poll.registry().deregister(&mut connection.stream);
            self.vacant.push(place);
            self.count_gone();
        }
    }
}
