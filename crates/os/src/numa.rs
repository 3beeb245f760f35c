//! NUMA nodes: where pages are, and where they are to be.

use crate::injection;
use crate::injection::Call;
use crate::types::{Errno, Result};
use syscalls::{Sysno, syscall};

/// From now on the kernel does not balance memory between NUMA nodes for the calling thread and
/// those that it makes. It allocates as before, in the node of the thread's CPU, but by a policy
/// that says so, which balancing leaves alone. A thread that has a policy already keeps it.
pub fn leave_pages_in_their_nodes() {
    const MPOL_DEFAULT: i32 = 0;
    const MPOL_LOCAL: usize = 4;
    let mut mode = MPOL_DEFAULT;
    // SAFETY: the kernel writes one number.
    let asked = unsafe { syscall!(Sysno::get_mempolicy, &raw mut mode, 0, 0, 0, 0) };
    if asked.is_ok() && mode == MPOL_DEFAULT {
        // SAFETY: no memory is involved. Where it is refused, the kernel moves pages, too.
        let _ = unsafe { syscall!(Sysno::set_mempolicy, MPOL_LOCAL, 0, 0) };
    }
}

/// In which NUMA node each page is, or a negative errno: −ENOENT if it is not present.
pub fn locate_pages(pages: &[usize], status: &mut [i32]) -> Result<()> {
    debug_assert_eq!(pages.len(), status.len());
    // SAFETY: the kernel reads that many addresses, which may be any, and writes that many numbers.
    unsafe {
        syscall!(Sysno::move_pages, 0, pages.len(), pages.as_ptr(), 0, status.as_mut_ptr(), 0)
    }
    .map(drop)
}

/// Moves pages of this process alone to NUMA nodes. Which of them went is not said: after one that
/// cannot, those behind it may not have been tried ([`locate_pages`] tells).
pub fn move_pages(pages: &[usize], nodes: &[i32], status: &mut [i32]) -> Result<()> {
    debug_assert!(pages.len() == status.len() && pages.len() == nodes.len());
    const MPOL_MF_MOVE: usize = 1 << 1;
    if let Some(errno) = injection::strike(Call::Nodes) {
        return Err(errno);
    }
    // SAFETY: contents stay; the kernel reads that many addresses and nodes, and writes that many
    // numbers.
    unsafe {
        syscall!(
            Sysno::move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            MPOL_MF_MOVE
        )
    }
    .map(drop)
}

/// In which NUMA node each page of another process is, or a negative errno: −ENOENT if it is not
/// present. With `to`, a node for each page, the kernel first moves those that no other process
/// has. EPERM: that takes CAP_SYS_PTRACE, and to move CAP_SYS_NICE. ESRCH: there is no such
/// process.
pub fn nodes_of_pages(process: i32, pages: &[u64], to: Option<&[i32]>) -> Result<Vec<i32>> {
    const MPOL_MF_MOVE: usize = 1 << 1;
    assert!(to.is_none_or(|to| to.len() == pages.len()), "a node for each page");
    let mut status = vec![-libc::ENOENT; pages.len()];
    let to = to.map_or(std::ptr::null(), <[i32]>::as_ptr);
    // SAFETY: contents stay; the kernel reads that many addresses, and nodes if it is told any, and
    // writes that many numbers.
    unsafe {
        syscall!(
            Sysno::move_pages,
            process,
            pages.len(),
            pages.as_ptr(),
            to,
            status.as_mut_ptr(),
            MPOL_MF_MOVE
        )
    }?;
    Ok(status)
}

/// New pages of a range come from this node as long as it has room.
pub fn prefer_node(start: usize, len: usize, node: u32) -> Result<()> {
    const MPOL_PREFERRED: usize = 1;
    let mut nodes = [0usize; 16];
    let Some(word) = nodes.get_mut(node as usize / usize::BITS as usize) else {
        return Err(Errno::EINVAL);
    };
    *word = 1 << (node % usize::BITS);
    // (The kernel takes one bit less than it is told.)
    // SAFETY: changes no contents; the kernel reads that many bits.
    unsafe {
        syscall!(
            Sysno::mbind,
            start,
            len,
            MPOL_PREFERRED,
            nodes.as_ptr(),
            nodes.len() * usize::BITS as usize + 1,
            0
        )
    }
    .map(drop)
}
