//! The calls by which a program gives up what Terrace needs to start: user ids, groups,
//! capabilities, the root directory, namespaces.
//!
//! The companion keeps what it has opened, and so goes on after such a call. So it is made before
//! the first of them, however little memory the program has by then. A program that makes no such
//! call pays nothing.

use crate::current::{PROCESS, pager};
use crate::next::{Next, result};
use std::ffi::c_void;
use std::sync::atomic::Ordering::*;
use terrace_os as sys;
use terrace_pager::Mode;

/// Has the companion made, if there will ever be one.
fn start_first() {
    // A child of vfork has its parent's memory, and becomes another program in a moment. It may
    // have no thread area of its own (browsers' sandboxes make such children), and so no errno
    // either.
    if PROCESS.load(Relaxed) != sys::process_id() {
        return;
    }
    let _errno = sys::ErrnoKept::new();
    if let Some(pager) = pager() {
        pager.start_before_rights_go();
        if pager.mode() != Mode::Failed {
            pager.start_timers();
        }
    }
}

/// "As it is" in calls that set several ids.
const UNCHANGED: u32 = u32::MAX;

fn changes_user(users: &[u32]) -> bool {
    let own = [sys::user_id(), sys::effective_user_id()];
    users.iter().any(|user| *user != UNCHANGED && own.iter().any(|own| own != user))
}

fn changes_group(groups: &[u32]) -> bool {
    let own = [sys::group_id(), sys::effective_group_id()];
    groups.iter().any(|group| *group != UNCHANGED && own.iter().any(|own| own != group))
}

/// Calls of the C library's that give up rights where the condition holds.
macro_rules! gives_up {
    ($($name:ident($($argument:ident: $type:ty),*), $call:literal, if $condition:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> i32 {
            static REAL: Next = Next::new($call);
            if $condition {
                start_first();
            }
            let function = REAL.get();
            if function.is_null() {
                return result(Err(sys::Errno::ENOSYS)) as i32;
            }
            type Function = extern "C" fn($($type),*) -> i32;
            // SAFETY: the C library's function of this name has this signature.
            let function: Function = unsafe { std::mem::transmute(function) };
            function($($argument),*)
        }
    )*};
}

gives_up! {
    setuid(user: u32), c"setuid", if changes_user(&[user]);
    seteuid(user: u32), c"seteuid", if changes_user(&[user]);
    setreuid(real: u32, effective: u32), c"setreuid", if changes_user(&[real, effective]);
    setresuid(real: u32, effective: u32, saved: u32), c"setresuid",
        if changes_user(&[real, effective, saved]);
    setgid(group: u32), c"setgid", if changes_group(&[group]);
    setegid(group: u32), c"setegid", if changes_group(&[group]);
    setregid(real: u32, effective: u32), c"setregid", if changes_group(&[real, effective]);
    setresgid(real: u32, effective: u32, saved: u32), c"setresgid",
        if changes_group(&[real, effective, saved]);
    setfsuid(user: u32), c"setfsuid", if changes_user(&[user]);
    setfsgid(group: u32), c"setfsgid", if changes_group(&[group]);
    setgroups(count: usize, groups: *const u32), c"setgroups", if true;
    initgroups(user: *const c_void, group: u32), c"initgroups", if true;
    capset(header: *mut c_void, sets: *const c_void), c"capset", if true;
    chroot(path: *const c_void), c"chroot", if true;
    unshare(flags: i32), c"unshare", if takes_away(flags);
    setns(namespace: i32, kind: i32), c"setns", if kind == 0 || takes_away(kind);
}

/// Whether a namespace of one of these kinds has other rights, files or process numbers.
fn takes_away(namespaces: i32) -> bool {
    namespaces & (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID) != 0
}

/// Handles a call by number that gives up rights: what is interposed by name must not slip through.
pub fn before_call(number: libc::c_long, a: usize, b: usize) {
    let [first, second] = [a as u32, b as u32];
    let gives_up = match number {
        libc::SYS_setuid => changes_user(&[first]),
        libc::SYS_setreuid | libc::SYS_setresuid => changes_user(&[first, second]),
        libc::SYS_setgid => changes_group(&[first]),
        libc::SYS_setregid | libc::SYS_setresgid => changes_group(&[first, second]),
        libc::SYS_setgroups
        | libc::SYS_capset
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_landlock_restrict_self => true,
        libc::SYS_unshare => takes_away(a as i32),
        libc::SYS_setns => b == 0 || takes_away(b as i32),
        _ => false,
    };
    if gives_up {
        start_first();
    }
}

/// Handles `prctl` before it is made. A process that may not be dumped has no pagemap to open,
/// unless it is root's.
pub fn before_prctl(option: i32, value: usize) {
    if option == libc::PR_SET_DUMPABLE && value == 0 {
        start_first();
    }
}
