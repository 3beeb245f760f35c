//! userfaultfd: can it be opened for faults in the kernel too, which features it has, and does
//! moving a page work?
//!
//! Constants and layouts are those of the kernel's `include/uapi/linux/userfaultfd.h` (6.8), spelt
//! out here because the doctor must also run where the installed headers are older. The pager's
//! requests are not used here: the doctor probes the kernel, not our use of it.

use super::row::{Row, Status, read};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const API: u64 = 0xAA;
const IOC_API: u64 = 0xC018_AA3F; // _IOWR(0xAA, 0x3F, 24 bytes)
const IOC_REGISTER: u64 = 0xC020_AA00; // _IOWR(0xAA, 0, 32 bytes)
const IOC_MOVE: u64 = 0xC028_AA05; // _IOWR(0xAA, 5, 40 bytes)
const REGISTER_MODE_MISSING: u64 = 1;
const USER_MODE_ONLY: i32 = 1;
/// Features that Terrace asks about, by bit.
const FEATURES: [(u32, &str); 6] = [
    (1, "EVENT_FORK"),
    (2, "EVENT_REMAP"),
    (3, "EVENT_REMOVE"),
    (6, "EVENT_UNMAP"),
    (8, "THREAD_ID"),
    (15, "WP_ASYNC"),
];
const FEATURE_MOVE: u64 = 1 << 16;
/// A move is refused for the moment (EAGAIN, EBUSY) while the kernel itself holds the page; that
/// passes at once.
const MOVE_TRIES: u32 = 100;

#[repr(C)]
#[derive(Default)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterArgument {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct MoveArgument {
    destination: u64,
    source: u64,
    length: u64,
    mode: u64,
    moved: i64,
}

/// What lets faults in the kernel be served too. Each row is in words of a page: what it is, the
/// processes or users that it is for, and since when. The last is a remedy in words.
/// `docs/privileges.md` has the same table for people.
const PRIVILEGES: [[&str; 4]; 3] = [
    [
        "read and write access to `/dev/userfaultfd`",
        "the users that you name",
        "Linux 6.1",
        "let the user open /dev/userfaultfd (chgrp and chmod 0660, Linux 6.1)",
    ],
    ["`CAP_SYS_PTRACE` (root has it)", "this process", "", "run as root or with CAP_SYS_PTRACE"],
    [
        "sysctl `vm.unprivileged_userfaultfd=1`",
        "everybody on the machine",
        "Linux 5.2",
        "set sysctl vm.unprivileged_userfaultfd=1",
    ],
];

/// Ways to get a userfaultfd, best first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    SystemCall,
    Device,
    UserModeOnly,
}

/// Rows: how it can be opened, its features, the move.
pub fn rows() -> Vec<Row> {
    // What a seccomp filter would end us for must not be tried here.
    if let Err(problem) = terrace_control::seccomp_probe::probe(&[], false) {
        let fix = "allow these system calls in the container's seccomp profile, or in SystemCallFilter= of the systemd unit";
        return vec![
            Row::new("userfaultfd", Status::Missing, problem, "nothing can be evicted", fix)
                .required(),
        ];
    }
    let tried = [Way::SystemCall, Way::Device, Way::UserModeOnly].map(|way| (way, open(way)));
    let mut rows = vec![access_row(
        &tried.each_ref().map(|(way, tried)| (*way, tried.as_ref().err().map(ToString::to_string))),
    )];
    match tried.into_iter().find_map(|(_, tried)| tried.ok()) {
        Some(descriptor) => {
            let features = handshake(&descriptor);
            rows.push(features_row(features.as_ref().copied()));
            rows.push(move_row(features.ok(), try_move(&descriptor)));
        }
        None => {
            rows.push(Row::new(
                "uffd features",
                Status::Missing,
                "no userfaultfd to ask",
                "nothing can be evicted",
                "first make userfaultfd available",
            ));
            rows.push(
                Row::new(
                    "page moves",
                    Status::Missing,
                    "no userfaultfd to try",
                    "nothing can be evicted",
                    "first make userfaultfd available",
                )
                .required(),
            );
        }
    }
    rows
}

fn access_row(tried: &[(Way, Option<String>)]) -> Row {
    let name = "userfaultfd";
    let open = |way: Way| tried.iter().any(|(tried, error)| *tried == way && error.is_none());
    let sysctl = match read("/proc/sys/vm/unprivileged_userfaultfd") {
        Ok(value) => format!("vm.unprivileged_userfaultfd={value}"),
        Err(_) => "vm.unprivileged_userfaultfd not readable".into(),
    };
    if open(Way::SystemCall) {
        let device =
            if open(Way::Device) { "; /dev/userfaultfd too" } else { "; /dev/userfaultfd not" };
        let consequence = "faults of the program and of the kernel on its behalf can be served";
        return Row::ok(name, format!("opens by the system call{device} ({sysctl})"), consequence)
            .required();
    }
    if open(Way::Device) {
        return Row::ok(
            name,
            format!("opens by /dev/userfaultfd ({sysctl})"),
            "faults of the program and of the kernel on its behalf can be served",
        )
        .required();
    }
    let fix = format!(
        "{}; in a container, allow userfaultfd in its seccomp profile",
        PRIVILEGES.map(|[.., remedy]| remedy).join(", or ")
    );
    if open(Way::UserModeOnly) {
        let consequence =
            "system calls into evicted memory would fail with EFAULT, so nothing is evicted";
        return Row::new(
            name,
            Status::Missing,
            format!("opens for user-mode faults only ({sysctl})"),
            consequence,
            fix,
        )
        .required();
    }
    let errors: Vec<&str> = tried.iter().filter_map(|(_, error)| error.as_deref()).collect();
    Row::new(
        name,
        Status::Missing,
        format!("does not open: {} ({sysctl})", errors.first().unwrap_or(&"")),
        "nothing can be evicted",
        fix,
    )
    .required()
}

fn features_row(features: Result<u64, &io::Error>) -> Row {
    let name = "uffd features";
    let bits = match features {
        Ok(bits) => bits,
        Err(error) => {
            return Row::new(
                name,
                Status::Missing,
                format!("the handshake failed: {error}"),
                "nothing can be evicted",
                "boot Linux 6.8 or later",
            )
            .required();
        }
    };
    let (present, absent): (Vec<_>, Vec<_>) =
        FEATURES.iter().partition(|(bit, _)| bits & 1 << bit != 0);
    let names = |features: Vec<&(u32, &'static str)>| {
        features.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
    };
    let found = if absent.is_empty() {
        names(present)
    } else {
        format!("{} (not {})", names(present), names(absent))
    };
    Row::ok(
        name,
        found,
        "events tell of memory calls that a program makes past its C library; writes are noted by the kernel",
    )
}

fn move_row(features: Option<u64>, moved: io::Result<()>) -> Row {
    let name = "page moves";
    let said = if features.is_some_and(|bits| bits & FEATURE_MOVE != 0) {
        "offered"
    } else {
        "not offered"
    };
    match moved {
        Ok(()) => Row::ok(
            name,
            format!("UFFDIO_MOVE {said}; a page was moved and read back"),
            "pages can be evicted safely, also beside direct I/O",
        )
        .required(),
        Err(error) => Row::new(
            name,
            Status::Missing,
            format!("UFFDIO_MOVE {said}; the trial failed: {error}"),
            "pages stay in DRAM unless --evict wp is given, which is unsafe beside direct I/O",
            "boot Linux 6.8 or later, with CONFIG_USERFAULTFD; or run with --evict wp, see docs/kernels.md",
        )
        .required(),
    }
}

fn open(way: Way) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let made = match way {
        Way::Device => {
            let device = File::options().read(true).write(true).open("/dev/userfaultfd")?;
            terrace_os::new_userfaultfd(Some(device.as_raw_fd()), flags)
        }
        Way::SystemCall | Way::UserModeOnly => {
            let flags = if way == Way::UserModeOnly { flags | USER_MODE_ONLY } else { flags };
            terrace_os::new_userfaultfd(None, flags)
        }
    };
    let number = made.map_err(terrace_os::io_error)?;
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Agrees on the API without any feature; answers the features there are. Works once for each
/// descriptor.
fn handshake(descriptor: &OwnedFd) -> io::Result<u64> {
    let mut argument = ApiArgument { api: API, ..Default::default() };
    ioctl(descriptor, IOC_API, &mut argument)?;
    Ok(argument.features)
}

/// Moves one page between two small private mappings and reads it back. The handshake must be made.
fn try_move(descriptor: &OwnedFd) -> io::Result<()> {
    const MARK: u64 = 0x7e44_ace0_0bad_cafe;
    let page = terrace_os::page_bytes();
    let (source, destination) = (Mapping::new(page)?, Mapping::new(page)?);
    source.write(MARK);
    let mut register = RegisterArgument {
        start: destination.address(),
        length: page as u64,
        mode: REGISTER_MODE_MISSING,
        ioctls: 0,
    };
    ioctl(descriptor, IOC_REGISTER, &mut register)?;
    let mut tries = 0;
    loop {
        let mut argument = MoveArgument {
            destination: destination.address(),
            source: source.address(),
            length: page as u64,
            mode: 0,
            moved: 0,
        };
        match ioctl(descriptor, IOC_MOVE, &mut argument) {
            Ok(()) if argument.moved == page as i64 => break,
            Ok(()) => {
                return Err(io::Error::other(format!(
                    "{} bytes of {page} were moved",
                    argument.moved
                )));
            }
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
                    && tries < MOVE_TRIES =>
            {
                tries += 1
            }
            Err(error) => return Err(error),
        }
    }
    // Only now: before the move this read would have waited for ever for a handler that does not
    // exist.
    if destination.read() != MARK {
        return Err(io::Error::other("the page that arrived is not the page that was sent"));
    }
    if source.read() != 0 {
        return Err(io::Error::other("the page that was moved is still where it was"));
    }
    Ok(())
}

fn ioctl<T>(descriptor: &OwnedFd, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request of this module is used with the repr(C) struct whose size it encodes, so
    // the kernel reads and writes within `argument`; the addresses in it are of mappings that
    // this module owns.
    let done = unsafe { terrace_os::ioctl(descriptor.as_raw_fd(), request, argument) };
    done.map(drop).map_err(terrace_os::io_error)
}

/// A private anonymous mapping of one page.
struct Mapping {
    start: *mut u64,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize) -> io::Result<Self> {
        let start = terrace_os::map_anywhere(bytes, libc::PROT_READ | libc::PROT_WRITE);
        Ok(Mapping { start: start.map_err(terrace_os::io_error)? as *mut u64, bytes })
    }

    fn address(&self) -> u64 {
        self.start as u64
    }

    fn write(&self, value: u64) {
        // SAFETY: the mapping is writable, aligned to a page, and lives as long as self; volatile,
        // because the kernel takes the page from under the compiler's eyes.
        unsafe { self.start.write_volatile(value) }
    }

    fn read(&self) -> u64 {
        // SAFETY: as for `write`; the range is readable.
        unsafe { self.start.read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; no reference into it was ever given out.
        unsafe { terrace_os::unmap(self.start as usize, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in the documentation is this one, row by row.
    #[test]
    fn the_documentation_has_the_same_privileges() {
        let page = include_str!("../../../../docs/privileges.md");
        for [way, who, since, _] in PRIVILEGES {
            let row = format!("| {way} | {who} | {since} |\n").replace("|  |", "| |");
            assert!(page.contains(&row), "docs/privileges.md must have this row:\n{row}");
        }
    }

    fn access(system_call: bool, device: bool, user_only: bool) -> Row {
        let error = |open: bool| (!open).then(|| "Operation not permitted".to_owned());
        access_row(&[
            (Way::SystemCall, error(system_call)),
            (Way::Device, error(device)),
            (Way::UserModeOnly, error(user_only)),
        ])
    }

    #[test]
    fn user_mode_faults_alone_are_not_enough() {
        assert_eq!(access(true, false, true).status, Status::Ok);
        assert_eq!(access(false, true, true).status, Status::Ok);
        let user_only = access(false, false, true);
        assert!(
            user_only.status == Status::Missing
                && user_only.required
                && user_only.consequence.contains("EFAULT")
        );
        assert!(
            access(false, false, false).found.starts_with("does not open: Operation not permitted")
        );
    }

    #[test]
    fn requests_encode_the_size_of_their_argument() {
        for (request, bytes) in [
            (IOC_API, size_of::<ApiArgument>()),
            (IOC_REGISTER, size_of::<RegisterArgument>()),
            (IOC_MOVE, size_of::<MoveArgument>()),
        ] {
            assert_eq!((request >> 16 & 0x3FFF) as usize, bytes);
        }
    }

    #[test]
    fn a_failed_move_is_missing_whatever_the_features_say() {
        assert_eq!(features_row(Ok(0)).status, Status::Ok);
        assert_eq!(
            move_row(Some(FEATURE_MOVE), Err(io::Error::other("x"))).status,
            Status::Missing
        );
    }
}
