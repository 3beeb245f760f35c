//! A limit on memory that follows a target for what may be lost (`--slowdown`): lower while
//! less is lost, higher at once where more is.
//!
//! The loss is the time that the program lost to waits for memory, per elapsed time, as the report
//! tells it (`slowdown_estimate`), times [`UNTOLD`]. What is known of it comes late: an evicted
//! page is missed after a while, or never. So memory comes down slowly, the more slowly the nearer
//! the target is, and after each mistake it rests, longer each time.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// The time told of programs of one thread is a little less than what was lost. All of it is taken
/// to be this many times what is told (`terrace-bench honesty` compares the two; 0.6 to 1.5 times
/// in docs/notes/2026-11-27-the-time-told.md).
const UNTOLD: f64 = 1.1;
/// Growth below which memory has stopped growing, as a part of it. Nothing is taken before.
const GROWS: f64 = 0.02;
/// The time that [`GROWS`] is about, seconds.
pub const GROWTH_S: f64 = 5.0;
/// Time after which memory is taken although it grows, seconds.
const GROWTH_MOST_S: f64 = 30.0;
/// Times over which the loss is looked at, seconds: `CALM_S` to come down, `ALARM_S` to go up.
const CALM_S: f64 = 5.0;
const ALARM_S: f64 = 1.0;
/// Part of the data that is taken in a second, at most; and the part of the target from which on no
/// more is taken.
const DOWN: f64 = 0.03;
const NEAR: f64 = 0.7;
/// The loss of a second that is a mistake at once, as a multiple of the target.
const ALARM: f64 = 3.0;
/// Part of the data that is given where more is lost than the target, for each time that the target
/// is exceeded. Also the most of it at once.
const UP: f64 = 0.01;
const UP_MOST: f64 = 0.15;
/// Least time from one giving of memory to the next, seconds.
const UP_EVERY_S: f64 = 0.5;
/// Rest after a mistake, the least and the longest, seconds. It is longer after each, and less long
/// after a time without one.
const REST_S: f64 = 5.0;
const REST_MOST_S: f64 = 300.0;
/// Most that a process has less than its limit, for what it touches next, bytes (`HEADROOM_MAX` of
/// the mover). So a limit is no nearer to what there is at the beginning.
const HEADROOM: f64 = (64 << 20) as f64;

/// What was measured at one time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When that was, in seconds from any beginning.
    pub now_s: f64,
    /// The most data that there was at a time, until now, bytes.
    pub most: u64,
    /// The data that there is, bytes.
    pub data: u64,
    /// DRAM for it, bytes.
    pub physical: u64,
    /// How much time was lost to waits for memory so far, in seconds.
    pub lost_s: f64,
}

/// The loss that is allowed, as a part of the time: 0.02 is 2 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target(pub f64);

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent: Option<f64> = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
        match percent {
            Some(percent) if (0.1..=100.0).contains(&percent) => Ok(Target(percent / 100.0)),
            _ => Err(format!(
                "`{text}` is no slowdown from 0.1% to 100%, such as 2%, and neither `auto` nor `off`"
            )),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0.07 × 100 is not 7.
        write!(f, "{}%", (self.0 * 1e5).round() / 1e3)
    }
}

/// What is wanted by `--slowdown`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Wanted {
    /// [`USUAL`] where nothing else limits memory.
    #[default]
    Auto,
    /// No target.
    Off,
    /// The given target.
    At(Target),
}

/// The target where nothing is said.
const USUAL: Target = Target(0.02);

impl Wanted {
    /// The target, if there is one. `limited`: something was said of memory.
    pub fn target(self, limited: bool) -> Option<Target> {
        match self {
            Wanted::Auto => (!limited).then_some(USUAL),
            Wanted::Off => None,
            Wanted::At(target) => Some(target),
        }
    }
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Wanted::Auto),
            "off" => Ok(Wanted::Off),
            target => target.parse().map(Wanted::At),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Auto => f.write_str("auto"),
            Wanted::Off => f.write_str("off"),
            Wanted::At(target) => target.fmt(f),
        }
    }
}

/// The limit of a run.
#[derive(Debug)]
pub struct Slowdown {
    target: Target,
    /// The last few samples.
    seen: VecDeque<Sample>,
    begun_s: Option<f64>,
    /// The limit, bytes; `None` while memory grows for the first time.
    limit: Option<f64>,
    sampled_s: f64,
    most: u64,
    raised_s: f64,
    rests_until_s: f64,
    rest_s: f64,
}

impl Slowdown {
    /// Makes the limit of a run for a loss of at most `target`.
    pub fn new(target: Target) -> Self {
        Slowdown {
            target,
            seen: VecDeque::new(),
            begun_s: None,
            limit: None,
            sampled_s: 0.0,
            most: 0,
            raised_s: f64::MIN,
            rests_until_s: 0.0,
            rest_s: REST_S,
        }
    }

    /// Follows another target from now on.
    pub fn follow(&mut self, target: Target) {
        self.target = target;
    }

    /// The limit from this sample on, in bytes, and at least `least`.
    pub fn limit(&mut self, sample: Sample, least: u64) -> u64 {
        self.seen.push_back(sample);
        while self.seen.get(1).is_some_and(|next| sample.now_s - next.now_s >= CALM_S.max(GROWTH_S))
        {
            self.seen.pop_front();
        }
        let seconds = sample.now_s - std::mem::replace(&mut self.sampled_s, sample.now_s);
        let grown = sample.most.saturating_sub(std::mem::replace(&mut self.most, sample.most));
        if sample.data == 0 {
            return u64::MAX;
        }
        let begun_s = *self.begun_s.get_or_insert(sample.now_s);
        let Some(limit) = self.limit else {
            let oldest = self.seen[0];
            let grows =
                (sample.most - oldest.most.min(sample.most)) as f64 > sample.most as f64 * GROWS;
            let known = sample.now_s - oldest.now_s >= GROWTH_S * 0.9;
            if known && !grows || sample.now_s - begun_s >= GROWTH_MOST_S {
                self.limit = Some(sample.physical as f64 + HEADROOM);
            }
            return u64::MAX;
        };
        let data = sample.data as f64;
        let (alarm, calm) = (self.loss(ALARM_S), self.loss(CALM_S));
        // What comes new is no mistake.
        let mut limit = limit + grown as f64;
        let most = sample.physical as f64 + HEADROOM;
        if alarm > self.target.0 * ALARM || calm > self.target.0 {
            if sample.now_s - self.raised_s >= UP_EVERY_S {
                let times = alarm.max(calm) / self.target.0;
                limit = limit.min(most) + data * (UP * times).min(UP_MOST);
                self.raised_s = sample.now_s;
                // One mistake is raised for several times.
                if sample.now_s >= self.rests_until_s {
                    self.rest_s = (self.rest_s * 2.0).min(REST_MOST_S);
                }
                self.rests_until_s = sample.now_s + self.rest_s;
            }
        } else if sample.now_s >= self.rests_until_s && calm < self.target.0 * NEAR {
            let part = 1.0 - calm / (self.target.0 * NEAR);
            limit = limit.min(most) - data * DOWN * part * part * seconds;
            if sample.now_s - self.rests_until_s > self.rest_s {
                self.rest_s = (self.rest_s / 2.0).max(REST_S);
                self.rests_until_s = sample.now_s;
            }
        }
        let limit = limit.clamp(least as f64, (sample.most as f64 * 1.25).max(least as f64));
        self.limit = Some(limit);
        limit as u64
    }

    /// What was lost within the last `within_s` seconds, as a part of them.
    fn loss(&self, within_s: f64) -> f64 {
        let Some(last) = self.seen.back() else { return 0.0 };
        let first = self.seen.iter().find(|sample| last.now_s - sample.now_s <= within_s + 1e-6);
        let first = first.unwrap_or(last);
        let seconds = last.now_s - first.now_s;
        // The first samples say little.
        if seconds < ALARM_S / 2.0 {
            return 0.0;
        }
        (last.lost_s - first.lost_s).max(0.0) / seconds * UNTOLD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = (1 << 20) as f64;

    /// A program with `data` MiB of data, of which `hot` are used all the time, and the rest the
    /// less the colder it is. What is missing of the hot part costs much.
    struct Program {
        data: f64,
        hot: fn(f64) -> f64,
        lost_s: f64,
        physical: f64,
    }

    impl Program {
        fn new(data: f64, hot: fn(f64) -> f64) -> Self {
            Program { data, hot, lost_s: 0.0, physical: data }
        }

        /// Samples ten times a second for the given time. Gives limit and loss of each sample.
        fn run(&mut self, control: &mut Slowdown, from_s: f64, seconds: u32) -> Vec<(f64, f64)> {
            (0..seconds * 10)
                .map(|tenth| {
                    let now_s = from_s + f64::from(tenth) / 10.0;
                    let missing = ((self.hot)(now_s) - self.physical).max(0.0);
                    let loss =
                        missing / self.data * 0.5 + 0.004 * (1.0 - self.physical / self.data);
                    self.lost_s += loss / UNTOLD / 10.0;
                    let bytes = |mib: f64| (mib * MIB) as u64;
                    let sample = Sample {
                        now_s,
                        most: bytes(self.data),
                        data: bytes(self.data),
                        physical: bytes(self.physical),
                        lost_s: self.lost_s,
                    };
                    let limit = control.limit(sample, 64 << 20) as f64 / MIB;
                    // Memory is evicted at most so fast, and refaults as it is missed.
                    self.physical = if limit < self.physical {
                        limit.max(self.physical - 20.0)
                    } else {
                        limit.min(self.physical.max((self.hot)(now_s)))
                    };
                    (limit, loss)
                })
                .collect()
        }
    }

    fn mean_loss(samples: &[(f64, f64)]) -> f64 {
        samples.iter().map(|(_, loss)| loss).sum::<f64>() / samples.len() as f64
    }

    #[test]
    fn targets_are_percent() {
        for (text, target, shown) in
            [("2%", 0.02, "2%"), ("2", 0.02, "2%"), ("7.5 %", 0.075, "7.5%")]
        {
            let parsed: Target = text.parse().unwrap();
            assert!((parsed.0 - target).abs() < 1e-12 && parsed.to_string() == shown, "{parsed}");
        }
        for text in ["0", "-1%", "101%", "nan", "", "2x"] {
            assert!(text.parse::<Target>().is_err_and(|why| why.contains("such as 2%")), "{text}");
        }
    }

    #[test]
    fn what_is_idle_leaves_and_the_loss_stays_below_the_target() {
        let mut control = Slowdown::new(Target(0.02));
        let samples = Program::new(1000.0, |_| 400.0).run(&mut control, 0.0, 180);
        let end = samples[1799].0;
        assert!((350.0..450.0).contains(&end), "{end} MiB");
        assert!(mean_loss(&samples[600..]) < 0.02, "{}", mean_loss(&samples[600..]));
    }

    #[test]
    fn at_constant_load_the_limit_hardly_moves() {
        let mut control = Slowdown::new(Target(0.02));
        let samples = Program::new(1000.0, |_| 400.0).run(&mut control, 0.0, 300);
        for minute in samples[600..].chunks(600) {
            let least = minute.iter().map(|(limit, _)| *limit).fold(f64::MAX, f64::min);
            let most = minute.iter().map(|(limit, _)| *limit).fold(0.0, f64::max);
            assert!(most - least < 0.05 * least, "from {least} to {most} MiB");
        }
    }

    #[test]
    fn a_jump_is_given_back_within_seconds() {
        let mut control = Slowdown::new(Target(0.02));
        let hot = |now_s: f64| if now_s < 120.0 { 300.0 } else { 700.0 };
        let samples = Program::new(1000.0, hot).run(&mut control, 0.0, 180);
        assert!(samples[1190].0 < 400.0, "{} MiB before the jump", samples[1190].0);
        assert!(mean_loss(&samples[1250..1300]) < 0.02, "{:?}", &samples[1200..1260]);
    }

    #[test]
    fn nothing_is_taken_while_memory_grows() {
        let mut control = Slowdown::new(Target(0.02));
        let mut limits = Vec::new();
        for tenth in 0..400u64 {
            let data = (tenth.min(200) * 10) << 20;
            let sample = Sample {
                now_s: tenth as f64 / 10.0,
                most: data,
                data,
                physical: data,
                lost_s: 0.0,
            };
            limits.push(control.limit(sample, 64 << 20));
        }
        assert!(limits[..240].iter().all(|limit| *limit == u64::MAX));
        assert!(limits[300] < (2000 << 20), "{}", limits[300]);
    }
}
