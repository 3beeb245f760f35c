//! Reading the values of a settings file, with all mistakes noted by their place.

use crate::values;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use toml::Spanned;
use toml::de::DeValue;

/// A mistake in a settings file. Lines and columns count from 1; a column counts characters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mistake {
    /// Line of the mistake.
    pub line: usize,
    /// Column of the mistake in its line.
    pub column: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Reads the text of a file, and notes all mistakes.
pub struct Reader<'t> {
    text: &'t str,
    mistakes: Vec<Mistake>,
}

/// A value, and where it stands.
pub type Value<'i> = Spanned<DeValue<'i>>;

impl<'t> Reader<'t> {
    /// A reader of the text of a file, without mistakes so far.
    pub fn new(text: &'t str) -> Reader<'t> {
        Reader { text, mistakes: Vec::new() }
    }

    /// All mistakes, in the order of their lines.
    pub fn mistakes(mut self) -> Vec<Mistake> {
        self.mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
        self.mistakes
    }

    /// The value of `key` if it is text that can be read as such a setting.
    pub fn text<T>(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let text = self.string(key, expected, value)?;
        self.valid(key, value, text.parse())
    }

    /// The value of `key` if it is a number, in quotes or not, that can be read as such a setting.
    pub fn number<T>(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let text = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            _ => self.string(key, expected, value)?,
        };
        self.valid(key, value, text.parse())
    }

    /// [`Reader::number`] for a setting that has words beside its numbers.
    pub fn number_or_word<T>(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        self.number(key, expected, value)
    }

    /// The value of `key`, which is a number with a point, or text.
    pub fn float<T>(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let text = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            _ => self.string(key, expected, value)?,
        };
        self.valid(key, value, text.parse())
    }

    /// The value of `key` if it is text that holds a valid list of tiers.
    pub fn tiers(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<String> {
        let text = self.string(key, expected, value)?;
        self.valid(key, value, values::tiers(text))
    }

    /// The value of `key` as a file name, if it is text and not empty.
    pub fn file(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<PathBuf> {
        let text = self.string(key, expected, value)?;
        if text.is_empty() {
            self.mistake(
                value.span().start,
                format!("`{key}` is empty: write a file name, or leave it out"),
            );
            return None;
        }
        Some(text.into())
    }

    /// A text, or a mistake where the value is another.
    pub fn string<'v>(
        &mut self,
        key: &str,
        expected: &str,
        value: &'v Value<'_>,
    ) -> Option<&'v str> {
        match value.get_ref() {
            DeValue::String(text) => Some(text),
            other => {
                self.wrong_type(key, expected, other, value.span().start);
                None
            }
        }
    }

    /// The value of `key` if it is a boolean.
    pub fn boolean(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<bool> {
        match value.get_ref() {
            DeValue::Boolean(truth) => Some(*truth),
            other => {
                self.wrong_type(key, expected, other, value.span().start);
                None
            }
        }
    }

    /// What was read, or a mistake that says why it was refused.
    pub fn valid<T, E: fmt::Display>(
        &mut self,
        key: &str,
        value: &Value<'_>,
        parsed: Result<T, E>,
    ) -> Option<T> {
        parsed
            .map_err(|error| {
                self.mistake(value.span().start, format!("bad value for `{key}`: {error}"))
            })
            .ok()
    }

    /// Notes that a value is not of the type that its key has.
    pub fn wrong_type(&mut self, key: &str, expected: &str, found: &DeValue<'_>, offset: usize) {
        self.mistake(
            offset,
            format!("`{key}` must be {expected}, not a value of type {}", found.type_str()),
        );
    }

    /// Notes a key that there is not, with the nearest one that there is.
    pub fn unknown_key(&mut self, key: &str, place: &str, known: &[&str], offset: usize) {
        let advice = match nearest(key, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        self.mistake(offset, format!("unknown key `{key}`{place}; {advice}"));
    }

    /// Notes a mistake, at a place of the text in bytes.
    pub fn mistake(&mut self, offset: usize, message: String) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        self.mistakes.push(Mistake {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        });
    }
}

/// The known key that differs from `key` by the fewest slips, if they are no more than one in three
/// letters. A slip is a letter too many, too few, other, or swapped.
fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let key = key.to_lowercase();
    known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&key, candidate), *candidate))
        .filter(|(slips, candidate)| *slips <= key.chars().count().max(candidate.len()) / 3)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

pub fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
