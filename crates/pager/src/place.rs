//! Where the processes of a run put what they tell it: the run directory, which is the user's own
//! who started the run.
//!
//! A process may become another user's and then execute a program (`setpriv`, `runuser`,
//! `start-stop-daemon --chuid`), which can write there no more. So it makes a subdirectory for that
//! user first, while it has the right to.

use crate::stats::USER_PLACE;
use crate::sys;
use std::io::Write;

/// The place of this process, as an absolute path: `run_dir`, or its user's subdirectory where it
/// may write only there.
pub fn place(run_dir: &str) -> String {
    let of_user = format!("{run_dir}/{USER_PLACE}{}\0", sys::effective_user());
    if sys::may_write_in(&format!("{run_dir}\0")) || !sys::may_write_in(&of_user) {
        run_dir.to_owned()
    } else {
        of_user.trim_end_matches('\0').to_owned()
    }
}

/// Longer paths are not made: this is on the program's stack.
const PATH_BYTES: usize = 512;

/// Makes a place for the programs that this process executes once it is `user`'s; does nothing
/// without the right to give files away. System calls only: it may be a child of vfork.
pub fn make_place_for(user: u32, run_dir: &str) {
    let mut buffer = [0; PATH_BYTES];
    let Some(of_user) = text(&mut buffer, format_args!("{run_dir}/{USER_PLACE}{user}\0")) else {
        return;
    };
    if sys::make_directory_of(of_user, user).is_ok()
        && let Some(run_dir) = text(&mut buffer, format_args!("{run_dir}\0"))
    {
        let _ = sys::let_through(run_dir);
    }
}

/// What is written, if there is room for it.
fn text<'a>(buffer: &'a mut [u8], what: std::fmt::Arguments<'_>) -> Option<&'a str> {
    let room = buffer.len();
    let mut rest = &mut buffer[..];
    rest.write_fmt(what).ok()?;
    let used = room - rest.len();
    std::str::from_utf8(&buffer[..used]).ok()
}
