//! The file medium: extents in unlinked files, written and read by direct I/O where the file system
//! has it.
//!
//! ```text
//! file    |slot 0, 512 KiB|slot 1, punched|slot 2|···   of mode 0600, without a name, one for each process that stores
//! extent  |block|block|block|· · · never written · · ·|  blocks of 4 KiB
//!                           ^ tail: the block being filled is in private memory
//! ```
//!
//! Invariants:
//! * Between being taken and being punched, a slot's blocks are written once each. An extent is
//!   only appended to, and compacted by being copied into another slot. So a slot reads right for
//!   any process that knows what is in it, a forked child too, until it is taken again.
//! * A slot given up is punched and taken again when no child lives that was forked while it was in
//!   use (see [`DataFile::tidy`]). A child never takes, writes or punches slots of the file it
//!   inherited: what it stores goes to a file of its own.
//! * Descriptors are numbers in the table of the pager's threads: only those threads read, write,
//!   take slots, tidy and share. Giving a slot up is for any thread.
//! * A fork happens when none of the locks here is held: reading takes none, and threads that do
//!   anything else are kept away meanwhile.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use terrace_os::lock::{Lock, LockGuard};

use syscalls::{Errno, Sysno, syscall};

use crate::medium::{EXTENT_BYTES, MediumError, from_errno};
use crate::page::PAGE_BYTES;

/// Unit of direct I/O; file systems ask for 512 or 4096.
const BLOCK_BYTES: usize = PAGE_BYTES;

/// A descriptor by number.
type Fd = i32;

/// Memory fit for direct I/O.
#[repr(C, align(4096))]
#[derive(Clone)]
pub(crate) struct Block([u8; BLOCK_BYTES]);

impl Block {
    const EMPTY: Block = Block([0; BLOCK_BYTES]);
}

/// Zeroed blocks.
fn blocks(count: usize) -> io::Result<Vec<Block>> {
    let mut blocks = Vec::new();
    blocks.try_reserve_exact(count).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    blocks.resize(count, Block::EMPTY);
    Ok(blocks)
}

pub(crate) fn bytes_of(blocks: &mut [Block]) -> &mut [u8] {
    // SAFETY: a Block is BLOCK_BYTES bytes without padding, valid whatever they are.
    unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), size_of_val(blocks)) }
}

/// Buffer into which a thread reads stored bytes that are not in memory. Takes no memory until it
/// is used.
#[derive(Default)]
pub struct ReadBuffer(Vec<Block>);

impl ReadBuffer {
    /// Blocks enough for a page and what is stored beside it, wherever in a block it begins.
    const BLOCKS: usize = 3;

    /// An empty buffer.
    pub const fn new() -> Self {
        ReadBuffer(Vec::new())
    }

    /// Bytes of the buffer. Waits for memory if there is none, since a page must be restored.
    fn bytes(&mut self) -> &mut [u8] {
        while self.0.is_empty() {
            match blocks(Self::BLOCKS) {
                Ok(blocks) => self.0 = blocks,
                Err(_) => wait_for_memory(),
            }
        }
        bytes_of(&mut self.0)
    }
}

/// The files of one tier in one directory.
pub struct FileMedium {
    directory: String,
    /// Inherited files, oldest first, and behind them this process's own, if it has one.
    files: Lock<Vec<Arc<DataFile>>>,
    /// See [`FileMedium::held_bytes`].
    held_bytes: Arc<AtomicU64>,
    in_dram: AtomicBool,
    refuses: AtomicBool,
    refused_before: AtomicBool,
}

impl FileMedium {
    /// A medium without files. Touches nothing.
    pub fn new(directory: &str) -> Self {
        FileMedium {
            directory: directory.to_owned(),
            files: Lock::new(Vec::new()),
            held_bytes: Arc::default(),
            in_dram: AtomicBool::new(true),
            refuses: AtomicBool::new(false),
            refused_before: AtomicBool::new(false),
        }
    }

    /// Whether files can be made, written, read and punched in `directory`: makes one and lets it
    /// go.
    ///
    /// # Errors
    /// [`MediumError::File`], with what failed and a remedy.
    pub fn check(directory: &str) -> Result<(), MediumError> {
        let file = DataFile::make(directory, Arc::default())?;
        close(file.fd.load(Relaxed));
        Ok(())
    }

    /// All system calls of this module, whatever comes of them: for a process that may die of one.
    pub fn make_all_calls(directory: &str) {
        let _ = Self::check(directory);
        if let Ok((ours, childs)) = pipe() {
            is_hung_up(ours);
            close(childs);
            close(ours);
        }
    }

    /// Where the files are.
    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// Whether what is written stays in DRAM: tmpfs, and file systems that do direct I/O through
    /// the page cache. Found out when the first file is made; true until then.
    pub fn is_in_dram(&self) -> bool {
        self.in_dram.load(Relaxed)
    }

    /// Bytes written to slots that were given up and not yet punched: because a forked child may
    /// need them, or for a moment.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed)
    }

    /// Whether it is worth while to ask for an extent; false from [`FileMedium::refuse`] on until
    /// [`FileMedium::try_again`].
    pub fn accepts(&self) -> bool {
        !self.refuses.load(Relaxed)
    }

    /// Notes that something was refused (no space, an error). True the first time.
    pub fn refuse(&self) -> bool {
        self.refuses.store(true, Relaxed);
        !self.refused_before.swap(true, Relaxed)
    }

    /// Asks for extents again, since space may have been given back.
    pub fn try_again(&self) {
        self.refuses.store(false, Relaxed);
    }

    /// Gives space back and closes inherited files that are needed no more: now and then, by one
    /// thread. True if there is more space than before.
    pub fn tidy(&self) -> bool {
        let files = self.files().clone();
        let mut gained = false;
        for file in files {
            gained |= file.tidy();
        }
        self.files().retain(|file| !file.is_closed());
        gained
    }

    /// Begins the sharing of files with a child, before a fork; no slot is taken any more until it
    /// is over. What is in use is from now on a child's too, as long as that holds the tokens it is
    /// given. Followed by [`FileMedium::end_sharing`] once the child has been given them.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn begin_sharing(&self) -> io::Result<()> {
        self.files_in_use().iter().try_for_each(|file| file.begin_sharing())
    }

    /// Ends [`FileMedium::begin_sharing`], also where it failed: only the child holds its tokens
    /// from now on.
    pub fn end_sharing(&self) {
        self.files().iter().for_each(|file| file.end_sharing());
    }

    /// Files in which this process has extents: what a forked child must be given.
    pub fn files_in_use(&self) -> Vec<Arc<DataFile>> {
        self.files().iter().filter(|file| file.live.load(Relaxed) > 0).cloned().collect()
    }

    /// Files of a parent that are open here.
    pub fn files_inherited(&self) -> Vec<Arc<DataFile>> {
        self.files()
            .iter()
            .filter(|file| file.is_inherited() && !file.is_closed())
            .cloned()
            .collect()
    }

    /// In a forked child, once the files it needs are [`DataFile::inherit`]ed: forgets the others,
    /// which are its parent's.
    pub fn reset_after_fork(&self) {
        self.files().retain(|file| file.is_inherited());
        self.held_bytes.store(0, Relaxed);
        self.try_again();
    }

    /// Allocates an extent with nothing in it.
    pub(crate) fn allocate(&self) -> Result<FileExtent, MediumError> {
        let file = self.own_file()?;
        let mut slot = file.take_slot();
        if slot.is_err() && self.tidy() {
            slot = file.take_slot();
        }
        let slot = slot.map_err(|errno| file.error("enlarge", from_errno(errno)))?;
        Ok(FileExtent { file, slot, written: 0, tail: [0; BLOCK_BYTES] })
    }

    /// Allocates a slot of [`EXTENT_BYTES`] with nothing in it.
    pub(crate) fn allocate_slot(&self) -> Result<FileSlot, MediumError> {
        let extent = self.allocate()?;
        Ok(FileSlot { extent, written: AtomicU32::new(0) })
    }

    fn own_file(&self) -> Result<Arc<DataFile>, MediumError> {
        let mut files = self.files();
        if let Some(own) = files.last().filter(|file| !file.is_inherited()) {
            return Ok(Arc::clone(own));
        }
        let own = Arc::new(DataFile::make(&self.directory, Arc::clone(&self.held_bytes))?);
        self.in_dram.store(own.in_dram, Relaxed);
        files.push(Arc::clone(&own));
        Ok(own)
    }

    /// Locks the list. Every path leaves the list whole before anything that could panic.
    fn files(&self) -> LockGuard<'_, Vec<Arc<DataFile>>> {
        self.files.lock()
    }
}

/// An unlinked file.
pub struct DataFile {
    directory: String,
    /// Descriptor; −1 once the file is closed.
    fd: AtomicI32,
    identity: Identity,
    in_dram: bool,
    /// Extents of this process in the file.
    live: AtomicU32,
    held_bytes: Arc<AtomicU64>,
    /// Whether the file is a parent's: for reading only.
    inherited: AtomicBool,
    /// The end of a pipe that says to the file's owner that we live. It is ours if the file is
    /// inherited, and during a fork the child's.
    token: AtomicI32,
    token_identity: Lock<Identity>,
    slots: Lock<Slots>,
    /// Where blocks that are complete are put together for writing.
    writing: Lock<Vec<Block>>,
}

/// Device and inode.
pub type Identity = (u64, u64);

#[derive(Default)]
struct Slots {
    /// Number of forks before each slot was taken.
    born: Vec<u32>,
    /// Free slots, lowest first: the file stays short.
    free: BinaryHeap<Reverse<u32>>,
    given_up: Vec<GivenUp>,
    forks: u32,
    /// For each fork whose child, or a descendant of it, may live: its number, and the end of a
    /// pipe whose other end those hold.
    living: Vec<(u32, Fd)>,
}

/// A slot that is in use no more in this process.
struct GivenUp {
    slot: u32,
    bytes: u64,
    /// Number of forks before the slot was given up.
    died: u32,
}

impl DataFile {
    fn make(directory: &str, held_bytes: Arc<AtomicU64>) -> Result<Self, MediumError> {
        let refused = |doing| {
            move |errno| MediumError::File {
                doing,
                directory: directory.to_owned(),
                source: from_errno(errno),
            }
        };
        let fd = create(directory, libc::O_DIRECT).or_else(|errno| {
            if errno == Errno::EINVAL { create(directory, 0) } else { Err(errno) }
        });
        let fd = fd.map_err(refused("make"))?;
        let known = identity(fd).map_err(refused("look at")).and_then(|identity| {
            Ok((identity, try_out(fd).map_err(|(doing, errno)| refused(doing)(errno))?))
        });
        let (identity, in_dram) = known.inspect_err(|_| close(fd))?;
        Ok(DataFile {
            directory: directory.to_owned(),
            fd: AtomicI32::new(fd),
            identity,
            in_dram,
            live: AtomicU32::new(0),
            held_bytes,
            inherited: AtomicBool::new(false),
            token: AtomicI32::new(-1),
            token_identity: Lock::default(),
            slots: Lock::default(),
            writing: Lock::default(),
        })
    }

    fn is_inherited(&self) -> bool {
        self.inherited.load(Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.fd.load(Relaxed) < 0
    }

    fn slots(&self) -> LockGuard<'_, Slots> {
        self.slots.lock()
    }

    fn error(&self, doing: &'static str, source: io::Error) -> MediumError {
        MediumError::File { doing, directory: self.directory.clone(), source }
    }

    fn take_slot(&self) -> Result<u32, Errno> {
        let slot = {
            let mut slots = self.slots();
            let forks = slots.forks;
            match slots.free.pop() {
                Some(Reverse(slot)) => {
                    slots.born[slot as usize] = forks;
                    slot
                }
                None => {
                    slots.born.push(forks);
                    slots.born.len() as u32 - 1
                }
            }
        };
        // Space is got now, so that few writes can fail. In DRAM that would take what is perhaps
        // never written.
        if !self.in_dram {
            match allocate_space(self.fd.load(Relaxed), slot) {
                Ok(()) | Err(Errno::EOPNOTSUPP) => {}
                Err(errno) => {
                    // What it got of it.
                    let _ = punch(self.fd.load(Relaxed), slot);
                    self.slots().free.push(Reverse(slot));
                    return Err(errno);
                }
            }
        }
        self.live.fetch_add(1, Relaxed);
        Ok(slot)
    }

    fn give_up(&self, slot: u32, bytes: u64) {
        self.live.fetch_sub(1, Relaxed);
        if self.is_inherited() {
            return;
        }
        self.held_bytes.fetch_add(bytes, Relaxed);
        let mut slots = self.slots();
        let died = slots.forks;
        slots.given_up.push(GivenUp { slot, bytes, died });
    }

    /// Whether giving `slot` up would give no space back at present.
    fn is_frozen(&self, slot: u32) -> bool {
        let slots = self.slots();
        self.is_inherited()
            || slots.living.iter().any(|(fork, _)| *fork > slots.born[slot as usize])
    }

    /// Punches what was given up and no living child may read: those forked while the slot was in
    /// use. Closes an inherited file in which nothing is left.
    fn tidy(&self) -> bool {
        if self.is_inherited() {
            if self.live.load(Relaxed) == 0 {
                close(self.fd.swap(-1, Relaxed));
                close(self.token.swap(-1, Relaxed));
            }
            return false;
        }
        // Without the lock, which others wait for, while the kernel is at it.
        let (due, fd) = {
            let mut slots = self.slots();
            slots.living.retain(|(_, pipe)| {
                !is_hung_up(*pipe) || {
                    close(*pipe);
                    false
                }
            });
            let Slots { given_up, living, born, .. } = &mut *slots;
            let needed = |gone: &GivenUp| {
                living
                    .iter()
                    .any(|(fork, _)| born[gone.slot as usize] < *fork && *fork <= gone.died)
            };
            let due: Vec<GivenUp> = given_up.extract_if(.., |gone| !needed(gone)).collect();
            (due, self.fd.load(Relaxed))
        };
        let mut gained = false;
        for gone in due {
            let punched = punch(fd, gone.slot).is_ok();
            let mut slots = self.slots();
            if punched {
                slots.free.push(Reverse(gone.slot));
                self.held_bytes.fetch_sub(gone.bytes, Relaxed);
                gained = true;
            } else {
                slots.given_up.push(gone);
            }
        }
        gained
    }

    fn begin_sharing(&self) -> io::Result<()> {
        if self.is_inherited() {
            // Our own token stands for our children too.
            return Ok(());
        }
        let (ours, childs) = pipe().map_err(from_errno)?;
        let mut slots = self.slots();
        slots.forks += 1;
        let fork = slots.forks;
        slots.living.push((fork, ours));
        self.token.store(childs, Relaxed);
        *self.token_identity() = identity(childs).unwrap_or_default();
        Ok(())
    }

    fn end_sharing(&self) {
        if !self.is_inherited() {
            close(self.token.swap(-1, Relaxed));
        }
    }

    /// What a child must be given, between `begin_sharing` and `end_sharing`: the file and the
    /// token, in our threads' table.
    pub fn descriptors(&self) -> [Fd; 2] {
        [self.fd.load(Relaxed), self.token.load(Relaxed)]
    }

    /// In the child: the file is a parent's from now on, and these are its descriptors.
    pub fn inherit(&self, [file, token]: [Fd; 2]) {
        self.fd.store(file, Relaxed);
        self.token.store(token, Relaxed);
        self.inherited.store(true, Relaxed);
        *self.slots() = Slots::default();
    }

    /// Whether these are the file's descriptors, and not something that the program put in their
    /// place.
    pub fn are(&self, [file, token]: [Fd; 2]) -> bool {
        identity(file) == Ok(self.identity)
            && identity(token).as_ref() == Ok(&*self.token_identity())
    }

    fn token_identity(&self) -> LockGuard<'_, Identity> {
        self.token_identity.lock()
    }
}

/// A slot in use: bytes appended one after the other. How many there are (`cursor`) is the pool's
/// to know.
pub(crate) struct FileExtent {
    file: Arc<DataFile>,
    slot: u32,
    /// Bytes in the file.
    written: u32,
    /// The block in which `cursor` is, filled up to there.
    tail: [u8; BLOCK_BYTES],
}

impl FileExtent {
    /// Puts two parts behind the `cursor` bytes there are; they take `room`. Nothing has changed
    /// after an error.
    pub fn append(
        &mut self,
        cursor: usize,
        parts: [&[u8]; 2],
        room: usize,
    ) -> Result<(), MediumError> {
        debug_assert!(parts[0].len() + parts[1].len() <= room && cursor + room <= EXTENT_BYTES);
        let at = cursor % BLOCK_BYTES;
        let put = |into: &mut [u8]| {
            let (first, rest) = into[at..].split_at_mut(parts[0].len());
            first.copy_from_slice(parts[0]);
            rest[..parts[1].len()].copy_from_slice(parts[1]);
        };
        if at + room < BLOCK_BYTES {
            put(&mut self.tail);
            return Ok(());
        }
        let mut writing = self.file.writing.lock();
        let needed = (at + room).div_ceil(BLOCK_BYTES);
        if writing.len() < needed {
            *writing = blocks(needed).map_err(|error| self.file.error("write", error))?;
        }
        let image = bytes_of(&mut writing);
        image[..at].copy_from_slice(&self.tail[..at]);
        put(image);
        let complete = (at + room) / BLOCK_BYTES * BLOCK_BYTES;
        self.write(cursor - at, &image[..complete])?;
        self.written = (cursor - at + complete) as u32;
        let rest = at + room - complete;
        self.tail[..rest].copy_from_slice(&image[complete..complete + rest]);
        Ok(())
    }

    /// The bytes `start..start + len` of the `cursor` bytes there are.
    pub fn read<'b>(
        &'b self,
        cursor: usize,
        start: usize,
        len: usize,
        buffer: &'b mut ReadBuffer,
    ) -> Result<&'b [u8], MediumError> {
        let tail_start = cursor / BLOCK_BYTES * BLOCK_BYTES;
        let end = start + len;
        if start >= tail_start {
            return Ok(&self.tail[start - tail_start..end - tail_start]);
        }
        let from = start / BLOCK_BYTES * BLOCK_BYTES;
        let to = end.next_multiple_of(BLOCK_BYTES).min(tail_start);
        let image = buffer.bytes();
        read_exactly(
            self.file.fd.load(Relaxed),
            &mut image[..to - from],
            self.offset() + from as u64,
        )
        .map_err(|error| self.file.error("read", error))?;
        if end > to {
            image[to - from..end - from].copy_from_slice(&self.tail[..end - to]);
        }
        Ok(&image[start - from..end - from])
    }

    /// Reads all of the `cursor` bytes there are.
    pub fn load(&self, cursor: usize) -> Result<Vec<Block>, MediumError> {
        let tail_start = cursor / BLOCK_BYTES * BLOCK_BYTES;
        let mut image =
            blocks(cursor.div_ceil(BLOCK_BYTES)).map_err(|error| self.file.error("read", error))?;
        let bytes = bytes_of(&mut image);
        read_exactly(self.file.fd.load(Relaxed), &mut bytes[..tail_start], self.offset())
            .map_err(|error| self.file.error("read", error))?;
        bytes[tail_start..cursor].copy_from_slice(&self.tail[..cursor - tail_start]);
        Ok(image)
    }

    /// Fills a new extent with `cursor` bytes.
    pub fn fill(&mut self, cursor: usize, image: &mut [Block]) -> Result<(), MediumError> {
        debug_assert_eq!(self.written, 0);
        let complete = cursor / BLOCK_BYTES * BLOCK_BYTES;
        let bytes = bytes_of(image);
        self.write(0, &bytes[..complete])?;
        self.written = complete as u32;
        self.tail[..cursor - complete].copy_from_slice(&bytes[complete..cursor]);
        Ok(())
    }

    /// Whether the extent may be appended to: not in a file of a parent, which appends there
    /// itself. (Children do not mind: they know nothing of blocks that were not complete when they
    /// were forked.)
    pub fn takes_more(&self) -> bool {
        !self.file.is_inherited()
    }

    /// Whether a living child may read the extent, or a parent owns it: compacting it would take
    /// space, not give it.
    pub fn is_frozen(&self) -> bool {
        self.file.is_frozen(self.slot)
    }

    /// Whether the file takes DRAM.
    pub fn is_in_dram(&self) -> bool {
        self.file.in_dram
    }

    fn offset(&self) -> u64 {
        u64::from(self.slot) * EXTENT_BYTES as u64
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), MediumError> {
        if self.file.is_inherited() {
            return Err(self.file.error("write", io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        write_exactly(self.file.fd.load(Relaxed), bytes, self.offset() + at as u64)
            .map_err(|error| self.file.error("write", error))
    }
}

impl Drop for FileExtent {
    fn drop(&mut self) {
        self.file.give_up(self.slot, self.written.into());
    }
}

/// A slot in use whose blocks are written in place, more than once. That is never done while a
/// child may read them, for which the caller is answerable (see [`FileSlot::is_frozen`]).
pub(crate) struct FileSlot {
    extent: FileExtent,
    /// Bytes up to the end of the last block that was written.
    written: AtomicU32,
}

impl FileSlot {
    /// See [`FileExtent::takes_more`].
    pub fn takes_more(&self) -> bool {
        self.extent.takes_more()
    }

    /// See [`FileExtent::is_frozen`].
    pub fn is_frozen(&self) -> bool {
        self.extent.is_frozen()
    }

    /// Writes at `at`, and nothing else, within the `around.1` bytes from `around.0` on, whole
    /// blocks; where they are `new`, the rest of them becomes zeros. One thread at a time writes.
    pub fn write(
        &self,
        at: usize,
        bytes: &[u8],
        around: (usize, usize),
        new: bool,
    ) -> Result<(), MediumError> {
        let file = &self.extent.file;
        let (from, to) = match new {
            true => (around.0, around.0 + around.1),
            false => {
                (at / BLOCK_BYTES * BLOCK_BYTES, (at + bytes.len()).next_multiple_of(BLOCK_BYTES))
            }
        };
        let mut image =
            blocks((to - from) / BLOCK_BYTES).map_err(|error| file.error("write", error))?;
        let image = bytes_of(&mut image);
        if !new {
            read_exactly(file.fd.load(Relaxed), image, self.extent.offset() + from as u64)
                .map_err(|error| file.error("read", error))?;
        }
        image[at - from..at - from + bytes.len()].copy_from_slice(bytes);
        self.extent.write(from, image)?;
        self.written.fetch_max(to as u32, Relaxed);
        Ok(())
    }

    /// Reads `len` bytes at `at`, a page at most.
    pub fn read<'b>(
        &'b self,
        at: usize,
        len: usize,
        buffer: &'b mut ReadBuffer,
    ) -> Result<&'b [u8], MediumError> {
        // All of it is in the file, nothing in a tail.
        self.extent.read(EXTENT_BYTES, at, len, buffer)
    }
}

impl Drop for FileSlot {
    fn drop(&mut self) {
        self.extent.written = *self.written.get_mut();
    }
}

// ---- system calls: raw, as everywhere in this crate ----

/// A new file without a name, readable and writable by this user.
fn create(directory: &str, flags: i32) -> Result<Fd, Errno> {
    let flags = flags | libc::O_RDWR | libc::O_CLOEXEC;
    let path = CString::new(directory).map_err(|_| Errno::EINVAL)?;
    match open(&path, flags | libc::O_TMPFILE | libc::O_EXCL) {
        Err(Errno::EOPNOTSUPP | Errno::EISDIR) => create_and_unlink(directory, flags),
        result => result,
    }
}

/// Makes a file and unlinks it, for file systems without O_TMPFILE.
fn create_and_unlink(directory: &str, flags: i32) -> Result<Fd, Errno> {
    for n in 0.. {
        let path = CString::new(format!("{directory}/.terrace-{}-{n}", std::process::id()))
            .map_err(|_| Errno::EINVAL)?;
        match open(&path, flags | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW) {
            Err(Errno::EEXIST) if n < 1000 => {}
            Err(errno) => return Err(errno),
            Ok(fd) => {
                // SAFETY: the path is NUL-terminated; the file is the one just made.
                let unlinked =
                    unsafe { syscall!(Sysno::unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
                return unlinked.map(|_| fd).inspect_err(|_| close(fd));
            }
        }
    }
    Err(Errno::EEXIST)
}

fn open(path: &CString, flags: i32) -> Result<Fd, Errno> {
    // SAFETY: the path is NUL-terminated and outlives the call.
    let fd = unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) }? as Fd;
    if fd > 2 {
        return Ok(fd);
    }
    // Where 0, 1 and 2 are closed: what is written there by mistake must not get into the file.
    // SAFETY: no memory is involved.
    let above = unsafe { syscall!(Sysno::fcntl, fd, libc::F_DUPFD_CLOEXEC, 3) };
    close(fd);
    above.map(|fd| fd as Fd)
}

/// Writes to a new file, reads it and punches it. Says whether what was written stayed in memory.
/// That cannot be known otherwise: tmpfs accepts O_DIRECT, and ext4, btrfs and others fall back to
/// the page cache for some files without an error. On failure, says what failed.
fn try_out(fd: Fd) -> Result<bool, (&'static str, Errno)> {
    let mut block = [Block::EMPTY];
    if let Err(errno) = write_block(fd, &mut block) {
        if errno != Errno::EINVAL {
            return Err(("write", errno));
        }
        // Opened for direct I/O, and cannot do it after all.
        // SAFETY: no memory is involved.
        let _ = unsafe { syscall!(Sysno::fcntl, fd, libc::F_SETFL, 0) };
        write_block(fd, &mut block).map_err(|errno| ("write", errno))?;
    }
    let mut found = [Block::EMPTY];
    read_exactly(fd, bytes_of(&mut found), 0).map_err(|error| ("read", errno_of(&error)))?;
    if found[0].0 != block[0].0 {
        return Err(("read", Errno::EIO));
    }
    let in_dram = cached_pages(fd) != Ok(0);
    punch(fd, 0).map_err(|errno| ("punch a hole into", errno))?;
    Ok(in_dram)
}

fn write_block(fd: Fd, block: &mut [Block; 1]) -> Result<(), Errno> {
    block[0].0.fill(0x5A);
    write_exactly(fd, bytes_of(block), 0).map_err(|error| errno_of(&error))
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::new)
}

/// Pages of the first block that are in the page cache (cachestat, Linux 6.5).
fn cached_pages(fd: Fd) -> Result<u64, Errno> {
    let range = [0u64, BLOCK_BYTES as u64];
    let mut answer = [0u64; 5];
    // SAFETY: struct cachestat_range (16 bytes) is read, struct cachestat (40 bytes) is written.
    unsafe { syscall!(Sysno::cachestat, fd, range.as_ptr(), answer.as_mut_ptr(), 0) }?;
    Ok(answer[0])
}

/// Device and inode of an open file: the same descriptor may have become another file's.
pub fn identity(fd: Fd) -> Result<Identity, Errno> {
    // SAFETY: a struct of integers, valid when zeroed.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one struct stat, which on 64-bit machines is the C library's.
    unsafe { syscall!(Sysno::fstat, fd, &raw mut stat) }?;
    Ok((stat.st_dev, stat.st_ino))
}

fn slot_range(slot: u32) -> (u64, u64) {
    (u64::from(slot) * EXTENT_BYTES as u64, EXTENT_BYTES as u64)
}

fn allocate_space(fd: Fd, slot: u32) -> Result<(), Errno> {
    let (start, len) = slot_range(slot);
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fallocate, fd, 0, start, len) }.map(drop)
}

/// Gives a slot's space back to the file system.
fn punch(fd: Fd, slot: u32) -> Result<(), Errno> {
    let (start, len) = slot_range(slot);
    // SAFETY: no memory is involved.
    unsafe {
        syscall!(
            Sysno::fallocate,
            fd,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            start,
            len
        )
    }
    .map(drop)
}

/// Makes a pipe; returns the reading and the writing end.
fn pipe() -> Result<(Fd, Fd), Errno> {
    let mut ends = [0i32; 2];
    // SAFETY: two descriptors are written.
    unsafe { syscall!(Sysno::pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }?;
    Ok((ends[0], ends[1]))
}

/// Whether no process holds the writing end of a pipe any more.
fn is_hung_up(reading_end: Fd) -> bool {
    let mut poll = libc::pollfd { fd: reading_end, events: 0, revents: 0 };
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one struct pollfd and one timespec, alive for the call; no signal mask.
    let found = unsafe { syscall!(Sysno::ppoll, &raw mut poll, 1, &raw const at_once, 0, 8) };
    found == Ok(1) && poll.revents & libc::POLLHUP != 0
}

fn close(fd: Fd) {
    if fd >= 0 {
        // SAFETY: callers pass descriptors that this module opened or was given.
        let _ = unsafe { syscall!(Sysno::close, fd) };
    }
}

/// Where the kernel has no memory for a read: a short sleep. By a bare call, because the caller
/// holds a store's lock: `errno` may lie on an evicted page of that store.
fn wait_for_memory() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    // SAFETY: no descriptors; the timespec lives through the call.
    let _ = unsafe { syscall!(Sysno::ppoll, 0, 0, &raw const time, 0, 8) };
}

fn read_exactly(fd: Fd, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the buffer is exclusively ours for the call.
        match unsafe { syscall!(Sysno::pread64, fd, bytes.as_mut_ptr(), bytes.len(), offset) } {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it is shorter than what was written to it",
                ));
            }
            Ok(count) => {
                bytes = &mut bytes[count..];
                offset += count as u64;
            }
            // The data is there.
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOMEM) => wait_for_memory(),
            Err(errno) => return Err(from_errno(errno)),
        }
    }
    Ok(())
}

fn write_exactly(fd: Fd, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the buffer outlives the call.
        match unsafe { syscall!(Sysno::pwrite64, fd, bytes.as_ptr(), bytes.len(), offset) } {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(from_errno(errno)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// Appends to an extent, or to a new extent.
        Append {
            extent: usize,
            len: usize,
        },
        Read {
            extent: usize,
            from: usize,
            len: usize,
        },
        Copy(usize),
        GiveUp(usize),
        Tidy,
        Fork,
        ChildEnds(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let (any, len) = (0usize..64, prop_oneof![1usize..100, 800usize..2500, 4000usize..=4200]);
        let step = prop_oneof![
            20 => (any.clone(), len.clone()).prop_map(|(extent, len)| Step::Append { extent, len }),
            10 => (any.clone(), 0usize..EXTENT_BYTES, len).prop_map(
                |(extent, from, len)| Step::Read { extent, from, len }
            ),
            2 => any.clone().prop_map(Step::Copy),
            4 => any.clone().prop_map(Step::GiveUp),
            6 => Just(Step::Tidy),
            2 => Just(Step::Fork),
            2 => any.prop_map(Step::ChildEnds),
        ];
        prop::collection::vec(step, 1..300)
    }

    /// What a process knows of an extent, and what must be in it.
    struct Known {
        slot: u32,
        tail: [u8; BLOCK_BYTES],
        bytes: Vec<u8>,
    }

    struct Child {
        token: Fd,
        extents: Vec<Known>,
    }

    /// A child's view of an extent: slot and tail of the moment of the fork, the file of now.
    fn check_child(file: &Arc<DataFile>, child: &Child) {
        for Known { slot, tail, bytes } in &child.extents {
            file.live.fetch_add(1, Relaxed);
            let view = std::mem::ManuallyDrop::new(FileExtent {
                file: Arc::clone(file),
                slot: *slot,
                written: 0,
                tail: *tail,
            });
            let mut image = view.load(bytes.len()).unwrap();
            assert!(
                bytes_of(&mut image)[..bytes.len()] == bytes[..],
                "a child's extent in slot {slot} was changed"
            );
            file.live.fetch_sub(1, Relaxed);
        }
    }

    /// Directories on disk and in memory.
    fn directories() -> [String; 2] {
        [std::env::temp_dir().display().to_string(), "/dev/shm".to_string()]
    }

    fn run(directory: &str, steps: &[Step]) {
        let medium = FileMedium::new(directory);
        let mut extents: Vec<(FileExtent, Vec<u8>)> = Vec::new();
        let mut children: Vec<Child> = Vec::new();
        let mut buffer = ReadBuffer::new();
        let mut state = 1u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        for step in steps {
            match *step {
                Step::Append { extent, len } => {
                    let room = len.next_multiple_of(8);
                    let fits = |(_, bytes): &&mut (FileExtent, Vec<u8>)| {
                        bytes.len() + room <= EXTENT_BYTES
                    };
                    if extent % 8 == 0 || extents.is_empty() {
                        extents.push((medium.allocate().unwrap(), Vec::new()));
                    }
                    let index = extent % extents.len();
                    if let Some((file, bytes)) = extents.get_mut(index).filter(fits) {
                        let new: Vec<u8> = (0..len).map(|_| random()).collect();
                        file.append(bytes.len(), [&new, &[]], room).unwrap();
                        bytes.extend(&new);
                        // What is between belongs to no extent.
                        let mut image = file.load(bytes.len() + room - len).unwrap();
                        bytes.extend(&bytes_of(&mut image)[bytes.len()..][..room - len]);
                    }
                }
                Step::Read { extent, from, len } if !extents.is_empty() => {
                    let (file, bytes) = &extents[extent % extents.len()];
                    let start = from % bytes.len().max(1);
                    let len = len.min(bytes.len() - start);
                    assert!(
                        file.read(bytes.len(), start, len, &mut buffer).unwrap()
                            == &bytes[start..start + len]
                    );
                }
                Step::Copy(extent) if !extents.is_empty() => {
                    let index = extent % extents.len();
                    let (file, bytes) = &mut extents[index];
                    let mut image = file.load(bytes.len()).unwrap();
                    let mut copy = medium.allocate().unwrap();
                    copy.fill(bytes.len(), &mut image).unwrap();
                    *file = copy;
                }
                Step::GiveUp(extent) if !extents.is_empty() => {
                    drop(extents.swap_remove(extent % extents.len()))
                }
                Step::Fork => {
                    medium.begin_sharing().unwrap();
                    if let Some(file) = medium.files_in_use().first() {
                        // SAFETY: no memory is involved.
                        let token =
                            unsafe { syscall!(Sysno::dup, file.descriptors()[1]) }.unwrap() as Fd;
                        let known = |(file, bytes): &(FileExtent, Vec<u8>)| Known {
                            slot: file.slot,
                            tail: file.tail,
                            bytes: bytes.clone(),
                        };
                        children
                            .push(Child { token, extents: extents.iter().map(known).collect() });
                    }
                    medium.end_sharing();
                }
                Step::ChildEnds(child) if !children.is_empty() => {
                    close(children.swap_remove(child % children.len()).token)
                }
                Step::Tidy => {
                    medium.tidy();
                }
                _ => {}
            }
            if let Some(file) = medium.files().first().cloned() {
                children.iter().for_each(|child| check_child(&file, child));
            }
        }
        for (file, bytes) in &extents {
            let mut image = file.load(bytes.len()).unwrap();
            assert!(bytes_of(&mut image)[..bytes.len()] == bytes[..]);
        }
        extents.clear();
        children.iter().for_each(|child| close(child.token));
        medium.tidy();
        assert_eq!(medium.held_bytes(), 0);
        if let Some(file) = medium.files().first() {
            let slots = file.slots();
            assert_eq!(
                (slots.free.len(), slots.given_up.len(), slots.living.len()),
                (slots.born.len(), 0, 0)
            );
            drop(slots);
            assert_eq!(blocks_of(file), 0, "everything was punched");
            close(file.fd.load(Relaxed));
        }
    }

    /// 512-byte blocks that the file system has for a file.
    fn blocks_of(file: &DataFile) -> i64 {
        // SAFETY: as in `identity`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as in `identity`.
        unsafe { syscall!(Sysno::fstat, file.fd.load(Relaxed), &raw mut stat) }.unwrap();
        // ext4 counts the block with its map of extents.
        stat.st_blocks / 16
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Every extent reads as written, and every child reads what there was at its fork, as long
        /// as it lives.
        #[test]
        fn extents_keep_what_their_process_and_its_children_know(steps in steps()) {
            directories().iter().for_each(|directory| run(directory, &steps));
        }
    }

    /// With two children that live at different times, each keeps what it needs and nothing else.
    #[test]
    fn a_slot_is_kept_for_the_children_that_saw_it_in_use() {
        let medium = FileMedium::new("/dev/shm");
        let extent = || {
            let mut extent = medium.allocate().unwrap();
            extent.append(0, [&[7; 4096], &[]], 4096).unwrap();
            extent
        };
        let fork = || {
            medium.begin_sharing().unwrap();
            // SAFETY: no memory is involved.
            let token = unsafe { syscall!(Sysno::dup, medium.files_in_use()[0].descriptors()[1]) }
                .unwrap() as Fd;
            medium.end_sharing();
            token
        };
        let (old, own) = (extent(), extent());
        let first = fork();
        assert!(old.is_frozen());
        let young = extent();
        assert!(!young.is_frozen());
        let second = fork();
        let youngest = extent();
        drop((old, young, youngest));
        assert!(medium.tidy());
        assert_eq!(medium.held_bytes(), 2 * 4096, "the youngest was never shared");
        close(second);
        assert!(medium.tidy());
        assert_eq!(medium.held_bytes(), 4096, "the first child knows nothing of the young one");
        close(first);
        assert!(medium.tidy());
        assert_eq!((medium.held_bytes(), own.is_frozen()), (0, false));
    }

    #[test]
    fn an_inherited_file_is_for_reading() {
        let medium = FileMedium::new("/dev/shm");
        let mut extent = medium.allocate().unwrap();
        extent.append(0, [&[7; 5000], &[]], 5000).unwrap();
        medium.begin_sharing().unwrap();
        let parents = medium.files_in_use().remove(0);
        parents.inherit(parents.descriptors());
        assert!(parents.are(parents.descriptors()) && !parents.are([0, 1]));
        medium.reset_after_fork();
        let mut buffer = ReadBuffer::new();
        assert_eq!(extent.read(5000, 4000, 1000, &mut buffer).unwrap(), [7; 1000]);
        assert!(extent.is_frozen() && !extent.takes_more());
        assert!(extent.append(5000, [&[8; 4096], &[]], 4096).is_err());
        let own = medium.allocate().unwrap();
        assert!(!Arc::ptr_eq(&own.file, &parents) && own.takes_more());
        drop(extent);
        medium.tidy();
        assert!(parents.is_closed(), "nothing is left in it");
        assert_eq!(medium.files().len(), 1);
    }

    #[test]
    fn directories_that_will_not_do_are_explained() {
        let said = |directory: &str| FileMedium::check(directory).unwrap_err().to_string();
        for (directory, remedy) in [
            ("/no/such/directory", "directory that exists"),
            ("/dev/null", "directory that exists"),
            ("/proc", "cannot make"),
        ] {
            assert!(said(directory).contains(remedy), "{}", said(directory));
        }
        for directory in directories() {
            FileMedium::check(&directory).unwrap();
        }
    }

    #[test]
    fn a_file_that_was_cut_is_an_error_and_not_zeros() {
        let medium = FileMedium::new(&directories()[0]);
        let mut extent = medium.allocate().unwrap();
        extent.append(0, [&[7; 4096], &[]], 4096).unwrap();
        // SAFETY: no memory is involved.
        unsafe { syscall!(Sysno::ftruncate, extent.file.fd.load(Relaxed), 0) }.unwrap();
        let error = extent.read(4096, 0, 100, &mut ReadBuffer::new()).unwrap_err();
        assert!(error.to_string().contains("shorter than what was written"), "{error}");
    }
}
