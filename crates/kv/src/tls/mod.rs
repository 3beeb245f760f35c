//! TLS as memcached has it: its options, by rustls; certificates; counters.
//!
//! Files are read at the start, before `-u` takes effect, and again by `refresh_certs`. If that
//! fails, the certificates stay as they were.

pub mod options;
pub mod stream;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{Error, InconsistentKeys, ProtocolVersion, RootCertStore, ServerConfig};

use options::Options;

/// Maximum bytes of a file of certificates or keys.
const FILE_MAX: u64 = 1 << 20;
/// Maximum number of sessions that clients may resume, with `ssl_session_cache`.
const SESSIONS_MAX: usize = 4096;

/// State of TLS that the server's threads share.
#[derive(Debug)]
pub struct Tls {
    /// The options.
    pub options: Options,
    /// The configuration of new connections, and since when.
    current: RwLock<(Arc<ServerConfig>, Instant)>,
    /// Handshakes under way.
    handshakes: AtomicU64,
    /// Handshakes that failed, timeouts among them.
    handshake_errors: AtomicU64,
    /// Handshakes that resumed no earlier session.
    new_sessions: AtomicU64,
}

impl Tls {
    /// Reads certificates and keys.
    ///
    /// # Errors
    /// If a file cannot be read or has the wrong contents: the text says which, and what to do.
    pub fn start(options: Options) -> Result<Tls, String> {
        let config = Arc::new(configure(&options)?);
        Ok(Tls {
            options,
            current: RwLock::new((config, Instant::now())),
            handshakes: AtomicU64::new(0),
            handshake_errors: AtomicU64::new(0),
            new_sessions: AtomicU64::new(0),
        })
    }

    /// Reads certificates and keys again, for connections that begin from now on.
    ///
    /// # Errors
    /// As for [`Tls::start`]. Nothing has changed then.
    pub fn refresh(&self) -> Result<(), String> {
        let config = Arc::new(configure(&self.options)?);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = (config, Instant::now());
        Ok(())
    }

    /// The number of handshakes under way.
    pub fn handshakes(&self) -> u64 {
        self.handshakes.load(Relaxed)
    }

    /// Resets what memcached's `stats reset` resets.
    pub fn reset(&self) {
        self.handshake_errors.store(0, Relaxed);
        self.new_sessions.store(0, Relaxed);
    }

    /// Figures for `stats`, most of them with memcached's names.
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        let since = self.current.read().unwrap_or_else(PoisonError::into_inner).1;
        let mut figures = vec![
            ("ssl_handshake_errors", self.handshake_errors.load(Relaxed)),
            ("time_since_server_cert_refresh", since.elapsed().as_secs()),
            ("ssl_handshakes_open", self.handshakes()),
        ];
        if self.options.session_cache {
            figures.insert(0, ("ssl_new_sessions", self.new_sessions.load(Relaxed)));
        }
        figures
    }

    fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).0)
    }
}

fn configure(options: &Options) -> Result<ServerConfig, String> {
    let chain_file = options.chain_cert.as_deref().ok_or(options::NO_CHAIN)?;
    let key_file = options.key.as_deref().unwrap_or(chain_file);
    let chain = certificates("ssl_chain_cert", chain_file)?;
    let key = private_key(key_file, options.key_is_der)?;
    let mut provider = rustls::crypto::ring::default_provider();
    if let Some(ciphers) = &options.ciphers {
        provider.cipher_suites.retain(|suite| {
            let newer = suite.version().version == ProtocolVersion::TLSv1_3;
            newer || ciphers.contains(&suite.suite())
        });
    }
    let provider = Arc::new(provider);
    let versions: &[_] = if options.min_version >= 3 {
        &[&rustls::version::TLS13]
    } else {
        &[&rustls::version::TLS13, &rustls::version::TLS12]
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| error.to_string())?;
    let builder = if options.verify_mode == 0 {
        builder.with_no_client_auth()
    } else {
        let file = options.ca_cert.as_deref().ok_or(options::NO_CA)?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates("ssl_ca_cert", file)? {
            roots.add(certificate).map_err(|error| {
                let file = file.display();
                format!("ssl_ca_cert {file}: a certificate is not usable: {error}")
            })?;
        }
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if options.verify_mode == 1 {
            verifier = verifier.allow_unauthenticated();
        }
        builder.with_client_cert_verifier(verifier.build().map_err(|error| error.to_string())?)
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        let (key, chain) = (key_file.display(), chain_file.display());
        match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => format!(
                "ssl_key {key} is not the key of ssl_chain_cert {chain}; name a pair, and the \
                 server's own certificate first in its file"
            ),
            error => format!("ssl_chain_cert {chain} with ssl_key {key}: {error}"),
        }
    })?;
    if options.session_cache {
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS_MAX);
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = content(option, file)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let wrong = |what: String| format!("{option} {}: {what}", file.display());
    let found = parsed.map_err(|error| wrong(format!("it is not PEM: {error}")))?;
    if found.is_empty() {
        return Err(wrong("it has no certificate; write them in PEM".to_owned()));
    }
    Ok(found)
}

fn private_key(file: &Path, is_der: bool) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = content("ssl_key", file)?;
    let wrong = |what| format!("ssl_key {}: {what}", file.display());
    if is_der {
        let what = "it is no key in DER; convert it, or leave ssl_keyformat out for PEM";
        return PrivateKeyDer::try_from(bytes).map_err(|_| wrong(what));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        wrong("it has no private key that can be read; write it in PEM, without a passphrase")
    })
}

fn content(option: &str, file: &Path) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let outcome =
        File::open(file).and_then(|opened| opened.take(FILE_MAX + 1).read_to_end(&mut content));
    match outcome {
        Ok(bytes) if bytes as u64 <= FILE_MAX => Ok(content),
        Ok(_) => Err(format!("{option} {}: it has more than {FILE_MAX} bytes", file.display())),
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "; refresh_certs reads it as the user of -u, who needs the right to"
                }
                io::ErrorKind::NotFound => "; name a file that is there",
                _ => "",
            };
            Err(format!("{option} {}: {error}{remedy}", file.display()))
        }
    }
}
