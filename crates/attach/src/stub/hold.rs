//! Descriptors that outlive all processes of ours, as requests of asynchronous I/O in the target's
//! memory.

use super::{CONTEXT, HELD, HOLDS, Stub, context_of, expect};
use crate::process;
use crate::sys;
use anyhow::{Result, anyhow};

impl Stub {
    /// Has the target's userfaultfd outlive every process of ours. A request to poll it that never
    /// ends lives as long as the target's memory. Does nothing in a kernel without asynchronous
    /// I/O.
    pub fn hold(&mut self) -> Result<()> {
        let made = self.calls(
            &[[libc::SYS_io_setup as u64, HELD as u64, self.base + CONTEXT, 0, 0, 0, 0]],
            &mut [],
        )?;
        if made[0] != 0 {
            return Ok(());
        }
        self.context = context_of(self.pid, self.base)?;
        let of_ring = |mapping: &process::Mapping| mapping.start == self.context;
        if let Some(ring) = process::mappings(self.pid)?.into_iter().find(of_ring) {
            let bytes = ring.end - ring.start;
            let keep = [28, ring.start, bytes, libc::MADV_DONTFORK as u64, 0, 0, 0];
            self.calls(&[keep], &mut [])?;
        }
        self.hold_descriptor(0, self.uffd_there)
    }

    /// Has a descriptor of the stub's outlive the stub, by one of [`HELD`] requests.
    pub fn hold_descriptor(&mut self, number: usize, there: i32) -> Result<()> {
        if self.context == 0 || number >= HELD {
            return Ok(());
        }
        // struct iocb of IOCB_CMD_POLL, for no event.
        let request = self.base + HOLDS + number as u64 * 64;
        let mut bytes = [0u8; 64];
        bytes[16..18].copy_from_slice(&5u16.to_ne_bytes());
        bytes[20..24].copy_from_slice(&there.to_ne_bytes());
        sys::write_memory(self.pid, request, &bytes)
            .map_err(|errno| anyhow!("cannot write into the stub (errno {errno})"))?;
        let list = self.data_address(1);
        let submit = [libc::SYS_io_submit as u64, self.context, 1, list, 0, 0, 0];
        let done = self.calls(&[submit], &mut request.to_ne_bytes())?;
        expect(done[0], "io_submit").map(drop)
    }

    /// Lets a descriptor go that was held.
    pub fn let_go(&mut self, number: usize) {
        if self.context == 0 || number >= HELD || self.dead {
            return;
        }
        let request = self.base + HOLDS + number as u64 * 64;
        let event = self.data_address(2);
        let calls = [
            [libc::SYS_io_cancel as u64, self.context, request, event, 0, 0, 0],
            // Its completion is taken, or the ring would fill.
            [libc::SYS_io_getevents as u64, self.context, 0, 1, event, 0, 0],
        ];
        let _ = self.calls(&calls, &mut [0; 32]);
    }
}
