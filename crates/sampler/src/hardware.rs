//! Hardware that samples accesses: Intel's PEBS and AMD's IBS. It says the address itself.
//!
//! Encodings are those of `facts/sampling.md` (PEBS / IBS). Opening an event proves nothing in a virtual machine, so a source is believed only after it has seen
//! accesses that we made ourselves: [`Hardware::counts_here`].

use crate::events::{Events, OpenError, Request, Whose};
use crate::ring::{Layout, RawSample, fields};
use crate::{Sample, Tally};
use perf_event_open_sys::bindings::PERF_TYPE_RAW;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Intel: loads that missed the last cache, and stores.
    Pebs,
    /// AMD: any operation, of which those are kept that went to memory.
    Ibs {
        /// Its type among the kernel's event sources.
        event_type: u32,
        /// The kernel can leave itself out (Linux 6.14).
        filters: bool,
    },
}

impl Kind {
    /// As `--sampler` names it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pebs => "pebs",
            Kind::Ibs { .. } => "ibs",
        }
    }

    /// What the kernel says of this processor; `devices` is `/sys/bus/event_source/devices`.
    pub fn of_machine(devices: &Path) -> Option<Kind> {
        let number = |file: &str| std::fs::read_to_string(devices.join(file)).ok()?.trim().parse::<u32>().ok();
        if let Some(event_type) = number("ibs_op/type") {
            return Some(Kind::Ibs { event_type, filters: devices.join("ibs_op/format/swfilt").exists() });
        }
        // Precise addresses need 2.
        (number("cpu/caps/max_precise")? >= 2).then_some(Kind::Pebs)
    }

    /// Events to open, each with what one of its samples weighs.
    fn requests(self) -> Vec<(Request, f32)> {
        let layout = Layout { sample_type: fields::IP | fields::TID | fields::TIME | fields::ADDR | fields::DATA_SRC };
        let request = |kind, config, period, precise_ip| Request { kind, config, config2: 0, user_only: true, period, precise_ip, layout };
        match self {
            Kind::Pebs => vec![
                (request(PERF_TYPE_RAW, L3_MISS_LOCAL, MISSES, 2), 1.0),
                (request(PERF_TYPE_RAW, L3_MISS_REMOTE, MISSES, 2), 1.0),
                // Any store, not only those that missed.
                (request(PERF_TYPE_RAW, ALL_STORES, STORES, 2), 0.1),
            ],
            Kind::Ibs { event_type, filters } => {
                let request = Request { config2: filters.into(), user_only: filters, ..request(event_type, IBS_COUNT_OPS, IBS_OPS, 0) };
                vec![(request, 1.0)]
            }
        }
    }
}

/// MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM and .REMOTE_DRAM (CXL among them), MEM_INST_RETIRED.ALL_STORES: umask, event.
const L3_MISS_LOCAL: u64 = 0x1d3;
const L3_MISS_REMOTE: u64 = 0x2d3;
const ALL_STORES: u64 = 0x82d0;
/// Count operations, not cycles.
const IBS_COUNT_OPS: u64 = 1 << 19;
/// Counts between samples; IBS wants a multiple of 16.
const MISSES: u64 = 199;
const STORES: u64 = 100_007;
const IBS_OPS: u64 = 50_000;

/// The hardware's samples.
pub struct Hardware {
    kind: Kind,
    sources: Vec<(Events, f32)>,
}

impl Hardware {
    /// Opens the events of a kind; all of them, or it is an error.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(kind: Kind, whose: Whose) -> Result<Hardware, OpenError> {
        let open = |(request, weight)| Ok((Events::open(whose, &request)?, weight));
        Ok(Hardware { kind, sources: kind.requests().into_iter().map(open).collect::<Result<_, OpenError>>()? })
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Stops sampling, or goes on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn enable(&self, on: bool) -> std::io::Result<()> {
        self.sources.iter().try_for_each(|(events, _)| events.enable(on))
    }

    /// As [`crate::clock::Clock::drain`].
    pub fn drain(&mut self, ours: impl Fn(u32) -> bool, wanted: impl Fn(u32, u64) -> bool, mut each: impl FnMut(Sample)) -> Tally {
        let (mut tally, mut located) = (Tally::default(), 0);
        for (events, weight) in &mut self.sources {
            tally += events.samples(|raw| {
                let sample = access(self.kind, &raw, *weight);
                if let Some(sample) = sample.filter(|sample| ours(sample.process) && wanted(sample.process, sample.address)) {
                    located += 1;
                    each(sample);
                }
            });
        }
        Tally { located, ..tally }
    }

    /// Whether the hardware sees accesses (loads; stores it may count though it knows no misses): of our own, to memory that few caches hold. Takes 0.1 s at most.
    pub fn counts_here(kind: Kind) -> bool {
        const LEN: usize = 64 << 20;
        const LONGEST: Duration = Duration::from_millis(100);
        // SAFETY: no arguments.
        let thread = unsafe { libc::gettid() };
        // (Some kernels sample no single threads by IBS.)
        let opened = Hardware::open(kind, Whose::Threads(&[thread])).or_else(|_| Hardware::open(kind, Whose::Everybody));
        let Ok(mut hardware) = opened else { return false };
        let mut memory = vec![1u64; LEN / 8];
        let inside = memory.as_ptr() as u64..memory.as_ptr() as u64 + LEN as u64;
        let (begun, mut at, mut seen) = (Instant::now(), 1u64, 0);
        while begun.elapsed() < LONGEST && seen < 4 {
            for _ in 0..20_000 {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(memory[(at >> 33) as usize % memory.len()]);
                memory[(at >> 33) as usize % (LEN / 8)] |= 1;
            }
            hardware.drain(|_| true, |_, address| inside.contains(&address), |sample| seen += u32::from(sample.weight == 1.0));
        }
        std::hint::black_box(at);
        seen > 0
    }
}

/// The access that a sample tells of: in user space, and answered by memory where the hardware samples everything.
fn access(kind: Kind, raw: &RawSample, weight: f32) -> Option<Sample> {
    const USER: u64 = 1 << 47;
    let told = raw.address != 0 && raw.address < USER && raw.ip < USER;
    let kept = told && (matches!(kind, Kind::Pebs) || from_memory(raw.data_src));
    kept.then_some(Sample { address: raw.address, weight, time_ns: raw.time_ns, process: raw.pid, thread: raw.tid })
}

/// Whether DRAM, local or remote, persistent memory or CXL answered (`union perf_mem_data_src`).
fn from_memory(data_src: u64) -> bool {
    /// `PERF_MEM_LVL_LOC_RAM`, `_REM_RAM1`, `_REM_RAM2`, in 14 bits from bit 5 on.
    const LEVELS: u64 = 0x80 | 0x100 | 0x200;
    /// `PERF_MEM_LVLNUM_CXL`, `_RAM`, `_PMEM`, in 4 bits from bit 33 on.
    const NUMBERS: [u64; 3] = [0x9, 0xd, 0xe];
    (data_src >> 5) & LEVELS != 0 || NUMBERS.contains(&(data_src >> 33 & 0xf))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Record;

    const LAYOUT: Layout = Layout { sample_type: fields::IP | fields::TID | fields::TIME | fields::ADDR | fields::DATA_SRC };

    /// A record as the kernel writes it.
    fn record(ip: u64, address: u64, data_src: u64) -> Vec<u8> {
        let words = [9 | 48 << 48, ip, 7 | 8 << 32, 99, address, data_src];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn accesses(kind: Kind, bytes: &[u8]) -> Vec<Sample> {
        let mut found = Vec::new();
        let drained = LAYOUT.read(bytes, |record| {
            let Record::Sample(raw) = record else { panic!("{record:?}") };
            found.extend(access(kind, &raw, 0.5));
        });
        assert!(!drained.damaged);
        found
    }

    const IBS: Kind = Kind::Ibs { event_type: 11, filters: false };
    const DRAM: u64 = 0x80 << 5 | 1;
    const L2: u64 = 0x22 << 5 | 1;

    #[test]
    fn an_access_byte_for_byte() {
        let expected = Sample { address: 0x7000_0000_1234, weight: 0.5, time_ns: 99, process: 7, thread: 8 };
        assert_eq!(accesses(Kind::Pebs, &record(0x40_1000, 0x7000_0000_1234, L2)), [expected]);
        assert_eq!(accesses(IBS, &record(0x40_1000, 0x7000_0000_1234, DRAM)), [expected]);
    }

    #[test]
    fn what_is_no_access_of_the_program_to_memory_is_left_out() {
        let kernel = 0xFFFF_8880_0000_0000;
        for (ip, address, data_src) in [(0x40_1000, 0, DRAM), (0x40_1000, kernel, DRAM), (kernel, 0x7000, DRAM)] {
            assert!(accesses(Kind::Pebs, &record(ip, address, data_src)).is_empty());
        }
        // Everything is sampled there.
        assert!(accesses(IBS, &record(0x40_1000, 0x7000, L2)).is_empty() && accesses(IBS, &record(0x40_1000, 0x7000, 0)).is_empty());
    }

    #[test]
    fn memory_is_told_in_either_way() {
        for level in [0x80u64, 0x100, 0x200] {
            assert!(from_memory(level << 5));
        }
        for number in [0x9u64, 0xd, 0xe] {
            assert!(from_memory(number << 33));
        }
        // Caches, fill buffers, nothing known.
        for other in [0, 0x1 << 5, 0x8 << 5, 0x10 << 5, 0x40 << 5, 0x400 << 5, 1 << 33, 3 << 33, 0xb << 33, 0xc << 33, 0xf << 33] {
            assert!(!from_memory(other), "{other:#x}");
        }
    }

    #[test]
    fn processors_are_told_apart() {
        let scratch = std::env::temp_dir().join(format!("terrace-devices-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = scratch.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(Kind::of_machine(&scratch), None);
        write("cpu/caps/max_precise", "0\n");
        assert_eq!(Kind::of_machine(&scratch), None);
        write("cpu/caps/max_precise", "3\n");
        assert_eq!(Kind::of_machine(&scratch), Some(Kind::Pebs));
        write("ibs_op/type", "11\n");
        assert_eq!(Kind::of_machine(&scratch), Some(IBS));
        std::fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn periods_are_what_the_hardware_takes() {
        assert_eq!(IBS_OPS % 16, 0);
        assert!(Kind::Pebs.requests().iter().all(|(request, weight)| request.precise_ip == 2 && request.user_only && *weight > 0.0));
        // Refused by kernels that cannot filter it.
        assert!(!IBS.requests()[0].0.user_only && Kind::Ibs { event_type: 11, filters: true }.requests()[0].0.config2 == 1);
    }

    /// Here there is none: then nothing is believed.
    #[test]
    fn what_cannot_count_is_not_believed() {
        let machine = Kind::of_machine(Path::new("/sys/bus/event_source/devices"));
        if machine.is_none() {
            assert!(!Hardware::counts_here(Kind::Pebs));
        }
    }
}
