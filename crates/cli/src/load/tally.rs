//! What came of a load: counts, times, and the first thing that was wrong.

use super::values::{Wrong, key};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Times are kept to three digits, up to an hour.
const DIGITS: u8 = 3;
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Counts and times.
#[derive(Debug)]
pub struct Tally {
    gets: Histogram<u64>,
    sets: Histogram<u64>,
    elapsed: Duration,
    misses: u64,
    early: u64,
    wrong: u64,
    refused: u64,
    first_trouble: Option<String>,
    /// Bytes of requests.
    pub bytes_sent: u64,
    /// Bytes of replies.
    pub bytes_received: u64,
}

/// A [`Tally`] in figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// How long the load took, in s.
    pub seconds: f64,
    /// Operations that were carried out right.
    pub operations: u64,
    /// Operations that were carried out right, per second.
    pub ops_per_s: f64,
    /// GETs that found the right value.
    pub hits: u64,
    /// GETs that found nothing.
    pub misses: u64,
    /// GETs of new items that found nothing, as the item's SET was on the way.
    pub early: u64,
    /// SETs.
    pub sets: u64,
    /// GETs that found what they should not have, and whatever the server refused.
    pub errors: u64,
    /// What was wrong first, misses included.
    pub first_trouble: Option<String>,
    /// Bytes of requests.
    pub bytes_sent: u64,
    /// Bytes of replies.
    pub bytes_received: u64,
    /// Times of GETs, if there were any.
    pub get_us: Option<Times>,
    /// Times of SETs, if there were any.
    pub set_us: Option<Times>,
    /// Times of all operations.
    pub all_us: Option<Times>,
}

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Average.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Option<Times> {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        (!histogram.is_empty()).then(|| Times {
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1e3,
        })
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are right")
}

impl Tally {
    /// A tally of nothing so far.
    pub fn new() -> Self {
        Tally {
            gets: empty(),
            sets: empty(),
            elapsed: Duration::ZERO,
            misses: 0,
            early: 0,
            wrong: 0,
            refused: 0,
            first_trouble: None,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Adds what another thread has done at the same time.
    pub fn merge(&mut self, other: Tally) {
        self.gets.add(&other.gets).expect("all have the same bounds");
        self.sets.add(&other.sets).expect("all have the same bounds");
        self.elapsed = self.elapsed.max(other.elapsed);
        self.misses += other.misses;
        self.early += other.early;
        self.wrong += other.wrong;
        self.refused += other.refused;
        self.first_trouble = self.first_trouble.take().or(other.first_trouble);
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }

    /// Sets how long it took in all.
    pub fn set_elapsed(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
    }

    /// A GET found the right value.
    pub fn hit(&mut self, elapsed: Duration) {
        self.gets.saturating_record(elapsed.as_nanos() as u64);
    }

    /// A SET was carried out.
    pub fn stored(&mut self, elapsed: Duration) {
        self.sets.saturating_record(elapsed.as_nanos() as u64);
    }

    /// A GET found nothing.
    pub fn miss(&mut self, item: u64) {
        self.misses += 1;
        self.trouble(item, "nothing came back");
    }

    /// A GET of a new item came before its SET.
    pub fn too_early(&mut self) {
        self.early += 1;
    }

    /// Operations that were carried out right.
    pub fn operations(&self) -> u64 {
        self.gets.len() + self.sets.len()
    }

    /// Operations that were not carried out right.
    pub fn troubles(&self) -> u64 {
        self.misses + self.wrong + self.refused
    }

    /// A GET found something else.
    pub fn wrong(&mut self, item: u64, wrong: &Wrong) {
        self.wrong += 1;
        self.trouble(item, &wrong.to_string());
    }

    /// The server refused.
    pub fn refused(&mut self, item: u64, why: &[u8]) {
        self.refused += 1;
        self.trouble(
            item,
            &format!(
                "the server says: {}",
                String::from_utf8_lossy(why).replace(char::is_control, "\u{fffd}")
            ),
        );
    }

    fn trouble(&mut self, item: u64, what: &str) {
        self.first_trouble
            .get_or_insert_with(|| format!("{}: {what}", String::from_utf8_lossy(&key(item))));
    }

    /// Whether every request was answered with what it should have been.
    pub fn is_right(&self) -> bool {
        self.troubles() == 0
    }

    /// The tally in figures.
    pub fn figures(&self) -> Figures {
        let mut all = self.gets.clone();
        all.add(&self.sets).expect("both have the same bounds");
        let seconds = self.elapsed.as_secs_f64();
        Figures {
            seconds,
            operations: all.len(),
            ops_per_s: if seconds > 0.0 { all.len() as f64 / seconds } else { 0.0 },
            hits: self.gets.len(),
            misses: self.misses,
            early: self.early,
            sets: self.sets.len(),
            errors: self.wrong + self.refused,
            first_trouble: self.first_trouble.clone(),
            bytes_sent: self.bytes_sent,
            bytes_received: self.bytes_received,
            get_us: Times::of(&self.gets),
            set_us: Times::of(&self.sets),
            all_us: Times::of(&all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_are_kept_apart() {
        let mut tally = Tally::new();
        for us in 1..=1000 {
            tally.hit(Duration::from_micros(us));
        }
        tally.stored(Duration::from_millis(5));
        tally.set_elapsed(Duration::from_secs(2));
        let figures = tally.figures();
        assert!(tally.is_right());
        assert_eq!(
            (figures.operations, figures.hits, figures.sets, figures.ops_per_s),
            (1001, 1000, 1, 500.5)
        );
        let gets = figures.get_us.unwrap();
        assert!(
            (gets.p50 - 500.0).abs() < 1.0
                && (gets.p95 - 950.0).abs() < 1.0
                && (gets.p99 - 990.0).abs() < 1.0
                && (gets.max - 1000.0).abs() < 1.0,
            "{gets:?}"
        );
        assert!((figures.all_us.unwrap().max - 5000.0).abs() < 5.0);
        assert_eq!(Tally::new().figures().get_us, None);
    }

    #[test]
    fn what_threads_did_side_by_side_is_added_up() {
        let mut all = Tally::new();
        for seconds in [1, 2] {
            let mut tally = Tally::new();
            (0..seconds).for_each(|_| tally.hit(Duration::from_millis(seconds)));
            tally.miss(seconds);
            tally.bytes_sent = 10;
            tally.set_elapsed(Duration::from_secs(seconds));
            all.merge(tally);
        }
        let figures = all.figures();
        assert_eq!((figures.hits, figures.misses, figures.bytes_sent), (3, 2, 20));
        assert_eq!((figures.seconds, figures.ops_per_s), (2.0, 1.5));
        assert!(figures.first_trouble.is_some_and(|trouble| trouble.contains("key-000000000001")));
    }

    #[test]
    fn the_first_trouble_is_told() {
        let mut tally = Tally::new();
        tally.refused(3, b"out of \x1b memory");
        tally.miss(4);
        let figures = tally.figures();
        assert_eq!(
            figures.first_trouble.as_deref(),
            Some("key-000000000003: the server says: out of \u{fffd} memory")
        );
        assert_eq!((figures.errors, figures.misses, tally.is_right()), (1, 1, false));
    }
}
