//! Clients side by side, each on a thread of its own.

use super::accesses::Operation;
use super::client::{Client, Plan, Told};
use super::tally::Tally;
use anyhow::Result;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What all threads are asked to do together.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The most requests on the way on each connection.
    pub depth: usize,
    /// When the load ends.
    pub until: Option<Instant>,
    /// Requests a second in an open loop, of all threads.
    pub rate: Option<f64>,
    /// Whether progress is told on standard error.
    pub tell: bool,
}

/// Has each client carry out its operations. Gives what came of it, and the CPU time that each
/// thread took, in seconds, on the average.
///
/// # Errors
/// The first error of a client.
pub fn run<I>(clients: &mut [Client], operations: &mut [I], load: Load) -> Result<(Tally, f64)>
where
    I: Iterator<Item = Operation> + Send,
{
    let count = clients.len();
    let told: Vec<Told> = (0..count).map(|_| Told::default()).collect();
    let ended = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .zip(operations)
            .zip(&told)
            .map(|((client, operations), told)| {
                let rate = load.rate.map(|rate| rate / count as f64);
                let plan = Plan { depth: load.depth, until: load.until, rate, told };
                scope.spawn(move || {
                    let before = terrace_os::thread_cpu_ns();
                    let tally = client.run(operations, plan)?;
                    Ok::<_, anyhow::Error>((
                        tally,
                        (terrace_os::thread_cpu_ns() - before) as f64 / 1e9,
                    ))
                })
            })
            .collect();
        if load.tell {
            scope.spawn(|| tell(&told, &ended));
        }
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        *ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        ended.1.notify_all();
        let (mut all, mut cpu_s) = (Tally::new(), 0.0);
        for outcome in outcomes {
            let (tally, spent) =
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            all.merge(tally);
            cpu_s += spent / count as f64;
        }
        Ok((all, cpu_s))
    })
}

/// Writes a line on standard error each second until all have ended.
fn tell(told: &[Told], ended: &(Mutex<bool>, Condvar)) {
    let begun = Instant::now();
    let (mut last, mut before) = (begun, 0);
    let mut is_over = ended.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*is_over {
        let waited = ended.1.wait_timeout(is_over, TELL_EVERY);
        is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
        let since = last.elapsed();
        if since < TELL_EVERY {
            continue;
        }
        let operations: u64 = told.iter().map(|one| one.operations.load(Relaxed)).sum();
        let troubles: u64 = told.iter().map(|one| one.troubles.load(Relaxed)).sum();
        eprintln!(
            "{:>5.0}s {:>9.0} ops/s  {troubles} wrong",
            begun.elapsed().as_secs_f64(),
            (operations - before) as f64 / since.as_secs_f64(),
        );
        last += since;
        before = operations;
    }
}
