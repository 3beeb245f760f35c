//! What Terrace keeps out of, since it is the program's:
//! - holes in its address space, its limits, and files that got a number;
//! - its signal handlers, and the C library's locks;
//! - rights that its caller does not have.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::LazyLock;
use terrace_testkit::process::is_root;
use terrace_testkit::public::Public;
use terrace_tests::{Cases, Program, Terrace, cases, compiled, skip, terrace_library};

fn program(ways: Vec<Terrace>) -> Cases {
    Cases { program: compiled("what_is_the_programs.c", &[]), arguments: vec![], ways }
}

/// Ways to run these cases:
/// - a budget that nothing is evicted for, so that what a case evicts stays out until it is
///   touched;
/// - random evictions besides.
static PROGRAM: LazyLock<Cases> =
    LazyLock::new(|| program(vec![Terrace::within("4G"), Terrace::stressed()]));
static WITHIN: LazyLock<Cases> = LazyLock::new(|| program(vec![Terrace::within("4G")]));

cases! { PROGRAM.hold:
    holes_stay_free
    forks_beside_flushes
    a_file_that_has_number_2
    little_is_reserved
}

// Under stress pages of the heap leave by themselves, and all that is mapped is more than the
// limit.
cases! { WITHIN.hold_managed_or_not:
    locked_within_a_limit
    starts_with_2_closed
    nothing_starts_in_a_handler
}

/// With `--allocator context` the heap has more ranges, and no more of them is reserved.
#[test]
fn little_is_reserved_by_context() {
    program(vec![Terrace::within("4G").and("--allocator").and("context")])
        .hold("little_is_reserved");
}

/// Terrace gives freed memory back in malloc, never in mmap. Without Terrace there is nothing to
/// check.
#[test]
fn mappings_leave_the_heap_alone() {
    Program::new(&WITHIN.program)
        .arg("mappings_leave_the_heap_alone")
        .under(Terrace::within("4G"))
        .succeed();
}

/// What must not be said to another file is said to standard error.
#[test]
fn complaints_are_said() {
    let finished = Program::new(&WITHIN.program)
        .arg("complaints_are_said")
        .under(Terrace::within("4G"))
        .succeed();
    assert!(
        finished.stderr.contains("terrace: misuse: free"),
        "{}",
        finished.account("said nothing")
    );
}

/// The caller of a setuid program that is linked with the library chooses its environment. That
/// gives the caller no say in what is done with the owner's rights.
#[test]
fn environments_of_others_are_not_obeyed() {
    const NOBODY: u32 = 65534;
    if !is_root() {
        return skip("setuid programs", "only root can make one for another user");
    }
    let public = Public::with(&[&terrace_library()]);
    let search = [
        format!("-L{}", public.path().display()),
        format!("-Wl,-rpath,{}", public.path().display()),
    ];
    // Also where the compiler drops libraries of which nothing is used by name.
    let linked = compiled(
        "linked_with_rights.c",
        &[&search[0], &search[1], "-Wl,--no-as-needed", "-lterrace"],
    );
    let victim = public.path().join("linked_with_rights");
    fs::copy(linked, &victim).expect("the program can be copied");
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o4755)).expect("it is ours");
    let confined = public.publish(&compiled("confined.c", &[]));
    let directory = public.path().join("callers");
    fs::create_dir(&directory).expect("a directory can be made");
    chown(&directory, Some(NOBODY), Some(NOBODY)).expect("root can give a directory away");
    let finished = Program::new(&victim)
        .arg(&directory)
        .env("TERRACE_RUN_DIR", &directory)
        .env("TERRACE_DRAM", "64M")
        .env("TERRACE_TIERS", format!("dram,lz4@file:{}", directory.display()))
        .env("TERRACE_ALLOCATOR", "system")
        .launched_by([
            confined.as_os_str(),
            "--user".as_ref(),
            NOBODY.to_string().as_ref(),
            "--".as_ref(),
        ])
        .run();
    if finished.status.code() == Some(77) {
        return skip(
            "setuid programs",
            "it has no other rights there (is the file system mounted with nosuid?)",
        );
    }
    assert!(finished.status.success(), "{}", finished.account("failed"));
    let left: Vec<_> = fs::read_dir(&directory)
        .expect("it is there")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert!(left.is_empty(), "the owner's files are in the caller's directory: {left:?}");
    assert_eq!(
        String::from_utf8_lossy(&finished.stdout),
        "threads 1, files 0\n",
        "{}",
        finished.account("is managed")
    );
}
