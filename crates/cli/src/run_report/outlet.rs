//! Text for a pipe, a terminal or a socket that may take no more for a while: it is handed over as
//! far as it is taken, and nothing of ours waits for its reader.
//!
//! The descriptor is shared with the program, so it is not set to fail instead of waiting: each
//! write asks for that by itself.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use terrace_os::Errno;

/// Bytes of a piece: as much as fits wherever a terminal or pipe says that it takes something.
const PIECE: usize = 256;

/// Text on its way to a descriptor.
#[derive(Debug)]
pub struct Outlet {
    file: File,
    /// Whether a write to it never waits for a reader: it is a regular file.
    takes_all: bool,
    rest: Vec<u8>,
}

impl Outlet {
    /// An outlet for an open descriptor.
    pub fn new(file: File) -> Outlet {
        let takes_all = file.metadata().is_ok_and(|about| about.is_file());
        Outlet { file, takes_all, rest: Vec::new() }
    }

    /// Whether all that was put was taken.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Hands over text behind what is on its way, as far as it is taken.
    pub fn put(&mut self, text: &[u8]) -> io::Result<()> {
        self.rest.extend_from_slice(text);
        self.go_on()
    }

    /// Hands over more of it. After an error there is no rest.
    pub fn go_on(&mut self) -> io::Result<()> {
        let result = self.hand_over();
        if result.is_err() {
            self.rest.clear();
        }
        result
    }

    fn hand_over(&mut self) -> io::Result<()> {
        if self.takes_all {
            return self.finish();
        }
        while !self.rest.is_empty() {
            match self.write_some() {
                Ok(taken) => drop(self.rest.drain(..taken)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Hands over all of it, and waits for that.
    pub fn finish(&mut self) -> io::Result<()> {
        write_all(&self.file, &std::mem::take(&mut self.rest))
    }

    fn write_some(&self) -> io::Result<usize> {
        match terrace_os::write_without_waiting(self.file.as_raw_fd(), &self.rest) {
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.write_piece(),
            result => result.map_err(terrace_os::io_error),
        }
    }

    /// Writes only what fits where anything is taken at all. It is for where a write cannot be told
    /// not to wait (terminals; pipes before Linux 6.4).
    fn write_piece(&self) -> io::Result<usize> {
        if !takes_some(&self.file, 0) {
            return Err(ErrorKind::WouldBlock.into());
        }
        (&self.file).write(&self.rest[..self.rest.len().min(PIECE)])
    }
}

/// Waits until a descriptor takes bytes, at most some milliseconds, or for as long as that takes
/// (−1); whether it does.
fn takes_some(file: &File, milliseconds: i32) -> bool {
    terrace_os::wait_writable(file.as_raw_fd(), milliseconds)
}

/// Writes all of `text`, and waits as long as its reader does. The program may have set the
/// descriptor that it shares to fail instead of waiting.
pub fn write_all(mut file: &File, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match file.write(text) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(taken) => text = &text[taken..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Where it cannot be waited for, the write says why.
                takes_some(file, -1);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    /// Puts more than fits, and then reads all of it: nothing waits, and nothing is lost.
    fn is_whole(reader: &mut impl Read, writer: OwnedFd) {
        let text: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
        let mut outlet = Outlet::new(File::from(writer));
        outlet.put(&text).unwrap();
        assert!(!outlet.is_empty(), "nobody reads it");
        let (mut read, mut buffer) = (Vec::new(), vec![0; 65536]);
        while read.len() < text.len() {
            let bytes = reader.read(&mut buffer).unwrap();
            read.extend_from_slice(&buffer[..bytes]);
            outlet.go_on().unwrap();
        }
        assert!(outlet.is_empty() && read == text);
    }

    #[test]
    fn a_pipe_and_a_socket_take_what_is_read_and_nothing_waits() {
        let (mut reader, writer) = io::pipe().unwrap();
        is_whole(&mut reader, writer.into());
        let (mut reader, writer) = UnixStream::pair().unwrap();
        is_whole(&mut reader, writer.into());
    }

    #[test]
    fn whoever_does_not_read_any_more_gets_nothing() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut outlet = Outlet::new(File::from(OwnedFd::from(writer)));
        assert!(outlet.put(b"text").is_err() && outlet.is_empty());
    }

    /// A program may set the descriptor that it shares with us to fail instead of waiting.
    #[test]
    fn all_is_written_where_the_descriptor_does_not_wait() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let text = vec![7u8; 3_000_000];
        let length = text.len();
        let file = File::from(OwnedFd::from(writer));
        let writing = std::thread::spawn(move || super::write_all(&file, &text));
        let mut read = vec![0; length];
        reader.read_exact(&mut read).unwrap();
        writing.join().unwrap().unwrap();
        assert!(read.iter().all(|byte| *byte == 7));
    }
}
