//! Accounts of the server's users: memcached's ASCII authentication (option `-Y`).
//!
//! A client's first request is `set <any key> <flags> <time> <bytes>` with `user password` as the
//! value. Until that was right, every other request gets `CLIENT_ERROR unauthenticated`.

use std::hint::black_box;
use std::path::Path;

use crate::protocol::{number, words};

/// Maximum bytes of a user's name and password.
const LEN_MAX: usize = 2048;

/// The users of a file, and their passwords.
#[derive(Clone, Debug, PartialEq)]
pub struct Accounts(Vec<(Vec<u8>, Vec<u8>)>);

impl Accounts {
    /// Reads a file with a line `user:password` for each user.
    ///
    /// # Errors
    /// If the file cannot be read, has a line of another form, or names no user: the text says
    /// which.
    pub fn read(path: &Path) -> Result<Accounts, String> {
        let wrong = |what: String| format!("-Y {}: {what}", path.display());
        let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let mut accounts = Vec::new();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let account = line.iter().position(|&byte| byte == b':').map(|at| line.split_at(at));
            let account = account.filter(|(user, rest)| {
                let plain = |part: &[u8]| !part.is_empty() && !part.contains(&b' ');
                plain(user) && plain(&rest[1..])
            });
            let Some((user, rest)) = account else {
                return Err(wrong(format!("line {} is not user:password", number + 1)));
            };
            accounts.push((user.to_vec(), rest[1..].to_vec()));
        }
        if accounts.is_empty() {
            return Err(wrong("it names nobody; write lines of user:password".to_owned()));
        }
        Ok(Accounts(accounts))
    }

    /// The answer to the value `user password`, and whether it admits the client.
    pub fn answer(&self, value: &[u8]) -> (&'static str, bool) {
        let mut parts = words(value);
        let (Some(user), Some(password), None) = (parts.next(), parts.next(), parts.next()) else {
            return ("CLIENT_ERROR bad authentication token format", false);
        };
        // Every account is looked at, and every byte that the client sent.
        let admits = self.0.iter().fold(false, |admits, (name, secret)| {
            admits | (is_equal(name, user) & is_equal(secret, password))
        });
        if admits { ("STORED", true) } else { ("CLIENT_ERROR authentication failure", false) }
    }
}

/// The bytes of the value that a line announces, if it may be one that authenticates.
pub fn announced_len(line: &[u8]) -> Option<usize> {
    let parts: Vec<&[u8]> = words(line).collect();
    match parts[..] {
        [b"set", _, _, _, len] => number(len).filter(|len| *len <= LEN_MAX),
        _ => None,
    }
}

/// Takes as long for each secret: by the client's bytes alone.
fn is_equal(secret: &[u8], given: &[u8]) -> bool {
    let mut difference = secret.len() ^ given.len();
    for (place, byte) in given.iter().enumerate() {
        // No secret is empty.
        difference |= usize::from(byte ^ secret[place % secret.len()]);
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_or_the_line_is_told() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let read = |text: &str| {
            std::fs::write(file.path(), text).expect("it can be written");
            Accounts::read(file.path())
        };
        let accounts = read("ann:secret\n\nbob:with:colon\r\n").expect("it is right");
        for (value, admits) in [
            ("ann secret", true),
            ("bob with:colon", true),
            ("ann secre", false),
            ("ann secrett", false),
            ("bob secret", false),
            ("ann", false),
            ("ann secret more", false),
            ("", false),
        ] {
            assert_eq!(accounts.answer(value.as_bytes()).1, admits, "{value}");
        }
        for (text, says) in
            [("", "names nobody"), ("ann:x\nbob\n", "line 2"), (":x", "line 1"), ("a: b", "line 1")]
        {
            assert!(read(text).is_err_and(|error| error.contains(says)), "{text}");
        }
        assert!(Accounts::read(Path::new("/no/such/file")).is_err());
    }

    #[test]
    fn only_a_set_of_some_bytes_authenticates() {
        assert_eq!(announced_len(b"set a 0 0 7"), Some(7));
        for line in ["get a", "set a 0 0", "set a 0 0 x", "set a 0 0 9999", "set a 0 0 7 noreply"] {
            assert_eq!(announced_len(line.as_bytes()), None, "{line}");
        }
    }
}
