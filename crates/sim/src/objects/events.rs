//! What a program does with its objects: the events that a source makes and a layout follows.

use crate::source::SourceError;

/// An object, numbered from 0 in the order of allocation.
pub type ObjectId = u32;

/// What is asked of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Size of the object, bytes.
    pub bytes: u64,
    /// Number of the calling context that asks for the object.
    pub context: u32,
    /// An object that it should lie beside (M2T's `NextTo`), if the program says so.
    pub near: Option<ObjectId>,
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Makes the next object.
    Allocated(Request),
    /// An object goes.
    Freed(ObjectId),
    /// An object has another size, and may lie elsewhere from now on.
    Resized {
        /// Number of the object.
        object: ObjectId,
        /// Size of the object now, bytes.
        bytes: u64,
    },
    /// Bytes of an object are read or written.
    Touched {
        /// Number of the object.
        object: ObjectId,
        /// First byte touched, from the object's beginning.
        offset: u64,
        /// Number of bytes touched, at least 1.
        bytes: u32,
        /// Whether the bytes are changed.
        write: bool,
    },
}

impl Event {
    /// All of an object is read.
    pub fn read(object: ObjectId, bytes: u32) -> Event {
        Event::Touched { object, offset: 0, bytes, write: false }
    }
}

/// What a program does, block by block: what is generated, or recorded.
pub trait ObjectSource: Send {
    /// Clears `block` and fills it with what comes next; leaves it empty at the end. An error says
    /// what is wrong, and with what.
    fn next_block(&mut self, block: &mut Vec<Event>) -> Result<(), SourceError>;
}

/// Makes a source, the same one each time: some layouts must have seen all of it before they begin.
pub type MakeSource<'a> = dyn Fn() -> Box<dyn ObjectSource> + Send + Sync + 'a;

/// All that a program does.
pub fn for_each(
    source: &mut dyn ObjectSource,
    mut each: impl FnMut(Event),
) -> Result<(), SourceError> {
    let mut block = Vec::new();
    loop {
        source.next_block(&mut block)?;
        if block.is_empty() {
            return Ok(());
        }
        block.iter().for_each(|event| each(*event));
    }
}
