//! The outcome for people.

use super::Outcome;
use super::args::Keys;
use super::tally::{Figures, Times};
use crate::quantity::{bytes, short_time};

/// Share of the time on its CPU from which on a client hardly ever waits for the server.
const CLIENT_LIMIT: f64 = 0.95;

/// The outcome in a few lines.
pub fn text(outcome: &Outcome) -> String {
    let mut text = format!(
        "{} at {}: {} items of {} bytes, seed {}\n",
        outcome.protocol, outcome.target, outcome.items, outcome.value_bytes, outcome.seed
    );
    if let Some(fill) = &outcome.fill {
        text += &format!("  fill  {:>7.1}s {:>9.0} sets/s\n", fill.seconds, fill.ops_per_s);
        text += &trouble(fill);
    }
    let Some(run) = &outcome.run else { return text };
    let pace = outcome.rate.map_or(String::new(), |rate| format!(" at {rate} ops/s"));
    text += &format!(
        "  run   {:>7.1}s {:>9.0} ops/s   {:.0}% GETs, {}, {} connections, depth {}{pace}, after {:.1}s; client {:.0}% of {}\n",
        run.seconds,
        run.ops_per_s,
        (outcome.get_share + outcome.update_share) * 100.0,
        keys(outcome),
        outcome.connections,
        outcome.depth,
        outcome.warm_up_s,
        outcome.client_cpu_share.unwrap_or(0.0) * 100.0,
        cpus(outcome.threads),
    );
    text += &format!(
        "{:8}{:>10} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "", "count", "p50", "p95", "p99", "p99.9", "max"
    );
    for (name, count, times) in [("get", run.hits, run.get_us), ("set", run.sets, run.set_us)] {
        if let Some(Times { p50, p95, p99, p999, max, .. }) = times {
            let [p50, p95, p99, p999, max] =
                [p50, p95, p99, p999, max].map(|us| short_time((us * 1e3) as u64));
            text +=
                &format!("  {name:6}{count:>10} {p50:>9} {p95:>9} {p99:>9} {p999:>9} {max:>9}\n");
        }
    }
    // In an open loop the client waits awake for what is due.
    if outcome.rate.is_none() && outcome.client_cpu_share.is_some_and(|share| share > CLIENT_LIMIT)
    {
        text += "  the client is the limit here, not the server\n";
    }
    text += &format!("  sent {}, received {}\n", bytes(run.bytes_sent), bytes(run.bytes_received));
    text + &trouble(run)
}

/// How popular items were.
fn keys(outcome: &Outcome) -> String {
    match outcome.keys {
        Keys::Zipf => format!("Zipf {}", outcome.theta),
        Keys::Uniform => "all alike".to_owned(),
        Keys::Gaussian => format!("Gaussian {}%", outcome.sigma * 100.0),
        Keys::Latest => format!("the latest most, Zipf {}", outcome.theta),
    }
}

fn cpus(threads: usize) -> String {
    if threads == 1 { "a CPU".to_owned() } else { format!("{threads} CPUs") }
}

fn trouble(figures: &Figures) -> String {
    if figures.misses + figures.errors == 0 {
        return String::new();
    }
    format!("  WRONG: {} values missing, {} wrong or refused\n", figures.misses, figures.errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::numbers::Numbers;
    use crate::load::tally::Tally;
    use std::time::Duration;

    fn outcome() -> Outcome {
        let mut tally = Tally::new();
        (1..=1000).for_each(|us| tally.hit(Duration::from_micros(us)));
        tally.stored(Duration::from_micros(300));
        tally.miss(1);
        tally.set_elapsed(Duration::from_secs(1));
        Outcome {
            version: "1",
            target: "127.0.0.1:1".into(),
            protocol: "redis",
            items: 1000,
            value_bytes: Numbers::One(100),
            incompressible: Numbers::One(0),
            seed: 1,
            order: 1,
            keys: Keys::Zipf,
            theta: 0.99,
            sigma: 0.1,
            clustered: false,
            get_share: 0.9,
            update_share: 0.0,
            insert_share: 0.0,
            jump_every: None,
            rate: None,
            threads: 1,
            connections: 32,
            depth: 1,
            warm_up_s: 2.0,
            fill: None,
            run: Some(tally.figures()),
            client_cpu_share: Some(0.5),
        }
    }

    #[test]
    fn it_fits_a_screen() {
        let expected = "\
redis at 127.0.0.1:1: 1000 items of 100 bytes, seed 1
  run       1.0s      1001 ops/s   90% GETs, Zipf 0.99, 32 connections, depth 1, after 2.0s; client 50% of a CPU
             count       p50       p95       p99     p99.9       max
  get         1000     500us     950us     990us     999us     1.0ms
  set            1     300us     300us     300us     300us     300us
  sent 0B, received 0B
  WRONG: 1 values missing, 0 wrong or refused
";
        assert_eq!(text(&outcome()), expected);
    }

    #[test]
    fn a_client_at_its_limit_is_told_of() {
        let says = |outcome: &Outcome| text(outcome).contains("the client is the limit here");
        for (share, is_limit) in [(0.5, false), (0.94, false), (0.96, true), (0.99, true)] {
            let outcome = Outcome { client_cpu_share: Some(share), ..outcome() };
            assert_eq!(says(&outcome), is_limit, "{share}");
        }
        // There the client waits awake.
        let open = Outcome { client_cpu_share: Some(0.99), rate: Some(1000.0), ..outcome() };
        assert!(!says(&open), "{}", text(&open));
    }
}
