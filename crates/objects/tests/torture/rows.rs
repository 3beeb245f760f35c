//! Transactions on rows that move all the while. Money is neither made nor lost, no read-only
//! transaction sees half of another one, and every counted update is there. `TERRACE_SOAK_SECONDS`
//! has it go on for a sixth of that: there are five structures, too.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use terrace_objects::rows::Rows;
use terrace_objects::{Choice, Consolidator, Heap, Rules, Settings};

const ACCOUNTS: u64 = 2000;
const BEGINNING: u64 = 1000;
const WORKERS: u64 = 2;
const TRANSFERS: u64 = 8_000;
const MOVES: u64 = 5000;

/// An empty store.
pub fn rows() -> Rows<6> {
    let settings = Settings { capacity: 16 << 20, segment_bytes: 16 << 10, check_callbacks: true };
    Rows::new(Arc::new(Heap::new(settings).unwrap()))
}

/// An account: its balance, how often it was changed, and the sum of both.
pub fn account(balance: u64, changes: u64) -> [u64; 6] {
    [balance, changes, balance.wrapping_add(changes), 0, 0, 0]
}

fn checked(words: [u64; 6]) -> (u64, u64) {
    assert_eq!(words[2], words[0].wrapping_add(words[1]), "a row that was half written");
    (words[0], words[1])
}

/// Workers, an auditor and the relocator at once.
pub fn transfers_and_audits() {
    let rows = rows();
    let reader = rows.heap().reader();
    rows.run(&reader, |all| {
        (0..ACCOUNTS).for_each(|key| all.put(key, account(BEGINNING, 0)));
    })
    .unwrap();
    let until = std::env::var("TERRACE_SOAK_SECONDS").ok().and_then(|s| s.parse().ok());
    let until = until.map(|seconds: u64| Instant::now() + Duration::from_secs(seconds) / 6);
    let (done, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let changes: u64 = std::thread::scope(|scope| {
        let relocator = scope.spawn(|| {
            let rules = Rules {
                choice: Choice::RandomMixed,
                bytes_per_s: u64::MAX,
                cpu_share: 1.0,
                pause: Duration::ZERO,
                longest_pause: Duration::ZERO,
                ..Rules::default()
            };
            let mut consolidator = Consolidator::new(rows.heap().clone(), rules);
            while !done.load(Ordering::Relaxed) {
                consolidator.step(&mut &rows, Duration::from_micros(300));
                moved.store(consolidator.counters().moved, Ordering::Relaxed);
            }
            consolidator.counters().misused
        });
        let auditor = scope.spawn(|| {
            let reader = rows.heap().reader();
            while !done.load(Ordering::Relaxed) {
                let seen = rows.run(&reader, |all| {
                    let keys = (0..64).map(|key| all.get(key).map(checked));
                    keys.map(|found| found.expect("accounts stay").0).fold(0, u64::wrapping_add)
                });
                // Among the first 64 money only goes round.
                assert_eq!(seen.unwrap(), 64 * BEGINNING);
            }
        });
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let (rows, moved) = (&rows, &moved);
                scope.spawn(move || work(rows, number, moved, until))
            })
            .collect();
        let changes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        auditor.join().expect("the auditor saw whole transactions");
        assert_eq!(relocator.join().expect("the relocator saw nothing wrong"), 0);
        changes.into_iter().map(|changes| changes.expect("no worker saw anything wrong")).sum()
    });
    let totals = rows
        .run(&reader, |all| {
            let found = (0..ACCOUNTS).map(|key| checked(all.get(key).expect("accounts stay")));
            found.fold((0, 0), |sum: (u64, u64), one| (sum.0.wrapping_add(one.0), sum.1 + one.1))
        })
        .unwrap();
    assert_eq!(totals, (ACCOUNTS * BEGINNING, changes));
    assert_eq!(rows.heap().double_frees(), 0);
}

/// Transfers within the first 64 accounts or within the others, and rows that come and go. Returns
/// the number of changes of accounts.
fn work(rows: &Rows<6>, number: u64, moved: &AtomicU64, until: Option<Instant>) -> u64 {
    let reader = rows.heap().reader();
    let mut random = SmallRng::seed_from_u64(number);
    let mut changes = 0;
    let mut transfer = 0;
    while transfer < TRANSFERS
        || moved.load(Ordering::Relaxed) < MOVES
        || until.is_some_and(|until| Instant::now() < until)
    {
        transfer += 1;
        let keys = if transfer % 3 == 0 { 0..64 } else { 64..ACCOUNTS };
        let (from, to) = (random.random_range(keys.clone()), random.random_range(keys));
        if from == to {
            continue;
        }
        rows.run(&reader, |all| {
            let (mine, count) = checked(all.get(from).expect("accounts stay"));
            let (theirs, other) = checked(all.get(to).expect("accounts stay"));
            all.put(from, account(mine.wrapping_sub(3), count + 1));
            all.put(to, account(theirs.wrapping_add(3), other + 1));
        })
        .unwrap();
        changes += 2;
        let own = ACCOUNTS + number + WORKERS * random.random_range(0..50u64);
        rows.run(&reader, |all| match all.get(own) {
            Some(words) => {
                assert_eq!(checked(words).0, own);
                all.delete(own);
            }
            None => all.put(own, account(own, 1)),
        })
        .unwrap();
    }
    changes
}
