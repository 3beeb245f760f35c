//! Arenas: what the program wants to lie together (M2T §III-A). One for each bucket of a hash table
//! is not too many: 48 bytes each.

use super::page::Owner;

/// Arenas of a block of records.
const BLOCK: usize = 256;

/// An arena. It may be on few pages, which it shares with others, or on many of its own.
#[derive(Default)]
pub struct Arena {
    /// Bytes of the arena's objects.
    pub bytes: u64,
    /// Pages that the arena came to when it was on more than `few`; also some that it has left.
    #[allow(clippy::box_collection)] // Reason: a third of the room, in each of a million.
    many: Option<Box<Vec<u32>>>,
    /// The pages that the arena came to, while they are at most three: page numbers plus one; 0:
    /// none.
    few: [u32; 3],
    /// Number of objects.
    pub objects: u32,
    /// Odd while the arena lives; a different number for each arena that this record is used for.
    pub generation: u32,
    /// Least number of entries in the list of the arena's pages that are out of date.
    stale: u32,
    /// The page that no other arena may use: page number plus one; 0: none.
    pub private: u32,
    /// The zone that the arena is in.
    pub class: u8,
}

const _: () = assert!(size_of::<Arena>() <= 48);

impl Arena {
    /// Records that the arena has objects on a page now.
    pub fn came(&mut self, page: u32) {
        match (&mut self.many, self.few.iter_mut().find(|few| **few == 0)) {
            (Some(many), _) => many.push(page),
            (None, Some(few)) => *few = page + 1,
            (None, None) => {
                let mut many: Vec<u32> = self.few.iter().map(|few| few - 1).collect();
                many.push(page);
                (self.many, self.few) = (Some(Box::new(many)), [0; 3]);
            }
        }
    }

    /// Has a page looked at first on which much is free again; the arena came to it long ago.
    pub fn can_return(&mut self, page: u32) {
        if let Some(many) = &mut self.many {
            many.push(page);
            self.stale += 1;
        }
    }

    /// Records that the arena has left a page. Now and then calls `is_there` for its pages, to drop
    /// those that it has left.
    pub fn left(&mut self, is_there: impl Fn(u32) -> bool) {
        self.stale += 1;
        if self.objects == 0 {
            (self.many, self.few, self.stale) = (None, [0; 3], 0);
        } else if self.many.is_none() {
            self.few
                .iter_mut()
                .filter(|few| **few > 0 && !is_there(**few - 1))
                .for_each(|few| *few = 0);
            self.stale = 0;
        } else if self.stale as usize * 2 > self.pages().count() {
            let mut pages: Vec<u32> = self.pages().filter(|page| is_there(*page)).collect();
            // The arena may have come to a page twice.
            pages.sort_unstable();
            pages.dedup();
            (self.many, self.few, self.stale) = (None, [0; 3], 0);
            pages.into_iter().for_each(|page| self.came(page));
        }
    }

    /// Takes the arena's pages: then it has none.
    pub fn take_pages(&mut self) -> Arena {
        Arena { many: self.many.take(), few: std::mem::take(&mut self.few), ..Arena::default() }
    }

    /// The pages that the arena came to, the last first. It may have left some, and some may be
    /// listed twice.
    pub fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        let many = self.many.iter().flat_map(|many| many.iter().rev().copied());
        many.chain(self.few.iter().rev().filter(|few| **few > 0).map(|few| few - 1))
    }
}

/// The arenas of a shard.
pub struct Arenas {
    blocks: Vec<Box<[Arena; BLOCK]>>,
    free: Vec<Owner>,
    len: u32,
}

impl Arenas {
    pub const fn new() -> Self {
        Arenas { blocks: Vec::new(), free: Vec::new(), len: 0 }
    }

    /// Makes an arena. Returns its number, from 1, and generation; `None` when there are too many.
    pub fn create(&mut self, class: u8) -> Option<(Owner, u32)> {
        let owner = match self.free.pop() {
            Some(owner) => owner,
            // Numbers have to fit into identifiers.
            None if self.len == u32::MAX >> 4 => return None,
            None => {
                if (self.len as usize).is_multiple_of(BLOCK) {
                    self.blocks.push(Box::new(std::array::from_fn(|_| Arena::default())));
                }
                self.len += 1;
                self.len
            }
        };
        let arena = self.at(owner)?;
        *arena = Arena { generation: arena.generation.wrapping_add(1), class, ..Arena::default() };
        Some((owner, arena.generation))
    }

    /// The record of this number.
    pub fn at(&mut self, owner: Owner) -> Option<&mut Arena> {
        let index = (owner as usize).checked_sub(1).filter(|index| *index < self.len as usize)?;
        Some(&mut self.blocks[index / BLOCK][index % BLOCK])
    }

    /// The arena of this number, if it is that of this generation.
    pub fn alive(&mut self, owner: Owner, generation: u32) -> Option<&mut Arena> {
        self.at(owner).filter(|arena| arena.generation == generation && generation % 2 == 1)
    }

    /// Ends an arena that has no objects any more.
    pub fn end(&mut self, owner: Owner) {
        if let Some(arena) = self.at(owner) {
            *arena = Arena { generation: arena.generation.wrapping_add(1), ..Arena::default() };
            self.free.push(owner);
        }
    }
}
