//! The machine that is modelled: a fast tier, a slow one, what accesses and moves cost.
//!
//! A closed loop: `in_flight` requests are on their way at any time, and each waits for its tier's
//! latency. Where a tier's bandwidth runs out they wait for one another too ([`Machine::loaded`]).
//! Sources of the presets' numbers: `docs/simulator.md`.

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a region, the unit of placement of a live program; costs of moves are told for it.
pub const REGION: u64 = 2 << 20;
/// Bytes of one access to memory.
const LINE: f64 = 64.0;

/// Byte-addressable memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Latency of an access to otherwise idle memory, ns.
    pub latency_ns: f64,
    /// Bandwidth of reads alone, GB/s, which is bytes/ns.
    pub read_gbps: f64,
    /// Bandwidth of writes alone, GB/s.
    pub write_gbps: f64,
    /// Cost of a byte, relative to DRAM's.
    pub cost: f64,
}

/// Pages that are compressed in DRAM. An access is a fault, which brings the unit back: it pays for
/// a fault once, not for each access, unlike in TierScape's equations (§6.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compressed {
    /// What a fault on a page takes until the program goes on, ns. Whole units come back: one of
    /// several pages pays several times.
    pub fault_ns: f64,
    /// Bytes of pages over bytes that they take.
    pub ratio: f64,
}

/// The tier that has room for all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slow {
    /// The tier is read and written where it is.
    Memory(Memory),
    /// The tier is compressed: accesses to it are faults.
    Compressed(Compressed),
}

/// Cost of a move to the program: everything waits for this long. An assumption: how much of a move
/// a program feels was not measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoveCost {
    /// Part that does not depend on the unit's size, ns.
    pub unit_ns: f64,
    /// Part for each of the unit's pages, ns.
    pub page_ns: f64,
}

impl MoveCost {
    /// Cost of `region_ns` for a region, `unit_ns` of it however large the unit is.
    const fn of_region(region_ns: f64, unit_ns: f64) -> MoveCost {
        MoveCost { unit_ns, page_ns: (region_ns - unit_ns) / (REGION / PAGE) as f64 }
    }

    /// Cost of moving a unit of the given size in bytes, ns.
    pub fn ns(&self, bytes: f64) -> f64 {
        self.unit_ns + self.page_ns * bytes / PAGE as f64
    }
}

/// Two tiers, and the program that uses them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// The preset's name.
    pub name: &'static str,
    /// Line of text about the machine.
    pub about: &'static str,
    /// The fast tier.
    pub fast: Memory,
    /// The slow tier.
    pub slow: Slow,
    /// Requests on their way at a time, at least 1: threads times what a core has on its way.
    pub in_flight: u32,
    /// Cost of a move to the fast tier.
    pub promotion: MoveCost,
    /// Cost of a move to the slow tier.
    pub demotion: MoveCost,
    /// What a policy may move in a tick of 50 ms, bytes.
    pub move_bytes: u64,
    /// Cost of the first access to a unit that the policy armed, ns: a fault that only tells of it.
    pub hint_ns: f64,
}

/// What went on in a stretch of time. Moves are no part of it: while they are made nothing else
/// goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Reads and writes of the fast tier.
    pub fast: [u64; 2],
    /// Reads and writes of the slow tier.
    pub slow: [u64; 2],
}

impl Machine {
    /// How long an access to the fast and to the slow tier takes under this traffic, ns. Of a
    /// compressed slow tier the latter is that of the fast one, which follows the fault.
    ///
    /// It is computed by exact mean value analysis (Reiser and Lavenberg 1980). Requests go round
    /// in a closed network. In each tier they first wait for a line's service, 64 bytes over the
    /// bandwidth, behind those that came before. Then they wait for the rest of the latency, in
    /// which they hinder no other request. With bandwidth to spare that is the latency. Never more
    /// lines pass than the bandwidth lets through.
    pub fn loaded(&self, traffic: &Traffic) -> [f64; 2] {
        let slow = match &self.slow {
            Slow::Memory(slow) => slow,
            Slow::Compressed(_) => &self.fast,
        };
        let all = traffic.fast.iter().chain(&traffic.slow).sum::<u64>();
        if all == 0 {
            return [self.fast.latency_ns, slow.latency_ns];
        }
        let tiers =
            [(&self.fast, traffic.fast), (slow, traffic.slow)].map(|(memory, [reads, writes])| {
                let writes_share = writes as f64 / ((reads + writes) as f64).max(1.0);
                let service = LINE / memory.read_gbps * (1.0 - writes_share)
                    + LINE / memory.write_gbps * writes_share;
                Station {
                    visits: (reads + writes) as f64 / all as f64,
                    service,
                    delay: (memory.latency_ns - service).max(0.0),
                }
            });
        let mut queues = [0.0; 2];
        let mut times = [0.0; 2];
        for requests in 1..=self.in_flight.max(1) {
            for (time, (station, queue)) in times.iter_mut().zip(tiers.iter().zip(queues)) {
                *time = station.service * (1.0 + queue);
            }
            let round: f64 = tiers
                .iter()
                .zip(times)
                .map(|(station, time)| station.visits * (station.delay + time))
                .sum();
            for (queue, (station, time)) in queues.iter_mut().zip(tiers.iter().zip(times)) {
                *queue = f64::from(requests) / round * station.visits * time;
            }
        }
        [tiers[0].delay + times[0], tiers[1].delay + times[1]]
    }

    /// The preset of the given name.
    pub fn preset(name: &str) -> Option<Machine> {
        PRESETS.iter().find(|machine| machine.name == name).copied()
    }
}

/// A tier, as a request sees it.
struct Station {
    /// Share of all requests that go to this tier.
    visits: f64,
    service: f64,
    delay: f64,
}

const DRAM: Memory = Memory { latency_ns: 80.0, read_gbps: 100.0, write_gbps: 100.0, cost: 1.0 };
/// A core has 10 to 16 lines on their way.
const IN_FLIGHT: u32 = 16;
/// A page fault that finds nothing to do.
const HINT_NS: f64 = 1_500.0;
/// Part of a move's cost that does not grow with the unit, ns: a system call, entries of the page
/// table, other processors' TLBs.
const MOVE_UNIT_NS: f64 = 2_000.0;

const fn memory(
    name: &'static str,
    about: &'static str,
    fast_ns: f64,
    slow: Memory,
    region_ns: f64,
    regions: u64,
) -> Machine {
    let cost = MoveCost::of_region(region_ns, MOVE_UNIT_NS);
    Machine {
        name,
        about,
        fast: Memory { latency_ns: fast_ns, ..DRAM },
        slow: Slow::Memory(slow),
        in_flight: IN_FLIGHT,
        promotion: cost,
        demotion: cost,
        move_bytes: regions * REGION,
        hint_ns: HINT_NS,
    }
}

/// Time of a page fault through userfaultfd, less decompression, ns. From
/// `bench/results/pages.json` and `fault-steps.json`: a median of 6.5 µs with 1.9 µs of
/// decompression.
const FAULT_PATH_NS: f64 = 4_600.0;
/// Time of an eviction, less compression, ns. From `bench/results/pages.json` and
/// `fault-steps.json`: a median of 5.6 µs with 4.3 µs of compression.
const EVICT_PATH_NS: f64 = 1_300.0;

/// Times of a page in µs and ratio: medians over six sets of pages (two texts and the heaps of four
/// programs). They are of one core at 2.1 GHz; the ratio is that of memcached's heap.
const fn compressed(
    name: &'static str,
    about: &'static str,
    compress_us: f64,
    decompress_us: f64,
    ratio: f64,
) -> Machine {
    Machine {
        name,
        about,
        fast: DRAM,
        slow: Slow::Compressed(Compressed { fault_ns: FAULT_PATH_NS + decompress_us * 1e3, ratio }),
        in_flight: IN_FLIGHT,
        // Ahead of a fault only the page is copied.
        promotion: MoveCost { unit_ns: 0.0, page_ns: 1_200.0 + decompress_us * 1e3 },
        demotion: MoveCost { unit_ns: 0.0, page_ns: EVICT_PATH_NS + compress_us * 1e3 },
        move_bytes: 16 << 20,
        hint_ns: HINT_NS,
    }
}

/// All presets.
pub const PRESETS: [Machine; 7] = [
    memory(
        "optane",
        "DRAM 80 ns and Optane 300 ns",
        80.0,
        Memory { latency_ns: 300.0, read_gbps: 39.0, write_gbps: 14.0, cost: 1.0 / 3.0 },
        400_000.0,
        50,
    ),
    memory(
        "cxl",
        "DRAM 80 ns and CXL memory 400 ns",
        80.0,
        Memory { latency_ns: 400.0, read_gbps: 20.0, write_gbps: 20.0, cost: 0.5 },
        1_000_000.0,
        50,
    ),
    memory(
        "numa",
        "DRAM 85 ns and another node's 156 ns",
        85.0,
        Memory { latency_ns: 156.0, read_gbps: 35.0, write_gbps: 35.0, cost: 1.0 },
        150_000.0,
        200,
    ),
    compressed("lz4", "DRAM, and lz4 by faults", 5.8, 1.27, 1.93),
    compressed("zstd-fast", "DRAM, and zstd -1 by faults", 9.5, 2.9, 1.99),
    compressed("zstd", "DRAM, and zstd 1 by faults", 14.9, 6.5, 2.57),
    compressed("deflate", "DRAM, and libdeflate 6 by faults", 42.0, 8.8, 2.60),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn two(fast: Memory, slow: Memory, in_flight: u32) -> Machine {
        Machine { fast, slow: Slow::Memory(slow), in_flight, ..PRESETS[0] }
    }

    const EASY: Memory = Memory { latency_ns: 100.0, read_gbps: 1e9, write_gbps: 1e9, cost: 1.0 };

    #[test]
    fn with_bandwidth_to_spare_it_is_the_latency() {
        let machine = two(EASY, Memory { latency_ns: 300.0, ..EASY }, 64);
        let [fast, slow] = machine.loaded(&Traffic { fast: [3, 1], slow: [1, 1] });
        assert!((fast - 100.0).abs() < 1e-3 && (slow - 300.0).abs() < 1e-3, "{fast} {slow}");
        // And one request at a time never waits, whatever the bandwidth.
        let narrow = Memory { latency_ns: 100.0, read_gbps: 1.0, write_gbps: 1.0, cost: 1.0 };
        let [fast, _] =
            two(narrow, narrow, 1).loaded(&Traffic { fast: [1, 0], ..Traffic::default() });
        assert!((fast - 100.0).abs() < 1e-9, "{fast}");
    }

    /// By hand: a line takes 64 ns of 100; two requests. Alone a round takes 100 ns, and 0.64
    /// requests are in service. The second then waits 64 · 1.64 and 36 ns more: 140.96.
    #[test]
    fn two_requests_by_hand() {
        let narrow = Memory { latency_ns: 100.0, read_gbps: 1.0, write_gbps: 0.5, cost: 1.0 };
        let machine = two(narrow, EASY, 2);
        let [fast, slow] = machine.loaded(&Traffic { fast: [1, 0], ..Traffic::default() });
        assert!((fast - 140.96).abs() < 1e-9 && (slow - 100.0).abs() < 1e-3, "{fast} {slow}");
        // A write takes 128 ns, which is more than the latency: the second waits for 2 · 128.
        let [fast, _] = machine.loaded(&Traffic { fast: [0, 1], ..Traffic::default() });
        assert!((fast - 256.0).abs() < 1e-9, "{fast}");
    }

    #[test]
    fn no_more_passes_than_the_bandwidth_lets_through() {
        for in_flight in [1, 4, 16, 256] {
            let narrow = Memory { latency_ns: 300.0, read_gbps: 10.0, write_gbps: 10.0, cost: 1.0 };
            let machine = two(EASY, narrow, in_flight);
            let [fast, slow] = machine.loaded(&Traffic { fast: [1, 0], slow: [1, 0] });
            let rate = f64::from(in_flight) / (0.5 * fast + 0.5 * slow);
            let slow_gbps = rate * 0.5 * 64.0;
            assert!(slow_gbps <= 10.0 + 1e-9, "{slow_gbps} GB/s with {in_flight}");
            assert!(in_flight < 256 || slow_gbps > 9.8, "{slow_gbps}");
        }
    }

    /// By hand: of a tier with 10 GB/s a line takes 6.4 ns, so that of 320 ns latency 50 requests
    /// fill it. Far below that accesses are n / latency; far above, what the bandwidth lets
    /// through, and each waits for all others: n · 6.4 ns.
    #[test]
    fn throughput_goes_from_what_latency_allows_to_what_bandwidth_does() {
        let narrow = Memory { latency_ns: 320.0, read_gbps: 10.0, write_gbps: 10.0, cost: 1.0 };
        let latency = |in_flight| {
            two(EASY, narrow, in_flight).loaded(&Traffic { slow: [1, 0], ..Traffic::default() })[1]
        };
        // A second request meets the first in service with a chance of 6.4 / 320, and then waits
        // for 6.4 ns.
        assert!(
            (latency(1) - 320.0).abs() < 1e-9
                && (latency(2) - (320.0 + 6.4 * 6.4 / 320.0)).abs() < 1e-9,
            "{}",
            latency(2)
        );
        // A tenth of what fills it: within 1 % of the latency.
        assert!((320.0..323.2).contains(&latency(5)), "{}", latency(5));
        // In the middle less passes than either would let through, by a tenth or so (the queue's
        // chance).
        assert!((1.05..1.25).contains(&(latency(50) / 320.0)), "{}", latency(50));
        for in_flight in [200, 1000] {
            assert!(
                (latency(in_flight) / (f64::from(in_flight) * 6.4) - 1.0).abs() < 1e-6,
                "{}",
                latency(in_flight)
            );
        }
        // Which tier runs out first depends on its share. Of `optane`, reads alone, it is the slow
        // one's 39 GB/s where half are misses, DRAM's 100 where a fifth are.
        let optane = Machine { in_flight: 1000, ..Machine::preset("optane").unwrap() };
        for (fast, slow, gbps) in [(1, 1, 2.0 * 39.0), (4, 1, 100.0 / 0.8)] {
            let [hit, miss] = optane.loaded(&Traffic { fast: [fast, 0], slow: [slow, 0] });
            let mean = (fast as f64 * hit + slow as f64 * miss) / (fast + slow) as f64;
            let found = 1000.0 / mean * LINE;
            assert!((found / gbps - 1.0).abs() < 1e-3, "{found} GB/s of {gbps}");
        }
    }

    #[test]
    fn moves_cost_what_is_said_of_a_region() {
        let optane = Machine::preset("optane").unwrap();
        assert!((optane.promotion.ns(REGION as f64) - 400_000.0).abs() < 1e-6);
        assert!((optane.promotion.ns(PAGE as f64) - (2_000.0 + 398_000.0 / 512.0)).abs() < 1e-6);
        assert!(Machine::preset("hbm").is_none());
    }
}
