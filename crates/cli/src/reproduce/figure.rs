//! What a figure of a paper is here: what it claims, with what it was run, both numbers side by
//! side, and what came of it.

use super::plot::Plot;
use serde::Serialize;
use std::fmt;

/// A figure or headline of a paper.
pub struct Figure {
    /// `PAPER-figN`: its name on the command line, in JSON and in the page.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What the paper says, in short.
    pub claim: &'static str,
    /// What it was run with: all that is needed to check it.
    pub run_with: String,
    /// Numbers of the figure.
    pub rows: Vec<Row>,
    /// Pictures of the figure; the first one is named as the figure.
    pub plots: Vec<Plot>,
    /// What does not reproduce and why, and what cannot be judged with a model of pages.
    pub note: String,
}

/// A number or statement of the paper, and ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The figure's name.
    pub figure: &'static str,
    /// What is compared.
    pub metric: String,
    /// The paper's value; nothing where it says nothing.
    pub paper: Value,
    /// Our value.
    pub ours: Value,
    /// Our number over the paper's, less 1.
    pub deviation: Option<f64>,
    /// Unit of the numbers `paper` and `ours`; empty if they have none.
    pub unit: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// When it counts as reproduced.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reproduced_if: String,
    /// Why it is not reproduced, as far as is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// A number, or words.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// No value is given.
    None,
    /// A number in the row's unit.
    Number(f64),
    /// What a paper says without a number, or ours with several.
    Text(String),
}

/// What came of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// The claim holds here.
    #[serde(rename = "reproduced")]
    Reproduced,
    /// The claim does not hold here.
    #[serde(rename = "not reproduced")]
    NotReproduced,
    /// This model says nothing about the claim.
    #[serde(rename = "cannot be judged here")]
    CannotBeJudged,
    /// A number of ours that the paper does not have.
    #[serde(rename = "ours only")]
    OursOnly,
}

impl Verdict {
    /// The verdict's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::NotReproduced => "not reproduced",
            Verdict::CannotBeJudged => "cannot be judged here",
            Verdict::OursOnly => "ours only",
        }
    }

    fn of(holds: bool) -> Verdict {
        if holds { Verdict::Reproduced } else { Verdict::NotReproduced }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => write!(f, "–"),
            Value::Number(number) => write!(f, "{}", short(*number)),
            Value::Text(text) => write!(f, "{text}"),
        }
    }
}

/// Three significant digits, as tables have them.
pub fn short(number: f64) -> String {
    match number.abs() {
        n if n == 0.0 || n >= 99.95 => format!("{number:.0}"),
        n if n >= 9.995 => format!("{number:.1}"),
        n if n >= 0.0995 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{} %", short(share * 100.0))
}

/// The rows of one figure, as they are made.
pub struct Rows {
    figure: &'static str,
    rows: Vec<Row>,
}

impl Rows {
    /// No rows yet, for this figure.
    pub fn of(figure: &'static str) -> Rows {
        Rows { figure, rows: Vec::new() }
    }

    fn push(
        &mut self,
        metric: impl Into<String>,
        paper: Value,
        ours: Value,
        unit: &'static str,
        verdict: Verdict,
    ) -> &mut Rows {
        let deviation = match (&paper, &ours) {
            (Value::Number(paper), Value::Number(ours)) if *paper != 0.0 => {
                Some(ours / paper - 1.0)
            }
            _ => None,
        };
        let (metric, reproduced_if, why) = (metric.into(), String::new(), String::new());
        self.rows.push(Row {
            figure: self.figure,
            metric,
            paper,
            ours,
            deviation,
            unit,
            verdict,
            reproduced_if,
            why,
        });
        self
    }

    fn judged_by(&mut self, reproduced_if: impl Into<String>) -> &mut Rows {
        self.rows.last_mut().expect("one was pushed").reproduced_if = reproduced_if.into();
        self
    }

    /// Why the last row is not reproduced; nothing if it is.
    pub fn because(&mut self, why: impl Into<String>) {
        let last = self.rows.last_mut().expect("one was pushed");
        if last.verdict == Verdict::NotReproduced {
            last.why = why.into();
        }
    }

    /// Two numbers: reproduced if they differ by this share at most.
    pub fn number(
        &mut self,
        metric: impl Into<String>,
        unit: &'static str,
        paper: f64,
        ours: f64,
        within: f64,
    ) -> &mut Rows {
        let holds = (ours / paper - 1.0).abs() <= within;
        self.push(metric, Value::Number(paper), Value::Number(ours), unit, Verdict::of(holds));
        self.judged_by(format!("within {} % of it", (within * 100.0).round()))
    }

    /// A number of the paper's that is a least value.
    pub fn at_least(
        &mut self,
        metric: impl Into<String>,
        unit: &'static str,
        paper: f64,
        ours: f64,
    ) -> &mut Rows {
        self.push(
            metric,
            Value::Number(paper),
            Value::Number(ours),
            unit,
            Verdict::of(ours >= paper),
        )
        .judged_by("at least as much")
    }

    /// A statement, what we have to say about it, and by what that is judged.
    pub fn claim(
        &mut self,
        metric: impl Into<String>,
        paper: impl Into<String>,
        ours: impl Into<String>,
        reproduced_if: impl Into<String>,
        holds: bool,
    ) -> &mut Rows {
        self.push(
            metric,
            Value::Text(paper.into()),
            Value::Text(ours.into()),
            "",
            Verdict::of(holds),
        )
        .judged_by(reproduced_if)
    }

    /// A claim that this model cannot carry, and why.
    pub fn unjudged(
        &mut self,
        metric: impl Into<String>,
        paper: impl Into<String>,
        why: impl Into<String>,
    ) {
        self.push(
            metric,
            Value::Text(paper.into()),
            Value::Text(why.into()),
            "",
            Verdict::CannotBeJudged,
        );
    }

    /// Numbers side by side which do not mean the same.
    pub fn beside(&mut self, metric: impl Into<String>, unit: &'static str, paper: f64, ours: f64) {
        self.push(metric, Value::Number(paper), Value::Number(ours), unit, Verdict::CannotBeJudged);
    }

    /// A number of ours.
    pub fn ours(&mut self, metric: impl Into<String>, unit: &'static str, ours: f64) {
        self.push(metric, Value::None, Value::Number(ours), unit, Verdict::OursOnly);
    }

    /// All rows.
    pub fn done(self) -> Vec<Row> {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_came_of_them() {
        let mut rows = Rows::of("x-fig1");
        rows.number("a", "ns", 100.0, 102.0, 0.03);
        rows.number("b", "ns", 100.0, 96.0, 0.03);
        rows.at_least("c", "", 1.5, 1.6);
        rows.claim("d", "more", "less", "it is more", false).because("it is another machine");
        rows.claim("g", "more", "more", "it is more", true).because("it is another machine");
        rows.unjudged("e", "much", "no processor");
        rows.ours("f", "", 1.0);
        let rows = rows.done();
        assert!((rows[0].deviation.unwrap() - 0.02).abs() < 1e-12);
        let verdicts: Vec<&str> = rows.iter().map(|row| row.verdict.name()).collect();
        let expected = [
            "reproduced",
            "not reproduced",
            "reproduced",
            "not reproduced",
            "reproduced",
            "cannot be judged here",
            "ours only",
        ];
        assert_eq!(verdicts, expected);
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!((json[0]["paper"].as_f64(), json[6]["paper"].is_null()), (Some(100.0), true));
        assert_eq!(
            (json[5]["deviation"].is_null(), json[5]["verdict"].as_str()),
            (true, Some("cannot be judged here"))
        );
        assert_eq!(
            [&json[0]["reproduced_if"], &json[3]["why"]],
            ["within 3 % of it", "it is another machine"]
        );
        assert!(json[4].get("why").is_none() && json[6].get("reproduced_if").is_none());
    }

    #[test]
    fn three_digits() {
        assert_eq!(
            [0.0, 166.62, 12.345, 1.2345, 0.01234].map(short),
            ["0", "167", "12.3", "1.23", "0.012"]
        );
    }
}
