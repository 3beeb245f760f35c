//! The clock over this very process.

use perf_event_open_sys::bindings::{PERF_COUNT_SW_PAGE_FAULTS, PERF_TYPE_SOFTWARE};
use std::collections::HashSet;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use terrace_sampler::Tally;
use terrace_sampler::clock::Clock;
use terrace_sampler::events::{Events, OpenError, Request, Whose, threads};
use terrace_sampler::ring::{Layout, fields};

const MIB: usize = 1 << 20;

/// Sums what lies at scattered places of the first `hot` elements, until told to stop.
#[inline(never)]
fn read_scattered(memory: &[u64], hot: usize, stop: &AtomicBool) -> u64 {
    let (mut sum, mut state) = (0u64, 1u64);
    while !stop.load(Relaxed) {
        for _ in 0..1000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            sum = sum.wrapping_add(memory[(state >> 33) as usize % hot]);
        }
    }
    sum
}

fn own() -> i32 {
    std::process::id() as i32
}

/// `None`, with a word, where perf events are not to be had; a failure where nothing may be
/// skipped.
fn opened<T>(result: Result<T, OpenError>) -> Option<T> {
    match result {
        Ok(opened) => Some(opened),
        Err(e) if std::env::var_os("TERRACE_NO_SKIP").is_none() => {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_hot_half_is_found_and_threads_made_later_are_sampled() {
    let memory = vec![1u64; 256 * MIB / 8];
    let range = memory.as_ptr() as u64..memory.as_ptr() as u64 + 256 * MIB as u64;
    let stop = AtomicBool::new(false);
    // After the filling, which touches everything.
    let Some(mut clock) = opened(Clock::open(Whose::Threads(&threads(own()).unwrap()), 2_000))
    else {
        return;
    };
    let (mut tally, mut hot, mut all) = (Tally::default(), 0.0, 0.0);
    let mut seen_threads = HashSet::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| black_box(read_scattered(&memory, memory.len() / 2, &stop)));
        }
        let until = Instant::now() + Duration::from_secs(60);
        while all < 200.0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            tally += clock.drain(
                |_| true,
                |_, address| range.contains(&address),
                |sample| {
                    all += sample.weight;
                    hot += if sample.address < range.start + 128 * MIB as u64 {
                        sample.weight
                    } else {
                        0.0
                    };
                    seen_threads.insert(sample.thread);
                },
            );
        }
        stop.store(true, Relaxed);
    });
    println!(
        "{tally:?}: {all} in the memory, {hot} of them in its hot half, of threads {seen_threads:?}"
    );
    assert!(all >= 200.0, "{tally:?}");
    // Nothing touches the other half; a wrong register would seem to.
    assert!(hot / all > 0.98, "{hot} of {all}");
    // Most of the time is spent waiting for that memory.
    assert!(tally.located * 2 > tally.samples, "{tally:?}");
    assert_eq!(seen_threads.len(), 2);
}

/// Touches `pages` new pages, each by a fault of its own; returns where they are.
fn fault(pages: usize) -> Range<u64> {
    let bytes = pages * 4096;
    // SAFETY: a new mapping, of which nothing is touched outside, and which is left to the process.
    unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(memory, libc::MAP_FAILED);
        libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE);
        (0..bytes).step_by(4096).for_each(|at| memory.cast::<u8>().add(at).write_volatile(1));
        memory as u64..memory as u64 + bytes as u64
    }
}

/// Samples of an event that every machine has: this thread's faults.
#[test]
fn a_period_can_be_changed() {
    let request = Request {
        kind: PERF_TYPE_SOFTWARE,
        config: PERF_COUNT_SW_PAGE_FAULTS.into(),
        config1: 0,
        config2: 0,
        user_only: true,
        period: 1,
        precise_ip: 0,
        layout: Layout { sample_type: fields::TID | fields::ADDR },
    };
    // SAFETY: no arguments.
    let thread = unsafe { libc::gettid() };
    let Some(mut events) = opened(Events::open(Whose::Threads(&[thread]), &request)) else {
        return;
    };
    for period in [1, 8] {
        events.set_period(period).unwrap();
        events.samples(|_| ());
        let (touched, mut samples) = (fault(64), 0u64);
        events.samples(|sample| samples += u64::from(touched.contains(&sample.address)));
        // (Each CPU counts by itself.)
        assert!(
            (32 / period..=128 / period).contains(&samples),
            "{samples} samples with a period of {period}"
        );
    }
}

#[test]
fn a_thread_that_has_ended_is_left_out_and_nobody_is_an_error() {
    let ended = std::thread::spawn(|| {
        // SAFETY: no arguments.
        unsafe { libc::gettid() }
    });
    let ended = ended.join().unwrap();
    let result = Clock::open(Whose::Threads(&[ended]), 1_000);
    assert!(matches!(result, Err(OpenError::NoThreads | OpenError::Forbidden(_))));
}
