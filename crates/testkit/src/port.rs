//! Ports of TCP for servers that a test or a benchmark starts.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// A port of 127.0.0.1 that is free now. Another process may take it before it is used.
pub fn free() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
