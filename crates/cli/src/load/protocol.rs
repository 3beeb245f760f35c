//! The two protocols, as far as GET and SET need them: requests are appended to a buffer, replies
//! are taken from the beginning of one.
//!
//! A reply is looked at from its first byte each time more bytes have come; only its lines are
//! read, so that is cheap. Whatever a server sends, nothing is read beyond the buffer and nothing
//! unbounded is waited for.

use clap::ValueEnum;
use std::io::{self, Read, Write};

/// How one talks to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// memcached's text protocol
    Memcached,
    /// RESP, version 2
    Redis,
}

/// What a server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The answer to a GET: what is there.
    Value(&'a [u8]),
    /// The answer to a GET: nothing is there.
    Missing,
    /// The answer to a SET.
    Stored,
    /// The answer to either: what went wrong, in the server's words.
    Refused(&'a [u8]),
}

/// What came is no reply. Where the next one begins is not known then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A line came that is none of this protocol.
    #[error("the server sent what is no reply of {protocol}: {line:?}; is --protocol right?")]
    Line {
        /// What was expected.
        protocol: &'static str,
        /// What came, or its beginning.
        line: String,
    },
    /// The value is longer than any that was asked for.
    #[error(
        "the server announces a value of {0} bytes, longer than any that was asked for; fill it with the same --value-bytes first"
    )]
    Length(u64),
}

/// Most bytes of a line; a longer one is no line of the protocol.
const LINE_MOST: usize = 1024;
/// Most bytes of a malformed line that an error message shows.
const LINE_SHOWN: usize = 60;

impl Protocol {
    /// The protocol's name.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Memcached => "memcached",
            Protocol::Redis => "redis",
        }
    }

    /// Finds the protocol by a question that servers of both answer, each in its own way.
    ///
    /// # Errors
    /// The server cannot be reached or does not answer; or what it answers is of neither, which is
    /// the inner error.
    pub fn ask(stream: &mut (impl Read + Write)) -> io::Result<Result<Protocol, String>> {
        stream.write_all(b"version\r\n")?;
        let mut answer = Vec::new();
        while !answer.contains(&b'\n') && answer.len() < LINE_MOST {
            let mut part = [0; LINE_MOST];
            match stream.read(&mut part)? {
                0 => break,
                bytes => answer.extend_from_slice(&part[..bytes]),
            }
        }
        Ok(match answer.first() {
            Some(b'V') if answer.starts_with(b"VERSION ") => Ok(Protocol::Memcached),
            // RESP has no such command, and says so.
            Some(b'-' | b'+') => Ok(Protocol::Redis),
            _ => Err(String::from_utf8_lossy(&answer[..answer.len().min(LINE_SHOWN)]).into_owned()),
        })
    }

    /// Appends a GET.
    pub fn get(self, key: &[u8], out: &mut Vec<u8>) {
        match self {
            Protocol::Memcached => {
                out.extend_from_slice(b"get ");
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n");
            }
            Protocol::Redis => {
                command(&[b"GET", key], out);
            }
        }
    }

    /// Appends a SET.
    pub fn set(self, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
        match self {
            Protocol::Memcached => {
                out.extend_from_slice(b"set ");
                out.extend_from_slice(key);
                out.extend_from_slice(b" 0 0 ");
                push_number(value.len(), out);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
            Protocol::Redis => command(&[b"SET", key, value], out),
        }
    }

    /// The reply that `input` begins with and how long it is; `None` if it is not whole yet. No
    /// value is longer than `most` bytes.
    ///
    /// # Errors
    /// [`Malformed`], as soon as it is clear that no reply begins here.
    pub fn reply(self, input: &[u8], most: usize) -> Result<Option<(Reply<'_>, usize)>, Malformed> {
        let Some(line) = self.line(input)? else { return Ok(None) };
        let after = line.len() + 2;
        let malformed = || Err(self.malformed(line));
        match self {
            Protocol::Memcached => match line {
                b"END" => Ok(Some((Reply::Missing, after))),
                b"STORED" => Ok(Some((Reply::Stored, after))),
                b"ERROR" | b"NOT_STORED" => Ok(Some((Reply::Refused(line), after))),
                _ if line.starts_with(b"SERVER_ERROR ") || line.starts_with(b"CLIENT_ERROR ") => {
                    Ok(Some((Reply::Refused(line), after)))
                }
                _ => {
                    // VALUE key flags bytes
                    let mut words = line.split(|byte| *byte == b' ');
                    let (kind, _key, flags, bytes, end) =
                        (words.next(), words.next(), words.next(), words.next(), words.next());
                    match (kind, flags.and_then(number), bytes.and_then(number), end) {
                        (Some(b"VALUE"), Some(_), Some(bytes), None) => {
                            self.value(input, after, bytes, most, b"\r\nEND\r\n")
                        }
                        _ => malformed(),
                    }
                }
            },
            Protocol::Redis => match line {
                b"+OK" => Ok(Some((Reply::Stored, after))),
                b"$-1" => Ok(Some((Reply::Missing, after))),
                [b'-', error @ ..] => Ok(Some((Reply::Refused(error), after))),
                [b'$', bytes @ ..] => match number(bytes) {
                    Some(bytes) => self.value(input, after, bytes, most, b"\r\n"),
                    None => malformed(),
                },
                _ => malformed(),
            },
        }
    }

    /// A value of `bytes` bytes from `start` on, and what follows it.
    fn value<'a>(
        self,
        input: &'a [u8],
        start: usize,
        bytes: u64,
        most: usize,
        tail: &[u8],
    ) -> Result<Option<(Reply<'a>, usize)>, Malformed> {
        let bytes = usize::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= most)
            .ok_or(Malformed::Length(bytes))?;
        let rest = &input[start..];
        let come = rest.get(bytes..).unwrap_or_default();
        let come = &come[..come.len().min(tail.len())];
        if !tail.starts_with(come) {
            return Err(self.malformed(come));
        }
        Ok((come.len() == tail.len())
            .then(|| (Reply::Value(&rest[..bytes]), start + bytes + tail.len())))
    }

    /// The first line, without its end; `None` if that has not come yet.
    fn line(self, input: &[u8]) -> Result<Option<&[u8]>, Malformed> {
        let looked_at = &input[..input.len().min(LINE_MOST)];
        match looked_at.iter().position(|byte| *byte == b'\n') {
            Some(end) if end > 0 && looked_at[end - 1] == b'\r' => Ok(Some(&looked_at[..end - 1])),
            None if looked_at.len() < LINE_MOST => Ok(None),
            _ => Err(self.malformed(looked_at)),
        }
    }

    fn malformed(self, line: &[u8]) -> Malformed {
        Malformed::Line {
            protocol: self.name(),
            line: String::from_utf8_lossy(&line[..line.len().min(LINE_SHOWN)]).into_owned(),
        }
    }
}

/// A RESP array of strings.
fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    out.push(b'*');
    push_number(words.len(), out);
    out.extend_from_slice(b"\r\n");
    for word in words {
        out.push(b'$');
        push_number(word.len(), out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends decimal digits.
fn push_number(number: usize, out: &mut Vec<u8>) {
    if number >= 10 {
        push_number(number / 10, out);
    }
    out.push(b'0' + (number % 10) as u8);
}

/// Decimal digits and nothing else.
fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Protocol; 2] = [Protocol::Memcached, Protocol::Redis];
    const MOST: usize = 1000;

    /// A reply as a server writes it.
    fn written(protocol: Protocol, reply: Reply<'_>) -> Vec<u8> {
        match (protocol, reply) {
            (Protocol::Memcached, Reply::Value(value)) => {
                [format!("VALUE key-1 0 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"]
                    .concat()
            }
            (Protocol::Memcached, Reply::Missing) => b"END\r\n".to_vec(),
            (Protocol::Memcached, Reply::Stored) => b"STORED\r\n".to_vec(),
            (Protocol::Memcached, Reply::Refused(why)) => [why, b"\r\n"].concat(),
            (Protocol::Redis, Reply::Value(value)) => {
                [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
            }
            (Protocol::Redis, Reply::Missing) => b"$-1\r\n".to_vec(),
            (Protocol::Redis, Reply::Stored) => b"+OK\r\n".to_vec(),
            (Protocol::Redis, Reply::Refused(why)) => [b"-", why, b"\r\n"].concat(),
        }
    }

    fn replies(value: &[u8]) -> [Reply<'_>; 4] {
        [
            Reply::Value(value),
            Reply::Missing,
            Reply::Stored,
            Reply::Refused(b"SERVER_ERROR out of memory storing object"),
        ]
    }

    #[test]
    fn requests_are_as_the_protocols_have_them() {
        let made = |make: &dyn Fn(&mut Vec<u8>)| {
            let mut out = b"before,".to_vec();
            make(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(made(&|out| Protocol::Memcached.get(b"k", out)), "before,get k\r\n");
        assert_eq!(
            made(&|out| Protocol::Memcached.set(b"k", b"abc", out)),
            "before,set k 0 0 3\r\nabc\r\n"
        );
        assert_eq!(
            made(&|out| Protocol::Redis.get(b"k", out)),
            "before,*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
        );
        assert_eq!(
            made(&|out| Protocol::Redis.set(b"k", b"abc", out)),
            "before,*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n"
        );
    }

    #[test]
    fn replies_torn_at_every_byte_are_waited_for() {
        // With what could be taken for the end of a line or a reply in the value.
        let value = b"abc\r\nEND\r\n\r\n$-1\r\n";
        for protocol in BOTH {
            for reply in replies(value) {
                let mut bytes = written(protocol, reply);
                let whole = bytes.len();
                for torn in 0..whole {
                    assert_eq!(
                        protocol.reply(&bytes[..torn], MOST),
                        Ok(None),
                        "{protocol:?} {reply:?} {torn}"
                    );
                }
                assert_eq!(protocol.reply(&bytes, MOST), Ok(Some((reply, whole))));
                bytes.extend_from_slice(b"next");
                assert_eq!(protocol.reply(&bytes, MOST), Ok(Some((reply, whole))));
            }
        }
    }

    #[test]
    fn what_is_no_reply_is_said() {
        let wrong =
            |protocol: Protocol, text: &str| protocol.reply(text.as_bytes(), MOST).unwrap_err();
        let lines = [
            "\r\n",
            "VALUE k 0\r\n",
            "VALUE k 0 3 4 5\r\n",
            "VALUE k 0 -3\r\n",
            "VALUE k 0 +3\r\n",
            "$-1\r\n",
            "STORED\n",
            "VALUE k 0 2\r\nabcd",
        ];
        for line in lines {
            assert!(matches!(wrong(Protocol::Memcached, line), Malformed::Line { .. }), "{line}");
        }
        let lines = [
            "\r\n",
            "$\r\n",
            "$-2\r\n",
            "$x\r\n",
            ":1\r\n",
            "*1\r\n",
            "+PONG\r\n",
            "STORED\r\n",
            "$2\r\nabcd",
        ];
        for line in lines {
            assert!(matches!(wrong(Protocol::Redis, line), Malformed::Line { .. }), "{line}");
        }
        assert_eq!(wrong(Protocol::Redis, "$1001\r\n"), Malformed::Length(1001));
        assert_eq!(
            wrong(Protocol::Memcached, "VALUE k 0 18446744073709551615\r\n"),
            Malformed::Length(u64::MAX)
        );
        assert!(
            wrong(Protocol::Memcached, "HTTP/1.1 400 Bad Request\r\n")
                .to_string()
                .contains("is --protocol right?")
        );
    }

    #[test]
    fn a_line_without_end_is_not_waited_for() {
        for protocol in BOTH {
            assert!(protocol.reply(&[b'x'; LINE_MOST], MOST).is_err());
            assert_eq!(protocol.reply(&[b'x'; LINE_MOST - 1], MOST), Ok(None));
        }
    }

    proptest! {
        #[test]
        fn replies_come_apart_where_they_were_joined(
            redis: bool,
            values in prop::collection::vec((0usize..4, prop::collection::vec(any::<u8>(), 0..MOST)), 1..10),
        ) {
            let protocol = BOTH[usize::from(redis)];
            let sent: Vec<Reply<'_>> = values.iter().map(|(kind, value)| replies(value)[*kind]).collect();
            let stream: Vec<u8> = sent.iter().flat_map(|reply| written(protocol, *reply)).collect();
            let mut rest = &stream[..];
            for reply in sent {
                let (got, used) = protocol.reply(rest, MOST).unwrap().unwrap();
                prop_assert_eq!(got, reply);
                rest = &rest[used..];
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_a_reply_or_not(redis: bool, bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            check(BOTH[usize::from(redis)], &bytes)?;
        }

        #[test]
        fn nearly_a_reply(redis: bool, kind in 0usize..4, value in prop::collection::vec(any::<u8>(), 0..40), at: prop::sample::Index, byte: u8) {
            let protocol = BOTH[usize::from(redis)];
            let mut bytes = written(protocol, replies(&value)[kind]);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            check(protocol, &bytes)?;
        }
    }

    /// What is taken lies within what was given, and more bytes do not change it.
    fn check(protocol: Protocol, bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Ok(Some((reply, used))) = protocol.reply(bytes, MOST) {
            prop_assert!(used <= bytes.len());
            prop_assert_eq!(protocol.reply(&bytes[..used], MOST), Ok(Some((reply, used))));
        }
        Ok(())
    }
}
