//! Can a preloaded library come into this program? Looks at the file before it is started: the ELF header, the mode bits
//! and capabilities, and for a script the interpreter it names.
//!
//! Where it cannot tell (an unreadable file, a format of its own) it answers yes: after the run, a missing statistics
//! page tells the truth. It must not answer yes for a foreign loader, which would stop the program over our library.

use crate::command_path;
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a preload cannot reach a program.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfReach {
    /// What it is, as the end of a sentence about the program: `is statically linked`.
    pub cause: String,
    /// What its user can do, in the imperative.
    pub remedy: &'static str,
}

/// Scripts that name scripts: the kernel follows as many (BINPRM recursion limit).
const SCRIPT_DEPTH: u32 = 4;
/// The kernel reads so much of a `#!` line (BINPRM_BUF_SIZE).
const SCRIPT_LINE_BYTES: usize = 256;

#[cfg(target_arch = "x86_64")]
const OUR_MACHINE: elf::Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const OUR_MACHINE: elf::Machine = elf::EM_AARCH64;

/// Tells why `program` (a path, as [`command_path::resolve`] gives it) cannot be reached, or `None` if it can.
pub fn out_of_reach(program: &Path) -> Option<OutOfReach> {
    audited().or_else(|| follow(program, SCRIPT_DEPTH))
}

/// Under LD_AUDIT the loader has less room for thread-local variables, too little for a preload that has many: it would stop the program.
fn audited() -> Option<OutOfReach> {
    std::env::var_os("LD_AUDIT").filter(|libraries| !libraries.is_empty()).map(|_| OutOfReach {
        cause: "is started with LD_AUDIT, whose libraries bring a C library of their own that forks unseen".into(),
        remedy: "clear LD_AUDIT",
    })
}

fn follow(program: &Path, depth: u32) -> Option<OutOfReach> {
    let mut start = [0u8; SCRIPT_LINE_BYTES];
    let length = File::open(program).and_then(|file| read_start(file, &mut start)).ok()?;
    let start = &start[..length];
    if let Some(line) = start.strip_prefix(b"#!") {
        if depth == 0 {
            return None;
        }
        return match interpreter(line)? {
            Interpreter::Program(file) => {
                let mut found = follow(&file, depth - 1)?;
                found.cause = format!("is run by {}, which {}", file.display(), found.cause);
                Some(found)
            }
            Interpreter::EmptyEnvironment => Some(OutOfReach {
                cause: "is a script that clears its environment (env -i), and the preload with it".into(),
                remedy: "start its interpreter directly",
            }),
        };
    }
    if !start.starts_with(&elf::ELFMAG) {
        return None;
    }
    privileged(program).or_else(|| foreign(program, start))
}

fn read_start(mut file: File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

enum Interpreter {
    Program(PathBuf),
    EmptyEnvironment,
}

/// What a `#!` line (without the `#!`) runs in the end: `env` is looked through, as it hands its environment on.
fn interpreter(line: &[u8]) -> Option<Interpreter> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let named = Path::new(OsStr::from_bytes(words.next()?));
    if named.file_name() != Some(OsStr::new("env")) {
        return Some(Interpreter::Program(named.to_owned()));
    }
    let mut rest = words.map(|word| word.strip_prefix(b"-S").unwrap_or(word)).filter(|word| !word.is_empty());
    loop {
        match rest.next()? {
            b"-" | b"-i" | b"--ignore-environment" => return Some(Interpreter::EmptyEnvironment),
            option if option.starts_with(b"-") || option.contains(&b'=') => {}
            name => {
                let path = std::env::var_os("PATH");
                return command_path::resolve(OsStr::from_bytes(name), path.as_deref()).ok().map(Interpreter::Program);
            }
        }
    }
}

/// Programs that the kernel starts with AT_SECURE: the loader then ignores a preload from the environment.
fn privileged(program: &Path) -> Option<OutOfReach> {
    let about = program.metadata().ok()?;
    let mode = about.permissions().mode();
    // SAFETY: these calls have no arguments and cannot fail.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let setuid = mode & libc::S_ISUID != 0 && about.uid() != user;
    // Without group execution the bit means mandatory locking, not setgid.
    let setgid = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && about.gid() != group;
    let capabilities = user != 0 && has_capabilities(program);
    if !(setuid || setgid || capabilities) || mounted_nosuid(program) || ((setuid || setgid) && !capabilities && no_new_privileges()) {
        return None;
    }
    let cause = match (setuid, setgid) {
        (true, _) => "is a setuid program, whose loader ignores a preload",
        (_, true) => "is a setgid program, whose loader ignores a preload",
        _ => "has file capabilities, so that its loader ignores a preload",
    };
    Some(OutOfReach { cause: cause.into(), remedy: "run it as the user it changes to, or what it starts under terrace" })
}

/// Programs whose loader is not ours: none, another C library's, another architecture's.
fn foreign(program: &Path, start: &[u8]) -> Option<OutOfReach> {
    if start.get(4) == Some(&elf::ELFCLASS32.0) {
        return Some(OutOfReach { cause: "is a 32-bit program".into(), remedy: "use a 64-bit build of it" });
    }
    let cache = ReadCache::new(File::open(program).ok()?);
    let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != OUR_MACHINE {
        return Some(OutOfReach { cause: "is built for another processor".into(), remedy: "use a build for this machine" });
    }
    let headers = header.program_headers(endian, &cache).ok()?;
    let loader = headers.iter().find_map(|header| header.interpreter(endian, &cache).ok().flatten());
    match loader {
        Some(loader) => {
            let name = Path::new(OsStr::from_bytes(loader)).file_name()?.to_string_lossy().into_owned();
            match name {
                name if is_glibc_loader(&name) => instrumented(header, &cache, endian),
                name if name.starts_with("ld-musl") => {
                    Some(OutOfReach { cause: "is linked to musl, not to glibc".into(), remedy: "use a glibc build of it" })
                }
                name => {
                    Some(OutOfReach { cause: format!("uses a loader that is not glibc's ({name})"), remedy: "use a glibc build of it" })
                }
            }
        }
        // The loader itself, started as a command, has no loader and honours a preload.
        None if program.canonicalize().is_ok_and(|file| file.file_name().is_some_and(|name| is_glibc_loader(&name.to_string_lossy()))) => {
            None
        }
        None => Some(OutOfReach { cause: "is statically linked".into(), remedy: "use a dynamically linked build of it" }),
    }
}

/// Programs whose sanitizer must have the first malloc: it ends them, or they crash, where ours comes first. One for undefined behaviour
/// alone has none.
fn instrumented(header: &FileHeader64<Endianness>, file: &ReadCache<File>, endian: Endianness) -> Option<OutOfReach> {
    const RUNTIMES: [(&str, &str); 5] = [
        ("asan", "AddressSanitizer"),
        ("tsan", "ThreadSanitizer"),
        ("msan", "MemorySanitizer"),
        ("lsan", "LeakSanitizer"),
        ("hwasan", "HWAddressSanitizer"),
    ];
    let sections = header.sections(endian, file).ok()?;
    let table = sections.dynamic_table(endian, file).ok()?;
    let libraries = table.iter().filter(|entry| entry.tag == elf::DT_NEEDED).filter_map(|entry| table.string(entry).ok());
    // libasan.so.8 with gcc, libclang_rt.asan-x86_64.so with clang.
    let by_library = libraries.map(String::from_utf8_lossy).find_map(|library| {
        RUNTIMES
            .iter()
            .find(|(short, _)| library.starts_with(&format!("lib{short}.so")) || library.starts_with(&format!("libclang_rt.{short}")))
    });
    // Linked in, it defines malloc, and `__asan_init` in one of the two tables of symbols. The large one is read for such programs only.
    let defines = |kind, wanted: &dyn Fn(&[u8]) -> bool| {
        sections.symbols(endian, file, kind).is_ok_and(|symbols| {
            symbols.iter().any(|symbol| !symbol.is_undefined(endian) && symbol.name(endian, symbols.strings()).is_ok_and(wanted))
        })
    };
    let defines_init = |short: &str| {
        let init = format!("__{short}_init");
        let wanted = |name: &[u8]| name == init.as_bytes();
        defines(elf::SHT_DYNSYM, &wanted) || defines(elf::SHT_SYMTAB, &wanted)
    };
    let (_, name) = by_library
        .or_else(|| RUNTIMES.iter().find(|(short, _)| defines(elf::SHT_DYNSYM, &|name| name == b"malloc") && defines_init(short)))?;
    // Our own recorder in place of a sanitizer (crates/recorder), which passes malloc on.
    if defines(elf::SHT_SYMTAB, &|name| name == b"terrace_record_start") {
        return None;
    }
    Some(OutOfReach { cause: format!("is built with {name}, which needs its own malloc"), remedy: "use a build without it" })
}

fn is_glibc_loader(name: &str) -> bool {
    ["ld-linux", "ld64.so", "ld.so", "ld-2."].iter().any(|start| name.starts_with(start))
}

fn has_capabilities(program: &Path) -> bool {
    let Ok(name) = CString::new(program.as_os_str().as_bytes()) else { return false };
    // SAFETY: both names are NUL-terminated; a null buffer of length 0 asks for the attribute's size only.
    unsafe { libc::getxattr(name.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

fn mounted_nosuid(program: &Path) -> bool {
    let Ok(name) = CString::new(program.as_os_str().as_bytes()) else { return false };
    // SAFETY: all-zero is a valid statvfs; the name is NUL-terminated and the buffer is ours to write.
    unsafe {
        let mut about: libc::statvfs = std::mem::zeroed();
        libc::statvfs(name.as_ptr(), &mut about) == 0 && about.f_flag & libc::ST_NOSUID != 0
    }
}

fn no_new_privileges() -> bool {
    // SAFETY: this prctl takes no pointers; the unused arguments must be zero, and are.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
        let file = directory.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    /// A minimal ELF file: a header, one program header, and the loader's name.
    fn elf(directory: &Path, name: &str, machine: u16, class: u8, loader: Option<&str>) -> PathBuf {
        let mut file = vec![0u8; 64 + 56];
        file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
        file[16..18].copy_from_slice(&2u16.to_le_bytes());
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[20..24].copy_from_slice(&1u32.to_le_bytes());
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&1u16.to_le_bytes());
        let kind = if loader.is_some() { 3u32 } else { 1 };
        file[64..68].copy_from_slice(&kind.to_le_bytes());
        file[72..80].copy_from_slice(&120u64.to_le_bytes());
        let text = format!("{}\0", loader.unwrap_or(""));
        for at in [96, 104] {
            file[at..at + 8].copy_from_slice(&(text.len() as u64).to_le_bytes());
        }
        file.extend_from_slice(text.as_bytes());
        let path = directory.join(name);
        fs::write(&path, file).unwrap();
        path
    }

    fn cause(file: &Path) -> Option<String> {
        out_of_reach(file).map(|found| found.cause)
    }

    #[test]
    fn the_loader_decides() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        let ours = OUR_MACHINE.0;
        assert_eq!(cause(&elf(at, "a", ours, 2, Some("/lib64/ld-linux-x86-64.so.2"))), None);
        assert_eq!(cause(&elf(at, "b", ours, 2, None)).as_deref(), Some("is statically linked"));
        assert_eq!(cause(&elf(at, "c", ours, 2, Some("/lib/ld-musl-x86_64.so.1"))).as_deref(), Some("is linked to musl, not to glibc"));
        assert_eq!(
            cause(&elf(at, "d", ours, 2, Some("/system/bin/linker64"))).as_deref(),
            Some("uses a loader that is not glibc's (linker64)")
        );
        assert_eq!(cause(&elf(at, "e", 3, 1, None)).as_deref(), Some("is a 32-bit program"));
        assert_eq!(cause(&elf(at, "f", 243, 2, None)).as_deref(), Some("is built for another processor"));
        assert_eq!(cause(&elf(at, "ld-linux-x86-64.so.2", ours, 2, None)), None);
        fs::write(at.join("g"), b"\x7fELF\x02").unwrap();
        assert_eq!(cause(&at.join("g")), None, "a damaged file is the kernel's to refuse");
        assert_eq!(cause(&std::env::current_exe().unwrap()), None);
    }

    /// Real ones: which libraries a compiler names is the question.
    #[test]
    fn programs_with_a_sanitizer_are_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("empty.c");
        fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let built = |options: &[&str]| {
            let program = scratch.path().join("program");
            let output = std::process::Command::new("cc").args(options).arg("-o").args([&program, &source]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            cause(&program)
        };
        let with = |name| Some(format!("is built with {name}, which needs its own malloc"));
        assert_eq!(built(&["-fsanitize=address"]), with("AddressSanitizer"));
        assert_eq!(built(&["-fsanitize=thread"]), with("ThreadSanitizer"));
        assert_eq!(built(&["-fsanitize=leak"]), with("LeakSanitizer"));
        assert_eq!(built(&["-fsanitize=address", "-static-libasan"]), with("AddressSanitizer"));
        assert_eq!(built(&["-fsanitize=undefined"]), None);
        fs::write(&source, "void __tsan_init(void) {} void *malloc(unsigned long n) { (void)n; return 0; } int main(void) { return 0; }\n")
            .unwrap();
        assert_eq!(built(&["-fno-builtin", "-rdynamic"]), with("ThreadSanitizer"));
        let recorder = "void __tsan_init(void) {} void *malloc(unsigned long n) { (void)n; return 0; } void terrace_record_start(void) {} int main(void) { return 0; }\n";
        fs::write(&source, recorder).unwrap();
        assert_eq!(built(&["-fno-builtin", "-rdynamic"]), None, "a program that our recorder is linked to");
        assert_eq!(built(&[]), None);
    }

    #[test]
    fn scripts_are_followed_to_what_runs_them() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        let shell = elf(at, "static-sh", OUR_MACHINE.0, 2, None);
        let direct = script(at, "direct", &format!("#! {} -e\n", shell.display()));
        let expected = format!("is run by {}, which is statically linked", shell.display());
        assert_eq!(cause(&direct), Some(expected.clone()));
        let nested = script(at, "nested", &format!("#!{}\n", direct.display()));
        assert_eq!(cause(&nested), Some(format!("is run by {}, which {expected}", direct.display())));
        fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
        let through_env = script(at, "through-env", &format!("#!/usr/bin/env -S A=1 {} -u\n", shell.display()));
        assert_eq!(cause(&through_env), Some(expected));
        assert!(cause(&script(at, "cleared", "#!/usr/bin/env -i sh\n")).unwrap().contains("clears its environment"));
        assert_eq!(cause(&script(at, "plain", "#!/bin/sh\n")), None);
        assert_eq!(cause(&script(at, "through", "#!/usr/bin/env sh\n")), None);
        let circle = at.join("circle");
        script(at, "circle", &format!("#!{}\n", circle.display()));
        assert_eq!(cause(&circle), None, "the kernel refuses it");
    }

    #[test]
    fn setuid_counts_only_when_it_changes_the_user() {
        let scratch = tempfile::tempdir_in(".").unwrap();
        let file = elf(scratch.path(), "p", OUR_MACHINE.0, 2, Some("/lib64/ld-linux-x86-64.so.2"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(cause(&file), None, "already that user");
        // SAFETY: geteuid has no arguments and cannot fail.
        if unsafe { libc::geteuid() } == 0 && !mounted_nosuid(&file) && !no_new_privileges() {
            std::os::unix::fs::chown(&file, Some(1), None).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
            assert!(cause(&file).unwrap().contains("setuid"));
        }
    }
}
