//! The programs that are measured: plain programs that know nothing of Terrace. What pages them out is whoever is there: Terrace if it
//! is preloaded, the kernel's swap otherwise.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// The region of facts/faults.md: 64 MiB, 16,384 pages.
const REGION: usize = 64 * MIB;
const BATCH_PAGES: usize = 512;
const ROUNDS: usize = 3;

fn map(len: usize) -> *mut u8 {
    // SAFETY: a new private mapping.
    let memory = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(memory, libc::MAP_FAILED, "no memory to measure with");
    memory.cast()
}

/// JSON-like text with some noise: about 2.5 times compressible by lz4, as the heaps of facts/ are.
fn fill(memory: *mut u8, len: usize) {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut text = String::with_capacity(PAGE * 2);
    for page in 0..len / PAGE {
        text.clear();
        while text.len() < PAGE {
            let value = random();
            text.push_str(&format!(
                "{{\"id\":{},\"user\":\"user-{:05}\",\"score\":{},\"token\":\"{:012x}\",\"active\":true}},",
                page * 64 + text.len(),
                value % 100_000,
                value >> 48,
                random() >> 16
            ));
        }
        // SAFETY: the page lies in the caller's mapping.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), memory.add(page * PAGE), PAGE) };
    }
}

fn page_out(memory: *mut u8, len: usize) {
    // SAFETY: contents stay; a page that cannot be paged out stays too.
    unsafe { libc::madvise(memory.cast(), len, libc::MADV_PAGEOUT) };
}

/// A whole region.
fn page_out_in_batches(memory: *mut u8) {
    for batch in (0..REGION / PAGE).step_by(BATCH_PAGES) {
        // SAFETY: inside the mapping.
        page_out(unsafe { memory.add(batch * PAGE) }, BATCH_PAGES * PAGE);
    }
}

/// In an order that looks random and is always the same.
fn shuffled(pages: Range<usize>) -> Vec<usize> {
    let mut order: Vec<usize> = pages.collect();
    let mut state = 42u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

fn present_pages(memory: *mut u8, len: usize) -> usize {
    let mut map = vec![0u8; len / PAGE];
    // SAFETY: one byte a page.
    unsafe { libc::mincore(memory.cast(), len, map.as_mut_ptr()) };
    map.iter().filter(|byte| *byte & 1 == 1).count()
}

/// Pages a region out in batches and touches it in random order, several times; prints figures as JSON.
pub fn touch_pages() -> anyhow::Result<()> {
    // Enough managed memory for Terrace's threads to start; never touched again.
    let ballast = map(REGION);
    fill(ballast, REGION);
    let memory = map(REGION);
    fill(memory, REGION);
    std::thread::sleep(Duration::from_millis(300));
    let pages = REGION / PAGE;
    let order = shuffled(0..pages);
    let mut faults = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    let mut out_ns = Vec::new();
    let mut out_share = 1.0f64;
    let mut sum = 0u64;
    for round in 0..=ROUNDS {
        let start = Instant::now();
        page_out_in_batches(memory);
        let per_page = start.elapsed().as_nanos() as f64 / pages as f64;
        let share = 1.0 - present_pages(memory, REGION) as f64 / pages as f64;
        for page in &order {
            let start = Instant::now();
            // SAFETY: inside the mapping.
            sum = sum.wrapping_add(u64::from(unsafe { memory.add(page * PAGE + 100).read_volatile() }));
            let elapsed = start.elapsed().as_nanos() as u64;
            if round > 0 {
                faults.record(elapsed)?;
            }
        }
        if round > 0 {
            out_ns.push(per_page);
            out_share = out_share.min(share);
        }
    }
    let figures: Value = json!({
        "fault_p50_us": faults.value_at_quantile(0.5) as f64 / 1e3,
        "fault_p99_us": faults.value_at_quantile(0.99) as f64 / 1e3,
        "page_out_us": crate::results::median(&out_ns) / 1e3,
        "paged_out_share": out_share,
        "sum": sum,
    });
    println!("{figures}");
    Ok(())
}

/// How threads touch a region.
#[derive(Clone, Copy)]
pub struct FaulterCase {
    /// In a word.
    pub title: &'static str,
    /// Each thread has a part of its own; otherwise all touch every page, in the same order.
    own: bool,
    random: bool,
}

/// All ways.
pub const FAULTER_CASES: [FaulterCase; 4] = [
    FaulterCase { title: "own, random", own: true, random: true },
    FaulterCase { title: "own, sequential", own: true, random: false },
    FaulterCase { title: "same, random", own: false, random: true },
    FaulterCase { title: "same, sequential", own: false, random: false },
];

/// Pages a region out and touches it from several threads, in all [`FAULTER_CASES`] with each of these numbers of threads; prints a line of
/// JSON for each.
pub fn touch_from_threads(threads: &[usize]) -> anyhow::Result<()> {
    let ballast = map(REGION);
    fill(ballast, REGION);
    let memory = map(REGION);
    fill(memory, REGION);
    std::thread::sleep(Duration::from_millis(300));
    for threads in threads {
        for case in FAULTER_CASES {
            println!("{}", touched_by(memory as usize, *threads, case)?);
        }
    }
    Ok(())
}

fn touched_by(memory: usize, threads: usize, case: FaulterCase) -> anyhow::Result<Value> {
    let pages = REGION / PAGE;
    let orders: Vec<Vec<usize>> = (0..threads)
        .map(|n| if case.own { n * pages / threads..(n + 1) * pages / threads } else { 0..pages })
        .map(|part| if case.random { shuffled(part) } else { part.collect() })
        .collect();
    let mut touches = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    let (mut rates, mut cpu_us) = (Vec::new(), Vec::new());
    let mut out_share = 1.0f64;
    for round in 0..ROUNDS {
        // What has just been touched is not paged out.
        std::thread::sleep(Duration::from_millis(50));
        page_out_in_batches(memory as *mut u8);
        let out = pages - present_pages(memory as *mut u8, REGION);
        let ready = Barrier::new(threads + 1);
        let (parts, cpu) = std::thread::scope(|scope| {
            let walk = |order: &[usize]| {
                let mut touches = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
                ready.wait();
                let begun = Instant::now();
                for page in order {
                    let start = Instant::now();
                    // SAFETY: inside the mapping.
                    unsafe { ((memory + page * PAGE + 100) as *const u8).read_volatile() };
                    touches.record(start.elapsed().as_nanos() as u64)?;
                }
                anyhow::Ok((touches, begun, Instant::now()))
            };
            let walkers: Vec<_> = orders.iter().map(|order| scope.spawn(move || walk(order))).collect();
            let cpu = own_cpu_us();
            ready.wait();
            let parts = walkers.into_iter().map(|walker| walker.join().expect("a walker does not panic")).collect::<Result<Vec<_>, _>>()?;
            anyhow::Ok((parts, own_cpu_us() - cpu))
        })?;
        // The first round fills caches.
        if round == 0 {
            continue;
        }
        parts.iter().try_for_each(|(part, ..)| touches.add(part))?;
        let (begun, ended) = (parts.iter().map(|part| part.1).min(), parts.iter().map(|part| part.2).max());
        let seconds = begun.zip(ended).map_or(f64::NAN, |(begun, ended)| (ended - begun).as_secs_f64());
        rates.push(out as f64 / seconds);
        cpu_us.push(cpu / out.max(1) as f64);
        out_share = out_share.min(out as f64 / pages as f64);
    }
    Ok(json!({
        "threads": threads,
        "case": case.title,
        "pages_per_s": crate::results::median(&rates),
        "touch_p50_us": touches.value_at_quantile(0.5) as f64 / 1e3,
        "touch_p99_us": touches.value_at_quantile(0.99) as f64 / 1e3,
        "cpu_us": crate::results::median(&cpu_us),
        "paged_out_share": out_share,
    }))
}

/// CPU time of this process, Terrace's threads included, µs.
fn own_cpu_us() -> f64 {
    // SAFETY: writes one rusage.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let micros = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    micros(usage.ru_utime) + micros(usage.ru_stime)
}

/// Fills memory, then pages three quarters of it out, and stays a moment so that the statistics settle.
pub fn fill_memory(gib: usize) -> anyhow::Result<()> {
    let len = gib << 30;
    let memory = map(len);
    let chunk = 64 * MIB;
    for start in (0..len).step_by(chunk) {
        // SAFETY: inside the mapping.
        let part = unsafe { memory.add(start) };
        fill(part, chunk);
        if start / chunk % 4 != 3 {
            page_out(part, chunk);
        }
    }
    std::thread::sleep(Duration::from_secs(3));
    Ok(())
}
