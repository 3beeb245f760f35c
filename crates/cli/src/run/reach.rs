//! What `terrace run` says of programs that a preloaded library cannot come into (`terrace_reach`
//! finds them).

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terrace_reach::{Cause, Environment, Place};

/// Why a preload cannot reach a program.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfReach {
    /// What it is, as the end of a sentence about the program: `is statically linked`.
    pub cause: String,
    /// What its user can do, in the imperative.
    pub remedy: &'static str,
    /// Whether it can be attached to as it starts.
    pub can_attach: bool,
}

/// Tells why `program` (a path, as [`crate::run::command_path::resolve`] gives it) cannot be
/// reached, or `None` if it can.
pub fn out_of_reach(program: &Path) -> Option<OutOfReach> {
    let (search, audit) = (std::env::var_os("PATH"), std::env::var_os("LD_AUDIT"));
    let environment = Environment {
        path: search.as_deref().map(OsStr::as_bytes),
        audited: audit.is_some_and(|names| !names.is_empty()),
    };
    let program = CString::new(program.as_os_str().as_bytes()).ok()?;
    let mut interpreters: Vec<PathBuf> = Vec::new();
    let mut through = |path: &[u8]| interpreters.push(OsStr::from_bytes(path).into());
    let cause = terrace_reach::out_of_reach(Place::at(&program), environment, &mut through)?;
    let can_attach = matches!(cause, Cause::Static | Cause::Musl | Cause::OtherLoader(_));
    let (cause, remedy) = said(cause);
    let by = |cause, interpreter: &PathBuf| {
        format!("is run by {}, which {cause}", interpreter.display())
    };
    Some(OutOfReach { cause: interpreters.iter().rfold(cause, by), remedy, can_attach })
}

/// The end of a sentence about the program, and what its user can do.
fn said(cause: Cause) -> (String, &'static str) {
    const GLIBC: &str = "use a glibc build of it";
    const PRIVILEGED: &str = "run it as the user it changes to, or what it starts under terrace";
    let (cause, remedy) = match cause {
        Cause::Audited => (
            "is started with LD_AUDIT, whose libraries bring a C library of their own that forks unseen",
            "clear LD_AUDIT",
        ),
        Cause::ClearedEnvironment => (
            "is a script that clears its environment (env -i), and the preload with it",
            "start its interpreter directly",
        ),
        Cause::Setuid => ("is a setuid program, whose loader ignores a preload", PRIVILEGED),
        Cause::Setgid => ("is a setgid program, whose loader ignores a preload", PRIVILEGED),
        Cause::Capabilities => {
            ("has file capabilities, so that its loader ignores a preload", PRIVILEGED)
        }
        Cause::Bits32 => ("is a 32-bit program", "use a 64-bit build of it"),
        Cause::OtherProcessor => ("is built for another processor", "use a build for this machine"),
        Cause::Musl => ("is linked to musl, not to glibc", GLIBC),
        Cause::OtherLoader(name) => {
            return (
                format!(
                    "uses a loader that is not glibc's ({})",
                    String::from_utf8_lossy(name.bytes())
                ),
                GLIBC,
            );
        }
        Cause::Static => ("is statically linked", "use a dynamically linked build of it"),
        Cause::Sanitizer(name) => {
            return (
                format!("is built with {name}, which needs its own malloc"),
                "use a build without it",
            );
        }
    };
    (cause.into(), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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

    #[cfg(target_arch = "x86_64")]
    const OUR_MACHINE: u16 = 62;
    #[cfg(target_arch = "aarch64")]
    const OUR_MACHINE: u16 = 183;

    fn cause(file: &Path) -> Option<String> {
        out_of_reach(file).map(|found| found.cause)
    }

    #[test]
    fn the_loader_decides() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        let ours = OUR_MACHINE;
        assert_eq!(cause(&elf(at, "a", ours, 2, Some("/lib64/ld-linux-x86-64.so.2"))), None);
        assert_eq!(cause(&elf(at, "b", ours, 2, None)).as_deref(), Some("is statically linked"));
        assert_eq!(
            cause(&elf(at, "c", ours, 2, Some("/lib/ld-musl-x86_64.so.1"))).as_deref(),
            Some("is linked to musl, not to glibc")
        );
        assert_eq!(
            cause(&elf(at, "d", ours, 2, Some("/system/bin/linker64"))).as_deref(),
            Some("uses a loader that is not glibc's (linker64)")
        );
        assert_eq!(cause(&elf(at, "e", 3, 1, None)).as_deref(), Some("is a 32-bit program"));
        assert_eq!(
            cause(&elf(at, "f", 243, 2, None)).as_deref(),
            Some("is built for another processor")
        );
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
            let output = std::process::Command::new("cc")
                .args(options)
                .arg("-o")
                .args([&program, &source])
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            cause(&program)
        };
        let with = |name| Some(format!("is built with {name}, which needs its own malloc"));
        assert_eq!(built(&["-fsanitize=address"]), with("AddressSanitizer"));
        assert_eq!(built(&["-fsanitize=thread"]), with("ThreadSanitizer"));
        assert_eq!(built(&["-fsanitize=leak"]), with("LeakSanitizer"));
        assert_eq!(built(&["-fsanitize=address", "-static-libasan"]), with("AddressSanitizer"));
        assert_eq!(
            built(&["-fsanitize=address", "-static-libasan", "-Wl,--hash-style=sysv"]),
            with("AddressSanitizer")
        );
        assert_eq!(built(&["-Wl,--hash-style=sysv"]), None);
        assert_eq!(built(&["-fsanitize=undefined"]), None);
        fs::write(&source, "void __tsan_init(void) {} void *malloc(unsigned long n) { (void)n; return 0; } int main(void) { return 0; }\n")
            .unwrap();
        assert_eq!(built(&["-fno-builtin", "-rdynamic"]), with("ThreadSanitizer"));
        let recorder = "void __tsan_init(void) {} void *malloc(unsigned long n) { (void)n; return 0; } void terrace_record_start(void) {} int main(void) { return 0; }\n";
        fs::write(&source, recorder).unwrap();
        assert_eq!(
            built(&["-fno-builtin", "-rdynamic"]),
            None,
            "a program that our recorder is linked to"
        );
        assert_eq!(built(&[]), None);
    }

    #[test]
    fn scripts_are_followed_to_what_runs_them() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        let shell = elf(at, "static-sh", OUR_MACHINE, 2, None);
        let direct = script(at, "direct", &format!("#! {} -e\n", shell.display()));
        let expected = format!("is run by {}, which is statically linked", shell.display());
        assert_eq!(cause(&direct), Some(expected.clone()));
        let nested = script(at, "nested", &format!("#!{}\n", direct.display()));
        assert_eq!(
            cause(&nested),
            Some(format!("is run by {}, which {expected}", direct.display()))
        );
        fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
        let through_env =
            script(at, "through-env", &format!("#!/usr/bin/env -S A=1 {} -u\n", shell.display()));
        assert_eq!(cause(&through_env), Some(expected));
        assert!(
            cause(&script(at, "cleared", "#!/usr/bin/env -i sh\n"))
                .unwrap()
                .contains("clears its environment")
        );
        assert_eq!(cause(&script(at, "plain", "#!/bin/sh\n")), None);
        assert_eq!(cause(&script(at, "through", "#!/usr/bin/env sh\n")), None);
        let circle = at.join("circle");
        script(at, "circle", &format!("#!{}\n", circle.display()));
        assert_eq!(cause(&circle), None, "the kernel refuses it");
    }

    #[test]
    fn setuid_counts_only_when_it_changes_the_user() {
        let scratch = tempfile::tempdir_in(".").unwrap();
        let file = elf(scratch.path(), "p", OUR_MACHINE, 2, Some("/lib64/ld-linux-x86-64.so.2"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(cause(&file), None, "already that user");
        // SAFETY: geteuid has no arguments and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let own_mount = std::process::Command::new("findmnt")
            .args(["-no", "OPTIONS", "-T"])
            .arg(&file)
            .output();
        let nosuid = own_mount
            .is_ok_and(|options| String::from_utf8_lossy(&options.stdout).contains("nosuid"));
        if is_root && !nosuid && !status.contains("NoNewPrivs:\t1") {
            std::os::unix::fs::chown(&file, Some(1), None).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
            assert!(cause(&file).unwrap().contains("setuid"));
        }
    }
}
