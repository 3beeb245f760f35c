//! The parameters of a policy as names and numbers, for parameter sweeps: `hemem.cooling=1024`.
//!
//! Each policy that takes any has a table of [`Setting`]s beside its `Config`. What is counted in
//! samples, in time or in bytes a second is scaled with the policy's simulation ([`Scale`]),
//! whether it was set or not. So numbers are given as in the papers.

use thiserror::Error;

/// What a number means: how it is written, and what it is scaled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Samples: `120K`, `2M`.
    Samples,
    /// A number without a unit: `18`, `1.5`.
    Count,
    /// A part of the whole: `3%`, `0.03`.
    Share,
    /// Time, kept in ns: `50ms`, `1s`, `10us`.
    Time,
    /// Bytes, binary: `256M`, `10G`.
    Bytes,
    /// Bytes a second, binary: `10G`.
    Rate,
    /// `on` or `off`.
    Switch,
}

impl Kind {
    fn example(self) -> &'static str {
        match self {
            Kind::Samples => "a number of samples such as 120K or 2M",
            Kind::Count => "a number such as 18",
            Kind::Share => "a share such as 3% or 0.03",
            Kind::Time => "a time such as 50ms or 1s",
            Kind::Bytes => "a size such as 256M or 10G",
            Kind::Rate => "bytes a second such as 100M or 10G",
            Kind::Switch => "on or off",
        }
    }

    fn parse(self, text: &str) -> Option<f64> {
        let binary = [("K", 1024.0), ("M", 1048576.0), ("G", 1073741824.0)];
        let decimal = [("K", 1e3), ("M", 1e6), ("G", 1e9)];
        let units: &[(&str, f64)] = match self {
            Kind::Samples | Kind::Count => &decimal,
            Kind::Share => &[("%", 0.01)],
            // The longer ones first, which end like the shorter.
            Kind::Time => &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)],
            Kind::Bytes | Kind::Rate => &binary,
            Kind::Switch => {
                return [("off", 0.0), ("on", 1.0)]
                    .into_iter()
                    .find(|(word, _)| *word == text)
                    .map(|(_, value)| value);
            }
        };
        let (number, unit) = units
            .iter()
            .find_map(|(suffix, unit)| {
                Some((
                    text.strip_suffix(suffix)
                        .or_else(|| text.strip_suffix(&suffix.to_lowercase()))?,
                    *unit,
                ))
            })
            .unwrap_or((text, 1.0));
        // A time without a unit could be anything, except none.
        if self == Kind::Time && number == text && text != "0" {
            return None;
        }
        // Digits first: not what `f64` also reads, as `inf`.
        let value = number
            .parse::<f64>()
            .ok()
            .filter(|_| number.starts_with(|first: char| first.is_ascii_digit()))?
            * unit;
        (value.is_finite() && (self != Kind::Share || value <= 1.0)).then_some(value)
    }

    fn scaled(self, value: f64, scale: Scale) -> f64 {
        match self {
            Kind::Samples if value > 0.0 => (value * scale.samples).max(1.0),
            Kind::Time => value * scale.time,
            Kind::Rate => value / scale.time,
            _ => value,
        }
    }
}

/// What a parameter is called and means.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name of the parameter, as in `policy.name=value`.
    pub name: &'static str,
    /// What the parameter does, in a few words.
    pub about: &'static str,
    /// What the parameter's value means.
    pub kind: Kind,
}

/// Parameter of a policy with the configuration `C`.
pub struct Setting<C> {
    /// What the parameter is called and means.
    pub knob: Knob,
    /// Value of the parameter in a configuration.
    pub get: fn(&C) -> f64,
    /// Changes the parameter.
    pub set: fn(&mut C, f64),
}

/// Factors by which a simulation is smaller or quicker than what the papers ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Multiplies all numbers of samples.
    pub samples: f64,
    /// Multiplies all times.
    pub time: f64,
}

/// A value given to a parameter, as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Name of the policy.
    pub policy: String,
    /// Name of the parameter.
    pub name: String,
    /// Value of the parameter, in the unit of its [`Kind`].
    pub value: f64,
}

/// Why a parameter cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Invalid {
    /// The text is not `policy.name=value`.
    #[error("{0:?} sets nothing: write POLICY.NAME=VALUE, as hemem.cooling=1024")]
    Form(String),
    /// No policy has this name.
    #[error("no policy is called {name:?}: there are {}", .valid.join(", "))]
    Policy {
        /// The name as written.
        name: String,
        /// Names of the policies that there are.
        valid: Vec<&'static str>,
    },
    /// The policy has no such parameter.
    #[error("{policy} has no parameter {name:?}: {}", valid_names(.valid))]
    Name {
        /// Name of the policy.
        policy: String,
        /// The name as written.
        name: String,
        /// Names of the parameters that the policy has.
        valid: Vec<&'static str>,
    },
    /// The value is not one of its kind.
    #[error("{policy}.{name} cannot be {value:?}: it is {wanted}")]
    Value {
        /// Name of the policy.
        policy: String,
        /// Name of the parameter.
        name: String,
        /// The value as written.
        value: String,
        /// What the value should be.
        wanted: &'static str,
    },
}

fn valid_names(valid: &[&'static str]) -> String {
    if valid.is_empty() { "it has none".to_owned() } else { format!("it has {}", valid.join(", ")) }
}

/// Reads `policy.name=value`, with the parameters of a policy by its name.
pub fn assignment(
    text: &str,
    policies: &[&'static str],
    knobs: impl Fn(&str) -> Vec<Knob>,
) -> Result<Assignment, Invalid> {
    let parts = text
        .split_once('=')
        .and_then(|(key, value)| Some((key.trim().split_once('.')?, value.trim())));
    let Some(((policy, name), value)) = parts else { return Err(Invalid::Form(text.to_owned())) };
    if !policies.contains(&policy) {
        return Err(Invalid::Policy { name: policy.to_owned(), valid: policies.to_vec() });
    }
    let knobs = knobs(policy);
    let (policy, name) = (policy.to_owned(), name.to_owned());
    let Some(knob) = knobs.iter().find(|knob| knob.name == name) else {
        return Err(Invalid::Name {
            policy,
            name,
            valid: knobs.iter().map(|knob| knob.name).collect(),
        });
    };
    match knob.kind.parse(value) {
        Some(value) => Ok(Assignment { policy, name, value }),
        None => Err(Invalid::Value {
            policy,
            name,
            value: value.to_owned(),
            wanted: knob.kind.example(),
        }),
    }
}

/// `config` with what was assigned to the policy of that name, scaled.
pub fn configured<C>(
    mut config: C,
    policy: &str,
    settings: &[Setting<C>],
    assignments: &[Assignment],
    scale: Scale,
) -> C {
    for setting in settings {
        // The last one counts.
        let assigned = assignments
            .iter()
            .rev()
            .find(|given| given.policy == policy && given.name == setting.knob.name);
        let value = assigned.map_or_else(|| (setting.get)(&config), |given| given.value);
        (setting.set)(&mut config, setting.knob.kind.scaled(value, scale));
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_do() {
        for (kind, text, value) in [
            (Kind::Samples, "120K", Some(120e3)),
            (Kind::Samples, "2m", Some(2e6)),
            (Kind::Count, "1.5", Some(1.5)),
            (Kind::Share, "3%", Some(0.03)),
            (Kind::Share, "0.75", Some(0.75)),
            (Kind::Share, "75", None),
            (Kind::Time, "50ms", Some(50e6)),
            (Kind::Time, "1s", Some(1e9)),
            (Kind::Time, "10us", Some(10e3)),
            (Kind::Time, "50", None),
            (Kind::Bytes, "256M", Some(268435456.0)),
            (Kind::Switch, "on", Some(1.0)),
            (Kind::Switch, "1", None),
            (Kind::Count, "-1", None),
            (Kind::Count, "inf", None),
            (Kind::Count, "", None),
        ] {
            let got = kind.parse(text);
            assert!(
                got.zip(value).map_or(got == value, |(got, value)| (got - value).abs()
                    < 1e-9 * value.max(1.0)),
                "{kind:?} {text:?} is {got:?}"
            );
        }
    }

    #[derive(Debug, PartialEq)]
    struct Config {
        cooling: u64,
        period_ns: u64,
        hot: u32,
    }

    const SETTINGS: [Setting<Config>; 3] = [
        Setting {
            knob: Knob { name: "cooling", about: "", kind: Kind::Samples },
            get: |config| config.cooling as f64,
            set: |config, value| config.cooling = value as u64,
        },
        Setting {
            knob: Knob { name: "period", about: "", kind: Kind::Time },
            get: |config| config.period_ns as f64,
            set: |config, value| config.period_ns = value as u64,
        },
        Setting {
            knob: Knob { name: "hot", about: "", kind: Kind::Count },
            get: |config| f64::from(config.hot),
            set: |config, value| config.hot = value as u32,
        },
    ];

    fn read(text: &str) -> Result<Assignment, Invalid> {
        assignment(text, &["memtis", "still"], |name| {
            if name == "memtis" {
                SETTINGS.iter().map(|setting| setting.knob).collect()
            } else {
                Vec::new()
            }
        })
    }

    #[test]
    fn what_is_set_is_scaled_like_what_is_not() {
        let given: Vec<_> = ["memtis.cooling=120K", "memtis.hot=3", "memtis.hot=5", "still.x=1"]
            .iter()
            .filter_map(|text| read(text).ok())
            .collect();
        assert_eq!(given.len(), 3);
        let scale = Scale { samples: 0.1, time: 2.0 };
        let config = configured(
            Config { cooling: 2_000_000, period_ns: 50, hot: 1 },
            "memtis",
            &SETTINGS,
            &given,
            scale,
        );
        assert_eq!(config, Config { cooling: 12_000, period_ns: 100, hot: 5 });
        let other = configured(
            Config { cooling: 3, period_ns: 50, hot: 1 },
            "memtis-qc",
            &SETTINGS,
            &given,
            scale,
        );
        assert_eq!(other, Config { cooling: 1, period_ns: 100, hot: 1 });
    }

    #[test]
    fn errors_say_what_is_valid() {
        let text = |given: &str| read(given).unwrap_err().to_string();
        assert_eq!(
            text("memtis"),
            "\"memtis\" sets nothing: write POLICY.NAME=VALUE, as hemem.cooling=1024"
        );
        assert_eq!(text("lru.cooling=1"), "no policy is called \"lru\": there are memtis, still");
        assert_eq!(
            text("memtis.cool=1"),
            "memtis has no parameter \"cool\": it has cooling, period, hot"
        );
        assert_eq!(text("still.cool=1"), "still has no parameter \"cool\": it has none");
        assert_eq!(
            text("memtis.period=50"),
            "memtis.period cannot be \"50\": it is a time such as 50ms or 1s"
        );
    }
}
