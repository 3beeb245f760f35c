//! Whole numbers by chance, for what differs from item to item: one number, a range in which all
//! are alike, or some numbers with weights.

use std::fmt;
use std::ops::RangeInclusive;

/// Weights are up to this, so that their sum is a number, too.
const WEIGHT_MOST: u64 = 1_000_000;

/// What a number is drawn from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Always the same number.
    One(usize),
    /// Any number from the first to the second, both included.
    Within(usize, usize),
    /// Any of these numbers, each with its weight. There is at least one, and no weight is 0.
    Weighted(Vec<(usize, u64)>),
}

impl Numbers {
    /// Reads `1000`, `100..4000` or `100:70,4000:30`.
    ///
    /// # Errors
    /// It is none of these, or a number is out of `bounds`: then the text says what to write.
    pub fn parse(text: &str, bounds: &RangeInclusive<usize>) -> Result<Numbers, String> {
        let (least, most) = (bounds.start(), bounds.end());
        let number = |text: &str| text.parse().ok().filter(|number| bounds.contains(number));
        let weighted = |part: &str| {
            let (value, weight) = part.split_once(':')?;
            let weight = weight.parse().ok().filter(|weight| (1..=WEIGHT_MOST).contains(weight))?;
            Some((number(value)?, weight))
        };
        let read = if text.contains(':') {
            text.split(',').map(weighted).collect::<Option<Vec<_>>>().map(Numbers::Weighted)
        } else if let Some((from, to)) = text.split_once("..") {
            let ends = number(from).zip(number(to)).filter(|(from, to)| from <= to);
            ends.map(|(from, to)| Numbers::Within(from, to))
        } else {
            number(text).map(Numbers::One)
        };
        read.ok_or_else(|| {
            format!(
                "write a whole number, a range such as {least}..{most}, or numbers with weights \
                 such as {least}:70,{most}:30 (numbers from {least} to {most}, weights from 1 to \
                 {WEIGHT_MOST})"
            )
        })
    }

    /// The number that some chance stands for.
    pub fn of(&self, chance: u64) -> usize {
        match self {
            Numbers::One(number) => *number,
            Numbers::Within(from, to) => from + (chance % (to - from + 1) as u64) as usize,
            Numbers::Weighted(numbers) => {
                let sum: u64 = numbers.iter().map(|(_, weight)| weight).sum();
                let mut left = chance % sum;
                for (number, weight) in numbers {
                    match left.checked_sub(*weight) {
                        Some(rest) => left = rest,
                        None => return *number,
                    }
                }
                unreachable!("what is left is less than the sum of all weights")
            }
        }
    }

    /// The highest number.
    pub fn most(&self) -> usize {
        match self {
            Numbers::One(number) => *number,
            Numbers::Within(_, to) => *to,
            Numbers::Weighted(numbers) => {
                numbers.iter().map(|(number, _)| *number).max().unwrap_or(0)
            }
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Numbers::One(number) => write!(f, "{number}"),
            Numbers::Within(from, to) => write!(f, "{from}..{to}"),
            Numbers::Weighted(numbers) => {
                for (place, (number, weight)) in numbers.iter().enumerate() {
                    let comma = if place == 0 { "" } else { "," };
                    write!(f, "{comma}{number}:{weight}")?;
                }
                Ok(())
            }
        }
    }
}

impl serde::Serialize for Numbers {
    /// Serializes one number as a number, others as they are written.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Numbers::One(number) => serializer.serialize_u64(*number as u64),
            _ => serializer.collect_str(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_sim::scattered::mixed;

    #[test]
    fn what_is_written_is_read_and_told_alike() {
        for text in ["64", "64..4000", "64:1", "100:70,4000:25,64:5"] {
            let numbers = Numbers::parse(text, &(64..=4000)).expect("it is right");
            assert_eq!(numbers.to_string(), text);
        }
        for text in ["", "63", "64..4001", "4000..64", "64:0", "64:1,", "64,65", "64:", "x", "-1"] {
            let refused = Numbers::parse(text, &(64..=4000)).expect_err(text);
            assert!(refused.contains("from 64 to 4000"), "{refused}");
        }
    }

    #[test]
    fn numbers_come_as_often_as_they_weigh() {
        let drawn = |text: &str| {
            let numbers = Numbers::parse(text, &(0..=1000)).expect("it is right");
            (0..100_000).map(move |draw| numbers.of(mixed(draw))).collect::<Vec<_>>()
        };
        let share = |all: &[usize], number: usize| {
            all.iter().filter(|drawn| **drawn == number).count() as f64 / all.len() as f64
        };
        let weighted = drawn("10:70,500:25,1000:5");
        for (number, weight) in [(10, 0.7), (500, 0.25), (1000, 0.05)] {
            assert!((share(&weighted, number) - weight).abs() < 0.01, "{number}");
        }
        let within = drawn("3..6");
        assert!((3..=6).all(|number| (share(&within, number) - 0.25).abs() < 0.01));
        assert!(drawn("7").iter().all(|number| *number == 7));
    }
}
