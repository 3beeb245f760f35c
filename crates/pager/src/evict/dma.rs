//! Signs that a device may write into the program's pages behind the page table: pages pinned for
//! O_DIRECT, io_uring, VFIO or RDMA.
//!
//! UFFDIO_MOVE refuses such pages. Write-protect and discard does not notice them, and what the
//! device then writes is lost (shown with io_uring's registered buffers). So it ends for good as
//! soon as the program holds a descriptor of that kind. Between the opening of the descriptor and
//! the next scan pages may still be evicted. That is why this way of evicting is opt-in.

use std::fs;
use std::time::Duration;
use terrace_os as sys;

/// The threads of a program that ends exit within this time of each other.
const ENDS_WITHIN: Duration = Duration::from_millis(100);

/// What the program holds, or may hold, that pins pages, or `None`. Reads the program's descriptor
/// table, which is not the calling thread's.
pub fn pin_evidence() -> Option<&'static str> {
    #[cfg(test)]
    if sys::simulated::kernel().is_some() {
        return None;
    }
    let process = sys::program_id();
    let descriptors = fs::read_dir(format!("/proc/{process}/task/{process}/fd")).ok()?;
    // Its main thread has exited, so the descriptors are not visible there. Or all threads are
    // about to exit.
    if sys::thread_state(process) == Some('Z') {
        return (!sys::program_ends(ENDS_WITHIN)).then_some("descriptors that cannot be seen");
    }
    descriptors.flatten().find_map(|descriptor| {
        let target = fs::read_link(descriptor.path()).ok()?;
        let target = target.to_str()?;
        match target {
            "anon_inode:[io_uring]" => return Some("io_uring"),
            _ if target.starts_with("/dev/vfio/") || target.starts_with("anon_inode:[vfio") => {
                return Some("VFIO");
            }
            _ if target.starts_with("/dev/infiniband/") => return Some("RDMA"),
            // Pipes, sockets and the like cannot be opened for direct input and output.
            _ if !target.starts_with('/') => return None,
            _ => {}
        }
        let number = descriptor.file_name();
        let info = fs::read_to_string(format!(
            "/proc/{process}/task/{process}/fdinfo/{}",
            number.to_str()?
        ))
        .ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
        (i32::from_str_radix(flags, 8).ok()? & libc::O_DIRECT != 0).then_some("O_DIRECT")
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn a_file_open_for_direct_input_is_seen() {
        assert_eq!(super::pin_evidence(), None);
        // Where the temporary directory's file system has no O_DIRECT, a pipe in packet mode
        // carries the same flag but is not a file.
        let path = std::env::temp_dir().join(format!("terrace-dma-{}", std::process::id()));
        let opened = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_DIRECT)
            .open(&path);
        let _ = std::fs::remove_file(&path);
        match opened {
            Ok(file) => {
                assert_eq!(
                    super::pin_evidence(),
                    Some("O_DIRECT"),
                    "descriptor {}",
                    file.as_raw_fd()
                )
            }
            Err(e) => eprintln!("skipped: no O_DIRECT in {} ({e})", std::env::temp_dir().display()),
        }
        assert_eq!(super::pin_evidence(), None);
    }
}
