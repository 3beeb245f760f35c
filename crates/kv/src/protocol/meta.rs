//! The meta commands: `mg`, `ms`, `md`, `ma` and `me`.

use super::{BAD_FORMAT, KEY_MAX, Refusal, Request, client_flags, number, time, words};

/// Maximum number of words of a meta command, as in memcached.
const WORDS_MAX: usize = 20;
/// The longest opaque word, with its letter.
const OPAQUE_MAX: usize = 32;
const LEN_MAX: i32 = i32::MAX - 2;

/// Kind of a meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaCommand {
    /// `mg`.
    Get,
    /// `ms`, with the bytes of the value.
    Set(usize),
    /// `md`.
    Delete,
    /// `ma`.
    Arithmetic,
    /// `me`.
    Debug,
}

/// A meta command with its flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The command.
    pub command: MetaCommand,
    /// The key as the client wrote it.
    pub written_key: &'a [u8],
    /// The key.
    pub key: Vec<u8>,
    /// The flags in the client's order.
    pub flags: Vec<&'a [u8]>,
    /// What the flags mean.
    pub options: Options,
}

/// What flags mean, whichever command they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `b`: the key is base64.
    pub binary: bool,
    /// `q`: expected answers are left out.
    pub quiet: bool,
    /// `v`: the value is wanted.
    pub value: bool,
    /// `u`: the item does not count as used.
    pub no_update: bool,
    /// `I`: mark as stale, or store what is stale.
    pub stale: bool,
    /// `N`: the expiry time of an item that is made on a miss.
    pub vivify: Option<i32>,
    /// `T`: a new expiry time.
    pub time: Option<i32>,
    /// `R`: below this remaining time, one client is asked to renew.
    pub recache: Option<i32>,
    /// `F`: the client's flags.
    pub client_flags: u32,
    /// `C`: the version that is expected.
    pub cas: Option<u64>,
    /// `M`: the mode.
    pub mode: Option<u8>,
    /// `J`: the number that is made on a miss.
    pub initial: u64,
    /// `D`: what is added or subtracted.
    pub delta: Option<u64>,
}

/// Parses a line that begins with a meta command.
pub(super) fn parse(line: &[u8]) -> Result<Request<'_>, Refusal> {
    const FORMAT: Refusal = Refusal::new(BAD_FORMAT);
    let all: Vec<&[u8]> = words(line).take(WORDS_MAX + 1).collect();
    let written_key = *all.get(1).ok_or(Refusal::new("ERROR"))?;
    if written_key.len() > KEY_MAX {
        return Err(FORMAT);
    }
    let mut skip = 0;
    let (command, start) = match all[0] {
        b"mg" => (MetaCommand::Get, 2),
        b"md" => (MetaCommand::Delete, 2),
        b"ma" => (MetaCommand::Arithmetic, 2),
        b"me" => (MetaCommand::Debug, 2),
        _ => {
            let word = all.get(2).ok_or(FORMAT)?;
            let len = number::<i32>(word).filter(|len| (0..LEN_MAX).contains(len));
            let len = len.ok_or(FORMAT)? as usize;
            skip = len + 2;
            (MetaCommand::Set(len), 3)
        }
    };
    let refuse = |message| Refusal { message: Some(message), skip, noreply: false };
    if all.len() > WORDS_MAX {
        return Err(refuse("CLIENT_ERROR options flags too long"));
    }
    let flags = all[start..].to_vec();
    let mut options = match options(&flags) {
        Ok(options) => options,
        Err(_) if matches!(command, MetaCommand::Delete | MetaCommand::Arithmetic) => {
            return Err(refuse("CLIENT_ERROR invalid or duplicate flag"));
        }
        Err(message) => return Err(refuse(message)),
    };
    let valid: &[u8] = match command {
        MetaCommand::Set(_) => b"EAPRS",
        MetaCommand::Arithmetic => b"I+D-",
        _ => &[],
    };
    if command == MetaCommand::Arithmetic {
        options.delta.get_or_insert(1);
    }
    match (command, options.mode) {
        (MetaCommand::Set(_), Some(mode)) if !valid.contains(&mode.to_ascii_uppercase()) => {
            return Err(refuse("CLIENT_ERROR invalid mode for ms M token"));
        }
        (MetaCommand::Arithmetic, Some(mode)) if !valid.contains(&mode.to_ascii_uppercase()) => {
            return Err(refuse("CLIENT_ERROR invalid mode for ma M token"));
        }
        _ => {}
    }
    let key = if options.binary {
        decode(written_key).ok_or(refuse("CLIENT_ERROR error decoding key"))?
    } else {
        written_key.to_vec()
    };
    Ok(Request::Meta(MetaRequest { command, written_key, key, flags, options }))
}

fn options(flags: &[&[u8]]) -> Result<Options, &'static str> {
    const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
    let mut options = Options::default();
    let mut seen = [false; 127];
    for flag in flags {
        let (letter, token) = (flag[0], &flag[1..]);
        match seen.get_mut(usize::from(letter)) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err("CLIENT_ERROR duplicate flag"),
        }
        match letter {
            b'b' => options.binary = true,
            b'q' => options.quiet = true,
            b'v' => options.value = true,
            b'u' => options.no_update = true,
            b'I' => options.stale = true,
            b'N' => options.vivify = Some(time(token).ok_or(BAD_TOKEN)?),
            b'T' => options.time = Some(time(token).ok_or(BAD_TOKEN)?),
            b'R' => options.recache = Some(time(token).ok_or(BAD_TOKEN)?),
            b'F' => options.client_flags = client_flags(token).ok_or(BAD_FORMAT)?,
            b'C' => options.cas = Some(number(token).ok_or(BAD_TOKEN)?),
            b'M' => match token {
                [mode] => options.mode = Some(*mode),
                _ => return Err("CLIENT_ERROR incorrect length for M token"),
            },
            b'J' => {
                options.initial =
                    number(token).ok_or("CLIENT_ERROR invalid numeric initial value")?;
            }
            b'D' => {
                let delta = number(token).ok_or("CLIENT_ERROR invalid numeric delta value")?;
                options.delta = Some(delta);
            }
            b'O' if flag.len() > OPAQUE_MAX => {
                return Err("CLIENT_ERROR opaque token too long");
            }
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            _ => return Err("CLIENT_ERROR invalid flag"),
        }
    }
    Ok(options)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The bytes that base64 text with padding stands for.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.chunks(4) {
        let mut bits = 0_u32;
        for (place, byte) in group.iter().enumerate() {
            let value = match ALPHABET.iter().position(|letter| letter == byte) {
                Some(value) => value as u32,
                None if *byte == b'=' && place >= 2 => 0,
                None => return None,
            };
            bits = bits << 6 | value;
        }
        bytes.extend(&bits.to_be_bytes()[1..]);
    }
    bytes.truncate(bytes.len() - padding);
    Some(bytes)
}

/// Bytes as base64 text with padding.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        for place in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() { letter } else { b'=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: &[u8]) -> Option<&'static str> {
        parse(line).unwrap_err().message
    }

    #[test]
    fn base64_keys_come_back_as_they_were() {
        for bytes in [b"a".as_slice(), b"ab", b"abc", &[0, 255, 1, 254]] {
            assert_eq!(decode(&encode(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(decode(b"a==="), None);
        assert_eq!(decode(b"!!!!"), None);
    }

    #[test]
    fn wrong_flags_have_the_answer_of_memcached() {
        assert_eq!(message(b"mg"), Some("ERROR"));
        assert_eq!(message(b"mg a s s"), Some("CLIENT_ERROR duplicate flag"));
        assert_eq!(message(b"mg a !"), Some("CLIENT_ERROR invalid flag"));
        assert_eq!(message(b"md a !"), Some("CLIENT_ERROR invalid or duplicate flag"));
        assert_eq!(message(b"ms a"), Some(BAD_FORMAT));
        let refusal = parse(b"ms a 2 MZ").unwrap_err();
        assert_eq!(refusal.skip, 4, "the value is skipped");
    }

    #[test]
    fn an_increment_is_by_one_unless_it_says_more() {
        let Ok(Request::Meta(request)) = parse(b"ma a") else { panic!("it is a meta command") };
        assert_eq!(request.options.delta, Some(1));
    }
}
