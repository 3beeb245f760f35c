//! Hardware that samples accesses: Intel's PEBS and AMD's IBS. It says the address itself.
//!
//! Encodings are those of the processors' manuals and the kernel's event tables. Periods follow
//! what samples cost: [`Pace`].
//!
//! Opening an event proves nothing in a virtual machine, nor on a processor that gives the number
//! another meaning. So each of several ways is believed only after it has seen accesses that we
//! made ourselves: [`Hardware::counts_here`].

use crate::events::{Events, OpenError, Request, Whose};
use crate::ring::{Layout, RawSample, fields};
use crate::{Access, Sample, Tally};
use perf_event_open_sys::bindings::PERF_TYPE_RAW;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Intel: loads that memory answered, and stores.
    Pebs(Loads),
    /// AMD: any operation, of which those are kept that went to memory.
    Ibs {
        /// Type of IBS among the kernel's event sources.
        event_type: u32,
        /// The kernel can leave itself out (Linux 6.14).
        filters: bool,
        /// The processor can leave out what its caches answered (Zen 4).
        misses_only: bool,
    },
}

/// How Intel's loads are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loads {
    /// Loads are told by the part of memory that answered them: Skylake-SP to Sapphire Rapids.
    BySource,
    /// Loads are told that missed the last cache.
    Misses,
    /// Loads are told that took long: the event of that name in the kernel's list.
    Slow {
        /// Number of the event.
        config: u64,
    },
}

/// An event to open.
struct Event {
    request: Request,
    /// What a sample of the event weighs at the period that the event begins with.
    weight: f32,
    access: Access,
    /// Whether the event may be missing: some processors have none.
    optional: bool,
}

impl Kind {
    /// Name of the kind, as `--sampler` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pebs(_) => "pebs",
            Kind::Ibs { .. } => "ibs",
        }
    }

    /// What the kernel says of this processor, in the order in which it is to be tried; `devices`
    /// is `/sys/bus/event_source/devices`.
    pub fn of_machine(devices: &Path) -> Vec<Kind> {
        let number = |file: &str| {
            std::fs::read_to_string(devices.join(file)).ok()?.trim().parse::<u32>().ok()
        };
        if let Some(event_type) = number("ibs_op/type") {
            let has = |name: &str| devices.join("ibs_op/format").join(name).exists();
            let ibs = |misses_only| Kind::Ibs { event_type, filters: has("swfilt"), misses_only };
            return if has("l3missonly") { vec![ibs(true), ibs(false)] } else { vec![ibs(false)] };
        }
        // Precise addresses need 2.
        if number("cpu/caps/max_precise").is_none_or(|precise| precise < 2) {
            return Vec::new();
        }
        let listed = std::fs::read_to_string(devices.join("cpu/events/mem-loads")).ok();
        let slow =
            listed.as_deref().and_then(config_of).map(|config| Kind::Pebs(Loads::Slow { config }));
        [Kind::Pebs(Loads::BySource), Kind::Pebs(Loads::Misses)].into_iter().chain(slow).collect()
    }

    /// Events to open.
    fn events(self) -> Vec<Event> {
        let layout = Layout {
            sample_type: fields::IP
                | fields::TID
                | fields::TIME
                | fields::ADDR
                | fields::PERIOD
                | fields::DATA_SRC,
        };
        let request = |config| Request {
            kind: PERF_TYPE_RAW,
            config,
            config1: 0,
            config2: 0,
            user_only: true,
            period: MISSES,
            precise_ip: 2,
            layout,
        };
        let load = |config| Event {
            request: request(config),
            weight: 1.0,
            access: Access::Load,
            optional: false,
        };
        let loads = match self {
            // Not all have persistent memory, of which the first two do not tell.
            Kind::Pebs(Loads::BySource) => {
                vec![
                    load(L3_MISS_LOCAL),
                    load(L3_MISS_REMOTE),
                    Event { optional: true, ..load(LOCAL_PMM) },
                ]
            }
            Kind::Pebs(Loads::Misses) => vec![load(L3_MISS)],
            Kind::Pebs(Loads::Slow { config }) => {
                vec![Event {
                    request: Request { config1: SLOW_CYCLES, ..request(config) },
                    ..load(config)
                }]
            }
            Kind::Ibs { event_type, filters, misses_only } => {
                let config = IBS_COUNT_OPS | if misses_only { IBS_MISSES_ONLY } else { 0 };
                let request = Request {
                    kind: event_type,
                    config2: filters.into(),
                    user_only: filters,
                    period: IBS_OPS,
                    precise_ip: 0,
                    ..request(config)
                };
                return vec![Event { request, weight: 1.0, access: Access::Load, optional: false }];
            }
        };
        // Any store, not only those that missed.
        let stores = Request { period: STORES, ..request(ALL_STORES) };
        loads
            .into_iter()
            .chain([Event { request: stores, weight: 0.1, access: Access::Store, optional: true }])
            .collect()
    }

    /// A period that the hardware takes, near this one.
    fn period(self, near: f64) -> u64 {
        let near = (near as u64).max(2);
        match self {
            // A multiple of 16.
            Kind::Ibs { .. } => near.next_multiple_of(16),
            // A prime number, which no loop of the program goes round in step with.
            Kind::Pebs(_) => (near..)
                .find(|n| (2..).take_while(|d| d * d <= *n).all(|d| n % d != 0))
                .unwrap_or(near),
        }
    }
}

/// `event=0xcd,umask=0x1,ldlat=3` as a number.
fn config_of(listed: &str) -> Option<u64> {
    let field = |name: &str| {
        let value = listed
            .trim()
            .split(',')
            .find_map(|part| part.strip_prefix(name)?.strip_prefix("=0x"))?;
        u64::from_str_radix(value, 16).ok()
    };
    Some(field("event")? | field("umask")? << 8)
}

/// MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM and .REMOTE_DRAM (CXL among them),
/// MEM_LOAD_RETIRED.LOCAL_PMM and .L3_MISS, MEM_INST_RETIRED.ALL_STORES: umask, event.
const L3_MISS_LOCAL: u64 = 0x1d3;
const L3_MISS_REMOTE: u64 = 0x2d3;
const LOCAL_PMM: u64 = 0x80d1;
const L3_MISS: u64 = 0x20d1;
const ALL_STORES: u64 = 0x82d0;
/// A load is slow from here on: caches answer sooner.
const SLOW_CYCLES: u64 = 128;
/// Count operations, not cycles; and only those that no cache answered.
const IBS_COUNT_OPS: u64 = 1 << 19;
const IBS_MISSES_ONLY: u64 = 1 << 16;
/// Counts between samples, to begin with; IBS wants a multiple of 16.
const MISSES: u64 = 199;
const STORES: u64 = 100_007;
const IBS_OPS: u64 = 50_000;

/// How much longer periods are than those that hardware begins with: by what samples cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    times: f64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { times: 1.0 }
    }
}

impl Pace {
    /// How often the pace is looked at.
    pub const EVERY: Duration = Duration::from_millis(500);
    const STEP: f64 = 1.5;
    const LEAST: f64 = 0.1;
    const MOST: f64 = 1e6;

    /// Looks at what sampling costs, as a share of a CPU, of which `allowed` may be used.
    /// `hurried`: samples were lost or the kernel stopped the source. `wanted`: more samples would
    /// be worth while. True if periods change.
    pub fn look(&mut self, cost: f64, allowed: f64, hurried: bool, wanted: bool) -> bool {
        let before = self.times;
        if hurried {
            self.times *= 2.0;
        } else if cost > allowed {
            self.times *= Self::STEP;
        } else if cost < allowed / 2.0 && wanted {
            self.times /= Self::STEP;
        }
        self.times = self.times.clamp(Self::LEAST, Self::MOST);
        self.times != before
    }
}

/// An event that is open.
struct Stream {
    events: Events,
    /// What a sample weighs for each count that it stands for.
    weight: f32,
    access: Access,
    /// The period that the event began with.
    period: u64,
}

/// The hardware's samples.
pub struct Hardware {
    kind: Kind,
    streams: Vec<Stream>,
    pace: Pace,
    /// Whether periods can be changed: where all that runs on all CPUs is sampled. Those of single
    /// threads cannot.
    paced: bool,
}

impl Hardware {
    /// Opens the events of a kind; all of them that it must have, or it is an error.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(kind: Kind, whose: Whose) -> Result<Hardware, OpenError> {
        let mut streams = Vec::new();
        for Event { request, weight, access, optional } in kind.events() {
            match Events::open(whose, &request) {
                Ok(events) => {
                    streams.push(Stream {
                        events,
                        weight: weight / request.period as f32,
                        access,
                        period: request.period,
                    });
                }
                Err(_) if optional => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Hardware {
            kind,
            streams,
            pace: Pace::default(),
            paced: matches!(whose, Whose::Everybody),
        })
    }

    /// The kind of hardware.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Stops sampling, or goes on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn enable(&self, on: bool) -> std::io::Result<()> {
        self.streams.iter().try_for_each(|stream| stream.events.enable(on))
    }

    /// Makes samples rarer or more frequent, as [`Pace::look`] says.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pace(
        &mut self,
        cost: f64,
        allowed: f64,
        hurried: bool,
        wanted: bool,
    ) -> std::io::Result<()> {
        if !self.paced || !self.pace.look(cost, allowed, hurried, wanted) {
            return Ok(());
        }
        let (kind, times) = (self.kind, self.pace.times);
        self.streams.iter().try_for_each(|stream| {
            stream.events.set_period(kind.period(stream.period as f64 * times))
        })
    }

    /// Takes out samples as [`crate::clock::Clock::drain`] does.
    pub fn drain(
        &mut self,
        ours: impl Fn(u32) -> bool,
        wanted: impl Fn(u32, u64) -> bool,
        mut each: impl FnMut(Sample),
    ) -> Tally {
        let (mut tally, mut located) = (Tally::default(), 0);
        for Stream { events, weight, access, .. } in &mut self.streams {
            tally += events.samples(|raw| {
                let sample = accessed(self.kind, &raw, *weight, *access);
                if let Some(sample) = sample
                    .filter(|sample| ours(sample.process) && wanted(sample.process, sample.address))
                {
                    located += 1;
                    each(sample);
                }
            });
        }
        Tally { located, ..tally }
    }

    /// Whether the hardware sees accesses, of our own, to memory that few caches hold. Loads must
    /// be seen; stores it may count though it knows no misses. Takes 0.1 s at most.
    pub fn counts_here(kind: Kind) -> bool {
        const LEN: usize = 64 << 20;
        const LONGEST: Duration = Duration::from_millis(100);
        let thread = terrace_os::thread_id();
        // (Some kernels sample no single threads by IBS.)
        let opened = Hardware::open(kind, Whose::Threads(&[thread]))
            .or_else(|_| Hardware::open(kind, Whose::Everybody));
        let Ok(mut hardware) = opened else { return false };
        let mut memory = vec![1u64; LEN / 8];
        let inside = memory.as_ptr() as u64..memory.as_ptr() as u64 + LEN as u64;
        let (begun, mut at, mut seen) = (Instant::now(), 1u64, 0);
        while begun.elapsed() < LONGEST && seen < 4 {
            for _ in 0..20_000 {
                at = at
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(memory[(at >> 33) as usize % memory.len()]);
                memory[(at >> 33) as usize % (LEN / 8)] |= 1;
            }
            let is_own = |_: u32, address: u64| inside.contains(&address);
            hardware.drain(
                |_| true,
                is_own,
                |sample| seen += u32::from(sample.kind == Access::Load),
            );
        }
        std::hint::black_box(at);
        seen > 0
    }
}

/// The access that a sample tells of: in user space, and answered by memory where the hardware
/// samples others too. It weighs `weight` for each count of the period in force.
fn accessed(kind: Kind, raw: &RawSample, weight: f32, access: Access) -> Option<Sample> {
    const USER: u64 = 1 << 47;
    /// `PERF_MEM_OP_STORE`, in 5 bits from bit 0 on.
    const STORE: u64 = 0x4;
    let told = raw.address != 0 && raw.address < USER && raw.ip < USER;
    let (kept, kind) = match kind {
        Kind::Pebs(Loads::BySource | Loads::Misses) => (told, access),
        Kind::Pebs(Loads::Slow { .. }) => {
            (told && (access == Access::Store || from_memory(raw.data_src)), access)
        }
        Kind::Ibs { .. } => (
            told && from_memory(raw.data_src),
            if raw.data_src & STORE != 0 { Access::Store } else { access },
        ),
    };
    let weight = weight * raw.period as f32;
    kept.then_some(Sample {
        address: raw.address,
        weight,
        time_ns: raw.time_ns,
        process: raw.pid,
        thread: raw.tid,
        kind,
    })
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

    /// The layout of samples of all events.
    fn layout() -> Layout {
        Kind::Pebs(Loads::BySource).events()[0].request.layout
    }

    /// A record as the kernel writes it: of `ip`, thread, time, address, period and source.
    fn record(ip: u64, address: u64, period: u64, data_src: u64) -> Vec<u8> {
        let words = [9 | 56 << 48, ip, 7 | 8 << 32, 99, address, period, data_src];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn accesses(kind: Kind, access: Access, bytes: &[u8]) -> Vec<Sample> {
        let mut found = Vec::new();
        let drained = layout().read(bytes, |record| {
            let Record::Sample(raw) = record else { panic!("{record:?}") };
            found.extend(accessed(kind, &raw, 0.5 / 200.0, access));
        });
        assert!(!drained.damaged);
        found
    }

    const PEBS: Kind = Kind::Pebs(Loads::BySource);
    const SLOW: Kind = Kind::Pebs(Loads::Slow { config: 0x1cd });
    const IBS: Kind = Kind::Ibs { event_type: 11, filters: false, misses_only: false };
    /// A load, and what answered it.
    const DRAM: u64 = 0x80 << 5 | 2;
    const L2: u64 = 0x22 << 5 | 2;

    #[test]
    fn an_access_byte_for_byte() {
        let expected = Sample {
            address: 0x7000_0000_1234,
            weight: 0.5,
            time_ns: 99,
            process: 7,
            thread: 8,
            kind: Access::Load,
        };
        let told = |kind, data_src| {
            accesses(kind, Access::Load, &record(0x40_1000, 0x7000_0000_1234, 200, data_src))
        };
        assert_eq!(told(PEBS, L2), [expected]);
        assert_eq!(told(IBS, DRAM), [expected]);
        assert_eq!(told(SLOW, DRAM), [expected]);
        assert!(told(SLOW, L2).is_empty(), "a slow load that a cache answered");
        // AMD's stores come with its loads, Intel's in a stream of their own, which says nothing of
        // what answered.
        assert_eq!(told(IBS, 0x80 << 5 | 4)[0].kind, Access::Store);
        assert_eq!(
            accesses(SLOW, Access::Store, &record(0x40_1000, 0x7000, 200, 0))[0].kind,
            Access::Store
        );
    }

    #[test]
    fn a_sample_weighs_what_the_period_in_force_says() {
        let weights = |period| {
            accesses(PEBS, Access::Load, &record(0x40_1000, 0x7000, period, DRAM))[0].weight
        };
        assert_eq!([100, 200, 400].map(weights), [0.25, 0.5, 1.0]);
    }

    #[test]
    fn what_is_no_access_of_the_program_to_memory_is_left_out() {
        let kernel = 0xFFFF_8880_0000_0000;
        for (ip, address, data_src) in
            [(0x40_1000, 0, DRAM), (0x40_1000, kernel, DRAM), (kernel, 0x7000, DRAM)]
        {
            assert!(accesses(PEBS, Access::Load, &record(ip, address, 1, data_src)).is_empty());
        }
        // Everything is sampled there.
        for data_src in [L2, 0] {
            assert!(
                accesses(IBS, Access::Load, &record(0x40_1000, 0x7000, 1, data_src)).is_empty()
            );
        }
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
        for other in [
            0,
            0x1 << 5,
            0x8 << 5,
            0x10 << 5,
            0x40 << 5,
            0x400 << 5,
            1 << 33,
            3 << 33,
            0xb << 33,
            0xc << 33,
            0xf << 33,
        ] {
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
        assert_eq!(Kind::of_machine(&scratch), []);
        write("cpu/caps/max_precise", "0\n");
        assert_eq!(Kind::of_machine(&scratch), []);
        write("cpu/caps/max_precise", "3\n");
        assert_eq!(Kind::of_machine(&scratch), [PEBS, Kind::Pebs(Loads::Misses)]);
        write("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n");
        assert_eq!(Kind::of_machine(&scratch), [PEBS, Kind::Pebs(Loads::Misses), SLOW]);
        // A list in another form is no list.
        write("cpu/events/mem-loads", "event=cd,umask=0x1\n");
        assert_eq!(Kind::of_machine(&scratch).len(), 2);
        write("ibs_op/type", "11\n");
        assert_eq!(Kind::of_machine(&scratch), [IBS]);
        write("ibs_op/format/l3missonly", "config:16\n");
        write("ibs_op/format/swfilt", "config2:0\n");
        let ibs = |misses_only| Kind::Ibs { event_type: 11, filters: true, misses_only };
        assert_eq!(Kind::of_machine(&scratch), [ibs(true), ibs(false)]);
        std::fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn events_are_those_of_the_manuals() {
        let asked = |kind: Kind| {
            kind.events()
                .iter()
                .map(|event| (event.request.config, event.request.period))
                .collect::<Vec<_>>()
        };
        let stores = (0x82d0, 100_007);
        assert_eq!(asked(PEBS), [(0x1d3, 199), (0x2d3, 199), (0x80d1, 199), stores]);
        assert_eq!(asked(Kind::Pebs(Loads::Misses)), [(0x20d1, 199), stores]);
        assert_eq!(asked(SLOW), [(0x1cd, 199), stores]);
        assert_eq!(SLOW.events()[0].request.config1, 128);
        for kind in [PEBS, SLOW] {
            assert!(kind.events().iter().all(|event| event.request.precise_ip == 2
                && event.request.user_only
                && event.weight > 0.0));
        }
        assert_eq!(asked(IBS), [(1 << 19, 50_000)]);
        // To leave itself out is refused by kernels that cannot filter it.
        assert!(!IBS.events()[0].request.user_only);
        let newer =
            &Kind::Ibs { event_type: 11, filters: true, misses_only: true }.events()[0].request;
        assert_eq!(
            (newer.kind, newer.config, newer.config2, newer.user_only),
            (11, 1 << 19 | 1 << 16, 1, true)
        );
    }

    #[test]
    fn periods_are_what_the_hardware_takes() {
        assert_eq!((PEBS.period(199.0 * 1.5), PEBS.period(199.0), PEBS.period(0.1)), (307, 199, 2));
        assert_eq!((IBS.period(50_000.0), IBS.period(75_001.0)), (50_000, 75_008));
    }

    #[test]
    fn periods_follow_what_samples_cost() {
        let mut pace = Pace::default();
        // Between half of what is allowed and all of it nothing changes; nor below, if no more is
        // wanted.
        assert!(!pace.look(0.008, 0.01, false, true) && !pace.look(0.001, 0.01, false, false));
        assert!(pace.look(0.011, 0.01, false, true) && pace.times == 1.5);
        assert!(
            pace.look(0.001, 0.01, true, true) && pace.times == 3.0,
            "lost samples cost nothing and are too many all the same"
        );
        assert!(pace.look(0.001, 0.01, false, true) && pace.times == 2.0);
        while pace.look(0.0, 0.01, false, true) {}
        assert_eq!(pace.times, Pace::LEAST);
        while pace.look(1.0, 0.01, true, true) {}
        assert_eq!(pace.times, Pace::MOST);
    }

    /// A processor that makes `rate` misses a second, of which each sample costs 4 us: the cost
    /// ends under what is allowed, and the sum of weights is the number of misses, whatever the
    /// periods were.
    #[test]
    fn cost_is_held_and_weights_are_counts() {
        for rate in [1e4, 1e6, 1e8, 1e10] {
            let (mut pace, mut counted, mut cost) = (Pace::default(), 0.0, 0.0);
            for _ in 0..60 {
                let period = PEBS.period(MISSES as f64 * pace.times) as f64;
                let samples = (rate * 0.5 / period).floor();
                cost = samples * 4e-6 / 0.5;
                counted += samples * period;
                pace.look(cost, 0.01, false, true);
            }
            assert!(cost <= 0.015, "{rate}: {cost}");
            assert!(
                cost >= 0.003 || pace.times == Pace::LEAST,
                "{rate}: {cost} with periods of {} times",
                pace.times
            );
            assert!((counted / (rate * 30.0) - 1.0).abs() < 0.1, "{rate}: {counted}");
        }
    }

    /// Without such hardware no kind is believed.
    #[test]
    fn what_cannot_count_is_not_believed() {
        if Kind::of_machine(Path::new("/sys/bus/event_source/devices")).is_empty() {
            for kind in [PEBS, Kind::Pebs(Loads::Misses), SLOW] {
                assert!(!Hardware::counts_here(kind));
            }
        }
    }
}
