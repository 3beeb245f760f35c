//! Rules to get from a return address to the frame that called. There is one for each, read once
//! from the program's own unwind information (`.eh_frame`) and cached.
//!
//! A rule says where the caller's frame begins (from the stack pointer or from `rbp`) and where the
//! caller's `rbp` was saved. That is enough to go on. Rows that need more than that (expressions,
//! as in signal trampolines; other registers) have no rule. Nothing here allocates, takes a lock or
//! depends on frame pointers. The loader's tables are asked through `_dl_find_object` (glibc 2.35),
//! which is without locks too; on older C libraries no address has a rule.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindSection,
};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// Number of rules in the cache; the next address with the same place takes it over.
const RULES: usize = 4096;
/// Bytes of stack below which no rule is looked up, only taken from the cache: it takes up to 6
/// KiB.
const STACK_NEEDED: usize = 32 << 10;

/// DWARF's numbers of x86-64 registers.
const RBP: Register = Register(6);
const RSP: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);

/// What a frame's start is counted from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// The stack pointer after the return.
    Stack,
    /// `rbp` after the return.
    FramePointer,
}

/// A rule in 64 bits: kind (2), base (1), whether `rbp` was saved (1), its place in words (28), the
/// frame's offset (32).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule(u64);

const KIND_NONE: u64 = 1;
const KIND_LAST: u64 = 2;
const KIND_RULE: u64 = 3;

impl Rule {
    const NONE: Rule = Rule(KIND_NONE);
    const LAST: Rule = Rule(KIND_LAST);

    fn new(base: Base, frame_offset: i64, saved: Option<i64>) -> Option<Self> {
        let offset = i32::try_from(frame_offset).ok()?;
        let saved = match saved {
            None => 0,
            Some(place) if place % 8 == 0 && (-(1 << 27)..1 << 27).contains(&(place / 8)) => {
                1 << 3 | ((place / 8) as u64 & 0xfff_ffff) << 4
            }
            Some(_) => return None,
        };
        Some(Rule(
            KIND_RULE
                | u64::from(base == Base::FramePointer) << 2
                | saved
                | u64::from(offset as u32) << 32,
        ))
    }

    /// Whether no frame called this one.
    #[inline]
    pub fn is_last(self) -> bool {
        self.0 & 3 == KIND_LAST
    }

    /// What the frame's start is counted from.
    #[inline]
    pub fn base(self) -> Base {
        if self.0 & 1 << 2 == 0 { Base::Stack } else { Base::FramePointer }
    }

    /// Bytes from the base to the calling frame's stack pointer before the call.
    #[inline]
    pub fn frame_offset(self) -> isize {
        (self.0 >> 32) as u32 as i32 as isize
    }

    /// Where the calling frame's `rbp` lies, in bytes from the base (a negative number). `None`:
    /// still in the register.
    #[inline]
    pub fn saved_pointer(self) -> Option<isize> {
        (self.0 & 1 << 3 != 0).then(|| ((self.0 as i32) >> 4) as isize * 8)
    }
}

/// Rule in the cache, and the address that it is for. The address is mixed with the rule, so that
/// halves of two writers do not fit.
struct Cached {
    key: AtomicU64,
    rule: AtomicU64,
}

static CACHE: [Cached; RULES] =
    [const { Cached { key: AtomicU64::new(0), rule: AtomicU64::new(0) } }; RULES];
/// Number that goes into every key. It changes after a library was unloaded, because another
/// library may come to its place.
static GENERATION: AtomicU64 = AtomicU64::new(1 << GENERATION_SHIFT);
/// Bits by which the generation is shifted, above any address.
const GENERATION_SHIFT: u32 = 48;

/// The rule for the frame to which `address` returns; `None` if there is none. `stack_left`: bytes
/// of stack below.
#[inline]
pub fn rule_after(address: usize, stack_left: usize) -> Option<Rule> {
    let key = address as u64 ^ GENERATION.load(Relaxed);
    let cached = &CACHE[place(address)];
    let rule = cached.rule.load(Relaxed);
    let rule = if cached.key.load(Relaxed) ^ rule == key && rule != 0 {
        Rule(rule)
    } else {
        look_up(address, key, stack_left)
    };
    (rule != Rule::NONE).then_some(rule)
}

#[inline]
fn place(address: usize) -> usize {
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (64 - RULES.ilog2())
}

#[cold]
#[inline(never)]
fn look_up(address: usize, key: u64, stack_left: usize) -> Rule {
    if stack_left < STACK_NEEDED {
        return Rule::NONE;
    }
    // The call, not what comes after it: that may belong to another row, or to another function
    // where the call does not return.
    let rule = read_rule(address.wrapping_sub(1)).unwrap_or(Rule::NONE);
    let cached = &CACHE[place(address)];
    cached.rule.store(rule.0, Relaxed);
    cached.key.store(key ^ rule.0, Relaxed);
    rule
}

/// Forgets all rules: a library was unloaded.
pub fn forget() {
    let next = |generation: u64| {
        Some(generation.wrapping_add(1 << GENERATION_SHIFT).max(1 << GENERATION_SHIFT))
    };
    let _ = GENERATION.fetch_update(Relaxed, Relaxed, next);
}

/// glibc's `struct dl_find_object` on x86-64.
#[repr(C)]
struct FoundObject {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: *mut c_void,
    /// Address of the object's `.eh_frame_hdr`; 0 if it has none.
    eh_frame_hdr: usize,
    reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(address: usize, result: *mut FoundObject) -> i32;

/// Address of `_dl_find_object`; 0 where the C library has none, or before [`find_objects`].
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);

/// Looks up what the lookups of rules need. False if it is not there.
pub fn find_objects() -> bool {
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) } as usize;
    FIND_OBJECT.store(found, Release);
    found != 0
}

/// glibc's `struct link_map`, the part that is public.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const libc::c_char,
}

/// Where the object that an address lies in is loaded, and its file name. The name is empty for the
/// program itself.
pub fn object_of(address: usize) -> Option<(usize, String)> {
    let object = find_object(address)?;
    let map = object.link_map.cast::<LinkMap>();
    // SAFETY: the loader's description of a loaded object. If another thread unloads it meanwhile,
    // it may be gone. Its code was running, so such a thread breaks more than this.
    let (base, name) = unsafe { ((*map).base, (*map).name) };
    let name = if name.is_null() {
        String::new()
    } else {
        // SAFETY: as above; a NUL-terminated name.
        unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
    };
    Some((base, name))
}

fn find_object(address: usize) -> Option<FoundObject> {
    let find: FindObject = match FIND_OBJECT.load(Acquire) {
        0 => return None,
        // SAFETY: the C library's function of this name has this signature.
        function => unsafe { std::mem::transmute::<usize, FindObject>(function) },
    };
    let mut object = std::mem::MaybeUninit::<FoundObject>::zeroed();
    // SAFETY: fills in the object, and may be called anywhere.
    unsafe { (find(address, object.as_mut_ptr()) == 0).then(|| object.assume_init()) }
}

/// Room for what compilers write: callee-saved registers, and two levels of remembered rows.
struct Small;

impl UnwindContextStorage<usize> for Small {
    type Rules = [(Register, RegisterRule<usize>); 24];
    type Stack = [gimli::UnwindTableRow<usize, Self>; 3];
}

/// Reads the rule of the row for an address. `None` if there is no row, or it says what a rule
/// cannot.
fn read_rule(address: usize) -> Option<Rule> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let object = find_object(address)?;
    if object.eh_frame_hdr == 0 {
        return None;
    }
    let header_bytes = bytes(object.eh_frame_hdr, object.map_end)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(object.eh_frame_hdr as u64);
    let header = EhFrameHdr::new(header_bytes, LittleEndian).parse(&bases, 8).ok()?;
    let gimli::Pointer::Direct(start) = header.eh_frame_ptr() else { return None };
    let bases = bases.set_eh_frame(start);
    let section = EhFrame::new(bytes(start as usize, object.map_end)?, LittleEndian);
    let table = header.table()?;
    let offset = table.pointer_to_offset(table.lookup(address as u64, &bases).ok()?).ok()?;
    let entry = section.fde_from_offset(&bases, offset, EhFrame::cie_from_offset).ok()?;
    let mut context = UnwindContext::<usize, Small>::new_in();
    let row = entry.unwind_info_for_address(&section, &bases, &mut context, address as u64).ok()?;
    match row.register(RETURN_ADDRESS) {
        Some(RegisterRule::Offset(-8)) => {}
        Some(RegisterRule::Undefined) => return Some(Rule::LAST),
        _ => return None,
    }
    let (base, offset) = match row.cfa() {
        CfaRule::RegisterAndOffset { register: RSP, offset } => (Base::Stack, *offset),
        CfaRule::RegisterAndOffset { register: RBP, offset } => (Base::FramePointer, *offset),
        _ => return None,
    };
    let saved = match row.register(RBP) {
        None | Some(RegisterRule::SameValue) => None,
        Some(RegisterRule::Offset(offset)) => Some(offset),
        _ => return None,
    };
    Rule::new(base, offset, saved)
}

/// The bytes of a loaded object from `start` to where it ends.
fn bytes(start: usize, end: usize) -> Option<&'static [u8]> {
    let len = end.checked_sub(start)?;
    // SAFETY: within an object that the loader has mapped. Of these bytes only tables of unwind
    // information are read. They are in memory and do not change as long as code of the object
    // runs, as it does: it called us.
    Some(unsafe { std::slice::from_raw_parts(start as *const u8, len) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_rule_keeps_what_it_was_made_of(
            stack in any::<bool>(),
            offset in any::<i32>(),
            saved in prop::option::of(-(1i64 << 27)..1 << 27),
        ) {
            let base = if stack { Base::Stack } else { Base::FramePointer };
            let rule = Rule::new(base, i64::from(offset), saved.map(|words| words * 8)).unwrap();
            prop_assert_eq!(rule.base(), base);
            prop_assert_eq!(rule.frame_offset(), offset as isize);
            prop_assert_eq!(rule.saved_pointer(), saved.map(|words| words as isize * 8));
            prop_assert!(!rule.is_last() && rule != Rule::NONE);
        }
    }

    #[test]
    fn what_no_rule_can_say_is_refused() {
        assert_eq!(Rule::new(Base::Stack, 1 << 40, None), None);
        assert_eq!(Rule::new(Base::Stack, 16, Some(-12)), None);
        assert_eq!(Rule::new(Base::Stack, 16, Some(1 << 40)), None);
    }
}
