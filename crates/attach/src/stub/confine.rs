//! What the stub may do: no privilege, and a dozen system calls.

use super::{CONTROL, Stub, expect};
use crate::sys;
use anyhow::{Result, anyhow};

impl Stub {
    /// Confines the stub: no privilege, and no calls but those that it is there for. The stub waits
    /// for the target's end if no other process is left.
    pub fn confine(&mut self, target_there: i32) -> Result<()> {
        let opened = self.calls(&[[434, target_there as u64, 0, 0, 0, 0, 0]], &mut [])?;
        let pidfd = expect(opened[0], "pidfd_open")? as i32;
        sys::write_memory(self.pid, self.base + CONTROL + 16, &pidfd.to_ne_bytes())
            .map_err(|errno| anyhow!("cannot write into the stub (errno {errno})"))?;
        let filter = filter();
        let mut data = Vec::new();
        let calls_n = 4;
        let header = self.data_address(calls_n);
        // capset: version and process, then no capability.
        data.extend([0x2008_0522u32, 0, 0, 0, 0, 0, 0, 0].iter().flat_map(|w| w.to_ne_bytes()));
        let program = header + data.len() as u64;
        data.extend((filter.len() as u64).to_ne_bytes());
        data.extend((program + 16).to_ne_bytes());
        for (code, jt, jf, k) in &filter {
            data.extend(code.to_ne_bytes());
            data.extend([*jt, *jf]);
            data.extend(k.to_ne_bytes());
        }
        let calls = [
            [libc::SYS_setsid as u64, 0, 0, 0, 0, 0, 0],
            [libc::SYS_capset as u64, header, header + 8, 0, 0, 0, 0],
            [libc::SYS_prctl as u64, libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0, 0],
            [libc::SYS_seccomp as u64, 1, 0, program, 0, 0, 0],
        ];
        let done = self.calls(&calls, &mut data)?;
        expect(done[1], "capset")?;
        expect(done[2], "PR_SET_NO_NEW_PRIVS")?;
        expect(done[3], "seccomp").map(drop)
    }
}

/// A seccomp filter (code, jump if true, jump if false, operand): what the stub may call.
fn filter() -> Vec<(u16, u8, u8, u32)> {
    const ALLOWED: [i64; 13] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_ioctl,
        libc::SYS_madvise,
        libc::SYS_munmap,
        libc::SYS_poll,
        libc::SYS_recvmsg,
        libc::SYS_close,
        libc::SYS_exit_group,
        libc::SYS_io_submit,
        libc::SYS_io_cancel,
        libc::SYS_io_getevents,
        libc::SYS_io_destroy,
    ];
    let (load, equal, give) = (0x20, 0x15, 0x06);
    let mut filter = vec![
        // Another architecture's numbers mean other calls.
        (load, 0, 0, 4),
        (equal, 1, 0, 0xc000_003e),
        (give, 0, 0, 0x8000_0000),
        (load, 0, 0, 0),
    ];
    for (number, call) in ALLOWED.iter().enumerate() {
        filter.push((equal, (ALLOWED.len() - number) as u8, 0, *call as u32));
    }
    filter.push((give, 0, 0, 0x0005_0000 | libc::EPERM as u32));
    filter.push((give, 0, 0, 0x7fff_0000));
    filter
}
