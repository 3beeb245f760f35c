//! An environment as `execve` takes it, with a library taken out of LD_PRELOAD.
//!
//! The changed list is on the stack, or in memory mapped for it if it is very large. The strings
//! are the program's, but for those that had to be written anew.

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use syscalls::{Sysno, syscall};

/// A list of strings that ends with a null. Itself it may be null: the kernel takes that for an
/// empty one.
pub type Strings = *const *const c_char;

/// The strings of a list.
///
/// # Safety
/// The list and its strings must stay as they are while they are read.
pub unsafe fn strings<'a>(list: Strings) -> impl Iterator<Item = &'a CStr> + Clone {
    let mut at = list;
    core::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: the caller's promise; the last is null, and nothing behind it is read.
        unsafe {
            let string = *at;
            if string.is_null() {
                return None;
            }
            at = at.add(1);
            Some(CStr::from_ptr(string))
        }
    })
}

/// The last part of a path.
pub fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// Whether a variable is LD_PRELOAD and has a library of this file name in it.
pub fn preloads(variable: &[u8], library: &[u8]) -> bool {
    variable
        .strip_prefix(PRELOAD)
        .is_some_and(|list| libraries(list).any(|(_, name)| file_name(name) == library))
}

/// The libraries of a list as the loader takes them apart, each with the separator before it.
fn libraries(list: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = list;
    core::iter::from_fn(move || {
        let begins = rest.iter().position(|byte| !b" :".contains(byte))?;
        let len = rest[begins..]
            .iter()
            .position(|byte| b" :".contains(byte))
            .unwrap_or(rest.len() - begins);
        let (separator, name) = (&rest[..begins], &rest[begins..begins + len]);
        rest = &rest[begins + len..];
        Some((separator, name))
    })
}

/// Words of the changed environment that are on the stack, and such as are where there are more.
const FEW_WORDS: usize = 512;
const MORE_WORDS: usize = 4096;

/// Calls `execute` with an environment in which LD_PRELOAD has no library of this file name, and no
/// variable begins with `dropped`.
///
/// # Safety
/// The list and its strings must stay as they are meanwhile.
pub unsafe fn without<R>(
    environment: Strings,
    library: &[u8],
    dropped: &[u8],
    execute: impl FnOnce(Strings) -> R,
) -> R {
    let (mut count, mut bytes) = (1, 0);
    // SAFETY: the caller's promise.
    for variable in unsafe { strings(environment) } {
        count += 1;
        if variable.to_bytes().starts_with(PRELOAD) {
            bytes += variable.count_bytes() + 1;
        }
    }
    let words = count + bytes.div_ceil(size_of::<usize>());
    // SAFETY: the caller's promise.
    let filled = |room: &mut [MaybeUninit<usize>]| unsafe {
        fill(room, count, environment, library, dropped)
    };
    if words <= FEW_WORDS {
        return execute(filled(&mut [const { MaybeUninit::uninit() }; FEW_WORDS]));
    }
    large(words, environment, filled, execute)
}

/// Not inlined: its frame is for few calls only.
#[inline(never)]
fn large<R>(
    words: usize,
    environment: Strings,
    filled: impl FnOnce(&mut [MaybeUninit<usize>]) -> Strings,
    execute: impl FnOnce(Strings) -> R,
) -> R {
    if words <= MORE_WORDS {
        return execute(filled(&mut [const { MaybeUninit::uninit() }; MORE_WORDS]));
    }
    let len = words * size_of::<usize>();
    const ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const KIND: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new private mapping at an address of the kernel's choice disturbs nothing.
    let Ok(start) = (unsafe { syscall!(Sysno::mmap, 0, len, ACCESS, KIND, -1isize, 0) }) else {
        return execute(environment);
    };
    // SAFETY: a mapping of that length, made here, which nothing else uses.
    let result = execute(filled(unsafe {
        core::slice::from_raw_parts_mut(start as *mut MaybeUninit<usize>, words)
    }));
    // SAFETY: as above; the call is over. After a success this is not reached: a child of vfork
    // then leaves the mapping behind.
    let _ = unsafe { syscall!(Sysno::munmap, start, len) };
    result
}

/// Writes the changed environment into `room`: a list of at most `count` words, and behind it what
/// is written anew.
///
/// # Safety
/// As for [`without`]. `count` is the number of strings and one more. Behind that many words there
/// is room for all variables LD_PRELOAD as they are, with their NULs.
unsafe fn fill(
    room: &mut [MaybeUninit<usize>],
    count: usize,
    environment: Strings,
    library: &[u8],
    dropped: &[u8],
) -> Strings {
    let (list, text) = room.split_at_mut(count);
    let mut text = text.as_mut_ptr().cast::<u8>();
    let mut at = 0;
    // SAFETY: the caller's promise.
    for variable in unsafe { strings(environment) } {
        let bytes = variable.to_bytes();
        if bytes.starts_with(dropped) {
            continue;
        }
        let Some(preloads) = bytes.strip_prefix(PRELOAD) else {
            list[at].write(variable.as_ptr() as usize);
            at += 1;
            continue;
        };
        let begins = text;
        let mut put = |bytes: &[u8]| {
            // SAFETY: what is put is a part of the variable, in its order, or the NUL behind it:
            // the caller made room for that.
            unsafe {
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), text, bytes.len());
                text = text.add(bytes.len());
            }
        };
        let mut any = false;
        for (separator, name) in libraries(preloads).filter(|(_, name)| file_name(name) != library)
        {
            put(if any { separator } else { PRELOAD });
            put(name);
            any = true;
        }
        if any {
            put(b"\0");
            list[at].write(begins as usize);
            at += 1;
        }
    }
    list[at].write(0);
    list.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned;
    use std::ffi::CString;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    fn without(environment: &[&str]) -> Vec<String> {
        let environment: Vec<CString> =
            environment.iter().map(|variable| CString::new(*variable).unwrap()).collect();
        let list: Vec<*const c_char> = environment
            .iter()
            .map(|variable| variable.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        // SAFETY: a list made just now, and one made from it.
        unsafe {
            super::without(list.as_ptr(), b"libterrace.so", b"TERRACE_RUN_DIR=", |changed| {
                strings(changed).map(|variable| variable.to_str().unwrap().to_owned()).collect()
            })
        }
    }

    #[test]
    fn the_users_preloads_stay_in_their_order() {
        assert_eq!(without(&["A=1", "LD_PRELOAD=/x/libterrace.so", "B=2"]), ["A=1", "B=2"]);
        assert_eq!(without(&["LD_PRELOAD=/x/libterrace.so:b.so c.so"]), ["LD_PRELOAD=b.so c.so"]);
        assert_eq!(
            without(&["LD_PRELOAD=a.so:/x/libterrace.so c.so:d.so"]),
            ["LD_PRELOAD=a.so c.so:d.so"]
        );
        assert_eq!(
            without(&[
                "LD_PRELOAD= :libterrace.so:: /y/libterrace.so ",
                "TERRACE_RUN_DIR=/x",
                "TERRACE_DRAM=1G"
            ]),
            ["TERRACE_DRAM=1G"]
        );
        assert_eq!(
            without(&["LD_PRELOAD=a.so  b.so", "XLD_PRELOAD=libterrace.so"]),
            ["LD_PRELOAD=a.so  b.so", "XLD_PRELOAD=libterrace.so"]
        );
        assert_eq!(without(&[]), Vec::<String>::new());
    }

    #[test]
    fn environments_of_any_size_are_changed() {
        for (count, len) in [(3, 3000), (600, 10), (5000, 3), (2, 40_000)] {
            let mut all: Vec<String> =
                (0..count).map(|number| format!("V{number}={}", "x".repeat(len))).collect();
            let kept = all.clone();
            all.insert(1, format!("LD_PRELOAD=libterrace.so:{}", "y".repeat(len)));
            let changed = without(&all.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(changed.len(), count + 1);
            assert_eq!(changed[1], format!("LD_PRELOAD={}", "y".repeat(len)));
            assert_eq!((&changed[0], &changed[2..]), (&kept[0], &kept[1..]));
        }
    }
}
