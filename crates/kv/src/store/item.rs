//! An item in memory: a header of 48 bytes, the key, the value.

use std::mem::size_of;
use std::ptr;
use std::slice;

use crate::protocol::KEY_MAX;
use crate::tiering::Aside;

/// The item was read since it was stored.
pub const FETCHED: u8 = 1;
/// The item was marked stale by a client.
pub const STALE: u8 = 2;
/// A client was told that it won the right to renew the item.
pub const TOKEN_SENT: u8 = 4;
/// The key was given in base64.
pub const KEY_BINARY: u8 = 8;

/// A new item, before it has a place.
#[derive(Clone, Copy, Debug)]
pub struct NewItem<'a> {
    /// The key, of 1 to 250 bytes.
    pub key: &'a [u8],
    /// The parts of the value, stored one after the other.
    pub value: [&'a [u8]; 2],
    /// The client's flags.
    pub flags: u32,
    /// The second at which the item expires, or 0.
    pub expires: u32,
    /// The state bits.
    pub state: u8,
}

/// The header that precedes the key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The key's hash.
    pub hash: u64,
    /// The identifier of this version of the item.
    pub cas: u64,
    /// The bytes of the value.
    pub value_len: u32,
    /// The bytes that the item takes, with header and padding.
    pub size: u32,
    /// The client's flags.
    pub flags: u32,
    /// The second at which the item expires, or 0.
    pub expires: u32,
    /// The second at which the item was stored.
    pub created: u32,
    /// The second at which the item was last read.
    pub accessed: u32,
    /// The bytes of the key.
    pub key_len: u8,
    /// State bits such as [`FETCHED`].
    pub state: u8,
}

/// An item that is accessed under its bucket's lock.
#[derive(Debug)]
pub struct Item<'a> {
    /// Header of the item.
    pub header: &'a mut Header,
    /// Key of the item.
    pub key: &'a [u8],
    /// Value of the item.
    pub value: &'a mut [u8],
}

impl Item<'_> {
    /// The item at a pointer.
    ///
    /// # Safety
    ///
    /// An item was written there, and its bucket's lock is held as long as the result lives.
    pub unsafe fn from_pointer<'a>(pointer: *mut u8) -> Item<'a> {
        // SAFETY: of the caller; key and value follow the header.
        unsafe {
            let header = &mut *pointer.cast::<Header>();
            let key = pointer.add(size_of::<Header>());
            let key_len = usize::from(header.key_len);
            let value = slice::from_raw_parts_mut(key.add(key_len), header.value_len as usize);
            Item { header, key: slice::from_raw_parts(key, key_len), value }
        }
    }

    /// Whether the item's time is over.
    pub fn is_expired(&self, now: u32) -> bool {
        self.header.is_expired(now)
    }
}

/// Whether the item at a pointer has a key. The pointer must come from a locked bucket.
pub(super) fn has_key(pointer: *mut u8, key: &[u8]) -> bool {
    // SAFETY: the index has the item, and the caller holds its bucket's lock.
    unsafe { Item::from_pointer(pointer) }.key == key
}

/// Reads header and key of the item at a pointer from a locked bucket, and restores no page for it.
/// `key` receives the key.
pub(super) fn list<'a>(
    pointer: *const u8,
    aside: &mut Aside,
    key: &'a mut [u8; KEY_MAX],
) -> (Header, &'a [u8]) {
    aside.forget();
    let mut bytes = [0; size_of::<Header>()];
    // SAFETY: the index has the item, and the caller holds its bucket's lock.
    unsafe { aside.read(pointer, &mut bytes) };
    // SAFETY: the bytes of a header, all of whose fields are numbers; they need not be aligned.
    let header = unsafe { bytes.as_ptr().cast::<Header>().read_unaligned() };
    let key = &mut key[..usize::from(header.key_len)];
    // SAFETY: as above; the key follows its header.
    unsafe { aside.read(pointer.add(size_of::<Header>()), key) };
    (header, key)
}

/// The bytes of the item at a pointer, which must come from a locked bucket.
pub(super) fn size(pointer: *mut u8) -> usize {
    // SAFETY: the index has the item, and the caller holds its bucket's lock.
    unsafe { (*pointer.cast::<Header>()).size as usize }
}

/// Overwrites key and value of an item that was moved elsewhere, so that the page compresses
/// better. Its header stays, by which those behind it are found.
///
/// # Safety
///
/// An item of `size` bytes was written there, and no thread reads it any more.
pub(super) unsafe fn wipe(pointer: *mut u8, size: usize) {
    let header = size_of::<Header>();
    // SAFETY: of the caller: `size` bytes from the pointer on are the item's.
    unsafe { ptr::write_bytes(pointer.add(header), 0, size - header) };
}

/// The bytes that a new item takes in a segment.
pub(super) fn allocated_bytes(new: &NewItem<'_>) -> usize {
    (size_of::<Header>() + new.key.len() + new.value[0].len() + new.value[1].len())
        .next_multiple_of(8)
}

/// Writes a new item.
///
/// # Safety
///
/// At the pointer there are `size` writable bytes, aligned to 8, that no other thread uses.
pub(super) unsafe fn write(pointer: *mut u8, new: &NewItem<'_>, hash: u64, now: u32, size: usize) {
    let header = Header {
        hash,
        cas: 0,
        value_len: (new.value[0].len() + new.value[1].len()) as u32,
        size: size as u32,
        flags: new.flags,
        expires: new.expires,
        created: now,
        accessed: now,
        key_len: new.key.len() as u8,
        state: new.state,
    };
    // SAFETY: of the caller; `allocated_bytes` has counted the same parts.
    unsafe {
        pointer.cast::<Header>().write(header);
        let mut at = pointer.add(size_of::<Header>());
        for part in [new.key, new.value[0], new.value[1]] {
            ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
            at = at.add(part.len());
        }
    }
}

/// Bytes that memcached would count for an item. Statistics and `-I` use them.
pub fn item_bytes(key_len: usize, value_len: usize, flags: u32) -> usize {
    let (header, cas, terminators) = (48, 8, 3);
    header + cas + terminators + key_len + value_len + if flags == 0 { 0 } else { 4 }
}

impl Header {
    /// Whether the item's time is over.
    pub fn is_expired(&self, now: u32) -> bool {
        self.expires != 0 && self.expires <= now
    }

    /// A header with what a client may ask of an item that was made just now.
    pub fn of_new(cas: u64, expires: u32) -> Header {
        Header {
            hash: 0,
            cas,
            value_len: 0,
            size: 0,
            flags: 0,
            expires,
            created: 0,
            accessed: 0,
            key_len: 0,
            state: 0,
        }
    }
}
