//! The programs that are measured: plain programs that know nothing of Terrace. What pages them out is whoever is there: Terrace if it
//! is preloaded, the kernel's swap otherwise.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::time::Instant;

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
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pages = REGION / PAGE;
    let mut order: Vec<usize> = (0..pages).collect();
    let mut state = 42u64;
    for i in (1..pages).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    let mut faults = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    let mut out_ns = Vec::new();
    let mut out_share = 1.0f64;
    let mut sum = 0u64;
    for round in 0..=ROUNDS {
        let start = Instant::now();
        for batch in (0..pages).step_by(BATCH_PAGES) {
            // SAFETY: inside the mapping.
            page_out(unsafe { memory.add(batch * PAGE) }, BATCH_PAGES * PAGE);
        }
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
    std::thread::sleep(std::time::Duration::from_secs(3));
    Ok(())
}

/// Sizes as heaps have them: mostly small, some of many pages.
fn sizes() -> impl FnMut() -> usize {
    let mut state = 7u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = (state >> 33) as usize;
        match random % 64 {
            0 => 8192 + random / 64 % 57_344,
            1..=8 => 512 + random / 64 % 3584,
            _ => 16 + random / 64 % 496,
        }
    }
}

/// Says that everything is there, and waits for the end of the input as a server without requests: now and then it does a little.
fn hold() -> anyhow::Result<()> {
    println!("ready");
    let mut input = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // SAFETY: one initialised pollfd.
    while unsafe { libc::poll(&mut input, 1, 100) } == 0 {
        std::hint::black_box(vec![1u8; 3000]);
    }
    Ok(())
}

/// Holds objects of so many MiB; a tenth was freed, in between.
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

/// Holds so many threads. Each allocated 64 objects, freed half of them, and sleeps.
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
