//! `NAME` or `NAME:key=value,…`: how streams are written, and what is said of mistakes.

use crate::quantity::count;

/// Mistake in how a stream is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No stream has this name.
    #[error(
        "there is no stream `{name}`; there are {}, or write the path of a recording",
        .valid.join(", ")
    )]
    Name {
        /// What was written.
        name: String,
        /// Names of all streams.
        valid: Vec<&'static str>,
    },
    /// The stream has no such parameter.
    #[error("`{name}` has no parameter `{key}`; it has {}", .valid.join(", "))]
    Key {
        /// The stream.
        name: String,
        /// What was written.
        key: String,
        /// Names of its parameters.
        valid: Vec<&'static str>,
    },
    /// The parameter cannot have this value.
    #[error("`{key}={value}`: write {expected}")]
    Value {
        /// The parameter.
        key: String,
        /// What was written.
        value: String,
        /// Values that are possible.
        expected: String,
    },
}

/// The name of a stream, and its parameters in their order.
pub fn split(text: &str) -> (&str, impl Iterator<Item = Parameter<'_>>) {
    let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
    let parameters = parameters.split(',').filter(|parameter| !parameter.is_empty());
    (
        name,
        parameters
            .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
            .map(|(key, value)| Parameter { key, value }),
    )
}

/// Parameter of a stream, as written.
#[derive(Clone, Copy, Debug)]
pub struct Parameter<'a> {
    /// Name of the parameter.
    pub key: &'a str,
    /// Value of the parameter.
    pub value: &'a str,
}

impl Parameter<'_> {
    /// The value as a number from `least` to `most`.
    pub fn number(self, least: f64, most: f64) -> Result<f64, SpecError> {
        self.value
            .parse()
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.wrong(format!("a number from {least} to {most}")))
    }

    /// The value as a whole number from `least` to `most`, which may have a suffix.
    pub fn whole(self, least: u64, most: u64) -> Result<u64, SpecError> {
        count(self.value).filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            self.wrong(format!("a whole number from {least} to {most} (10K is 10000)"))
        })
    }

    /// Error for a parameter that there is not.
    pub fn unknown(self, name: &str, valid: &[&'static str]) -> SpecError {
        SpecError::Key { name: name.to_owned(), key: self.key.to_owned(), valid: valid.to_vec() }
    }

    fn wrong(self, expected: String) -> SpecError {
        SpecError::Value { key: self.key.to_owned(), value: self.value.to_owned(), expected }
    }
}
