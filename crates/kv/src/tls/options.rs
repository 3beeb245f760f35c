//! memcached's options of TLS: `-Z`, and those of `-o` that begin with `ssl_`.

use std::path::PathBuf;

use rustls::CipherSuite;

/// The refusal of `-Z` without a certificate.
pub(super) const NO_CHAIN: &str = "-Z: name the certificate with -o ssl_chain_cert=FILE";
/// The refusal of `ssl_verify_mode` without a CA to trust.
pub(super) const NO_CA: &str =
    "-o ssl_verify_mode: name whose certificates clients show, with ssl_ca_cert=FILE";

const WBUF_KIB_MAX: usize = 1024;

/// Cipher suites of TLS 1.2, by the names that `ssl_ciphers` gives them.
const CIPHERS: [(&str, CipherSuite); 6] = [
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// The options.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Whether TLS is on (`-Z`).
    pub enabled: bool,
    /// The file with the server's certificate and those that lead to its issuer.
    pub chain_cert: Option<PathBuf>,
    /// The file with the certificate's private key; none where that is in `chain_cert`.
    pub key: Option<PathBuf>,
    /// Whether the key is in DER instead of PEM.
    pub key_is_der: bool,
    /// Whether clients show certificates: 0 no, 1 if they have one, 2 and 3 yes.
    pub verify_mode: u8,
    /// The file with the certificates of the CAs that issue the clients'.
    pub ca_cert: Option<PathBuf>,
    /// The cipher suites of TLS 1.2 that are offered, if not all.
    pub ciphers: Option<Vec<CipherSuite>>,
    /// Maximum bytes of a connection that are encrypted ahead of its socket.
    pub wbuf_size: usize,
    /// Whether clients may resume sessions.
    pub session_cache: bool,
    /// The oldest version: 2 for TLS 1.2, 3 for TLS 1.3.
    pub min_version: u8,
    /// The first of these options that was given, other than `-Z`.
    said: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            enabled: false,
            chain_cert: None,
            key: None,
            key_is_der: false,
            verify_mode: 0,
            ca_cert: None,
            ciphers: None,
            wbuf_size: 16 << 10,
            session_cache: false,
            min_version: 2,
            said: None,
        }
    }
}

impl Options {
    /// Takes an option of `-o` that begins with `ssl_`.
    ///
    /// # Errors
    /// If no option has that name, or its value is not allowed.
    pub fn apply(&mut self, option: &str, warn: &mut dyn FnMut(String)) -> Result<(), String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        self.said.get_or_insert_with(|| name.to_owned());
        let takes_none = matches!(name, "ssl_session_cache" | "ssl_kernel_tls");
        if takes_none != value.is_empty() {
            let what = if takes_none { "takes no value" } else { "needs a value" };
            return Err(format!("-o {name} {what}"));
        }
        match name {
            "ssl_chain_cert" => self.chain_cert = Some(value.into()),
            "ssl_key" => self.key = Some(value.into()),
            "ssl_keyformat" => {
                self.key_is_der = match value {
                    "1" | "PEM" => false,
                    "2" | "DER" => true,
                    _ => return Err(format!("-o {option}: write 1 for PEM or 2 for DER")),
                };
            }
            "ssl_verify_mode" => {
                let mode = value.parse().ok().filter(|mode| *mode <= 3);
                self.verify_mode = mode.ok_or_else(|| {
                    format!("-o {option}: write 0 (none), 1 (request), 2 (require) or 3 (once)")
                })?;
            }
            "ssl_ca_cert" => self.ca_cert = Some(value.into()),
            "ssl_ciphers" => self.ciphers = Some(ciphers(value)?),
            "ssl_wbuf_size" => {
                let size = value.parse().ok().filter(|size| (1..=WBUF_KIB_MAX).contains(size));
                let size: usize = size.ok_or_else(|| {
                    format!("-o {option}: write a number of kibibytes from 1 to {WBUF_KIB_MAX}")
                })?;
                self.wbuf_size = size << 10;
            }
            "ssl_session_cache" => self.session_cache = true,
            "ssl_kernel_tls" => {
                warn("-o ssl_kernel_tls has no effect: the server encrypts by itself".to_owned());
            }
            "ssl_min_version" => {
                let version = value.parse().ok().filter(|version: &u8| *version <= 3);
                let version = version
                    .ok_or_else(|| format!("-o {option}: write 2 for TLS 1.2 or 3 for TLS 1.3"))?;
                if version < 2 {
                    warn(format!("-o {option}: there is nothing before TLS 1.2, which it is now"));
                }
                self.min_version = version.max(2);
            }
            _ => return Err(format!("unknown option -o {name}; -h lists those of TLS")),
        }
        Ok(())
    }

    /// Checks whether the options go together, once all are known.
    ///
    /// # Errors
    /// If something is missing: the text says what.
    pub fn check(&self, warn: &mut dyn FnMut(String)) -> Result<(), String> {
        match &self.said {
            Some(said) if !self.enabled => {
                return Err(format!("-o {said}: TLS is off; add -Z, or leave the option out"));
            }
            _ if !self.enabled => return Ok(()),
            _ => {}
        }
        if self.chain_cert.is_none() {
            return Err(NO_CHAIN.to_owned());
        }
        if self.verify_mode > 0 && self.ca_cert.is_none() {
            return Err(NO_CA.to_owned());
        }
        if self.verify_mode == 0 && self.ca_cert.is_some() {
            warn("-o ssl_ca_cert has no effect without ssl_verify_mode".to_owned());
        }
        if self.min_version == 3 && self.ciphers.is_some() {
            warn("-o ssl_ciphers has no effect on TLS 1.3, and there is no other".to_owned());
        }
        Ok(())
    }

    /// Lines for `stats settings`, with memcached's names.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let yes = |on: bool| if on { "yes" } else { "no" }.to_owned();
        let path = |file: &Option<PathBuf>| {
            file.as_ref().map_or("NULL".to_owned(), |file| file.display().to_string())
        };
        let name = |suite: &CipherSuite| CIPHERS.iter().find(|(_, own)| own == suite);
        let ciphers = self.ciphers.as_ref().map(|ciphers| {
            let names: Vec<&str> = ciphers.iter().filter_map(name).map(|(name, _)| *name).collect();
            names.join(":")
        });
        vec![
            ("ssl_chain_cert", path(&self.chain_cert)),
            ("ssl_key", path(if self.key.is_some() { &self.key } else { &self.chain_cert })),
            ("ssl_verify_mode", self.verify_mode.to_string()),
            ("ssl_keyformat", if self.key_is_der { "2" } else { "1" }.to_owned()),
            ("ssl_ciphers", ciphers.unwrap_or("NULL".to_owned())),
            ("ssl_ca_cert", path(&self.ca_cert)),
            ("ssl_wbuf_size", self.wbuf_size.to_string()),
            ("ssl_session_cache", yes(self.session_cache)),
            ("ssl_kernel_tls", yes(false)),
            ("ssl_min_version", format!("tlsv1.{}", self.min_version)),
        ]
    }
}

/// The cipher suites of a list of names with colons between them.
fn ciphers(list: &str) -> Result<Vec<CipherSuite>, String> {
    let one = |name: &str| {
        let found = CIPHERS.iter().find(|(own, _)| *own == name);
        found.map(|(_, suite)| *suite).ok_or_else(|| {
            let all: Vec<&str> = CIPHERS.iter().map(|(name, _)| *name).collect();
            format!("-o ssl_ciphers: there is no {name:?}; write of these: {}", all.join(":"))
        })
    };
    list.split(':').map(one).collect()
}
