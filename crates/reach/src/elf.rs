//! Programs whose loader is not ours: none, another C library's, another architecture's; and such
//! as bring a sanitizer.
//!
//! Offsets are those of the ELF-64 structures. Numbers are native-endian: a file of the other order
//! is another processor's.

use crate::file::File;
use crate::{Cause, Name};

#[cfg(target_arch = "x86_64")]
const OUR_MACHINE: u16 = 62; // EM_X86_64
#[cfg(target_arch = "aarch64")]
const OUR_MACHINE: u16 = 183; // EM_AARCH64
const OUR_ORDER: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
const CLASS_32: u8 = 1;
/// PT_LOAD, PT_DYNAMIC and PT_INTERP.
const LOADED: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;

/// The most entries of a table that are looked at. No linker makes as many; a damaged file may say
/// so.
const MOST_ENTRIES: u64 = 1 << 16;

pub(crate) fn foreign(file: &mut File) -> Option<Cause> {
    let [class, order] = file.bytes(4)?;
    if class == CLASS_32 {
        return Some(Cause::Bits32);
    }
    if order != OUR_ORDER || file.u16(18)? != OUR_MACHINE {
        return Some(Cause::OtherProcessor);
    }
    let segments = Segments::of(file)?;
    let Some(loader) = segments.find(file, INTERPRETER) else {
        // The loader itself, started as a command, has no loader and honours a preload.
        let is_loader = file.real_name().is_some_and(|name| is_glibc_loader(name.bytes()));
        return (!is_loader).then_some(Cause::Static);
    };
    let mut path = [0u8; 256];
    let skipped = loader.bytes.saturating_sub(path.len() as u64);
    let len = file.read(&mut path, loader.offset + skipped)?.min(loader.bytes as usize);
    let path = path[..len].split(|byte| *byte == 0).next()?;
    match path.rsplit(|byte| *byte == b'/').next()? {
        name if is_glibc_loader(name) => instrumented(file, &segments),
        name if name.starts_with(b"ld-musl") => Some(Cause::Musl),
        name => Some(Cause::OtherLoader(Name::new(name))),
    }
}

fn is_glibc_loader(name: &[u8]) -> bool {
    [b"ld-linux".as_slice(), b"ld64.so", b"ld.so", b"ld-2."]
        .iter()
        .any(|start| name.starts_with(start))
}

struct Segments {
    offset: u64,
    bytes: u64,
    count: u64,
}

struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
}

impl Segments {
    fn of(file: &mut File) -> Option<Segments> {
        Some(Segments {
            offset: file.offset(32)?,
            bytes: file.u16(54)?.into(),
            count: file.u16(56)?.into(),
        })
    }

    fn nth(&self, file: &mut File, number: u64, kind: u32) -> Option<Segment> {
        let at = self.offset + number * self.bytes;
        if file.u32(at)? != kind {
            return None;
        }
        Some(Segment {
            offset: file.offset(at + 8)?,
            address: file.u64(at + 16)?,
            bytes: file.offset(at + 32)?,
        })
    }

    fn find(&self, file: &mut File, kind: u32) -> Option<Segment> {
        (0..self.count).find_map(|number| self.nth(file, number, kind))
    }

    /// Where in the file an address is.
    fn offset_of(&self, file: &mut File, address: u64) -> Option<u64> {
        (0..self.count).find_map(|number| {
            let segment = self.nth(file, number, LOADED)?;
            let within =
                address.checked_sub(segment.address).filter(|within| *within < segment.bytes)?;
            Some(segment.offset + within)
        })
    }
}

/// By the name of its library, what a sanitizer is called. One for undefined behaviour alone needs
/// no malloc.
static SANITIZERS: [(&[u8], &[u8], &str); 5] = [
    (b"asan", b"__asan_init\0", "AddressSanitizer"),
    (b"tsan", b"__tsan_init\0", "ThreadSanitizer"),
    (b"msan", b"__msan_init\0", "MemorySanitizer"),
    (b"lsan", b"__lsan_init\0", "LeakSanitizer"),
    (b"hwasan", b"__hwasan_init\0", "HWAddressSanitizer"),
];

fn instrumented(file: &mut File, segments: &Segments) -> Option<Cause> {
    let dynamic = Dynamic::of(file, segments)?;
    let linked = dynamic.sanitizer_library(file);
    // Linked in, it defines malloc, and its start in one of the two tables of symbols. The large
    // one is read for such programs only.
    let named = match linked {
        Some(name) => name,
        None if !dynamic.defines(file, b"malloc\0") => return None,
        None => {
            let by_hash = SANITIZERS.iter().find(|(_, start, _)| dynamic.defines(file, start));
            by_hash
                .or_else(|| {
                    SANITIZERS.get(Symbols::of(file)?.find(
                        file,
                        &SANITIZERS.map(|(_, start, _)| start),
                        b"san_init\0",
                    )?)
                })?
                .2
        }
    };
    // Our own recorder in place of a sanitizer, which passes malloc on.
    const RECORDER: &[u8] = b"terrace_record_start\0";
    if Symbols::of(file).is_some_and(|all| all.find(file, &[RECORDER], RECORDER).is_some()) {
        return None;
    }
    Some(Cause::Sanitizer(named))
}

/// What the loader needs of a program.
struct Dynamic {
    entries: Segment,
    names: u64,
    symbols: u64,
    gnu_hash: Option<u64>,
    hash: Option<u64>,
}

impl Dynamic {
    fn of(file: &mut File, segments: &Segments) -> Option<Dynamic> {
        let entries = segments.find(file, DYNAMIC)?;
        let mut found = [None; 4];
        each_entry(file, &entries, &mut |_, tag, value| {
            // DT_STRTAB, DT_SYMTAB, DT_GNU_HASH, DT_HASH
            const TAGS: [u64; 4] = [5, 6, 0x6fff_fef5, 4];
            if let Some(which) = TAGS.iter().position(|wanted| *wanted == tag) {
                found[which] = Some(value);
            }
            None::<()>
        });
        let mut offset = |which: usize| segments.offset_of(file, found[which]?);
        Some(Dynamic {
            names: offset(0)?,
            symbols: offset(1)?,
            gnu_hash: offset(2),
            hash: offset(3),
            entries,
        })
    }

    fn sanitizer_library(&self, file: &mut File) -> Option<&'static str> {
        const NEEDED: u64 = 1;
        each_entry(file, &self.entries, &mut |file, tag, value| {
            if tag != NEEDED {
                return None;
            }
            let mut name = [0u8; 32];
            file.read(&mut name, self.names.checked_add(value)?)?;
            // libasan.so.8 with gcc, libclang_rt.asan-x86_64.so with clang.
            let name = name.strip_prefix(b"lib")?;
            let is = |short: &[u8]| match name.strip_prefix(b"clang_rt.") {
                Some(rest) => rest.starts_with(short),
                None => name.strip_prefix(short).is_some_and(|rest| rest.starts_with(b".so")),
            };
            SANITIZERS.iter().find(|(short, ..)| is(short)).map(|(.., name)| *name)
        })
    }

    /// Whether the program itself defines this symbol for others; `name` ends with a NUL.
    fn defines(&self, file: &mut File, name: &[u8]) -> bool {
        match (self.gnu_hash, self.hash) {
            (Some(table), _) => self.by_gnu_hash(file, table, name),
            (None, Some(table)) => self.by_hash(file, table, name),
            (None, None) => None,
        }
        .is_some()
    }

    fn by_gnu_hash(&self, file: &mut File, table: u64, name: &[u8]) -> Option<()> {
        let wanted = name[..name.len() - 1]
            .iter()
            .fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add((*byte).into()));
        let (buckets, first, filter_words, shift) =
            (file.u32(table)?, file.u32(table + 4)?, file.u32(table + 8)?, file.u32(table + 12)?);
        if buckets == 0 || filter_words == 0 {
            return None;
        }
        let filter = file.u64(table + 16 + u64::from(wanted / 64 % filter_words) * 8)?;
        let bits = 1u64 << (wanted % 64) | 1u64 << (wanted.checked_shr(shift)? % 64);
        if filter & bits != bits {
            return None;
        }
        let start = table + 16 + u64::from(filter_words) * 8;
        let begins = file.u32(start + u64::from(wanted % buckets) * 4)?;
        let chain = start + u64::from(buckets) * 4;
        for symbol in u64::from(begins.checked_sub(first)?)..u64::from(begins) + MOST_ENTRIES {
            let hash = file.u32(chain + symbol * 4)?;
            if hash | 1 == wanted | 1 && self.is_defined_as(file, symbol + u64::from(first), name) {
                return Some(());
            }
            if hash & 1 == 1 {
                return None;
            }
        }
        None
    }

    fn by_hash(&self, file: &mut File, table: u64, name: &[u8]) -> Option<()> {
        let wanted = name[..name.len() - 1].iter().fold(0u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add((*byte).into());
            let high = hash & 0xf000_0000;
            (hash ^ high >> 24) & !high
        });
        let (buckets, all) = (file.u32(table)?, file.u32(table + 4)?);
        if buckets == 0 {
            return None;
        }
        let mut symbol = file.u32(table + 8 + u64::from(wanted % buckets) * 4)?;
        // No longer than the table, should it run in a circle.
        for _ in 0..all {
            if symbol == 0 {
                return None;
            }
            if self.is_defined_as(file, symbol.into(), name) {
                return Some(());
            }
            symbol = file.u32(table + 8 + (u64::from(buckets) + u64::from(symbol)) * 4)?;
        }
        None
    }

    fn is_defined_as(&self, file: &mut File, symbol: u64, name: &[u8]) -> bool {
        let mut is = || {
            let at = self.symbols + symbol * SYMBOL_BYTES;
            let its = u64::from(file.u32(at)?);
            let mut read = [0u8; NAME_BYTES];
            file.read(&mut read, self.names + its)?;
            Some(file.u16(at + 6)? != 0 && read.starts_with(name))
        };
        is().unwrap_or(false)
    }
}

const SYMBOL_BYTES: u64 = 24;
/// Room for a name; those that are looked for are shorter.
const NAME_BYTES: usize = 24;

/// Calls `each` with tag and value of the entries, until it finds something.
fn each_entry<T>(
    file: &mut File,
    entries: &Segment,
    each: &mut dyn FnMut(&mut File, u64, u64) -> Option<T>,
) -> Option<T> {
    for entry in 0..(entries.bytes / 16).min(MOST_ENTRIES) {
        let at = entries.offset + entry * 16;
        let (tag, value) = (file.u64(at)?, file.u64(at + 8)?);
        if tag == 0 {
            return None;
        }
        if let Some(found) = each(file, tag, value) {
            return Some(found);
        }
    }
    None
}

/// The table of all symbols, which a debugger needs and a loader does not.
struct Symbols {
    offset: u64,
    bytes: u64,
    names: u64,
    names_bytes: u64,
}

impl Symbols {
    fn of(file: &mut File) -> Option<Symbols> {
        const SYMBOL_TABLE: u32 = 2;
        let (sections, bytes, count) =
            (file.offset(40)?, u64::from(file.u16(58)?), u64::from(file.u16(60)?));
        let section = |number: u64| sections + number * bytes;
        let table = (0..count).map(section).find(|at| file.u32(at + 4) == Some(SYMBOL_TABLE))?;
        let names = section(file.u32(table + 40)?.into());
        Some(Symbols {
            offset: file.offset(table + 24)?,
            bytes: file.offset(table + 32)?,
            names: file.offset(names + 24)?,
            names_bytes: file.offset(names + 32)?,
        })
    }

    /// Index of the name in `names` that is a defined symbol's. All names end with `end`, which
    /// ends with a NUL. The names are read once.
    fn find(&self, file: &mut File, names: &[&[u8]], end: &[u8]) -> Option<usize> {
        let mut chunk = [0u8; 4096];
        // Chunks overlap, so that an end on their border is in one of them.
        let step = chunk.len() - end.len();
        for at in (0..self.names_bytes).step_by(step) {
            let len = file.read(&mut chunk, self.names + at)?;
            let mut from = 0;
            while let Some(found) = position(&chunk[from..len], end) {
                let ends = at + (from + found + end.len()) as u64;
                if let Some(which) = names.iter().position(|name| self.has(file, name, ends)) {
                    return Some(which);
                }
                from += found + 1;
            }
        }
        None
    }

    /// Whether a defined symbol's name is this one, which would end at this place in the table of
    /// names.
    fn has(&self, file: &mut File, name: &[u8], ends: u64) -> bool {
        let mut read = [0u8; NAME_BYTES];
        let Some(begins) = ends.checked_sub(name.len() as u64) else { return false };
        if file.read(&mut read, self.names + begins).is_none() || !read.starts_with(name) {
            return false;
        }
        (0..self.bytes / SYMBOL_BYTES).any(|symbol| {
            let at = self.offset + symbol * SYMBOL_BYTES;
            file.u32(at).map(u64::from) == Some(begins)
                && file.u16(at + 6).is_some_and(|section| section != 0)
        })
    }
}

fn position(text: &[u8], wanted: &[u8]) -> Option<usize> {
    // SAFETY: both are valid for reads of their lengths; the call keeps nothing.
    let found = unsafe {
        libc::memmem(text.as_ptr().cast(), text.len(), wanted.as_ptr().cast(), wanted.len())
    };
    (!found.is_null()).then(|| found as usize - text.as_ptr() as usize)
}
