//! A perf ring buffer: the records that the kernel writes, one reader's way through them, and what
//! they say.
//!
//! `perf_event_open(2)` describes it. A record is a header (type, flags, size) and a body; of
//! samples the body has the fields that [`Layout::sample_type`] asks for, in the order of the
//! manual page. Records wrap around at the end of the ring. What cannot be understood is skipped
//! and counted, and never believed: see [`Drained::damaged`].

use crate::operand::Registers;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of `perf_event_attr.sample_type`.
pub mod fields {
    /// Instruction that the thread was at.
    pub const IP: u64 = 1 << 0;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// Time of the sample, ns.
    pub const TIME: u64 = 1 << 2;
    /// The address touched.
    pub const ADDR: u64 = 1 << 3;
    /// Counts since the last sample.
    pub const PERIOD: u64 = 1 << 8;
    /// Registers of user space.
    pub const REGS_USER: u64 = 1 << 12;
    /// Latency of the access, cycles.
    pub const WEIGHT: u64 = 1 << 14;
    /// What answered the access.
    pub const DATA_SRC: u64 = 1 << 15;
    /// The physical address touched.
    pub const PHYS_ADDR: u64 = 1 << 19;
    /// All that can be read here.
    pub const KNOWN: u64 =
        IP | TID | TIME | ADDR | PERIOD | REGS_USER | WEIGHT | DATA_SRC | PHYS_ADDR;
}

/// What samples are made of. Registers are those of [`Registers::PERF_MASK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Fields of each sample, as bits of [`fields`].
    pub sample_type: u64,
}

/// A sample, as far as it has the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSample {
    /// Instruction that the thread was at.
    pub ip: u64,
    /// Process and thread.
    pub pid: u32,
    /// See `pid`.
    pub tid: u32,
    /// ns of the event's clock.
    pub time_ns: u64,
    /// The address touched; 0 if the hardware does not know.
    pub address: u64,
    /// Counts since the last sample.
    pub period: u64,
    /// Latency, cycles.
    pub weight: u64,
    /// What answered the access, as `union perf_mem_data_src` has it.
    pub data_src: u64,
    /// The physical address; 0 without the privilege.
    pub physical_address: u64,
    /// Instruction pointer and registers of user space; `None` in a kernel thread or a 32-bit
    /// program.
    pub user: Option<(u64, Registers)>,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A sample.
    Sample(RawSample),
    /// This many samples found no room.
    Lost(u64),
    /// The kernel stopped the event for the rest of a tick, because it took too long.
    Throttled,
    /// Executable memory was mapped.
    Mapped {
        /// The process that mapped memory.
        pid: u32,
        /// The first mapped address.
        address: u64,
        /// Bytes.
        len: u64,
        /// Offset in the file.
        file_offset: u64,
        /// Path, or `//anon`.
        file: &'a [u8],
    },
    /// Something else.
    Other(u32),
}

/// What became of a ring's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records read.
    pub records: usize,
    /// Something was not a record: the rest was thrown away.
    pub damaged: bool,
}

const RECORD_MMAP: u32 = 1;
const RECORD_LOST: u32 = 2;
const RECORD_THROTTLE: u32 = 5;
const RECORD_SAMPLE: u32 = 9;
const RECORD_MMAP2: u32 = 10;
const RECORD_LOST_SAMPLES: u32 = 13;
const HEADER: usize = 8;
const ABI_64: u64 = 2;

/// Takes little-endian numbers off the front.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }
}

impl Layout {
    /// Reads records one after the other; tells `each`.
    pub fn read(&self, mut bytes: &[u8], mut each: impl FnMut(Record)) -> Drained {
        debug_assert_eq!(self.sample_type & !fields::KNOWN, 0, "fields that nobody reads");
        let mut drained = Drained::default();
        while !bytes.is_empty() {
            let record = bytes.get(..HEADER).and_then(|header| {
                let (kind, size) =
                    (Body(header).u32()?, usize::from(u16::from_le_bytes([header[6], header[7]])));
                let body = bytes.get(HEADER..size)?;
                Some((self.record(kind, Body(body))?, size))
            });
            let Some((record, size)) = record else {
                drained.damaged = true;
                return drained;
            };
            each(record);
            drained.records += 1;
            bytes = &bytes[size..];
        }
        drained
    }

    fn record<'a>(&self, kind: u32, mut body: Body<'a>) -> Option<Record<'a>> {
        Some(match kind {
            RECORD_SAMPLE => Record::Sample(self.sample(body)?),
            RECORD_LOST => {
                let _id = body.u64()?;
                Record::Lost(body.u64()?)
            }
            RECORD_LOST_SAMPLES => Record::Lost(body.u64()?),
            RECORD_THROTTLE => Record::Throttled,
            RECORD_MMAP | RECORD_MMAP2 => {
                let (pid, _tid) = (body.u32()?, body.u32()?);
                let (address, len, file_offset) = (body.u64()?, body.u64()?, body.u64()?);
                if kind == RECORD_MMAP2 {
                    // Device, inode and its generation, or a build id; protection and flags.
                    body.0 = body.0.get(4 * 8..)?;
                }
                let end = body.0.iter().position(|byte| *byte == 0)?;
                Record::Mapped { pid, address, len, file_offset, file: &body.0[..end] }
            }
            other => Record::Other(other),
        })
    }

    fn sample(&self, mut body: Body) -> Option<RawSample> {
        let mut sample = RawSample::default();
        let has = |field| self.sample_type & field != 0;
        if has(fields::IP) {
            sample.ip = body.u64()?;
        }
        if has(fields::TID) {
            (sample.pid, sample.tid) = (body.u32()?, body.u32()?);
        }
        if has(fields::TIME) {
            sample.time_ns = body.u64()?;
        }
        if has(fields::ADDR) {
            sample.address = body.u64()?;
        }
        if has(fields::PERIOD) {
            sample.period = body.u64()?;
        }
        if has(fields::REGS_USER) {
            let abi = body.u64()?;
            let mut registers = [0; Registers::PERF_COUNT];
            if abi != 0 {
                for register in &mut registers {
                    *register = body.u64()?;
                }
            }
            sample.user = (abi == ABI_64).then(|| Registers::from_perf(&registers));
        }
        if has(fields::WEIGHT) {
            sample.weight = body.u64()?;
        }
        if has(fields::DATA_SRC) {
            sample.data_src = body.u64()?;
        }
        if has(fields::PHYS_ADDR) {
            sample.physical_address = body.u64()?;
        }
        Some(sample)
    }
}

/// Offsets of the kernel's and the reader's position in the first page (`struct
/// perf_event_mmap_page`).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// The reader's side of one event's ring, in memory that is mapped for it.
#[derive(Debug)]
pub struct Ring {
    control: *mut u8,
    data: *const u8,
    data_len: usize,
    /// Records as they came, in one piece.
    copy: Vec<u8>,
}

// SAFETY: it alone reads and moves the tail; the kernel does not care from which thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Reads the ring of a mapping: one page, and `data_len` bytes behind it, a power of two.
    ///
    /// # Safety
    /// `mapping` is that of a perf event, page-aligned, readable and writable for as long as this
    /// lives, and has no other reader.
    pub unsafe fn new(mapping: *mut u8, page_len: usize, data_len: usize) -> Ring {
        assert!(
            data_len.is_power_of_two() && page_len > DATA_TAIL,
            "not a ring of {data_len} bytes behind {page_len}"
        );
        // SAFETY: within the mapping, by the caller's promise.
        let data = unsafe { mapping.add(page_len) };
        Ring { control: mapping, data, data_len, copy: Vec::new() }
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: in the mapping's first page, aligned as that is, and changed by atomic stores
        // only on either side.
        unsafe { &*self.control.add(offset).cast::<AtomicU64>() }
    }

    /// Takes out what is there, and tells `each`.
    pub fn drain(&mut self, layout: &Layout, each: impl FnMut(Record)) -> Drained {
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        let len = head.wrapping_sub(tail);
        if len > self.data_len as u64 {
            // The kernel never overwrites what was not read: these are not positions.
            self.position(DATA_TAIL).store(head, Ordering::Release);
            return Drained { records: 0, damaged: true };
        }
        let (len, start) = (len as usize, tail as usize & (self.data_len - 1));
        let first = len.min(self.data_len - start);
        self.copy.clear();
        self.copy.reserve(len);
        // SAFETY: both pieces are inside the ring, between tail and head, where the kernel writes
        // nothing until the tail moves; the copy has room.
        unsafe {
            std::ptr::copy_nonoverlapping(self.data.add(start), self.copy.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(
                self.data,
                self.copy.as_mut_ptr().add(first),
                len - first,
            );
            self.copy.set_len(len);
        }
        self.position(DATA_TAIL).store(head, Ordering::Release);
        layout.read(&self.copy, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLOCK: Layout =
        Layout { sample_type: fields::IP | fields::TID | fields::TIME | fields::REGS_USER };
    const PEBS: Layout = Layout {
        sample_type: fields::IP
            | fields::TID
            | fields::TIME
            | fields::ADDR
            | fields::WEIGHT
            | fields::DATA_SRC
            | fields::PHYS_ADDR,
    };

    fn record(kind: u32, body: &[u64]) -> Vec<u8> {
        let size = (HEADER + body.len() * 8) as u16;
        let header = u64::from(kind) | u64::from(size) << 48;
        [header].iter().chain(body).flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A clock sample as the kernel writes it, byte for byte.
    fn clock_sample(n: u64) -> Vec<u8> {
        let registers = (0..Registers::PERF_COUNT as u64).map(|register| n * 100 + register);
        let body: Vec<u64> = [0x40_1000 + n, 7 | (8 + n) << 32, 1_000 * n, ABI_64]
            .into_iter()
            .chain(registers)
            .collect();
        record(RECORD_SAMPLE, &body)
    }

    fn read(layout: &Layout, bytes: &[u8]) -> (Vec<String>, Drained) {
        let mut seen = Vec::new();
        let drained = layout.read(bytes, |record| seen.push(format!("{record:?}")));
        (seen, drained)
    }

    fn samples(layout: &Layout, bytes: &[u8]) -> Vec<RawSample> {
        let mut found = Vec::new();
        layout.read(bytes, |record| {
            found.extend(if let Record::Sample(sample) = record { Some(sample) } else { None })
        });
        found
    }

    #[test]
    fn a_clock_sample_byte_for_byte() {
        let [sample] = samples(&CLOCK, &clock_sample(3))[..] else { panic!("one sample") };
        let (ip, registers) = sample.user.unwrap();
        assert_eq!((sample.ip, sample.pid, sample.tid, sample.time_ns), (0x40_1003, 7, 11, 3_000));
        assert_eq!(
            (ip, registers.flags, registers.general[0], registers.general[15]),
            (308, 309, 300, 317)
        );
    }

    #[test]
    fn a_sample_of_accesses_byte_for_byte() {
        let body = [0x40_1000, 7 | 8 << 32, 99, 0x7000_0000_1234, 250, 0x6810_0842, 0x1_2345_6000];
        let [sample] = samples(&PEBS, &record(RECORD_SAMPLE, &body))[..] else {
            panic!("one sample")
        };
        let expected = RawSample {
            ip: 0x40_1000,
            pid: 7,
            tid: 8,
            time_ns: 99,
            address: 0x7000_0000_1234,
            weight: 250,
            data_src: 0x6810_0842,
            physical_address: 0x1_2345_6000,
            ..RawSample::default()
        };
        assert_eq!(sample, expected);
    }

    #[test]
    fn threads_without_registers_of_64_bits_have_none() {
        let without = record(RECORD_SAMPLE, &[1, 2, 3, 0]);
        let narrow: Vec<u64> =
            [1, 2, 3, 1].into_iter().chain(0..Registers::PERF_COUNT as u64).collect();
        let both = [without, record(RECORD_SAMPLE, &narrow), clock_sample(1)].concat();
        let found: Vec<bool> =
            samples(&CLOCK, &both).iter().map(|sample| sample.user.is_some()).collect();
        assert_eq!(found, [false, false, true]);
    }

    #[test]
    fn what_is_lost_stopped_and_mapped_is_told() {
        let name = u64::from_le_bytes(*b"/lib/a\0\0");
        let bytes = [
            record(RECORD_LOST, &[1, 42]),
            record(RECORD_LOST_SAMPLES, &[5]),
            record(RECORD_THROTTLE, &[1, 2, 3]),
            record(RECORD_MMAP2, &[7 | 8 << 32, 0x1000, 0x2000, 0x3000, 0, 0, 0, 0, name]),
            record(RECORD_MMAP, &[7 | 8 << 32, 0x1000, 0x2000, 0x3000, name]),
            record(77, &[]),
        ]
        .concat();
        let mapped = Record::Mapped {
            pid: 7,
            address: 0x1000,
            len: 0x2000,
            file_offset: 0x3000,
            file: b"/lib/a",
        };
        let expected = [
            Record::Lost(42),
            Record::Lost(5),
            Record::Throttled,
            mapped.clone(),
            mapped,
            Record::Other(77),
        ];
        let (seen, drained) = read(&CLOCK, &bytes);
        assert_eq!(seen, expected.map(|record| format!("{record:?}")));
        assert_eq!(drained, Drained { records: 6, damaged: false });
    }

    #[test]
    fn a_torn_record_ends_the_reading() {
        let whole = clock_sample(1);
        for cut in 1..whole.len() {
            let (seen, drained) = read(&CLOCK, &[&whole[..], &whole[..cut]].concat());
            assert_eq!(
                (seen.len(), drained),
                (1, Drained { records: 1, damaged: true }),
                "cut at {cut}"
            );
        }
        // A size of nothing would never end, and one too short for its fields would read another's.
        let (_, nothing) = read(&CLOCK, &[0; 16]);
        let (_, short) = read(&CLOCK, &record(RECORD_SAMPLE, &[1, 2]));
        assert!(nothing.damaged && short.damaged);
    }

    /// A ring in ordinary memory.
    struct Fake {
        memory: Vec<u64>,
        head: usize,
    }

    impl Fake {
        const PAGE: usize = 4096;
        const DATA: usize = 1024;

        fn new(at: usize) -> (Fake, Ring) {
            let mut fake = Fake { memory: vec![0; (Self::PAGE + Self::DATA) / 8], head: at };
            // SAFETY: page and ring in one block, aligned for u64; nothing else reads it.
            let ring =
                unsafe { Ring::new(fake.memory.as_mut_ptr().cast(), Self::PAGE, Self::DATA) };
            ring.position(DATA_HEAD).store(at as u64, Ordering::Release);
            ring.position(DATA_TAIL).store(at as u64, Ordering::Release);
            (fake, ring)
        }

        fn write(&mut self, ring: &Ring, bytes: &[u8]) {
            for byte in bytes {
                // SAFETY: inside the block.
                unsafe {
                    self.memory
                        .as_mut_ptr()
                        .cast::<u8>()
                        .add(Self::PAGE + self.head % Self::DATA)
                        .write(*byte)
                };
                self.head += 1;
            }
            ring.position(DATA_HEAD).store(self.head as u64, Ordering::Release);
        }
    }

    #[test]
    fn records_wrap_around_the_end_of_the_ring() {
        // Every place of the ring is once in the middle of a record.
        for at in (0..2 * Fake::DATA).step_by(8) {
            let (mut fake, mut ring) = Fake::new(at);
            for n in 0..3 {
                fake.write(&ring, &clock_sample(n));
            }
            let mut times = Vec::new();
            let drained = ring.drain(&CLOCK, |record| {
                let Record::Sample(sample) = record else { panic!("{record:?}") };
                times.push(sample.time_ns);
            });
            assert_eq!(
                (times, drained),
                (vec![0, 1_000, 2_000], Drained { records: 3, damaged: false })
            );
            assert_eq!(ring.drain(&CLOCK, |_| panic!("nothing is left")), Drained::default());
        }
    }

    #[test]
    fn a_ring_that_is_ahead_of_itself_is_begun_again() {
        let (mut fake, mut ring) = Fake::new(0);
        ring.position(DATA_HEAD).store(10 * Fake::DATA as u64, Ordering::Release);
        assert!(ring.drain(&CLOCK, |_| panic!("not a record")).damaged);
        fake.head = 10 * Fake::DATA;
        fake.write(&ring, &clock_sample(1));
        assert_eq!(ring.drain(&CLOCK, |_| ()).records, 1);
    }

    proptest! {
        /// Whatever is in a ring, nothing panics and no more is read than is there.
        #[test]
        fn any_bytes_will_do(
            bytes in proptest::collection::vec(any::<u8>(), 0..600), sample_type: u64
        ) {
            let layout = Layout { sample_type: sample_type & fields::KNOWN };
            let drained = layout.read(&bytes, |_| ());
            prop_assert!(drained.records * HEADER <= bytes.len());
        }
    }
}
