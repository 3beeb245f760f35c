//! perf events of a process's threads: one a thread and CPU, one ring a CPU.
//!
//! An event with a ring must be bound to a CPU, or its threads' children are not counted with them
//! (`inherit`). So there is one of each thread on each CPU, and those of one CPU write into one
//! ring. Threads that are made later are in by themselves. Whether processes and executed programs
//! are, says [`Whose`].

use crate::Tally;
use crate::ring::{Drained, Layout, RawSample, Record, Ring};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use perf_event_open_sys::{ioctls, perf_event_open};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Data of a ring, bytes: at 1,000 samples a second of 184 bytes, a third of a second.
const DATA_LEN: usize = 64 << 10;

/// The threads or programs whose accesses are sampled.
#[derive(Clone, Copy, Debug)]
pub enum Whose<'a> {
    /// Samples these threads and those that they will make, until they execute another program.
    Threads(&'a [i32]),
    /// Samples the programs that this thread's children will execute, and all that they make. Each
    /// switch between their threads costs the kernel half a microsecond more.
    Children,
    /// Samples all that runs on this machine: costs no switch anything, and needs a privilege.
    Everybody,
}

/// What is sampled.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// `PERF_TYPE_…` and its `config`.
    pub kind: u32,
    /// See `kind`.
    pub config: u64,
    /// Field `config1` of `perf_event_attr`.
    pub config1: u64,
    /// Field `config2` of `perf_event_attr`.
    pub config2: u64,
    /// Whether the kernel is asked to leave itself out, which not all hardware can.
    pub user_only: bool,
    /// Counts between samples (for the clock: ns of a thread's running).
    pub period: u64,
    /// How exact the address of the instruction must be: 0, or 1 to 3 for hardware that samples
    /// accesses.
    pub precise_ip: u8,
    /// What a sample is made of.
    pub layout: Layout,
}

/// Why there are no events.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not allowed, by `perf_event_paranoid` or a seccomp filter.
    #[error(
        "the kernel allows no perf events here ({0}): lower the sysctl kernel.perf_event_paranoid to 2, or allow perf_event_open in the seccomp profile"
    )]
    Forbidden(io::Error),
    /// The machine or the kernel has no such event.
    #[error("no such event on this machine ({0})")]
    Unsupported(io::Error),
    /// Events can be opened, and tell of no access.
    #[error("{0}")]
    Blind(&'static str),
    /// No thread is left to sample: all ended meanwhile.
    #[error("no thread is left to sample")]
    NoThreads,
    /// Something else, such as too few descriptors.
    #[error("cannot open perf events: {0}")]
    Other(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => OpenError::Forbidden(error),
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) => {
                OpenError::Unsupported(error)
            }
            _ => OpenError::Other(error),
        }
    }
}

/// A ring's memory.
struct Mapping {
    start: usize,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `Mapping::of`, and the ring over it is dropped with it.
        unsafe { terrace_os::unmap(self.start, self.len) };
    }
}

impl Mapping {
    fn of(event: &OwnedFd) -> io::Result<(Mapping, Ring)> {
        let page = terrace_os::page_bytes();
        let len = page + DATA_LEN;
        let start = terrace_os::map_shared_anywhere(event.as_raw_fd(), len)
            .map_err(terrace_os::io_error)?;
        // SAFETY: the event's mapping, which lives as long as the ring: they are kept together, and
        // nothing else reads it.
        let ring = unsafe { Ring::new(start as *mut u8, page, DATA_LEN) };
        Ok((Mapping { start, len }, ring))
    }
}

/// Events that are open. Closed when dropped.
pub struct Events {
    layout: Layout,
    /// Rings of the mappings. They are dropped before the mappings, which must outlive them.
    rings: Vec<Ring>,
    _mappings: Vec<Mapping>,
    events: Vec<OwnedFd>,
}

impl Events {
    /// Opens events.
    ///
    /// # Errors
    /// See [`OpenError`]. Threads that have ended are left out.
    pub fn open(whose: Whose, request: &Request) -> Result<Events, OpenError> {
        let threads = match whose {
            Whose::Threads(threads) => threads,
            Whose::Children => &[0],
            Whose::Everybody => &[-1],
        };
        let mut opened = Events {
            layout: request.layout,
            rings: Vec::new(),
            _mappings: Vec::new(),
            events: Vec::new(),
        };
        for cpu in 0..cpus() {
            let mut first: Option<i32> = None;
            for thread in threads {
                let event = match open_one(*thread, cpu, whose, request) {
                    Ok(event) => event,
                    // It has ended; or the CPU is offline.
                    Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) => {
                        continue;
                    }
                    Err(e) => return Err(e.into()),
                };
                match first {
                    None => {
                        first = Some(event.as_raw_fd());
                        let (mapping, ring) = Mapping::of(&event)?;
                        opened._mappings.push(mapping);
                        opened.rings.push(ring);
                    }
                    // SAFETY: both are events of one CPU.
                    Some(first) if unsafe { ioctls::SET_OUTPUT(event.as_raw_fd(), first) } != 0 => {
                        return Err(io::Error::last_os_error().into());
                    }
                    Some(_) => {}
                }
                opened.events.push(event);
            }
        }
        if opened.events.is_empty() { Err(OpenError::NoThreads) } else { Ok(opened) }
    }

    /// Takes out what has been sampled, in the order of each CPU.
    pub fn drain(&mut self, mut each: impl FnMut(Record)) -> Drained {
        let layout = self.layout;
        self.rings.iter_mut().map(|ring| ring.drain(&layout, &mut each)).fold(
            Drained::default(),
            |all, one| Drained {
                records: all.records + one.records,
                damaged: all.damaged || one.damaged,
            },
        )
    }

    /// Takes out samples, in the order of each CPU. The tally counts them, and what was lost,
    /// throttled or damaged. The caller decides which samples can be located.
    pub fn samples(&mut self, mut each: impl FnMut(RawSample)) -> Tally {
        let mut tally = Tally::default();
        let drained = self.drain(|record| match record {
            Record::Sample(sample) => {
                tally.samples += 1;
                each(sample);
            }
            Record::Lost(lost) => tally.lost += lost,
            Record::Throttled => tally.throttled += 1,
            _ => {}
        });
        tally.damaged += u64::from(drained.damaged);
        tally
    }

    /// Stops counting, or goes on, in all threads.
    ///
    /// # Errors
    /// The kernel's.
    pub fn enable(&self, on: bool) -> io::Result<()> {
        self.events.iter().try_for_each(|event| {
            let event = event.as_raw_fd();
            // SAFETY: no memory is involved.
            let done =
                unsafe { if on { ioctls::ENABLE(event, 0) } else { ioctls::DISABLE(event, 0) } };
            if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }

    /// Counts between samples from now on. (Of single threads: in those that are yet to come, not
    /// in those that are there.)
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        self.events.iter().try_for_each(|event| {
            // SAFETY: the kernel reads the number through its address (which the binding, by
            // mistake, has as a number).
            let done = unsafe { ioctls::PERIOD(event.as_raw_fd(), &raw const period as u64) };
            if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }
}

fn cpus() -> i32 {
    terrace_os::configured_cpus() as i32
}

fn open_one(thread: i32, cpu: i32, whose: Whose, request: &Request) -> io::Result<OwnedFd> {
    let (children, threads) =
        (matches!(whose, Whose::Children), matches!(whose, Whose::Threads(_)));
    let mut attributes = perf_event_attr {
        type_: request.kind,
        config: request.config,
        sample_type: request.layout.sample_type,
        ..Default::default()
    };
    attributes.size = size_of::<perf_event_attr>() as u32;
    attributes.__bindgen_anon_1.sample_period = request.period;
    attributes.sample_regs_user = crate::operand::Registers::PERF_MASK;
    attributes.clockid = libc::CLOCK_MONOTONIC;
    attributes.set_use_clockid(1);
    attributes.__bindgen_anon_3.config1 = request.config1;
    attributes.__bindgen_anon_4.config2 = request.config2;
    attributes.set_exclude_kernel(request.user_only.into());
    attributes.set_exclude_hv(request.user_only.into());
    attributes.set_inherit((children || threads).into());
    // Off here, and in children until they execute something.
    attributes.set_disabled(children.into());
    attributes.set_enable_on_exec(children.into());
    attributes.set_inherit_thread(threads.into());
    attributes.set_remove_on_exec(threads.into());
    attributes.set_precise_ip(u64::from(request.precise_ip));
    let flags = bindings::PERF_FLAG_FD_CLOEXEC;
    // SAFETY: a whole attribute; sampling changes nothing in the program.
    let event = unsafe { perf_event_open(&raw mut attributes, thread, cpu, -1, flags.into()) };
    if event < 0
        && threads
        && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::E2BIG | libc::EINVAL))
    {
        // Before Linux 5.13 the kernel cannot inherit to threads alone; children are sampled too
        // then, and left out by their process.
        attributes.set_inherit_thread(0);
        attributes.set_remove_on_exec(0);
        // SAFETY: as above.
        let event = unsafe { perf_event_open(&raw mut attributes, thread, cpu, -1, flags.into()) };
        return owned(event);
    }
    owned(event)
}

fn owned(event: i32) -> io::Result<OwnedFd> {
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}

/// Threads of a process at this moment.
///
/// # Errors
/// If there is no such process.
pub fn threads(process: i32) -> io::Result<Vec<i32>> {
    let names = std::fs::read_dir(format!("/proc/{process}/task"))?;
    Ok(names.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}
