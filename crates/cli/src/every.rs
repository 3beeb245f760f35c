//! How often reports are written (`--report-every`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The time from one report to the next: a whole number of seconds, from 1 to a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every(u64);

impl Every {
    const MOST_S: u64 = 365 * 86_400;
    const UNITS: [(char, u64); 3] = [('s', 1), ('m', 60), ('h', 3600)];

    /// The interval as a length of time.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("`{text}` is no time: write a number with s, m or h, such as 60s");
        let unit = text.chars().next_back().ok_or_else(wrong)?;
        let (_, seconds) =
            Every::UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
        let seconds = count.saturating_mul(seconds);
        if (1..=Every::MOST_S).contains(&seconds) {
            Ok(Every(seconds))
        } else {
            Err(format!("`{text}` is out of range: 1s to 8760h"))
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_and_a_range() {
        for (text, seconds) in [("60s", 60), ("5m", 300), ("1h", 3600), ("8760h", Every::MOST_S)] {
            assert_eq!(text.parse(), Ok(Every(seconds)), "{text}");
        }
        for text in
            ["", "60", "0s", "-1s", "s", "1.5h", "60 s", "8761h", "99999999999999999h", "1µ"]
        {
            assert!(text.parse::<Every>().is_err(), "{text}");
        }
        let shown = Every(300).to_string();
        assert_eq!(shown.parse(), Ok(Every(300)));
    }
}
