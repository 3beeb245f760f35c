//! The flags that the server is started with. They are memcached's.

use std::path::{Path, PathBuf};

use crate::auth::Accounts;
use crate::tls::options::Options;
use terrace_control::settings::{Dram, Knob};
use terrace_policy::slowdown::Target;

/// What `version` answers. Clients look for memcached's number at its beginning.
pub const VERSION: &str = concat!("1.6.18-terrace-", env!("CARGO_PKG_VERSION"));

/// What `-h` prints.
pub const HELP: &str = "\
terrace-kv: a server that speaks memcached's text and meta protocols
-p, --port=<num>          TCP port to listen on (default: 11211)
-U, --udp-port=<num>      accepted; there is no UDP
-s, --unix-socket=<file>  UNIX socket to listen on (disables network support)
-a, --unix-mask=<mask>    access mask for UNIX socket, in octal (default: 700)
-A, --enable-shutdown     enable the shutdown command
-l, --listen=<addr>       interface to listen on (default: all); notls:<addr> without TLS
-m, --memory-limit=<num>  item memory in mebibytes (default: 64)
-M, --disable-evictions   return an error when memory is exhausted
-c, --conn-limit=<num>    most connections at a time (default: 1024)
-t, --threads=<num>       number of threads (default: 4)
-R, --max-reqs-per-event  requests before another connection's turn (default: 20)
-C, --disable-cas         disable use of CAS
-b, --listen-backlog=<n>  backlog of the listening socket (default: 1024)
-B, --protocol=<name>     auto or ascii
-I, --max-item-size=<num> most bytes of an item, with k or m (default: 1m)
-F, --disable-flush-all   disable the flush_all command
-X, --disable-dumping     disable stats cachedump and lru_crawler metadump
-D <char>                 prefix delimiter of detailed statistics
-u, --user=<user>         user to become when started as root
-P, --pidfile=<file>      write the process id to a file, which is removed at the end
-Y, --auth-file=<file>    clients must authenticate: lines of user:password, read at the start
                          and again on SIGHUP
-Z, --enable-ssl          enable TLS/SSL
    --dram=<size|share>   DRAM for items, such as 512M or 30%; colder ones are compressed
    --slowdown=<share>    as little DRAM for items as costs no more time, such as 2%, or off;
                          beside --dram, which stays the limit (default: off)
    --knob=<a>            a model puts every region into a tier: from 1, all speed, to 0, all
                          saving; beside --dram, which stays the limit
    --tiers=<list>        where they go, as with `terrace run` (default: dram,lz4,zstd:1)
-o, --extended            idle_timeout=<s> closes connections that are silent for so many seconds
                          (default: 0, never);
                          items=<n> makes the index for that many items, and is a limit, instead
                          of one for the memory limit; consolidate and no_consolidate bring hot
                          items together, or do not (default: no_consolidate); memcached's others
                          are warned of, as they have no effect. With -Z:
   - ssl_chain_cert:      certificate chain file in PEM format
   - ssl_key:             private key, if not part of the ssl_chain_cert
   - ssl_keyformat:       1 for PEM, 2 for DER (default: 1)
   - ssl_verify_mode:     whether clients show certificates: 0(None), 1(Request), 2(Require),
                          or 3(Once), which is as 2 (default: 0)
   - ssl_ca_cert:         PEM format file of acceptable client CA's
   - ssl_ciphers:         names of TLS 1.2's, with colons between them (default: all)
   - ssl_wbuf_size:       kibibytes of a connection encrypted ahead (default: 16)
   - ssl_session_cache:   clients may resume sessions
   - ssl_min_version:     2(tlsv1.2) or 3(tlsv1.3) (default: 2)
-v, -vv, --verbose        write more about the work
-i, --license             print the licence and exit
-V, --version             print the version and exit
-h, --help                print this help and exit
Options of memcached that are warned of, as they have no effect: -f -k -L -n -N -r -W
";

const LICENCE: &str = concat!("terrace-kv is licensed as ", env!("CARGO_PKG_LICENSE"), "\n");

/// Flags of memcached without effect here, and why.
const WITHOUT_EFFECT: &[(char, &str)] = &[
    ('f', "there are no slab classes"),
    ('k', "memory that is locked could not leave DRAM"),
    ('L', "segments are of small pages, which can leave DRAM"),
    ('n', "there are no slab classes"),
    ('N', "connections go to the thread that has the fewest"),
    ('r', "`ulimit -c unlimited` allows core files"),
    ('W', "there is no `watch` that could be disabled"),
];

/// Extended options of memcached without effect here; each may have `no_` before it.
const EXTENDED_WITHOUT_EFFECT: &[&str] = &[
    "chunked_items",
    "drop_privileges",
    "hash_algorithm",
    "hashexpand",
    "hashpower",
    "hot_lru_pct",
    "hot_max_factor",
    "inline_ascii_resp",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "lru_segmented",
    "maxconns_fast",
    "read_buf_mem_limit",
    "read_obj_mem_limit",
    "resp_obj_mem_limit",
    "slab_automove",
    "slab_automove_freeratio",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_chunk_max",
    "slab_reassign",
    "slab_sizes",
    "sock_cookie_id",
    "tail_repair_time",
    "temporary_ttl",
    "track_sizes",
    "warm_lru_pct",
    "warm_max_factor",
    "watcher_logbuf_size",
    "worker_logbuf_size",
];

const ITEM_SIZE_MIN: usize = 1 << 10;
const ITEM_SIZE_MAX: usize = 1 << 30;
/// One over the share of the memory limit above which memcached takes no item.
const ITEM_SHARE: usize = 2;
const ITEMS: std::ops::RangeInclusive<usize> = 1..=1 << 32;
const THREADS_MAX: usize = 1024;

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The TCP port; 0 for none, as with memcached.
    pub port: u16,
    /// The addresses to listen on; none for all.
    pub listen: Vec<String>,
    /// The Unix socket to listen on.
    pub socket: Option<PathBuf>,
    /// Access rights of the Unix socket.
    pub socket_mask: u32,
    /// The user to become, where the server is started as root.
    pub user: Option<String>,
    /// The accounts of the users; none where no client need authenticate.
    pub accounts: Option<Accounts>,
    /// The file that the accounts were read from.
    pub auth_file: Option<PathBuf>,
    /// The file for the process id.
    pub pid_file: Option<PathBuf>,
    /// Seconds after which a silent connection is closed; 0 for never.
    pub idle_timeout: u32,
    /// TLS.
    pub tls: Options,
    /// Bytes of memory for items.
    pub memory_limit: usize,
    /// Whether old items make room for new ones.
    pub evictions: bool,
    /// Maximum number of connections.
    pub connections_max: u64,
    /// Threads.
    pub threads: usize,
    /// Maximum bytes of an item.
    pub item_size_max: usize,
    /// Requests of one connection before another one's turn.
    pub requests_per_event: usize,
    /// Connections that the kernel queues.
    pub backlog: u32,
    /// Verbosity of the log.
    pub verbosity: u32,
    /// Whether clients see CAS identifiers.
    pub cas: bool,
    /// Whether `flush_all` is allowed.
    pub flush: bool,
    /// Whether items are listed: `stats cachedump` and `lru_crawler metadump`.
    pub dump: bool,
    /// Whether `shutdown` is allowed.
    pub shutdown: bool,
    /// What ends a key's prefix.
    pub delimiter: u8,
    /// Whether prefixes are counted.
    pub detail: bool,
    /// Whether `debugtime` moves the clock.
    pub debug_time: bool,
    /// Bytes that count as used from the beginning, for tests.
    pub used_from_start: usize,
    /// Expected number of items, for the size of the index, if given.
    pub items: Option<usize>,
    /// Whether hot items are brought together.
    pub consolidate: bool,
    /// DRAM for items; the rest of them is in tiers.
    pub dram: Dram,
    /// The loss of time to which DRAM for items is fitted, if set.
    pub slowdown: Option<Target>,
    /// The knob of the model that places regions, if one does.
    pub knob: Option<Knob>,
    /// The tiers, if not the pager's own choice.
    pub tiers: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            port: 11211,
            listen: Vec::new(),
            socket: None,
            user: None,
            accounts: None,
            auth_file: None,
            pid_file: None,
            idle_timeout: 0,
            tls: Options::default(),
            socket_mask: 0o700,
            memory_limit: 64 << 20,
            evictions: true,
            connections_max: 1024,
            threads: 4,
            item_size_max: 1 << 20,
            requests_per_event: 20,
            backlog: 1024,
            verbosity: 0,
            cas: true,
            flush: true,
            dump: true,
            shutdown: false,
            delimiter: b':',
            detail: false,
            debug_time: false,
            used_from_start: 0,
            items: None,
            consolidate: false,
            dram: Dram::Unlimited,
            slowdown: None,
            knob: None,
            tiers: None,
        }
    }
}

/// The action that the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// To serve.
    Serve(Box<Settings>),
    /// To print a text and end.
    Print(String),
}

/// Stands for options without a letter: characters that cannot be written on a command line.
const DRAM: char = '\u{1}';
const TIERS: char = '\u{2}';
const SLOWDOWN: char = '\u{3}';
const KNOB: char = '\u{4}';
const WITH_VALUE: &str = "pUslamctRbBIDuoYPfnNe\u{1}\u{2}\u{3}\u{4}";
const LONG: &[(&str, char)] = &[
    ("port", 'p'),
    ("udp-port", 'U'),
    ("unix-socket", 's'),
    ("unix-mask", 'a'),
    ("enable-shutdown", 'A'),
    ("listen", 'l'),
    ("memory-limit", 'm'),
    ("disable-evictions", 'M'),
    ("conn-limit", 'c'),
    ("threads", 't'),
    ("max-reqs-per-event", 'R'),
    ("disable-cas", 'C'),
    ("listen-backlog", 'b'),
    ("protocol", 'B'),
    ("max-item-size", 'I'),
    ("disable-flush-all", 'F'),
    ("disable-dumping", 'X'),
    ("user", 'u'),
    ("auth-file", 'Y'),
    ("pidfile", 'P'),
    ("lock-memory", 'k'),
    ("enable-coredumps", 'r'),
    ("enable-largepages", 'L'),
    ("slab-growth-factor", 'f'),
    ("slab-min-size", 'n'),
    ("napi-ids", 'N'),
    ("disable-watch", 'W'),
    ("enable-sasl", 'S'),
    ("memory-file", 'e'),
    ("license", 'i'),
    ("enable-ssl", 'Z'),
    ("extended", 'o'),
    ("verbose", 'v'),
    ("version", 'V'),
    ("help", 'h'),
    ("daemon", 'd'),
    ("dram", DRAM),
    ("tiers", TIERS),
    ("slowdown", SLOWDOWN),
    ("knob", KNOB),
];

/// Reads the command line. `warn` gets a line for each option that has no effect.
pub fn parse(
    arguments: impl IntoIterator<Item = String>,
    warn: &mut dyn FnMut(String),
) -> Result<Command, String> {
    let mut settings = Settings::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let flag = LONG.iter().find(|(long, _)| *long == name);
            let Some(&(_, flag)) = flag else {
                return Err(format!("unknown option --{name}; -h lists the options"));
            };
            let value = match value {
                None if WITH_VALUE.contains(flag) => arguments.next(),
                value => value,
            };
            if let Some(text) = settings.apply(flag, value, warn)? {
                return Ok(Command::Print(text));
            }
        } else if let Some(flags) = argument.strip_prefix('-').filter(|flags| !flags.is_empty()) {
            for (place, flag) in flags.char_indices() {
                let takes_value = WITH_VALUE.contains(flag);
                let rest = &flags[place + flag.len_utf8()..];
                let value = match (takes_value, rest.is_empty()) {
                    (true, true) => arguments.next(),
                    (true, false) => Some(rest.to_owned()),
                    (false, _) => None,
                };
                if let Some(text) = settings.apply(flag, value, warn)? {
                    return Ok(Command::Print(text));
                }
                if takes_value {
                    break;
                }
            }
        } else {
            return Err(format!("unexpected argument {argument:?}; -h lists the options"));
        }
    }
    settings.check()?;
    settings.tls.check(warn)?;
    Ok(Command::Serve(Box::new(settings)))
}

impl Settings {
    fn apply(
        &mut self,
        flag: char,
        value: Option<String>,
        warn: &mut dyn FnMut(String),
    ) -> Result<Option<String>, String> {
        if WITH_VALUE.contains(flag) && value.is_none() {
            return Err(format!("option -{flag} needs a value"));
        }
        let value = value.unwrap_or_default();
        match flag {
            'p' => self.port = parsed(flag, &value)?,
            'U' => {
                if parsed::<u32>(flag, &value)? != 0 {
                    warn("there is no UDP: -U has no effect".to_owned());
                }
            }
            's' => self.socket = Some(value.into()),
            'a' => {
                self.socket_mask = u32::from_str_radix(&value, 8)
                    .map_err(|_| format!("-a takes an octal number, not {value:?}"))?;
            }
            'A' => self.shutdown = true,
            'l' => self.listen.extend(value.split(',').map(str::to_owned)),
            'm' => {
                let mebibytes: usize = parsed(flag, &value)?;
                self.memory_limit = mebibytes.saturating_mul(1 << 20);
            }
            'M' => self.evictions = false,
            'c' => self.connections_max = parsed(flag, &value)?,
            't' => self.threads = parsed(flag, &value)?,
            'R' => self.requests_per_event = parsed::<usize>(flag, &value)?.max(1),
            'C' => self.cas = false,
            'b' => self.backlog = parsed(flag, &value)?,
            'B' if value == "auto" || value == "ascii" => {}
            'B' => return Err(format!("-B {value}: there are the text and meta protocols only")),
            'I' => self.item_size_max = size(&value)?,
            'F' => self.flush = false,
            'X' => self.dump = false,
            'D' => {
                self.delimiter = match value.as_bytes() {
                    [delimiter] => *delimiter,
                    _ => return Err("-D takes one character".to_owned()),
                };
                self.detail = true;
            }
            'u' => self.user = Some(value),
            'Z' => self.tls.enabled = true,
            'Y' => {
                self.accounts = Some(Accounts::read(Path::new(&value))?);
                self.auth_file = Some(value.into());
            }
            'P' => self.pid_file = Some(value.into()),
            'o' => {
                for option in value.split(',') {
                    self.apply_extended(option, warn)?;
                }
            }
            DRAM => self.dram = value.parse().map_err(|error| format!("--dram: {error}"))?,
            SLOWDOWN => self.slowdown = slowdown(&value)?,
            KNOB => {
                self.knob = Some(value.parse().map_err(|error| format!("--knob: {error}"))?);
            }
            TIERS => self.tiers = Some(value),
            'v' => self.verbosity += 1,
            'i' => return Ok(Some(LICENCE.to_owned())),
            'V' => return Ok(Some(format!("terrace-kv {VERSION}\n"))),
            'h' => return Ok(Some(HELP.to_owned())),
            'd' => {
                return Err("-d: the server stays in the foreground; a service manager or \
                            `setsid` puts it into the background"
                    .to_owned());
            }
            'S' => {
                return Err("-S: there is no SASL, which is of the binary protocol; -Y FILE has \
                            clients authenticate by text"
                    .to_owned());
            }
            'e' => {
                return Err(
                    "-e: no file holds items over a restart; --tiers dram,lz4,file:DIR puts \
                            cold ones into a file while the server runs"
                        .to_owned(),
                );
            }
            _ => match WITHOUT_EFFECT.iter().find(|(without, _)| *without == flag) {
                Some((_, why)) => warn(format!("option -{flag} has no effect: {why}")),
                None => return Err(format!("unknown option -{flag}; -h lists the options")),
            },
        }
        Ok(None)
    }

    fn apply_extended(&mut self, option: &str, warn: &mut dyn FnMut(String)) -> Result<(), String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "items" => self.items = Some(items(value)?),
            "idle_timeout" => {
                self.idle_timeout = value
                    .parse()
                    .map_err(|_| format!("-o idle_timeout={value}: write a number of seconds"))?;
            }
            "consolidate" => self.consolidate = true,
            "no_consolidate" => self.consolidate = false,
            "debug_time" => self.debug_time = true,
            "modern" | "no_modern" | "relaxed_privileges" => {}
            _ if name.starts_with("ssl_") => self.tls.apply(option, warn)?,
            _ => {
                let plain = name.strip_prefix("no_").unwrap_or(name);
                if !EXTENDED_WITHOUT_EFFECT.contains(&plain) && !name.starts_with("ext_") {
                    return Err(format!("unknown option -o {name}; -h lists the options"));
                }
                warn(format!("option -o {name} has no effect"));
            }
        }
        Ok(())
    }

    /// Whether anything may leave DRAM.
    pub fn moves(&self) -> bool {
        self.dram != Dram::Unlimited || self.slowdown.is_some() || self.knob.is_some()
    }

    fn check(&self) -> Result<(), String> {
        if self.slowdown.is_some() && self.knob.is_some() {
            return Err(
                "--slowdown and --knob: each says what may leave; leave one of them out".to_owned()
            );
        }
        if !(ITEM_SIZE_MIN..=ITEM_SIZE_MAX).contains(&self.item_size_max) {
            return Err("-I: an item is of 1 KiB to 1 GiB".to_owned());
        }
        if self.memory_limit == 0 || self.memory_limit > 1 << 44 {
            return Err("-m: the memory limit is of 1 MiB to 16 TiB".to_owned());
        }
        if self.item_size_max > self.memory_limit / ITEM_SHARE {
            return Err("-I: an item is at most half of the memory limit (-m)".to_owned());
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(format!("-t: 1 to {THREADS_MAX} threads"));
        }
        if self.tiers.is_some() && !self.moves() {
            return Err("--tiers: nothing goes there without a limit; say it with --dram, \
                        --slowdown or --knob"
                .to_owned());
        }
        if self.tls.enabled && self.socket.is_some() {
            return Err("-Z: a Unix socket (-s) has no TLS; leave one of them out".to_owned());
        }
        if self.connections_max == 0 {
            return Err("-c: at least one connection".to_owned());
        }
        Ok(())
    }
}

fn slowdown(text: &str) -> Result<Option<Target>, String> {
    if text == "off" {
        return Ok(None);
    }
    let target = text.parse().map(Some);
    target.map_err(|_| format!("--slowdown={text}: write a share from 0.1% to 100%, or off"))
}

fn items(text: &str) -> Result<usize, String> {
    let items = text.parse().ok().filter(|items| ITEMS.contains(items));
    items.ok_or_else(|| {
        format!("-o items={text}: write a number from {} to {}", ITEMS.start(), ITEMS.end())
    })
}

fn parsed<T: std::str::FromStr>(flag: char, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("-{flag} takes a number, not {value:?}"))
}

fn size(text: &str) -> Result<usize, String> {
    let wrong = || format!("-I takes bytes, or a number with k, m or g, not {text:?}");
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned), &mut |_| {})
    }

    #[test]
    fn flags_stand_apart_or_together() {
        let Ok(Command::Serve(settings)) =
            settings("-I512k -vvMm 128 --port=7 -o track_sizes,no_hashexpand")
        else {
            panic!("the flags are right");
        };
        assert_eq!(settings.item_size_max, 512 << 10);
        assert_eq!((settings.verbosity, settings.evictions, settings.port), (2, false, 7));
        assert_eq!(settings.memory_limit, 128 << 20);
    }

    #[test]
    fn what_memcached_has_and_this_has_not_is_told() {
        let told = |line: &str| {
            let mut warnings = Vec::new();
            let words = line.split_whitespace().map(str::to_owned);
            let outcome = parse(words, &mut |warning| warnings.push(warning));
            (outcome.map(drop), warnings.len())
        };
        // Debian's file of options, and others.
        let debian = "-m 64 -p 11211 -u memcache -l 127.0.0.1 -P /run/memcached/memcached.pid";
        assert_eq!(told(debian), (Ok(()), 0));
        assert_eq!(
            told("-k -r -L -W -f 1.25 -n 48 -N 2 -o hashpower=20,ext_path=/x:1G"),
            (Ok(()), 9)
        );
        assert_eq!(told("-o idle_timeout=5"), (Ok(()), 0));
        assert_eq!(told("--knob 0.5 --tiers dram,zstd"), (Ok(()), 0));
        for wrong in [
            "--knob 2",
            "--knob 0.5 --slowdown 2%",
            "--tiers dram,zstd",
            "-S",
            "-e /tmp/x",
            "-o hashpowre=20",
            "-o idle_timeout=x",
            "-q",
        ] {
            assert!(told(wrong).0.is_err(), "{wrong}");
        }
    }

    /// memcached's table begins with its `hashpower` and grows. An index of that size would lose
    /// items.
    #[test]
    fn the_index_is_sized_by_its_own_option_only() {
        let told = |line: &str| {
            let mut warnings = Vec::new();
            let words = line.split_whitespace().map(str::to_owned);
            match parse(words, &mut |warning| warnings.push(warning)) {
                Ok(Command::Serve(settings)) => (settings.items, warnings.len()),
                other => panic!("{line}: {other:?}"),
            }
        };
        assert_eq!(told("-m 1024 -o hashpower=12"), (None, 1));
        assert_eq!(told("-o items=400000"), (Some(400_000), 0));
    }

    #[test]
    fn consolidation_is_said_by_an_option() {
        let is_on = |line: &str| match settings(line) {
            Ok(Command::Serve(settings)) => settings.consolidate,
            other => panic!("{line}: {other:?}"),
        };
        assert!(!is_on("-m 64"));
        assert!(is_on("-o items=1000,consolidate"));
        assert!(!is_on("-o consolidate -o no_consolidate"));
    }

    #[test]
    fn options_of_tls_that_have_no_effect_are_told() {
        for (line, says) in [
            ("ssl_kernel_tls", "ssl_kernel_tls has no effect"),
            ("ssl_min_version=0", "nothing before TLS 1.2"),
            ("ssl_ca_cert=x", "without ssl_verify_mode"),
            ("ssl_min_version=3,ssl_ciphers=ECDHE-RSA-AES128-GCM-SHA256", "no effect on TLS 1.3"),
        ] {
            let mut warnings = Vec::new();
            let words = ["-Z".to_owned(), "-o".to_owned(), format!("ssl_chain_cert=x,{line}")];
            let parsed = parse(words, &mut |warning| warnings.push(warning));
            assert!(matches!(parsed, Ok(Command::Serve(_))), "{line}: {parsed:?}");
            assert!(matches!(&warnings[..], [one] if one.contains(says)), "{line}: {warnings:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            "-d",
            "-I 1000",
            "-I 256m",
            "-t 0",
            "-m x",
            "-p",
            "-?",
            "--nothing",
            "x",
            "--dram 0",
            "-o items=0",
            "-o items=many",
            "--tiers dram,lz4",
            "-Y /no/such/file",
            "-Z",
            "-Z -s x -o ssl_chain_cert=x",
            "-Z -o ssl_chain_cert=x,ssl_nothing",
            "-o ssl_chain_cert=x",
        ] {
            assert!(settings(line).is_err(), "{line}");
        }
    }
}
