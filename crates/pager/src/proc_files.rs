//! Single values out of the kernel's small files.

use terrace_os as sys;

/// The first decimal number in the first 128 bytes of a file, whose path ends in a NUL; `None`
/// without one.
pub(crate) fn first_number(path: &str) -> Option<u64> {
    let fd = sys::open(path, libc::O_RDONLY, 0).ok()?;
    let mut text = [0u8; 128];
    let len = sys::read_at(fd, &mut text, 0);
    sys::close(fd);
    let digits = text[..len.ok()?]
        .iter()
        .skip_while(|b| !b.is_ascii_digit())
        .take_while(|b| b.is_ascii_digit());
    digits.fold(None, |n: Option<u64>, b| Some(n.unwrap_or(0) * 10 + u64::from(b - b'0')))
}

/// When this process started, in the kernel's clock ticks: field 22 of its stat.
pub(crate) fn start_ticks() -> Option<u64> {
    let fd = sys::open("/proc/self/stat\0", libc::O_RDONLY, 0).ok()?;
    let mut text = [0u8; 1024];
    let len = sys::read_at(fd, &mut text, 0);
    sys::close(fd);
    // The name, in parentheses, may hold anything; what follows it is field 3.
    let text = &text[..len.ok()?];
    let rest = &text[text.iter().rposition(|byte| *byte == b')')? + 2..];
    std::str::from_utf8(rest.split(|byte| *byte == b' ').nth(22 - 3)?).ok()?.parse().ok()
}

/// The last part of the program's file name, from /proc/self/comm (15 characters at most).
pub(crate) fn program_name() -> String {
    let Ok(fd) = sys::open("/proc/self/comm\0", libc::O_RDONLY, 0) else { return String::new() };
    let mut text = [0u8; 32];
    let len = sys::read_at(fd, &mut text, 0).unwrap_or(0);
    sys::close(fd);
    String::from_utf8_lossy(&text[..len]).trim().to_string()
}
