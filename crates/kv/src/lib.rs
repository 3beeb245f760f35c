//! A key-value server that speaks memcached's text and meta protocols.
//!
//! - [`protocol`]: bytes to requests.
//! - [`store`]: the items.
//! - [`execute`]: requests on the store, and the answers.
//! - [`connection`], [`server`], [`activation`]: sockets and threads.
//! - [`auth`]: authentication of clients.
//! - [`tls`]: encryption of connections.
//! - [`tiering`]: Terrace, which moves what is cold out of DRAM.
//! - [`settings`], [`stats`], [`clock`]: flags, counters, time.

pub mod activation;
pub mod auth;
pub mod clock;
pub mod connection;
pub mod execute;
pub mod protocol;
pub mod server;
pub mod settings;
pub mod stats;
pub mod store;
pub mod tiering;
pub mod tls;
