//! A client's stream under TLS, over one that never blocks.
//!
//! The bytes received of a handshake are limited, and those encrypted ahead of the socket. After a
//! malformed record the stream only returns errors.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mio::event::Source;
use mio::{Interest, Registry, Token};
use rustls::{HandshakeKind, ServerConnection};

use super::Tls;
use crate::connection::{Session, Stream};

/// Maximum bytes of a client's part of a handshake, its certificates included.
const HANDSHAKE_MAX: usize = 64 << 10;
/// Maximum number of times that a read takes from the socket before it returns what it has.
const RECEIVES_MAX: usize = 4;
/// First byte of a record of a handshake.
const HANDSHAKE: u8 = 22;
/// The answer to a client that does not encrypt.
const NO_TLS: &[u8] = b"CLIENT_ERROR this port is for TLS only\r\n";

/// A client's stream under TLS.
pub struct TlsStream {
    socket: Box<dyn Stream>,
    session: ServerConnection,
    tls: Arc<Tls>,
    /// When the handshake under way began, if there is one.
    handshake_since: Option<Instant>,
    /// Bytes received of the handshake.
    received: usize,
    /// Whether the last read took all that had come.
    drained: bool,
    /// Error for the next read: the last one returned bytes that had come before.
    fault: Option<io::Error>,
}

impl TlsStream {
    /// Begins a session, with the present certificates.
    pub fn new(socket: Box<dyn Stream>, tls: &Arc<Tls>) -> io::Result<TlsStream> {
        let mut session = ServerConnection::new(tls.config()).map_err(io::Error::other)?;
        session.set_buffer_limit(Some(tls.options.wbuf_size));
        tls.handshakes.fetch_add(1, Relaxed);
        Ok(TlsStream {
            socket,
            session,
            tls: Arc::clone(tls),
            handshake_since: Some(Instant::now()),
            received: 0,
            drained: false,
            fault: None,
        })
    }

    /// Reads from the socket once, and decrypts that.
    fn receive(&mut self) -> io::Result<()> {
        let mut wire = Wire { socket: &mut *self.socket, short: false, first: None };
        let received = match self.session.read_tls(&mut wire) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.drained = true;
                return Ok(());
            }
            outcome => outcome?,
        };
        self.drained = wire.short;
        if self.handshake_since.is_some() {
            if self.received == 0 && wire.first.is_some_and(|first| first != HANDSHAKE) {
                let _ = self.socket.write(NO_TLS);
                return Err(malformed("the client did not begin with TLS"));
            }
            self.received += received;
            if self.received > HANDSHAKE_MAX {
                return Err(malformed("the client's handshake is too long"));
            }
        }
        if let Err(error) = self.session.process_new_packets() {
            // An alert tells the client why.
            let _ = self.send();
            return Err(malformed(error));
        }
        if self.handshake_since.is_some() && !self.session.is_handshaking() {
            self.handshake_since = None;
            self.tls.handshakes.fetch_sub(1, Relaxed);
            if self.session.handshake_kind() != Some(HandshakeKind::Resumed) {
                self.tls.new_sessions.fetch_add(1, Relaxed);
            }
        }
        match self.send() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes encrypted bytes to the socket. `WouldBlock` where it does not take all.
    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn malformed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Stream for TlsStream {
    fn session(&self) -> Option<Session> {
        Some(Session {
            handshake_since: self.handshake_since,
            drained: self.drained,
            has_output: self.session.wants_write(),
        })
    }
}

impl Read for TlsStream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let (mut filled, mut receives) = (0, 0);
        self.drained = false;
        loop {
            while filled < room.len() {
                let ended = match self.session.reader().read(&mut room[filled..]) {
                    Ok(0) => Ok(0),
                    Ok(bytes) => {
                        filled += bytes;
                        continue;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => Err(error),
                };
                // The end is met again by the next read.
                self.drained = false;
                return if filled > 0 { Ok(filled) } else { ended };
            }
            let enough = filled == room.len() || receives >= RECEIVES_MAX;
            if filled > 0 && (enough || self.drained) {
                // What did not fit is decrypted already.
                self.drained &= filled < room.len();
                return Ok(filled);
            }
            // After records without content others have their turn; `drained` tells that there is
            // more.
            if self.drained || receives >= RECEIVES_MAX {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            receives += 1;
            match self.receive() {
                Err(fault) if filled > 0 => {
                    self.fault = Some(fault);
                    self.drained = false;
                    return Ok(filled);
                }
                outcome => outcome?,
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send()?;
        let taken = self.session.writer().write(bytes)?;
        match self.send() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ if taken == 0 && !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

impl Source for TlsStream {
    fn register(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.socket.register(to, token, interest)
    }

    fn reregister(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.socket.reregister(to, token, interest)
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        self.socket.deregister(from)
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if self.handshake_since.is_some() {
            self.tls.handshakes.fetch_sub(1, Relaxed);
            self.tls.handshake_errors.fetch_add(1, Relaxed);
        }
        if self.handshake_since.is_none() {
            // Without it the client could not tell the end from a forged one.
            self.session.send_close_notify();
            let _ = self.send();
        }
    }
}

/// A socket, and what a read of it tells besides the bytes.
struct Wire<'a> {
    socket: &'a mut dyn Stream,
    /// Whether the socket gave less than was asked for.
    short: bool,
    /// The first byte that the socket gave.
    first: Option<u8>,
}

impl Read for Wire<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let bytes = self.socket.read(room)?;
        self.short = bytes < room.len();
        self.first = room[..bytes].first().copied();
        Ok(bytes)
    }
}
