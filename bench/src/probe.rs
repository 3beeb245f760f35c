//! The programs that are measured: plain programs that know nothing of Terrace. Terrace pages them
//! out if it is preloaded, the kernel's swap otherwise.

use crate::machine;
use crate::servers::process;
use anyhow::Context;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::fs;
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use terrace_testkit::process::{companion, status_bytes};
use terrace_testkit::random::{Congruential, Xorshift};

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;
/// Bytes that a probe works on: 16,384 pages.
pub const REGION: usize = 64 * MIB;
const BATCH_PAGES: usize = 512;
const ROUNDS: usize = 3;

pub fn map(len: usize) -> *mut u8 {
    // SAFETY: a new private mapping.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(memory, libc::MAP_FAILED, "no memory to measure with");
    memory.cast()
}

/// JSON-like text with some noise: about 2.5 times compressible by lz4, as many heaps are.
pub fn fill(memory: *mut u8, len: usize) {
    let mut random = Xorshift::new(0x9E37_79B9_7F4A_7C15);
    let mut text = String::with_capacity(PAGE * 2);
    for page in 0..len / PAGE {
        text.clear();
        while text.len() < PAGE {
            let value = random.draw();
            text.push_str(&format!(
                "{{\"id\":{},\"user\":\"user-{:05}\",\"score\":{},\"token\":\"{:012x}\",\"active\":true}},",
                page * 64 + text.len(),
                value % 100_000,
                value >> 48,
                random.draw() >> 16
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

/// Pages a whole region out.
pub fn page_out_in_batches(memory: *mut u8) {
    for batch in (0..REGION / PAGE).step_by(BATCH_PAGES) {
        // SAFETY: inside the mapping.
        page_out(unsafe { memory.add(batch * PAGE) }, BATCH_PAGES * PAGE);
    }
}

/// The pages in an order that looks random and is always the same.
fn shuffled(pages: Range<usize>) -> Vec<usize> {
    let mut order: Vec<usize> = pages.collect();
    let mut random = Congruential::new(42);
    for i in (1..order.len()).rev() {
        order.swap(i, (random.draw() >> 33) as usize % (i + 1));
    }
    order
}

pub fn present_pages(memory: *mut u8, len: usize) -> usize {
    let mut map = vec![0u8; len / PAGE];
    // SAFETY: one byte a page.
    unsafe { libc::mincore(memory.cast(), len, map.as_mut_ptr()) };
    map.iter().filter(|byte| *byte & 1 == 1).count()
}

/// Pages a region out in batches and touches it in random order, several times; prints figures as
/// JSON.
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
            sum = sum
                .wrapping_add(u64::from(unsafe { memory.add(page * PAGE + 100).read_volatile() }));
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

/// Pages of one call where a whole range is restored.
const RANGE_PAGES: usize = 16;

/// Evicts a region and restores it with `terrace_touch`, page by page and in ranges. Also times
/// calls where nothing is evicted; prints figures as JSON.
pub fn touch_ahead() -> anyhow::Result<()> {
    let ballast = map(REGION);
    fill(ballast, REGION);
    let memory = map(REGION);
    fill(memory, REGION);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pages = REGION / PAGE;
    let mut single = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    let mut in_ranges = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    let (mut out_share, mut left) = (1.0f64, 0);
    for round in 0..=2 * ROUNDS {
        page_out(memory, REGION);
        out_share = out_share.min(1.0 - present_pages(memory, REGION) as f64 / pages as f64);
        let step = if round % 2 == 0 { 1 } else { RANGE_PAGES };
        let histogram = if step == 1 { &mut single } else { &mut in_ranges };
        for place in shuffled(0..pages / step) {
            let start = Instant::now();
            // SAFETY: inside the mapping.
            let first = unsafe { memory.add(place * step * PAGE) };
            terrace_api::touch_at(first, step * PAGE);
            for page in 0..step {
                // SAFETY: inside the mapping.
                unsafe { first.add(page * PAGE + 100).read_volatile() };
            }
            if round > 1 {
                histogram.record(start.elapsed().as_nanos() as u64 / step as u64)?;
            }
        }
        left = left.max(pages - present_pages(memory, REGION));
    }
    // The best of many short stretches: other threads had the processor in the others.
    let best_ns = |calls: usize, call: &dyn Fn(usize)| {
        let stretch = || {
            let start = Instant::now();
            (0..calls).for_each(call);
            start.elapsed().as_nanos() as f64 / calls as f64
        };
        (0..200).map(|_| stretch()).fold(f64::INFINITY, f64::min)
    };
    // SAFETY: inside the mapping.
    let touch = |offset: usize, len| terrace_api::touch_at(unsafe { memory.add(offset) }, len);
    let one = best_ns(10_000, &|call| touch(call * 64 % REGION, 8));
    let whole = best_ns(100, &|_| touch(0, REGION)) / pages as f64;
    // With one page of each region out, every word is looked at.
    for region in (0..REGION).step_by(2 * MIB) {
        // SAFETY: inside the mapping.
        page_out(unsafe { memory.add(region) }, PAGE);
    }
    let scanned = best_ns(100, &|call| touch(call % 16 * 2 * MIB + PAGE, 2 * MIB - PAGE)) / 511.0;
    let us = |histogram: &Histogram<u64>, q| histogram.value_at_quantile(q) as f64 / 1e3;
    let figures = json!({
        "inline_p50_us": us(&single, 0.5), "inline_p99_us": us(&single, 0.99),
        "inline_range_p50_us": us(&in_ranges, 0.5), "inline_range_p99_us": us(&in_ranges, 0.99),
        "resident_page_ns": one, "resident_region_ns": whole, "resident_among_evicted_ns": scanned,
        "paged_out_share": out_share, "left_out": left,
    });
    println!("{figures}");
    Ok(())
}

/// Times of a fault that Terrace's handler remembers: when it was read, and when each step was
/// over. CLOCK_MONOTONIC, ns.
type FaultTimes = [u64; 6];

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the C library writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Pages a region out and touches it in random order; prints figures as JSON. Lays its own times
/// beside those of Terrace's handlers, if they are there.
pub fn time_touches() -> anyhow::Result<()> {
    // SAFETY: a name of the library's.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"terrace_fault_times".as_ptr()) };
    // SAFETY: libterrace.so's function of that name has this signature.
    let handlers_times: Option<extern "C" fn(usize, *mut FaultTimes) -> bool> =
        unsafe { std::mem::transmute(symbol) };
    let ballast = map(REGION);
    fill(ballast, REGION);
    let memory = map(REGION);
    fill(memory, REGION);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pages = REGION / PAGE;
    let order = shuffled(0..pages);
    let mut steps: Vec<(&str, Histogram<u64>)> = Vec::new();
    for name in ["read", "room", "claim", "decompress", "copy", "return", "total"] {
        steps.push((name, Histogram::new_with_bounds(1, 10_000_000_000, 3)?));
    }
    let mut own = vec![[0u64; 2]; pages];
    let mut out_ns = Vec::new();
    for round in 0..=ROUNDS {
        let start = monotonic_ns();
        for batch in (0..pages).step_by(BATCH_PAGES) {
            // SAFETY: inside the mapping.
            page_out(unsafe { memory.add(batch * PAGE) }, BATCH_PAGES * PAGE);
        }
        out_ns.push((monotonic_ns() - start) as f64 / pages as f64);
        for page in &order {
            let before = monotonic_ns();
            // SAFETY: inside the mapping.
            unsafe { memory.add(page * PAGE + 100).read_volatile() };
            own[*page] = [before, monotonic_ns()];
        }
        // The last handler may still be at what comes after.
        std::thread::sleep(std::time::Duration::from_millis(10));
        for (page, [before, after]) in own.iter().enumerate().filter(|_| round > 0) {
            steps[6].1.record(after - before)?;
            let mut times = [0; 6];
            let known =
                handlers_times.is_some_and(|get| get(memory as usize + page * PAGE, &mut times));
            // One of an earlier round was not evicted in this one.
            if !known || times[0] < *before {
                continue;
            }
            let [read, room, claimed, decompressed, copied, _] = times;
            let ends = [*before, read, room, claimed, decompressed, copied, *after];
            for ((_, histogram), ends) in steps.iter_mut().zip(ends.windows(2)) {
                histogram.record(ends[1].saturating_sub(ends[0]).max(1))?;
            }
        }
    }
    let mut figures = json!({ "page_out": { "us": crate::results::median(&out_ns[1..]) / 1e3 } });
    for (name, histogram) in &steps {
        let us = |q| histogram.value_at_quantile(q) as f64 / 1e3;
        figures[*name] = json!({
            "p50_us": us(0.5), "p99_us": us(0.99), "mean_us": histogram.mean() / 1e3,
            "count": histogram.len(),
        });
    }
    println!("{figures}");
    Ok(())
}

/// How threads touch a region.
#[derive(Clone, Copy)]
pub struct FaulterCase {
    /// Name of the case.
    pub title: &'static str,
    /// Each thread has a part of its own; otherwise all touch every page, in the same order.
    own: bool,
    random: bool,
}

/// All cases.
pub const FAULTER_CASES: [FaulterCase; 4] = [
    FaulterCase { title: "own, random", own: true, random: true },
    FaulterCase { title: "own, sequential", own: true, random: false },
    FaulterCase { title: "same, random", own: false, random: true },
    FaulterCase { title: "same, sequential", own: false, random: false },
];

/// Pages a region out and touches it from several threads, in all [`FAULTER_CASES`] with each of
/// these numbers of threads. Prints a line of JSON for each.
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
    let (mut out_share, mut memory_mib) = (1.0f64, Vec::new());
    let companion = companion(std::process::id());
    // Of this process, and of Terrace's beside it.
    let cpu_seconds = || {
        let beside = companion.and_then(|companion| process::run_time_alone(companion).ok());
        machine::cpu_seconds(libc::RUSAGE_SELF) + beside.unwrap_or_default().as_secs_f64()
    };
    for round in 0..ROUNDS {
        // What has just been touched is not paged out.
        std::thread::sleep(Duration::from_millis(50));
        page_out_in_batches(memory as *mut u8);
        let out = pages - present_pages(memory as *mut u8, REGION);
        memory_mib.push(held_bytes()? as f64 / (1 << 20) as f64);
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
            let walkers: Vec<_> =
                orders.iter().map(|order| scope.spawn(move || walk(order))).collect();
            let cpu = cpu_seconds();
            ready.wait();
            let parts = walkers
                .into_iter()
                .map(|walker| walker.join().expect("a walker does not panic"))
                .collect::<Result<Vec<_>, _>>()?;
            anyhow::Ok((parts, (cpu_seconds() - cpu) * 1e6))
        })?;
        // The first round fills caches.
        if round == 0 {
            continue;
        }
        parts.iter().try_for_each(|(part, ..)| touches.add(part))?;
        let (begun, ended) =
            (parts.iter().map(|part| part.1).min(), parts.iter().map(|part| part.2).max());
        let seconds =
            begun.zip(ended).map_or(f64::NAN, |(begun, ended)| (ended - begun).as_secs_f64());
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
        "memory_mib": crate::results::median(&memory_mib),
    }))
}

/// Anonymous memory of this process, which Terrace's pools are in, and what zram takes as swap.
fn held_bytes() -> anyhow::Result<u64> {
    let mut bytes = status_bytes("self", "RssAnon").context("status tells RssAnon")?;
    for line in fs::read_to_string("/proc/swaps")?.lines() {
        let device = line.split_whitespace().next().and_then(|path| path.strip_prefix("/dev/"));
        if let Some(zram) = device.filter(|device| device.starts_with("zram")) {
            bytes += terrace_testkit::zram::used_bytes(zram)?;
        }
    }
    Ok(bytes)
}

/// Fills memory, then pages three quarters of it out, and stays a moment so that the statistics
/// settle.
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

/// Sizes of objects as heaps have them: mostly small, some of many pages.
fn sizes() -> impl FnMut() -> usize {
    let mut random = Congruential::new(7);
    move || {
        let random = (random.draw() >> 33) as usize;
        match random % 64 {
            0 => 8192 + random / 64 % 57_344,
            1..=8 => 512 + random / 64 % 3584,
            _ => 16 + random / 64 % 496,
        }
    }
}

/// Says that everything is there, and waits for the end of the input. As a server without requests
/// does, it works a little now and then.
fn hold() -> anyhow::Result<()> {
    println!("ready");
    let mut input = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // SAFETY: one initialised pollfd.
    while unsafe { libc::poll(&mut input, 1, 100) } == 0 {
        std::hint::black_box(vec![1u8; 3000]);
    }
    Ok(())
}

/// Holds this many MiB of objects; a tenth was freed, in between.
pub fn hold_heap(mib: usize) -> anyhow::Result<()> {
    let mut size = sizes();
    let mut held = 0;
    let mut objects: Vec<Vec<u8>> = Vec::new();
    while held < mib * MIB {
        let bytes = size();
        let object = vec![1u8; bytes];
        if objects.len() % 10 == 9 && !objects.last().is_some_and(Vec::is_empty) {
            objects.push(Vec::new());
        } else {
            held += bytes;
            objects.push(object);
        }
    }
    hold()
}

/// Holds this many threads. Each allocated 64 objects, freed half of them, and sleeps.
pub fn hold_threads(threads: usize) -> anyhow::Result<()> {
    // Enough managed memory for Terrace's threads to start; never touched again.
    let ballast = map(REGION);
    fill(ballast, REGION);
    let ready = std::sync::Arc::new(std::sync::Barrier::new(threads + 1));
    for _ in 0..threads {
        let ready = ready.clone();
        std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
            let mut size = sizes();
            let mut objects: Vec<Vec<u8>> = (0..64).map(|_| vec![1u8; size().min(4096)]).collect();
            let mut keep = false;
            objects.retain(|_| {
                keep = !keep;
                keep
            });
            ready.wait();
            loop {
                std::thread::park();
                std::hint::black_box(&objects);
            }
        })?;
    }
    ready.wait();
    hold()
}
