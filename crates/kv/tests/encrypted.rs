//! TLS: the server answers as it does without. A client without access is refused or disconnected
//! in bounded time.

mod common;

use common::{Client, Server};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use terrace_testkit::port;
use terrace_testkit::process::is_root;
use terrace_testkit::random::Congruential;
use terrace_testkit::skipping::skip;
use terrace_testkit::wait::Wait;

/// Time limit for an awaited event.
const PATIENCE: Duration = Duration::from_secs(30);
const WAIT: Wait = Wait::within(PATIENCE);

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

/// An issuer of certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut about = CertificateParams::new(Vec::new()).expect("no names");
        about.distinguished_name.push(DnType::CommonName, name);
        about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = about.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(about, key), pem }
    }

    /// Issues a certificate and its key, in PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let about = CertificateParams::new([name.to_owned()]).expect("a name");
        let certificate = about.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// The configuration of a client that trusts the issuer.
    fn client(&self, own: Option<(String, String)>, version: u8) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("it is PEM");
        roots.add(root).expect("it is an authority's");
        let versions = match version {
            2 => [&rustls::version::TLS12],
            _ => [&rustls::version::TLS13],
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .expect("there is such a version")
            .with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                let chain = vec![certificate.expect("a certificate")];
                builder.with_client_auth_cert(chain, key).expect("they belong together")
            }
        })
    }
}

/// A server with TLS on one port, and without on another one.
struct Both {
    server: Server,
    tls: u16,
    plain: u16,
}

/// Whether this server answers. Another test's may have taken the port.
fn is_of(pid: u32, socket: TcpStream) -> bool {
    let asked =
        socket.set_read_timeout(Some(PATIENCE)).and_then(|()| (&socket).write_all(b"stats\r\n"));
    let lines = BufReader::new(socket).lines().map_while(Result::ok);
    let pids = lines
        .take_while(|line| line != "END")
        .find_map(|line| line.strip_prefix("STAT pid ").and_then(|pid| pid.parse::<u32>().ok()));
    asked.is_ok() && pids == Some(pid)
}

impl Both {
    fn start(options: &str, flags: &[&str]) -> Both {
        let begun = Instant::now();
        loop {
            let [tls, plain] = [(); 2].map(|()| port::free().expect("a free port"));
            let listen = format!("127.0.0.1:{tls},notls:127.0.0.1:{plain}");
            let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-kv"));
            command.args(["-Z", "-t", "2", "-l", &listen, "-o", options]).args(flags);
            let mut server = Server::of(command);
            // Another test may have taken a port meanwhile.
            while server.0.try_wait().expect("it is our child").is_none() {
                if let Ok(socket) = TcpStream::connect(("127.0.0.1", plain))
                    && is_of(server.0.id(), socket)
                {
                    return Both { server, tls, plain };
                }
                assert!(begun.elapsed() < PATIENCE, "the server does not listen");
                thread::sleep(Duration::from_millis(20));
            }
            assert!(begun.elapsed() < PATIENCE, "the server does not start");
        }
    }

    fn socket(port: u16) -> TcpStream {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        socket.set_nodelay(true).expect("it is a TCP socket");
        socket
    }

    fn client(&self, config: &Arc<ClientConfig>) -> Client<Encrypted> {
        let name = "localhost".try_into().expect("it is a name");
        let session = ClientConnection::new(Arc::clone(config), name).expect("a session");
        let stream = StreamOwned::new(session, Both::socket(self.tls));
        Client { stream: BufReader::new(stream) }
    }

    fn plain_client(&self) -> Client<TcpStream> {
        Client { stream: BufReader::new(Both::socket(self.plain)) }
    }

    /// Whether a client of that kind is served.
    fn admits(&self, config: &Arc<ClientConfig>) -> bool {
        let mut client = self.client(config);
        let mut answer = [0; 8];
        let outcome = client.stream.get_mut().write_all(b"version\r\n");
        outcome.and_then(|()| client.stream.read_exact(&mut answer)).is_ok()
            && &answer == b"VERSION "
    }
}

/// A directory with the server's certificate and key, and the options that name them.
struct Files {
    directory: tempfile::TempDir,
    chain: PathBuf,
    key: PathBuf,
}

impl Files {
    fn of(authority: &Authority) -> Files {
        let directory = tempfile::tempdir().expect("a directory");
        let (chain, key) = (directory.path().join("chain.pem"), directory.path().join("key.pem"));
        let files = Files { directory, chain, key };
        files.replace(authority);
        std::fs::write(files.authority(), &authority.pem).expect("it can be written");
        files
    }

    fn replace(&self, authority: &Authority) {
        let (certificate, key) = authority.issue("localhost");
        std::fs::write(&self.chain, certificate).expect("it can be written");
        std::fs::write(&self.key, key).expect("it can be written");
    }

    fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    fn options(&self) -> String {
        format!("ssl_chain_cert={},ssl_key={}", self.chain.display(), self.key.display())
    }
}

/// A value that is known from its key.
fn value(key: usize, bytes: usize) -> Vec<u8> {
    format!("{key}:").bytes().cycle().take(bytes).collect()
}

#[test]
fn requests_are_answered_as_without_tls() {
    const LARGE: usize = (1 << 20) - 200;
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    let both = Both::start(&files.options(), &["-m", "128"]);
    for version in [2, 3] {
        let mut client = both.client(&authority.client(None, version));
        for (key, bytes) in [0, 1, 100, 16_384, 16_385, 100_000, LARGE].into_iter().enumerate() {
            let name = format!("{version}-{key}");
            assert_eq!(client.set(&name, 0, &value(key, bytes)), "STORED");
            assert_eq!(client.get(&name), Some(value(key, bytes)), "{bytes} bytes");
        }
        // Many requests at once, in pieces that end anywhere.
        let mut requests = Vec::new();
        for key in 0..3000 {
            requests.extend(format!("set p{key} 0 0 {}\r\n", key % 300).bytes());
            requests.extend(value(key, key % 300));
            requests.extend(format!("\r\nget p{key}\r\n").bytes());
        }
        let half = requests.len() / 2 + 7;
        client.send(&requests[..half]);
        client.stream.get_mut().flush().expect("it can be sent");
        client.send(&requests[half..]);
        for key in 0..3000 {
            assert_eq!(client.line(), "STORED");
            assert_eq!(client.value(), Some(value(key, key % 300)));
        }
        // Far more answers than the socket takes, for a client that reads late.
        let name = format!("get {version}-6\r\n");
        client.send(name.repeat(20).as_bytes());
        client.stream.get_mut().flush().expect("it can be sent");
        thread::sleep(Duration::from_millis(300));
        for _ in 0..20 {
            assert_eq!(client.value(), Some(value(6, LARGE)));
        }
        client.send(b"quit\r\n");
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).expect("the end is told, and no truncation");
        assert!(rest.is_empty());
    }
}

#[test]
fn a_listener_without_tls_has_the_same_items() {
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    let both = Both::start(&files.options(), &[]);
    let mut encrypted = both.client(&authority.client(None, 3));
    let mut plain = both.plain_client();
    assert_eq!(encrypted.set("a", 0, b"one"), "STORED");
    assert_eq!(plain.get("a").as_deref(), Some(b"one".as_slice()));
    assert_eq!(plain.set("b", 0, b"two"), "STORED");
    assert_eq!(encrypted.get("b").as_deref(), Some(b"two".as_slice()));
    // A client that does not encrypt is told.
    let mut lost = Client { stream: BufReader::new(Both::socket(both.tls)) };
    lost.send(b"get a\r\n");
    assert_eq!(lost.line(), "CLIENT_ERROR this port is for TLS only");
    assert_eq!(lost.line(), "", "and closed");
    assert_eq!(plain.stat("ssl_handshake_errors"), 1);
    plain.send(b"stats settings\r\n");
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line| line != "END") {
        lines.push(plain.line());
    }
    let chain = format!("STAT ssl_chain_cert {}", files.chain.display());
    for line in ["STAT ssl_enabled yes", &chain, "STAT ssl_min_version tlsv1.2"] {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:?}");
    }
}

#[test]
fn certificates_are_read_again_for_new_connections() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let files = Files::of(&old);
    let both = Both::start(&files.options(), &[]);
    let mut before = both.client(&old.client(None, 3));
    assert_eq!(before.set("a", 0, b"one"), "STORED");
    files.replace(&new);
    assert!(both.admits(&old.client(None, 3)) && !both.admits(&new.client(None, 3)));
    assert_eq!(before.ask("refresh_certs"), "OK");
    assert!(!both.admits(&old.client(None, 3)) && both.admits(&new.client(None, 3)));
    assert_eq!(before.get("a").as_deref(), Some(b"one".as_slice()));
    // Files with errors change nothing.
    std::fs::write(&files.key, "no key").expect("it can be written");
    let said = before.ask("refresh_certs");
    assert!(said.starts_with("SERVER_ERROR ssl_key ") && said.contains("no private key"), "{said}");
    assert!(both.admits(&new.client(None, 3)));
    assert!(before.stat("time_since_server_cert_refresh") < 60);
}

#[test]
fn clients_show_certificates_as_the_mode_says() {
    let (authority, foreign) = (Authority::new("one"), Authority::new("foreign"));
    let files = Files::of(&authority);
    let known = authority.client(Some(authority.issue("client")), 3);
    let known_by_older = authority.client(Some(authority.issue("client")), 2);
    let unknown = authority.client(Some(foreign.issue("client")), 3);
    let none = authority.client(None, 3);
    for (mode, without) in [(0, true), (1, true), (2, false), (3, false)] {
        let options = match mode {
            0 => files.options(),
            _ => format!(
                "{},ssl_verify_mode={mode},ssl_ca_cert={}",
                files.options(),
                files.authority().display()
            ),
        };
        let both = Both::start(&options, &[]);
        assert!(both.admits(&known) && both.admits(&known_by_older), "mode {mode}");
        assert_eq!(both.admits(&none), without, "mode {mode}");
        // A client that is not asked shows no certificate.
        assert_eq!(both.admits(&unknown), mode == 0, "mode {mode}");
        let refused = u64::from(!without) + u64::from(mode != 0);
        let mut plain = both.plain_client();
        // A client sees the alert before the server closes and counts.
        WAIT.until("all are counted", || plain.stat("ssl_handshake_errors") == refused);
    }
}

#[test]
fn sessions_are_resumed_only_where_they_are_kept() {
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    for (option, second) in
        [("", HandshakeKind::Full), (",ssl_session_cache", HandshakeKind::Resumed)]
    {
        let both = Both::start(&format!("{}{option}", files.options()), &[]);
        for version in [2, 3] {
            let config = authority.client(None, version);
            for expected in [HandshakeKind::Full, second] {
                let mut client = both.client(&config);
                assert!(client.ask("version").starts_with("VERSION"));
                let kind = client.stream.get_ref().conn.handshake_kind();
                assert_eq!(kind, Some(expected), "TLS 1.{version}{option}");
            }
        }
        let new = both.plain_client().stat("ssl_new_sessions");
        assert_eq!(new, if option.is_empty() { 0 } else { 2 });
    }
}

/// Whether the server closes the connection, within the time that a test has.
fn is_closed(mut socket: &TcpStream) -> bool {
    let mut room = [0; 4096];
    loop {
        match socket.read(&mut room) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn noise_ends_its_own_connection_only() {
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    let mut both = Both::start(&files.options(), &[]);
    let config = authority.client(None, 3);
    let mut other = both.client(&config);
    assert_eq!(other.set("a", 0, b"one"), "STORED");
    let mut random = Congruential::with_increment(7, 1_442_695);
    let mut noise =
        |len: usize| -> Vec<u8> { (0..len).map(|_| (random.draw() >> 56) as u8).collect() };
    let mut faulty = Vec::new();
    for len in [1, 5, 100, 5000, 100_000] {
        faulty.push([vec![200], noise(len)].concat());
        // A handshake's record, with a length that is right, and one that is too long.
        let size = (len as u16).to_be_bytes();
        faulty.push([vec![22, 3, 1], size.to_vec(), noise(len)].concat());
        faulty.push([vec![22, 3, 1, 255, 255], noise(len)].concat());
    }
    faulty.push(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec());
    for bytes in &faulty {
        let mut socket = Both::socket(both.tls);
        // It may be closed while this is written.
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        assert!(is_closed(&socket), "{:?}…", &bytes[..bytes.len().min(8)]);
    }
    // After a correct handshake: a text that is no record, and a record that was not encrypted.
    for bytes in [noise(100), [vec![23, 3, 3, 0, 64], noise(64)].concat()] {
        let mut client = both.client(&config);
        assert_eq!(client.get("a").as_deref(), Some(b"one".as_slice()));
        let mut socket = &client.stream.get_ref().sock;
        socket.write_all(&bytes).expect("the server reads");
        assert!(is_closed(socket));
    }
    // Behind requests that are right, with no more to come that would wake the server.
    let mut client = both.client(&config);
    assert_eq!(client.get("a").as_deref(), Some(b"one".as_slice()));
    let mut bytes = Vec::new();
    for len in [2900, 2000] {
        let session = &mut client.stream.get_mut().conn;
        let request =
            [format!("set b 0 0 {len} noreply\r\n").as_bytes(), &value(1, len), b"\r\n"].concat();
        session.writer().write_all(&request).expect("memory takes all");
        session.write_tls(&mut bytes).expect("memory takes all");
    }
    bytes.extend([23, 3, 3, 0, 64]);
    bytes.extend(noise(64));
    let mut socket = &client.stream.get_ref().sock;
    socket.write_all(&bytes).expect("the server reads");
    assert!(is_closed(socket));
    assert_eq!(other.get("b").map(|value| value.len()), Some(2900));
    // Cut off in the middle of a handshake, and of a value.
    let hello = {
        let mut client = both.client(&config);
        let mut bytes = Vec::new();
        client.stream.get_mut().conn.write_tls(&mut bytes).expect("memory takes all");
        bytes
    };
    Both::socket(both.tls).write_all(&hello[..hello.len() / 2]).expect("the server reads");
    let mut client = both.client(&config);
    client.send(b"set a 0 0 100\r\nbroken");
    drop(client);
    assert_eq!(other.get("a").as_deref(), Some(b"one".as_slice()));
    assert!(both.server.0.try_wait().expect("it is our child").is_none());
    let mut plain = both.plain_client();
    WAIT.until("all is closed", || plain.stat("curr_connections") == 2);
    assert_eq!(plain.stat("ssl_handshakes_open"), 0);
    assert!(plain.stat("ssl_handshake_errors") >= faulty.len() as u64);
}

#[test]
fn silent_handshakes_are_few_and_do_not_last() {
    const CONNECTIONS: usize = 40;
    // A quarter of -c.
    const MOST: u64 = 10;
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    let both = Both::start(&files.options(), &["-c", &CONNECTIONS.to_string()]);
    let config = authority.client(None, 3);
    let mut early = both.client(&config);
    assert_eq!(early.set("a", 0, b"one"), "STORED");
    let mut plain = both.plain_client();
    let silent: Vec<TcpStream> = (0..3 * MOST).map(|_| Both::socket(both.tls)).collect();
    // Two threads may both take one more.
    WAIT.until("handshakes are begun", || plain.stat("ssl_handshakes_open") >= MOST);
    assert!(plain.stat("ssl_handshakes_open") < MOST + 2);
    // A connected client is served, and others do not wait for long.
    assert_eq!(early.get("a").as_deref(), Some(b"one".as_slice()));
    let begun = Instant::now();
    assert!(both.admits(&config), "a client behind {} silent ones", silent.len());
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(silent.iter().take(MOST as usize).all(is_closed));
    drop(silent);
    WAIT.until("all is closed", || plain.stat("curr_connections") == 2);
    assert_eq!(plain.stat("ssl_handshakes_open"), 0);
    // Alone, it has ten seconds; a byte now and then gives it no more.
    let begun = Instant::now();
    let mut slow = Both::socket(both.tls);
    WAIT.until("it is closed", || {
        thread::sleep(Duration::from_millis(300));
        let byte = if begun.elapsed() < Duration::from_millis(500) { 22 } else { 3 };
        slow.write_all(&[byte]).is_err() || plain.stat("ssl_handshakes_open") == 0
    });
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn an_idle_session_is_small() {
    const CLIENTS: usize = 500;
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    let both = Both::start(&files.options(), &["-c", "2000"]);
    let config = authority.client(None, 3);
    assert!(both.admits(&config));
    let before = common::kibibytes(&both.server, "VmRSS");
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut client = both.client(&config);
            assert_eq!(client.set(&format!("key{number}"), 0, &value(number, 5000)), "STORED");
            client
        })
        .collect();
    let each = (common::kibibytes(&both.server, "VmRSS") - before) as f64 / CLIENTS as f64;
    println!("{each:.1} KiB for each connection and its item of 5 KB");
    assert!(each < 64.0, "{each} KiB for each connection and its item of 5 KB");
    drop(clients);
}

fn said_by(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-kv"));
    // If all else were right, there is no such user.
    command.args(["-l", "127.0.0.1", "-p", "1", "-u", "nobody at all"]);
    command.args(options).output().expect("it starts")
}

#[test]
fn what_cannot_be_used_is_told_with_its_remedy() {
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    let other = Files::of(&authority);
    let empty = files.directory.path().join("empty");
    std::fs::write(&empty, "").expect("it can be written");
    let chain = format!("ssl_chain_cert={}", files.chain.display());
    let with = |rest: &str| format!("{chain},{rest}");
    let path = |file: &Path| file.display().to_string();
    let cases = [
        (true, String::new(), "-o ssl_chain_cert=FILE"),
        (false, files.options(), "add -Z"),
        (true, "ssl_chain_cert=/no/such/file".to_owned(), "name a file that is there"),
        (true, format!("ssl_chain_cert={}", path(&empty)), "no certificate"),
        (true, chain.clone(), "no private key"),
        (true, with("ssl_key=/no/such/file"), "ssl_key /no/such/file"),
        (true, with(&format!("ssl_key={}", path(&empty))), "without a passphrase"),
        (true, with(&format!("ssl_key={}", path(&other.key))), "is not the key of"),
        (true, format!("{},ssl_keyformat=2", files.options()), "no key in DER"),
        (true, format!("{},ssl_keyformat=ENGINE", files.options()), "1 for PEM or 2 for DER"),
        (true, format!("{},ssl_verify_mode=2", files.options()), "ssl_ca_cert=FILE"),
        (true, format!("{},ssl_verify_mode=4", files.options()), "0 (none)"),
        (
            true,
            format!("{},ssl_verify_mode=2,ssl_ca_cert={}", files.options(), path(&empty)),
            "no certificate",
        ),
        (true, format!("{},ssl_ciphers=HIGH", files.options()), "ECDHE-RSA-AES128-GCM-SHA256"),
        (true, format!("{},ssl_wbuf_size=0", files.options()), "from 1 to"),
        (true, format!("{},ssl_min_version=x", files.options()), "3 for TLS 1.3"),
        (true, format!("{},ssl_nothing=1", files.options()), "unknown option -o ssl_nothing"),
    ];
    for (on, options, says) in cases {
        let mut flags = if on { vec!["-Z"] } else { Vec::new() };
        if !options.is_empty() {
            flags.extend(["-o", &options]);
        }
        let output = said_by(&flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{flags:?}: {said}");
    }
    let output = said_by(&["-Z", "-s", "/tmp/x", "-o", &files.options()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("Unix socket"));
}

#[test]
fn the_key_is_read_before_the_rights_of_root_are_given_up() {
    if !is_root() {
        return skip("only root has rights to give up");
    }
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&files.key, mode).expect("it is ours");
    let both = Both::start(&files.options(), &["-u", "nobody"]);
    let mut client = both.client(&authority.client(None, 3));
    assert_eq!(client.set("a", 0, b"one"), "STORED");
    let said = client.ask("refresh_certs");
    assert!(said.contains("Permission denied") && said.contains("the user of -u"), "{said}");
    assert!(both.admits(&authority.client(None, 3)));
}

#[test]
fn the_oldest_version_and_the_suites_are_as_said() {
    let authority = Authority::new("one");
    let files = Files::of(&authority);
    let both = Both::start(&format!("{},ssl_min_version=3", files.options()), &[]);
    assert!(both.admits(&authority.client(None, 3)) && !both.admits(&authority.client(None, 2)));
    let suites = "ssl_ciphers=ECDHE-ECDSA-CHACHA20-POLY1305";
    let both = Both::start(&format!("{},{suites}", files.options()), &[]);
    let mut client = both.client(&authority.client(None, 2));
    assert!(client.ask("version").starts_with("VERSION"));
    let suite = client.stream.get_ref().conn.negotiated_cipher_suite().expect("there is one");
    let wanted = rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
    assert_eq!(suite.suite(), wanted);
    assert!(both.admits(&authority.client(None, 3)));
}
