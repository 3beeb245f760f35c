//! The text protocol's lines.

use smallvec::SmallVec;

use super::{
    BAD_FORMAT, Dumped, KEY_MAX, Refusal, Request, StoreMode, StoreRequest, client_flags, meta,
    number, time, words,
};

/// Maximum number of words of a line other than `get`, as in memcached.
const WORDS_MAX: usize = 24;
/// The longest value that memcached's parser lets through.
const LEN_MAX: i32 = i32::MAX - 2;

/// Numbers of classes.
const CLASSES: std::ops::Range<u32> = 1..64;

const ERROR: Refusal = Refusal::new("ERROR");
const FORMAT: Refusal = Refusal::new(BAD_FORMAT);
const NOT_A_TIME: Refusal = Refusal::new("CLIENT_ERROR invalid exptime argument");

/// Parses a line, without its line end.
pub fn parse(line: &[u8]) -> Result<Request<'_>, Refusal> {
    let mut iterator = words(line);
    let command = iterator.next().ok_or(ERROR)?;
    match command {
        b"get" | b"gets" => return get(line, command, false),
        b"gat" | b"gats" => return get(line, command, true),
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => return meta::parse(line),
        b"mn" => return Ok(Request::MetaNoop),
        _ => {}
    }
    // On the stack: memory is allocated for few requests, and with tiers that takes longer.
    let all: SmallVec<[&[u8]; WORDS_MAX]> = iterator.take(WORDS_MAX).collect();
    let noreply = all.last() == Some(&b"noreply".as_slice());
    parse_words(command, &all, noreply)
        .map_err(|refusal| Refusal { noreply: noreply && refusal != ERROR, ..refusal })
}

fn parse_words<'a>(
    command: &[u8],
    all: &[&'a [u8]],
    noreply: bool,
) -> Result<Request<'a>, Refusal> {
    let plain = &all[..all.len() - usize::from(noreply)];
    match (command, all.len()) {
        (b"set", 4 | 5) => store(StoreMode::Set, all, noreply),
        (b"add", 4 | 5) => store(StoreMode::Add, all, noreply),
        (b"replace", 4 | 5) => store(StoreMode::Replace, all, noreply),
        (b"append", 4 | 5) => store(StoreMode::Append, all, noreply),
        (b"prepend", 4 | 5) => store(StoreMode::Prepend, all, noreply),
        (b"cas", 5 | 6) => {
            let version = number(all[4]).ok_or(FORMAT)?;
            store(StoreMode::Cas(version), all, noreply)
        }
        (b"incr" | b"decr", 2 | 3) => {
            let key = checked_key(all[0])?;
            let delta = number(all[1])
                .ok_or(Refusal::new("CLIENT_ERROR invalid numeric delta argument"))?;
            Ok(Request::Arithmetic { key, increment: command == b"incr", delta, noreply })
        }
        (b"delete", 1..=3) => {
            let valid = match all.len() {
                1 => true,
                2 => noreply || all[1] == b"0",
                _ => noreply && all[1] == b"0",
            };
            if !valid {
                let usage = concat!(
                    "CLIENT_ERROR bad command line format.",
                    "  Usage: delete <key> [noreply]"
                );
                return Err(Refusal::new(usage));
            }
            Ok(Request::Delete { key: checked_key(all[0])?, noreply })
        }
        (b"touch", 2 | 3) => {
            let key = checked_key(all[0])?;
            Ok(Request::Touch { key, time: time(all[1]).ok_or(NOT_A_TIME)?, noreply })
        }
        (b"flush_all", 0..=2) => match plain.first() {
            None => Ok(Request::FlushAll { time: None, noreply }),
            Some(word) => {
                Ok(Request::FlushAll { time: Some(time(word).ok_or(NOT_A_TIME)?), noreply })
            }
        },
        (b"version", 0) => Ok(Request::Version),
        (b"verbosity", 1 | 2) => {
            let level = plain.first().and_then(|word| number(word)).ok_or(FORMAT)?;
            Ok(Request::Verbosity { level, noreply })
        }
        (b"stats", _) => Ok(Request::Stats(all.to_vec())),
        (b"quit", _) => Ok(Request::Quit),
        (b"shutdown", _) => {
            let valid = matches!(all, [] | [b"graceful"]);
            Ok(Request::Shutdown { valid })
        }
        (b"cache_memlimit", 1 | 2) => {
            let mebibytes = plain.first().and_then(|word| number(word)).ok_or(FORMAT)?;
            Ok(Request::MemoryLimit { mebibytes, noreply })
        }
        (b"lru_crawler", 2) if all[0] == b"metadump" => dumped(all[1]).map(Request::Dump),
        (b"slabs", 2..) if all[0] == b"automove" => {
            number::<u32>(all[1]).ok_or(FORMAT).map(|_| Request::Ignored)
        }
        (b"consolidate", 1 | 2) => match plain {
            [b"enable"] => Ok(Request::Consolidate { on: true, noreply }),
            [b"disable"] => Ok(Request::Consolidate { on: false, noreply }),
            _ => Err(Refusal::new("CLIENT_ERROR usage: consolidate <enable|disable>")),
        },
        (b"refresh_certs", 0 | 1) if plain.is_empty() => Ok(Request::RefreshCerts { noreply }),
        (b"debugtime", 1) => Ok(Request::DebugTime(number(all[0]).ok_or(FORMAT)?)),
        _ if all.last().is_some_and(|word| word.starts_with(b"HTTP/")) => {
            Err(Refusal { message: None, skip: 0, noreply: false })
        }
        _ => Err(ERROR),
    }
}

/// The items that are meant by `all`, `hash`, or numbers of classes with commas between them.
fn dumped(word: &[u8]) -> Result<Dumped, Refusal> {
    const BAD_CLASS: Refusal = Refusal::new("BADCLASS invalid class id");
    match word {
        b"all" => Ok(Dumped::All),
        b"hash" => Ok(Dumped::Hash),
        _ => {
            let words = word.split(|&byte| byte == b',').filter(|word| !word.is_empty());
            let classes = words.map(|word| number(word).filter(|class| CLASSES.contains(class)));
            let bits = classes.map(|class| class.map(|class| 1 << class));
            let all = bits.reduce(|all, bit| Some(all? | bit?));
            all.flatten().map(Dumped::Classes).ok_or(BAD_CLASS)
        }
    }
}

fn checked_key(key: &[u8]) -> Result<&[u8], Refusal> {
    if key.len() > KEY_MAX { Err(FORMAT) } else { Ok(key) }
}

fn get<'a>(line: &'a [u8], command: &[u8], touch: bool) -> Result<Request<'a>, Refusal> {
    // The words stand in the line itself, so what follows one is found by its place.
    let start = line.iter().position(|&byte| byte != b' ').unwrap_or(0);
    let mut rest = &line[start + command.len()..];
    let mut expires = None;
    let mut found = words(rest);
    if touch {
        let word = found.next().ok_or(ERROR)?;
        found.next().ok_or(ERROR)?;
        expires = Some(time(word).ok_or(NOT_A_TIME)?);
        let start = rest.iter().position(|&byte| byte != b' ').unwrap_or(0);
        rest = &rest[start + word.len()..];
    } else {
        found.next().ok_or(ERROR)?;
    }
    if words(rest).any(|key| key.len() > KEY_MAX) {
        return Err(FORMAT);
    }
    Ok(Request::Get { keys: rest, cas: command.ends_with(b"s"), time: expires })
}

fn store<'a>(mode: StoreMode, all: &[&'a [u8]], noreply: bool) -> Result<Request<'a>, Refusal> {
    let key = checked_key(all[0])?;
    let flags = client_flags(all[1]).ok_or(FORMAT)?;
    let time = time(all[2]).ok_or(FORMAT)?;
    let len: i32 = number(all[3]).filter(|len| (0..LEN_MAX).contains(len)).ok_or(FORMAT)?;
    Ok(Request::Store(StoreRequest { mode, key, flags, time, len: len as usize, noreply }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_parts() {
        let request = StoreRequest {
            mode: StoreMode::Set,
            key: b"foo",
            flags: 7,
            time: -1,
            len: 3,
            noreply: true,
        };
        assert_eq!(parse(b"set foo 7 -1 3 noreply"), Ok(Request::Store(request)));
    }

    #[test]
    fn several_keys_stay_in_the_line() {
        let request = Request::Get { keys: b" a  bc", cas: true, time: None };
        assert_eq!(parse(b"gets a  bc"), Ok(request));
        let request = Request::Get { keys: b" a", cas: false, time: Some(10) };
        assert_eq!(parse(b"gat 10 a"), Ok(request));
    }

    #[test]
    fn commands_of_the_operator_have_their_words() {
        let request = Request::Consolidate { on: true, noreply: false };
        assert_eq!(parse(b"consolidate enable"), Ok(request));
        let request = Request::Consolidate { on: false, noreply: true };
        assert_eq!(parse(b"consolidate disable noreply"), Ok(request));
        let request = Request::RefreshCerts { noreply: true };
        assert_eq!(parse(b"refresh_certs noreply"), Ok(request));
        for (what, dumped) in
            [("all", Dumped::All), ("hash", Dumped::Hash), ("1,63", Dumped::Classes(2 | 1 << 63))]
        {
            let line = format!("lru_crawler metadump {what}");
            assert_eq!(parse(line.as_bytes()), Ok(Request::Dump(dumped)));
        }
        for what in ["0", "64", "1,x", ",", "-1"] {
            let line = format!("lru_crawler metadump {what}");
            let refusal = parse(line.as_bytes()).unwrap_err();
            assert_eq!(refusal.message, Some("BADCLASS invalid class id"), "{what}");
        }
        assert!(parse(b"refresh_certs now").is_err());
        let refused = |line: &[u8]| parse(line).unwrap_err().message.unwrap().to_owned();
        assert_eq!(refused(b"consolidate"), "ERROR");
        assert!(refused(b"consolidate 1").starts_with("CLIENT_ERROR usage"));
        assert!(refused(b"consolidate noreply").starts_with("CLIENT_ERROR usage"));
    }

    #[test]
    fn what_is_wrong_has_the_answer_of_memcached() {
        let message = |line: &[u8]| parse(line).unwrap_err().message;
        assert_eq!(message(b""), Some("ERROR"));
        assert_eq!(message(b"get"), Some("ERROR"));
        assert_eq!(message(b"bogus"), Some("ERROR"));
        assert_eq!(message(b"set a 0 0 -1"), Some(BAD_FORMAT));
        assert_eq!(message(b"set a 0 0 4294967295"), Some(BAD_FORMAT));
        assert_eq!(message(b"set a 0 0 2147483647"), Some(BAD_FORMAT));
        assert_eq!(message(b"set a 18446744073709551616 0 1"), Some(BAD_FORMAT));
        assert_eq!(message(b"set a -1 0 1"), Some(BAD_FORMAT));
        assert_eq!(message(b"set a 0 9223372036854775808 1"), Some(BAD_FORMAT));
        assert_eq!(message(&[b"get ", &[b'a'; 251][..]].concat()), Some(BAD_FORMAT));
        assert_eq!(message(b"GET / HTTP/1.0"), None);
        assert!(parse(b"set a 0 0 x noreply").unwrap_err().noreply);
        assert!(!parse(b"bogus noreply").unwrap_err().noreply);
    }

    #[test]
    fn of_64_bits_the_lower_32_count() {
        let request = StoreRequest {
            mode: StoreMode::Set,
            key: b"a",
            flags: 7,
            time: -1,
            len: 1,
            noreply: false,
        };
        assert_eq!(parse(b"set a 4294967303 4294967295 1"), Ok(Request::Store(request)));
        let request = Request::Touch { key: b"a", time: 10, noreply: false };
        assert_eq!(parse(b"touch a 4294967306"), Ok(request));
        let request = Request::Get { keys: b" a", cas: false, time: Some(10) };
        assert_eq!(parse(b"gat 4294967306 a"), Ok(request));
        let request = Request::FlushAll { time: Some(10), noreply: false };
        assert_eq!(parse(b"flush_all 4294967306"), Ok(request));
        let Ok(Request::Meta(request)) = parse(b"ms a 1 T4294967306 F4294967303") else {
            panic!("it is a meta command");
        };
        assert_eq!((request.options.time, request.options.client_flags), (Some(10), 7));
    }

    #[test]
    fn no_sequence_of_bytes_panics() {
        for first in 0..=255_u8 {
            for line in [b"get ".as_slice(), b"set a ", b"mg ", b"ms a 1 ", b"stats ", b""] {
                let mut line = line.to_vec();
                line.extend([first, b' ', first, first]);
                let _ = parse(&line);
            }
        }
    }
}
