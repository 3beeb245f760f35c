//! Finds the program that a command names, as `execvp` would, so that it can be looked at before it
//! is started.

use crate::{OUR_FAULT, say};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where execvp looks when PATH is unset.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why there is nothing to execute.
#[derive(Debug, PartialEq)]
pub enum NoProgram {
    /// No such file: exit status 127.
    NotFound(String),
    /// A file that may not be executed: exit status 126.
    NotExecutable(String),
}

impl NoProgram {
    /// The exit status that `env` would give.
    pub fn exit_status(&self) -> u8 {
        match self {
            NoProgram::NotFound(_) => 127,
            NoProgram::NotExecutable(_) => 126,
        }
    }
}

impl fmt::Display for NoProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoProgram::NotFound(what) => {
                write!(f, "{what}: no such program; check its name and PATH")
            }
            NoProgram::NotExecutable(what) => {
                write!(f, "{what}: found, but it cannot be executed; check its permissions")
            }
        }
    }
}

/// The file that `name` means: itself if it has a slash, else the first executable file of that
/// name in `path` (the value of PATH). An empty entry of PATH is the current directory.
pub fn resolve(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NoProgram> {
    let shown = || name.to_string_lossy().into_owned();
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match executable(&file) {
            Some(true) => Ok(file),
            Some(false) => Err(NoProgram::NotExecutable(shown())),
            None => Err(NoProgram::NotFound(shown())),
        };
    }
    let mut refused = None;
    if !name.is_empty() {
        for directory in
            path.unwrap_or(OsStr::new(DEFAULT_PATH)).as_bytes().split(|byte| *byte == b':')
        {
            let directory = if directory.is_empty() { b"." } else { directory };
            let file = Path::new(OsStr::from_bytes(directory)).join(name);
            match executable(&file) {
                Some(true) => return Ok(file),
                Some(false) => refused = refused.or(Some(file)),
                None => {}
            }
        }
    }
    Err(match refused {
        Some(file) => NoProgram::NotExecutable(file.to_string_lossy().into_owned()),
        None => NoProgram::NotFound(shown()),
    })
}

/// [`resolve`] along our own PATH; if there is none, says so and gives the exit status.
pub fn of_command(name: &OsStr) -> Result<PathBuf, u8> {
    resolve(name, std::env::var_os("PATH").as_deref()).map_err(|error| {
        say(&error.to_string());
        error.exit_status()
    })
}

/// Exit status where a program could not be started, as of `env`. It is 127 if there is no such
/// file (its interpreter, say), 126 if it is there and cannot be executed. What keeps us from
/// making a process at all is our own failure.
pub fn not_started(name: &OsStr, program: &Path, error: &io::Error) -> u8 {
    let (status, advice) = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            (127, "; it is there, so the interpreter or loader that it names is missing")
        }
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            (OUR_FAULT, "; no new process can be made now")
        }
        _ => (126, ""),
    };
    say(&format!(
        "cannot execute {} ({}): {error}{advice}",
        name.to_string_lossy(),
        program.display()
    ));
    status
}

/// Whether this process may execute a file; `None` if it is not there.
fn executable(file: &Path) -> Option<bool> {
    match file.metadata() {
        Ok(about) if !about.is_file() => Some(false),
        Ok(_) => {
            let name = std::ffi::CString::new(file.as_os_str().to_owned().into_vec()).ok()?;
            Some(terrace_os::may_execute(&name))
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn path_is_searched_as_execvp_does() {
        let scratch = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| scratch.path().join(name));
        for directory in [&first, &second] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("prog"), "").unwrap();
        }
        let path = std::env::join_paths([&first, &second]).unwrap();
        let find = || resolve(OsStr::new("prog"), Some(&path));
        assert_eq!(find().unwrap_err().exit_status(), 126);
        fs::set_permissions(second.join("prog"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find().unwrap(), second.join("prog"));
        assert_eq!(resolve(OsStr::new("progg"), Some(&path)).unwrap_err().exit_status(), 127);
        assert_eq!(resolve(OsStr::new(""), Some(&path)).unwrap_err().exit_status(), 127);
        assert_eq!(resolve(first.as_os_str(), None).unwrap_err().exit_status(), 126);
        assert_eq!(resolve(OsStr::new("/no/such/file"), None).unwrap_err().exit_status(), 127);
        assert!(resolve(OsStr::new("sh"), None).is_ok());
    }
}
